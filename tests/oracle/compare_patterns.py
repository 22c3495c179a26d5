#!/usr/bin/env python3
"""compare_patterns.py TERCIO [CASES [SEED]] - random regexes of a pre-tokenizer, and random steps of tokenizers of bytes and of
characters: Tercio refuses each with a sentence or gives the ids of Hugging Face's library (`tokenizers`) for random texts. Prints what
differs; exits with 1 if anything did."""
import json, os, random, struct, subprocess, sys, tempfile
from tokenizers import Tokenizer

tercio, count, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500, int(sys.argv[3]) if len(sys.argv) > 3 else 1
draw = random.Random(seed)
letters = "abcsSdK1  \n\t'.-,_\u00e9\u017f\u212a\u3000\u0301\u4e2d\u0663\u2581\ufb01"
atoms = ["a", "b", "s", "1", " ", "'", "-", ".", "\u00e9", "\u4e2d", r"\s", r"\S", r"\d", r"\D", r"\p{L}", r"\P{L}", r"\p{N}",
         r"\p{Lu}", r"\p{M}", r"\p{Han}", r"\n", r"\r", r"\t", r"\.", r"\-", r"\'", r"\x61", r"\x{e9}", r"\u0061",
         "[a-c]", r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", "[-a]", "[a-]", r"[\s-]", "[^a]", r"[\p{L}\p{M}]", "[a-c1-3]",
         "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)"]
odd = ["(*ACCEPT)", "(*FAIL)", "(*UCP)", "(*sr:a)", "(?R)", "(?1)", "(?i)", "(?|a|b)", "(?#x)", "(?<n>a)", "(?<=a)", "(?(1)a|b)", "^", "$",
       r"\b", r"\w", r"\h", r"\R", r"\X", r"\K", r"\G", r"\A", r"\z", r"\Q", r"\E", r"\1", r"\g{1}", r"\N", r"\v", "[[:alpha:]]",
       "[a&&b]", "[]a]", r"[\s-a]", r"[a-\d]", "[a-c-e]", "]", "}", "{", "{,3}", r"\pL", r"\p{^L}", r"\cA", r"\e", r"\0", "\\"]
quantifiers = ["", "", "", "", "", "", "", "?", "*", "+", "??", "*?", "+?", "?+", "*+", "++", "{2}", "{1,3}", "{2,}", "{1,2}+", "{2}?", "**", "+*"]


def part(depth):
    x = draw.random()
    if x < 0.02: return draw.choice(odd)
    if x < 0.25 and depth < 3: return draw.choice(["(", "(?:", "(?>"]) + pattern(depth + 1) + ")"
    if x < 0.32 and depth < 3: return draw.choice(["(?=", "(?!"]) + pattern(depth + 1) + ")"
    return draw.choice(atoms)


def pattern(depth=0):
    def sequence(): return "".join(part(depth) + draw.choice(quantifiers) for _ in range(draw.randint(1, 3)))
    return "|".join(sequence() for _ in range(draw.choice([1, 1, 2, 3])))


def alphabet():
    code = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    other = iter(range(0x100, 0x200))
    return {b: chr(b) if b in code else chr(next(other)) for b in range(256)}


def make(regex):
    """Bytes, and a merge of each two bytes of the letters: ids show where pieces begin."""
    byte = alphabet()
    used = sorted({byte[b] for b in letters.encode()})
    words = [byte[b] for b in range(256)] + [a + b for a in used for b in used]
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "added_tokens": [{"id": len(words), "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {w: i for i, w in enumerate(words)}, "merges": [f"{a} {b}" for a in used for b in used]}}


def step_pattern(): return {"Regex": pattern()} if draw.random() < 0.4 else {"String": draw.choice([" ", "_", "a", "b ", "\u2581", "ss", "."])}


def normalizer():
    kind = draw.choice(["NFC", "NFKC", "Prepend", "Replace", "Replace", "Spaces"])
    if kind == "Spaces": return {"type": "Replace", "pattern": {"String": " "}, "content": draw.choice(["\u2581", "_"])}
    if kind == "Prepend": return {"type": kind, "prepend": draw.choice(["\u2581", "_", " ", "ab"])}
    if kind == "Replace": return {"type": kind, "pattern": step_pattern(), "content": draw.choice(["", " ", "_", "\u2581", "ca"])}
    return {"type": kind}


def pre_tokenizer():
    kind = draw.choice(["Split", "Split", "Digits", "Metaspace"])
    if kind == "Digits": return {"type": kind, "individual_digits": draw.random() < 0.5}
    if kind == "Metaspace":
        return {"type": kind, "replacement": draw.choice("\u2581_"), "prepend_scheme": draw.choice(["always", "first", "never"]),
                "split": draw.random() < 0.5}
    return {"type": kind, "pattern": step_pattern(), "invert": draw.random() < 0.3, "behavior": draw.choice(
        ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])}


def decoder():
    if draw.random() < 0.3: return {"type": "Metaspace", "replacement": draw.choice("\u2581_"), "prepend_scheme": draw.choice(["always", "never"])}
    steps = [{"type": "Replace", "pattern": {"String": draw.choice(["\u2581", "_"])}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": draw.randint(0, 2), "stop": 0}]
    return {"type": "Sequence", "decoders": steps[:draw.randint(2, 4)]}


def sequence(kind, parts): return {"type": "Sequence", kind: parts}


def added(id):
    text = draw.choice(["<m>", "ab", "_", "a", "\u2581\u2581", "\u00e9", ".-"])
    return {"id": id, "content": text, "single_word": draw.random() < 0.3, "lstrip": draw.random() < 0.3, "rstrip": draw.random() < 0.2,
            "normalized": draw.random() < 0.5, "special": draw.random() < 0.5}


def make_steps():
    """A tokenizer with random steps: of bytes, of characters with tokens of bytes, or with one for what is unknown."""
    characters, fallback, whole = draw.random() < 0.8, draw.random() < 0.7, make("a")
    steps = [pre_tokenizer() for _ in range(draw.randint(0, 3))]
    if characters:
        single = draw.sample(letters, draw.randint(len(letters) // 2, len(letters)))
        single = sorted(set(single) | (set() if draw.random() < 0.2 else {"\u2581", "_"}))
        pairs = sorted({(a, b) for a in single for b in draw.sample(single, len(single) // 4)})
        words = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] * fallback + single
        words += [w for w in sorted({a + b for a, b in pairs}) if w not in words]
        whole["model"].update(vocab={w: i for i, w in enumerate(words)}, merges=[list(p) for p in pairs], unk_token="<unk>",
                              byte_fallback=fallback, fuse_unk=draw.random() < 0.5, ignore_merges=draw.random() < 0.2)
        whole["decoder"] = decoder()
    else:
        steps.append({"type": "ByteLevel", "add_prefix_space": draw.random() < 0.3, "trim_offsets": True, "use_regex": draw.random() < 0.5})
    whole["pre_tokenizer"] = sequence("pretokenizers", steps)
    whole["normalizer"] = sequence("normalizers", [normalizer() for _ in range(draw.randint(0, 3))])
    whole["added_tokens"] = [dict(whole["added_tokens"][0], id=len(whole["model"]["vocab"]))]
    vocab = whole["model"]["vocab"]
    more = added(0)
    more["id"] = vocab.get(more["content"], len(vocab) + 1)
    whole["added_tokens"].append(more)
    return whole


wrong = accepted = stepped = 0
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for case in range(count):
        regex = pattern() if case % 2 else "steps"
        texts = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 40))) for _ in range(12)]
        model = make(regex) if case % 2 else make_steps()
        with open("tokenizer.json", "w", encoding="utf-8") as f: json.dump(model, f)
        with open("texts.jsonl", "w", encoding="utf-8") as f: f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        subprocess.run(["rm", "-rf", "out"], check=True)
        run = subprocess.run([tercio, "data", "texts.jsonl", "--tokenizer", "tokenizer.json", "-o", "out", "--threads", "1"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", timeout=300)
        if run.returncode == 2 and run.stderr.startswith("tercio: tokenizer '"): continue
        if run.returncode != 0:
            print(f"case {case}: {regex!r}: status {run.returncode}: {run.stderr[:300]}")
            wrong += 1
            continue
        accepted += 1
        stepped += case % 2 == 0
        with open("out/shard-00000.bin", "rb") as f: data = f.read()[1024:]
        ids = list(struct.unpack(f"<{len(data) // 2}H", data))
        try:
            library = Tokenizer.from_str(json.dumps(model))
        except Exception as e:
            print(f"case {case}: {regex!r}: the library refuses it: {e}")
            wrong += 1
            continue
        want = []
        for t in texts: want += library.encode(t, add_special_tokens=False).ids + [len(model["model"]["vocab"])]
        if ids != want:
            print(f"case {case}: {regex!r}: other ids")
            if case % 2 == 0: print(json.dumps({k: v for k, v in model.items() if k != "model"}), {k: v for k, v in model["model"].items() if k not in ("vocab", "merges")})
            wrong += 1
print(f"{count} cases of seed {seed}, {accepted} accepted, {stepped} of them random steps, {wrong} wrong")
sys.exit(wrong > 0)
