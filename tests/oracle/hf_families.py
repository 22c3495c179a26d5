"""transformers' numbers for the models of families.json: LlamaForCausalLM and Qwen3ForCausalLM with the same
weights and batches. Needs torch, transformers, numpy and h5py (only to make or renew the stored figures).

usage: hf_families.py TERCIO TEXT OUT.json [documents]

For each case TERCIO initialises the model (one step with learning rate 0), and its checkpoint's weights go into
transformers' model by the names of both. The script makes the batches anew from the text (Philox, as data.h
describes), computes the loss and the gradient of the first step in float64, and the losses of ten steps of AdamW
in float32 (beta 0.9 0.95, eps 1e-8, weight decay 0.1 on matrices, clip 1, constant rate), and writes norms and
samples of the gradients. It ends with status 1 if a tensor's gradient is off by more than 5e-7 of its norm (with
`documents` 1e-6), or 8e-7 for
the gains of queries' and keys' norms: their sums nearly cancel, which enlarges the rounding of what they are sums of
(exact sums of the same terms are no nearer; transformers in fp32 is off by up to 7e-7 there). Cosines and sines of
positions are float32 in transformers, also in a float64 model.

With `documents` (documents.json): Llama and Qwen3 with data.documents = mask. Their documents are lines of the text;
transformers gets a block-diagonal causal mask and positions that restart at each line."""
import glob, json, os, shutil, subprocess, sys, tempfile
import h5py, numpy as np, torch, transformers
from compact import dump

tercio, text, out = sys.argv[1:4]
END = 10 if sys.argv[4:] == ['documents'] else None    # ends a document; None: documents are joined
SEED, BATCH, STEPS, LR, SAMPLES = 1, 4, 10, 3e-4, 48
SIZES = dict(layers=3, hidden=64, vocab=256, ffn=160)
CASES = [
    dict(family='llama', heads=8, kv_heads=2, context=64),
    dict(family='llama', heads=4, kv_heads=1, context=32, tied='yes'),
    dict(family='llama', heads=4, kv_heads=4, context=128, rope_theta=10000),
    dict(family='llama', heads=8, kv_heads=2, context=64, tied='yes', rope_scaling='llama3:8:1:4:32'),
    dict(family='llama', heads=4, kv_heads=2, context=64, bias='yes', head_dim=24),
    dict(family='qwen3', heads=8, kv_heads=2, context=64, head_dim=16),
    dict(family='qwen3', heads=4, kv_heads=1, context=128, tied='yes', head_dim=32),
    dict(family='qwen3', heads=4, kv_heads=4, context=32),
]
if END is not None:
    CASES = [
        dict(family='llama', heads=8, kv_heads=2, context=128),
        dict(family='qwen3', heads=4, kv_heads=1, context=64, tied='yes', head_dim=32),
    ]


def philox(key, c0, c1):
    m32 = 0xffffffff
    c = [c0 & m32, c0 >> 32 & m32, c1 & m32, c1 >> 32 & m32]
    k = [key & m32, key >> 32 & m32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & m32, (p0 >> 32) ^ c[3] ^ k[1], p0 & m32]
        k = [(k[0] + 0x9E3779B9) & m32, (k[1] + 0xBB67AE85) & m32]
    return c


data = np.frombuffer(open(text, 'rb').read(), dtype=np.uint8)
part = data[:len(data) * 95 // 100]


def batch(step, T):
    n, x, y = len(part) - T, [], []
    for b in range(BATCH):
        r = philox(SEED, step, b)
        s = ((r[1] << 32 | r[0]) * n) >> 64
        x.append(part[s:s + T])
        y.append(part[s + 1:s + T + 1])
    return torch.tensor(np.stack(x).astype(np.int64)), torch.tensor(np.stack(y).astype(np.int64))


def checkpoint(case, folder):
    """The initial weights of a case, and the first gradient as Tercio has it."""
    keys = [f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()]
    subprocess.run([tercio, 'train', *keys, f'--data.train={text}', '--data.order=draws',
                    f'--train.global_batch={BATCH}',
                    '--train.steps=1', '--train.lr=0', '--train.clip=0', f'--train.seed={SEED}',
                    f'--run.out={folder}'] + (['--data.documents=mask', f'--data.end_token={END}'] if END else []),
                   check=True, stdout=subprocess.DEVNULL)
    state = {}
    for name in sorted(glob.glob(folder + '/ckpt/step-00000001/rank-*.h5')):
        with h5py.File(name) as f:
            state.update({t: np.array(f['tensors'][t]) for t in f['tensors']})
    manifest = json.load(open(folder + '/ckpt/step-00000001/manifest.json'))
    return state, manifest['model'] if 'model' in manifest else manifest['meta']['model']


def config_of(text):
    w = text.split()
    m = dict(zip(w[::2], w[1::2]))
    scaling = None
    if m['rope_scaling'].startswith('llama3:'):
        f, low, high, original = m['rope_scaling'].split(':')[1:]
        scaling = dict(rope_type='llama3', factor=float(f), low_freq_factor=float(low),
                       high_freq_factor=float(high), original_max_position_embeddings=int(original))
    common = dict(vocab_size=int(m['vocab']), hidden_size=int(m['hidden']), intermediate_size=int(m['ffn']),
                  num_hidden_layers=int(m['layers']), num_attention_heads=int(m['heads']),
                  num_key_value_heads=int(m['kv_heads']), head_dim=int(m['head_dim']),
                  max_position_embeddings=int(m['context']), rms_norm_eps=float(m['norm_eps']),
                  rope_theta=float(m['rope_theta']), tie_word_embeddings=m['tied'] == 'yes',
                  attention_bias=m['bias'] == 'yes', attn_implementation='sdpa')
    if scaling:
        common['rope_scaling'] = scaling
    if m['family'] == 'qwen3':
        return transformers.Qwen3Config(**common), m
    return transformers.LlamaConfig(mlp_bias=m['bias'] == 'yes', **common), m


def rows(m):
    """Our tensors as rows of theirs: (ours, row of ours for each row of theirs, theirs)."""
    H, K, D, F, L = (int(m[k]) for k in ('heads', 'kv_heads', 'head_dim', 'ffn', 'layers'))
    G = H // K
    q = np.array([((h // G) * (G + 2) + h % G) * D + d for h in range(H) for d in range(D)])
    k = np.array([(g * (G + 2) + G) * D + d for g in range(K) for d in range(D)])
    yield 'wte.weight', None, 'model.embed_tokens.weight'
    for i in range(L):
        a, b = f'h.{i}.', f'model.layers.{i}.'
        yield a + 'ln_1.weight', None, b + 'input_layernorm.weight'
        yield a + 'ln_2.weight', None, b + 'post_attention_layernorm.weight'
        if m['qk_norm'] == 'yes':
            yield a + 'attn.q_norm.weight', None, b + 'self_attn.q_norm.weight'
            yield a + 'attn.k_norm.weight', None, b + 'self_attn.k_norm.weight'
        for end in ('weight', 'bias') if m['bias'] == 'yes' else ('weight',):
            yield a + 'attn.qkv.' + end, q, b + 'self_attn.q_proj.' + end
            yield a + 'attn.qkv.' + end, k, b + 'self_attn.k_proj.' + end
            yield a + 'attn.qkv.' + end, k + D, b + 'self_attn.v_proj.' + end
            yield a + 'attn.proj.' + end, None, b + 'self_attn.o_proj.' + end
            yield a + 'mlp.gate_up.' + end, np.arange(F), b + 'mlp.gate_proj.' + end
            yield a + 'mlp.gate_up.' + end, np.arange(F) + F, b + 'mlp.up_proj.' + end
            yield a + 'mlp.proj.' + end, None, b + 'mlp.down_proj.' + end
    yield 'ln_f.weight', None, 'model.norm.weight'
    if m['tied'] != 'yes':
        yield 'lm_head.weight', None, 'lm_head.weight'


def flat(m, name, x):
    """A tensor of ours as rows: all dimensions of its outputs, then those of its inputs."""
    if name.endswith('attn.qkv.weight') or name.endswith('mlp.gate_up.weight'):
        return x.reshape(-1, x.shape[-1])
    if name.endswith('attn.qkv.bias') or name.endswith('mlp.gate_up.bias'):
        return x.reshape(-1)
    return x.reshape(x.shape[0], -1) if x.ndim > 1 else x


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def model_of(config, m, state, dtype):
    kind = transformers.Qwen3ForCausalLM if m['family'] == 'qwen3' else transformers.LlamaForCausalLM
    model = kind(config).to(dtype)
    theirs = dict(model.named_parameters())
    with torch.no_grad():
        for ours, index, name in rows(m):
            x = flat(m, ours, state[ours])
            x = x if index is None else x[index]
            theirs[name].copy_(torch.tensor(x.reshape(tuple(theirs[name].shape)), dtype=dtype))
    if dtype == torch.float64:
        for module in model.modules():
            if type(module).__name__.endswith('RMSNorm'):
                module.forward = exact_norm.__get__(module)
    return model


def documents(x, dtype):
    """A token END belongs to the document that it ends."""
    number = torch.cumsum(torch.nn.functional.pad(x[:, :-1] == END, (1, 0)), 1)
    at = torch.arange(x.shape[1])
    seen = (number[:, :, None] == number[:, None, :]) & (at[None, :] <= at[:, None])
    first = seen.int().argmax(2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return dict(attention_mask=mask[:, None], position_ids=at[None] - first)


def loss_of(model, step, T):
    x, y = batch(step, T)
    more = {} if END is None else documents(x, next(model.parameters()).dtype)
    logits = model(input_ids=x, **more).logits
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def gradients(m, model, state):
    theirs, ours = dict(model.named_parameters()), {}
    for name, index, other in rows(m):
        g = theirs[other].grad.numpy()
        if index is None:
            ours[name] = g.reshape(-1)
            continue
        whole = ours.setdefault(name, np.zeros(flat(m, name, state[name]).shape))
        whole[index] = g
    return {n: g.reshape(-1) for n, g in ours.items()}


def off(ours, g):
    return float(np.linalg.norm(ours - g) / np.linalg.norm(g))


def backward(config, m, state, dtype):
    """The loss of the first step, and its gradient as our tensors."""
    model = model_of(config, m, state, dtype)
    loss = loss_of(model, 1, int(m['context']))
    loss.backward()
    return float(loss.detach()), gradients(m, model, state)


def run(case):
    folder = tempfile.mkdtemp()
    state, name = checkpoint(case, folder)
    shutil.rmtree(folder)
    config, m = config_of(name)
    T = int(m['context'])
    res = dict(model=name, grad={}, losses=[])
    res['loss'], exact = backward(config, m, state, torch.float64)
    single = backward(config, m, state, torch.float32)[1]
    worst = []
    for n, g in exact.items():
        # AdamW's first moment is (1 - beta1) g, in float32
        ours = state['optim.m.' + n].reshape(-1).astype(np.float64) / float(1 - np.float32(0.9))
        worst.append((off(ours, g), off(single[n], g), n))
        at = [int(i) for i in np.linspace(0, g.size - 1, min(SAMPLES, g.size))]
        res['grad'][n] = dict(norm=float(np.linalg.norm(g)), fp32=worst[-1][1], at=at, value=[float(g[i]) for i in at])
    model = model_of(config, m, state, torch.float32)
    params = list(model.parameters())
    opt = torch.optim.AdamW([dict(params=[p for p in params if p.dim() > 1], weight_decay=0.1),
                             dict(params=[p for p in params if p.dim() == 1], weight_decay=0.0)],
                            lr=LR, betas=(0.9, 0.95), eps=1e-8)
    for s in range(1, STEPS + 1):
        opt.zero_grad()
        loss = loss_of(model, s, T)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        res['losses'].append(float(loss.detach()))
    worst.sort(reverse=True)
    for a, _, n in worst:
        if a > (1e-6 if END is not None else 8e-7 if '_norm.' in n else 5e-7):
            sys.exit(f'{name}: the gradient of {n} is off by {a:.2g}')
    print('%s\n  loss %.9g; gradients against float64, ours (transformers in fp32):' % (name, res['loss']))
    print('  ' + ', '.join('%s %.2g (%.2g)' % (n, a, b) for a, b, n in worst[:4]), flush=True)
    return res


transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
dump(dict(torch=torch.__version__, transformers=transformers.__version__, seed=SEED, batch=BATCH, lr=LR,
          cases=[run(c) for c in CASES]), open(out, 'w'))
