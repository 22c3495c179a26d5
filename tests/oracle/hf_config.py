"""config.json files changed at random, as transformers reads them and as Tercio does: what transformers refuses has to be
refused, what both accept has to give the same loss to 1e-5. Needs torch, transformers; by hand.

usage: hf_config.py TERCIO [N [SEED [MODEL_TYPE]]]

For each class N files are drawn: sizes and parts that exist, in old and new spellings, then up to three changes (a member
missing, null, of another value or type). Ends with status 1 at a difference, or if a class has less than 60 % of what
transformers runs accepted; prints counts and what is refused. Left out on purpose, and so counted as refused: rotary scalings
"dynamic" and "longrope", activations without a gate's name here, attention in both directions, dropout on the residual."""
import collections, json, os, random, re, shutil, subprocess, sys, tempfile, warnings
import torch, transformers
from safetensors.torch import save_file

tercio = sys.argv[1]
N = int(sys.argv[2]) if len(sys.argv) > 2 else 200
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
TYPES = {'llama': 'LlamaForCausalLM', 'qwen2': 'Qwen2ForCausalLM', 'qwen3': 'Qwen3ForCausalLM', 'mistral': 'MistralForCausalLM',
         'gemma2': 'Gemma2ForCausalLM', 'gemma3_text': 'Gemma3ForCausalLM', 'olmo2': 'Olmo2ForCausalLM',
         'olmo3': 'Olmo3ForCausalLM', 'smollm3': 'SmolLM3ForCausalLM', 'granite': 'GraniteForCausalLM', 'phi3': 'Phi3ForCausalLM'}
if len(sys.argv) > 4:
    TYPES = {sys.argv[4]: TYPES[sys.argv[4]]}
WRONG = ['x', -1, 0, 2.5, [1], {}, True, 1e30]
transformers.logging.set_verbosity_error()
warnings.filterwarnings('ignore')
torch.set_num_threads(1)


def scaling(r, kind, context):
    """An object of rope_scaling; all kinds are drawn, also those that are refused."""
    return {'default': dict(rope_type='default'), 'linear': dict(rope_type='linear', factor=r.choice([2.0, 8.0])),
            'llama3': dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=context // 2),
            'yarn': {**dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=context // 4),
                     **r.choice([{}, dict(attention_factor=1.3), dict(beta_fast=16.0, beta_slow=2.0), dict(truncate=False),
                                 dict(mscale=0.7, mscale_all_dim=0.5)])},
            'dynamic': dict(rope_type='dynamic', factor=2.0)}[kind]


def base(r, kind):
    layers, heads, context = r.randint(1, 5), 4, r.choice([32, 64])
    c = dict(architectures=[TYPES[kind]], model_type=kind, vocab_size=256, hidden_size=32, intermediate_size=r.choice([24, 40]),
             num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=r.choice([1, 2, 4]),
             max_position_embeddings=context, torch_dtype='float32', use_cache=True, initializer_range=0.5)
    if r.random() < 0.9: c['pad_token_id'] = None      # those of the classes are beyond this vocabulary
    if r.random() < 0.5: c['rms_norm_eps'] = r.choice([1e-6, 1e-5, 1e-2])
    if r.random() < 0.5: c['tie_word_embeddings'] = r.random() < 0.5
    if r.random() < 0.5: c['head_dim'] = r.choice([8, 12, 16])
    if r.random() < 0.2: c.update(attention_dropout=0.0, bos_token_id=1, eos_token_id=2)
    if kind.startswith('gemma'):
        c.setdefault('head_dim', 8)
        if r.random() < 0.7: c['query_pre_attn_scalar'] = r.choice([8, 16, 64])
        for key in ('attn_logit_softcapping', 'final_logit_softcapping'):
            if kind == 'gemma2' and r.random() < 0.5: c[key] = r.choice([0.5, 2.0, 30.0, None])
        if r.random() < 0.3: c['hidden_activation'] = 'gelu_pytorch_tanh'
    elif r.random() < 0.5: c['hidden_act'] = 'silu'
    if kind in ('llama', 'qwen3', 'olmo2', 'olmo3', 'smollm3', 'granite', 'gemma2', 'gemma3_text') and r.random() < 0.5:
        c['attention_bias'] = r.random() < 0.5
    if kind in ('llama', 'smollm3', 'granite') and r.random() < 0.5: c['mlp_bias'] = r.random() < 0.5
    if kind in ('mistral', 'phi3', 'gemma2', 'gemma3_text', 'olmo3') and r.random() < 0.7:
        c['sliding_window'] = r.choice([5, 16, 64, 4096] + ([None] if kind in ('mistral', 'phi3') else []))
    if kind in ('qwen2', 'qwen3', 'smollm3') and r.random() < 0.5:
        c.update(use_sliding_window=r.random() < 0.7, sliding_window=r.choice([5, 16, 64]))
        if r.random() < 0.7 and kind != 'smollm3': c['max_window_layers'] = r.randint(0, layers)
    if kind in ('qwen2', 'qwen3', 'gemma2', 'gemma3_text', 'olmo3', 'smollm3') and r.random() < 0.4:
        c['layer_types'] = [r.choice(['full_attention', 'sliding_attention']) for _ in range(layers)]
        if kind in ('qwen2', 'qwen3', 'smollm3'): c.update(use_sliding_window=True, sliding_window=r.choice([5, 16]))
    if kind == 'gemma3_text' and r.random() < 0.4: c['sliding_window_pattern'] = r.randint(1, 4)
    if kind == 'smollm3':
        if r.random() < 0.5: c['no_rope_layers'] = [r.randint(0, 1) for _ in range(layers)]
        elif r.random() < 0.5: c['no_rope_layer_interval'] = r.randint(1, 4)
    if kind == 'granite':
        for key, values in dict(embedding_multiplier=[12.0, 1], residual_multiplier=[0.22, 0.5], attention_multiplier=[0.1, 0.5],
                                logits_scaling=[6.0, 8]).items():
            if r.random() < 0.6: c[key] = r.choice(values)
    rope(r, kind, c, context)
    return c


def rope(r, kind, c, context):
    kinds = ['default', 'linear', 'llama3', 'yarn', 'dynamic']
    of = scaling(r, r.choice(kinds[:1] if kind == 'phi3' else kinds[:4] + kinds[:1] * 3 + (kinds[4:] if r.random() < 0.2 else [])), context)
    theta, form = r.choice([1e4, 5e5, 100.0]), r.randint(0, 3)
    by_kind = kind in ('gemma3_text', 'olmo3')
    if kind == 'phi3' and r.random() < 0.5: c['partial_rotary_factor'] = r.choice([0.5, 0.75, 1.0])
    if form == 0: return
    if form == 1 and by_kind:
        of.pop('truncate', None)
        c['rope_parameters'] = dict(full_attention=dict(of, rope_theta=theta),
                                    sliding_attention=dict(rope_type='default', rope_theta=r.choice([1e4, 500.0])))
    elif form == 1:
        c['rope_parameters'] = dict(of, rope_theta=theta)
    else:
        if kind != 'olmo3' or r.random() < 0.3: c['rope_theta'] = 5e5 if kind == 'olmo3' else theta
        of.pop('truncate', None) if by_kind else None
        if form == 2 or of['rope_type'] != 'default': c['rope_scaling'] = None if of['rope_type'] == 'default' else of
        if kind == 'gemma3_text' and r.random() < 0.5: c['rope_local_base_freq'] = 500.0
        if c.get('rope_scaling') and r.random() < 0.2: c['rope_scaling']['type'] = c['rope_scaling'].pop('rope_type')
    if r.random() < 0.1 and kind != 'phi3': c['original_max_position_embeddings'] = context // 2


def change(r, c):
    key = r.choice([k for k in c if k not in ('architectures', 'model_type', 'vocab_size', 'initializer_range', 'pad_token_id')])
    how = r.random()
    if how < 0.35: del c[key]
    elif how < 0.55: c[key] = None
    elif how < 0.7: c[key] = r.choice(WRONG)
    elif isinstance(c[key], bool): c[key] = not c[key]
    elif isinstance(c[key], int): c[key] = max(1, c[key] + r.choice([-1, 1, c[key]]))
    elif isinstance(c[key], float): c[key] = c[key] * r.choice([0.5, 2.0])
    elif key in ('hidden_act', 'hidden_activation'): c[key] = r.choice(['silu', 'gelu', 'gelu_pytorch_tanh', 'relu'])


letters = random.Random(SEED)
text = bytes(letters.choice(b'etaoin shrdlu,.') for _ in range(400))


def theirs(folder):
    """The loss by transformers, or why it refuses."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        torch.manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').to(torch.float32).eval()
        with torch.no_grad():
            for p in model.parameters(): p += 0.2 * torch.randn_like(p) * (p.dim() == 1)      # gains and biases, too
        T = config.max_position_embeddings
        if not isinstance(T, int) or isinstance(T, bool) or T < 1: T = 32
        T = min(T, 8192)
        tokens = torch.tensor(list(text))
        total = 0.0
        with torch.no_grad():
            for at in range(0, len(tokens) - 1, T):
                piece = tokens[at:at + T + 1]
                logits = model(input_ids=piece[None, :-1]).logits[0].double()
                total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction='sum').item()
        state = {k: v.contiguous() for k, v in model.state_dict().items()}
        if config.tie_word_embeddings: state.pop('lm_head.weight', None)
        save_file(state, folder + '/model.safetensors', metadata={'format': 'pt'})
        return total / (len(tokens) - 1)
    except Exception as e:
        return str(e).replace('\n', ' ')[:300]


def ours(folder):
    """The loss by Tercio, and why not."""
    got = subprocess.run([tercio, 'eval', folder, '--data', folder + '/text.txt', '--json', '--run.threads=1'],
                         capture_output=True, text=True, timeout=60)
    if got.returncode in (0,): return json.loads(got.stdout)['results'][0]['loss'], ''
    if got.returncode != 2: sys.exit(f'status {got.returncode}: {got.stderr}')
    return None, got.stderr.strip().split('\n')[-1]


bad = 0
for kind in TYPES:
    r, count, why, worst = random.Random(f'{SEED} {kind}'), collections.Counter(), collections.Counter(), 0.0
    for i in range(N):
        folder = tempfile.mkdtemp()
        c = base(r, kind)
        for _ in range(r.choice([0, 0, 1, 1, 2, 3])): change(r, c)
        json.dump(c, open(folder + '/config.json', 'w'))
        open(folder + '/text.txt', 'wb').write(text)
        want = theirs(folder)
        runs = isinstance(want, float) and want == want
        if not runs: save_file({'x': torch.zeros(1)}, folder + '/model.safetensors')
        got, reason = ours(folder)
        accepted = got is not None or (not runs and 'model.safetensors' in reason)       # only the tensors are missing
        count[('runs' if runs else 'refused') + (' accepted' if accepted else '')] += 1
        if runs and not accepted: why[re.sub(r'^.*?config.json: |^tercio: ', '', reason)[:110]] += 1
        off = abs(got - want) / max(want, 1.0) if runs and accepted else 0.0
        worst = max(worst, off)
        if (accepted and not runs) or off > 1e-5 or (runs and 'tensor' in reason):
            bad += 1
            print(f'{kind} {i}: {want} {got} {reason}\n  {json.dumps(c)}', flush=True)
        shutil.rmtree(folder)
    runs = count['runs'] + count['runs accepted']
    share = count['runs accepted'] / max(1, runs)
    print(f'{kind}: {N} drawn, {runs} run by transformers, of which {count["runs accepted"]} accepted ({100 * share:.0f} %), '
          f'losses off by {worst:.1e} at most; {count["refused"]} refused by both', flush=True)
    for reason, n in why.most_common(8): print(f'  {n} {reason}', flush=True)
    bad += share < 0.6
sys.exit(1 if bad else 0)
