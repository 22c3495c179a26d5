"""`tercio sample --greedy` beside transformers' generate: 200 tokens after each of 20 prompts, on one rank, with tp = 2 and
with pp = 2; and sampled tokens on 1, 2 and 4 ranks. By hand, where torch and transformers are installed.

usage: hf_sample.py TERCIO TEXT [FAMILY ...]"""
import json, os, random, subprocess, sys, tempfile
import torch, transformers
from hf_cases import CASES, SIZES

tercio, text = (os.path.abspath(p) for p in sys.argv[1:3])
FAMILIES = [dict(family='gpt2', layers=4, heads=4, ffn=256)] + [c for i, c in enumerate(CASES) if i % 2 or c['family'] not in ('llama', 'qwen3')]
if sys.argv[3:]: FAMILIES = [c for c in FAMILIES if c['family'] in sys.argv[3:]]
LAYOUTS = [[], ['--run.ranks=2', '--mesh.tp=2'], ['--run.ranks=2', '--mesh.pp=2']]


def run(*words):
    done = subprocess.run([tercio, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f'{words}: {done.stderr}')
    return done.stdout


def sampled(dir, *words):
    return [s['tokens'] for s in json.loads(run('sample', dir + '/run/ckpt', '--prompts', dir + '/prompts', '--json',
                                                *words))]


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
lines = [line for line in open(text, errors='replace').read().split('\n') if line.isascii() and len(line) > 40]
wrong = 0
for case in FAMILIES:
    dir = tempfile.mkdtemp()
    r = random.Random(1)
    prompts = [r.choice(lines)[:r.randrange(5, 40)] for _ in range(20)]
    open(dir + '/prompts', 'w').write('\n'.join(prompts))
    run('train', *[f'--model.{k}={v}' for k, v in {**SIZES, **case, 'context': 256}.items()], f'--data.train={text}', '--train.steps=100',
        '--train.global_batch=8', '--train.lr=3e-3', f'--run.out={dir}/run')
    run('ckpt', 'export', dir + '/run/ckpt', '-o', dir + '/hf')
    model = transformers.AutoModelForCausalLM.from_pretrained(dir + '/hf', dtype=torch.float32).eval()
    theirs = []
    for p in prompts:
        with torch.no_grad():
            out = model.generate(torch.tensor([list(p.encode())]), max_new_tokens=200, do_sample=False, pad_token_id=0,
                                 eos_token_id=None)
        theirs.append(out[0, len(p.encode()):].tolist())
    for layout in LAYOUTS if case.get('kv_heads', 4) % 2 == 0 else LAYOUTS[::2]:
        ours = sampled(dir, '--greedy', '--tokens', '200', *layout)
        differ = sum(a != b for a, b in zip(ours, theirs))
        print(f"{case['family']:6} greedy {' '.join(layout) or 'one rank'}: {differ} of 20 differ", flush=True)
        wrong += differ
    one = sampled(dir, '--tokens', '200', '--seed', '5')
    for ranks in (2, 4) if case.get('layers', 4 if case['family'] == 'gpt2' else 0) >= 4 else ():
        differ = sum(a != b for a, b in zip(one, sampled(dir, '--tokens', '200', '--seed', '5', f'--run.ranks={ranks}')))
        print(f"{case['family']:6} sampled on {ranks} ranks: {differ} of 20 differ from one rank", flush=True)
        wrong += differ
sys.exit(wrong > 0)
