#!/bin/bash
# s_first_hour.t - what a new user does in the first hour, on two nodes, as another user where that can be, with the
# program as `make install` puts it (m_install checks the installation itself): an ordinary run file under sbatch, a
# killed rank, saving on request, a plan, the job that it writes, a resume on another layout and its report, the
# links between nodes, every mpirun line of README.md, examples/compare, help. Each step checks what a user would.
. "$(dirname "$0")/lib.sh"
start_cluster --nodes 2 --cpus 4 --gpus 0
unset OMP_NUM_THREADS

# ---- installed, for another user ---------------------------------------------------------------
home=$shared/home prefix=$shared/prefix
mkdir "$home"
if grep -qs '^uninstall:' "$(dirname "$TERCIO")/Makefile"; then
  limited make -C "$(dirname "$TERCIO")" install prefix="$prefix" > "$shared/install.log" 2>&1
  ok $? "make install" || { note_file "$shared/install.log"; done_testing; }
else
  mkdir -p "$prefix/bin" "$prefix/share/tercio/slurm"
  cp "$TERCIO" "$prefix/bin/"
  cp "$top/slurm/tercio-srun" "$prefix/bin/"
  cp -r "$top/slurm/train.sbatch" "$top/examples" "$prefix/share/tercio/"
  note "$(dirname "$TERCIO") has no Makefile: the program is copied"
fi
program=$prefix/bin/tercio examples=$prefix/share/tercio/examples
chmod a+rx "$cluster_dir" "$shared"
chmod -R a+rX "$prefix"
user=()
if id nobody > /dev/null 2>&1; then
  chown nobody "$home"
  user=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups)
fi
# COMMAND...: on the login node, in the user's home, with the environment of a login.
as_user() {
  on_head "${user[@]}" env -i HOME="$home" USER=nobody PATH="$prefix/bin:$PATH" \
    SLURM_CONF="$cluster_dir/slurm.conf" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    TERCIO_RESTART_DELAY=1 sh -c 'cd "$HOME" && exec "$@"' sh "$@"
}
has() { grep -q -e "$1" "$2"; ok $? "$3" || note_file "$2" 30; }          # PATTERN FILE WHAT
out=$home/first log=$home/job.log

# ---- an ordinary run file, and a rank that is killed --------------------------------------------
{ cat "$top/README.md" "$top/HACKING.md" "$top/LICENSE.md"; } > "$home/book.txt"
cat > "$home/run.ini" <<'INI'
[model]
preset = tiny

[data]
train = book.txt

[train]
steps = 100000
global_batch = 8
eval_batches = 1

[run]
out = first
INI
rank_pids() { pgrep -f "^$program train run.ini"; }
sbatch_share() {                     # SBATCH-OPTIONS... -- FLAGS... -> $job
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  job=$(as_user sbatch --parsable --output="$log" "${options[@]}" "$(as_user tercio --share)/train.sbatch" "$@")
  [ -n "$job" ]
}
sbatch_share -N2 --ntasks-per-node=2 -c1 -- run.ini
ok $? "sbatch \$(tercio --share)/train.sbatch run.ini"
has_checkpoint() { compgen -G "$out/ckpt/step-*" > /dev/null; }
wait_step "$out" 10 60
until_ok 120 has_checkpoint
ok $? "a run file without [ckpt]: there is a checkpoint by step $(last_step "$out")" || note_file "$log" 30
kill_one
ok $? "kill -9 of a rank"
wait_line 'starting the ranks again' 30
wait_line 'resumed from' 30
as_user tercio save first --wait 60 > "$shared/out" 2>&1
has 'the checkpoint is complete: step' "$shared/out" "tercio save first --wait 60: the running job saves"
as_user tercio save first --stop --wait 60 > "$shared/out" 2>&1
has 'the checkpoint is complete: step' "$shared/out" "tercio save first --stop: it saves"
is "$(wait_job "$job" 60) $(job_field "$job" ExitCode)" "FAILED 86:0" "... and the job ends with 86" || note_file "$log" 40
is "$(grep -c 'no checkpoint in .*starting at step 0' "$log")" 1 "the first start says that there was no checkpoint" ||
  note_file "$log" 40
is "$(resumed | wc -l)" 1 "the second start resumed from one" || note_file "$log" 40
STEPS=$(last_step "$out")
each_step_once "$STEPS steps"
for line in 'model: tiny' 'batch: 8 sequences' 'ranks: 4 on 2 nodes' 'layout: pp 1 x dp 4 x tp 1, ddp' \
  "output: $out\$"; do
  is "$(grep -c "tercio\[0\]: $line" "$log")" 2 "each start says once \"$line\"" || note_file "$log" 40
done
has '^step [0-9]*/100000 .* left [0-9]*:[0-9][0-9]:[0-9][0-9]$' "$log" "progress, with the time left"

# ---- the same run goes on as a pipeline, to an end --------------------------------------------------
end=$((STEPS + 8))
as_user tercio-srun -N2 --ntasks-per-node=1 -c1 run.ini --train.stop_at=$end --mesh.pp=2 --train.micro_batch=1 \
  > "$log" 2>&1
ok $? "tercio-srun, as a pipeline of two stages" || note_file "$log"
has 'layout: pp 2 x dp 1 x tp 1, ddp, 1f1b; 8 micro-batches of 1' "$log" "... says so"
has "resumed from .*step-$(printf %08d "$STEPS")" "$log" "... and resumes from the checkpoint that was asked for"
has "done: step $end of 100000 (train.stop_at); the checkpoint is $out/ckpt/step-$(printf %08d $end)$" "$log" \
  "in the end: what was saved where"
look=$(sed -n 's/.*to look at it: //p' "$log")
as_user sh -c "${look:-false}" > "$shared/out" 2>&1
ok $? "... and commands that show it: ${look:-none}" || note_file "$shared/out"
[ -s "$home/report.html" ]
ok $? "... which make a page"
as_user tercio report first --json > "$shared/report.json" 2> "$shared/err"
is "$(jq -c '[(.changes | length), .measured.bubble > 0.02]' "$shared/report.json")" "[1,true]" \
  "the report has the pipeline's bubble, and marks the change" || note_file "$shared/report.json"

# ---- a sweep: a job array, and its page --------------------------------------------------------------
job=$(as_user sbatch --parsable --array=0,3 --ntasks-per-node=1 -c1 --output="$home/sweep-%a.log" "$examples/sweep.sbatch" \
  "$examples/sweep.ini" --data.train=book.txt --train.steps=4)
no_task() { [ -z "$(as_user squeue -h -j "$job" 2> /dev/null)" ]; }
until_ok 60 no_task
is "$(jq -s 'length' "$home"/sweep/"${job:-none}"_{0,3}/metrics.jsonl)" 8 "sbatch examples/sweep.sbatch: two tasks of an array" ||
  note_file "$home/sweep-0.log"
as_user tercio report "sweep/${job}_0" "sweep/${job}_3" -o sweep.html > "$shared/out" 2>&1
ok $? "... on one page" || note_file "$shared/out"
has '>0.004<' "$home/sweep.html" "... with their rates"

# ---- a plan, and the job that it writes -----------------------------------------------------------
plan() { as_user tercio plan "$@" > "$shared/out" 2> "$shared/err"; }
huge=(--model.preset=gpt3-175b --train.global_batch=64 --train.micro_batch=1 --device h100 --emit sbatch --into none)
plan "${huge[@]}" --nodes 1 --gpus-per-node 8
is $? 6 "a search in which nothing fits: status 6" || note_file "$shared/err"
plan "${huge[@]}"
is $? 6 "a layout that does not fit: status 6" || note_file "$shared/out"
[ ! -e "$home/none" ]
ok $? "... and nothing is written"
plan run.ini --nodes 2 --gpus-per-node 8 --memory 80
is $? 2 "--memory 80, without a unit: status 2"
plan run.ini --gpus-per-node 8
is $? 2 "--gpus-per-node alone: status 2"
plan run.ini --from-slurm --device cpu --emit sbatch --into job
ok $? "tercio plan --from-slurm --emit sbatch" || note_file "$shared/err"
has assumed "$shared/out" "... says what it assumed"
checks=$(grep -c '# CHECK' "$home/job/job.sbatch" "$home/job/run.ini" | awk -F: '{ n += $2 } END { print n + 0 }')
check "... and marks what a person must decide: $checks lines" [ "$checks" -gt 0 ]
job=$(as_user sbatch --parsable --output="$home/plan.log" job/job.sbatch --train.stop_at=4 --run.out=planned)
is "$(wait_job "${job:-0}" 60)" COMPLETED "sbatch job/job.sbatch: the job completes as it was written" ||
  note_file "$home/plan.log" 40
is "$(last_step "$home/planned")" 4 "... after its four steps"

# ---- links ----------------------------------------------------------------------------------------
as_user srun --mpi=pmix -N2 --ntasks-per-node=1 -c1 tercio comm --pairs --max 64K --iters 2 > "$shared/out" 2> "$shared/err"
has '^node1 *node2 ' "$shared/out" "tercio comm --pairs: the link between the nodes" || note_file "$shared/err"
as_user srun --mpi=pmix -N2 --ntasks-per-node=1 -c1 tercio comm --op send --max 64K --iters 2 > "$shared/out" 2> "$shared/err"
has '^send ' "$shared/out" "tercio comm --op send" || note_file "$shared/err"

# ---- on one machine: README's mpirun lines, as they are --------------------------------------------
as_user ln -s "$examples" examples
grep -ho '`mpirun [^`]*`' "$top/README.md" "$top/docs/install.md" | tr -d '`' | sort -u > "$shared/lines"
check "README.md has lines with mpirun" [ -s "$shared/lines" ]
n=0
while read -r line; do
  n=$((n + 1))
  as_user sh -c "${line//.../--data.train=book.txt --train.stop_at=2 --train.eval_batches=1 --run.out=mpi$n}" \
    > "$shared/out" 2>&1 < /dev/null
  ok $? "$line" || note_file "$shared/out"
done < "$shared/lines"
is "$(cat "$home"/mpi*/metrics.jsonl | wc -l)" 2 "... one of them trains"

# ---- comparisons, annotations and help -------------------------------------------------------------
TERCIO=$program limited "$top/examples/compare" --ranks 2 --steps 3 --text "$home/book.txt" \
  --systems "pipeline-1f1b annotated-zero3" -o "$shared/compare" > "$shared/out" 2>&1
ok $? "examples/compare with pipelines and annotations" || note_file "$shared/out"
is "$(jq -r '.[].name' "$shared/compare/compare.json" | paste -sd ' ')" "one pipeline-1f1b annotated-zero3" "... has them"
as_user tercio train run.ini --train.stop_at=1 --run.ranks=2 --run.out=rows \
  --parallel.annotations=examples/annotations/zero3.txt > "$shared/out" 2>&1
has 'annotations: .*zero3.txt .*parallel.data = ddp becomes zero3' "$shared/out" \
  "annotations beside an unset parallel.data: the run says what they make of it"
as_user tercio plan --help > "$shared/out" 2>&1
is "$(grep -c '^  --nodes N' "$shared/out") $(grep -c '^  --train.steps=' "$shared/out")" "1 0" \
  "tercio plan --help has its own flags alone" ||
  note_file "$shared/out"
as_user tercio plan --help mesh > "$shared/out" 2>&1
is "$(grep -c '^  --mesh.tp=' "$shared/out") $(grep -c '^  --train.steps=' "$shared/out")" "1 0" \
  "... and one section of options on request" ||
  note_file "$shared/out"
done_testing
