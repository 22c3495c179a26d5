"""Published chat templates, as tokenizer_config.json has them; chat.py renders them. By row of src/shards/chat.def: the text, the
tokens {bos_token, eos_token} that it uses, and where it is from. GENERATION has the part of the text that is an answer with the
token that ends it, and the same with {% generation %} around it."""

TEMPLATES = {
    # Yi, Hermes and others; Hugging Face's guide to chat templates gives it as "ChatML".
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    # Qwen/Qwen2-7B-Instruct
    "qwen2": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    # meta-llama/Meta-Llama-3-8B-Instruct
    "llama3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
        "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
        "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
    # google/gemma-7b-it, google/gemma-2-9b-it
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
        "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"),
    # mistralai/Mistral-7B-Instruct-v0.1, mistralai/Mixtral-8x7B-Instruct-v0.1
    "mistral": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"),
    # HuggingFaceH4/zephyr-7b-beta, the alignment handbook
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"),
}

# What the text has for any turn or the answer's -> the same, where an answer's content and end are a generation.
_ANSWER = "{%% if message['role'] == 'assistant' %%}%s{%% else %%}%s{%% endif %%}"


def _same(turn, head, rest, after=""):
    return turn, _ANSWER % ("{{ " + head + " }}{% generation %}{{ " + rest + " }}{% endgeneration %}" + after, turn)


_CHATML = _same("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
                "'<|im_start|>' + message['role'] + '\n'", "message['content'] + '<|im_end|>'", "{{ '\n' }}")
GENERATION = {
    "chatml": [_CHATML],
    "qwen2": [_CHATML],
    "llama3": [("{{ content }}", _ANSWER % (
        "{% set parts = content.split('<|end_header_id|>\n\n', 1) %}{{ parts[0] + '<|end_header_id|>\n\n' }}"
        "{% generation %}{{ parts[1] }}{% endgeneration %}", "{{ content }}"))],
    "gemma": [_same("{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}",
                    "'<start_of_turn>' + role + '\n'", "message['content'] | trim + '<end_of_turn>'", "{{ '\n' }}")],
    "mistral": [("{{ message['content'] + eos_token}}", "{% generation %}{{ message['content'] + eos_token}}{% endgeneration %}")],
    "zephyr": [("{{ '<|assistant|>\n'  + message['content'] + eos_token }}",
                "{{ '<|assistant|>\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
                "{{ '' }}")],                # a line's end behind a tag would be left out
}


def marked(name):
    """The text with {% generation %}."""
    text = TEMPLATES[name]
    for was, now in GENERATION[name]:
        assert text.count(was) == 1, (name, was)
        text = text.replace(was, now)
    return text


def fnv(text):
    """tc_chat_hash of the text, without white space at its ends."""
    h = 14695981039346656037
    for byte in text.strip().encode():
        h = (h ^ byte) * 1099511628211 % 2 ** 64
    return h
