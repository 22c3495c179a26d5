"""The sequences of a run with data.order=draws on a text, drawn as Tercio draws them."""
import numpy as np
import torch


def philox(key, c0, c1):
    m32 = 0xffffffff
    c = [c0 & m32, c0 >> 32 & m32, c1 & m32, c1 >> 32 & m32]
    k = [key & m32, key >> 32 & m32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & m32, (p0 >> 32) ^ c[3] ^ k[1], p0 & m32]
        k = [(k[0] + 0x9E3779B9) & m32, (k[1] + 0xBB67AE85) & m32]
    return c


def bytes_of(text):
    """The bytes of a file, which are its tokens."""
    return np.frombuffer(open(text, 'rb').read(), dtype=np.uint8)


def training_part(text):
    """Those that train: all but the last 5 %."""
    data = bytes_of(text)
    return data[:len(data) * 95 // 100]


def batch(part, seed, step, size, T):
    """`size` sequences of T tokens, and their targets."""
    n, x, y = len(part) - T, [], []
    for b in range(size):
        r = philox(seed, step, b)
        s = ((r[1] << 32 | r[0]) * n) >> 64
        x.append(part[s:s + T])
        y.append(part[s + 1:s + T + 1])
    return torch.tensor(np.stack(x).astype(np.int64)), torch.tensor(np.stack(y).astype(np.int64))
