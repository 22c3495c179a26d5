# train.sh - for transcripts of runs: what a run says and writes, but for times and the machine.
set -o pipefail
[ -f text ] || seq 3000 > text
[ -f val ] || seq 3000 3100 > val
small="--model.layers=1 --model.hidden=16 --model.heads=2 --model.context=8 --model.vocab=256
  --data.train=text --data.val=val --train.global_batch=4 --train.steps=6 --train.eval_batches=2
  --run.threads=1 --run.device=ref --ckpt.async=no --ckpt.every=0"

# quiet OUT ARGS...: a run in the folder OUT. train: with a line for each step that was evaluated.
train() {
  local out=$1
  shift
  tercio train $small --run.out="$out" "$@" 2>&1 | sed 's/  [0-9]* tok\/s  left [0-9:]*//'
}
quiet() { train "$@" | { grep -v '^step ' || true; }; }

# lines FILE: of metrics.jsonl. Numbers have four digits, which are the same on every machine.
lines() {
  sed -e 's/"\(tokens_per_s\|step_ms\|wait_ms\|bubble\|stall_ms\|write_ms\)": [0-9][^,}]*/"\1": T/g' \
    -e 's/"slowest": {[^}]*"host"[^}]*}/"slowest": S/' -e 's/\(\.[0-9]\{4\}\)[0-9]*/\1/g' "$1"
}

# facts OUT: of run.json.
facts() {
  grep -v -e '"\(version\|config\|host\|cpus\|device\|uuid\|ckpt_memcpy_ms\|before_arenas\|now\|peak\)"' \
    "$1/run.json"
}

# events FILE: of a trace, track by track.
events() {
  sed -e 's/"ts":[^,]*,"dur":[^,]*,//' -e 's/ on [^,"]*,/,/' -e 's/"clock_error_us":[^}]*/"clock_error_us":T/' "$1" |
    sort -s -t, -k2,3
}
