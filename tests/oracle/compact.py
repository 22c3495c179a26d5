"""Stored numbers as JSON that one can read: a list of numbers or texts is one line."""
import json
import re


def compact(text):
    return re.sub(r'\[\s*([^\[\]{}]*?)\s*\]', lambda m: '[' + re.sub(r',\s+', ', ', m[1]) + ']', text)


def dump(value, f):
    f.write(compact(json.dumps(value, indent=1)) + '\n')
