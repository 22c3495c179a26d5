/* t_train.c - runs of the program itself (TERCIO), of a model of thousands of parameters, in a folder of
 * their own: they go on where others ended, or in another layout, and have the same losses. */
#include "tests/unit/tap.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char logged[8000];            /* by the last run, on stderr */
static rlim_t most_bytes;          /* of a file that the next run writes; 0: as many as it likes */

/* Exit status of a command, a line of words, in the current folder. */
static int run(char *line)
{
  char *argv[40], *save = NULL;
  int argc = 0, status = -1;
  for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
  argv[argc] = NULL;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    int err = open("reported", O_WRONLY | O_CREAT | O_TRUNC, 0600), out = open("/dev/null", O_WRONLY);
    if (err < 0 || dup2(err, STDERR_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0) _exit(99);
    alarm(300);
    signal(SIGXFSZ, SIG_IGN);      /* writing fails instead */
    if (most_bytes && setrlimit(RLIMIT_FSIZE, &(struct rlimit){ most_bytes, most_bytes }) < 0) _exit(99);
    execv(getenv("TERCIO"), argv);
    _exit(99);
  }
  waitpid(child, &status, 0);
  FILE *f = fopen("reported", "r");
  logged[f ? fread(logged, 1, sizeof logged - 1, f) : 0] = 0;
  if (f) fclose(f);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ... of `tercio train` with these options beside the model's. */
TAP_FORMAT(1, 2)
static int train(const char *fmt, ...)
{
  char line[1200];
  va_list ap;
  va_start(ap, fmt);
  int n = snprintf(line, sizeof line, "tercio train --model.layers=1 --model.hidden=16 --model.heads=2 "
                   "--model.context=8 --model.vocab=256 --data.train=text --train.global_batch=2 "
                   "--train.steps=8 --train.eval_batches=1 --run.threads=1 --ckpt.retry_minutes=0 ");
  vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
  va_end(ap);
  return run(line);
}

/* The numbers of a run's steps that are the same however often it was interrupted, a line each. */
static char *steps_of(const char *folder)
{
  static const char *const key[] = { "\"step\": ", "\"loss\": ", "\"lr\": ", "\"grad_norm\": ", "\"tokens\": " };
  char path[100], line[4000], *text = NULL;
  size_t size = 0;
  snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
  FILE *f = fopen(path, "r"), *to = open_memstream(&text, &size);
  while (f && fgets(line, sizeof line, f))
    for (int k = 0; k < 5; k++) {
      const char *at = strstr(line, key[k]);
      if (at) fprintf(to, "%.*s%c", (int)strcspn(at + strlen(key[k]), ",}"), at + strlen(key[k]), k < 4 ? ' ' : '\n');
    }
  if (f) fclose(f);
  fclose(to);
  return text;
}

/* How many entries of a folder begin so. */
static int count(const char *folder, const char *begins)
{
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, begins, strlen(begins));
  if (d) closedir(d);
  return n;
}

static void is_status(int got, int want, const char *what)
{
  if (is_int(got, want, "%s: status %d", what, want)) return;
  for (char *save = NULL, *l = strtok_r(logged, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) printf("# %s\n", l);
}

static bool there(const char *path)
{
  struct stat st;
  return stat(path, &st) == 0;
}

static void same_steps(const char *folder, const char *want, const char *what)
{
  char *got = steps_of(folder);
  is_str(got, want, "%s", what);
  free(got);
}

/* The run goes on from an earlier checkpoint than its last: the later ones are kept under another
 * name. */
static void test_earlier(const char *whole)
{
  is_status(train("--run.out=a --ckpt.every=2 --ckpt.keep=9 --ckpt.resume=4"), 0,
            "from the checkpoint of step 4");
  ok(strstr(logged, "resumed from a/ckpt/step-00000004, step 4") != NULL, "... it says so");
  is_int(count("a/ckpt", "superseded-step-00000006-"), 1, "... step 6's is set aside");
  is_int(count("a/ckpt", "superseded-step-00000008-"), 1, "... and step 8's");
  is_int(count("a/ckpt", "superseded-"), 2, "... no other");
  ok(strstr(logged, "a/ckpt/step-00000006: the run goes on from before it: kept as superseded-step-00000006-"),
     "... as a warning has it");
  ok(there("a/ckpt/step-00000002") && there("a/ckpt/step-00000004"), "... earlier ones stay");
  ok(there("a/ckpt/step-00000006") && there("a/ckpt/step-00000008"), "... later ones are written again");
  same_steps("a", whole, "... metrics are those of one go");
}

/* The largest relative difference of the losses in two runs' steps; 1 if they have not the same steps. */
static double difference(const char *folder, const char *whole)
{
  char *got = steps_of(folder), *a = got;
  const char *b = whole;
  double worst = *a && *b ? 0 : 1;
  while (*a && *b) {
    double x = 0, y = 0;
    int i = 0, k = 0;
    if (sscanf(a, "%d %lf", &i, &x) != 2 ||
        sscanf(b, "%d %lf", &k, &y) != 2 || i != k) worst = 1;
    const double d = fabs(x - y) / fabs(y);
    worst = isfinite(d) ? fmax(worst, d) : 1;
    a += strcspn(a, "\n"), a += *a == '\n';
    b += strcspn(b, "\n"), b += *b == '\n';
  }
  if (*a || *b) worst = 1;
  free(got);
  return worst;
}

/* Rows that split the tokens on every axis, where a micro-batch has fewer sequences than ranks, or
 * not a multiple of them: sequences are split, too. */
static void test_split_sequences(void)
{
  static const char rows[] = "tokens dp S(0)\ntargets dp S(0)\ntokens tp S(0)\ntargets tp S(0)\n"
    "* tp S(*) R S(*) S(*) use\n* dp R R P R\n";
  static const struct { int batch, micro; const char *layout; } row[] = {
    { 2, 1, "--run.ranks=2 --mesh.tp=2" }, { 4, 1, "--run.ranks=4 --mesh.tp=2" },
    { 6, 3, "--run.ranks=4 --mesh.tp=2" }, { 4, 2, "--run.ranks=8 --mesh.tp=4" } };
  FILE *f = fopen("rows", "w");
  if (f) fputs(rows, f), fclose(f);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char one[20], split[20];
    snprintf(one, sizeof one, "one%zu", i);
    snprintf(split, sizeof split, "split%zu", i);
    is_status(train("--run.out=%s --ckpt.resume=no --train.eval_every=2 --train.global_batch=%d --train.micro_batch=%d",
                    one, row[i].batch, row[i].micro), 0, "one rank");
    char *want = steps_of(one);
    is_status(train("--run.out=%s --ckpt.resume=no --train.eval_every=2 --train.global_batch=%d --train.micro_batch=%d "
                    "--parallel.annotations=rows %s", split, row[i].batch, row[i].micro, row[i].layout), 0,
              row[i].layout);
    double d = difference(split, want);
    ok(d < 1e-4, "%d sequences, %d in a micro-batch, %s: losses of one rank to %.1e", row[i].batch,
       row[i].micro, row[i].layout, d);
    free(want);
  }
}

/* Runs on a device with memory of its own (emulated), whose transfers pass through host memory. */
static void test_separate(const char *folder)
{
  static const char *const layout[] = { "--run.ranks=2 --parallel.data=zero3", "--run.ranks=2 --mesh.tp=2",
                                        "--run.ranks=2 --train.micro_batch=1" };
  if (!folder || !*folder) {
    skip("no C++ compiler to build the emulated module with");
    return;
  }
  setenv("TERCIO_MODULES", folder, 1);
  char *want = steps_of("a");
  for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
    char out[20];
    snprintf(out, sizeof out, "gpu%zu", i);
    is_status(train("--run.out=%s --run.device=cuda --train.precision=fp32 --run.comm=thread %s", out, layout[i]), 0, layout[i]);
    double d = difference(out, want);
    ok(d < 1e-4, "... losses of the CPU's to %.1e", d);
    ok(!strstr(logged, "can't be captured"), "... and kernels between transfers are captured");
  }
  free(want);
}

/* The time that is predicted for a device, in run.json. */
static void test_plan_device(void)
{
  static const struct { const char *device; int status; const char *says; } row[] = {
    { "cpu", 0, "\"device\": \"cpu\"," }, { "a100-80", 0, "\"device\": \"a100-80\"," },
    { "no", 0, "\"predicted\": null" }, { "a100-88", 2, "did you mean a100-80?" },
    { "./none.ini", 2, "./none.ini" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char json[60000] = "", what[60];
    snprintf(what, sizeof what, "run.plan_device = %s", row[i].device);
    is_status(train("--run.out=plan%zu --train.stop_at=1 --run.plan_device=%s", i, row[i].device), row[i].status,
              what);
    snprintf(what, sizeof what, "plan%zu/run.json", i);
    FILE *f = fopen(what, "r");
    if (f) json[fread(json, 1, sizeof json - 1, f)] = 0;
    if (f) fclose(f);
    const char *predicted = strstr(json, "\"predicted\": "), *text = row[i].status ? logged : predicted;
    ok(text && strstr(text, row[i].says), "... says %s", row[i].says);
    const char *step = predicted ? strstr(predicted, "\"step_s\": ") : NULL;
    ok(row[i].status || (step ? atof(step + 10) > 0 : i == 2), "... with a time, if there is a device");
  }
}

/* Files may be of 40 kB, and a checkpoint is more: the last one's failure is the run's. */
static void test_no_room(void)
{
  most_bytes = 40000;
  is_status(train("--run.out=full --ckpt.every=4"), 2, "checkpoints that can't be written");
  most_bytes = 0;
  ok(strstr(logged, "warning: checkpoint of step 4 failed, and there is none before it: full/ckpt/") != NULL,
     "... the first is reported");
  const char *last = strstr(logged, "tercio: step 8 is not saved: full/ckpt/");
  ok(last && strstr(last, "File too large"), "... as is the last, with the reason");
  is_int(count("full/ckpt", "step-"), 0, "... none is there");
}

/* A page of a run; its figures by axis, and a trace that is not there. */
static void test_report(void)
{
  char page[] = "tercio report sent -o sent.html", none[] = "tercio report sent -o none.html --trace none.json";
  char step[] = "tercio report sent -o none.html --step 2", *html = calloc(1, 500000);
  is_status(train("--run.out=sent --run.ranks=2 --parallel.data=zero3"), 0, "a run of two ranks");
  is_status(run(page), 0, "its report");
  FILE *f = fopen("sent.html", "r");
  if (f && html) html[fread(html, 1, 499999, f)] = 0;
  if (f) fclose(f);
  ok(html && strstr(html, "sent by rank 0 on dp per step"), "... has what was sent on dp");
  ok(html && !strstr(html, "sent by rank 0 on tp") && !strstr(html, "sent by rank 0 on pp"), "... and on no other axis");
  ok(html && strstr(html, "</title>\n<style>\n"), "... and a style");
  is_status(run(none), 2, "a trace that is not there");
  ok(strstr(logged, "none.json") != NULL, "... is named");
  is_status(run(step), 2, "a step of no trace");
  ok(strstr(logged, "--step 2: the run has no trace") != NULL, "... is not looked for");
  ok(!there("none.html"), "... and no page is made");
  free(html);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
  (void)st, (void)type, (void)at;
  return remove(path);
}

int main(void)
{
  const char *tmp = getenv("TMPDIR");
  char dir[80];
  if (!getenv("TERCIO")) skip_all("TERCIO is not set");
  snprintf(dir, sizeof dir, "%.40s/t_train.XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(dir) || chdir(dir) < 0) {
    printf("Bail out! no folder in %s\n", dir);
    return 1;
  }
  FILE *f = fopen("text", "w");
  for (int i = 0; f && i < 2000; i++) fprintf(f, "%d %c", i * i % 977, 'a' + i % 26);
  if (f) fclose(f);
  const time_t began = time(NULL);
  is_status(train("--run.out=a --ckpt.every=2 --ckpt.keep=9"), 0, "8 steps");
  int lines = 0;                       /* of the first step, of the last, and every 2 s */
  for (const char *l = logged; (l = strstr(l, "step ")); l++) lines += l == logged || l[-1] == '\n';
  ok(lines >= 2 && lines <= 3 + (int)(time(NULL) - began) / 2, "... in %d lines", lines);
  char *whole = steps_of("a");
  is_int(count("a/ckpt", "step-"), 4, "... and 4 checkpoints");
  test_earlier(whole);
  free(whole);
  test_split_sequences();
  test_plan_device();
  test_report();
  test_no_room();
  test_separate(getenv("TC_EMU_MODULES"));
  if (chdir("/") == 0) nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  return done_testing();
}
