"""Times training of a Llama in PyTorch, eager or compiled, on the CPU or a GPU: the peer of tests/bench/speed for
its models llama-small and llama-large. Products of one input are one matrix, attention is PyTorch's
scaled_dot_product_attention, keys and values repeated for the queries that share them; AdamW is the fused one.

usage: llama_torch.py LAYERS HEADS HIDDEN CONTEXT BATCH STEPS fp32|bf16 single [gpt2v] llama KV_HEADS FFN [compile]

gpt2v: a vocabulary of 50304, else 256. Embedding and head share a matrix. bf16: autocast. Prints tokens per second,
by the median of STEPS steps after two."""
import os
import statistics
import sys
import time
import torch
from torch import nn
from torch.nn import functional as F

if len(sys.argv) < 12 or "llama" not in sys.argv or sys.argv[8] != "single":
    sys.exit(__doc__)
LAYERS, HEADS, HIDDEN, CONTEXT, BATCH, STEPS = map(int, sys.argv[1:7])
BF16 = sys.argv[7] == "bf16"
VOCAB = 50304 if "gpt2v" in sys.argv else 256
AT = sys.argv.index("llama")
KV_HEADS, FFN = int(sys.argv[AT + 1]), int(sys.argv[AT + 2])
HEAD = HIDDEN // HEADS
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if "OMP_NUM_THREADS" in os.environ:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(HIDDEN, eps=1e-5), nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv, self.proj = linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD), linear(HIDDEN, HIDDEN)
        self.gate_up, self.down = linear(HIDDEN, 2 * FFN), linear(FFN, HIDDEN)

    def forward(self, x, cos, sin):
        heads = self.qkv(self.norm_1(x)).view(BATCH, CONTEXT, -1, HEAD).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(BATCH, CONTEXT, HIDDEN))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        angle = torch.outer(torch.arange(CONTEXT), 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.float().view(-1, VOCAB), targets.view(-1))


torch.manual_seed(1)
model = Llama().to(DEVICE)
forward = torch.compile(model) if "compile" in sys.argv else model
update = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens, targets = (torch.randint(0, VOCAB, (BATCH, CONTEXT), device=DEVICE) for _ in range(2))
seconds = []
for _ in range(STEPS + 2):
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.autocast(DEVICE, torch.bfloat16, enabled=BF16):
        loss = forward(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update.step()
    update.zero_grad()
    loss.item()
    seconds.append(time.perf_counter() - start)
step = statistics.median(seconds[2:])
print(f"llama {sys.argv[7]} {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M, loss {loss.item():.3f}: "
      f"{BATCH * CONTEXT / step:.0f} tok/s, step {step * 1e3:.1f} ms")
