"""Models that `tercio ckpt export --format hf` writes, in transformers: it loads them with no tensor missing, of
another shape or left over, and its loss is the one that Tercio measured, within 1e-6 in fp32. By hand, where torch and
transformers are installed.

usage: hf_export.py TERCIO TEXT

The other way too: what transformers saves from that folder, in several shards, is imported and exported again, and has
the same names, types, shapes and bytes."""
import glob, json, os, shutil, subprocess, sys, tempfile
import numpy as np, torch, transformers
from safetensors import safe_open
from hf_cases import CASES, SIZES

tercio, text = (os.path.abspath(p) for p in sys.argv[1:3])
CASES += [dict(family='llama', heads=4, kv_heads=2, context=32, rope_scaling='linear:4', norm_eps='3e-5')]


def run(*words):
    done = subprocess.run([tercio, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f'{words}: {done.stderr}')


def tensors(folder):
    found = {}
    for name in sorted(glob.glob(folder + '/*.safetensors')):
        with safe_open(name, 'pt') as f:
            found.update({k: f.get_tensor(k) for k in f.keys()})
    return found


def loss(folder, data, T):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                                    dtype=torch.float32)
    for what in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
        if info[what]:
            sys.exit(f'{folder}: {what}: {sorted(info[what])}')
    total, count = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(data) - T, T):
            x = torch.from_numpy(data[at:at + T + 1].astype(np.int64))
            logits = model.eval()(x[None, :T]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, x[1:], reduction='sum').item()
            count += T
    return model, total / count


def measured(out):
    losses = [json.loads(line).get('val_loss') for line in open(out + '/metrics.jsonl')]
    return [x for x in losses if x is not None][-1]


worst = 0
transformers.logging.set_verbosity_error()
data = np.frombuffer(open(text, 'rb').read()[:2048], dtype=np.uint8)
for case in CASES:
    dir = tempfile.mkdtemp()
    open(dir + '/val', 'wb').write(data.tobytes())
    sizes = [f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()]
    run('train', *sizes, f'--data.train={text}', f'--data.val={dir}/val', '--train.steps=20', '--train.lr=1e-2',
        f'--run.out={dir}/run')
    run('ckpt', 'export', dir + '/run/ckpt', '-o', dir + '/hf', '--shard-size', '60KB')
    model, theirs = loss(dir + '/hf', data, case['context'])
    off = abs(theirs - measured(dir + '/run'))
    worst = max(worst, off)
    model.save_pretrained(dir + '/saved', max_shard_size='100KB')
    run('ckpt', 'import', dir + '/saved', '-o', dir + '/from', f"--model.context={case['context']}")
    run('ckpt', 'export', dir + '/from', '-o', dir + '/again', '--shard-size', '60KB')
    a, b = tensors(dir + '/saved'), tensors(dir + '/again')
    same = a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
    run('train', f'--model.config={dir}/saved', f'--data.train={text}', f'--data.val={dir}/val', '--train.steps=1',
        '--train.lr=0', f'--ckpt.from={dir}/from', f'--run.out={dir}/on')
    on = abs(measured(dir + '/on') - measured(dir + '/run'))
    print(f'{case}: loss {theirs:.9f}, off by {off:.2g}; {len(glob.glob(dir + "/saved/*.safetensors"))} shards, '
          f'{len(a)} tensors {"the same" if same else "DIFFER"}; imported, off by {on:.2g}')
    if not same or off > 1e-6 or on > 1e-6:
        sys.exit('not the same')
    shutil.rmtree(dir)
print(f'worst {worst:.2g}')
