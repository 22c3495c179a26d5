"""What make_tokens.py and compare_tokens.py share: tokenizers in the forms of known models, and random text. Needs
tokenizers."""
import json
import random
import unicodedata
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = {"gpt2": None, "llama3": LLAMA3, "qwen": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")}
END = "<|endoftext|>"


def untrained(form, digits=False, nfc=False, ignore_merges=False, prefix=False):
    """A tokenizer in one of the forms, before it is trained. The others add Digits, NFC, ignore_merges, and
    ByteLevel's space in front."""
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    pattern = PATTERNS[form]
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated", invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not pattern))
    t.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    t.decoder = decoders.ByteLevel()
    if nfc:
        t.normalizer = normalizers.NFC()
    return t


def train(t, merges, corpus):
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=257 + merges, special_tokens=[END], show_progress=False, max_token_length=32,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


# ---- tokens of characters, as SentencePiece's BPE ----

MARK = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern if isinstance(pattern, dict) else {"String": pattern}, "content": content}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def template(begin, id):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": begin, "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [id], "tokens": [begin]}}}


def metaspace(scheme, split, mark=MARK):
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": split}


SPACES = replace(" ", MARK)
SENTENCEPIECE = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FRONT = sequence("normalizers", {"type": "Prepend", "prepend": MARK}, SPACES)
SPECIAL = ["<unk>", "<s>", "</s>"]
# By name: tokens in front of the vocabulary, flags of those of them that are added tokens, tokens that are added behind it,
# other parts of the file, and of the model.
FAMILIES = {
    "llama2": (SPECIAL, {t: {} for t in SPECIAL}, [], {
        "normalizer": FRONT, "decoder": sequence("decoders", *SENTENCEPIECE, STRIP), "post_processor": template("<s>", 1)}, {}),
    "llama2-normalized": (SPECIAL, {t: {"normalized": True} for t in SPECIAL}, [], {
        "normalizer": FRONT, "decoder": sequence("decoders", *SENTENCEPIECE, STRIP), "post_processor": template("<s>", 1)}, {}),
    "mistral": (SPECIAL + ["[INST]", "[/INST]"], {t: {} for t in SPECIAL + ["[INST]", "[/INST]"]}, [], {
        "pre_tokenizer": metaspace("first", False), "decoder": sequence("decoders", *SENTENCEPIECE, STRIP),
        "post_processor": template("<s>", 1)}, {}),
    "gemma": (["<pad>", "<eos>", "<bos>", "<unk>", "<table>", "\n\n", "\n\n\n", MARK * 2, MARK * 3], {
        t: {"special": t[0] == "<"} for t in ["<pad>", "<eos>", "<bos>", "<unk>", "<table>", "\n\n", "\n\n\n", MARK * 2, MARK * 3]},
        [], {"normalizer": SPACES, "decoder": sequence("decoders", *SENTENCEPIECE), "post_processor": template("<bos>", 2),
             "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                               "invert": False}}, {}),
    "phi3": (SPECIAL, {"<unk>": {}, "<s>": {}, "</s>": {"rstrip": True, "special": False}},
             [("<|endoftext|>", {}), ("<|user|>", {"rstrip": True}), ("<|end|>", {"rstrip": True})], {
        "normalizer": FRONT, "decoder": sequence("decoders", *SENTENCEPIECE, STRIP)}, {}),
    # Without tokens of bytes.
    "unknown": (["<unk>"], {"<unk>": {}}, [("caf\u00e9", {"normalized": True, "special": False, "single_word": True})], {
        "pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True)}, {"byte_fallback": False}),
    "unknown-apart": (["<unk>"], {"<unk>": {}}, [], {"normalizer": FRONT, "decoder": sequence("decoders", *SENTENCEPIECE)},
                      {"byte_fallback": False, "fuse_unk": False, "ignore_merges": True}),
    "nfkc": (SPECIAL, {t: {} for t in SPECIAL}, [
        ("the", {"normalized": True, "special": False, "single_word": True}),
        ("\ufb01x", {"normalized": True, "special": False, "lstrip": True})], {
        "normalizer": sequence("normalizers", {"type": "NFKC"}, replace({"Regex": " {2,}"}, " "), replace("->", "\u2192")),
        "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                  {"type": "Split", "pattern": {"Regex": "[^\\s\\p{L}\\p{N}]+"}, "behavior": "Contiguous",
                                   "invert": False}, metaspace("always", True)),
        "decoder": sequence("decoders", metaspace("first", True), {"type": "ByteFallback"})}, {}),
}


def family(name, merges, corpus, alphabet=150):
    """A tokenizer of characters; others than the `alphabet` most frequent ones are bytes."""
    front, flags, behind, parts, model = FAMILIES[name]
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFKC() if name == "nfkc" else None
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = [text.replace("\0", "") for text in corpus]        # no key of Tercio's JSON may have it
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=alphabet + merges, limit_alphabet=alphabet, show_progress=False,
                                                      initial_alphabet=[MARK, "\n"], max_token_length=16))
    trained = json.loads(t.to_str())["model"]
    words = front + (BYTES if model.get("byte_fallback", True) else [])
    words += [w for w in sorted(trained["vocab"], key=trained["vocab"].get) if w not in words]
    # Runs of spaces, as SentencePiece has them.
    pairs = [m if isinstance(m, list) else m.split(" ") for m in trained["merges"]]
    for n in range(2, 9):
        if MARK * n not in words:
            words.append(MARK * n)
        pairs.insert(0, [MARK * (n - 1), MARK])
    tokens = [added(words.index(w), w, **f) for w, f in flags.items()]
    tokens += [added(len(words) + i, w, **f) for i, (w, f) in enumerate(behind)]
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {w: i for i, w in enumerate(words)}, "merges": pairs, **model}}))


# Ranges of code points; characters that are not assigned in Python's Unicode are left out, since normal forms and
# categories of what is newer differ between versions.
BLOCKS = [(0x20, 0x7e)] * 12 + [
    (0x00, 0x1f), (0x7f, 0xa0), (0xa1, 0x24f), (0x250, 0x2ff), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f),
    (0x531, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f), (0xb80, 0xbff), (0xe00, 0xe7f), (0xf00, 0xfff),
    (0x1100, 0x11ff), (0x1680, 0x1680), (0x180b, 0x180e), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x20cf),
    (0x2100, 0x218f), (0x2190, 0x23ff), (0x2460, 0x24ff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0x4e00, 0x4fff),
    (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfe00, 0xfe0f), (0xfeff, 0xfeff), (0xff00, 0xffef), (0x10400, 0x1044f),
    (0x1d400, 0x1d7ff), (0x1f1e6, 0x1f1ff), (0x1f300, 0x1f6ff), (0x1f900, 0x1f9ff), (0x20000, 0x2a000),
    (0x17f, 0x17f), (0x212a, 0x212b)]
BETWEEN = [" "] * 20 + ["  ", "    ", " " * 17, "\n", "\n\n", "\n    ", "\r\n", "\r\n\r\n", "\t", "\t\t", "", "",
    "", "'s ",
           "'S", "'ll ", "'LL", "'\u017f ", "'re", "\u2019s ", "\u00a0", "\u3000", "\x85", "\u180e", "\u2028", "1",
           "23",
           "456", "7890 ", "12345.678", "\u0301", "\u0308\u0323", "\u200d", "\ufe0f", "e\u0301", "\u1112\u1161\u11ab",
           "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", END, "<|", "->", "();", " == ",
           "/* ",
           " */\n", "{\n", "}\n", "\x00"]


def word(r):
    first, last = r.choice(BLOCKS)
    text = "".join(chr(r.randint(first, last)) for _ in range(1 + r.randint(0, 9)))
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))


def random_text(r, length):
    parts, n = [], 0
    while n < length:
        parts += [word(r), r.choice(BETWEEN)]
        n += len(parts[-1]) + len(parts[-2])
    return "".join(parts)


def mixed_pool(seed, files, length):
    """About `length` characters: half of the files' text (or less if they are short), half random."""
    r = random.Random(seed)
    pieces = []
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as f:
            text = f.read()
        pieces += [text[i:i + 2000] for i in range(0, len(text), 2000)]
    r.shuffle(pieces)
    del pieces[max(1, length // 4000):]
    have = sum(map(len, pieces))
    while have < length:
        pieces.append(random_text(r, 500))
        have += len(pieces[-1])
    r.shuffle(pieces)
    return "".join(pieces)
