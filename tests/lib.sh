# lib.sh - what the tests in shell share: TAP, the program on ranks, the figures of runs. Sourced by
# scripts for sh and for bash:
#
#   . "$(dirname "$0")/../lib.sh"
#
# It sets TERCIO (the program's absolute path; ./tercio if it was not set), src (the source tree) and
# dir, a folder of this test, which goes away with it. A test prints TAP: one check after the other, then
# done_testing. What it starts in the background goes into $pids, and what else it has to undo into a
# function `cleanup`: both are done at its end, however that comes.
TERCIO=${TERCIO:-./tercio}
case $TERCIO in /*) ;; *) TERCIO=$PWD/$TERCIO ;; esac
src=$(cd "${srcdir:-.}" && pwd)
pids=
cleanup() { :; }
# A subshell that a signal ends as soon as it has been forked may still have these traps: what is to be undone is not its.
at_exit() {
  local p
  [ "${BASHPID:-$$}" = $$ ] || return
  cleanup
  for p in $pids; do
    kill -CONT "$p"
    kill -KILL "$p"
  done 2> /dev/null
  rm -rf "$dir"
}
dir=$(mktemp -d) || exit 1
trap at_exit EXIT
trap 'exit 1' INT TERM HUP
# A test is no job of Slurm, even where it runs in one.
unset SLURM_JOB_ID SLURM_JOB_START_TIME SLURM_JOB_END_TIME

# ---- TAP ----------------------------------------------------------------------------------------
count=0 failed=0

ok() {                           # STATUS WHAT: a check that passes if STATUS is 0; returns STATUS
  count=$((count + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $count - $2"
  else
    failed=1
    echo "not ok $count - $2"
  fi
  return "$1"
}

# WHAT COMMAND...: a check that passes if the command succeeds. If not, it shows what the command
# wrote, and what the test keeps in $dir/out and $dir/err: stdout and stderr of the program.
check() {
  local what="$1" file
  shift
  "$@" > "$dir/check" 2>&1
  ok $? "$what" && return
  for file in check out err; do note_file "$dir/$file"; done
  return 1
}

is() {                           # GOT WANT [WHAT]: whether they are equal; with WHAT as a check
  if [ $# = 3 ]; then check "$3" is "$1" "$2"; return; fi
  [ "$1" = "$2" ] && return
  printf "got:  %s\nwant: %s\n" "$1" "$2"
  return 1
}

note() { printf '%s\n' "$@" | sed 's/^/# /'; }
note_file() {                    # FILE [LINES]: its last lines (20), but for lines of progress
  [ ! -f "$1" ] || grep -av '^step  *[0-9]*/' "$1" | tail -n "${2:-20}" | sed 's/^/#   /'
}
skip() {                         # WHAT WHY
  count=$((count + 1))
  echo "ok $count - $1 # SKIP $2"
}
skip_all() { echo "1..0 # SKIP $*"; exit 0; }
bail_out() { echo "Bail out! $*"; exit 1; }
done_testing() { echo "1..$count"; exit $failed; }

command -v jq > /dev/null || bail_out "jq is not installed (examples/install-debian tests)"

# ---- the program on ranks -----------------------------------------------------------------------

# mpirun of Open MPI 4.1 and 5, on as many ranks as a test wants, as any user. `$mpirun -n N COMMAND`.
mpirun="${MPIRUN:-mpirun} --oversubscribe --allow-run-as-root"
mpi_flags=

# COMMAND...: within $limit_s seconds (600), so that what hangs ends; nothing is expected to take that long.
limited() { timeout --kill-after=10 "${limit_s:-600}" "$@"; }

mpi() {                          # N COMMAND...: on N processes, with $mpi_flags
  local n="$1"
  shift
  limited $mpirun $mpi_flags -n "$n" "$@"
}

# What a run says of itself at its start and its end, for grep.
introduction='^tercio[^ ]*: \(\(model\|batch\|ranks\|layout\|annotations\|output\|data\|weights\|rate\|precision\|checkpoints\|done\|to look at it\): \|no checkpoint in \|ckpt.resume = no: \)'

# Options for a small model.
small_model() {                  # LAYERS HIDDEN HEADS CONTEXT [VOCABULARY]
  echo "--model.layers=$1 --model.hidden=$2 --model.heads=$3 --model.context=$4 --model.vocab=${5:-256}"
}

# What makes small_model one of a family: with 4 heads, keys and values are of 2.
families="gpt2 llama gemma3"
family_options() {               # NAME
  case $1 in
    gpt2)  ;;
    llama) echo "--model.family=llama --model.kv_heads=2 --model.rope_scaling=llama3:8:1:4:16" ;;
    qwen3) echo "--model.family=qwen3 --model.kv_heads=2 --model.head_dim=32 --model.tied=yes" ;;
    mistral) echo "--model.family=mistral --model.kv_heads=2 --model.pattern=S --model.window=5" ;;
    gemma3) echo "--model.family=gemma3 --model.kv_heads=2 --model.head_dim=32 --model.pattern=SF --model.window=5
      --model.attn_scale=0.125 --model.logit_cap=5" ;;
    *)     bail_out "no family $1: $families" ;;
  esac
}

ranks_of() {                     # RUN -> pids of the ranks whose --run.out it is; no launcher's
  ps -eo pid=,args= | awk -v program="$TERCIO" -v out="--run.out=$1" '
    $2 == program { for (i = 3; i <= NF; i++) if ($i == out) { print $1; next } }'
}
rank_of() {                      # RUN RANK -> its pid, under mpirun
  local p
  for p in $(ranks_of "$1"); do
    ! tr '\0' '\n' 2> /dev/null < "/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$2" || echo "$p"
  done
}

# Waits for an event. The limits are against hangs: no result depends on them. SECONDS are of a quiet machine: any other
# may take PATIENCE times as long.
PATIENCE=${PATIENCE:-5}
until_ok() {                     # SECONDS COMMAND...: tries it until it succeeds, 50 times a second at most
  local tries=$(($1 * PATIENCE * 50))
  shift
  until "$@" 2> /dev/null; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || return 1
    sleep 0.02
  done
}
until_or_gone() {                # PID COMMAND...: tries it until it succeeds or the process has ended
  local pid="$1"
  shift
  until "$@" 2> /dev/null; do
    kill -0 "$pid" 2> /dev/null || return 1
    sleep 0.02
  done
}

# ---- figures of runs ----------------------------------------------------------------------------

# Numbers are written one way, as jq 1.6 and 1.7 do not do by themselves: 0.0 as 0.
plain='if type == "number" then . + 0 else . end'
metric() { jq ".$1 | $plain" "$2/metrics.jsonl"; }        # KEY RUN -> its value in each line, or null
json_values() {                  # KEY FILE -> the values that it has anywhere in a JSON, on one line
  jq -c --arg key "$1" ".. | objects | select(has(\$key)) | .[\$key] | $plain" "$2" | tr '\n' ' '
}
lines() { cat "$1/metrics.jsonl" 2> /dev/null | wc -l; }  # RUN -> how many there are by now

# The largest relative difference between values of two runs; "none" where one has no number, or
# where they have not both N lines.
worst() {                        # KEY A B [N]
  jq -r "\"\\(input_filename) \\(.$1 | $plain)\"" "$2/metrics.jsonl" "$3/metrics.jsonl" |
    awk -v first="$2/metrics.jsonl" -v n="${4-}" '
      $1 == first { a[++na] = $2; next }
      { b[++nb] = $2 }
      END {
        bad = !na || na != nb || (n != "" && na != n)
        for (i = 1; i <= na && !bad; i++) {
          bad = a[i] !~ /^-?[0-9]/ || b[i] !~ /^-?[0-9]/
          d = a[i] == b[i] ? 0 : a[i] == 0 ? 1 : (a[i] - b[i]) / a[i]
          if (d < 0) d = -d
          if (d > w) w = d
        }
        if (bad) print "none"; else printf "%.2e\n", w
      }'
}
below() {                        # X LIMIT: X is a number, and at most LIMIT
  awk -v x="$1" -v limit="$2" 'BEGIN { exit !(x ~ /^-?[0-9]/ && x + 0 <= limit + 0) }'
}
near() {                         # KEY TOLERANCE A B [N]: worst is within the tolerance
  local w
  w=$(worst "$1" "$3" "$4" "${5-}")
  echo "$1: the largest relative difference is $w"
  below "$w" "$2"
}
within() {                       # TOLERANCE A B: two positive numbers, relative to the first
  echo "$2 and $3"
  awk -v tol="$1" -v a="$2" -v b="$3" 'BEGIN { d = a - b; if (d < 0) d = -d
    exit !(a > 0 && b > 0 && d <= tol * a) }'
}
