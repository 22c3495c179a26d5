#!/bin/bash
# s_train.t - a run goes on by itself: a killed rank, lost nodes (the batch host too), a request to
# stop. The oracle is the undisturbed run: same losses, and the same checkpoint bit for bit.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 4 --cpus 4 --gpus 0

make_text "$shared/text.txt" || skip_all "no text to train on"
PACE=yes run_ini "$shared/text.txt" "${STEPS:-60}" 8 10 1
ranks=(-N2 --ntasks-per-node=2 -c2)

calm_run plain || done_testing
jq -s -e '.[-1].loss < .[0].loss - 0.5' "$out/metrics.jsonl" >/dev/null
ok $? "undisturbed: the loss falls"

# A rank that is not there any more, in the middle of a step or of a checkpoint.
submit crash "${ranks[@]}" --
wait_step "$out" 13 100
kill_one
ok $? "kill -9 of a rank"
check_end "killed rank" 200
is "$(starts 'starting the ranks again')" 1 "killed rank: started again in its allocation, once" ||
  note_file "$log" 60
is "$(job_field "$job" Restarts)" 0 "killed rank: without a requeue"

# A request to stop, as the time limit's: save, leave with 85, requeue, finish. Its layout is proved once, before the first
# start. No other checkpoint is made before the last step.
stopped_at() { sed -n 's/.*saved step \([0-9]*\) and stopped on request.*/\1/p' "$log" | head -n 1; }
saved_at_once() {
  saved=$(stopped_at)
  [ "${saved:-0}" -ge 13 ] && [ -d "$out/ckpt/step-$(printf %08d "$saved")" ]
}
PROVE=yes submit stop "${ranks[@]}" -- --ckpt.keep=0 --ckpt.every=1000
wait_step "$out" 13 100
on_head scancel --batch --signal=USR2 "$job"
requeued() { [ "$(job_field "$job" Restarts)" = 1 ]; }
until_ok 120 requeued
saved_at_once
ok $? "USR2: a checkpoint was made at once (step $saved), not at the next interval" || note_file "$log" 40
check_end "USR2" 200
is "$(job_field "$job" Restarts)" 1 "USR2: requeued once"
is "$(grep -c '^equal: this layout' "$log") $(grep -c '^proved before: ' "$log")" "1 1" "TERCIO_PROVE: once, not after the requeue" ||
  note_file "$log" 40
grep -q 'saved and stopped: requeueing' "$log"
ok $? "USR2: the batch script requeued it" || note_file "$log" 40

# A request to end: save, leave, neither requeue nor start again. The next job goes on from there.
submit end "${ranks[@]}" -- --ckpt.keep=0 --ckpt.every=1000
wait_step "$out" 13 100
on_head scancel --batch --signal=TERM "$job"
is "$(wait_job "$job" 100)" FAILED "TERM: the job ends" || note_file "$log" 40
is "$(job_field "$job" ExitCode) $(job_field "$job" Restarts)" "86:0 0" "TERM: with 86, and is not requeued"
saved_at_once
ok $? "TERM: a checkpoint was made at once (step $saved)" || note_file "$log" 40
submit end "${ranks[@]}" -- --ckpt.keep=0
check_end "TERM, submitted again" 200

# Two jobs on two nodes each; one loses its second node and is set to requeue then, the other its
# first, where the batch script runs: once Slurm notices, after SlurmdTimeout, the other node has
# the job requeued. The nodes come back.
ON_LOSS=requeue submit node "${ranks[@]}" -w node1,node2 --
jobs=("$job" "$out" "$log")
submit head "${ranks[@]}" -w node3,node4 --
wait_step "$out" 13 150
wait_step "${jobs[1]}" 13 150
cluster kill-node node2
cluster kill-node node3
both_requeued() { [ "$(job_field "$job" Restarts)$(job_field "${jobs[0]}" Restarts)" = 11 ]; }
until_ok 360 both_requeued
is "$(job_field "$job" Restarts)$(job_field "${jobs[0]}" Restarts)" 11 "lost nodes: both jobs are requeued"
grep -q "the batch script's node is lost: requeueing" "$log"
ok $? "lost first node: the other one had it requeued" || note_file "$log"
cluster revive node2
cluster revive node3
check_end "lost first node" 200
job=${jobs[0]} out=${jobs[1]} log=${jobs[2]}
check_end "lost second node" 200

# A proof that finds a difference ends the job before any rank starts.
{ echo '#!/bin/bash'; echo '[ "$1" != prove ] || set -- "$@" --break 1'; echo 'exec "'"$program"'" "$@"'; } > "$shared/broken"
chmod +x "$shared/broken"
sound=$program program=$shared/broken
PROVE=yes submit broken "${ranks[@]}" --
program=$sound
is "$(wait_job "$job" 60)" FAILED "TERCIO_PROVE: a layout that differs: the job fails"
is "$(grep -c '^DIFFERS' "$log") $(grep -c 'does not compute what one rank computes (see above' "$log")" "1 1" "... and the log says why" ||
  note_file "$log" 40
[ ! -e "$out/metrics.jsonl" ]
ok $? "... before any rank starts"

# Nothing to be gained by starting again: reported, and not requeued.
submit wrong "${ranks[@]}" -- --model.heads=7
is "$(wait_job "$job" 60)" FAILED "a wrong option: the job fails"
is "$(job_field "$job" Restarts)" 0 "a wrong option: it is not requeued"
grep -q 'not requeued' "$log"
ok $? "a wrong option: the log says so"

# Without PMIx each task would be a run of its own, all in one folder.
on_head srun -N2 -n2 -c1 --mpi=none "$program" train "$shared/run.ini" \
  --run.out="$shared/nopmix" > "$shared/nopmix.log" 2>&1
is $? 2 "srun without PMIx is refused" || note_file "$shared/nopmix.log"
is "$(grep -c 'mpi=pmix' "$shared/nopmix.log")" 1 "... and says how to start, once"
[ ! -e "$shared/nopmix" ]
ok $? "... before any file is made"

# The wrapper for people.
on_head env TERCIO="$program" "$shared/bin/tercio-srun" -N2 --ntasks-per-node=1 -c2 \
  "$shared/run.ini" --run.out="$shared/wrap" --train.stop_at=3 > "$shared/wrap.log" 2>&1
ok $? "tercio-srun trains" || note_file "$shared/wrap.log"
is "$(last_step "$shared/wrap")" 3 "tercio-srun: three steps"
done_testing
