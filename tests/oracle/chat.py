"""Conversations as transformers' apply_chat_template has them, with {% generation %} around answers. Needs transformers, jinja2,
tokenizers and numpy (made with transformers 5.24, tokenizers 0.23).

    chat.py make                      writes chat.jsonl, which t_chat reads
    chat.py compare TERCIO N SEED     N random conversations of each row: tokens and weights of `tercio data --chat`
    chat.py fuzz TERCIO N SEED        N damaged lines: what is accepted is equal, all else gets a sentence with file and line

chat.jsonl has a line for each conversation: the row of chat.def, the tokenizer of tests/oracle/tokens and what is added to it,
the line of the user's file, the number of tokens and of those that count, a hash (FNV-1a over id and weight in turn), and that of the
ids up to another answer (add_generation_prompt), without the last ones."""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
from transformers import PreTrainedTokenizerFast

from chat_templates import ROW_OF, TEMPLATES, marked

TOP = os.path.dirname(os.path.abspath(__file__))
# By row: tokenizers, the tokens that are added to them, bos, eos.
CHATML = ["<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]
LLAMA3 = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ROWS = {
    "chatml": [("gpt2", CHATML, None, "<|im_end|>"), ("llama2", CHATML, "<s>", "<|im_end|>")],
    "qwen2": [("qwen", CHATML, None, "<|im_end|>")],
    "qwen2.5": [("qwen", CHATML, None, "<|im_end|>")],
    "qwen3": [("qwen", CHATML + THINK, None, "<|im_end|>"), ("gpt2", CHATML, None, "<|im_end|>")],
    "qwen3-2507": [("qwen", CHATML + THINK, None, "<|im_end|>")],
    "llama3.1": [("llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>")],
    "llama3.2": [("llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>")],
    "llama3": [("llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>"), ("digits", LLAMA3, "<|begin_of_text|>", "<|eot_id|>")],
    "gemma": [("gemma", ["<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>")],
    "mistral": [("mistral", [], "<s>", "</s>"), ("llama2", [], "<s>", "</s>"), ("llama2-normalized", [], "<s>", "</s>")],
    "zephyr": [("llama2", [], "<s>", "</s>"), ("mistral", [], "<s>", "</s>")],
}
ALTERNATE, NO_TOOL = {"gemma", "mistral"}, {"gemma", "mistral", "zephyr", "llama3.1", "llama3.2"}
WORDS = ["the", "a", "Hello", "world", "is", "23", "4567", "naïve", "e\u0301", "中文", "😀", "👩‍👩‍👧", "it's", "->",
         "();", "\t", "fox.", "?", "Ünï", "\u00a0", "don't", "=", "\"x\"", "\\", "{{ x }}", "{% if %}", "<b>"]
SPECIAL = ["<|im_end|>", "<|eot_id|>", "</s>", "<s>", "<end_of_turn>", "[INST]", "<|endoftext|>", "<|im_start|>assistant\n",
    "<eos>", "<think>", "</think>", "<think>\n", "\n</think>\n\n", "<tool_response>"]


def text(r, special=True):
    kind = r.random()
    if kind < 0.06:
        return ""
    if kind < 0.1:
        return r.choice([" ", "\n", "\n\n", " \x1c", "\u3000", "\x85x\x85"])
    words = r.choices(WORDS + (SPECIAL if special and r.random() < 0.2 else []), k=r.randint(1, 12 if kind < 0.98 else 60))
    s = "".join(w + r.choice([" ", " ", " ", "", "\n", "\n\n", "  "]) for w in words)
    return r.choice(["", "", "", " ", "\n", "\n\n", "\t"]) + (s if r.random() < 0.3 else s.rstrip())


def conversation(r, row, long=False):
    turns = []
    if row not in ALTERNATE and r.random() < 0.4:
        turns.append(("system", text(r)))
    for _ in range(r.choice([1, 1, 1, 2, 3, 6])):
        turns.append(("user", text(r)))
        while row not in NO_TOOL and r.random() < 0.15:
            turns.append((r.choice(["tool", "tool", "assistant"]), text(r)))
        turns.append(("assistant", text(r)))
    if r.random() < 0.1:
        turns.append(("user", text(r)))
    if long:
        turns[-1] = (turns[-1][0], "".join(text(r) for _ in range(900))[:32768])
    return turns


def line_of(r, turns):
    """The same conversation in one of the forms."""
    form = r.random()
    if form < 0.6:
        return {"messages": [{"role": role, "content": s} for role, s in turns]}
    if form < 0.9:
        names = {"user": r.choice(["human", "user"]), "assistant": r.choice(["gpt", "assistant"])}
        return {"conversations": [{"from": names.get(role, role), "value": s} for role, s in turns]}
    if [role for role, _ in turns] == ["user", "assistant"] and form < 0.95:
        return {"prompt": turns[0][1], "completion": turns[1][1]}
    last = [i for i, t in enumerate(turns) if t[0] == "assistant"]
    if len(last) > 1:
        return {"messages": [{"role": role, "content": s} for role, s in turns]}
    parts = [[{"role": role, "content": s} for role, s in part] for part in (turns[:last[0]], turns[last[0]:])]
    return {"prompt": parts[0], "completion": parts[1]}


def tokenizer_json(name, added):
    """The text of a stored tokenizer with further tokens."""
    with open(f"{TOP}/tokens/{name}.json", encoding="utf-8") as f:
        j = json.load(f)
    first = max(list(j["model"]["vocab"].values()) + [a["id"] for a in j["added_tokens"]]) + 1
    for i, content in enumerate(added):
        j["added_tokens"].append({"id": first + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                                  "normalized": False, "special": True})
    return json.dumps(j, ensure_ascii=False)


def config_of(row, bos, eos):
    return {"bos_token": bos, "eos_token": eos, "chat_template": TEMPLATES[row]}


def write_folder(folder, row, case):
    name, added, bos, eos = case
    with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
        f.write(tokenizer_json(name, added))
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(config_of(row, bos, eos), f)


def load(folder, case):
    return PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", bos_token=case[2], eos_token=case[3])


def expect(t, row, messages):
    """Ids and weights."""
    date = {"date_string": "26 Jul 2024"}
    with_marks = t.apply_chat_template(messages, tokenize=False, chat_template=marked(row), **date)
    assert with_marks == t.apply_chat_template(messages, tokenize=False, chat_template=TEMPLATES[row], **date), row
    got = t.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
                                chat_template=marked(row), **date)
    return got["input_ids"], got["assistant_masks"]


def ask(t, row, turns):
    """Ids of the turns before the last answers, and of what is before another one."""
    while turns and turns[-1][0] == "assistant":
        turns = turns[:-1]
    return t.apply_chat_template(messages_of(turns), tokenize=True, return_dict=True, add_generation_prompt=True,
                                 chat_template=TEMPLATES[row], date_string="26 Jul 2024")["input_ids"]


def messages_of(turns):
    return [{"role": role, "content": s} for role, s in turns]


def hash_of(ids, weights=None):
    h = 14695981039346656037
    for pair in zip(ids, weights) if weights else zip(ids):
        for x in pair:
            h = (h ^ x) * 1099511628211 % 2 ** 64
    return f"{h:016x}"


def make():
    r = random.Random(1)
    with open(f"{TOP}/chat.jsonl", "w", encoding="utf-8") as out:
        for row, cases in ROWS.items():
            for case in cases:
                with tempfile.TemporaryDirectory() as d:
                    write_folder(d, row, case)
                    t = load(d, case)
                    for i in range(12):
                        turns = conversation(r, row)
                        ids, weights = expect(t, row, messages_of(turns))
                        assert sum(weights) > 0
                        json.dump({"row": ROW_OF.get(row, row), "tokenizer": case[0], "added": case[1],
                                   "config": config_of(row, *case[2:]) if i == 0 else None, "line": line_of(r, turns),
                                   "tokens": len(ids), "counted": sum(weights),
                                   "hash": hash_of(ids, weights), "asked": hash_of(ask(t, row, turns)), **({"ids": ids, "weights": weights} if i == 0 else {})}, out,
                                  ensure_ascii=True)
                        out.write("\n")


def run(tercio, folder, lines, *flags):
    with open(f"{folder}/chat.jsonl", "w", encoding="utf-8") as f:
        for line in lines:
            f.write(line + "\n")
    out = f"{folder}/out-{len(os.listdir(folder))}"
    p = subprocess.run([tercio, "data", f"{folder}/chat.jsonl", "--tokenizer", f"{folder}/tokenizer.json", "-o", out,
                        "--shard-tokens", "9973", *flags, "--chat"], capture_output=True, text=True)
    return p, out


def samples(out):
    """[(ids, weights)] of a folder of shards."""
    ids, weights = [], []
    for name in sorted(os.listdir(out)):
        if name.endswith(".bin"):
            header = np.fromfile(f"{out}/{name}", dtype=np.int32, count=256)
            kind = np.uint16 if header[0] == 20240520 else np.uint32
            ids.append(np.fromfile(f"{out}/{name}", dtype=kind, offset=1024))
            weights.append(np.load(f"{out}/{name[:-4]}.weights.npy"))
            assert len(ids[-1]) == len(weights[-1]) == header[2]
    ids, weights = np.concatenate(ids), np.concatenate(weights)
    begins = list(np.flatnonzero(weights & 2)) + [len(ids)]
    return [(ids[a:b].tolist(), (weights[a:b] & 1).tolist()) for a, b in zip(begins, begins[1:])]


def compare(tercio, n, seed):
    r = random.Random(seed)
    for row, cases in ROWS.items():
        for case in cases:
            with tempfile.TemporaryDirectory() as d:
                write_folder(d, row, case)
                t = load(d, case)
                all_turns = [conversation(r, row, long=i % 400 == 7) for i in range(n)]
                p, out = run(tercio, d, [json.dumps(line_of(r, turns), ensure_ascii=r.random() < 0.5) for turns in all_turns])
                assert p.returncode == 0, p.stderr
                got, counted, tokens = samples(out), 0, 0
                assert len(got) == n, (len(got), n)
                for turns, have in zip(all_turns, got):
                    ids, weights = expect(t, row, messages_of(turns))
                    assert sum(weights) > 0
                    assert have == (list(ids), list(weights)), (row, case[0], turns, have, ids, weights)
                    counted, tokens = counted + sum(weights), tokens + len(ids)
                print(f"{row}, {case[0]}: {n} conversations, {tokens} tokens, {counted} of them count: equal;",
                      p.stdout.strip().replace("\n", "; ").split("/")[-1])


ODD = [None, 0, 1.5, True, [], {}, "", "x", ["a"], {"type": "text", "text": "a"}, "assistant", "tool", "developer", "\ud800",
    "\x00"]


def damage(r, line):
    """A line of JSON, changed in one to three places."""
    x = copy.deepcopy(line)
    for _ in range(r.randint(1, 3)):
        place, key = x, r.choice(list(x)) if x else None
        while key is not None and r.random() < 0.8 and isinstance(place[key], (list, dict)) and place[key]:
            place = place[key]
            key = r.randrange(len(place)) if isinstance(place, list) else r.choice(list(place))
        if key is None:
            break
        what = r.random()
        if what < 0.35:
            place[key] = r.choice(ODD)
        elif what < 0.5 and isinstance(place, dict):
            place[r.choice(["tools", "tool_calls", "weight", "name", "extra", "system", "mask", "tokens"])] = r.choice(ODD)
        elif what < 0.7:
            del place[key]
        elif isinstance(place, list):
            place.insert(key, copy.deepcopy(r.choice(place)))
    s = json.dumps(x, ensure_ascii=r.random() < 0.5 or "\\ud800" in json.dumps(x))
    if r.random() < 0.2:
        at = r.randrange(len(s))
        s = s[:at] + r.choice(["", "}", "\"", "\\", "\x01", ",", "]"]) + s[at + r.randint(0, 2):]
    return s.replace("\n", " ")


def meaning(t, row, s):
    """What an accepted line has to be; None: it should not have been accepted."""
    x = json.loads(s)
    names = {"human": "user", "gpt": "assistant"}
    if "messages" in x:
        m = x["messages"]
    elif "conversations" in x:
        m = [{"role": names.get(c["from"], c["from"]), "content": c["value"],
              **({"weight": c["weight"]} if "weight" in c else {})}
             for c in x["conversations"]]
    elif "prompt" in x:
        p, c = x["prompt"], x["completion"]
        p = [{"role": "user", "content": p}] if isinstance(p, str) else p
        c = [{"role": "assistant", "content": c}] if isinstance(c, str) else c
        m = [{**y, "weight": 0} for y in p] + c
    else:
        return x["tokens"], [int(w) for w in x.get("mask", [1] * len(x["tokens"]))]
    ids, weights = expect(t, row, m)
    if any(y.get("weight") == 0 for y in m if y["role"] == "assistant"):
        # Runs of ones in turn are the answers that the marked template has; those of weight 0 are taken away by their number.
        answer, k, was = [y.get("weight") != 0 for y in m if y["role"] == "assistant"], -1, 0
        for i, w in enumerate(list(weights)):
            k += w and not was
            was = w
            if w and not answer[k]:
                weights[i] = 0
    return list(ids), list(weights)


def fuzz(tercio, n, seed):
    r = random.Random(seed)
    accepted = refused = 0
    for i in range(n):
        row = r.choice(list(ROWS))
        case = r.choice(ROWS[row])
        with tempfile.TemporaryDirectory() as d:
            write_folder(d, row, case)
            good = line_of(r, conversation(r, row)) if r.random() < 0.9 else {"tokens": [1, 2, 3], "mask": [0, 1, 1]}
            s = damage(r, good)
            p, out = run(tercio, d, [s])
            if p.returncode == 0:
                have = samples(out) if os.path.exists(f"{out}/shard-00000.bin") else []
                if have or s.strip():
                    assert len(have) == 1 and have[0] == meaning(load(d, case), row, s), (row, case, s, have)
                accepted += 1
            else:
                assert p.returncode == 2 and "chat.jsonl', line 1: " in p.stderr and p.stderr.count("\n") == 1, (s, p)
                refused += 1
    print(f"{n} lines: {accepted} accepted and equal, {refused} refused with file and line")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make()
    else:
        {"compare": compare, "fuzz": fuzz}[sys.argv[1]](os.path.abspath(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
