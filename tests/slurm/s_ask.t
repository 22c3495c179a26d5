#!/bin/bash
# s_ask.t - README's table of how to ask a run for a checkpoint: each command, as it stands there, is given to runs that
# were started by sbatch, srun, mpirun and alone; they save their step and continue, stop with 86, or stop with 85
# (which train.sbatch answers by a requeue). A job that is too short for --signal makes progress nevertheless.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 2 --cpus 4 --gpus 0
make_text "$shared/text.txt" || skip_all "no text to train on"
run_ini "$shared/text.txt" 1000000 8 100000 1
ranks=(-N2 --ntasks-per-node=2 -c1)

cells() {                            # FIRST-CELL -> the commands of README's row, one per line
  grep -F "| $1 |" "$top/README.md" | awk -F'|' '{ for (i = 3; i <= 5; i++) {
    n = split($i, part, "`"); print (n > 1 ? part[2] : "") } }'
}
mapfile -t any < <(cells anything)
is "${any[*]}" "tercio save OUT tercio save OUT --stop tercio save OUT --requeue" "README has the table of requests"

newest() { "$program" ckpt latest "$out/ckpt" 2> /dev/null | sed 's/.*step-0*//'; }
# Open MPI 5's mpirun becomes prterun.
launcher() { pgrep -o -f "^(${1/#mpirun/mpirun|([^ ]*/)?prterun}) .*--run.out=$out( |\$)"; }

start() {                            # HOW -> $job or $runner, $out, $log; returns when the run trains
  local name=$1-$((++started)) train
  out=$shared/$name log=$shared/$name.log
  train=("$program" train "$shared/run.ini" --run.out="$out")
  case $1 in
    sbatch) submit "$name" "${ranks[@]}" -- ;;
    srun) on_head srun --job-name="$name" --mpi=pmix --kill-on-bad-exit=1 "${ranks[@]}" "${train[@]}" > "$log" 2>&1 & ;;
    mpirun) on_head mpirun --allow-run-as-root --oversubscribe -n 4 "${train[@]}" > "$log" 2>&1 & ;;
    alone) on_head env --default-signal=TERM,HUP,INT,USR2 "${train[@]}" > "$log" 2>&1 & ;;
  esac
  runner=$!
  wait_step "$out" 3 100 || { ok 1 "$name trains"; note_file "$log"; done_testing; }
}

ask() {                              # HOW COMMAND of the table
  local words pids
  mapfile -t pids < <(rank_pids)
  [ "$1" != srun ] || job=$(on_head squeue --noheader --format=%i --name="$(basename "$out")")
  words=${2//OUT/$out}
  words=${words//JOB/$job}
  words=${words/#tercio/$program}
  case $1,$2 in
    *-TERM*PID* | alone,*) words=${words//PID/${pids[-1]}} ;;
    *) words=${words//PID/$(launcher "$1")} ;;
  esac
  case $words in
    kill*) $words ;;
    *) on_head $words ;;
  esac > "$shared/ask.out" 2>&1
  ok $? "$1: $2" || note_file "$shared/ask.out"
}

ends() {                             # HOW STATUS: of the run, which saved its last step
  local got
  if [ "$1" != sbatch ]; then
    wait $runner
    got=$?
  elif [ "$2" = 86 ]; then
    wait_job "$job" 60 > "$shared/state"
    got=$(job_field "$job" ExitCode)
    got=${got%:0}
  else
    requeued() { [ "$(job_field "$job" Restarts)" = 1 ]; }
    until_ok 120 requeued && got=85
  fi
  is "$got" "$2" "... the run ends with $2" || note_file "$log"
  [ "$1,$2" = sbatch,85 ] && { grep -q 'saved and stopped: requeueing' "$log"; ok $? "... and is requeued"; return; }
  is "$(newest)" "$(last_step "$out")" "... its last step is saved"
}

started=0 job=
for how in sbatch srun mpirun alone; do
  case $how in alone) row='one process' ;; *) row="\`$how\`" ;; esac
  mapfile -t own < <(cells "$row")
  is ${#own[@]} 3 "README has a row for $row"
  start "$how"
  ask "$how" "${any[0]}"
  has_saved() { [ "$(newest)" -ge 3 ]; }
  until_ok 120 has_saved
  ok $? "... a checkpoint is there" || note_file "$log"
  before=$(last_step "$out")
  wait_step "$out" $((before + 2)) 60
  ok $? "... and the run continues"
  ask "$how" "${own[1]}"
  ends "$how" 86
  start "$how"
  ask "$how" "${own[2]}"
  ends "$how" 85
  [ "$how" != sbatch ] || on_head scancel "$job"
done
start mpirun
ask mpirun "${any[1]}"
ends mpirun 86
start sbatch
ask sbatch "${any[2]}"
ends sbatch 85
on_head scancel "$job"

# ---- a job that is as long as the time before its end at which Slurm signals it ----
# Slurm would signal at some time in the first minute, and this test might take that signal for its own second one. So
# Slurm is to signal a second before the end, which the script does not see (it reads 300 in its header), and the
# signals come from here.
submit short "${ranks[@]}" -t 5 --signal=B:USR2@1 --
wait_step "$out" 3 100
! grep -q 'warning: sbatch --signal' "$log"
ok $? "-t 5 with --signal=B:USR2@1: no warning about what the header says" || note_file "$log"
on_head scancel --batch --signal=USR2 "$job"
wait_line 'USR2 [0-9]* s after the start of a job of 300 s: saving, then going on; .* --signal=B:USR2@60' 60
ok $? "... a signal in the first half is acted on, with what would fit" || note_file "$log"
wait_line 'saved; starting the ranks again' 60
ok $? "... it saves, and the ranks are started again" || note_file "$log"
before=$(newest)
[ "$before" -ge 3 ]
ok $? "... from the step that was saved ($before)" || note_file "$log"
wait_step "$out" $((before + 5)) 60
ok $? "... and the run makes progress"
tr '\0' '\n' < "/proc/$(rank_pids | head -n 1)/environ" | grep -q "^SLURM_JOB_END_TIME=[0-9]*$"
ok $? "... its ranks know when the job ends"
on_head scancel --batch --signal=USR2 "$job"
requeued() { [ "$(job_field "$job" Restarts)" = 1 ]; }
until_ok 120 requeued
ok $? "... a second signal is a request: the job is requeued" || note_file "$log"
on_head scancel "$job"
done_testing
