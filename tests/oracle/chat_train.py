"""Ten steps of AdamW on packed conversations beside plain PyTorch, which sees each sample alone: losses and gradient norms. Needs
torch, transformers, jinja2, tokenizers and numpy.

usage: chat_train.py TERCIO [WORD ...]     words are further options of `tercio train`, such as --mesh.cp=2 --run.ranks=2

A step is all windows of the data, so that the order does not matter: its loss is the mean over all tokens of the samples that
count, in float64 the sum over samples of the sums over their answers."""
import json
import random
import re
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chat import ROWS, conversation, line_of, samples, write_folder

STEPS, CONTEXT, LR, CLIP = 10, 512, 1e-3, 1.0


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
                                         initializer_range=0.2, tie_word_embeddings=False))
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


def plain(model, data):
    """Losses and norms of the steps."""
    model = model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    data = [(torch.tensor(ids[:CONTEXT + 1]), torch.tensor(w[:CONTEXT + 1])) for ids, w in data]
    counted = sum(int(w[1:].sum()) for _, w in data)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0
        for ids, weights in data:
            nll = torch.nn.functional.cross_entropy(model(ids[None, :-1]).logits[0].double(), ids[1:], reduction="none")
            loss = loss + (nll * weights[1:]).sum() / counted
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        yield float(loss.detach()), float(norm), counted


def main():
    program, words = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as d:
        model = make(program, d)
        _, out = train(program, d, 1, [])
        batch = int(re.search(r"training data .* samples in (\d+) windows", out)[1])
        subprocess.run(["rm", "-r", f"{d}/out"], check=True)
        lines, out = train(program, d, batch, words)
        print(re.search(r"training data .*: (.*)", out)[1])
        worst_loss = worst_norm = 0.0
        for line, (loss, norm, counted) in zip(lines, plain(model, samples(f"{d}/shards"))):
            assert line["counted"] == counted, (line["counted"], counted)
            worst_loss = max(worst_loss, abs(line["loss"] / loss - 1))
            worst_norm = max(worst_norm, abs(line["grad_norm"] / norm - 1))
        print(f"{' '.join(words) or 'one rank'}: {len(lines)} steps of {batch} windows, {counted} tokens that count, loss "
              f"{lines[0]['loss']:.6f} to {lines[-1]['loss']:.6f}; differences: loss {worst_loss:.1e}, norm {worst_norm:.1e}")
        assert worst_loss < 1e-6 and worst_norm < 1e-5


if __name__ == "__main__":
    main()
