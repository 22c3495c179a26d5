"""Compares `tercio data` with Hugging Face's tokenizers, token by token, on random text, and prints the speed of
both: tercio's with start, reading and writing, the other's of encode_batch alone. Run by hand; needs tokenizers.

usage: compare_tokens.py TERCIO FOLDER [--mb 100] [--seed 1] [--merges 256,8000,100000] [--families 8000,32000] [--only TEXT]

FOLDER holds the text and the shards meanwhile (some 500 MB). The text is mixed from this source tree and random
characters of many scripts. Each row trains a tokenizer on a part of it, encodes all of it on both sides, and compares; then
one text of 2 MB, which Tercio cuts for its threads. Exits with 1 if any differ."""
import argparse
import array
import glob
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from tokens_common import END, FAMILIES, PATTERNS, family, mixed_pool, train, untrained

BATCH = 500


def draw_documents(pool, total, seed):
    r, documents, have = random.Random(seed), [], 0
    while have < total:
        n = int(2 ** r.uniform(0, 15))
        at = r.randrange(max(1, len(pool) - n))
        documents.append(pool[at:at + n])
        have += len(documents[-1].encode())
    return documents


def clocks(who):
    """Seconds: of the wall clock, and of all CPUs for this process or those it has waited for."""
    u = resource.getrusage(who)
    return time.monotonic(), u.ru_utime + u.ru_stime


def end_of(t):
    return next(id for id in map(t.token_to_id, (END, "</s>", "<eos>", "<unk>")) if id is not None)


def expect(t, documents, wide):
    """All ids with the end of document behind each, and the seconds that encode_batch took."""
    ids, seconds, end = array.array("I" if wide else "H"), [0.0, 0.0], end_of(t)
    for i in range(0, len(documents), BATCH):
        begin = clocks(resource.RUSAGE_SELF)
        batch = t.encode_batch(documents[i:i + BATCH], add_special_tokens=False)
        seconds = [s + b - a for s, a, b in zip(seconds, begin, clocks(resource.RUSAGE_SELF))]
        for e in batch:
            ids.extend(e.ids)
            ids.append(end)
    return ids, seconds


def read_shards(folder, wide):
    ids = array.array("I" if wide else "H")
    for name in sorted(glob.glob(folder + "/shard-*.bin")):
        with open(name, "rb") as f:
            f.seek(1024)
            ids.frombytes(f.read())
    return ids


def compare(a, t, name, text, documents, megabytes):
    shards, path = a.folder + "/shards", a.folder + "/tokenizer.json"
    shutil.rmtree(shards, ignore_errors=True)
    t.save(path)
    begin = clocks(resource.RUSAGE_CHILDREN)
    subprocess.run([a.tercio, "data", text, "--tokenizer", path, "-o", shards, "--shard-tokens", "5M", "--eod",
                    t.id_to_token(end_of(t))], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ours = [b - a for a, b in zip(begin, clocks(resource.RUSAGE_CHILDREN))]
    wide = t.get_vocab_size() > 65536
    want, theirs = expect(t, documents, wide)
    got = read_shards(shards, wide)
    same = got == want
    print(f"{name:40} {len(want):10} tokens  {'equal' if same else 'DIFFERENT'}  tercio {megabytes / ours[0]:6.1f} MB/s, "
          f"encode_batch {megabytes / theirs[0]:6.1f} MB/s: {theirs[0] / ours[0]:.1f} times (by CPU time "
          f"{theirs[1] / ours[1]:.1f} times)", flush=True)
    if not same:
        at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
        print("   first at", at, [t.id_to_token(x) for x in want[max(0, at - 4):at + 4]], "but tercio",
              [t.id_to_token(x) for x in got[max(0, at - 4):at + 4]], flush=True)
    return same


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("tercio")
    p.add_argument("folder")
    p.add_argument("--mb", type=float, default=100)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--merges", default="256,8000,100000")
    p.add_argument("--families", default="8000,32000")
    p.add_argument("--only", default="")
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    top = os.path.dirname(os.path.abspath(__file__)) + "/../.."
    files = [f for f in glob.glob(top + "/**/*", recursive=True) if f.endswith((".c", ".h", ".md", ".txt", ".py",
    ".json"))]
    pool = mixed_pool(a.seed, sorted(files), 12_000_000)
    documents = draw_documents(pool, a.mb * 1e6, a.seed)
    text = a.folder + "/text.jsonl"
    with open(text, "w") as f:
        for d in documents:
            f.write(json.dumps({"text": d}) + "\n")
    long_text = a.folder + "/text.txt"
    one_text = pool[:2_000_000].replace("\0", "")               # a file with it is not text
    with open(long_text, "w", newline="") as f:
        f.write(one_text)
    megabytes = sum(len(d.encode()) for d in documents) / 1e6
    rows = [(form, int(m), {}) for form in PATTERNS for m in a.merges.split(",")]
    rows += [("gpt2", 8000, {"digits": True}), ("qwen", 8000, {"nfc": True}),
    ("llama3", 8000, {"ignore_merges": True}),
             ("gpt2", 8000, {"prefix": True})]
    rows += [(form, int(m), {}) for form in FAMILIES for m in a.families.split(",")]
    good = True
    for form, merges, options in rows:
        name = f"{form} {merges} {' '.join(options)}"
        if a.only not in name:
            continue
        corpus = [pool[i:i + 3000] for i in range(0, len(pool) if merges > 50000 else 2_000_000, 3000)]
        t = family(form, merges, corpus, 3000) if form in FAMILIES else train(untrained(form, **options), merges, corpus)
        good &= compare(a, t, name, text, documents, megabytes)
        good &= compare(a, t, name + ", one text", long_text, [one_text], len(one_text.encode()) / 1e6)
    sys.exit(0 if good else 1)


main()
