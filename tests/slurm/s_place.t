#!/bin/bash
# s_place.t - `tercio place` under a real Slurm: ranks, nodes, coordinates and fake GPUs are what
# srun says they are. The oracle is srun itself: each task prints its rank and its host. Then how
# ranks start that can't, or not at once.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 2 --cpus 4 --gpus 2

# Slurm 22.05 was seen to lock up while it started a heterogeneous step: then once more.
srun_tasks() {                       # SRUN-OPTIONS -> "rank host local_rank" lines by rank
  local try
  for try in 1 2 3; do
    on_head timeout --kill-after=5 120 srun "$@" sh -c 'echo $SLURM_PROCID $(hostname) $SLURM_LOCALID' \
      > "$shared/tasks" && break
  done
  sort -n "$shared/tasks"
}

check_map() {                        # WHAT SRUN-OPTIONS
  local what=$1 want
  shift
  want=$(srun_tasks "$@")
  place "$@" --
  ok $? "$what: place runs" || note_file "$shared/place.err"
  is "$(get '.ranks[] | "\(.rank) \(.host) \(.local_rank)"')" "$want" "$what: hosts and local ranks are srun's"
  is "$(get '.world')" "$(wc -l <<<"$want")" "$what: world"
  is "$(get '.nodes')" "$(cut -d' ' -f2 <<<"$want" | sort -u | wc -l)" "$what: number of nodes"
}

check_map "block" -N2 --ntasks-per-node=2 -m block
check_map "cyclic" -N2 --ntasks-per-node=2 -m cyclic
check_map "uneven" -N2 -n3 -m block
check_map "uneven cyclic" -N2 -n3 -m cyclic
check_map "one node" -N1 -n4
check_map "heterogeneous job" -N1 : -N1

# tp stays inside a node although cyclic puts neighbours in rank on different nodes.
place -N2 --ntasks-per-node=2 -m cyclic -- --mesh.tp=2
is "$(get '[.ranks[] | {host, dp}] | unique | length')" 2 "cyclic, tp 2: each dp coordinate is one host"
is "$(get '[.ranks[] | "\(.pp) \(.dp) \(.tp)"] | unique | length')" 4 "cyclic, tp 2: coordinates are distinct"

place -N2 --ntasks-per-node=2 -- --mesh.tp=4
is $? 6 "tp 4 over nodes of 2 ranks is refused with exit status 6"
place -N2 --ntasks-per-node=2 -- --mesh.dp=3
is $? 6 "dp 3 of 4 ranks is refused with exit status 6"

place -N2 --ntasks-per-node=2 --gpus-per-node=2 --
is "$(get '[.ranks[].devices_visible] | unique | join(",")')" 2 "--gpus-per-node=2: all see both"
is "$(get '[.ranks[] | "\(.host) \(.device)"] | unique | length')" 4 "--gpus-per-node=2: a device of its own each"
is "$(get '[.warnings[] | select(test("gpus-per-task"))] | length')" 0 "--gpus-per-node=2: no warning of hidden GPUs"

place -N2 --ntasks-per-node=2 --gpus-per-task=1 --
is "$(get '[.ranks[].devices_visible] | unique | join(",")')" 1 "--gpus-per-task=1: each sees one"
is "$(get '[.warnings[] | select(test("gpus-per-task"))] | length')" 1 "--gpus-per-task=1: the warning says so"

# GPUs with a place: the same on every node, one a socket; device files, topology and the driver's
# files are made up, what each task sees is Slurm's.
. "$top/tests/mpi/gpu_node.sh"
gpu_node "$shared" 10 20
export HWLOC_XMLFILE=$shared/node.xml HWLOC_THISSYSTEM=0 TERCIO_SYSROOT=$shared/root
for how in --gpus-per-node=2 --gpus-per-task=1; do
  place -N2 --ntasks-per-node=2 $how -- --run.device=cuda
  is "$(get '[.ranks[] | "\(.host) \(.device_pci)"] | unique | length')" 4 "$how: each rank has a GPU of its own"
  is "$(get '[.ranks[] | "\(.device_pci[5:6]) \(.cpus) \(.device_distance + 0)"] | unique | join(",")')" \
    "1 0 0,2 1 0" "  and the CPUs of its socket"
done
unset HWLOC_XMLFILE HWLOC_THISSYSTEM TERCIO_SYSROOT

on_head srun --mpi=none -N2 --ntasks-per-node=2 "$program" place > "$shared/none.out" 2> "$shared/none.err"
is $? 2 "srun without PMIx is refused with exit status 2"
grep -q -e '--mpi=pmix' "$shared/none.err"
ok $? "... and says --mpi=pmix"
on_head srun --mpi=none -N1 -n1 "$program" place --json > "$shared/place.json" 2>"$shared/none.err"
is $? 0 "one task alone needs no PMIx"
is "$(get .world)" 1 "... and is a world of one"

# A step without PMIx, started in one that has it, hands on the outer step's environment.
on_head srun --mpi=pmix -N1 -n1 --overlap \
  srun --mpi=none -N1 -n2 --overlap --overcommit "$program" comm --op all_reduce --max 64K \
  > "$shared/none.out" 2> "$shared/none.err"
is $? 2 "srun without PMIx in a step with it is refused, too"
is "$(grep -c -e '--mpi=pmix' "$shared/none.err")" 1 "... and says --mpi=pmix, once" || note_file "$shared/none.err"

# A rank that fails alone, before the ranks know each other, ends the others: they would wait 300 s.
echo '<topology version="2.0"><object type="PU"/></topology>' > "$shared/bad.xml"
on_head srun --mpi=pmix -N2 --ntasks-per-node=1 sh -c '[ "$SLURM_PROCID" = 0 ] || export HWLOC_XMLFILE="$1"
  exec "$0" place' "$program" "$shared/bad.xml" > "$shared/alone.out" 2> "$shared/alone.err"
is $? 2 "hwloc fails on one rank: all end with its status"
grep -q "rank 1 on node2: hwloc can't read this node's topology" "$shared/alone.err"
ok $? "... says which rank, where and why" || note_file "$shared/alone.err"

# MPI_Init ends on one node while it has hardly begun on the other: the first messages must wait.
read -ra pmix <<< "$(pkg-config --cflags pmix)"
mpicc -shared -fPIC "${pmix[@]}" -o "$shared/late_init.so" "$here/late_init.c" 2> "$shared/late.err"
ok $? "late_init.c compiles" || note_file "$shared/late.err"
# Ubuntu 24.04's Slurm: with this fence ranks hang at their start in most trials (docs/install.md).
no_tree=
case $(on_head srun --version) in
  *' 23.11.4') no_tree="Slurm 23.11.4 hangs at the start with SLURM_PMIX_FENCE=tree" ;;
esac
for fence in mixed tree; do
  if [ $fence = tree ] && [ -n "$no_tree" ]; then skip "tree: ranks of one node are late" "$no_tree"; continue; fi
  SLURM_PMIX_FENCE=$fence on_head srun --mpi=pmix -N2 --ntasks-per-node=2 \
    env LATE_FROM=2 LD_PRELOAD="$shared/late_init.so" "$program" comm --op all_reduce --max 64K \
    --run.threads=1 > "$shared/late.out" 2> "$shared/late.err"
  ok $? "$fence: ranks of one node are late in MPI_Init, the others wait" || note_file "$shared/late.err"
  is "$(grep -c 'late_init: late' "$shared/late.err")" 2 "... for both of them"
done
if [ -n "$no_tree" ]; then
  skip "tree: ranks hear of each other twice" "$no_tree"
else
  SLURM_PMIX_FENCE=tree place -N2 --ntasks-per-node=2 --gpus-per-node=2 --
  is "$(get '[.ranks[] | "\(.host) \(.device)"] | unique | length')" 4 "tree: ranks hear of each other twice" ||
    note_file "$shared/place.err"
fi
done_testing
