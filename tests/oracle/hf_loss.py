"""The loss of a model that `tercio ckpt export --format hf` wrote, as transformers computes it: an
oracle that shares no code with Tercio. Needs torch and transformers.

usage: hf_loss.py MODEL_DIR FILE [text|bin]

FILE is taken as data.val takes it: the windows at 0, T, 2T ... of T tokens (T the context) and
the token after each. Prints the mean loss in nats a token with 9 digits, and how many tokens."""
import sys
import numpy as np
import torch
from transformers import GPT2LMHeadModel

folder, path = sys.argv[1], sys.argv[2]
form = sys.argv[3] if len(sys.argv) > 3 else "text"
if form == "text":
    tokens = np.fromfile(path, dtype=np.uint8)
else:
    tokens = np.fromfile(path, dtype=np.uint16)[512:]      # behind 256 int32

model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    if info[what]:
        sys.exit(f"{what}: {sorted(info[what])}")
model.eval().float()
T = model.config.n_positions
total, count = 0.0, 0
with torch.no_grad():
    for at in range(0, len(tokens) - T, T):
        piece = torch.from_numpy(tokens[at:at + T + 1].astype(np.int64))
        logits = model(piece[None, :T]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
        count += T
print(f"{total / count:.9f} {count}")
