"""Ten steps of AdamW on packed conversations beside PyTorch in float64, which sees each sample alone: losses and gradient norms,
with and without z-loss; the first gradient of each tensor, of one rank and without clipping; and the loss of `tercio eval`. Needs
torch, transformers, jinja2, tokenizers, safetensors, h5py and numpy.

usage: chat_train.py TERCIO [WORD ...]     words are further options of `tercio train`, such as --mesh.cp=2 --run.ranks=2

A step is all windows of the data, so that the order does not matter: its loss is the mean over all tokens of the samples that
count, in float64 the sum over samples of the sums over their answers."""
import copy
import glob
import json
import random
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from chat import ROWS, conversation, line_of, samples, write_folder

STEPS, CONTEXT, LR, CLIP = 10, 512, 1e-3, 0.5


def tercio(*words):
    p = subprocess.run(words, capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr
    return p.stdout + p.stderr


def make(program, d):
    """Shards, a random model, and how many windows there are."""
    r = random.Random(11)
    write_folder(d, "chatml", ROWS["chatml"][0])
    with open(f"{d}/chat.jsonl", "w", encoding="utf-8") as f:
        for _ in range(60):
            f.write(json.dumps(line_of(r, conversation(r, "chatml"))) + "\n")
    tercio(program, "data", f"{d}/chat.jsonl", "--tokenizer", f"{d}/tokenizer.json", "-o", f"{d}/shards", "--chat")
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2059, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
                                         initializer_range=0.05, tie_word_embeddings=False, attn_implementation="sdpa"))
    model.save_pretrained(f"{d}/model")
    tercio(program, "ckpt", "import", f"{d}/model", "-o", f"{d}/from")
    return model


def train(program, d, batch, words):
    out = tercio(program, "train", f"--ckpt.from={d}/from", f"--run.out={d}/out", f"--data.train={d}/shards",
                 f"--data.val={d}/shards", "--data.documents=pack", f"--train.steps={STEPS}", f"--train.global_batch={batch}",
                 f"--train.lr={LR}", "--train.schedule=constant", "--train.warmup=0", f"--train.clip={CLIP}", "--train.beta2=0.95",
                 "--train.weight_decay=0", "--run.threads=1", *words)
    with open(f"{d}/out/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f], out


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def in_double(model):
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = exact_norm.__get__(module)
    return model


def backward(model, data, z):
    """The loss, whose gradient is then that of the model, and how many tokens count."""
    data = [(torch.tensor(ids[:CONTEXT + 1]), torch.tensor(w[:CONTEXT + 1])) for ids, w in data]
    counted, total = sum(int(w[1:].sum()) for _, w in data), 0.0
    for ids, weights in data:
        logits = model(ids[None, :-1]).logits[0]
        nll = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none") + z * torch.logsumexp(logits, 1) ** 2
        loss = (nll * weights[1:]).sum() / counted
        loss.backward()
        total += float(loss.detach())
    return total, counted


def plain(model, data, z):
    """Losses and norms of the steps."""
    model = in_double(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, counted = backward(model, data, z)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        yield loss, float(norm), counted


def compare_steps(program, d, model, batch, z, words):
    subprocess.run(["rm", "-rf", f"{d}/out"], check=True)
    lines, out = train(program, d, batch, [f"--model.z_loss={z}", *words])
    print(re.search(r"training data .*: (.*)", out)[1])
    worst_loss = worst_norm = clipped = 0
    for line, (loss, norm, counted) in zip(lines, plain(model, samples(f"{d}/shards"), z)):
        assert line["counted"] == counted, (line["counted"], counted)
        worst_loss = max(worst_loss, abs(line["loss"] / loss - 1))
        worst_norm = max(worst_norm, abs(line["grad_norm"] / norm - 1))
        clipped += norm > CLIP
    print(f"{' '.join(words) or 'one rank'}, z-loss {z}: {len(lines)} steps of {batch} windows, {clipped} clipped, {counted} "
          f"tokens that count, loss {lines[0]['loss']:.6f} to {lines[-1]['loss']:.6f}; differences: loss {worst_loss:.1e}, norm "
          f"{worst_norm:.1e}")
    assert worst_loss < 1e-6 and worst_norm < 1e-5 and 0 < clipped


def tensors(folder):
    state = {}
    with h5py.File(glob.glob(f"{folder}/step-*/rank-*.h5")[0]) as f:
        state.update({t: np.array(f["tensors"][t]).reshape(-1).astype(np.float64) for t in f["tensors"]})
    return state


def compare_gradients(program, d, model, batch, z, device):
    """AdamW's first moment after a step is (1 - beta1) g. PyTorch's gradients get our names by an import as if they were
    weights."""
    subprocess.run(["rm", "-rf", f"{d}/out", f"{d}/grads", f"{d}/imported"], check=True)
    train(program, d, batch, ["--train.clip=0", "--train.stop_at=1", f"--model.z_loss={z}", f"--run.device={device}"])
    exact = in_double(model)
    backward(exact, samples(f"{d}/shards"), z)
    subprocess.run(["mkdir", f"{d}/grads"], check=True)
    subprocess.run(["cp", f"{d}/model/config.json", f"{d}/grads"], check=True)
    save_file({n: p.grad.float().contiguous() for n, p in exact.named_parameters()}, f"{d}/grads/model.safetensors",
              metadata={"format": "pt"})
    tercio(program, "ckpt", "import", f"{d}/grads", "-o", f"{d}/imported")
    ours, worst = tensors(f"{d}/out/ckpt"), (0, "")
    wanted = {n: x for n, x in tensors(f"{d}/imported").items() if not n.startswith("optim.")}
    for name, want in wanted.items():
        got = ours["optim.m." + name] / float(1 - np.float32(0.9))
        worst = max(worst, (float(np.linalg.norm(got - want) / np.linalg.norm(want)), name))
    print(f"gradients of {len(wanted)} tensors on {device}, z-loss {z}: worst {worst[0]:.2g} ({worst[1]})")
    assert worst[0] < 5e-7


def compare_eval(program, d, model):
    """Of the imported model."""
    out = json.loads(tercio(program, "eval", f"{d}/from", "--data", f"{d}/shards", "--data.documents=pack",
                            f"--model.context={CONTEXT}", "--json"))["results"][0]
    with torch.no_grad():
        exact, data = in_double(model), [(ids[:CONTEXT + 1], w[:CONTEXT + 1]) for ids, w in samples(f"{d}/shards")]
        nll = [torch.nn.functional.cross_entropy(exact(torch.tensor([ids[:-1]])).logits[0], torch.tensor(ids[1:]),
                                                 reduction="none") for ids, _ in data]
    weights = [torch.tensor(w[1:]) for _, w in data]
    counted = sum(int(w.sum()) for w in weights)
    loss = sum(float((x * w).sum()) for x, w in zip(nll, weights)) / counted
    print(f"tercio eval: {out['tokens']} tokens, loss {out['loss']:.6f}; difference {abs(out['loss'] / loss - 1):.1e}")
    assert out["tokens"] == counted and abs(out["loss"] / loss - 1) < 1e-6


def main():
    program, words = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as d:
        model = make(program, d)
        _, out = train(program, d, 1, [])
        batch = int(re.search(r"training data .* samples in (\d+) windows", out)[1])
        compare_eval(program, d, model)
        for z in (0, 1e-3):
            for device in ("ref", "cpu"):
                compare_gradients(program, d, model, batch, z, device)
            compare_steps(program, d, model, batch, z, words)


if __name__ == "__main__":
    main()
