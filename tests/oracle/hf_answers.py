"""What transformers says of small models, for tests/mpi/m_eval: answers.json. By hand, where torch and transformers are
installed.

usage: hf_answers.py          (in the source tree's top folder)

Makes the folders bytes-gpt2, bytes-llama and bytes-qwen3 beside this script (random bf16 weights, a vocabulary of bytes),
questions.jsonl (20 questions) and tokens64.bin (llm.c's format, for hf-llama and hf-qwen3, whose vocabulary has 64 tokens).
Of each model: the perplexity of 2,000 bytes of LICENSE.md in runs of its context, the loss of each answer, and 40 greedy
tokens after each of 3 prompts, in fp32. It ends with an error if two tokens or answers are so near each other that
rounding could change the choice."""
import json, math, os, random, shutil, struct
import numpy as np, torch, transformers
from compact import dump
from torch.nn.functional import cross_entropy

here = os.path.dirname(os.path.abspath(__file__))
text = open(os.path.join(here, '../../LICENSE.md'), 'rb').read()[:2000]
sizes = dict(vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, head_dim=8)
MODELS = {
    'bytes-gpt2': transformers.GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=4, n_positions=64, n_ctx=64),
    'bytes-llama': transformers.LlamaConfig(rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, **sizes),
    'bytes-qwen3': transformers.Qwen3Config(rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, **sizes),
}


def nats(model, tokens):
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0].double()
    return cross_entropy(logits, torch.tensor(tokens[1:]), reduction='none').numpy()


def perplexity(model, tokens, context):
    parts = [nats(model, tokens[at:at + context + 1]) for at in range(0, len(tokens) - 1, context)]
    return math.exp(np.concatenate(parts).mean())


def answers(model, questions):
    sums = []
    for q in questions:
        whole = [(q['context'] + c).encode()[-65:] for c in q['choices']]
        losses = [nats(model, list(w))[-len(c.encode()):] for w, c in zip(whole, q['choices'])]
        for found in ([x.sum() for x in losses], [x.mean() for x in losses]):
            assert sorted(found)[1] - sorted(found)[0] > 1e-3, q
        sums.append([x.sum() for x in losses])
    return sums


def greedy(model, prompt):
    tokens = list(prompt.encode())
    for _ in range(40):
        with torch.no_grad():
            best = torch.topk(model(torch.tensor([tokens])).logits[0, -1], 2)
        assert best.values[0] - best.values[1] > 1e-4, prompt
        tokens.append(int(best.indices[0]))
    return tokens[-40:]


def load(name):
    return transformers.AutoModelForCausalLM.from_pretrained(os.path.join(here, name), dtype=torch.float32).eval()


transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
letters, r = ' '.join(text.decode(errors='replace').split()), random.Random(4)
questions = []
for i in range(20):
    at, n = r.randrange(900), r.randrange(3, 50)
    choices = [letters[p:p + r.randrange(2, 14)].strip(' ') + 'e' for p in (at + n, r.randrange(900), r.randrange(900))]
    questions.append(dict(context='A' + letters[at:at + n].strip(' '), choices=[' ' + c for c in choices], label=i % 3))
with open(os.path.join(here, 'questions.jsonl'), 'w') as f:
    f.write(''.join(json.dumps(q) + '\n' for q in questions))
few = [r.randrange(64) for _ in range(330)]
with open(os.path.join(here, 'tokens64.bin'), 'wb') as f:
    f.write(struct.pack('<256i', 20240520, 1, len(few), *[0] * 253) + struct.pack(f'<{len(few)}H', *few))
prompts = ['The program ', 'x', 'a longer prompt than']
out = dict(transformers=transformers.__version__, prompts=prompts, models={})
for seed, (name, config) in enumerate(MODELS.items()):
    torch.manual_seed(seed + 1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (1 if p.dim() == 1 else 0))
    folder = os.path.join(here, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    if os.path.exists(folder + '/generation_config.json'):
        os.remove(folder + '/generation_config.json')
    model = load(name)
    out['models'][name] = dict(perplexity=perplexity(model, list(text), 64), nats=answers(model, questions),
                               greedy=[greedy(model, p) for p in prompts])
for name in ('hf-llama', 'hf-qwen3'):
    out['models'][name] = dict(perplexity=perplexity(load(name), few, 32))
with open(os.path.join(here, 'answers.json'), 'w') as f:
    dump(out, f)
print({k: v['perplexity'] for k, v in out['models'].items()})
