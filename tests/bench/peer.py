"""Times PyTorch's training step beside Tercio's, on a GPU or the CPU: GPT-2 or Llama, weights in fp32, with autocast for
bf16, fused AdamW, gradients clipped.

    peer.py gpt2|llama layers=12 hidden=768 heads=12 kv_heads=12 ffn=3072 context=1024 batch=64 vocab=50304
            steps=10 type=bf16|fp32 tied=yes|no compile=whole|blocks|no attention=any|cudnn|flash

Prints tokens/s, the median of the steps after three that don't count. compile=blocks compiles one block for all of them,
which models of many layers need to start within minutes. OMP_NUM_THREADS: its threads on a CPU."""
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

size = dict(layers=12, hidden=768, heads=12, kv_heads=0, ffn=0, context=1024, batch=64, vocab=50304, steps=10)
words = dict(type="bf16", tied="yes", compile="whole", attention="any")
given = dict(arg.split("=") for arg in sys.argv[2:] if arg.count("=") == 1)
if len(given) != len(sys.argv) - 2 or sys.argv[1] not in ("gpt2", "llama") or given.keys() - size.keys() - words.keys():
    sys.exit(__doc__)
family = sys.argv[1]
size.update((key, int(given[key])) for key in size if key in given)
words.update((key, given[key]) for key in words if key in given)
L, C, H, T, B, V = (size[k] for k in ("layers", "hidden", "heads", "context", "batch", "vocab"))
K, D, M = size["kv_heads"] or H, C // H, size["ffn"] or 4 * C
dev = "cuda" if torch.cuda.is_available() else "cpu"
if "OMP_NUM_THREADS" in os.environ:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def heads(x, n):
    return x.view(x.shape[0], x.shape[1], n, D).transpose(1, 2)


def attend(q, k, v):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=K < H)
    return y.transpose(1, 2).reshape(q.shape[0], q.shape[2], C)


class GPT2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, M), nn.Linear(M, C)

    def forward(self, x, _):
        q, k, v = self.qkv(self.norm1(x)).split(C, 2)
        x = x + self.proj(attend(heads(q, H), heads(k, H), heads(v, H)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(C, eps=1e-5), nn.RMSNorm(C, eps=1e-5)
        self.qkv, self.proj = nn.Linear(C, (H + 2 * K) * D, bias=False), nn.Linear(C, C, bias=False)
        self.gate_up, self.down = nn.Linear(C, 2 * M, bias=False), nn.Linear(M, C, bias=False)

    def forward(self, x, rope):
        q, k, v = self.qkv(self.norm1(x)).split((H * D, K * D, K * D), 2)
        x = x + self.proj(attend(turn(heads(q, H), rope), turn(heads(k, K), rope), heads(v, K)))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turn(x, rope):
    a, b = x.float().chunk(2, -1)
    cos, sin = rope
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        llama = family == "llama"
        self.embed = nn.Embedding(V, C)
        self.pos = None if llama else nn.Embedding(T, C)
        self.blocks = nn.ModuleList(LlamaBlock() if llama else GPT2Block() for _ in range(L))
        self.norm = nn.RMSNorm(C, eps=1e-5) if llama else nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        if words["tied"] == "yes":
            self.head.weight = self.embed.weight
        angle = torch.outer(torch.arange(T), 500000.0 ** (-torch.arange(0, D, 2) / D))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if self.pos is not None:
            x = x + self.pos.weight
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, V), targets.view(-1))


torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
model = Model().to(dev)
if words["compile"] == "blocks":
    for block in model.blocks:
        block.compile()
step = torch.compile(model) if words["compile"] == "whole" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens, targets = (torch.randint(0, V, (B, T), device=dev) for _ in range(2))
backends = dict(cudnn=[SDPBackend.CUDNN_ATTENTION], flash=[SDPBackend.FLASH_ATTENTION],
                any=[SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
seconds = []
for _ in range(size["steps"] + 3):
    if dev == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.autocast(dev, torch.bfloat16, enabled=words["type"] == "bf16"), sdpa_kernel(backends[words["attention"]], set_priority=True):
        loss = step(tokens, targets)
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    seconds.append(time.perf_counter() - start)
median = sorted(seconds[3:])[size["steps"] // 2]
parameters = sum(p.numel() for p in model.parameters())
memory = torch.cuda.max_memory_allocated() / 2**30 if dev == "cuda" else 0
print(f"torch {torch.__version__} {family} {words['type']} {parameters / 1e6:.1f}M parameters, attention {words['attention']}: "
      f"{B * T / median:.0f} tok/s, {median * 1e3:.2f} ms a step, {memory:.1f} GiB")
