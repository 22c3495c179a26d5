"""PEFT's numbers for adapters: losses, gradients of A and B, ten steps of AdamW, on several layouts; what is exported and imported.
Needs torch, transformers, peft, numpy, safetensors and h5py.

usage: lora.py TERCIO TEXT [FAMILY ...]       compares; ends with status 1 on the first figure that is off
       lora.py TERCIO TEXT make FOLDER        makes the adapters and figures that tests/mpi/m_lora reads

TERCIO makes a random base (one step with learning rate 0), which transformers reads from its export. PEFT makes an adapter with a
random B, alpha other than the rank, and saves it; TERCIO takes it up (ckpt.adapter) and trains it beside the base (ckpt.from). The
first gradient is compared with PEFT's in float64, element by element; AdamW's first moment is (1 - beta1) g. Losses of ten steps
are compared with PEFT's in float32, also from TERCIO's own beginning, B = 0, which PEFT reads from TERCIO's export."""
import glob, json, os, shutil, subprocess, sys, tempfile
import h5py, numpy as np, peft, torch, transformers

from compact import dump
from sampled import batch, bytes_of, training_part

tercio, text = sys.argv[1:3]
SEED, BATCH, STEPS, LR = 1, 4, 10, 3e-3
SIZES = dict(layers=2, hidden=32, vocab=256, ffn=48)
CASES = dict(
    llama=dict(family='llama', heads=4, kv_heads=2, context=32), qwen2=dict(family='qwen2', heads=4, kv_heads=2, context=32),
    qwen3=dict(family='qwen3', heads=4, kv_heads=2, context=32, head_dim=16), gpt2=dict(family='gpt2', heads=4, context=32, ffn=128),
    phi3=dict(family='phi3', heads=4, kv_heads=2, context=32), gemma2=dict(family='gemma2', heads=4, kv_heads=2, context=32, window=9),
    olmo2=dict(family='olmo2', heads=4, kv_heads=4, context=32, bias='attention'), smollm3=dict(family='smollm3', heads=4, kv_heads=2, context=32, bias='yes'))
TARGETS = dict(gpt2=['attn.c_attn', 'attn.c_proj', 'mlp.c_fc', 'mlp.c_proj'], phi3=['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj'])
SEVEN = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
OURS = {'q_proj': 'attn.qkv.q', 'k_proj': 'attn.qkv.k', 'v_proj': 'attn.qkv.v', 'o_proj': 'attn.proj', 'gate_proj': 'mlp.gate_up.gate',
        'up_proj': 'mlp.gate_up.up', 'down_proj': 'mlp.proj', 'qkv_proj': 'attn.qkv', 'gate_up_proj': 'mlp.gate_up', 'c_attn': 'attn.qkv',
        'attn.c_proj': 'attn.proj', 'c_fc': 'mlp.fc', 'mlp.c_proj': 'mlp.proj'}
LAYOUTS = [['--mesh.dp=2'], ['--mesh.tp=2'], ['--mesh.tp=2', '--parallel.sequence=yes'], ['--mesh.pp=2', '--train.micro_batch=1'],
           ['--mesh.pp=2', '--train.micro_batch=1', '--parallel.schedule=zb'], ['--mesh.cp=2'], ['--mesh.cp=2', '--parallel.context=heads'],
           ['--mesh.dp=4', '--mesh.shard=2', '--parallel.data=zero3'], ['--mesh.dp=2', '--parallel.data=zero1'],
           ['--mesh.dp=2', '--parallel.data=zero2', '--train.micro_batch=1'], ['--mesh.dp=2', '--parallel.data=zero3'],
           ['--train.micro_batch=1'], ['--train.recompute=full'], ['--train.recompute=selective'],
           ['--mesh.dp=2', '--mesh.tp=2', '--mesh.pp=2', '--parallel.data=zero3', '--train.micro_batch=1'], ['--run.device=ref']]

part = training_part(text)


def tool(*args):
    p = subprocess.run([tercio, *args], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f'{" ".join(args)}: status {p.returncode}: {p.stderr[-2000:]}')


def tensors(folder):
    step = sorted(glob.glob(folder + '/step-*'))[-1]
    state = {}
    for name in sorted(glob.glob(step + '/rank-*.h5')):
        with h5py.File(name) as f:
            state.update({t: np.array(f['tensors'][t]) for t in f['tensors']})
    return state


def train(d, out, steps, *words):
    """The losses of the steps."""
    shutil.rmtree(f'{d}/{out}', ignore_errors=True)
    ranks = int(np.prod([int(w.split('=')[1]) for w in words if w.split('=')[0] in ('--mesh.dp', '--mesh.tp', '--mesh.pp', '--mesh.cp')]))
    tool('train', f'--data.train={text}', '--data.order=draws', f'--train.global_batch={BATCH}', f'--train.steps={steps}', '--train.warmup=0',
         '--train.schedule=constant', f'--train.lr={LR}', '--train.weight_decay=0.1', '--train.clip=1', f'--run.out={d}/{out}',
         f'--run.ranks={ranks}', '--run.comm=thread', *words)
    return [json.loads(line)['loss'] for line in open(f'{d}/{out}/metrics.jsonl')]


def make_base(d, case):
    keys = [f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()]
    train(d, 'base', 1, *keys, '--train.lr=0', '--ckpt.keep=1')
    tool('ckpt', 'export', f'{d}/base/ckpt', '-o', f'{d}/hf', '--format', 'hf')


def base_model(d, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(f'{d}/hf', dtype=torch.float32, attn_implementation='eager').to(dtype)


def make_adapter(d, family, **more):
    config = dict(r=5, lora_alpha=12, target_modules=TARGETS.get(family, SEVEN), lora_dropout=0.0, task_type='CAUSAL_LM')
    torch.manual_seed(7)
    model = peft.get_peft_model(base_model(d), peft.LoraConfig(**{**config, 'fan_in_fan_out': family == 'gpt2', **more}))
    for n, p in model.named_parameters():
        if 'lora_B' in n:
            torch.nn.init.normal_(p, std=0.1)
    model.save_pretrained(f'{d}/adapter')


def peft_model(d, folder, dtype=torch.float32):
    return peft.PeftModel.from_pretrained(base_model(d, dtype), folder, is_trainable=True, autocast_adapter_dtype=False).to(dtype)


softmax = torch.nn.functional.softmax


def loss_of(model, step, T):
    x, y = batch(part, SEED, step, BATCH, T)
    exact = next(model.parameters()).dtype == torch.float64
    torch.nn.functional.softmax = (lambda x, dim=None, dtype=None: softmax(x, dim=dim)) if exact else softmax
    return torch.nn.functional.cross_entropy(model(input_ids=x).logits.view(-1, 256), y.view(-1))


def ours(name, family, g, case):
    """Our name of a parameter of PEFT's, and its elements in our order."""
    words = name.split('.')
    layer = [w for w in words if w.isdigit()][0]
    at = words.index('lora_A') if 'lora_A' in words else words.index('lora_B')
    module = OURS.get(words[at - 1]) or OURS['.'.join(words[at - 2:at])]
    g = g.numpy().astype(np.float64)
    if words[at] == 'lora_B' and module == 'attn.qkv':          # all queries, then keys, then values
        K = case.get('kv_heads', case['heads'])
        D = SIZES['hidden'] // case['heads']
        q, k, v = np.split(g, [case['heads'] * D, (case['heads'] + K) * D])
        g = np.concatenate([q.reshape(K, -1, D, g.shape[1]), k.reshape(K, 1, D, -1), v.reshape(K, 1, D, -1)], 1)
    return f'h.{layer}.{module}.{words[at].lower()}', g.reshape(-1)


def steps_of(model, T, n):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for s in range(1, n + 1):
        opt.zero_grad()
        loss = loss_of(model, s, T)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        yield float(loss.detach())


def backward(d, family, case, dtype):
    """The loss of the first step, and its gradients by our names."""
    model = peft_model(d, f'{d}/adapter', dtype)
    loss = loss_of(model, 1, case['context'])
    loss.backward()
    return float(loss.detach()), dict(ours(n, family, p.grad, case) for n, p in model.named_parameters() if p.requires_grad)


def off_by(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def fail_if(bad, what):
    if bad:
        sys.exit(what)


def worst_of(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def check_gradient(d, family, case, more):
    loss, exact = backward(d, family, case, torch.float64)
    single = backward(d, family, case, torch.float32)[1]
    peers = {n: off_by(single[n], g) for n, g in exact.items()}
    for device in ('cpu', 'ref'):
        own = train(d, 'one', 1, f'--ckpt.from={d}/base/ckpt', f'--ckpt.adapter={d}/adapter', '--train.lr=0', '--train.clip=0',
                    f'--run.device={device}', *more)
        state = tensors(f'{d}/one/ckpt')
        found = {n: off_by(state.pop('optim.m.' + n).reshape(-1).astype(np.float64) / float(1 - np.float32(0.9)), g) for n, g in exact.items()}
        fail_if([t for t in state if t.startswith('optim.m.')], f'{family}: more gradients than PEFT has: {list(state)[:3]}')
        off, worst = abs(own[0] - loss) / loss, max(found, key=lambda n: found[n])
        print(f'{family} {device}: loss {own[0]:.9g}, off by {off:.1e}; {len(found)} gradients, at most off by {found[worst]:.1e}, {worst} '
              f'(PEFT in fp32 {peers[worst]:.1e})', flush=True)
        fail_if(off > 2e-7 or any(found[n] > max(5e-7, 3 * peers[n]) for n in found), f'{family}: off')


def file_loss(model, T):
    """The mean loss of the text's first tokens, as tercio eval predicts them."""
    x = torch.tensor(bytes_of(text)[:16 * T + 1].astype(np.int64))
    torch.nn.functional.softmax = softmax
    with torch.no_grad():
        logits = model(input_ids=x[:-1].view(16, T)).logits
    return float(torch.nn.functional.cross_entropy(logits.reshape(-1, 256).double(), x[1:]))


def eval_loss(d, *words):
    bytes_of(text)[:16 * int(words[-1]) + 1].tofile(f'{d}/eval.txt')
    p = subprocess.run([tercio, 'eval', *words[:-1], '--data', f'{d}/eval.txt', '--json'], capture_output=True, text=True)
    fail_if(p.returncode, p.stderr)
    return json.loads(p.stdout)['results'][0]['loss']


def close(what, a, b, most):
    print(f'{what}: {a:.9g}, off by {abs(a - b) / b:.1e}', flush=True)
    fail_if(abs(a - b) > most * b, f'{what}: {a} and {b}')


def check_exports(d, family, case):
    """Of a run that went on from PEFT's adapter."""
    T = case['context']
    tool('ckpt', 'export', f'{d}/ten/ckpt', '-o', f'{d}/peft', '--format', 'peft')
    tool('ckpt', 'export', f'{d}/ten/ckpt', '-o', f'{d}/merged', '--merge')
    adapted = file_loss(peft_model(d, f'{d}/peft'), T)
    whole = transformers.AutoModelForCausalLM.from_pretrained(f'{d}/merged', dtype=torch.float32, attn_implementation='eager')
    close(f'{family} merged', file_loss(whole, T), adapted, 1e-6)
    close(f'{family} merged by PEFT', file_loss(peft_model(d, f'{d}/peft').merge_and_unload(), T), adapted, 1e-6)
    for words in ([f'{d}/base/ckpt', '--adapter', f'{d}/ten/ckpt'], [f'{d}/base/ckpt', '--adapter', f'{d}/peft'],
                  [f'{d}/hf', '--adapter', f'{d}/peft'], [f'{d}/hf', '--adapter', f'{d}/ten/ckpt'], [f'{d}/merged']):
        close(f'{family} eval ' + ' '.join(w.replace(d, '') for w in words), eval_loss(d, *words, f'--model.context={T}', str(T)), adapted, 1e-6)


def check_start(d, family, case, more):
    """From the beginning: A random, B zero."""
    T, words = case['context'], [f'--ckpt.from={d}/base/ckpt', '--train.lora=5', '--train.lora_alpha=12', *more]
    train(d, 'zero', 1, *words, '--train.lr=0')
    tool('ckpt', 'export', f'{d}/zero/ckpt', '-o', f'{d}/start', '--format', 'peft')
    for n, x in tensors(f'{d}/zero/ckpt').items():
        bound = np.sqrt(1 / np.prod(x.shape[1:])) * (1 + 1e-6)
        if not n.startswith('optim.'):
            fail_if(x.any() != n.endswith('lora_a') or abs(x).max() > bound, f'{n}: a beginning unlike PEFT\'s')
            fail_if(n.endswith('lora_a') and abs(x.std() * 3 ** 0.5 / bound - 1) > 0.2, f'{n}: its deviation is {x.std()}')
    one = train(d, 'own', STEPS, *words)
    off = worst_of(one, steps_of(peft_model(d, f'{d}/start'), T, STEPS))
    print(f'{family} from B = 0: ten steps {one[0]:.6f} to {one[-1]:.6f}, off by {off:.1e}', flush=True)
    fail_if(off > 2e-6, 'off')


def check(family, *more, layouts=True, **config):
    d, case = tempfile.mkdtemp(), CASES[family]
    make_base(d, case)
    make_adapter(d, family, **config)
    check_gradient(d, family, case, more)
    words = [f'--ckpt.from={d}/base/ckpt', *more]
    one = train(d, 'ten', STEPS, *words, f'--ckpt.adapter={d}/adapter')
    off = worst_of(one, steps_of(peft_model(d, f'{d}/adapter'), case['context'], STEPS))
    print(f'{family}: ten steps {one[0]:.6f} to {one[-1]:.6f}, off by {off:.1e}', flush=True)
    fail_if(off > 2e-6, 'off')
    check_exports(d, family, case)
    check_start(d, family, case, more)
    for layout in LAYOUTS if layouts else []:
        n = worst_of(train(d, 'layout', STEPS, *words, f'--ckpt.adapter={d}/adapter', *layout), one)
        print(f'{family} {" ".join(layout)}: off by {n:.1e}', flush=True)
        fail_if(n > (2e-6 if 'ref' in layout[0] else 2e-7), 'off')
    shutil.rmtree(d)


def make(out):
    """Adapters and PEFT's figures, for two families."""
    cases = []
    for family in ('llama', 'qwen3', 'gpt2'):
        d, case = tempfile.mkdtemp(), CASES[family]
        make_base(d, case)
        make_adapter(d, family, **(dict(use_rslora=True) if family == 'qwen3' else {}))
        loss, grad = backward(d, family, case, torch.float64)
        cases.append(dict(family=family, options=' '.join(f'--model.{k}={v}' for k, v in {**SIZES, **case}.items()), loss=loss,
                          losses=list(steps_of(peft_model(d, f'{d}/adapter'), case['context'], STEPS)),
                          grad={n: float(np.linalg.norm(g)) for n, g in grad.items()}))
        os.makedirs(f'{out}/peft-{family}', exist_ok=True)
        for name in ('adapter_config.json', 'adapter_model.safetensors'):
            shutil.copy(f'{d}/adapter/{name}', f'{out}/peft-{family}/{name}')
        config = json.load(open(f'{out}/peft-{family}/adapter_config.json'))
        config['base_model_name_or_path'] = None
        json.dump(config, open(f'{out}/peft-{family}/adapter_config.json', 'w'), indent=1)
        shutil.rmtree(d)
    dump(dict(peft=peft.__version__, torch=torch.__version__, transformers=transformers.__version__, cases=cases), open(f'{out}/lora.json', 'w'))


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if sys.argv[3:4] == ['make']:
        return make(sys.argv[4])
    for family in sys.argv[3:] or CASES:
        check(family, layouts=family in ('llama', 'qwen3', 'gpt2'))


main()
