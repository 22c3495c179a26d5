"""Whether transformers' generate stops at the end token of an exported folder. Prints its eos_token, the number of new
tokens where the third is the end token, and whether text comes back from its tokens.

usage: hf_end.py FOLDER"""
import sys
import torch, transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
folder = sys.argv[1]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
text = 'the text , and a space'
prompt = tokenizer(text, return_tensors='pt')['input_ids']


def third_is_end(ids, scores):
    if ids.shape[1] == prompt.shape[1] + 2:
        scores[:, tokenizer.eos_token_id] = 1e9
    else:
        scores[:, tokenizer.eos_token_id] = -1e9
    return scores


with torch.no_grad():
    out = model.generate(prompt, max_new_tokens=9, do_sample=False,
                         logits_processor=transformers.LogitsProcessorList([third_is_end]))
back = tokenizer.decode(prompt[0], skip_special_tokens=True) == text
print(tokenizer.eos_token, out.shape[1] - prompt.shape[1], 'same' if back else 'other')
