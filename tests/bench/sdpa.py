"""Times PyTorch's attention, forward and backward, with cuDNN and with flash attention, at the sizes of gpt2-124m and
gpt2-1558m, and of a layer of Llama-8B, whose 32 heads share 8 keys: the part of a PyTorch step that Tercio's attention
competes with. Medians of the GPU's own clock."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention


def milliseconds(run, repeat=20):
    for _ in range(3):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))[repeat // 2]


print("> torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
for batch, heads, keys, tokens, size in ((64, 12, 12, 1024, 64), (16, 25, 25, 1024, 64), (1, 32, 8, 8192, 128)):
    q, k, v = (torch.randn(batch, n, tokens, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for n in (heads, keys, keys))
    flops = 2 * batch * heads * tokens * (tokens + 1) * size
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            def forward():
                return attention(q, k, v, is_causal=True, enable_gqa=keys != heads)
            try:
                out = forward()
            except RuntimeError as error:
                print(f"> {backend.name} B{batch} H{heads} K{keys} T{tokens}: {error}")
                continue
            grad = torch.randn_like(out)
            ahead = milliseconds(forward)
            back = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
        print(f"> {backend.name} B{batch} H{heads} K{keys} T{tokens}: forward {ahead:.3f} ms, {flops / ahead * 1e-9:.0f} TFLOP/s; "
              f"backward {back:.3f} ms, {2.5 * flops / back * 1e-9:.0f} TFLOP/s")
