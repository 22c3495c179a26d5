/* main.c - the command line's first word, --help, --version and the man page.
 *
 * Nothing is started before a command's own function: help works on any machine, without a
 * launcher, MPI or a device. */
#include "ac_config.h"
#include "src/cmd/cmd.h"
#include "src/cmd/completion.h"
#include "src/emit/emit.h"
#include "src/launch/launch.h"
#include "src/launch/process.h"
#include "src/launch/stop.h"
#include "src/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What --help prints: usage, flags and example. FLAGS: to the usage those of the table are added. OPTIONS: the command
 * also takes the run file's options, which --help all or SECTION prints; ALL_OPTIONS: they are its own flags, so --help
 * prints them too. OWN: the command prints its help itself, since it has subcommands. */
enum { HELP_PLAIN, HELP_OPTIONS = 1, HELP_ALL_OPTIONS = 2 | HELP_OPTIONS, HELP_OWN = 4, HELP_FLAGS = 8 };

static const struct {
  struct tc_cmd cmd;
  int how;
  const struct tc_flag *flags;     /* explained in help and man page; NULL: `help` explains them */
  int (*run)(int argc, char **argv, struct tc_stop *s);    /* in place of cmd.run, where signals are requests */
} commands[] = {
  { { "train", "[RUN.ini] [--section.key=value ...] [--dry-run [--every N] [--json]]",
      "Trains a model. Each process is one rank; srun, sbatch or mpirun starts the ranks, and a process "
      "started alone is a run of one rank. Training resumes automatically from the newest good checkpoint.",
      "srun --mpi=pmix tercio train run.ini --train.steps=1000", NULL }, HELP_ALL_OPTIONS, tc_flags_train,
    tc_cmd_train },
  { { "eval", "CKPT|FOLDER",
      "Evaluates a trained model, from a checkpoint of any layout on any layout: loss, perplexity and bits per byte of "
      "files; the accuracy of answers to questions. CKPT is a step's folder, or a folder of checkpoints, of which the "
      "newest is taken; FOLDER is one of Hugging Face's, or any file that ckpt import takes. "
      "Neither gradients nor the optimizer's state are in memory. Every token of a file but the first is predicted "
      "once, from at most model.context tokens before it. A question counts as right if the labelled answer has the "
      "smallest summed loss; by length, if it has the smallest mean loss per token.",
      "mpirun -n 2 tercio eval run/ckpt --data val.txt --mesh.tp=2", tc_cmd_eval }, HELP_OPTIONS | HELP_FLAGS, tc_flags_eval, NULL },
  { { "sample", "CKPT|FOLDER",
      "Continues a text with a trained model. CKPT is a step's folder, or a folder of checkpoints, of which the "
      "newest is taken; FOLDER is one of Hugging Face's, or any file that ckpt import takes. "
      "Give --prompt or --prompts. The text of one sequence appears as it is made. On several ranks tensor parallelism "
      "splits the model as far as its heads allow, and pipeline stages the rest, unless mesh.tp and mesh.pp say "
      "otherwise; the same seed gives the same text on every layout, up to rounding.",
      "tercio sample run/ckpt --prompt 'In the beginning' --tokens 100", tc_cmd_sample }, HELP_OPTIONS | HELP_FLAGS,
    tc_flags_sample, NULL },
  { { "plan", "[RUN.ini] [--nodes N --gpus-per-node G | --from-slurm] [--partition P] [--device NAME|FILE] "
      "[--memory 80GB] [--host-memory 512GB] [--top K] "
      "[--explain] [--tables] [--tokens 300G] [--walltime 24:00:00] [--mtbf 5y] [--disk 10GB] "
      "[--restart 2m] [--emit sbatch [--into DIR] [--template FILE]] [--for eval|sample [--batch N]] [--calibrate "
      "FILE] [--simulate-start [--ranks LIST] [--fence SECONDS] [--record SIZE]] [--json] [--section.key=value ...]",
      "Predicts the memory, speed and traffic of the run file's layout or, with --nodes or --from-slurm, of the best "
      "layouts for a cluster. Layout options on the command line are fixed; the search replaces those of the run file.",
      "tercio plan run.ini --nodes 4 --gpus-per-node 8 --device a100-80", tc_cmd_plan },
    HELP_OPTIONS, tc_flags_plan, NULL },
  { { "prove", "[RUN.ini] [--world NODESxRANKS] [--steps N] [--full-width | --as-is] [--against float64] [--fuzz N] "
      "[--seed N] [-o FILE] [--json] [--section.key=value ...]",
      "Shows that a layout computes what one rank computes, before the job is submitted: runs some steps of the run file's "
      "model, made small, with its mesh, system and all other options, on ranks that are threads of this machine, and compares "
      "gradients, losses, norms, weights and moments with those of one rank, tensor by tensor. Exit status 1: they differ; the "
      "axis, option or row that goes with the difference is named, and FILE is a run file that repeats it.",
      "tercio prove run.ini --world 3x8", tc_cmd_prove }, HELP_OPTIONS, tc_flags_prove, NULL },
  { { "place", "[RUN.ini] [--json] [--simulate CLUSTER [--order ORDER]] [--section.key=value ...]",
      "Shows the placement of every rank: node, device, NUMA node and coordinates on the axes, "
      "with warnings.",
      "srun --mpi=pmix tercio place run.ini", tc_cmd_place }, HELP_OPTIONS,
    tc_flags_place, NULL },
  { { "graph", "[RUN.ini] --after PASS [--dot] [--rank R --world N|CLUSTER] [--section.key=value ...]",
      "Prints the program after a pass, as text or as DOT: tensors, placements, reshards. "
      "Exit status 6 if the layout is impossible on so many ranks.",
      "tercio graph run.ini --after grad --world 2 --dot | dot -Tsvg > program.svg",
      tc_cmd_graph }, HELP_OPTIONS, tc_flags_graph, NULL },
  { { "comm", "[RUN.ini] [--op OP,...|all] [--axis tp|dp|pp|world] [--min 1K] [--max 64M] "
      "[--iters N] [--pairs [--rounds N]] [--table] [--json] [--section.key=value ...]",
      "Measures the collectives on an axis of the mesh over message size, and checks each element of the "
      "results. A row has the size of the whole array in bytes and its count of fp32 elements, the mean "
      "time of an iteration of the slowest rank, the algorithm bandwidth (size / time) and the bus "
      "bandwidth as nccl-tests define them. Without --max and --iters it ends in about 30 s: a slow link gets "
      "fewer iterations, and large sizes are left out.",
      "srun --mpi=pmix tercio comm --op all_reduce,reduce_scatter --axis dp", tc_cmd_comm },
    HELP_OPTIONS, tc_flags_comm, NULL },
  { { "ckpt", "ls|show|tensors|dump|verify|diff|plan|export|import|latest|prune|quarantine [DIR] ...",
      "Inspects checkpoints: lists, prints, verifies and compares them, shows what another layout "
      "would read, and exchanges weights with other programs. Needs no MPI.",
      "tercio ckpt verify run/ckpt", tc_cmd_ckpt }, HELP_OWN, NULL, NULL },
  { { "data", "TEXT|JSONL|FOLDER|- ... [--tokenizer TOKENIZER.json] -o SHARDS|SHARD.bin "
      "[--field NAME] [--jsonl] [--eod TOKEN] [--begin-token] [--chat [TEMPLATE]] [--train-on answers|last|all] "
      "[--shard-tokens 100M] [--invalid refuse|replace|bytes] "
      "[--bad-lines refuse|skip] [--threads N] | "
      "show|decode FILES [--data.format FORMAT] [--tokenizer TOKENIZER.json] [--from N] [--tokens N] | "
      "check FILES [--data.format FORMAT] [--tokenizer TOKENIZER.json] [--vocab N] [--threads N]",
      "Makes shards of tokens from text. Without a tokenizer one token per byte, in one file. With the "
      "tokenizer.json of a BPE tokenizer (GPT-2, Llama, Qwen, Mistral, Gemma) the ids that Hugging Face's tokenizers "
      "library gives, in a folder SHARDS with files of --shard-tokens tokens, in llm.c's format: uint16, or uint32 "
      "for more than 65,536 tokens. For a folder, all files below it with the suffix .txt, .jsonl or .ndjson "
      "(optionally followed by .gz or .zst) are read, in the order of their paths, without hidden ones. A text file is a document; of a file named .jsonl or .ndjson (or with --jsonl) each line "
      "is one, in the field --field (text). Files may be compressed by gzip or zstd; - is standard input. --eod is the "
      "token after each document (default <|endoftext|>, <|end_of_text|>, </s> or <eos>; without a tokenizer a byte, such as 10, "
      "default none), --begin-token adds the tokens of the "
      "post-processor's template around each document. --chat: each line is a conversation (messages, conversations, or "
      "prompt and completion) or has tokens (and mask); the text is that of the chat template beside the tokenizer, or of "
      "TEMPLATE, which is one of"
#define CHAT(word, ...) " " word
#include "src/shards/chat.def"
#undef CHAT
      "; a file of weights beside each shard says which tokens "
      "are trained on, by --train-on those of answers (default), of the last answer, or all. --invalid: what to do with bytes that are not UTF-8: an error "
      "(the default), U+FFFD, or tokens of the bytes. --bad-lines skip leaves out lines of JSON that can't be read, and "
      "counts them. After an interruption (Ctrl-C, SIGTERM: status 86, SIGUSR2: "
      "status 85), run the same command to continue after the last complete shard. show, check and decode take "
      "whatever data.train takes: shards, Megatron's files, text, and with --data.format uint16 or uint32 tokens "
      "without a header; files, folders, patterns and blends such as 0.7:A*.bin 0.3:B/. show prints the share of each "
      "source, and the format, size and first tokens of each file; decode prints the text of --tokens tokens; both "
      "begin at token --from of all files. check compares every token with the vocabulary's size: --vocab, or that of "
      "the tokenizer, or of the header. The tokenizer is --tokenizer, or the tokenizer.json beside a file; --tokenizer "
      "bytes: a token is a byte, as in shards that were made without a tokenizer. For a text named show, check or "
      "decode, write ./show.",
      "tercio data corpus.jsonl.zst --tokenizer tokenizer.json -o shards", NULL }, HELP_PLAIN,
    NULL, tc_cmd_data },
  { { "report", "RUNDIR ... [-o REPORT.html] [--trace FILE] [--step N] [--json] [--csv]",
      "Makes one HTML page from a run's folder: curves, the timeline of a traced step, memory by class, "
      "bytes by axis. The page needs no network and no scripts. Of several folders it compares the runs: losses, the lowest "
      "validation loss and its step, tokens, speed, and the options that differ, sorted by that loss; as a table here or, "
      "with -o, as a page with all curves.",
      "tercio report run -o report.html", tc_cmd_report }, HELP_PLAIN, tc_flags_report, NULL },
  { { "save", "OUT [--stop | --requeue] [--wait SECONDS]",
      "Requests a checkpoint from the run that is in progress in folder OUT (its run.out). The run looks for "
      "requests once a second and saves after the current step. Works from any machine that shares the folder, "
      "however the run was started. Returns at once, unless --wait is given.",
      "tercio save run --wait 600", tc_cmd_save }, HELP_PLAIN, tc_flags_save, NULL },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const struct { int status; const char *meaning; } statuses[] = {
  { 0, "success: the run is complete or reached stop_at; ckpt diff: no difference" },
  { 1, "ckpt diff: the checkpoints differ; prove: the layout does not compute what one rank computes" },
  { 2, "usage, configuration or I/O error" },
  { 3, "checkpoint incomplete" },
  { 4, "checksum wrong" },
  { 5, "no usable checkpoint" },
  { 6, "layout impossible" },
  { 7, "training diverged: a loss, gradient norm or weight that is not finite, or a spike; eval and sample: a model "
       "whose losses or logits are not finite" },
  { 8, "a peer did not answer" },
  { 85, "stopped on request after saving: requeue the job" },
  { 86, "stopped on request after saving: neither requeue the job nor start it again" },
  { 93, "no progress over the last restarts: do not requeue the job" },
};
enum { N_STATUSES = sizeof statuses / sizeof *statuses };

/* A command's usage, owned by the caller. */
static char *usage_of(int i)
{
  const struct tc_flag *f = commands[i].flags;
  char *text = tc_strdup(commands[i].cmd.usage);
  if (!(commands[i].how & HELP_FLAGS)) return text;
  for (bool more = true; more; f++) {
    more = f->form != NULL;
    char *longer = tc_sprintf("%s [%s]", text, more ? f->form : "--section.key=value ...");
    free(text);
    text = longer;
  }
  return text;
}

/* ---- help as text ---------------------------------------------------------------------- */

static void print_help(void)
{
  printf("tercio trains transformers on Slurm clusters.\n\nusage:\n");
  for (int i = 0; i < N_COMMANDS; i++) {
    char *usage = usage_of(i);
    printf("  tercio %-6s %s\n", commands[i].cmd.name, usage);
    free(usage);
  }
  printf("  tercio --help | --version | --man\n"
         "  tercio --share                the folder of train.sbatch and, installed, of examples/\n"
         "  tercio COMMAND --help         the command, with its flags\n"
         "  tercio COMMAND --help all     also the options of the run file; of a section: --help train\n\n"
         "A run file has [section] lines and \"key = value\" lines. Every key is also a flag,\n"
         "--section.key=value, which overrides the file; the run file is optional.\n\n"
         "example:\n"
         "  tercio train --model.preset=tiny --data.train=book.txt --train.steps=100\n\n"
         "exit status:\n");
  for (int i = 0; i < N_STATUSES; i++)
    printf("  %2d  %s\n", statuses[i].status, statuses[i].meaning);
}

/* topic: "all", a section of the run file, or NULL: the command alone. Returns an exit status. */
static int print_cmd_help(int i, const char *topic)
{
  const struct tc_cmd *c = &commands[i].cmd;
  const int how = commands[i].how;
  const bool all = topic && !strcmp(topic, "all");
  struct tc_err err;
  if (topic && !all && how & HELP_OPTIONS)
    return tc_config_help_section(stdout, topic, &err) < 0 ? tc_say_failure(&err) : 0;
  char *usage = usage_of(i);
  printf("usage: tercio %s %s\n\n%s\n\nexample:\n  %s\n", c->name, usage, c->help, c->example);
  free(usage);
  if (commands[i].flags) {
    printf("\nFlags of this command:\n\n");
    tc_flags_print(stdout, commands[i].flags, NULL, "  ", 30);
  }
  if (!(how & HELP_OPTIONS)) return 0;
  if (all || (how & HELP_ALL_OPTIONS) == HELP_ALL_OPTIONS) {
    printf("\nOptions, by section of the run file:\n\n");
    tc_config_help(stdout, false);
  } else {
    printf("\nOptions of the run file are flags too, --section.key=value. tercio %s --help all lists them, --help "
           "SECTION those of one section:\n\n", c->name);
    tc_config_help_sections(stdout);
  }
  return 0;
}

static void print_version(void)
{
  char *stack = tc_versions_text();
  printf("tercio %s\n%s\n", PACKAGE_VERSION, stack);
  free(stack);
#ifdef TC_CUDA
  printf("CUDA %s (%s)\n", TC_CUDA_VERSION, TC_CUDA_ARCHS);
#else
  printf("without CUDA\n");
#endif
}

/* ---- the man page ------------------------------------------------------------------------ */

static void print_man_signals(void)
{
  printf(".SH SIGNALS\n"
         "Until the first step of\n.BR \"tercio train\" ,\n"
         "and in every other command, SIGTERM, SIGHUP and SIGINT end the process at once, by that signal, whatever\n"
         "it waits for; files that are not finished are removed. SIGUSR2 ends\n"
         ".B tercio train\nand\n.B tercio data\nwith status 85, as nothing new is to be saved yet.\n"
         ".PP\nFrom the first step on a signal asks\n.B tercio train\n"
         "to finish its step, save and stop. All ranks follow if one rank receives it.\n"
         ".TP\n.B SIGUSR2\nStatus 85: the job is to be requeued. Slurm sends it before the time limit\n"
         "(sbatch \\-\\-signal=USR2@300).\n"
         ".TP\n.BR SIGTERM \", \" SIGHUP \", \" SIGINT\n"
         "Status 86: the job is neither to be requeued nor started again (scancel, preemption, a lost\n"
         "terminal, Ctrl\\-C).\n"
         ".PP\nSignals within 10 seconds of the first one are the same request, since launchers send\n"
         "several. If both kinds arrive before the step has ended, the status is 86, since TERM, HUP and INT\n"
         "ask for no requeue.\n"
         "A later TERM, HUP or INT (and SIGQUIT, always) ends the process at once, with status 128 +\n"
         "signal. Complete checkpoints stay, and a partly written one is removed at the next start. There is\n"
         "one exception: after USR2 alone, the first of these signals that arrives more than 10 seconds later\n"
         "has no effect. Slurm announces a time limit by USR2 and enforces it by TERM, and the checkpoint for\n"
         "the requeue (status 85) must be finished before Slurm sends KILL. A later USR2 never ends a run.\n"
         "In a process that no launcher started, a second SIGINT (Ctrl\\-C) ends it sooner: from one second after\n"
         "the first.\n"
         ".PP\nIn the first milliseconds, while the loader maps the program's libraries, every signal that is not\n"
         "blocked ends the process, USR2 too, with status 128 + signal. A signal that is ignored when the program\n"
         "starts (nohup) stays ignored.\n"
         ".PP\nA launcher that is ended itself kills its ranks: mpirun about a second after\n"
         "Ctrl\\-C or TERM, srun at once at TERM or at a second Ctrl\\-C (its status is then 137, mpirun's 1 or\n"
         "another of its own). With a launcher, send USR2, which it\n"
         "passes on, or use\n.B scancel \\-\\-signal=TERM\nor\n.BR \"tercio save\" ;\n"
         "or start by\n.BR tercio\\-srun ,\nwhose first Ctrl\\-C asks the ranks to save and stop.\n"
         ".PP\nSIGPIPE and SIGXFSZ are ignored: a pipe without a reader and a file size limit are errors of the\n"
         "write. A crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) is reported in one line, with the node, the\n"
         "step and what the thread was doing; the status stays 128 + signal. Where a limit on memory (ulimit \\-v)\n"
         "is used up, the line says so, and the status is 2. If a library calls exit, that is\n"
         "reported in the same way, with the library's status, and the status of the process is 2. A stack\n"
         "(ulimit \\-s) of less than 1 MiB is raised, or else refused with status 2; with less than about 16 KiB,\n"
         "or an address space too small for its libraries (ulimit \\-v), the program cannot be loaded.\n");
}

static void print_man_commands(void)
{
  for (int i = 0; i < N_COMMANDS; i++) {
    printf(".TP\n.B tercio %s\n", commands[i].cmd.name);
    tc_roff_line(stdout, "", commands[i].cmd.help);
    if (commands[i].flags) {
      printf(".RS\n");
      tc_flags_print(stdout, commands[i].flags, NULL, NULL, 0);
      printf(".RE\n");
    }
    tc_roff_line(stdout, ".IP\n.EX\n", commands[i].cmd.example);
    printf(".EE\n");
  }
}

static void print_man_annotations(void)
{
  printf(".SH ANNOTATIONS\n"
         "The file of\n.B parallel.annotations\nhas one row per line, in one of two forms:\n"
         ".IP\nPATTERN AXIS PLACE\n.br\nPATTERN AXIS STORE USE ACC UPDATE [KEEP]\n.PP\n"
         "The first form places every tensor whose name matches the pattern; of a parameter it sets all\n"
         "four placements. The second form is for parameters only. AXIS is dp or tp; a placement is R, S(d),\n"
         "S(*), P or at(k); KEEP is use, mb or step. \"#\" starts a comment. Rows replace, tensor by tensor and\n"
         "axis by axis, the placements of parallel.data and tensor parallelism.\n"
         ".B tercio graph \\-\\-after build\nlists the names.\n");
}

static void print_man(void)
{
  printf(".\\\" Made by tercio --man from src/config/options.def, src/cmd/main.c and src/cmd/flag_help.c.\n"
         ".TH TERCIO 1 \"\" \"tercio %s\" \"User Commands\"\n.ad l\n"
         ".SH NAME\ntercio \\- train transformers on Slurm clusters\n"
         ".SH SYNOPSIS\n", PACKAGE_VERSION);
  for (int i = 0; i < N_COMMANDS; i++) {
    char *usage = usage_of(i);
    printf("%s.B tercio %s\n", i ? ".br\n" : "", commands[i].cmd.name);
    tc_roff_line(stdout, "", usage);
    free(usage);
  }
  printf(".SH DESCRIPTION\n"
         "A run is described by a run file of [section] lines and \"key = value\" lines.\n"
         "Every key is also a flag,\n.BR \\-\\-section.key=value ,\n"
         "which overrides the file; the run file is optional. Relative paths refer to the folder in which the program "
         "starts.\nA \";\" after a blank, or a \";\" or \"#\" at the beginning of a line, starts a comment.\n"
         "A list of files may continue on indented lines. A line may have any length.\n"
         "Values are text in UTF\\-8. A value outside the limits of its option ends the program with status 2.\n"
         "A resumed run may have other settings than its checkpoint: a warning names each one that\n"
         "changes samples, learning rate or arithmetic. The layout may change freely; another model or\n"
         "train.optimizer is refused.\n"
         "The same run file and seed give the same losses on every layout, up to rounding.\n"
         ".SH COMMANDS\n");
  print_man_commands();
  printf(".PP\n.BR \"tercio \\-\\-help\" ,\n.B tercio\n.I COMMAND\n.B \\-\\-help\n"
         "and\n.B tercio \\-\\-version\nprint help and versions.\n"
         ".B tercio \\-\\-share\nprints the folder of train.sbatch and, of an installed program, of examples/:\n"
         ".IP\n.EX\nsbatch $(tercio \\-\\-share)/train.sbatch run.ini\n.EE\n"
         ".SH OPTIONS\n");
  tc_config_help(stdout, true);
  printf(".SH CHECKPOINTS\n");
  tc_cmd_ckpt_man(stdout);
  print_man_annotations();
  print_man_signals();
  tc_cmd_metrics_man();
  printf(".SH EXIT STATUS\n");
  for (int i = 0; i < N_STATUSES; i++) {
    printf(".TP\n.B %d\n", statuses[i].status);
    tc_roff_line(stdout, "", statuses[i].meaning);
  }
  printf(".SH FILES\n"
         ".TP\n.I OUT/metrics.jsonl\n"
         "one JSON object per step, with the keys of\n.BR METRICS .\nIf the file is removed or renamed during a run, a "
         "new one is made at the next checkpoint\n"
         ".TP\n.I OUT/run.json\n"
         "versions of the program and its libraries, the resolved configuration, mesh, placement of the\nranks, memory; of "
         "each rank predicted_comm, what it is to send in a step, start_comm, the control data that it\nsent before the "
         "first step, and peers, with how many ranks it has exchanged messages (all, ctl);\npredicted, the planner's "
         "figures for a step (run.plan_device); layouts, the steps after which\nlayout, batch or number of ranks changed\n"
         ".TP\n.I OUT/save\n"
         "a request of tercio save that the run has not seen yet\n"
         ".TP\n.I OUT/ckpt/step\\-*\n"
         "checkpoints: a folder of this name is complete\n"
         ".TP\n.I OUT/ckpt/quarantine\\-step\\-*, superseded\\-*\n"
         "checkpoints that were found damaged, or that are newer than the one from which the run resumed\n"
         ".TP\n.I OUT/ckpt/.run\\-*\n"
         "the lease of the run that writes into the folder: one run at a time\n"
         ".TP\n.I the files of data.train and data.val\n"
         "are read during the run and must not change until its end. If one changes or cannot be read,\n"
         "the run ends with status 2 before it saves anything trained on it\n"
         ".SH SEE ALSO\n.BR sbatch (1),\n.BR srun (1),\n.BR mpirun (1)\n");
}

static int print_share(void)
{
  struct tc_err err;
  char *folder = tc_share_folder(), *real = folder ? realpath(folder, NULL) : NULL;
  if (real) printf("%s\n", real);
  else tc_fail(&err, TC_EUSER, "cannot find train.sbatch in ../share/tercio, slurm or ../slurm from the program's "
               "folder; was Tercio installed with make install?");
  const int status = real ? 0 : tc_say_failure(&err);
  TC_FREE(folder, real);
  return status;
}

static void print_completion(void)
{
  tc_completion_begin(stdout);
  for (int i = 0; i < N_COMMANDS; i++) {
    char *usage = usage_of(i);
    tc_completion_command(stdout, commands[i].cmd.name, usage);
    free(usage);
  }
  tc_cmd_ckpt_completion(stdout);
}

/* ---- commands ------------------------------------------------------------------------------ */

static bool is_help(const char *arg)
{
  return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

/* The index of the command of this name; -1: none. */
static int find_command(const char *name)
{
  for (int i = 0; i < N_COMMANDS; i++)
    if (strcmp(name, commands[i].cmd.name) == 0) return i;
  return -1;
}

static int unknown_command(const char *word)
{
  const char *names[N_COMMANDS];
  for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].cmd.name;
  int near = tc_nearest(word, names, N_COMMANDS);
  struct tc_err err;
  tc_fail(&err, TC_EUSER, near < 0 ? "there is no command %s; tercio --help lists them"
                                   : "there is no command %s; did you mean %s?",
          word, near < 0 ? "" : names[near]);
  return tc_say_failure(&err);
}

/* The first words that ask for the command's help, unless the command prints it itself; NULL: none do. */
static char **find_help(int i, int argc, char **argv)
{
  for (int a = 1; a < argc && !(commands[i].how & HELP_OWN); a++)
    if (is_help(argv[a])) return argv + a;
  return NULL;
}

/* Signals have their effect from here on. */
static int start_command(int i, int argc, char **argv)
{
  const struct tc_stop_opts o = { .requests = commands[i].run, .say = tc_launch_rank() == 0,
                                  .alone = tc_launch_alone() };
  struct tc_stop *stop;
  struct tc_err err;
  const int rc = tc_stop_new(&stop, &o, &err);
  if (commands[i].run) return rc < 0 ? tc_say_failure(&err) : commands[i].run(argc, argv, stop);
  if (rc < 0) tc_stop_unblock();                  /* without the thread by default alone */
  return commands[i].cmd.run(argc, argv);
}

static int run_command(int argc, char **argv)
{
  const int i = argc < 1 ? -1 : find_command(argv[0]);
  char **help = i < 0 ? NULL : find_help(i, argc, argv);
  if (i >= 0 && !help) return start_command(i, argc, argv);
  tc_stop_unblock();
  if (help) return print_cmd_help(i, help[1] && *help[1] != '-' ? help[1] : NULL);
  if (argc < 1) {
    struct tc_err err;
    tc_fail(&err, TC_EUSER, "a command is missing; tercio --help lists them");
    return tc_say_failure(&err);
  }
  if (is_help(argv[0]) || strcmp(argv[0], "help") == 0) return print_help(), 0;
  if (strcmp(argv[0], "--version") == 0) return print_version(), 0;
  if (strcmp(argv[0], "--man") == 0) return print_man(), 0;
  if (strcmp(argv[0], "--share") == 0) return print_share();
  if (strcmp(argv[0], "--completion") == 0) return print_completion(), 0;
  return unknown_command(argv[0]);
}

/* Runs before libraries are initialised, where UCX handles HUP even if it was ignored (nohup). */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__    /* these are initialised like libraries */
__attribute__((constructor)) static void first(void) { tc_stop_block(); }
#else
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = tc_stop_block;
#endif

/* Whether the reader of the output (head) has closed its pipe, which is not an error. */
static bool reader_left(void)
{
  struct stat st;
  return fstat(STDOUT_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* Whether a command prints data, which keep their bytes unless they go to a terminal. All else is text. */
static bool prints_data(int argc, char **argv)
{
  static const struct { const char *command, *sub; } data[] = {
    { "sample", NULL }, { "data", "decode" }, { "ckpt", "latest" }, { "--share", NULL } };
  bool is = false;
  for (size_t i = 0; i < sizeof data / sizeof *data && argc > 1; i++)
    if (!strcmp(argv[1], data[i].command)) is = !data[i].sub || (argc > 2 && !strcmp(argv[2], data[i].sub));
  for (int i = 2; i < argc; i++)
    if (!strcmp(argv[i], "--json")) is = false;
  return is;
}

int main(int argc, char **argv)
{
  struct tc_process *process = tc_process_begin();
  if (isatty(STDOUT_FILENO) || !prints_data(argc, argv)) tc_plain_stdout();
  int status = run_command(argc - 1, argv + 1);
  if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0 && !reader_left()) {
    struct tc_err err;
    tc_fail(&err, TC_EUSER, "cannot write standard output: %s", strerror(errno));
    status = tc_say_failure(&err);
  }
  return tc_process_end(process, status);
}
