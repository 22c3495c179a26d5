#!/bin/bash
# s_save.t - a run is ended from outside at random moments and started again, by sbatch, srun and mpirun in
# turn. Where the ranks have time to save, no step is lost; where they are killed, at most the interval between
# checkpoints and the steps that a checkpoint takes. At the end losses, weights and optimizer state are those of an
# undisturbed run bit for bit.
#
#   TERCIO=build/tercio tests/slurm/s_save.t [--full] [SEED]
#
# Then starts of 1, 4 and 8 ranks are ended by srun, at random moments before and after their first step: each ends, and
# leaves no file half made.
#
# --full: 54 moments, with a GraceTime of 30 s, and 360 starts, 20 to 40 minutes; otherwise 4 or 5, whose kinds the seed
# chooses, and 6 starts. The seed is printed; SEED=N repeats a run.
. "$(dirname "$0")/lib.sh"
full=no grace=4
[ "${1-}" != --full ] || { full=yes grace=30 SEED=${SEED:-$("$top/tests/fresh-seed")}; shift; }
seed=${1:-${SEED:-1}}
RANDOM=$seed
note "seed $seed"
start_cluster --nodes 2 --cpus 4 --gpus 0 --preempt $grace
make_text "$shared/text.txt" || skip_all "no text to train on"
every=10
run_ini "$shared/text.txt" 1000000 8 $every 1
ranks=(-N2 --ntasks-per-node=2 -c2)
steady=(--train.schedule=constant --train.warmup=5 --run.sums=coordinates)      # mpirun has all ranks on one node
out=$shared/run log=$shared/run.log
exec {never}<> <(:)                    # to wait by `read`: a sleep would take longer to start

# ---- starts and ends of the run ------------------------------------------------------------------

newest() { "$program" ckpt latest "$out/ckpt" 2> /dev/null | sed 's/.*step-0*//'; }
begun() { grep -c 'resumed from\|: starting at step 0' "$log" 2> /dev/null; }
saves() { grep -c 'saved step [0-9]* and stopped' "$log"; }
ended() { [ -z "$(rank_pids)" ]; }

start() {                            # sbatch|srun|mpirun [PARTITION] -> $how, $job or $runner
  local before
  before=$(begun)
  how=$1
  local train=("$program" train "$shared/run.ini" --run.out="$out" "${steady[@]}")
  case $how in
    sbatch) submit run "${ranks[@]}" -p "${2:-main}" -- "${steady[@]}" ;;
    srun) LIMIT=600 on_head env --default-signal=INT srun --mpi=pmix --kill-on-bad-exit=1 "${ranks[@]}" \
      "${train[@]}" >> "$log" 2>&1 & ;;
    tercio-srun) LIMIT=600 on_head env --default-signal=INT TERCIO="$program" "$shared/bin/tercio-srun" "${ranks[@]}" \
      "${train[@]:2}" >> "$log" 2>&1 & ;;
    mpirun) LIMIT=600 on_head env --default-signal=INT mpirun --allow-run-as-root --oversubscribe -n 4 \
      "${train[@]}" >> "$log" 2>&1 & ;;
  esac
  runner=$!
  await_moment "${before:-0}"
}

# Until the run has begun again after BEFORE starts, and done some steps: then any moment of a step.
await_moment() {                     # BEFORE
  local i n_begun
  for ((i = 0; i < 150 * PATIENCE; i++)); do
    n_begun=$(begun)
    [ "${n_begun:-0}" -gt "$1" ] && break
    read -rt 0.2 -u "$never"
  done
  from=$(grep 'resumed from\|: starting at step 0' "$log" | tail -n 1 | sed 's/.*step //')
  wait_step "$out" $((from + 1 + RANDOM % 14)) 60 || { ok 1 "the run goes on after step $from"; note_file "$log" 40; done_testing; }
  read -rt "0.$((RANDOM % 3))$((RANDOM % 10))" -u "$never"
}

# Open MPI 5's mpirun becomes prterun.
launcher() {
  local name=${how/#mpirun/mpirun|([^ ]*/)?prterun}
  pgrep -o -f "^(${name/#tercio-srun/[^ ]*bash [^ ]*tercio-srun}) .*--run.out=$out( |\$)"
}

# What an end did. The ranks had time if they say what they saved.
table=() moments=0 killed=0 wrong=0
record() {                           # WHAT GOT-STATUS WANT-STATUS SAVES-BEFORE
  local last saved lost verdict=right
  last=$(last_step "$out") saved=$(newest)
  lost=$((last - ${saved:-0}))
  moments=$((moments + 1))
  [ "$2" = "$3" ] || verdict="WRONG: want status $3"
  if [ "$(saves)" -gt "$4" ]; then
    [ $lost = 0 ] || verdict="WRONG: had time to save"
  else
    killed=$((killed + 1))
    ((lost < 2 * every)) || verdict="WRONG: more than the interval"
  fi
  [ "$verdict" = right ] || wrong=$((wrong + 1))
  table+=("$(printf '%-28s %-16s after step %5d, saved %5d, lost %2d  %s' "$1" "$2" "$last" "${saved:-0}" $lost "$verdict")")
}

job_status() { echo "$(wait_job "$job" 60) $(job_field "$job" ExitCode)"; }

# ---- the kinds of ends ---------------------------------------------------------------------------

scancelled() {
  local before
  before=$(saves)
  on_head scancel "$job"
  until_ok 120 ended
  record scancel "$(wait_job "$job" 60)" CANCELLED "$before"
}

# Slurm requeues the job; later it is cancelled at another moment.
requeued_by() {                      # WHAT COMMAND...
  local before begins what=$1
  before=$(saves) begins=$(begun)
  shift
  on_head "$@" > "$shared/requeue.out" 2>&1
  until_ok 120 ended
  record "$what" "$(until_ok 120 is_requeued && echo requeued)" requeued "$before"
  await_moment "$begins"
  scancelled
}
is_requeued() { [ "$(job_field "$job" Restarts)" = 1 ]; }

requeue() { start sbatch; requeued_by "scontrol requeue" scontrol requeue "$job"; }
preempt() {                          # PARTITION SECONDS
  start sbatch "$1"
  requeued_by "preemption, GraceTime $2" sbatch -p urgent -N2 --exclusive -t 1 --output=/dev/null --wrap=true
}

# srun kills its ranks at a second one that comes within a second, unless they have saved by then.
interrupt_srun() {
  local before pid status want=137
  start srun
  before=$(saves) pid=$(launcher)
  while kill -INT "$pid" 2> /dev/null; do read -rt 0.3 -u "$never"; done
  wait "$runner"
  status=$?
  [ $status != 86 ] || [ "$(saves)" -le "$before" ] || want=86
  record "Ctrl-C twice, srun" $status $want "$before"
}

interrupt_wrapper() {                # a second one would kill the ranks; before they have heard of the first, too
  local before
  start tercio-srun
  before=$(saves)
  kill -INT "$(launcher)"
  wait "$runner"
  record "Ctrl-C, tercio-srun" $? 86 "$before"
}

interrupt_mpirun() {                 # its own status, which releases of Open MPI choose differently
  local before status
  start mpirun
  before=$(saves)
  kill -INT "$(launcher)"
  wait "$runner"
  status=$?
  until_ok 60 ended
  record "Ctrl-C, mpirun ($status)" "$([ $status != 0 ] && echo failed)" failed "$before"
}

term_rank() {                        # sbatch|srun|mpirun
  local before pids
  start "$1"
  before=$(saves)
  mapfile -t pids < <(rank_pids)
  kill -TERM "${pids[RANDOM % ${#pids[@]}]}"
  if [ "$1" = sbatch ]; then
    record "TERM to a rank, sbatch" "$(job_status)" "FAILED 86:0" "$before"
  else
    wait "$runner"
    record "TERM to a rank, $1" $? 86 "$before"
  fi
}

# ---- all of them ---------------------------------------------------------------------------------

kinds=(requeue "preempt grace $grace" "preempt grace0 0" interrupt_srun interrupt_mpirun "term_rank sbatch"
  "term_rank srun" "term_rank mpirun" interrupt_wrapper)
times=(0 0 0 0 0 0 0 0 1)
if [ $full = yes ]; then
  times=(6 6 6 5 5 2 2 2 2)            # 54 moments: each of the first three kinds has a second one, scancel
else
  times[RANDOM % 3]=1
  times[RANDOM % 2 + 3]=1
  times[RANDOM % 3 + 5]=1
fi
for i in "${!kinds[@]}"; do
  for ((n = times[i]; n > 0; n--)); do printf '%s\n' "${kinds[i]}"; done
done | shuf --random-source=<(yes $seed) > "$shared/order"
while read -r kind <&3; do $kind; done 3< "$shared/order"

note "${table[@]}"
is $wrong 0 "$moments moments: each has the documented status and loses what it may" || note_file "$log" 60
[ $killed -lt $moments ]
ok $? "the ranks had time to save at $((moments - killed)) of them"

STEPS=$(($(newest) + 5))
submit run "${ranks[@]}" -- "${steady[@]}" --train.stop_at=$STEPS
disturbed=("$job" "$out" "$log")
is "$(wait_job "$job" 100)" COMPLETED "the run goes on to step $STEPS"
calm_run save "${steady[@]}" --train.stop_at=$STEPS || done_testing
job=${disturbed[0]} out=${disturbed[1]} log=${disturbed[2]}
same_end "ended $moments times"
"$program" ckpt verify "$out/ckpt" > "$shared/verify" 2>&1
ok $? "all checkpoints verify" || note_file "$shared/verify"

# ---- starts --------------------------------------------------------------------------------------

out=$shared/early how=srun bad=''
whole='metrics\.jsonl|run\.json|ckpt(/step-[0-9]{8}(/(manifest\.json|rank-[0-9]{5}\.h5))?|/\.run-[0-9]{8}(/(beat|owner|ended))?|/\.starts)?'
declare -A ends longest
begin_early() {                      # RANKS
  local of=(-N2 --ntasks-per-node=$(($1 / 2)) -c1)
  [ "$1" != 1 ] || of=(-N1 -n1 -c1)
  rm -rf "$out"
  LIMIT=600 on_head env --default-signal=INT,TERM,HUP --block-signal=USR2 srun --mpi=pmix --kill-on-bad-exit=1 \
    "${of[@]}" "$program" train "$shared/run.ini" --train.global_batch=8 --run.out="$out" > "$shared/early.log" 2>&1 &
  runner=$!
}
# INT twice or USR2 to srun, TERM or HUP to all ranks that there are (to srun, if there are none). And again every 10 s,
# since srun may lose one that comes while it starts the ranks.
send() {                             # SIGNAL PID...
  local signal=$1
  shift
  kill -"$signal" "$@" 2> /dev/null || return
  [ "$signal" != INT ] || { sleep 0.3; kill -INT "$@" 2> /dev/null; }
}
again() { while sleep 10 && send "$@"; do :; done; }
early() {                            # RANKS SIGNAL MOST-MS
  local at=$((RANDOM * 8 % ($3 + 1))) to t0 got left resend
  begin_early "$1"
  read -rt "$(printf '%d.%03d' $((at / 1000)) $((at % 1000)))" -u "$never"
  until_or_gone $runner launcher > "$shared/to"
  to=$(tail -n 1 "$shared/to")
  case $2 in TERM | HUP) left=$(rank_pids); to=${left:-$to} ;; esac
  t0=$(date +%s%N)
  send "$2" $to
  again "$2" $to & resend=$!
  wait $runner
  got=$?
  kill $resend 2> /dev/null
  until_ok 60 ended || bad="$bad; ranks are left"
  t0=$((($(date +%s%N) - t0) / 1000000))
  longest[$2]=$((t0 > ${longest[$2]-0} ? t0 : ${longest[$2]-0}))
  ends[$2:$got]=$((${ends[$2:$got]-0} + 1))
  case $got in 0 | 124) bad="$bad; $1 ranks, $2 after $at ms: status $got" ;; esac       # 124: it went on for 600 s
  # Ranks that srun kills (137) leave what they were making to the next start.
  [ ! -d "$out" ] || left=$(cd "$out" && find . -mindepth 1 -printf '%P\n' | grep -vxE "$whole" |
    if [ $got = 137 ]; then grep -vE '^ckpt/\.run-[0-9]*/\.(tmp-step|try)-'; else cat; fi)
  [ ! -d "$out" ] || [ -z "$left" ] || bad="$bad; $1 ranks, $2 after $at ms, status $got: leaves $left"
}
n=0
for size in 1 4 8; do
  t0=$(date +%s%N)
  begin_early $size
  until_ok 120 [ -s "$out/metrics.jsonl" ]
  most=$((($(date +%s%N) - t0) / 1000000 * 5 / 4))
  kill -USR2 "$(launcher)"
  wait $runner
  for one in INT:100:1 USR2:10:1 TERM:5:0 HUP:5:0; do
    IFS=: read -r name many few <<< "$one"
    [ $full = yes ] || many=$few
    for ((i = 0; i < many; i++)); do early $size $name $most; n=$((n + 1)); done
  done
done
is "$bad" '' "$n starts under srun: a signal ends each, and no file is half made"
for s in "${!longest[@]}"; do note "$s: at most ${longest[$s]} ms"; done
for s in "${!ends[@]}"; do note "$s: ${ends[$s]} starts"; done
done_testing
