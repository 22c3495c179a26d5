"""Times PyTorch's attention, forward and backward, with cuDNN and with flash attention, at the sizes of
gpt2-124m and gpt2-1558m: the part of a PyTorch step that Tercio's own attention kernel competes with."""
import time
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention


def milliseconds(run, repeat=20):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeat * 1e3


print("> torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
for batch, heads in ((64, 12), (16, 25)):
    q, k, v = (torch.randn(batch, heads, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    flops = 2 * batch * heads * 1024 * 1025 * 64
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            out = attention(q, k, v, is_causal=True)
            grad = torch.randn_like(out)
            ahead = milliseconds(lambda: attention(q, k, v, is_causal=True))
            back = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
        print(f"> {backend.name} B{batch} H{heads}: forward {ahead:.3f} ms, {flops / ahead * 1e-9:.0f} TFLOP/s; "
              f"backward {back:.3f} ms, {2.5 * flops / back * 1e-9:.0f} TFLOP/s")
