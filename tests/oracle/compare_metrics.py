#!/usr/bin/env python3
"""compare_metrics.py RUN DIR FILE - whether run.tensorboard = DIR and run.openmetrics = FILE say what metrics.jsonl in the
folder RUN does, as TensorBoard's and Prometheus' own readers read them. By hand, in a Python that has tensorboard and
prometheus_client. Prints how many figures were compared; status 1: they differ."""
import calendar
import glob
import json
import math
import os
import re
import struct
import sys
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

failed = 0


def complain(text):
    global failed
    failed += 1
    if failed <= 20:
        print("differs:", text)


def numbers(value, names=()):
    """(names on the way, number) of all numbers in a line; a member of a list is named by its name."""
    if isinstance(value, dict):
        for key, word in value.get("not_finite", {}).items():
            yield names + (key,), float(word)
        for key, inner in value.items():
            if key != "not_finite":
                yield from numbers(inner, names + (key,))
    elif isinstance(value, list):
        seen = set()
        for i, member in enumerate(value):
            name = member["name"] if member["name"] not in seen else f"{member['name']} ({i + 1})"
            seen.add(name)
            yield from numbers(member, names + (name,))
    elif isinstance(value, (int, float)):
        yield names, float(value)


def as_float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def compare_events(lines, folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    got = {}
    for tag in events.Tags()["scalars"]:
        for e in events.Scalars(tag):
            if (e.step, tag) in got:
                complain(f"step {e.step} has {tag} twice")
            got[e.step, tag] = (e.value, e.wall_time)
    want = {}
    for line in lines:
        at = calendar.timegm(time.strptime(line["time"], "%Y-%m-%dT%H:%M:%SZ"))
        for names, x in numbers(line):
            want[line["step"], "/".join(names)] = (as_float32(x), at)
    for key in sorted(set(got) | set(want)):
        a, b = want.get(key), got.get(key)
        if not a or not b or not same(a[0], b[0]) or a[1] != b[1]:
            complain(f"{key}: metrics.jsonl {a}, TensorBoard {b}")
    return len(want), len({step for step, _ in want}), len({tag for _, tag in want})


# Which names of a key are labels: (label, place) by the first names.
LABELS = {("comm", "ctl"): [("op", 2)], ("comm",): [("axis", 1), ("op", 2)], ("sources",): [("source", 1)],
          ("val_sources",): [("source", 1)], ("tasks",): [("task", 1)]}


def compare_page(line, path, run):
    text = open(path, encoding="utf-8").read()
    families = list(read_openmetrics(text))
    plain = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in read_text(text) for s in f.samples}
    got = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}
    if repr(sorted(got.items())) != repr(sorted(plain.items())):
        complain("the two readers of Prometheus disagree")
    if len({f.name for f in families}) != len(families) or any(f.type != "gauge" or not f.documentation for f in families):
        complain("a family stands twice, is no gauge, or has no help")
    want = {}
    for names, x in numbers(line):
        labels = LABELS.get(names[:2], LABELS.get(names[:1], []))
        name = "_".join(("tercio",) + tuple(n for i, n in enumerate(names) if i not in [at for _, at in labels]))
        want[name, tuple(sorted([("run", run)] + [(label, names[at]) for label, at in labels]))] = x
    for key in sorted(set(got) | set(want)):
        a, b = want.get(key), got.get(key)
        if a is None or b is None or not same(a, b):
            complain(f"{key}: metrics.jsonl {a}, OpenMetrics {b}")
    units = sum(1 for f in families if f.unit)
    return len(want), len(families), units


run, folder, path = sys.argv[1:]
lines = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"), encoding="utf-8")]
config = json.load(open(os.path.join(run, "run.json"), encoding="utf-8"))["config"]
option = re.search(r"\[run\](?:\n[^\[\n]*)*?\nout = (.*)", config).group(1)
print("TensorBoard: %d figures of %d steps, %d tags, %d files" %
      (*compare_events(lines, folder), len(glob.glob(os.path.join(folder, "*tfevents*")))))
print("OpenMetrics: %d figures, %d families, %d units" % compare_page(lines[-1], path, option))
print("the same" if not failed else f"{failed} differences")
sys.exit(1 if failed else 0)
