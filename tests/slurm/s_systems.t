#!/bin/bash
# s_systems.t - rows of the systems table on several nodes: where tp groups lie, losses of tensor
# parallelism and of sharded states, and their recovery after a killed rank. The oracles are
# srun (hosts), the run of one rank (losses) and the undisturbed run (bit for bit).
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 2 --cpus 4 --gpus 0

make_text "$shared/text.txt" || skip_all "no text to train on"
PACE=yes run_ini "$shared/text.txt" 40 8 10 1
ranks=(-N2 --ntasks-per-node=2 -c2)

# How many hosts each tp group touches: one number for each (pp, dp), as "1 1".
hosts_of_groups() {                  # FILE with .ranks
  jq -r '.ranks | group_by([.pp, .dp]) | map([.[].host] | unique | length) | map(tostring) | join(" ")' "$1"
}

# ---- tp stays on its node ----
for order in block cyclic; do
  place "${ranks[@]}" -m $order -- --mesh.tp=2
  ok $? "$order, tp 2 x dp 2: place runs" || note_file "$shared/place.err"
  # Without this the cyclic case could pass by being block.
  want=2
  [ $order = cyclic ] || want=1
  is "$(get '[.ranks[:2][].host] | unique | length')" $want "$order: ranks 0 and 1 are on $want host(s)"
  is "$(get '.ranks | group_by([.pp, .dp]) | map(length | tostring) | join(" ")')" "2 2" \
    "$order: two groups of two ranks"
  is "$(hosts_of_groups "$shared/place.json")" "1 1" "$order: each tp group is on one node"
  on_head srun --mpi=pmix "${ranks[@]}" -m $order "$program" place --mesh.tp=2 \
    > "$shared/table" 2> "$shared/place.err"
  ok $? "$order: place prints a table" || note_file "$shared/place.err"
  note_file "$shared/table"
done

# ---- losses ----
# At the default learning rate the gradient's norm jumps in single steps here, and there rounding
# shows as 1e-5 of it; at this one all layouts agree within 2e-7.
short=(--train.lr=3e-4 --train.stop_at=20 --ckpt.every=0)
timeout 900 "$program" train "$shared/run.ini" "${short[@]}" --run.out="$shared/one" 2> "$shared/err"
ok $? "one rank: 20 steps" || { note_file "$shared/err"; done_testing; }

train() {                            # NAME SRUN-OPTIONS -- FLAGS -> $shared/NAME
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  on_head srun --mpi=pmix "${options[@]}" "$program" train "$shared/run.ini" \
    "${short[@]}" --run.out="$shared/$name" "$@" > "$shared/$name.log" 2>&1
}

train_agrees() {                     # NAME WHAT SRUN-OPTIONS -- FLAGS
  local name=$1 what=$2
  shift 2
  train "$name" "$@"
  ok $? "$what: trains" || note_file "$shared/$name.log"
  is "$(last_step "$shared/$name")" 20 "$what: 20 steps"
  agrees "$what against one rank" "$shared/one" "$shared/$name"
}

train_agrees tp "tp 2 x dp 2, cyclic" "${ranks[@]}" -m cyclic -- --mesh.tp=2
is "$(jq -c '[.mesh.dp, .mesh.tp]' "$shared/tp/run.json")" "[2,2]" "... on a mesh of dp 2 x tp 2"
is "$(hosts_of_groups "$shared/tp/run.json")" "1 1" "... whose tp groups are on one node each"
train_agrees zero3 "zero3 on 4 ranks" "${ranks[@]}" -- --parallel.data=zero3
is "$(jq -r .system "$shared/zero3/run.json")" zero3 "... and it was zero3"

train wide "${ranks[@]}" -- --mesh.tp=4
is $? 6 "tp 4 with 2 ranks a node is refused with exit status 6" || note_file "$shared/wide.log"
is "$(grep -c 'tp = 4 leaves its node: .*tp = 2 would fit, or mesh.tp_across_nodes = yes' \
  "$shared/wide.log")" 1 "... and says once what would fit" || note_file "$shared/wide.log"
[ ! -e "$shared/wide" ]
ok $? "... before any file is made"
train_agrees across "tp 4 across nodes" "${ranks[@]}" -- --mesh.tp=4 --mesh.tp_across_nodes=yes
is "$(hosts_of_groups "$shared/across/run.json")" 2 "... whose one group touches both nodes"

# ---- recovery ----
recovers() {                         # NAME FLAGS
  local name=$1
  shift
  calm_run "$name" "$@" || return
  submit "crash-$name" "${ranks[@]}" -- "$@"
  wait_step "$out" 13 100
  until_ok 60 "$program" ckpt latest "$out/ckpt" > "$shared/latest"       # written in the background
  kill_one
  ok $? "$name: kill -9 of a rank after step $(last_step "$out")"
  check_end "$name, killed rank" 200
  is "$(starts 'starting the ranks again')" 1 "$name: started again in its allocation, once" ||
    note_file "$log" 60
  is "$(grep -c 'resumed from ' "$log")" 1 "$name: went on from a checkpoint"
  is "$(job_field "$job" Restarts)" 0 "$name: without a requeue"
}

recovers zero3 --parallel.data=zero3
recovers tp2 --mesh.tp=2
ranks=(-N2 --ntasks-per-node=4 -c1)
recovers pp2dp2tp2 --mesh.pp=2 --mesh.tp=2 --parallel.data=zero1 --parallel.sequence=yes \
  --train.micro_batch=1
done_testing
