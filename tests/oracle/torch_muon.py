"""PyTorch's numbers for Muon: ten steps of torch.optim.Muon, with AdamW for what is no matrix of a layer, on a small GPT-2
and a small Llama. Needs torch, numpy and h5py (only to make or renew the stored figures).

usage: torch_muon.py TERCIO TEXT OUT.json [ref|cpu]

TERCIO trains one step at rate 0, which gives the initial weights, and ten steps, whose losses and weights are compared here;
the script makes the batches anew from the text (Philox, as data.h describes). Newton-Schulz is torch's own lines without the
cast to bfloat16, in float64 and in float32. Fused weights are cut into the matrices that they hold. Written are losses and
samples of the weights after ten steps in float64, and how far torch's float32 is from them; and weights after one update by torch's
own lines, with the cast. It ends with status 1 if a loss of
TERCIO's is off by more than 2e-7, or a tensor by more than 1e-5 of its norm or twice what torch's float32 is. (A bias of keys has
no gradient but by rounding, which AdamW enlarges: torch's float32 is off by 5e-5 there.) """
import glob, json, shutil, subprocess, sys, tempfile
import h5py, numpy as np, torch, torch.nn.functional as F
from torch.optim import _muon
from compact import dump
from sampled import batch, philox, training_part

tercio, text, out = sys.argv[1:4]
DEVICE = sys.argv[4] if len(sys.argv) > 4 else 'cpu'
SEED, BATCH, STEPS, LR, SAMPLES = 1, 4, 10, 1e-3, 24
SIZES = dict(layers=2, hidden=48, heads=4, context=32, vocab=256)
CASES = [dict(family='gpt2', scale='match_rms_adamw'), dict(family='llama', kv_heads=2, ffn=80, scale='original'),
         dict(family='llama', kv_heads=4, ffn=128, scale='match_rms_adamw')]

part = training_part(text)
T, C, H = SIZES['context'], SIZES['hidden'], SIZES['heads']
D = C // H


def zeropower(grad, coefficients, steps, eps):
    """torch.optim._muon._zeropower_via_newtonschulz without its cast."""
    a, b, c = coefficients
    x = grad
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def train(case, folder, steps, *more):
    keys = [f'--model.{k}={v}' for k, v in {**SIZES, **case}.items() if k != 'scale']
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([tercio, 'train', *keys, f'--data.train={text}', '--data.order=draws', f'--train.global_batch={BATCH}',
                    f'--train.steps={steps}', f'--train.seed={SEED}', f'--run.out={folder}', f'--run.device={DEVICE}',
                    '--train.schedule=constant', '--train.warmup=0', '--train.optimizer=muon', '--run.threads=1',
                    f'--train.muon_scale={case["scale"]}', *more], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    step, state = sorted(glob.glob(folder + '/ckpt/step-*'))[-1], {}
    for name in sorted(glob.glob(step + '/rank-*.h5')):
        with h5py.File(name) as f:
            state.update({t: np.array(f['tensors'][t]) for t in f['tensors']})
    manifest = json.load(open(step + '/manifest.json'))
    losses = [x['loss'] for x in map(json.loads, open(folder + '/metrics.jsonl')) if 'loss' in x]
    return {n: x for n, x in state.items() if not n.startswith('optim.')}, manifest['model'] if 'model' in manifest else manifest['meta']['model'], losses


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rotate(x):
    """Of [B, heads, T, D]: pairs (i, i + D/2)."""
    freq = torch.tensor(500000.0, dtype=torch.float32) ** (-torch.arange(0, D, 2, dtype=torch.float32) / D)
    angle = torch.arange(T, dtype=torch.float32)[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def loss_of(p, x, y):
    gpt = 'wpe.weight' in p
    h = p['wte.weight'][x]
    if gpt:
        h = h + p['wpe.weight']

    def norm(z, n):
        if gpt:
            return F.layer_norm(z, (C,), p[n + '.weight'], p[n + '.bias'], 1e-5)
        return p[n + '.weight'] * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + EPS))

    def linear(z, n, outputs):
        w = p[n + '.weight'].reshape(outputs, -1)
        return F.linear(z, w, p[n + '.bias'].reshape(-1) if n + '.bias' in p else None)
    for l in range(SIZES['layers']):
        q = f'h.{l}.'
        K, E = p[q + 'attn.qkv.weight'].shape[:2]
        qkv = linear(norm(h, q + 'ln_1'), q + 'attn.qkv', K * E * D).view(BATCH, T, K, E, D).permute(2, 3, 0, 1, 4)
        queries = qkv[:, :E - 2].reshape(H, BATCH, T, D).transpose(0, 1)
        keys, values = (qkv[:, e].repeat_interleave(E - 2, 0).transpose(0, 1) for e in (E - 2, E - 1))
        if not gpt:
            queries, keys = rotate(queries), rotate(keys)
        a = attention(queries, keys, values).transpose(1, 2).reshape(BATCH, T, C)
        h = h + linear(a, q + 'attn.proj', C)
        z = norm(h, q + 'ln_2')
        if gpt:
            f = F.gelu(linear(z, q + 'mlp.fc', 4 * C), approximate='tanh')
        else:
            w = p[q + 'mlp.gate_up.weight']
            f = F.silu(z @ w[0].T) * (z @ w[1].T)
        h = h + linear(f, q + 'mlp.proj', C)
    head = p['lm_head.weight'] if 'lm_head.weight' in p else p['wte.weight']
    return F.cross_entropy((norm(h, 'ln_f') @ head.T).view(-1, head.shape[0]), y.view(-1))


EPS = 1e-5


def matrices(name, w):
    """Views of the matrices of a weight [outputs, inputs]; none if it is no layer's product."""
    if name.endswith('attn.qkv.weight'):
        G = w.shape[1] - 2
        return [w[:, :G], w[:, G], w[:, G + 1]]
    if name.endswith('mlp.gate_up.weight'):
        return [w[0], w[1]]
    return [w] if name.startswith('h.') and name.endswith('.weight') and w.dim() > 1 else []


def shaped(name, w):
    return w.reshape(-1, w.shape[-1]) if 'qkv' in name or 'mlp' in name else w.reshape(w.shape[0], -1)


def steps_of(state, dtype, scale):
    """Losses of ten steps, and the weights after them."""
    p = {n: torch.tensor(x, dtype=dtype, requires_grad=True) for n, x in state.items()}
    hidden = [n for n in p if matrices(n, p[n])]
    rest = [n for n in p if n not in hidden]
    leaf = {n: [torch.nn.Parameter(shaped(n, v).detach().clone()) for v in matrices(n, p[n])] for n in hidden}
    muon = torch.optim.Muon([m for n in hidden for m in leaf[n]], lr=LR, weight_decay=0.1, momentum=0.95, adjust_lr_fn=scale)
    adamw = torch.optim.AdamW([dict(params=[p[n] for n in rest if p[n].dim() > 1 and not n.endswith('bias')], weight_decay=0.1),
                               dict(params=[p[n] for n in rest if p[n].dim() == 1 or n.endswith('bias')], weight_decay=0.0)],
                              lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for s in range(1, STEPS + 1):
        for x in p.values():
            x.grad = None
        loss = loss_of(p, *batch(part, SEED, s, BATCH, T))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        for n in hidden:
            for m, g in zip(leaf[n], matrices(n, p[n].grad)):
                m.grad = shaped(n, g).clone()
        muon.step()
        adamw.step()
        with torch.no_grad():
            for n in hidden:
                for m, v in zip(leaf[n], matrices(n, p[n])):
                    v.copy_(m.view(v.shape))
        losses.append(float(loss.detach()))
    return losses, {n: x.detach().double().numpy().reshape(-1) for n, x in p.items()}


def run(case):
    folder = tempfile.mkdtemp()
    state, name, _ = train(case, folder + '/first', 1, '--train.lr=0')
    ours, _, got = train(case, folder + '/ten', STEPS, f'--train.lr={LR}')
    shutil.rmtree(folder)
    state = {n: x[:SIZES['vocab']] if n in ('wte.weight', 'lm_head.weight') else x for n, x in state.items()}
    _muon._zeropower_via_newtonschulz = zeropower
    losses, exact = steps_of(state, torch.float64, case['scale'])
    single_losses, single = steps_of(state, torch.float32, case['scale'])
    res = dict(model=name, scale=case['scale'], losses=losses, weights={})
    off = lambda x, n: float(np.linalg.norm(x - exact[n]) / np.linalg.norm(exact[n]))
    rows = []
    for n, g in exact.items():
        rows.append((off(ours[n].reshape(-1)[:g.size].astype(np.float64), n), off(single[n], n), n))
        at = [int(i) for i in np.linspace(0, g.size - 1, min(SAMPLES, g.size))]
        res['weights'][n] = dict(norm=float(np.linalg.norm(g)), fp32=rows[-1][1], at=at, value=[float(g[i]) for i in at])
    worst = max(abs(a / b - 1) for a, b in zip(got, losses))
    print('%s, %s: losses off by %.2g (torch in fp32 %.2g)' % (name, case['scale'], worst,
          max(abs(a / b - 1) for a, b in zip(single_losses, losses))))
    rows.sort(reverse=True)
    print('  weights: ' + ', '.join('%s %.2g (%.2g)' % (n, a, b) for a, b, n in rows[:5]), flush=True)
    bad = [n for a, b, n in rows if a > max(2 * b, 1e-7) or (a > 1e-5 and b <= 1e-5)]
    if worst > 2e-7 or bad:
        print('  too far: ' + ' '.join(bad))
        failed.append(name)
    return res


def update_in_bf16(n, m):
    """torch.optim.Muon as it is, of weights that are 0 and a gradient of uniform numbers: the weights at some elements."""
    w = torch.nn.Parameter(torch.zeros(n, m))
    w.grad = torch.tensor([[philox(n, i * m + j, m)[0] / 2**32 - 0.5 for j in range(m)] for i in range(n)])
    torch.optim.Muon([w], lr=1, weight_decay=0, momentum=0.95, adjust_lr_fn='match_rms_adamw').step()
    at = [int(i) for i in np.linspace(0, n * m - 1, 400)]
    return dict(dim=[n, m], at=at, value=[float(x) for x in w.detach().reshape(-1)[at]])


failed = []
torch.set_num_threads(1)
in_bf16 = [update_in_bf16(n, m) for n, m in ((128, 384), (384, 128), (192, 192))]
cases = [run(c) for c in CASES]
dump(dict(torch=torch.__version__, seed=SEED, batch=BATCH, lr=LR, cases=cases, bf16=in_bf16), open(out, 'w'))
sys.exit(bool(failed))
