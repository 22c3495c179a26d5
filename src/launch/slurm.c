/* slurm.c - a cluster as Slurm describes it: `scontrol show` of partitions, nodes and the
 * topology. Slurm's library is not used: the one-line output of its tools is KEY=VALUE, in all
 * versions. Every call has a time limit.
 *
 * A partition may have nodes of several kinds, and a node GPUs of several types; a plan is for one, the kind with most devices
 * of those that are asked for. */
#include "src/launch/slurm.h"
#include "src/launch/stop.h"
#include "src/plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SCONTROL_S = 30 };

/* The output of scontrol; owned by the caller. Its error message goes into err. */
static int ask(char **out, const char *what, struct tc_err *err)
{
  char *command = tc_sprintf("timeout %d scontrol -o show %s 2>&1", SCONTROL_S, what);
  char *text = NULL, buf[4096];
  size_t size = 0, n;
  tc_stop_unblock();                       /* for timeout, which ends scontrol by TERM */
  FILE *mem = open_memstream(&text, &size), *f = popen(command, "r");
  tc_stop_block();
  TC_ASSERT(mem);
  while (f && (n = fread(buf, 1, sizeof buf, f)) > 0) fwrite(buf, 1, n, mem);
  int status = f ? pclose(f) : -1, code = status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  fclose(mem);
  free(command);
  *out = text;
  if (code == 0) return 0;
  text[strcspn(text, "\n")] = 0;
  int rc = code == 127 || code == -1
         ? tc_fail(err, TC_EUSER, "--from-slurm: scontrol is not installed here; plan on a machine of the "
                   "cluster, or give --nodes and --gpus-per-node")
         : code == 124
         ? tc_fail(err, TC_EUSER, "--from-slurm: scontrol show %s has not answered for %d s; is slurmctld "
                   "up? Else give --nodes and --gpus-per-node", what, SCONTROL_S)
         : tc_fail(err, TC_EUSER, "--from-slurm: scontrol show %s: %.300s; without Slurm give --nodes "
                   "and --gpus-per-node", what, text);
  free(text);
  *out = NULL;
  return rc;
}

/* Copies the value of a key, in a line of KEY=VALUE words of which only values may have blanks, to buf ("" if
 * missing). Returns buf. */
static const char *get(const char *line, const char *key, char *buf, size_t size)
{
  size_t n = strlen(key);
  *buf = 0;
  for (const char *at = line; (at = strstr(at, key)); at += n) {
    if ((at > line && at[-1] != ' ') || at[n] != '=') continue;
    snprintf(buf, size, "%.*s", (int)strcspn(at + n + 1, " \n"), at + n + 1);
    break;
  }
  return buf;
}

/* No machine has more; sums of them, over all nodes of a cluster, are far from the limits of their types. */
enum { MOST_NODES = 1 << 20, MOST_CPUS = 1 << 20, MOST_GPUS = 1 << 12 };
#define MOST_MB 1e12

static int beyond(const char *of, const char *key, const char *value, double most, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "--from-slurm: scontrol says %s=%.100s of %.100s, which is no number from 0 to %.0f; "
                 "give --nodes and --gpus-per-node instead", key, value, of, most);
}

/* *out <- the number of a key, 0 if it has none (UNLIMITED, N/A) or is missing. of: what the line is about. */
static int get_number(double *out, const char *line, const char *key, const char *of, double most, struct tc_err *err)
{
  char buf[64];
  get(line, key, buf, sizeof buf);
  *out = buf[strspn(buf, "-")] >= '0' && buf[strspn(buf, "-")] <= '9' ? strtod(buf, NULL) : 0;
  return *out >= 0 && *out <= most ? 0 : beyond(of, key, buf, most, err);
}

/* ---- partitions ------------------------------------------------------------------ */

/* "1-00:00:00" or UNLIMITED, which is 0. */
static double limit_s(const char *text)
{
  const double s = tc_parse_seconds(text), most_s = 60.0 * UINT32_MAX;    /* Slurm counts minutes in 32 bits */
  return s > 0 && s <= most_s ? s : 0;
}

enum { MOST_NAMES = 64 };

static int unknown_partition(const char *want, const char *const *names, int n, struct tc_err *err)
{
  char list[300] = "";
  for (int i = 0; i < n; i++) tc_text_add(list, sizeof list, "%s%s", i ? ", " : "", names[i]);
  if (!want)
    return tc_fail(err, TC_EUSER, "--from-slurm: no partition is the default one; name one with "
                   "--partition; there are %s", list);
  int near = tc_nearest(want, names, n);
  if (near < 0)
    return tc_fail(err, TC_EUSER, "Slurm has no partition %s; there are %s", want, list);
  return tc_fail(err, TC_EUSER, "Slurm has no partition %s; did you mean %s? There are %s", want,
                 names[near], list);
}

static int read_partition(struct tc_slurm_part *s, int *most_nodes, const char *want,
                          struct tc_err *err)
{
  char *text, buf[64], yes[8], name[MOST_NAMES][64];
  const char *names[MOST_NAMES], *found = NULL, *only = NULL;
  TC_TRY(ask(&text, "partition", err));
  int n = 0, rc = 0;
  for (char *at = text, *line; (line = strsep(&at, "\n"));) {
    if (!*get(line, "PartitionName", buf, sizeof buf)) continue;
    only = line;
    if (want ? !strcmp(buf, want) : !strcmp(get(line, "Default", yes, sizeof yes), "YES")) found = line;
    if (n == MOST_NAMES) continue;
    snprintf(name[n], sizeof name[n], "%s", buf);
    names[n] = name[n];
    n++;
  }
  if (!want && n == 1) found = only;
  if (!found) {
    rc = unknown_partition(want, names, n, err);
  } else {
    get(found, "PartitionName", s->name, sizeof s->name);
    s->walltime_s = limit_s(get(found, "MaxTime", buf, sizeof buf));
    double most;
    rc = get_number(&most, found, "MaxNodes", s->name, MOST_NODES, err);
    *most_nodes = rc ? 0 : (int)most;
    if (!rc && strcmp(get(found, "State", buf, sizeof buf), "UP"))
      rc = tc_fail(err, TC_EUSER, "partition %s is %s: it starts no jobs", s->name, buf);
  }
  free(text);
  return rc;
}

/* ---- nodes ----------------------------------------------------------------------- */

/* A node, once for each type of GPU that it has. */
struct node {
  char name[64], gpu[64];
  int gpus, sockets, cpus;
  double memory_bytes;
};
struct nodes { struct node *x; int n, cap; };

/* Appends x with the GPUs of each type in the list. */
static int add_types(struct nodes *all, const struct node *x, const char *list, struct tc_err *err)
{
  struct tc_slurm_gres g;
  const int first = all->n;
  for (const char *at = list; at && *at;) {
    at = tc_slurm_gres_next(at, &g);
    if (strcmp(g.name, "gpu") || g.count <= 0) continue;
    int i = first;
    while (i < all->n && strcmp(all->x[i].gpu, g.type)) i++;
    if (i == all->n) {
      TC_APPEND(all->x, all->n, all->cap, *x);
      snprintf(all->x[i].gpu, sizeof all->x[i].gpu, "%s", g.type);
    }
    if (all->x[i].gpus + g.count > MOST_GPUS) return beyond(x->name, "Gres", list, MOST_GPUS, err);
    all->x[i].gpus += (int)g.count;
  }
  if (all->n == first) TC_APPEND(all->x, all->n, all->cap, *x);
  return 0;
}

static bool has_word(const char *list, const char *word)
{
  size_t n = strlen(word);
  for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == n && !strncmp(at, word, n)) return true;
  return false;
}

static bool alike(const struct node *a, const struct node *b)
{
  return a->gpus == b->gpus && a->cpus == b->cpus && !strcmp(a->gpu, b->gpu);
}

/* Why no job can have the node's GPUs; TC_SLURM_OTHER: it can. */
static enum tc_slurm_why why_not(const struct node *x)
{
  return tc_slurm_is_slice(x->gpu) ? TC_SLURM_SLICE : tc_plan_too_old(x->gpu) ? TC_SLURM_OLD : TC_SLURM_OTHER;
}

const char *tc_slurm_kind_name(char *buf, size_t size, int gpus, const char *gpu, int cpus)
{
  /* A type of that name is written as Slurm does, so that it is not the kind without one. */
  if (gpus) snprintf(buf, size, "%s%s:%d/%d", strcmp(gpu, "gpu") ? "" : "gpu:", *gpu ? gpu : "gpu", gpus, cpus);
  else snprintf(buf, size, "cpu/%d", cpus);
  return buf;
}

/* Whether a plan of the node is wanted. */
static bool is_wanted(const struct node *x, const struct tc_slurm_want *want)
{
  char name[128];
  tc_slurm_kind_name(name, sizeof name, x->gpus, x->gpu, x->cpus);
  const size_t n = want->kind ? strlen(want->kind) : 0;
  if (want->kind && (strncmp(name, want->kind, n) || !strchr(":/", name[n]))) return false;
  return !want->device || tc_plan_may_be(x->gpus ? x->gpu : "cpu", want->device);
}

/* Counts a node like x that is left out. x NULL: of which no more is known than its state. beside: it is used for other GPUs. */
static void leave_out(struct tc_slurm_part *s, enum tc_slurm_why why, const struct node *x, bool beside, const char *state)
{
  struct tc_slurm_kind kind = { .why = why };
  if (x) {
    kind.gpus = x->gpus;
    kind.cpus = x->cpus;
    snprintf(kind.gpu, sizeof kind.gpu, "%s", x->gpu);
  } else if (why == TC_SLURM_UNKNOWN) {
    snprintf(kind.state, sizeof kind.state, "%s", state);
  }
  int i = 0;
  for (; i < s->n_left_out; i++) {
    const struct tc_slurm_kind *k = &s->left_out[i];
    if (k->why == why && k->gpus == kind.gpus && k->cpus == kind.cpus && !strcmp(k->gpu, kind.gpu) &&
        !strcmp(k->state, kind.state)) break;
  }
  if (i == s->n_left_out) TC_APPEND(s->left_out, s->n_left_out, s->cap_left_out, kind);
  s->left_out[i].nodes++;
  s->left_out[i].beside += beside;
}

static int no_kind(const struct nodes *all, const struct tc_slurm_part *s, const struct tc_slurm_want *want, struct tc_err *err)
{
  char list[300] = "", name[128];
  for (int i = 0; i < all->n; i++) {
    int first = 0;
    while (!alike(&all->x[first], &all->x[i])) first++;
    if (first == i && why_not(&all->x[i]) == TC_SLURM_OTHER)
      tc_text_add(list, sizeof list, "%s%s", *list ? ", " : "",
                  tc_slurm_kind_name(name, sizeof name, all->x[i].gpus, all->x[i].gpu, all->x[i].cpus));
  }
  const struct tc_slurm_want any = { .kind = want->kind };
  bool kind = false;                             /* there is such a kind, but of another device */
  for (int i = 0; i < all->n && want->kind; i++) kind |= why_not(&all->x[i]) == TC_SLURM_OTHER && is_wanted(&all->x[i], &any);
  if (kind)
    return tc_fail(err, TC_EUSER, "--kind = %s is no %s, which --device says", want->kind, want->device);
  return tc_fail(err, TC_EUSER, "%s = %s: partition %s has no such nodes that can be used; it has %s",
                 want->kind ? "--kind" : "--device", want->kind ? want->kind : want->device, s->name, list);
}

static bool says_device(const struct node *x, const struct tc_slurm_want *want)
{
  const char *is = tc_plan_device_of(x->gpu);
  if (!want->device) return false;
  return x->gpus ? is && !strcmp(is, want->device) : tc_plan_may_be("cpu", want->device);
}

/* The wanted kind with most devices (GPUs or, without GPUs, CPUs), of those that Tercio supports; first of those whose type says
 * that they are of the wanted device. NULL: there is none. */
static const struct node *best_kind(const struct nodes *all, const struct tc_slurm_want *want)
{
  const struct node *best = NULL;
  double most = -1;
  for (int i = 0; i < all->n; i++) {
    double has = says_device(&all->x[i], want) ? MOST_NODES * (MOST_GPUS * 1e6 + MOST_CPUS) : 0;
    for (int k = 0; k < all->n; k++)
      if (alike(&all->x[i], &all->x[k])) has += all->x[k].gpus * 1e6 + all->x[k].cpus;
    if (has <= most || why_not(&all->x[i]) != TC_SLURM_OTHER || !is_wanted(&all->x[i], want)) continue;
    most = has;
    best = &all->x[i];
  }
  return best;
}

/* Whether the node of entry i, whose entries follow each other, is also of that kind. */
static bool is_also(const struct nodes *all, int i, const struct node *kind)
{
  int first = i;
  while (first > 0 && !strcmp(all->x[first - 1].name, all->x[i].name)) first--;
  for (int k = first; k < all->n && !strcmp(all->x[k].name, all->x[i].name); k++)
    if (alike(&all->x[k], kind)) return true;
  return false;
}

/* Keeps the nodes of the wanted kind. */
static int keep_kind(struct nodes *all, struct tc_slurm_part *s, const struct tc_slurm_want *want, struct tc_err *err)
{
  const struct node *found = best_kind(all, want);
  if (!found) return no_kind(all, s, want, err);
  struct node best = *found;
  for (int i = 0; i < all->n; i++) {
    if (alike(&all->x[i], &best)) continue;
    leave_out(s, why_not(&all->x[i]), &all->x[i], is_also(all, i, &best), NULL);
    s->mixed = true;
  }
  int n = 0;
  for (int i = 0; i < all->n; i++) {
    if (!alike(&all->x[i], &best)) continue;
    best.memory_bytes = TC_MIN(best.memory_bytes, all->x[i].memory_bytes);
    all->x[n++] = all->x[i];
  }
  s->nodes = all->n = n;
  s->gpus = best.gpus;
  s->sockets = TC_MAX(best.sockets, 1);
  s->cpus = TC_MAX(best.cpus, 1);
  s->memory_bytes = best.memory_bytes;
  snprintf(s->gpu, sizeof s->gpu, "%s", best.gpu);
  return 0;
}

/* The node of a line. */
static int read_node(struct nodes *all, const char *line, struct tc_err *err)
{
  char gres[1024];
  double cpus, sockets, mb;
  struct node x = { .gpus = 0 };
  get(line, "NodeName", x.name, sizeof x.name);
  TC_TRY(get_number(&cpus, line, "CPUTot", x.name, MOST_CPUS, err));
  TC_TRY(get_number(&sockets, line, "Sockets", x.name, MOST_CPUS, err));
  TC_TRY(get_number(&mb, line, "RealMemory", x.name, MOST_MB, err));
  x.cpus = (int)cpus;
  x.sockets = (int)sockets;
  x.memory_bytes = mb * 1048576;
  return add_types(all, &x, get(line, "Gres", gres, sizeof gres), err);
}

/* The nodes of the partition that jobs can start on; the others are counted. */
static int take_nodes(struct nodes *all, struct tc_slurm_part *s, char *text, struct tc_err *err)
{
  char buf[1024], word[sizeof s->left_out->state];
  for (char *at = text, *line; (line = strsep(&at, "\n"));) {
    if (!*get(line, "NodeName", buf, sizeof buf) || !has_word(get(line, "Partitions", buf, sizeof buf), s->name))
      continue;
    const enum tc_slurm_state state = tc_slurm_state_of(get(line, "State", buf, sizeof buf), word, sizeof word);
    if (state != TC_SLURM_STATE_GOOD) {
      leave_out(s, state == TC_SLURM_STATE_BAD ? TC_SLURM_DOWN : TC_SLURM_UNKNOWN, NULL, false, word);
      continue;
    }
    TC_TRY(read_node(all, line, err));
    if (all->n > MOST_NODES) return tc_fail(err, TC_EUSER, "--from-slurm: more than %d nodes", MOST_NODES);
  }
  return 0;
}

static int read_nodes(struct nodes *all, struct tc_slurm_part *s, struct tc_err *err)
{
  char *text;
  TC_TRY(ask(&text, "nodes", err));
  const int rc = take_nodes(all, s, text, err);
  free(text);
  TC_TRY(rc);
  const struct node *of[TC_SLURM_UNKNOWN + 1] = { NULL };
  for (int i = 0; i < all->n; i++) of[why_not(&all->x[i])] = &all->x[i];
  const struct node *old = of[TC_SLURM_OLD], *slice = of[TC_SLURM_SLICE];
  if (of[TC_SLURM_OTHER]) return 0;
  if (slice)
    return tc_fail(err, TC_EUSER, "partition %s has slices of GPUs (MIG), such as %s, between which NCCL cannot send, and no whole "
                   "ones that Tercio supports; a plan of one: --nodes 1 --gpus-per-node 1 --device FILE", s->name, slice->gpu);
  if (old)
    return tc_fail(err, TC_EUSER, "partition %s has no GPUs that Tercio supports, only %s: it needs "
                   "compute capability %d.%d or later (an A100, H100 or H200)", s->name, old->gpu,
                   TC_CAPABILITY / 10, TC_CAPABILITY % 10);
  for (int i = 0; i < s->n_left_out; i++)
    if (s->left_out[i].why == TC_SLURM_UNKNOWN)
      return tc_fail(err, TC_EUSER, "partition %s has no node that can be used: %d in the state %s, which this release "
                     "of Tercio does not know; give --nodes and --gpus-per-node", s->name, s->left_out[i].nodes,
                     s->left_out[i].state);
  return tc_fail(err, TC_EUSER, "partition %s has no node that can be used%s: see sinfo -R, or give "
                 "--nodes and --gpus-per-node", s->name, s->n_left_out ? " (all are down or drained)" : "");
}

/* ---- topology -------------------------------------------------------------------- */

static bool is_in(const struct nodes *all, const char *name)
{
  for (int i = 0; i < all->n; i++)
    if (!strcmp(all->x[i].name, name)) return true;
  return false;
}

/* A name that stands after each list in what scontrol prints, and the longest lists that a command takes. */
#define END "tercio-end-of-list"
enum { MOST_BYTES = 1 << 16 };

/* count[n] <- how many of our nodes are in each list such as "n[01-03,7],m1". Slurm expands all lists in one call; if it
 * doesn't, since they are too long or it can't expand one, two calls have half of them each. A list that it can't expand
 * has no nodes. */
static void count_nodes(int64_t *count, char *const *list, int n, const struct nodes *all)
{
  struct tc_err none = { 0 };
  char *text = NULL, *names = NULL;
  size_t bytes = 0;
  int seen = 0;
  FILE *f = open_memstream(&text, &bytes);
  TC_ASSERT(f != NULL);
  for (int i = 0; i < n; i++) fprintf(f, "%s%s," END, i ? "," : "", list[i]);
  fclose(f);
  char *word = tc_shell_word(text), *what = tc_sprintf("hostnames %s", word);
  if (bytes <= MOST_BYTES) ask(&names, what, &none);
  memset(count, 0, (size_t)n * sizeof *count);
  for (char *at = names, *name; (name = strsep(&at, "\n")) && seen < n;) {
    if (strcmp(name, END) == 0) seen++;
    else count[seen] += is_in(all, name);
  }
  TC_FREE(names, what, word, text);
  if (seen == n) return;
  *count = 0;
  if (n == 1) return;
  count_nodes(count, list, n / 2, all);
  count_nodes(count + n / 2, list + n / 2, n - n / 2, all);
}

/* Without a topology (topology/none, or none that scontrol reports), all nodes are on one switch. */
static void read_topology(struct tc_slurm_part *s, const struct nodes *all)
{
  enum { MOST = 4096 };
  struct tc_err none = { 0 };
  char *text, *list[MOST];
  int64_t below[MOST];
  int n = 0;
  if (ask(&text, "topology", &none) < 0) return;
  for (char *at = text, *line; (line = strsep(&at, "\n")) && n < MOST;) {
    const size_t size = strlen(line) + 1;
    char level[16], *hosts = tc_calloc(size, 1);
    if (!strcmp(get(line, "Level", level, sizeof level), "0") && *get(line, "Nodes", hosts, size)) list[n++] = hosts;
    else free(hosts);
  }
  free(text);
  if (n > 0) count_nodes(below, list, n, all);
  for (int i = 0; i < n; i++) {
    if (below[i] > 0) below[s->switches++] = below[i];
    free(list[i]);
  }
  qsort(below, (size_t)s->switches, sizeof *below, tc_order_i64);
  if (s->switches > 1) s->switch_nodes = (int)below[s->switches / 2];
}

int tc_slurm_read(struct tc_slurm_part *out, const struct tc_slurm_want *want, struct tc_err *err)
{
  struct nodes all = { NULL, 0, 0 };
  int most = 0;
  *out = (struct tc_slurm_part){ .nodes = 0 };
  int rc = read_partition(out, &most, want->partition, err);
  if (!rc) rc = read_nodes(&all, out, err);
  if (!rc) rc = keep_kind(&all, out, want, err);
  if (!rc) {
    read_topology(out, &all);
    if (most > 0 && most < out->nodes) out->nodes = out->most_nodes = most;
  }
  free(all.x);
  return rc;
}

void tc_slurm_done(struct tc_slurm_part *s)
{
  free(s->left_out);
  *s = (struct tc_slurm_part){ .nodes = 0 };
}
