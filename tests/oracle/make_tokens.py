"""Makes tests/oracle/tokens/: small tokenizers in the forms of GPT-2, Llama 3, Qwen, and of SentencePiece's (Llama 2, Mistral,
Gemma, Phi-3), and the ids that Hugging Face's tokenizers gives for texts that are hard to split. Needs tokenizers; run in
tests/oracle after a change of it.

usage: make_tokens.py [NAME ...]

With names only these tokenizers are made: the others and their lines stay, though the corpus, which is of this source tree,
has changed.

ids.jsonl has a line for each text and tokenizer: {"tokenizer", "hex" (the text's bytes), "ids"}, and of tokens of
characters "text", what they are decoded to, in hex, if that is not the text; lines without "hex" are ids to be decoded. Bytes that are not valid UTF-8 are
replaced by U+FFFD before that library sees them, as --invalid replace does."""
import json
import os
import random
import sys
import tokenizers
from tokenizers import AddedToken, processors
from tokens_common import BYTES, END, FAMILIES, MARK, family, mixed_pool, random_text, train, untrained

HARD = [
    "", " ", "a", "\n", "  ", " a", "a ", "Hello world", "Hello  world", "Hello, world! It's 2024, isn't it?",
    "I'LL we'Re they'VE 'd'S 'sS 's 't 're 've 'm 'll 'd", "it\u2019s", "'\u017f and '\u017fx",
    "\u212a \u212b \u017ft",
    "12345678901234567890 1,234.5 \u0661\u0662\u0663\u0664 \u2167\u00bd\u00b2 1\u00b2\u00b3",
    "for (int i = 0; i < n; i++) {\n\tx[i] += y[i] / 2.5e-3;  /* sum */\n}\n\n\n#include <stdio.h>\r\n",
    "def f(x):\n    return {k: v for k, v in x.items() if k != 'a'}\n\n\n    # comment   \n        pass",
    "line\r\nline\r\n\r\nline\rline\n\r\n", " \n \n  \n   x", "\t\t x\t \ty", " " * 100, " " * 100 + "x",
    "x" + " " * 63,
    "\n" * 50 + "x", "a\u00a0b\u3000c\u2009d\u200be\u180ef\u1680g\x85h\u2028i\u2029j\x0bk\x0cl\x1cm",
    "\u00e9 e\u0301 \u1e9b\u0323 q\u0323\u0307 \u212b A\u030a \u0344 \u0958 \u1112\u1161\u11ab \ud55c\uae00 \u2126 \ufb01",
    "\ud504\u11a7\u1167 \u11a7\u0323\u0301 \uac00\u11a7\u11a8 a\u11a7\u0301\u11a7 \u11a7\u11a7\uac00\u11a8\u11a7",
    "e\u0301\u0301\u0323 a\u0315\u0300\u05ae\u0300\u0062 \u0301\u0301 x\n\u0301y",
    "\u0f73\u0f75\u0f81 \u0b47\u0b56 \u1100\u1161\u11a8",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd\U0001f1e9\U0001f1ea\u2764\ufe0f #\ufe0f\u20e3",
    "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439, \u043c\u0438\u0440! \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u05e9\u05dc\u05d5\u05dd \u05b0\u05b1",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca\uff71\uff72",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0f40\u0f0b",
    "\U00010400\U00010428 \U0001d49c\U0001d552 \U00020000\U0002a6d6 \ufeffBOM \ue000 \uffff \ufdd0 \U0010ffff",
    END, "a" + END + "b", END + END, " " + END + " \n" + END, "<|endoftext", "<|endoftext|><|endoftext|", "a<|b|>c",
    "x <mask> y", "x<mask>y", "x \u3000\n<mask> \t y", "<mask><mask>", " <mask> <mask> ",
    "cafe\u0301 caf\u00e9 CAFE\u0301",
    "\x00\x01\x02\x7f", "a" * 300, "ab" * 200, "abcdefghijklmnopqrstuvwxyz" * 8, "\u4e00" * 120,
    "=" * 80 + "\n" + "-" * 79,
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\dir\\file.txt $HOME ~/x",
    "\\n \\u0041 \"quoted\" 'single'",
]
BAD = [b"\xff", b"a\xffb", b"\xc3(", b"\xe2\x82", b"\xe2\x82\xac\xe2\x82", b"\xed\xa0\x80x", b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80",
       b"\xc0\xaf", b"\xf8\x88\x80\x80\x80", b"\x80\x80 ok \xfe\xff", b"it's\xf0\x28\x8c\xbc fine",
       b"\xe0\x80\xaf\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"]


# For tokens of characters.
SPACED = [
    MARK, MARK + MARK, " " + MARK, MARK + "x", "a" + MARK + "b", "a  b   c    d         e", "   a", "a   ", "\n a\n  b\n\n\n\n c",
    "<s>", "</s>", "a<s>b", " <s> a </s> ", "<s><s>", "\u2581<s>", "x<unk>y", "<0x41>", "<0xFF> <0x0A>", "[INST] Hi [/INST] there",
    "a[INST]b", "<|user|>\nHi<|end|>\n <|endoftext|>", "</s>  \n x", "<table>x</table>", "the the there\tthe, athe the",
    "\u7b2c\u4e00", "caf\u00e9 caf\u00e9s (caf\u00e9)", "\u2603\u2603 \u2603a\u2603 \u2603", "x\u2603\u2581\u2603", "\ufb01x \ufb01 fix",
    "a -> b->c", "\uff21\uff22\uff23\uff11\uff12 \u2460\u00bd \ufdfa \u3392 \u1e9b\u0323 \uff76\uff9e \u3131\u314f \u00a0x \u2003y",
    "3.14159 2,718 10^6 x1y22z333", "!!! ... ?!?! --- ***", "\U0001f600\U0001f601 \U0001f1e9\U0001f1ea \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "def f(x):\n        return  x\n\n\n\tpass  # \u2581", "  \u3000  ", " \n", "\r\n \t "]


def decoded(t, ids, text):
    got = t.decode(ids, skip_special_tokens=False)
    return {} if got == text else {"text": got.encode().hex()}


def some_ids(t, r):
    """Random ids, many of them of bytes, in which not all bytes are text."""
    byte = [t.token_to_id(b) for b in BYTES if t.token_to_id(b) is not None]
    some = [t.token_to_id(BYTES[b]) for b in (0x41, 0x20, 0xe4, 0xbd, 0xa0, 0xff)] if byte else [0]
    return [r.choice(r.choice((byte or some, some, range(t.get_vocab_size())))) for _ in range(r.randint(1, 12))]


def forms(corpus):
    """The tokenizers by name."""
    t = train(untrained("gpt2"), 1800, corpus)
    yield "gpt2", t
    t = train(untrained("llama3", ignore_merges=True), 1800, corpus)
    t.add_special_tokens(["<|begin|>"])
    t.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False), AddedToken("<|b|>")])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin|> $A <|endoftext|>", special_tokens=[("<|begin|>", t.token_to_id("<|begin|>")), (END, 0)])])
    yield "llama3", t
    t = train(untrained("qwen", nfc=True), 1800, corpus)
    t.add_tokens([AddedToken("caf\u00e9", normalized=True), AddedToken("cafe", normalized=True), AddedToken("<mask>", lstrip=True)])
    yield "qwen", t
    yield "digits", train(untrained("gpt2", digits=True, prefix=True), 200, corpus)
    # Many pieces are tokens that no merges make: ignore_merges decides.
    j = json.loads(train(untrained("gpt2"), 600, corpus).to_str())
    del j["model"]["merges"][1::2]
    j["model"]["merges"] = [m if isinstance(m, list) else m.split(" ") for m in j["model"]["merges"]]
    for name, ignore in ("whole", True), ("parts", False):
        j["model"]["ignore_merges"] = ignore
        yield name, tokenizers.Tokenizer.from_str(json.dumps(j))


def main():
    top = os.path.dirname(os.path.abspath(__file__))
    os.makedirs(top + "/tokens", exist_ok=True)
    files = [top + "/../../" + f for f in ("README.md", "docs/install.md", "docs/planning.md", "src/token/encode.c")]
    pool = mixed_pool(7, files, 400_000)
    corpus = [pool[i:i + 1000] for i in range(0, len(pool), 1000)]
    r = random.Random(11)
    texts = [t.encode() for t in HARD] + BAD + [random_text(r, 2 + 8 * i).encode() for i in range(20)]
    names, path = sys.argv[1:], top + "/tokens/ids.jsonl"
    with open(path) as f:
        kept = [line for line in f if names and json.loads(line)["tokenizer"] not in names]

    def write(f, name, ids, **more):
        f.write(json.dumps({"tokenizer": name, **more, "ids": ids}, separators=(",", ":")) + "\n")

    with open(path, "w") as f:
        f.writelines(kept)
        for name, t in forms(corpus) if not names or any(n not in FAMILIES for n in names) else []:
            if names and name not in names:
                continue
            t.save(f"{top}/tokens/{name}.json", pretty=False)
            for text in texts:
                write(f, name, t.encode(text.decode(errors="replace"), add_special_tokens=False).ids, hex=text.hex())
        for name in [n for n in FAMILIES if not names or n in names]:
            t = family(name, 500, corpus)
            t.save(f"{top}/tokens/{name}.json", pretty=False)
            for text in texts[:-12] + [x.encode() for x in SPACED]:
                seen = text.decode(errors="replace")
                ids = t.encode(seen, add_special_tokens=False).ids
                write(f, name, ids, hex=text.hex(), **decoded(t, ids, seen))
            for ids in [some_ids(t, r) for _ in range(40)]:
                write(f, name, ids, **decoded(t, ids, ""))
    print("tokenizers", tokenizers.__version__)


main()
