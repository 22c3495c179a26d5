#!/bin/bash
# s_recover.t - nodes that are lost or cut off, ranks that hang: the run goes on with the nodes that are
# left, and takes all again when it is requeued. The oracles are the run of one rank (losses) and
# the undisturbed run (bit for bit).
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 3 --cpus 4 --gpus 0

make_text "$shared/text.txt" || skip_all "no text to train on"
PACE=yes run_ini "$shared/text.txt" 40 12 5
ranks=(-N3 --ntasks-per-node=2 -c1)
deadline=8   # ranks that share few cores with other tests are not to pass it
# At the default learning rate the gradient's norm jumps in single steps, and rounding with it.
flags=(--run.deadline=$deadline --train.lr=3e-4)

timeout 900 "$program" train "$shared/run.ini" "${flags[@]}" --run.out="$shared/one" 2> "$shared/err"
ok $? "one rank: $STEPS steps" || { note_file "$shared/err"; done_testing; }

# ---- a lost node ----
submit lost "${ranks[@]}" -- "${flags[@]}"
wait_step "$out" 8 100
cluster kill-node node2
wait_line 'starting the ranks again on node1 node3$' 100
ok $? "lost node: the ranks are started again on the two that are left" || note_file "$log" 40
check "lost node: what tercio said of it is repeated" \
  grep -q '^train.sbatch: .*exit status 8; tercio said last: .* no answer from rank . on node2' "$log"
cluster revive node2                   # now, so that the job still has steps to do when it is signalled
wait_step "$out" 20 100
is "$(job_field "$job" Restarts)" 0 "lost node: without a requeue"
is "$(jq -c '[(.ranks | length), .mesh.dp]' "$out/run.json")" "[4,4]" "lost node: 4 ranks, dp 4, are left of 6"
from=$(resumed | tail -n 1)
is "$(step_after_resume)" $((from + 1)) "lost node: the first step after the checkpoint of step $from is the next"

on_head scancel --batch --signal=USR2 "$job"
is "$(wait_job "$job" 200)" COMPLETED "lost node: the job completes" || note_file "$log" 60
is "$(job_field "$job" Restarts)" 1 "asked to stop, it was requeued once"
is "$(jq -c '[(.ranks | length), .mesh.dp]' "$out/run.json")" "[6,6]" "... and has all three nodes again"
# Beside other tests ranks may pass the deadline: a start more, which is none of this test's.
starts=$(($(grep -c 'tercio\[0\]: model: ' "$log") - 1))
check "... and was started again at least twice" [ $starts -ge 2 ]
is "$(resumed | wc -l)" $starts "... each time from a checkpoint"
each_step_once "lost node"
agrees "lost node against one rank, all steps" "$shared/one" "$out"
is "$(last_mesh)" "pp1 dp6 tp1" "lost node: the last checkpoint is of the whole mesh"

# ---- a lost node, and a requeue: the job does not wait for the node ----
idle() { [[ $(on_head sinfo --noheader --nodes=node2 --format=%T) = idle ]]; }
# TERCIO_MIN_NODES, then without it by the command that the log gives. The first with a deadline so long that Slurm
# (SlurmdTimeout, 30 s) has removed the node by then.
is_pending() { [[ $(job_field "$job" JobState) = PENDING ]]; }
for least in 2 ''; do
  name=requeued${least:-"-by hand"}
  until_ok 200 idle
  MIN_NODES=$least ON_LOSS=requeue submit "fewer$least" "${ranks[@]}" -- "${flags[@]}" ${least:+--run.deadline=60}
  wait_step "$out" 8 100
  cluster kill-node node2
  if [ -z "$least" ]; then
    wait_line 'to let it start with fewer: scontrol update ' 200
    command=$(sed -n 's/.*to let it start with fewer: \(.*\) (TERCIO_MIN.*/\1/p' "$log")
    # On a busy machine one node may answer late.
    check "$name: the log says what the job waits for, and the way on: $command" \
      grep -qxE "scontrol update JobId=$job NumNodes=(1-3 NumTasks=2|2-3 NumTasks=4)" <<< "$command"
    until_ok 200 is_pending                      # a job that runs would become smaller by it
    until_ok 200 on_head $command
  fi
  wait_line ' start 1 on node\(1\|3\|\[1,3\]\):' 200
  ok $? "$name: it starts on the nodes that are left" || { note_file "$log" 40; note "$(on_head scontrol show job "$job")"; }
  is "$(wait_job "$job" 200)" COMPLETED "$name: the job completes" || note_file "$log" 60
  each_step_once "$name"
  cluster revive node2
done

# ---- a rank that hangs ----
until_ok 200 idle
calm_run hang "${flags[@]}" || done_testing
submit stopped "${ranks[@]}" -- "${flags[@]}"
wait_step "$out" 8 100
find_rank 3
ok $? "a rank to stop: 3, process $pid on $host"
began=$SECONDS
kill -STOP "$pid"
wait_line "rank 3 on $host" $((4 * deadline))
ok $? "stopped rank: named with its node after $((SECONDS - began)) s, run.deadline = $deadline" || note_file "$log" 20
wait_line 'starting the ranks again on node1 node2 node3$' 60
ok $? "stopped rank: all are started again" || note_file "$log" 40
gone "$pid"
ok $? "stopped rank: it is dead by then"
check_end "stopped rank" 200
is "$(job_field "$job" Restarts)" 0 "stopped rank: without a requeue"
each_step_once "stopped rank"

# ---- a node that is cut off: its ranks live ----
submit cut "${ranks[@]}" -- "${flags[@]}"
wait_step "$out" 8 100
mapfile -t cut < <(ranks_on node3)
is ${#cut[@]} 2 "two ranks are on the node to be cut off"
began=$SECONDS
cluster cut-node node3
wait_line 'the ranks ended with exit status' 60
ok $? "cut-off node: the others end after $((SECONDS - began)) s" || note_file "$log" 40
wait_line 'starting the ranks again on node1 node2$' 60
ok $? "cut-off node: they are started again without it" || note_file "$log" 40
gone "${cut[@]}"
ok $? "cut-off node: its ranks have ended too"
is "$(wait_job "$job" 200)" COMPLETED "cut-off node: the job completes" || note_file "$log" 60
cluster join-node node3
each_step_once "cut-off node"
agrees "cut-off node against one rank, all steps" "$shared/one" "$out"
is "$(last_mesh)" "pp1 dp4 tp1" "cut-off node: the last checkpoint is of the smaller mesh"
"$program" ckpt verify "$out/ckpt" > "$shared/verify" 2>&1
ok $? "cut-off node: the checkpoint verifies" || note_file "$shared/verify"

# ---- a crash while the controller is away ----
submit away "${ranks[@]}" -- "${flags[@]}"
wait_step "$out" 8 100
mapfile -t all < <(rank_pids)
kill -STOP "${all[@]}"               # fast ranks would end before the controller does
controller=$(pgrep -f "^slurmctld .*$cluster_dir/slurm.conf")
kill -TERM "$controller"             # it then saves its state: killed, it may have forgotten the job
until_ok 120 gone "$controller"
kill_one
kill -CONT "${all[@]}" 2> /dev/null  # one is gone
wait_line 'the controller does not answer: asking again' 200
ok $? "controller away: the script asks again" || note_file "$log" 40
on_head slurmctld -f "$cluster_dir/slurm.conf"
wait_line 'starting the ranks again on node' 200
ok $? "controller away: when it is back the ranks are started again" || note_file "$log" 40
# Which nodes have come back to it by then is left open.
is "$(wait_job "$job" 200)" COMPLETED "controller away: the job completes" || note_file "$log" 60
each_step_once "controller away"
agrees "controller away against one rank, all steps" "$shared/one" "$out"
is "$(job_field "$job" Restarts)" 0 "controller away: without a requeue"
done_testing
