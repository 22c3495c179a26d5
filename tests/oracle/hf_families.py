"""transformers' numbers for the models of families.json: each family of family.def with the same weights and batches. Needs
torch, transformers, numpy, safetensors and h5py (only to make or renew the stored figures).

usage: hf_families.py TERCIO TEXT OUT.json [documents | FAMILY]

For each case TERCIO initialises the model (one step with learning rate 0) and exports it as a folder of Hugging Face's, which
transformers loads without a missing or unexpected tensor. The script makes the batches anew from the text (Philox, as data.h
describes), computes the loss and the gradient of the first step in float64, and the losses of ten steps of AdamW
in float32 (beta 0.9 0.95, eps 1e-8, weight decay 0.1 on matrices, clip 1, constant rate), and writes norms and
samples of the gradients, which TERCIO imports as if they were weights. It ends with status 1 if a tensor's gradient on the
device ref, whose sums are exact, is off by more than 5e-7 of its norm, or that on the cpu by more than 5e-7 (with `documents`
1e-6; 8e-7 for the gains of queries' and keys' norms, whose sums nearly cancel, which enlarges the rounding of what they are
sums of) and three times what transformers in fp32 is off. In float64 norms and softmax are computed without their casts to fp32. Cosines and sines of
positions are float32 in transformers, also in a float64 model.

With `documents` (documents.json): Llama and Qwen3 with data.documents = mask. Their documents are lines of the text;
transformers gets a block-diagonal causal mask and positions that restart at each line. With a FAMILY its cases alone."""
import glob, json, os, shutil, subprocess, sys, tempfile
import h5py, numpy as np, torch, transformers
from safetensors.torch import save_file
from compact import dump
from hf_cases import CASES, SIZES
from sampled import batch, training_part

tercio, text, out = sys.argv[1:4]
DOCUMENTS = sys.argv[4:] == ['documents']
END = 10 if DOCUMENTS else None    # ends a document; None: documents are joined
SEED, BATCH, STEPS, LR, SAMPLES = 1, 4, 10, 3e-4, 16
if DOCUMENTS:
    CASES = [
        dict(family='llama', heads=8, kv_heads=2, context=128),
        dict(family='qwen3', heads=4, kv_heads=1, context=64, tied='yes', head_dim=32),
    ]
elif sys.argv[4:]:
    CASES = [c for c in CASES if c['family'] == sys.argv[4]]

part = training_part(text)


def tensors(folder):
    """A checkpoint's tensors, and its model's text."""
    step = sorted(glob.glob(folder + '/step-*'))[-1]
    state = {}
    for name in sorted(glob.glob(step + '/rank-*.h5')):
        with h5py.File(name) as f:
            state.update({t: np.array(f['tensors'][t]) for t in f['tensors']})
    manifest = json.load(open(step + '/manifest.json'))
    return state, manifest['model'] if 'model' in manifest else manifest['meta']['model']


def tool(*args):
    subprocess.run([tercio, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def checkpoint(case, folder, device):
    """The initial weights of a case, and the first gradient as Tercio has it on a device."""
    keys = [f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()]
    tool('train', *keys, f'--data.train={text}', '--data.order=draws', f'--train.global_batch={BATCH}',
         '--train.steps=1', '--train.lr=0', '--train.clip=0', f'--train.seed={SEED}', f'--run.out={folder}/{device}',
         f'--run.device={device}', *([f'--data.documents=mask', f'--data.end_token={END}'] if END else []))
    return tensors(f'{folder}/{device}/ckpt')


def exact_norm(self, x):
    gain = 1 + self.weight if type(self).__name__.startswith('Gemma') else self.weight
    eps = self.eps if hasattr(self, 'eps') else self.variance_epsilon
    return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


softmax = torch.nn.functional.softmax


def model_of(folder, dtype):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder + '/hf', dtype=torch.float32, attn_implementation='eager', output_loading_info=True)
    for what in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
        if info[what]:
            sys.exit(f'{folder}: {what}: {info[what]}')
    model = model.to(dtype)
    torch.nn.functional.softmax = softmax
    if dtype == torch.float64:
        torch.nn.functional.softmax = lambda x, dim=None, dtype=None: softmax(x, dim=dim)
        for module in model.modules():
            if type(module).__name__.endswith('RMSNorm'):
                module.forward = exact_norm.__get__(module)
    return model


def documents(x, dtype):
    """A token END belongs to the document that it ends."""
    number = torch.cumsum(torch.nn.functional.pad(x[:, :-1] == END, (1, 0)), 1)
    at = torch.arange(x.shape[1])
    seen = (number[:, :, None] == number[:, None, :]) & (at[None, :] <= at[:, None])
    first = seen.int().argmax(2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return dict(attention_mask=mask[:, None], position_ids=at[None] - first)


def loss_of(model, step, T):
    x, y = batch(part, SEED, step, BATCH, T)
    more = {} if END is None else documents(x, next(model.parameters()).dtype)
    logits = model(input_ids=x, **more).logits
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def as_ours(folder, grads):
    """Tensors by transformers' names as ours by our names: imported as if they were weights."""
    shutil.rmtree(folder + '/grads', ignore_errors=True)
    shutil.rmtree(folder + '/imported', ignore_errors=True)
    os.mkdir(folder + '/grads')
    shutil.copy(folder + '/hf/config.json', folder + '/grads')
    save_file(grads, folder + '/grads/model.safetensors', metadata={'format': 'pt'})
    tool('ckpt', 'import', folder + '/grads', '-o', folder + '/imported')
    return {n: x.reshape(-1).astype(np.float64) for n, x in tensors(folder + '/imported')[0].items() if not n.startswith('optim.')}


def backward(folder, T, dtype):
    """The loss of the first step, and its gradient as our tensors, in two parts of float32 each."""
    model = model_of(folder, dtype)
    loss = loss_of(model, 1, T)
    loss.backward()
    exact = {n: p.grad for n, p in model.named_parameters()}
    high = {n: g.to(torch.float32).contiguous() for n, g in exact.items()}
    low = {n: (g - high[n].to(dtype)).to(torch.float32).contiguous() for n, g in exact.items()}
    high, low = as_ours(folder, high), as_ours(folder, low)
    return float(loss.detach()), {n: high[n] + low[n] for n in high}


def off(ours, g):
    return float(np.linalg.norm(ours - g) / np.linalg.norm(g))


def run(case):
    folder = tempfile.mkdtemp()
    state, name = checkpoint(case, folder, 'cpu')
    exactly = checkpoint(case, folder, 'ref')[0]
    tool('ckpt', 'export', f'{folder}/cpu/ckpt', '-o', f'{folder}/hf', '--format', 'hf')
    T = case['context']
    res = dict(model=name, grad={}, losses=[])
    res['loss'], exact = backward(folder, T, torch.float64)
    single = backward(folder, T, torch.float32)[1]
    worst = []
    for n, g in exact.items():
        # AdamW's first moment is (1 - beta1) g, in float32
        ours, by_ref = (x['optim.m.' + n].reshape(-1).astype(np.float64) / float(1 - np.float32(0.9)) for x in (state, exactly))
        worst.append((off(ours, g), off(single[n], g), off(by_ref, g), n))
        at = [int(i) for i in np.linspace(0, g.size - 1, min(SAMPLES, g.size))]
        res['grad'][n] = dict(norm=float(np.linalg.norm(g)), fp32=worst[-1][1], at=at, value=[float(g[i]) for i in at])
    model = model_of(folder, torch.float32)
    params = list(model.parameters())
    opt = torch.optim.AdamW([dict(params=[p for p in params if p.dim() > 1], weight_decay=0.1),
                             dict(params=[p for p in params if p.dim() == 1], weight_decay=0.0)],
                            lr=LR, betas=(0.9, 0.95), eps=1e-8)
    for s in range(1, STEPS + 1):
        opt.zero_grad()
        loss = loss_of(model, s, T)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        res['losses'].append(float(loss.detach()))
    shutil.rmtree(folder)
    worst.sort(reverse=True)
    print('%s\n  loss %.9g; gradients against float64, on the cpu (transformers in fp32; on ref):' % (name, res['loss']))
    print('  ' + ', '.join('%s %.2g (%.2g; %.2g)' % (n, a, b, c) for a, b, c, n in worst[:4]), flush=True)
    for a, b, c, n in worst:
        if c > 5e-7 or a > max(3 * b, 1e-6 if END is not None else 8e-7 if '_norm' in n else 5e-7):
            sys.exit(f'{name}: the gradient of {n} is off by {a:.2g}, by {c:.2g} on ref, transformers in fp32 by {b:.2g}')
    return res


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
dump(dict(torch=torch.__version__, transformers=transformers.__version__, seed=SEED, batch=BATCH, lr=LR,
          cases=[run(c) for c in CASES]), open(out, 'w'))
