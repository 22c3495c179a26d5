"""Times new tokens of a GPT-2 by transformers' generate on the CPU (greedy, with its cache): the peer of tests/bench/decode.

usage: decode_torch.py FOLDER fp32|bf16 PROMPT TOKENS ROUNDS
       decode_torch.py make FOLDER LAYERS HEADS HIDDEN

The first form prints the median time of a token after the first, the tokens of the prompt per second until the first, and
the first tokens; the prompt has token i * 7919 % vocabulary at place i. OMP_NUM_THREADS: threads. The second writes a
model with random weights, vocabulary 50257, context 1024."""
import os
import statistics
import sys
import time
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
if "OMP_NUM_THREADS" in os.environ:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def make(folder, layers, heads, hidden):
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=int(layers), n_head=int(heads), n_embd=int(hidden))
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


class Clock:
    """Given to generate: when each token came."""
    def __init__(self):
        self.at = []

    def put(self, tokens):
        self.at.append(time.perf_counter())

    def end(self):
        pass


def bench(folder, dtype, prompt, tokens, rounds):
    prompt, tokens = int(prompt), int(tokens)
    type = dict(fp32=torch.float32, bf16=torch.bfloat16)[dtype]
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=type).eval()
    text = torch.tensor([[i * 7919 % model.config.vocab_size for i in range(prompt)]])
    decode, prefill = [], []
    for _ in range(int(rounds) + 1):                  # the first does not count
        clock, begin = Clock(), time.perf_counter()
        with torch.inference_mode():
            out = model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=tokens, min_new_tokens=tokens,
                                 do_sample=False, pad_token_id=0, eos_token_id=None, streamer=clock)
        came = clock.at[1:]                           # at 0 the prompt
        prefill.append(came[0] - begin)
        decode.append(statistics.median(b - a for a, b in zip(came, came[1:])))
    print(f"decode {1e3 * statistics.median(decode[1:]):.3f} ms/token")
    print(f"prefill {prompt / statistics.median(prefill[1:]):.1f} tok/s")
    print("tokens", *out[0, prompt:prompt + 16].tolist())


if len(sys.argv) == 6 and sys.argv[1] == "make":
    make(*sys.argv[2:])
elif len(sys.argv) == 6:
    bench(*sys.argv[1:])
else:
    sys.exit(__doc__)
