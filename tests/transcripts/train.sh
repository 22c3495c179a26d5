# train.sh - for transcripts of runs: what a run says and writes, but for times and the machine.
set -o pipefail
[ -f text ] || seq 3000 > text
[ -f val ] || seq 3000 3100 > val
small="--model.layers=1 --model.hidden=16 --model.heads=2 --model.context=8 --model.vocab=256
  --data.train=text --data.val=val --data.order=draws --train.global_batch=4 --train.steps=6 --train.eval_batches=2
  --run.threads=1 --run.device=ref --ckpt.async=no --ckpt.every=0"

# What a run says of itself, at its start and its end.
introduction='^tercio[^ ]*: \(model\|batch\|ranks\|layout\|output\|done\|to look at it\): '

# quiet OUT ARGS...: a run in the folder OUT. train: with what it says of itself and its lines of progress, of which
# those of steps that are not evaluated depend on the time.
train() {
  local out=$1
  shift
  tercio train $small --run.out="$out" "$@" 2>&1 |
    sed -e 's/  [0-9]* tok\/s  left [0-9:]*//' -e 's/\(rank [0-9]*\) on [^ ,:]*/\1 on NODE/g'
}
quiet() { train "$@" | { grep -v -e '^step ' -e "$introduction" || true; }; }

# refused ARGS...: what a run that can't be says, and what it says on two ranks, where that is
# something else. Numbers that depend on the machine's memory are N.
refused() {
  local one two status
  one=$(cannot 1 "$@")
  status=$?
  two=$(cannot 2 "$@")
  [ $? = $status ] || echo "two ranks: another exit status"
  echo "$one"
  [ "$two" = "$one" ] || echo "two ranks: $two"
  return $status
}
# cannot RANKS ARGS...: the same of one number of ranks.
cannot() {
  local ranks=$1
  shift
  tercio train --model.layers=2 --model.hidden=64 --model.heads=4 --model.context=32 --model.vocab=256 \
    --data.train=text --train.global_batch=8 --train.steps=30 --train.eval_batches=2 --run.threads=1 \
    --run.out=refused --run.ranks=$ranks "$@" 2>&1 |
    { grep -v -e "$introduction" || true; } | sed -e 's/[0-9.e+]* GB/N GB/g' -e 's/micro_batch = [0-9]\{3,\} would/micro_batch = N would/'
}
rows() { printf '%s\n' "$@" > rows; }

digits='s/\(\.0*[1-9][0-9]\{3\}\)[0-9]*/\1/g'

# lines FILE: of metrics.jsonl. Numbers have four digits, which are the same on every machine.
lines() {
  sed -e 's/"time": "[^"]*", //' -e 's/"\(tokens_per_s\|step_ms\|wait_ms\|data_ms\|bubble\|stall_ms\|write_ms\)": [0-9][^,}]*/"\1": T/g' \
    -e 's/"slowest": {[^}]*"host"[^}]*}/"slowest": S/' -e "$digits" "$1"
}

# facts OUT: of run.json.
facts() {
  grep -v -e '"\(version\|stack\|config\|host\|pid\|cpus\|device\|uuid\|ckpt_memcpy_ms\|before_arenas\|now\|peak\)"' \
    "$1/run.json" | awk '/^ *"start_comm"/ { start = 1 } /^   }/ { start = 0 }      # texts of varying lengths are sent there
      start && /"send"/ { send = 1 } send && /"bytes"/ { sub(/[0-9]+/, "T"); send = 0 } { print }' | sed "$digits"
}

# events FILE: of a trace, track by track.
events() {
  sed -e 's/"ts":[^,]*,"dur":[^,]*,//' -e 's/ on [^,"]*,/,/' -e 's/"clock_error_us":[^}]*/"clock_error_us":T/' "$1" |
    sort -s -t, -k2,3
}

# as_with_poison ARGS...: a layout's losses, bytes, events and memory; the losses are the same, to
# the last bit, where everything that is freed is filled with NaN.
as_with_poison() {
  set -- --run.ranks=2 --model.layers=4 --train.micro_batch=1 "$@"
  rm -rf plain poison
  quiet plain --run.trace=plain.json --run.trace_steps=1 "$@"
  quiet poison --run.poison=yes "$@"
  lines plain/metrics.jsonl | sed -n 's/, "tokens_per_s.*"comm"//; $p'
  events plain.json | grep -v -e '"cat":"\(control\|checkpoint\)"' -e '"events"' | md5sum
  facts plain | grep -v '"ckpt_dir"' | md5sum
  sed 's/"time": "[^"]*", //; s/"tokens_per_s.*//' plain/metrics.jsonl > one
  sed 's/"time": "[^"]*", //; s/"tokens_per_s.*//' poison/metrics.jsonl > other
  [ -s one ] && cmp one other && echo "the same with poison"
}
