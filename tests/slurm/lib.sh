# lib.sh - what the Slurm tests share beside tests/lib.sh: a cluster of their own, jobs. Sourced by *.t.
#
# A cluster has a folder of this test's own and is stopped when the test ends, however that comes.
# TERCIO is the program (default: ./tercio); it is copied to the shared folder, since the
# tree may be in /tmp, which nodes have of their own.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
srcdir=$top
. "$top/tests/lib.sh"
RANDOM=${SEED:-1}
cluster_dir=

# ---- the cluster ----------------------------------------------------------------------

cluster() { timeout "${LIMIT:-600}" "$top/tests/cluster" --dir "$cluster_dir" "$@"; }
on_head() { cluster run head "$@"; }

start_cluster() {                    # OPTIONS of tests/cluster up
  local status
  [ -x "$TERCIO" ] || skip_all "no program at $TERCIO"
  cluster_dir=$(mktemp -d "/var/tmp/tercio-test.XXXXXX") || skip_all "no folder in /var/tmp"
  "$top/tests/cluster" --dir "$cluster_dir" up --owner $$ "$@" 2> "$cluster_dir/up.log"
  status=$?
  if [ $status = 77 ]; then skip_all "$(sed 's/^cluster: //' "$cluster_dir/up.log")"; fi
  if [ $status != 0 ]; then
    ok 1 "the cluster starts"
    note_file "$cluster_dir/up.log"
    note_file "$cluster_dir/head/log"
    done_testing
  fi
  shared=$cluster_dir/shared
  mkdir -p "$shared/bin"
  cp "$TERCIO" "$shared/bin/tercio"
  cp "$top/slurm/train.sbatch" "$top/slurm/tercio-srun" "$shared/bin/"
  program=$shared/bin/tercio
  # Ranks share few cores here: one thread each is quickest.
  export OMP_NUM_THREADS=1
}

cleanup() { stop_cluster; }
stop_cluster() {
  [ -n "$cluster_dir" ] || return 0
  cluster down
  if [ "${KEEP-}" = yes ]; then note "kept: $cluster_dir"; else rm -rf "$cluster_dir"; fi
}

# ---- jobs -----------------------------------------------------------------------------

# Text for training, about 200 KB of English.
make_text() {                        # FILE
  if command -v bible >/dev/null; then
    bible gen1:1-gen50:26 > "$1"
  else
    cat "$top"/src/*/*.[ch] | head -c 200000 > "$1"
  fi
  [ -s "$1" ]
}

# PACE=yes: each step takes 0.1 s longer, so that there is time to disturb it, however fast the machine is.
run_ini() {                          # TEXT STEPS BATCH EVERY [EVAL_BATCHES] -> $shared/run.ini, $STEPS
  STEPS=$2
  cat > "$shared/run.ini" <<END
[model]
preset = tiny
[data]
train = $1
[train]
steps = $2
global_batch = $3
eval_batches = ${5:-0}
[ckpt]
every = $4
[run]
threads = 1
deadline = 60
fault = ${PACE:+pace@1}
END
}

# Slurm 22.05 was seen to lock up while it started a heterogeneous step, before there was a task: then once more.
place() {                            # SRUN-OPTIONS -- FLAGS -> $shared/place.json
  local options=() try status
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  for try in 1 2 3; do
    look_for_ranks &
    on_head timeout --kill-after=20 120 srun --mpi=pmix "${options[@]}" "$program" place --json "$@" \
      > "$shared/place.json" 2> "$shared/place.err"
    status=$?
    kill -TERM $! 2> /dev/null
    wait $!
    [[ $status = @(124|137) && ! -s $shared/place.ranks ]] || return $status
    note "srun has started no task in 100 s: once more"
  done
  return $status
}

look_for_ranks() {                   # -> $shared/place.ranks: those that run after 100 s
  local s=
  trap '[ -z "$s" ] || kill $s; exit' TERM
  : > "$shared/place.ranks"
  sleep 100 &
  s=$!
  wait $s
  pgrep -f "^$program place" > "$shared/place.ranks"
}

get() { jq -r "$1" "$shared/place.json"; }

submit() {                           # NAME SBATCH-OPTIONS... -- FLAGS... -> $job, $log, $out
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  out=$shared/$name log=$shared/$name.log
  job=$(on_head env TERCIO="$program" TERCIO_RESTART_DELAY=1 \
    TERCIO_QUICK_SECONDS="${QUICK:-10}" TERCIO_WATCH_SECONDS=5 TERCIO_ANSWER_SECONDS=24 \
    TERCIO_ON_NODE_LOSS="${ON_LOSS:-shrink}" TERCIO_MIN_NODES="${MIN_NODES-}" TERCIO_PROVE="${PROVE-}" sbatch --parsable --output="$log" \
    "${options[@]}" "$shared/bin/train.sbatch" "$shared/run.ini" --run.out="$out" "$@")
  [ -n "$job" ]
}

job_field() {                        # JOB FIELD -> its value by scontrol
  on_head scontrol -o show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1
}

# SECONDS are of a quiet machine: tests/lib.sh's PATIENCE applies.
wait_job() {                         # JOB SECONDS: until it has ended -> prints its state
  local i state=
  for ((i = 0; i < $2 * PATIENCE; i++)); do
    state=$(job_field "$1" JobState)
    case $state in
      COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY) break ;;
    esac
    sleep 1
  done
  echo "$state"
}

last_step() {                        # RUN -> step of the last whole line of the metrics
  metric step "$1" 2>/dev/null | tail -n 1
}

wait_step() {                        # RUNDIR STEP SECONDS
  local i s
  for ((i = 0; i < $3 * 5 * PATIENCE; i++)); do
    s=$(last_step "$1")
    [ "${s:-0}" -ge "$2" ] && return 0
    sleep 0.2
  done
  return 1
}

losses() { jq -c '[.step, .loss]' "$1/metrics.jsonl"; }   # RUN

starts() { grep -c "$1" "$log"; }    # TEXT of the log

wait_line() {                        # PATTERN SECONDS: until the log has it
  local i
  for ((i = 0; i < $2 * 5 * PATIENCE; i++)); do
    grep -q -e "$1" "$log" 2>/dev/null && return 0
    sleep 0.2
  done
  return 1
}

resumed() { grep -o 'resumed from .*step [0-9]*' "$log" | sed 's/.*step //'; }

step_after_resume() {                # -> the step of the first line of progress after the last resume
  tac "$log" | sed '/resumed from/q' | grep -o '^step *[0-9]*' | tail -n 1 | tr -dc 0-9
}

each_step_once() {                   # WHAT: of the run in $out
  is "$(metric step "$out" | tr '\n' ' ')" "$(seq "$STEPS" | tr '\n' ' ')" \
    "$1: metrics.jsonl has each step once"
}

last_mesh() { jq -r .mesh "$("$program" ckpt latest "$out/ckpt")/manifest.json"; }

of_process() { tr '\0' '\n' < "/proc/$1/environ" | sed -n "s/^$2=//p"; }   # PID VARIABLE
rank_pids() { pgrep -f "^$program train.*--run.out=$out( |\$)"; }

find_rank() {                        # RANK of the run in $out -> $pid, $host
  for pid in $(rank_pids); do
    host=$(of_process "$pid" SLURMD_NODENAME)
    [ "$(of_process "$pid" SLURM_PROCID)" = "$1" ] && [ -n "$host" ] && return 0
  done
  return 1
}

ranks_on() {                         # NODE -> pids of the run in $out
  local p
  for p in $(rank_pids); do [ "$(of_process "$p" SLURMD_NODENAME)" != "$1" ] || echo "$p"; done
}

gone() {                             # PID...: none is running, except as a zombie
  local p
  for p; do
    [ ! -e "/proc/$p" ] || grep -q '^State:.Z' "/proc/$p/status" || return 1
  done
}

# ---- equal runs -----------------------------------------------------------------------

agrees() {                           # WHAT ONE-RANK-RUN RUN: the same losses and norms, but for rounding
  local l n
  l=$(worst loss "$2" "$3")
  n=$(worst grad_norm "$2" "$3")
  below "$l" 5e-6 && below "$n" 1e-5
  ok $? "$1: loss within $l, gradient norm $n"
}

calm_run() {                         # NAME FLAGS...: what disturbed runs must equal -> $calm
  local name=$1
  shift
  submit "calm-$name" "${ranks[@]}" -- "$@"
  ok $? "$name, undisturbed: sbatch takes the template" || return 1
  is "$(wait_job "$job" 600)" COMPLETED "$name, undisturbed: the job completes" || note_file "$log" 40
  calm=$out
  is "$(losses "$calm" | wc -l)" "$STEPS" "$name, undisturbed: a line for each of $STEPS steps"
}

kill_one() {                         # SIGKILL of a random rank of the run in $out
  local pids
  mapfile -t pids < <(rank_pids)
  [ ${#pids[@]} -gt 0 ] && kill -KILL "${pids[RANDOM % ${#pids[@]}]}"
}

check_end() {                        # WHAT SECONDS: $job ended well, $out is the undisturbed run's equal
  is "$(wait_job "$job" "$2")" COMPLETED "$1: the job completes by itself" || note_file "$log" 60
  same_end "$1"
}

same_end() {                         # WHAT: $out is the undisturbed run's equal
  is "$(last_step "$out")" "$STEPS" "$1: all steps are done" ||
    { note_file "$log" 60; note "$(on_head scontrol show job "$job" | grep -E 'State|Time|Restarts')"; }
  diff <(losses "$out") <(losses "$calm") > "$shared/diff.out"
  ok $? "$1: every loss is the undisturbed run's" || note_file "$shared/diff.out"
  timeout 900 "$program" ckpt diff "$out/ckpt" "$calm/ckpt" > "$shared/diff.out" 2>&1
  ok $? "$1: weights and optimizer state equal the undisturbed run's bit for bit: $(tail -n 1 "$shared/diff.out")" ||
    note_file "$shared/diff.out"
}
