/* t_slurm_words.c - what Slurm says of nodes: every state with every flag and mark, alone and in pairs, against a list
 * that this test has of its own; Gres strings; and numbers that no node has, through a scontrol that prints them. */
#include "src/launch/slurm.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

#include <sys/stat.h>
#include <unistd.h>

/* sinfo(1), NODE STATE CODES, and node_state_string of Slurm's sources. '+': jobs may start there, now or later; '-':
 * not before a person has acted; '*': it does not answer; '~': so do nodes that are off or start. */
static const struct { const char *word; char is; } bases[] = {
  { "IDLE", '+' }, { "ALLOCATED", '+' }, { "MIXED", '+' }, { "DOWN", '-' }, { "ERROR", '-' }, { "FUTURE", '-' },
  { "UNKNOWN", '-' } };
static const struct { const char *word; char is; } flags[] = {
  { "", '+' }, { "BLOCKED", '+' }, { "CLOUD", '+' }, { "COMPLETING", '+' }, { "DRAIN", '-' }, { "DYNAMIC_FUTURE", '+' },
  { "DYNAMIC_NORM", '+' }, { "FAIL", '-' }, { "INVALID_REG", '-' }, { "MAINTENANCE", '+' }, { "NOT_RESPONDING", '*' },
  { "PERFCTRS", '+' }, { "PLANNED", '+' }, { "POWER", '~' }, { "POWER_DOWN", '+' }, { "POWER_UP", '~' },
  { "POWERED_DOWN", '~' }, { "POWERING_DOWN", '~' }, { "POWERING_UP", '~' }, { "REBOOT_ISSUED", '~' },
  { "REBOOT_REQUESTED", '+' }, { "RESERVED", '+' }, { "RESUME", '+' }, { "MORE_OF_THIS", '?' }, { "IDL", '?' },
  { "DOWNWARDS", '?' } };
static const struct { const char *word; char is; } joined[] = {
  { "DRAINED", '-' }, { "DRAINING", '-' }, { "FAILING", '-' }, { "INVAL", '-' }, { "MAINT", '+' }, { "REBOOT", '+' } };
static const struct { const char *mark; char is; } marks[] = {
  { "", '+' }, { "*", '*' }, { "~", '~' }, { "#", '~' }, { "%", '~' }, { "^", '~' }, { "!", '+' }, { "$", '+' },
  { "@", '+' }, { "-", '+' } };
#define N(list) (sizeof(list) / sizeof *(list))

static int cases, wrong;

static void try(const char *state, const char *is)
{
  char word[64];
  const bool bad = strchr(is, '-') || (strchr(is, '*') && !strchr(is, '~'));
  const enum tc_slurm_state want = bad ? TC_SLURM_STATE_BAD : strchr(is, '?') ? TC_SLURM_STATE_UNKNOWN
                                                                              : TC_SLURM_STATE_GOOD;
  const enum tc_slurm_state got = tc_slurm_state_of(state, word, sizeof word);
  const bool named = want != TC_SLURM_STATE_UNKNOWN || (*word && strstr(*state ? state : "none", word));
  cases++;
  if (got == want && named) return;
  if (wrong++ < 5) printf("# %s: %d, not %d (%s)\n", state, got, want, word);
}

static void test_states(void)
{
  char state[200], is[8];
  for (size_t b = 0; b < N(bases); b++)
    for (size_t i = 0; i < N(flags); i++)
      for (size_t k = 0; k < N(flags); k++)
        for (size_t m = 0; m < N(marks); m++)
          for (int late = 0; late < 2; late++) {         /* "IDLE*+CLOUD", "IDLE+CLOUD*" */
            snprintf(state, sizeof state, "%s%s%s%s%s%s%s", bases[b].word, late ? "" : marks[m].mark,
                     *flags[i].word ? "+" : "", flags[i].word, *flags[k].word ? "+" : "", flags[k].word,
                     late ? marks[m].mark : "");
            snprintf(is, sizeof is, "%c%c%c%c", bases[b].is, flags[i].is, flags[k].is, marks[m].is);
            try(state, is);
          }
  for (size_t j = 0; j < N(joined); j++)
    for (size_t i = 0; i < N(flags); i++) {
      snprintf(state, sizeof state, "%s%s%s", joined[j].word, *flags[i].word ? "+" : "", flags[i].word);
      snprintf(is, sizeof is, "%c%c", joined[j].is, flags[i].is);
      try(state, is);
    }
  try("ALLOCATED+", "+");
  try("", "?+");
  is_int(wrong, 0, "%d states with flags and marks", cases);
}

static void test_gres(void)
{
  static const struct { const char *list; double gpus; const char *type; } row[] = {
    { "(null)", 0, "" }, { "", 0, "" }, { "gpu", 1, "" }, { "gpu:8", 8, "" }, { "gpu:a100:8", 8, "a100" },
    { "gpu:a100:8(S:0-1)", 8, "a100" }, { "gpu:a100:8(S:0,2-3),shard:32", 8, "a100" }, { "gpu:(null):4(S:0)", 4, "" },
    { "gpu:a100", 1, "a100" }, { "gpu:h100:no_consume:4", 4, "h100" }, { "gpu:2K", 2048, "" },
    { "shard:gpu:9", 0, "" }, { "gpus:4", 0, "" }, { "mps:gpu:3,gpu:2", 2, "" }, { "gpu:1g.5gb:7", 7, "1g.5gb" },
    { "gpu:2,gpu:h100:3", 5, "h100" }, { "gpu:", 1, "" }, { "gpu:4(S:0", 4, "" } };
  for (size_t i = 0; i < N(row); i++) {
    struct tc_slurm_gres g;
    double gpus = 0;
    char type[64] = "";
    for (const char *at = row[i].list; at && *at;) {
      at = tc_slurm_gres_next(at, &g);
      if (strcmp(g.name, "gpu")) continue;
      gpus += g.count;
      if (*g.type) snprintf(type, sizeof type, "%s", g.type);
    }
    ok(gpus == row[i].gpus && !strcmp(type, row[i].type), "Gres=%s: %g %s", row[i].list, gpus, type);
  }
}

/* Figures beyond what a machine has, and the largest sums of those that are accepted. */
static void test_numbers(const char *dir)
{
  static const struct { const char *node, *partition, *want; } row[] = {
    { "CPUTot=8 Gres=gpu:2147483647,gpu:2147483647", "", "Gres=gpu:2147483647" },
    { "CPUTot=8 Gres=gpu:a100:4096,gpu:a100:1", "", "Gres=" }, { "CPUTot=8 Gres=gpu:99999999999999999999", "", "Gres=" },
    { "CPUTot=8 Gres=gpu:8P", "", "Gres=" }, { "CPUTot=2147483648", "", "CPUTot=2147483648" },
    { "CPUTot=-1", "", "CPUTot=-1" }, { "CPUTot=8 Sockets=1e9", "", "Sockets=1e9" },
    { "CPUTot=8 RealMemory=1e300", "", "RealMemory=1e300" }, { "CPUTot=8", "MaxNodes=4294967296", "MaxNodes=4294967296" },
    { "CPUTot=8 Gres=gpu:a100:4096 Sockets=1048576 RealMemory=1000000000000", "MaxNodes=1048576", NULL },
    { "CPUTot=1048576 Sockets=1048576", "MaxNodes=UNLIMITED", NULL } };
  char *path = tc_sprintf("%s/scontrol", dir);
  for (size_t i = 0; i < N(row); i++) {
    struct tc_slurm_part part;
    struct tc_err err = { 0 };
    FILE *f = fopen(path, "w");
    if (!ok(f != NULL, "a scontrol")) break;
    fprintf(f, "#!/bin/sh\ncase $3 in\npartition) echo 'PartitionName=p Default=YES %s State=UP' ;;\n"
            "nodes) echo 'NodeName=a %s State=IDLE Partitions=p' ;;\n"
            "*) echo 'SwitchName=s Level=0 Nodes=a[0-9223372036854775807,-9-99999999999999999999,3]' ;;\nesac\n",
            row[i].partition, row[i].node);
    fclose(f);
    chmod(path, 0755);
    const int rc = tc_slurm_read(&part, "p", NULL, &err);
    if (row[i].want) ok(rc == TC_EUSER && strstr(err.text, row[i].want), "%s: %s", row[i].node, err.text);
    else ok(rc == 0 && part.nodes == 1, "%s: %d GPUs%s", row[i].node, part.gpus, err.text);
  }
  remove(path);
  free(path);
}

static void test_slices(void)
{
  static const char *const slices[] = { "1g.5gb", "a100_1g.10gb", "nvidia_h100_80gb_hbm3_3g.40gb", "1g.10gb+me", "7g.80GB" };
  static const char *const whole[] = { "", "a100", "nvidia_h100_80gb_hbm3", "g.5gb", "1g.gb", "1g5gb", "a100-sxm4-80gb" };
  for (size_t i = 0; i < N(slices); i++) ok(tc_slurm_is_slice(slices[i]), "%s is a slice", slices[i]);
  for (size_t i = 0; i < N(whole); i++) ok(!tc_slurm_is_slice(whole[i]), "\"%s\" is a whole GPU", whole[i]);
}

/* Random nodes with several types of GPU, counted by names here. */
struct tally { char name[64]; int nodes, usable; };

static int tally(struct tally *t, int n, const char *name, bool usable)
{
  int i = 0;
  while (i < n && strcmp(t[i].name, name)) i++;
  if (i == n) t[n++] = (struct tally){ .usable = usable };
  snprintf(t[i].name, sizeof t[i].name, "%s", name);
  t[i].nodes++;
  return n;
}

static int random_nodes(struct tally *t, FILE *f)
{
  static const char *const types[] = { "a100", "h100", "v100", "1g.10gb", "l40s" };
  int n = 0;
  for (int nodes = (int)draw(1, 8), i = 0; i < nodes; i++) {
    int count[N(types)] = { 0 };
    const int cpus = draw(0, 1) ? 32 : 64;
    char name[64];
    bool any = false;
    fprintf(f, "echo 'NodeName=n%d CPUTot=%d State=IDLE Partitions=p Gres=shard:2", i, cpus);
    for (int k = (int)draw(0, 3); k-- > 0;) {
      const int of = (int)draw(0, N(types) - 1), more = (int)draw(1, 2);
      count[of] += more;
      fprintf(f, ",gpu:%s:%d(S:0-1)", types[of], more);
    }
    fprintf(f, "'\n");
    for (size_t k = 0; k < N(types); k++) {
      if (!count[k]) continue;
      any = true;
      snprintf(name, sizeof name, "%s:%d/%d", types[k], count[k], cpus);
      n = tally(t, n, name, k != 2 && k != 3);
    }
    snprintf(name, sizeof name, "cpu/%d", cpus);
    if (!any) n = tally(t, n, name, true);
  }
  return n;
}

static void test_kinds(const char *dir)
{
  char *path = tc_sprintf("%s/scontrol", dir);
  random_state = 5;
  int wrong = 0, kinds = 0;
  for (int i = 0; i < 12; i++) {
    struct tally t[32];
    FILE *f = fopen(path, "w");
    if (!ok(f != NULL, "a scontrol")) break;
    fprintf(f, "#!/bin/sh\ncase $3 in\npartition) echo 'PartitionName=p Default=YES State=UP' ;;\nnodes)\n");
    const int n = random_nodes(t, f);
    fprintf(f, ";;\nesac\n");
    fclose(f);
    chmod(path, 0755);
    int all = 0;
    for (int k = 0; k < n; k++) all += t[k].nodes;
    for (int k = 0; k < n; k++, kinds++) {
      struct tc_slurm_part part;
      struct tc_err err = { 0 };
      const int rc = tc_slurm_read(&part, "p", t[k].name, &err);
      int others = 0;
      for (int m = 0; rc == 0 && m < part.n_left_out; m++) others += part.left_out[m].nodes;
      if (t[k].usable ? rc == 0 && part.nodes == t[k].nodes && others == all - part.nodes && part.mixed == (n > 1) : rc == TC_EUSER) continue;
      printf("# %s: %d of %d nodes, %s\n", t[k].name, rc ? -1 : part.nodes, t[k].nodes, err.text);
      wrong++;
    }
  }
  ok(wrong == 0 && kinds > 30, "%d kinds of nodes: each by itself, the others left out; what no job can have is refused", kinds);
  remove(path);
  free(path);
}

/* Leaf switches, through a scontrol that expands "a[1-3]" alone, refuses lists with '!' as Slurm does, and writes its calls
 * down. */
static void test_switches(const char *dir)
{
  static const struct { const char *nodes[6]; int switches, median, calls; } row[] = {
    { { NULL }, 0, 0, 0 }, { { "a1" }, 1, 0, 1 }, { { "a[1-3]", "a[4-5],b1", "c1" }, 3, 3, 1 },
    { { "a[1-2]", "none[1-9]", "a3,a4" }, 2, 2, 1 },             /* a switch without our nodes */
    { { "a[1-2]", "b!", "a3", "a[4-5]", "c1" }, 4, 2, 5 },       /* 5 lists; 2, of which 1 and 1 alone; 3 */
    { { "b!", "a!" }, 0, 0, 3 } };
  char *path = tc_sprintf("%s/scontrol", dir), *calls = tc_sprintf("%s/calls", dir);
  for (size_t i = 0; i < N(row); i++) {
    struct tc_slurm_part part;
    struct tc_err err = { 0 };
    FILE *f = fopen(path, "w");
    if (!ok(f != NULL, "a scontrol")) break;
    fputs("#!/bin/sh\ncase $3 in\npartition) echo 'PartitionName=p Default=YES State=UP' ;;\nnodes)\n", f);
    for (const char *const *name = (const char *const[]){ "a1", "a2", "a3", "a4", "a5", "b1", "c1", NULL }; *name; name++)
      fprintf(f, "echo 'NodeName=%s CPUTot=8 State=IDLE Partitions=p'\n", *name);
    fputs(";;\ntopology)\necho 'SwitchName=top Level=1 Nodes=a[1-5]'\n", f);
    for (int k = 0; k < 6 && row[i].nodes[k]; k++) fprintf(f, "echo 'SwitchName=s%d Level=0 Nodes=%s'\n", k, row[i].nodes[k]);
    fprintf(f, ";;\nhostnames) echo x >> %s\ncase $4 in *!*) echo \"Invalid hostlist: $4\"; exit ;; esac\n"
            "echo \"$4\" | tr , '\\n' | while IFS='[-]' read -r name first last; do\n"
            "case $first in [0-9]*) seq -f \"$name%%g\" $first $last ;; *) echo \"$name${first:+-$first}${last:+-$last}\" ;; "
            "esac; done ;;\nesac\n", calls);
    fclose(f);
    chmod(path, 0755);
    is_int(tc_slurm_read(&part, "p", NULL, &err), 0, "%s", *err.text ? err.text : "a topology");
    is_int(part.switches, row[i].switches, "... its leaf switches");
    is_int(part.switch_nodes, row[i].median, "... nodes of the median one");
    struct stat st;
    is_int(stat(calls, &st) ? 0 : (int)st.st_size / 2, row[i].calls, "... calls of scontrol for them");
    remove(calls);
  }
  remove(path);
  free(calls);
  free(path);
}

int main(void)
{
  char dir[] = "t_slurm_words.XXXXXX";
  test_states();
  test_gres();
  if (!ok(mkdtemp(dir) != NULL, "a folder")) return done_testing();
  char *path = tc_sprintf("./%s:%s", dir, getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
  setenv("PATH", path, 1);
  test_numbers(dir);
  test_slices();
  test_kinds(dir);
  test_switches(dir);
  rmdir(dir);
  free(path);
  return done_testing();
}
