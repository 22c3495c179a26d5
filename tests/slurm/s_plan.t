#!/bin/bash
# s_plan.t - a plan for the cluster that Slurm describes, its job as it was written, and the run it
# makes: the layout and the memory that were planned, to the byte.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 2 --cpus 4 --gpus 2

make_text "$shared/text.txt" || skip_all "no text to train on"
flags=(--model.preset=tiny --train.global_batch=8 --train.steps=4 --train.eval_batches=1
  --run.threads=1 --run.out="$shared/out")
plan() {
  on_head "$program" plan "${flags[@]}" --from-slurm "$@" > "$shared/plan.out" 2> "$shared/plan.err"
}

plan
is $? 2 "GPUs that Slurm has no name for: status 2"
is "$(grep -c '2 GPUs each, of which Slurm reports nothing: name them with --device' "$shared/plan.err")" 1 \
  "... and what to do" || note_file "$shared/plan.err"
plan --partition man --device cpu
is "$(grep -c 'no partition man; did you mean main?' "$shared/plan.err")" 1 \
  "an unknown partition: the nearest" || note_file "$shared/plan.err"

# Memory that makes it split the state: then the layout is no default.
plan --device cpu --memory 20MB --walltime 0:10:00 --mesh.pp=2 --train.micro_batch=2 --top 2
ok $? "a plan for the partition" || note_file "$shared/plan.err"
is "$(head -n 1 "$shared/plan.out" | cut -d';' -f1)" \
  "Slurm, partition main: 2 nodes of 4 CPUs, 2 GPUs, 8.39 GB" "... of the nodes as they are"
plan --device cpu --memory 20MB --walltime 0:10:00 --mesh.pp=2 --train.micro_batch=2 --top 2 --json \
  --emit sbatch --into "$shared/job" --template "$shared/bin/train.sbatch"
ok $? "the same as a job" || note_file "$shared/plan.err"
cp "$shared/plan.out" "$shared/search.json"
is "$(jq -c '[.nodes, .gpus_per_node]' "$shared/search.json")" "[2,2]" "... for 2 nodes of 2"
is "$(jq -c '.slurm | [.partition, .nodes, .gpus, .cpus, .memory_bytes / 1048576, .walltime_s + 0, .switches]' \
  "$shared/search.json")" '["main",2,2,4,8000,0,0]' "... and what Slurm reported of them"
is "$(grep -A5 '^\[mesh\]' "$shared/job/run.ini" | grep -c '^dp = auto')" 1 \
  "... with dp = auto, for nodes that are lost"
is "$(grep -c -e '^#SBATCH --nodes=2$' -e '^#SBATCH --ntasks-per-node=2$' -e '^#SBATCH --cpus-per-task=2$' \
  -e '^#SBATCH --mem=0$' -e '^#SBATCH --time=0:10:00$' "$shared/job/job.sbatch")" 5 "... with its numbers in the script"

log=$shared/job.log
job=$(on_head env TERCIO="$program" sbatch --parsable --output="$log" "$shared/job/job.sbatch" --data.train="$shared/text.txt")
ok $? "sbatch takes the script"
is "$(wait_job "$job" 120)" COMPLETED "the job completes" || note_file "$log" 40
is "$(last_step "$shared/out")" 4 "... after all its steps"
first() { jq -c ".layouts[0].layout | $1" "$shared/search.json"; }
is "$(jq -c '.mesh | [.pp, .dp, .tp, .mb]' "$shared/out/run.json")" "$(first '[.pp, .dp, .tp, .mb]')" \
  "... on the planned mesh"
is "$(jq -c .system "$shared/out/run.json")" "$(first .data)" "... as the planned system"
is "$(jq -c '[.ranks[].host]' "$shared/out/run.json")" '["node1","node1","node2","node2"]' \
  "... on both nodes"

# All programs of a run and every rank: --explain of the run file that was written.
on_head "$program" plan "$shared/job/run.ini" --nodes 2 --gpus-per-node 2 --device "$shared/job/device.ini" \
  --explain --json > "$shared/explain.json" 2> "$shared/plan.err"
ok $? "the run file is a plan of its own" || note_file "$shared/plan.err"
planned=$(jq -c '[.classes[] | {rank, state: .memory.state, scratch: .memory.scratch, staging: .memory.staging}]' \
  "$shared/explain.json")
is "$(jq -c --argjson want "$planned" '[.ranks[] | select(.rank as $r | $want | any(.rank == $r))
  | {rank, state: .memory.allocated_bytes.state, scratch: .memory.allocated_bytes.scratch,
     staging: .memory.allocated_bytes.staging}]' "$shared/out/run.json")" "$planned" \
  "memory: allocated is what was planned, to the byte"
note "$planned"
is "$(jq '.predicted | .step_s * 1e9 | round' "$shared/out/run.json")" \
  "$(jq '.step_s * 1e9 | round' "$shared/explain.json")" "time: the run predicts what the plan says"
"$program" report "$shared/out" --json > "$shared/report.json" 2> "$shared/err"
ok $? "a report of the run" || note_file "$shared/err"
is "$(jq -c '[.measured.device_bytes, .measured.bytes]' "$shared/report.json")" \
  "$(jq -c '[.predicted.device_bytes, .predicted.bytes]' "$shared/report.json")" \
  "... memory and bytes as predicted"
note "predicted and measured, s: $(jq -c '[.predicted.step_s, .measured.step_s]' "$shared/report.json")"
done_testing
