"""PyTorch's numbers for the same model, weights and batches: an oracle that shares no code with
Tercio. Needs torch, numpy and h5py (only to make or renew the stored figures).

usage: torch_gpt.py STEP1_CKPT TEXT SEED BATCH STEPS LR OUT.json [END]

STEP1_CKPT is a checkpoint folder step-00000001 of a run with train.lr = 0 and train.clip = 0:
its weights are the initial ones and its Adam m is (1 - beta1) times the first gradient. The
script makes the batches anew from the text (Philox, as data.h describes), computes the gradient
of the first step in float64 and float32, and the losses of STEPS steps of AdamW (beta 0.9 0.95,
eps 1e-8, weight decay 0.1 on matrices, clip 1, constant LR), and writes norms and samples. END: the
byte that ends a document, for a run with data.documents = mask."""
import sys, glob, math, h5py, numpy as np, torch, torch.nn.functional as F
from compact import dump
from sampled import batch, training_part

ckpt, text, seed, B, steps, lr, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), \
    int(sys.argv[5]), float(sys.argv[6]), sys.argv[7]
end = int(sys.argv[8]) if len(sys.argv) > 8 else None

state = {}
for name in sorted(glob.glob(ckpt + '/rank-*.h5')):
    with h5py.File(name) as f:
        for t in f['tensors']:
            state[t] = np.array(f['tensors'][t])
names = [n for n in state if not n.startswith('optim.')]
L = 1 + max(int(n.split('.')[1]) for n in names if n.startswith('h.'))
V, C = state['wte.weight'].shape
T = state['wpe.weight'].shape[0]
H = state['h.0.attn.qkv.weight'].shape[0]
D = C // H
part = training_part(text)

def seen_and_positions(x):
    """Which keys a query sees, [B,1,T,T], and each token's position; a token `end` belongs to the document it ends."""
    at = torch.arange(x.shape[1])
    number = torch.zeros_like(x)
    if end is not None:
        number[:, 1:] = torch.cumsum(x[:, :-1] == end, 1)
    seen = (number[:, :, None] == number[:, None, :]) & (at[None, :] <= at[:, None])
    return seen[:, None], at - seen.int().argmax(2)

def loss_of(p, x, y):
    seen, position = seen_and_positions(x)
    h = p['wte.weight'][x] + p['wpe.weight'][position]
    ln = lambda z, n: F.layer_norm(z, (C,), p[n + '.weight'], p[n + '.bias'], 1e-5)
    for l in range(L):
        q = f'h.{l}.'
        w, b = p[q + 'attn.qkv.weight'].reshape(3 * C, C), p[q + 'attn.qkv.bias'].reshape(3 * C)
        qkv = F.linear(ln(h, q + 'ln_1'), w, b).view(B, T, H, 3, D)
        a = F.scaled_dot_product_attention(*(qkv[:, :, :, e].transpose(1, 2) for e in range(3)),
                                           attn_mask=seen)
        a = a.transpose(1, 2).reshape(B, T, C)
        h = h + F.linear(a, p[q + 'attn.proj.weight'].reshape(C, C), p[q + 'attn.proj.bias'])
        f = F.gelu(F.linear(ln(h, q + 'ln_2'), p[q + 'mlp.fc.weight'], p[q + 'mlp.fc.bias']),
                   approximate='tanh')
        h = h + F.linear(f, p[q + 'mlp.proj.weight'], p[q + 'mlp.proj.bias'])
    return F.cross_entropy((ln(h, 'ln_f') @ p['wte.weight'].T).view(-1, V), y.view(-1))

def params(dtype):
    return {n: torch.tensor(state[n], dtype=dtype, requires_grad=True) for n in names}

res = {'torch': torch.__version__, 'seed': seed, 'batch': B, 'lr': lr, 'grad': {}, 'losses': []}
p = params(torch.float64)
loss_of(p, *batch(part, seed, 1, B, T)).backward()
worst = 0
for n in names:
    g = p[n].grad.numpy().reshape(-1)
    ours = state['optim.m.' + n].reshape(-1) / np.float32(0.1)
    err = np.linalg.norm(ours - g) / np.linalg.norm(g)
    worst = max(worst, err)
    at = [int(i) for i in np.linspace(0, g.size - 1, min(48, g.size))]
    res['grad'][n] = {'norm': float(np.linalg.norm(g)), 'at': at, 'value': [float(g[i]) for i in at]}
print('worst relative error of a tensor\'s gradient against float64: %.3g' % worst)
p = params(torch.float32)
opt = torch.optim.AdamW([{'params': [p[n] for n in names if p[n].dim() > 1], 'weight_decay': 0.1},
                         {'params': [p[n] for n in names if p[n].dim() == 1], 'weight_decay': 0.0}],
                        lr=lr, betas=(0.9, 0.95), eps=1e-8)
for s in range(1, steps + 1):
    opt.zero_grad()
    l = loss_of(p, *batch(part, seed, s, B, T))
    l.backward()
    torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
    opt.step()
    res['losses'].append(float(l.detach()))
print('losses', ' '.join('%.9g' % l for l in res['losses']))
dump(res, open(out, 'w'))
