#!/bin/bash
# s_comm.t - `tercio comm --pairs` between nodes, one of which has a slow link: it is named. And the sizes
# that a slow link leaves out.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 3 --cpus 2 --gpus 0

comm() {                             # TASKS-PER-NODE FLAGS... -> $shared/out, $shared/err
  local tasks=$1
  shift
  on_head srun --mpi=pmix -N3 --ntasks-per-node="$tasks" "$program" comm "$@" > "$shared/out" 2> "$shared/err"
}

cluster slow-link node2 20mbit       # so slow that no other load makes a link slower
comm 1 --pairs --max 256K --iters 2
ok $? "a slow link: tercio comm --pairs ends well" || note_file "$shared/err"
is "$(sed -n 's/^slow node: \([^,]*\), .*/\1/p' "$shared/out")" node2 "... the node is named, and no other" ||
  note_file "$shared/out"
is "$(sed -n 's/^\(node[0-9]\) *\(node[0-9]\) .*/\1 \2/p' "$shared/out" | sort | tr '\n' ',')" \
  "node1 node2,node1 node3,node2 node3," "... each pair of nodes is in the table"

comm 2 --pairs --max 256K --iters 2 --json
ok $? "two ranks on each node: status 0" || note_file "$shared/err"
is "$(jq -r '[.of, .rounds, ([.members[].rank] | join(" ")), ([.members[] | select(.slow) | .name] | join(" "))] | join(",")' \
  "$shared/out")" "node,3,0 2 4,node2" "... one of each takes part, the slow node is named" || note_file "$shared/out"
is "$(jq -r '[.pairs[] | select(.slow) | [.a, .b] | join(" ")] | sort | join(",")' "$shared/out")" \
  "node1 node2,node2 node3" "... both pairs of it are slow, and the third is not"

# 64 MiB take half a minute here: they are left out, and reported.
comm 1 --op broadcast,all_reduce --json
ok $? "the default sizes: status 0" || note_file "$shared/err"
grep -q "left out.*all_reduce from [0-9]*, broadcast from [0-9]* bytes; --max 64M measures them" "$shared/err"
ok $? "... the large ones are left out" || note_file "$shared/err"
is "$(jq '([.[].size] | max) < 67108864 and ([.[].size] | min) == 1024 and all(.check == "ok")' "$shared/out")" \
  true "... the small ones are measured"
done_testing
