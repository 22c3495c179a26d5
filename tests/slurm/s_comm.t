#!/bin/bash
# s_comm.t - `tercio comm --pairs` between nodes, one of which has a slow link: it is named. And the sizes
# that a slow link leaves out.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 3 --cpus 4 --gpus 0

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

# What leaves a node, by its interface's counter without headers (66 bytes a packet): the difference of two runs, so that their
# starts do not count. In all_reduce each of M nodes sends 2S(M-1)/M, though each has 4 ranks.
sent() {                             # bytes of each node
  local node
  for node in node1 node2 node3; do
    cluster run "$node" ip -s -j link show eth0 | jq '.[0].stats64.tx | .bytes - 66 * .packets'
  done
}
measure() {                          # OP ITERATIONS
  on_head srun --mpi=pmix -N3 --ntasks-per-node=4 "$program" comm --op "$1" --min 6M --max 6M --iters "$2" \
    < /dev/null > "$shared/out" 2> "$shared/err" || note_file "$shared/err"
}
cluster fast-link node2
while read -r op per_node; do
  before=$(sent); measure "$op" 2
  between=$(sent); measure "$op" 12
  each=$(paste <(echo "$before") <(echo "$between") <(sent) | awk '{ printf "%.0f ", ($3 - 2 * $2 + $1) / 10 }')
  ok "$(awk -v of="$per_node" '{ for (i = 1; i <= 3; i++) if ($i < 0.98 * of || $i > 1.02 * of) exit 1 }' <<< "$each"; echo $?)" \
    "$op of 6 MiB on 3 nodes of 4 ranks: each node sends $per_node bytes, its interface counts $each"
done << 'END'
all_reduce 8388608
reduce_scatter 4194304
all_gather 4194304
END
done_testing
