"""Makes the folders hf-llama (fp32, three shards) and hf-qwen3 (bf16, tied, one file) beside this script: tiny models
as transformers' save_pretrained writes them, which t_hf imports and exports again. By hand, where torch and
transformers are installed."""
import os, shutil
import torch, transformers

here = os.path.dirname(os.path.abspath(__file__))
sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, head_dim=8)
llama3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
MODELS = [
    ('hf-llama', '14KB', torch.float32, transformers.LlamaForCausalLM, transformers.LlamaConfig(
        rope_scaling=llama3, rope_theta=500000.0, rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True, **sizes)),
    ('hf-qwen3', '1GB', torch.bfloat16, transformers.Qwen3ForCausalLM, transformers.Qwen3Config(
        rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=True, **sizes)),
]
torch.manual_seed(1)
for name, shard, dtype, kind, config in MODELS:
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p))
    folder = os.path.join(here, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    os.path.exists(folder + '/generation_config.json') and os.remove(folder + '/generation_config.json')
    print(name, sorted(os.listdir(folder)))
