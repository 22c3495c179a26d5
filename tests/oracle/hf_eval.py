"""`tercio eval` beside transformers: perplexity of a file, and the answer to each of 1,000 questions. By hand, where torch
and transformers are installed.

usage: hf_eval.py TERCIO TEXT

Three architectures, with random weights (one step at a rate of 0) and after 60 steps. The weights go to transformers by
`tercio ckpt export`. Sequences are as tercio eval has them: the file in runs of `context` tokens, each token but the first
predicted once."""
import json, math, os, random, subprocess, sys, tempfile
import numpy as np, torch, transformers

tercio, text = (os.path.abspath(p) for p in sys.argv[1:3])
CONTEXT, QUESTIONS = 64, 1000
SIZES = dict(layers=3, hidden=64, heads=4, vocab=256, context=CONTEXT)
FAMILIES = [dict(family='gpt2'), dict(family='llama', kv_heads=2), dict(family='qwen3', kv_heads=2, head_dim=32)]


def run(*words):
    done = subprocess.run([tercio, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f'{words}: {done.stderr}')
    return done.stdout


def nats(model, tokens):
    """The loss of each token but the first of one sequence."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction='none').numpy()


def perplexity(model, data):
    parts = [nats(model, data[at:at + CONTEXT + 1]) for at in range(0, len(data) - 1, CONTEXT)]
    return math.exp(np.concatenate(parts).mean())


def questions(data, seed):
    r, made = random.Random(seed), []
    for _ in range(QUESTIONS):
        at, n = r.randrange(len(data) - 100), r.randrange(5, 40)
        choices = [data[p:p + r.randrange(3, 20)] for p in [at + n] + [r.randrange(len(data) - 20) for _ in range(3)]]
        order = r.sample(range(4), 4)
        made.append(dict(context=data[at:at + n].rstrip(' ') or 'x', choices=[choices[i] for i in order],
                         label=order.index(0)))
    return made


def answer(model, q):
    losses = []
    for choice in q['choices']:
        context = q['context'].encode()
        tokens = (context + choice.encode())[-(CONTEXT + 1):]
        losses.append(nats(model, list(tokens))[-len(choice.encode()):])
    return int(np.argmin([x.sum() for x in losses])), int(np.argmin([x.mean() for x in losses]))


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
data = open(text, 'rb').read()[:20001]
letters = ''.join(c for c in data.decode(errors='replace') if c.isascii())
worst = wrong = 0
for case in FAMILIES:
    for steps, rate in ((1, 0), (60, 3e-3)):
        dir = tempfile.mkdtemp()
        open(dir + '/val', 'wb').write(data)
        asked = questions(letters, steps)
        open(dir + '/q.jsonl', 'w').write('\n'.join(map(json.dumps, asked)))
        run('train', *[f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()], f'--data.train={text}',
            f'--train.steps={steps}', f'--train.lr={rate}', '--train.min_lr=0', f'--run.out={dir}/run')
        run('ckpt', 'export', dir + '/run/ckpt', '-o', dir + '/hf')
        got = json.loads(run('eval', dir + '/run/ckpt', '--data', dir + '/val', '--choices', dir + '/q.jsonl', '--json'))
        model = transformers.AutoModelForCausalLM.from_pretrained(dir + '/hf', dtype=torch.float32).eval()
        theirs = perplexity(model, list(data))
        off = abs(got['results'][0]['perplexity'] / theirs - 1)
        answers = [answer(model, q) for q in asked]
        differ = sum((a['raw'], a['by_length']) != b for a, b in zip(got['results'][1]['answers'], answers))
        right = sum(a[0] == q['label'] for a, q in zip(answers, asked)) / QUESTIONS
        print(f"{case['family']:6} {steps:3} steps: perplexity {theirs:10.6f}, relative difference {off:.1e}; "
              f"{QUESTIONS} questions, {differ} answered differently, accuracy {right:.3f} and "
              f"{got['results'][1]['accuracy']:.3f}", flush=True)
        worst, wrong = max(worst, off), wrong + differ
sys.exit(f'FAILED: {worst:.1e}, {wrong}' if worst > 1e-6 or wrong else 0)
