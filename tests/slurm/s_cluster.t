#!/bin/bash
# s_cluster.t - the test cluster itself: nodes are apart, a lost node is lost, nothing is left
# behind. If this fails, the results of the other Slurm tests mean nothing.
. "$(dirname "$0")/lib.sh"
before=$(wc -l < /proc/self/mountinfo)
start_cluster --nodes 2 --cpus 2 --gpus 0

is "$(on_head srun -N2 --ntasks-per-node=1 hostname | sort | tr '\n' ' ')" "node1 node2 " "srun reaches both nodes"
mine=s_cluster.$$
cluster run node1 touch /tmp/$mine /dev/shm/$mine
[ ! -e /tmp/$mine ] && ! cluster run node2 test -e /tmp/$mine && ! cluster run node2 test -e /dev/shm/$mine
ok $? "each node has its own /tmp and /dev/shm"
cluster run node1 touch theirs && cluster run node2 test -e "$shared/theirs"
ok $? "the shared folder is shared"
is "$(wc -l < /proc/self/mountinfo)" "$before" "the machine's own mounts are as before"
cluster run node1 sh -c 'exit 7'
is $? 7 "run hands on the exit status"

second() { "$top/tests/cluster" --dir "$cluster_dir.b" "$@"; }
cleanup() { second down; rm -rf "$cluster_dir.b"; stop_cluster; }
second up --nodes 1 --gpus 0 --owner $$ 2>/dev/null
ok $? "a second cluster starts beside it"
is "$(second run head sinfo -h -o %D)" 1 "... and is another one"
second down
is "$(on_head sinfo -h -o %D)" 2 "... whose end does not touch the first"
rm -rf "$cluster_dir.b"

cluster run node2 sleep 1000 2>/dev/null &
sleeps() { pid=$(cluster run node2 pgrep -x sleep); }
until_ok 120 sleeps
outside=$(grep -l '^Name:.sleep$' /proc/[0-9]*/status 2>/dev/null | xargs grep -l "^NSpid:.*[[:space:]]$pid$" | cut -d/ -f3 | head -n 1)
[ -n "$outside" ]
ok $? "a process of node2 is seen from outside"
cluster kill-node node2
[ ! -e "/proc/$outside" ] || grep -q '^State:.Z' "/proc/$outside/status"
ok $? "it dies with its node"
wait
cluster run node2 true 2>/dev/null
ok $((! $?)) "a lost node runs nothing"
cluster revive node2
is "$(on_head srun -w node2 -N1 -n1 hostname)" node2 "a revived node takes work again"
mounted=$(cluster run node1 readlink /proc/1/ns/mnt)
cluster down
[ "$(readlink -q /proc/[0-9]*/ns/mnt | grep -cF "$mounted")" = 0 ]
ok $? "after down no process of a node is left"
done_testing
