#!/bin/bash
# s_status.t - a status that all ranks agree on comes out of `srun --kill-on-bad-exit=1` itself. srun ends
# the other ranks as soon as the first has left with a status other than 0, and here one of them is
# slow to leave: it must not turn 7, 85 or 86 into 143. The signals go to the ranks, by scancel or by
# srun, which passes USR2 on. (A TERM, or a Ctrl-C twice, at srun itself kills the ranks: seen with 22.05.)
. "$(dirname "$0")/lib.sh"
command -v cc > /dev/null || skip_all "no C compiler to make a rank slow to leave"
start_cluster --nodes 2 --cpus 4 --gpus 0

make_text "$shared/text.txt" || skip_all "no text to train on"
run_ini "$shared/text.txt" 1000000 8 0 1
ranks=(-N2 --ntasks-per-node=2 -c1)
cat > "$shared/slow.c" <<'END'
#include <stdlib.h>
#include <unistd.h>
__attribute__((destructor)) static void slow(void)
{
  const char *r = getenv("PMIX_RANK");
  if (r && atoi(r) == 3) sleep(2);
}
END
cc -shared -fPIC -o "$shared/slow.so" "$shared/slow.c" || { ok 1 "a library that is slow to leave"; done_testing; }

start() {                            # NAME FLAGS...: a step of four ranks, in the background -> $out, $log
  local name=$1
  shift
  out=$shared/$name log=$shared/$name.log
  on_head env --default-signal=INT LD_PRELOAD="$shared/slow.so" srun --job-name="$name" --mpi=pmix \
    --kill-on-bad-exit=1 "${ranks[@]}" "$program" train "$shared/run.ini" --run.out="$out" "$@" > "$log" 2>&1 &
}

# The older one; the other watches it.
srun_pid() { pgrep -o -f "^srun .*--run.out=$out( |\$)"; }

to_ranks() {                         # NAME SIGNAL...
  local job signal
  job=$(on_head squeue --noheader --format=%i --name="$1")
  shift
  for signal; do on_head scancel --signal="$signal" "$job"; done
}
to_srun() { kill -"$2" "$(srun_pid)"; }          # NAME SIGNAL

start diverges --train.lr=1e30 --train.warmup=0 --train.clip=0
wait $!
is $? 7 "diverged: srun returns 7" || note_file "$log"

while read -r want how signals <&3; do
  name="${signals// /-}-$how"
  start "$name"
  srun=$!
  wait_step "$out" 3 100
  "$how" "$name" $signals
  wait $srun
  is $? "$want" "$name: srun returns $want" || note_file "$log"
  is "$("$program" ckpt latest "$out/ckpt" | sed 's/.*step-0*//')" "$(last_step "$out")" \
    "$name: the last step is saved" || note_file "$log"
done 3<<'END'
86 to_ranks TERM
86 to_ranks TERM INT
86 to_ranks INT INT
86 to_ranks HUP
85 to_ranks USR2
85 to_srun USR2
END
done_testing
