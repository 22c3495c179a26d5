"""Published chat templates, as tokenizer_config.json has them; chat.py renders them. By row of src/shards/chat.def: the text, and
where it is from. GENERATION has the parts of the text that are an answer with the token that ends it, and the same with
{% generation %} around it. Those in chat_templates/ are from the PyPI package trl 1.16.0 (Apache 2.0), which has the texts that
models ship to tell them by; its texts of llama3 and gemma are those here."""
import os


def _file(name):
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/chat_templates/{name}.jinja", encoding="utf-8") as f:
        return f.read()


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
    # meta-llama/Llama-3.1-8B-Instruct; meta-llama/Llama-3.2-1B-Instruct, of which the date is today's unless one is given
    "llama3.1": _file("llama3.1"),
    "llama3.2": _file("llama3.2"),
    # Qwen/Qwen2.5-7B-Instruct
    "qwen2.5": _file("qwen2.5"),
    # Qwen/Qwen3-8B
    "qwen3": _file("qwen3"),
    # Qwen/Qwen3-4B-Instruct-2507
    "qwen3-2507": _file("qwen3-2507"),
}
# Texts of which the row has another name.
ROW_OF = {"llama3.2": "llama3.1"}

# What the text has for any turn or the answer's -> the same, where an answer's content and end are a generation.
_ANSWER = "{%% if message['role'] == 'assistant' %%}%s{%% else %%}%s{%% endif %%}"


def _same(turn, head, rest, after=""):
    return turn, _ANSWER % ("{{ " + head + " }}{% generation %}{{ " + rest + " }}{% endgeneration %}" + after, turn)


_CHATML = _same("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
                "'<|im_start|>' + message['role'] + '\n'", "message['content'] + '<|im_end|>'", "{{ '\n' }}")
_LLAMA = [("{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}",
           "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}{% if message['role'] == 'assistant' %}"
           "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}"
           "{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}")]
# Where an answer without calls of tools ends.
_QWEN_END = ("        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
             "        {{- '\\n' }}\n    {%- elif message.role == \"tool\" %}")


def _qwen_answer(content):
    head = "{{- '<|im_start|>' + message.role + '\\n"
    return (head + f"' + {content} }}}}" if not content.startswith("<") else head + content + " }}",
            head + "' }}{% generation %}{{ " + (content if not content.startswith("<") else f"'{content}") +
            " + '<|im_end|>' }}{% endgeneration %}")


GENERATION = {
    "llama3.1": _LLAMA,
    "llama3.2": _LLAMA,
    "qwen2.5": [_same("{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
                      "'<|im_start|>' + message.role + '\\n'", "message.content + '<|im_end|>'", "{{ '\\n' }}")],
    "qwen3": [_qwen_answer("<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n')"),
              _qwen_answer("content"), _QWEN_END],
    "qwen3-2507": [_qwen_answer("content"), _QWEN_END],
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
        assert was in text, (name, was)
        text = text.replace(was, now)
    return text


def fnv(text):
    """tc_chat_hash of the text, without white space at its ends."""
    h = 14695981039346656037
    for byte in text.strip().encode():
        h = (h ^ byte) * 1099511628211 % 2 ** 64
    return h
