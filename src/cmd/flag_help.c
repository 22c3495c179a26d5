/* flag_help.c - the help of the own flags of commands that read them themselves, as help, man page and completion print
 * it. The options of the run file are in src/config/options.def; `tercio ckpt`, eval and sample have tables that are
 * read, too (read_flags.c). */
#include "src/cmd/cmd.h"
#include "src/metrics/metrics.h"

#define FLAG(form, help) { form, help, NULL, TC_FLAG_HELP, 0, 0, 0, NULL }

const struct tc_flag tc_flags_plan[] = {
  FLAG("--nodes N", "search for the best layouts on a cluster of N nodes, one rank per GPU"),
  FLAG("--gpus-per-node G", "GPUs (on CPUs: ranks) of each node"),
  FLAG("--from-slurm", "search for the best layouts on the cluster that scontrol reports: nodes, GPUs, CPUs, memory, "
    "time limit and leaf switches of a partition"),
  FLAG("--partition P", "the partition of --from-slurm (default: the cluster's default one)"),
  FLAG("--device NAME|FILE", "a100-40, a100-80, h100, h200, cpu (one core), or a file of measured figures, of which "
    "examples/clusters has some (default h100, or what Slurm names)"),
  FLAG("--memory SIZE", "memory of a device (default: the device's); less leaves room for the driver, libraries and "
    "the kernels' workspace; e.g. --memory 76GB"),
  FLAG("--host-memory SIZE", "memory of a node's host, which limits offloading (default: what Slurm or the device file "
    "says); e.g. --host-memory 512GB"),
  FLAG("--top K", "layouts to print, at most 64 (default 8)"),
  FLAG("--explain", "one layout in full, that of the run file, on the cluster of --nodes or --from-slurm"),
  FLAG("--tables", "print the usual textbook estimates"),
  FLAG("--tokens N", "tokens of the whole run: adds steps, hours and node-hours; e.g. --tokens 300G"),
  FLAG("--walltime TIME", "time limit of a job: adds the number of requeues; e.g. --walltime 24:00:00"),
  FLAG("--mtbf TIME", "mean time between failures of a node: adds the best interval between checkpoints, and the cost "
    "of failures; e.g. --mtbf 5y"),
  FLAG("--disk RATE", "bytes per second that checkpoints are written with; e.g. --disk 20GB"),
  FLAG("--restart TIME", "time from a failure to the next step (default 2m)"),
  FLAG("--emit sbatch", "write the layout as DIR/run.ini and DIR/job.sbatch, and the device as DIR/device.ini, from "
    "which the run predicts its own step time. After a search: the best layout that uses at most 90 % of device "
    "memory, else the best one. Lines to check by hand are marked # CHECK and listed. If nothing fits, nothing is "
    "written, and the status is 6"),
  FLAG("--into DIR", "the folder of --emit (default plan)"),
  FLAG("--template FILE", "the script that --emit fills in (default: the train.sbatch of tercio --share)"),
  FLAG("--for eval|sample", "plan tercio eval or sample instead of training: memory of "
    "weights and KV cache, tokens per second of prompts and of new tokens; e.g. --for sample --batch 8"),
  FLAG("--batch N", "with --for: sequences at once; of eval on each data-parallel rank (default: 2048 tokens), of "
    "sample in all (default 1)"),
  FLAG("--calibrate FILE", "time this machine's CPU, or with run.device = cuda its GPU, with short trainings of the "
    "run file's model, and write FILE for --device. A CPU is timed with run.threads threads per rank (default 1), and "
    "the file is of such ranks"),
  FLAG("--json", "print JSON"),
  FLAG(NULL, NULL)
};

const struct tc_flag tc_flags_place[] = {
  FLAG("--json", "print JSON"),
  FLAG("--simulate CLUSTER", "show a cluster instead of the ranks that a launcher started: nodes and ranks of each, as "
    "in \"3 nodes x 8\" or \"2:8,4\""),
  FLAG("--order ORDER", "how the ranks of --simulate are dealt to its nodes: block (the default) or cyclic, as srun "
       "-m"),
  FLAG(NULL, NULL)
};

const struct tc_flag tc_flags_graph[] = {
  FLAG("--after PASS", "the pass after which to print: build, stages, systems, grad, update, infer, recompute, "
    "merge, loss_chunks, buckets, schedule, arena, or groups (operations that a device may run as one)"),
  FLAG("--world N|CLUSTER", "number of ranks (default 1), or nodes and ranks, as in \"3 nodes x 8\" or \"2:8,4\""),
  FLAG("--rank R", "the rank whose program is printed (default 0)"),
  FLAG("--dot", "print DOT, for Graphviz"),
  FLAG(NULL, NULL)
};

const struct tc_flag tc_flags_comm[] = {
  FLAG("--op OP,...|all", "operations to measure (default all): all_reduce, reduce+broadcast, reduce_scatter, "
    "all_gather, broadcast, one_by_one, reduce, scatter, gather, all_to_all, send_recv, send; reduce+broadcast and "
    "one_by_one, a send to each member, are baselines; send is point to point, from each even coordinate of the axis "
    "to the next; e.g. tercio comm --op send --axis pp"),
  FLAG("--axis tp|dp|pp|world", "the axis whose groups communicate, all groups at the same time; world: one group "
    "of all ranks (default world); e.g. --axis dp --mesh.tp=4"),
  FLAG("--min SIZE", "the first size of the whole array, in bytes or with K, M or G for powers of 1024 "
    "(default 1K); each later size is 4 times the one before; e.g. --min 64K"),
  FLAG("--max SIZE", "the last size, at most 64G (default 64M, or what ends in about 30 s); e.g. --max 1G"),
  FLAG("--iters N", "timed iterations per size, after two that warm up, in [1, 10000] (default 20, fewer on a slow "
    "link); e.g. --iters 100"),
  FLAG("--pairs", "measure each node with each other node, several pairs at once, and name slow nodes and pairs "
    "(slow in three measurements); one node: its ranks, if each has a CPU"),
  FLAG("--rounds N", "rounds of --pairs (default: what ends in about 30 s); e.g. --pairs --rounds 3"),
  FLAG("--json", "print a JSON array, one object per row, which a device file of tercio plan can read "
    "(\"links node = FILE\"); e.g. --json > links.json"),
  FLAG(NULL, NULL)
};

const struct tc_flag tc_flags_report[] = {
  FLAG("-o REPORT.html", "the page to write"),
  FLAG("--trace FILE", "the trace of the timeline (default: the run's run.trace)"),
  FLAG("--step N", "the traced step to draw (default: the one of median length)"),
  FLAG("--json", "print predicted and measured figures; -o may then be omitted"),
  FLAG(NULL, NULL)
};

const struct tc_flag tc_flags_save[] = {
  FLAG("--stop", "the run then ends with status 86: neither requeue the job nor start it again"),
  FLAG("--requeue", "the run then ends with status 85: train.sbatch requeues the job"),
  FLAG("--wait SECONDS", "return when the checkpoint is complete; fail after SECONDS"),
  FLAG(NULL, NULL)
};

void tc_cmd_metrics_man(void)
{
  printf(".SH METRICS\n"
         "A line of\n.I OUT/metrics.jsonl\nis a JSON object. It is on disk as soon as its step has ended. Keys that say "
         "nothing are left out,\nsuch as ckpt in a step without a checkpoint. A figure that is not finite is null, "
         "and\n.B not_finite\nof its object says which; a null without that reason: there is no such figure.\n"
         "On a resume the lines after the checkpoint's step are cut off. Programs that follow the file should follow its "
         "name\n(tail \\-F): it is cut in place where the start before has ended, and is otherwise another file.\n");
  for (int i = 0; i < TC_METRICS; i++) {
    const struct tc_metric_row *m = &tc_metric_row[i];
    printf(".TP\n.B %s\n%s%s%s%s\n", m->key, *m->unit ? "(" : "", m->unit, *m->unit ? ") " : "", m->help);
  }
}
