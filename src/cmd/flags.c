/* flags.c - the commands' own flags, as help and man page print them. The options of the run file are in
 * src/config/options.def, the flags of `tercio ckpt` in its folder. */
#include "src/cmd/cmd.h"

const struct tc_flag tc_flags_plan[] = {
  { "--nodes N", "search the best layouts for a cluster of N nodes, one rank per GPU" },
  { "--gpus-per-node G", "GPUs (on CPUs: ranks) of each node" },
  { "--from-slurm", "search for the cluster as scontrol describes it: nodes, GPUs, CPUs, memory, time limit and leaf "
    "switches of a partition" },
  { "--partition P", "the partition of --from-slurm (default: the cluster's default one)" },
  { "--device NAME|FILE", "a100-40, a100-80, h100, h200, cpu, or a file of measured figures, of which examples/clusters "
    "has some (default h100, or what Slurm names)" },
  { "--memory SIZE", "memory of a device (default: the device's); less leaves room for the driver, libraries and the "
    "kernels' workspace; e.g. --memory 76GB" },
  { "--host-memory SIZE", "memory of a node's host, which limits offloading (default: what Slurm or the device file says); "
    "e.g. --host-memory 512GB" },
  { "--top K", "layouts to print, at most 64 (default 8)" },
  { "--explain", "one layout in full, that of the run file, on the cluster of --nodes or --from-slurm" },
  { "--tables", "print the usual textbook estimates" },
  { "--tokens N", "tokens of the whole run: adds steps, hours and node-hours; e.g. --tokens 300G" },
  { "--walltime TIME", "time limit of a job: adds the number of requeues; e.g. --walltime 24:00:00" },
  { "--mtbf TIME", "mean time between failures of a node: adds the best interval between checkpoints, and the cost of "
    "failures; e.g. --mtbf 5y" },
  { "--disk RATE", "bytes per second that checkpoints are written with; e.g. --disk 20GB" },
  { "--restart TIME", "time from a failure to the next step (default 2m)" },
  { "--emit sbatch", "write the best layout as DIR/run.ini and DIR/job.sbatch, and the device as DIR/device.ini, from "
    "which the run predicts its own step time; what a person must decide stands as # CHECK and is listed. What does not "
    "fit ends with status 6, and nothing is written" },
  { "--into DIR", "the folder of --emit (default plan)" },
  { "--template FILE", "the script that --emit fills in (default: the train.sbatch of tercio --share)" },
  { "--for eval|sample", "what tercio eval or tercio sample of the model takes instead of a training: memory of weights and "
    "KV cache, tokens per second of prompts and of new tokens; e.g. --for sample --batch 8" },
  { "--batch N", "with --for: sequences at once; of eval on each data-parallel rank (default: 2048 tokens), of sample in all "
    "(default 1)" },
  { "--calibrate FILE", "time this machine's CPU with short trainings of the run file's model, and write FILE for "
    "--device" },
  { "--json", "print JSON" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_place[] = {
  { "--json", "print JSON" },
  { "--simulate CLUSTER", "show a cluster instead of the ranks that a launcher started: nodes and ranks of each, as in "
    "\"3 nodes x 8\" or \"2:8,4\"" },
  { "--order ORDER", "how the ranks of --simulate are dealt to its nodes: block (the default) or cyclic, as srun -m" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_graph[] = {
  { "--after PASS", "the pass after which to print: build, label, systems, grad, optim, shard, recompute, fuse, units, "
    "schedule, arena, or fusions (operations that a device may run as one)" },
  { "--world N|CLUSTER", "number of ranks (default 1), or nodes and ranks, as in \"3 nodes x 8\" or \"2:8,4\"" },
  { "--rank R", "the rank whose program is printed (default 0)" },
  { "--dot", "print DOT, for Graphviz" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_comm[] = {
  { "--op OP,...|all", "operations to measure (default all): all_reduce, reduce+broadcast, reduce_scatter, "
    "all_gather, broadcast, one_by_one, reduce, scatter, gather, all_to_all, send_recv, send; reduce+broadcast and "
    "one_by_one, a send to each member, are baselines; send is point to point, from each even coordinate of the axis to "
    "the next; e.g. tercio comm --op send --axis pp" },
  { "--axis tp|dp|pp|world", "the axis whose groups communicate, all groups at the same time; world: one group "
    "of all ranks (default world); e.g. --axis dp --mesh.tp=4" },
  { "--min SIZE", "the first size of the whole array, in bytes or with K, M or G for powers of 1024 "
    "(default 1K); each later size is 4 times the one before; e.g. --min 64K" },
  { "--max SIZE", "the last size, at most 64G (default 64M, or what ends in about 30 s); e.g. --max 1G" },
  { "--iters N", "timed iterations per size, after two that warm up, in [1, 10000] (default 20, fewer on a slow link); "
    "e.g. --iters 100" },
  { "--pairs", "measure each node with each other node, several pairs at once, and name slow nodes and pairs; one node: "
    "its ranks" },
  { "--rounds N", "rounds of --pairs (default: what ends in about 30 s); e.g. --pairs --rounds 3" },
  { "--json", "print a JSON array, one object per row, which a device file of tercio plan can read "
    "(\"links node = FILE\"); e.g. --json > links.json" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_report[] = {
  { "-o REPORT.html", "the page to write" },
  { "--trace FILE", "the trace of the timeline (default: the run's run.trace)" },
  { "--step N", "the traced step to draw (default: the one of median length)" },
  { "--json", "print predicted and measured figures; -o may then be omitted" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_save[] = {
  { "--stop", "the run then ends with status 86: neither requeue the job nor start it again" },
  { "--requeue", "the run then ends with status 85: train.sbatch requeues the job" },
  { "--wait SECONDS", "return when the checkpoint is complete; fail after SECONDS" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_eval[] = {
  { "--data FILE ...", "files of tokens, each with a row of its own: text, or llm.c's .bin with --data.format=bin; "
    "e.g. --data val.txt other.txt" },
  { "--choices FILE ...", "questions, a line of JSON each: {\"context\": TEXT, \"choices\": [TEXT, ...], \"label\": N}; "
    "e.g. --choices piqa.jsonl" },
  { "--hellaswag FILE", "HellaSwag as llm.c's dev/data/hellaswag.py writes it, for GPT-2's vocabulary; e.g. --hellaswag "
    "hellaswag_val.bin" },
  { "--tokenizer FILE", "the model's tokenizer.json: for --choices, and to count bytes; e.g. --tokenizer tokenizer.json" },
  { "--batch N", "sequences at once on a data-parallel rank (default: 2048 tokens); e.g. --batch 8" },
  { "--json", "print a JSON object, with the loss of each answer; e.g. --json > eval.json" },
  { NULL, NULL }
};

const struct tc_flag tc_flags_sample[] = {
  { "--prompt TEXT", "the text to go on from; e.g. --prompt 'In the beginning'" },
  { "--prompts FILE", "a prompt a line, all at once; e.g. --prompts prompts.txt" },
  { "--n N", "sequences of each prompt (default 1); e.g. --n 3" },
  { "--tokens N", "new tokens of a sequence, at most (default: 200, or what the model's context has room for); e.g. "
    "--tokens 50" },
  { "--window", "where prompt and new tokens exceed the context, go on from its last half; e.g. --window --tokens 5000" },
  { "--temperature X", "divides the logits before a token is drawn (default 0.8); 0: the most likely token; e.g. "
    "--temperature 1" },
  { "--top-k K", "draw from the K most likely tokens (default 50); 0: from all; e.g. --top-k 0" },
  { "--top-p P", "draw from the most likely tokens that together have probability P (default 0.95); e.g. --top-p 1" },
  { "--greedy", "the most likely token each time, as --temperature 0" },
  { "--seed N", "the seed of the random numbers (default 1): the same text again; e.g. --seed 7" },
  { "--tokenizer FILE", "the model's tokenizer.json, unless its tokens are bytes; e.g. --tokenizer tokenizer.json" },
  { "--json", "print a JSON array, with the new tokens of each sequence; e.g. --json > text.json" },
  { NULL, NULL }
};
