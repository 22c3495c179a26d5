# lib.sh - what the Slurm tests share: TAP, a cluster of their own, jobs. Sourced by *.t.
#
# A cluster lives in a folder of this test's own and goes down with the test, however it ends.
# TERCIO is the program (default: ./tercio); it is copied to the shared folder, since the
# tree may be in /tmp, which nodes have of their own.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
TERCIO=$(realpath -m "${TERCIO:-./tercio}")
tap_count=0 tap_failed=0
cluster_dir=

ok() {                               # STATUS WHAT: passes if STATUS is 0
  tap_count=$((tap_count + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $tap_count - $2"
  else
    tap_failed=1
    echo "not ok $tap_count - $2"
  fi
  return "$1"
}

is() {                               # GOT WANT WHAT
  [ "$1" = "$2" ]
  ok $? "$3" || note "got:  $1" "want: $2"
}

note() { printf '%s\n' "$@" | sed 's/^/# /'; }
note_file() { [ ! -f "$1" ] || tail -n "${2:-20}" "$1" | sed 's/^/#   /'; }
skip_all() { echo "1..0 # SKIP $*"; exit 0; }
done_testing() { echo "1..$tap_count"; exit $tap_failed; }

# ---- the cluster ----------------------------------------------------------------------

cluster() { timeout "${LIMIT:-120}" "$top/tests/cluster" --dir "$cluster_dir" "$@"; }
on_head() { cluster run head "$@"; }

start_cluster() {                    # OPTIONS of tests/cluster up
  local status
  [ -x "$TERCIO" ] || skip_all "no program at $TERCIO"
  command -v jq >/dev/null || skip_all "jq is not installed"
  cluster_dir=$(mktemp -d "/var/tmp/tercio-test.XXXXXX") || skip_all "no folder in /var/tmp"
  trap 'stop_cluster' EXIT
  trap 'exit 1' INT TERM HUP
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

stop_cluster() {
  [ -n "$cluster_dir" ] || return 0
  LIMIT=60 cluster down
  if [ "${KEEP-}" = yes ]; then note "kept: $cluster_dir"; else rm -rf "$cluster_dir"; fi
}

# ---- jobs -----------------------------------------------------------------------------

# Text for training, about 200 KB of English.
make_text() {                        # FILE
  if command -v bible >/dev/null; then
    bible gen1:1-gen50:26 > "$1"
  else
    cat "$top"/src/*.[ch] > "$1"
  fi
  [ -s "$1" ]
}

submit() {                           # NAME SBATCH-OPTIONS... -- FLAGS... -> $job, $log, $out
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  out=$shared/$name log=$shared/$name.log
  job=$(on_head env TERCIO="$program" TERCIO_RESTART_DELAY=1 \
    TERCIO_QUICK_SECONDS="${QUICK:-10}" sbatch --parsable --output="$log" \
    "${options[@]}" "$shared/bin/train.sbatch" "$shared/run.ini" --run.out="$out" "$@")
  [ -n "$job" ]
}

job_field() {                        # JOB FIELD -> its value by scontrol
  on_head scontrol -o show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1
}

wait_job() {                         # JOB SECONDS: until it has ended -> prints its state
  local i state=
  for ((i = 0; i < $2; i++)); do
    state=$(job_field "$1" JobState)
    case $state in
      COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY) break ;;
    esac
    sleep 1
  done
  echo "$state"
}

last_step() {                        # RUNDIR -> step of the last whole line of the metrics
  tail -n 2 "$1/metrics.jsonl" 2>/dev/null | jq -Rr 'fromjson? | .step' | tail -n 1
}

wait_step() {                        # RUNDIR STEP SECONDS
  local i s
  for ((i = 0; i < $3 * 5; i++)); do
    s=$(last_step "$1")
    [ "${s:-0}" -ge "$2" ] && return 0
    sleep 0.2
  done
  return 1
}

losses() { jq -c '[.step, .loss]' "$1/metrics.jsonl"; }   # RUNDIR
