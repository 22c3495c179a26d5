"""Times PyTorch's update of GPT-2 124M: prints the median of five steps in ms, after one that does not count.

    update.py adamw|muon fp32|bf16 THREADS

adamw: torch.optim.AdamW (fused) of all parameters. muon: torch.optim.Muon of the layers' matrices, queries, keys and values apart,
in nn.Linear's shape, and AdamW of the rest; with fp32 Newton-Schulz has no cast to bfloat16. Gradients are random."""
import sys
import time

import torch
from torch.optim import _muon

optimizer, kind, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(threads)
C, L, V, T = 768, 12, 50257, 64
matrices = [torch.nn.Parameter(0.02 * torch.randn(n, m)) for _ in range(L) for n, m in [(C, C)] * 4 + [(4 * C, C), (C, 4 * C)]]
rest = [torch.nn.Parameter(0.02 * torch.randn(*s)) for s in [(V, C), (T, C)] + [(C,)] * (6 * L + 2) + [(3 * C,)] * L + [(4 * C,)] * L]


def zeropower(grad, coefficients, steps, eps):
    """torch.optim._muon._zeropower_via_newtonschulz without its cast."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


if kind == 'fp32':
    _muon._zeropower_via_newtonschulz = zeropower
adamw = torch.optim.AdamW(rest + (matrices if optimizer == 'adamw' else []), lr=1e-4, fused=True)
steps = [adamw] + ([torch.optim.Muon(matrices, lr=1e-4, adjust_lr_fn='match_rms_adamw')] if optimizer == 'muon' else [])
for p in matrices + rest:
    p.grad = 1e-3 * torch.randn_like(p)
times = []
for _ in range(6):
    start = time.perf_counter()
    torch.nn.utils.clip_grad_norm_(matrices + rest, 1.0)
    for s in steps:
        s.step()
    times.append(1e3 * (time.perf_counter() - start))
print('%.1f' % sorted(times[1:])[2])
