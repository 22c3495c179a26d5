/* links.c - a link from what `tercio comm --json` measured on it: for each collective, times by the bytes of the busiest member
 * (between nodes those that leave its own), and latency and rate by the line through them with weights 1 / time, since a step
 * mostly waits for large transfers. Times need not lie on a line: a link may let short bursts through, or lose packets when
 * both ends send for long. */
#include "src/plan/impl.h"
#include "src/coll/flow.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { MOST_FILE_BYTES = 16 << 20, MOST_RANKS = 1 << 24, MOST_ON_NODES = 1 << 14 };
#define MOST_SIZE 1e18                           /* bytes, and seconds, of a transfer: sums of them stay finite */

/* Sums of a weighted fit t = a + b x, weights 1 / t. */
struct fit { double w, x, xx, t, xt; int n; };

static void add(struct fit *f, double x, double t)
{
  double w = 1 / t;
  f->w += w;
  f->x += w * x;
  f->xx += w * x * x;
  f->t += w * t;
  f->xt += w * x * t;
  f->n++;
}

/* False: too few points. Neither latency nor rate may be negative. */
static bool solve(const struct fit *f, double *latency_s, double *bytes_per_s)
{
  double det = f->w * f->xx - f->x * f->x;
  if (f->n < 2 || !(det > 0)) return false;
  double a = (f->t * f->xx - f->x * f->xt) / det, b = (f->w * f->xt - f->x * f->t) / det;
  if (a < 0) {
    a = 0;
    b = f->xt / f->xx;
  }
  if (!(b > 0)) return false;
  *latency_s = a;
  *bytes_per_s = 1 / b;
  return true;
}

/* send_recv is a ring on serial queues: two transfers one after the other, three for an odd number of
 * ranks; send is one, from each even rank to the next. With an even number of several ranks on each node (`each`), all that
 * leaves a node does so in one turn, and of send nothing does: 0. */
static int turns(bool ring, int ranks, int each)
{
  if (each < ranks && each % 2 == 0 && ranks % each == 0) return ring ? 1 : 0;
  return !ring ? 1 : ranks % 2 ? 3 : 2;
}

/* ---- times by sizes ---------------------------------------------------------------------- */

/* Times of a collective in so many rounds, in the order of sizes: their sums, and of how many rows. */
struct times { int n; double rounds; struct { double bytes, sum; int rows; } at[TC_LINK_POINTS]; };

/* Rows of another number of rounds, and more sizes than there is room for, count for the line alone. */
static void note(struct times *t, double rounds, double bytes, double s)
{
  int i = t->n;
  if (t->n == 0) t->rounds = rounds;
  if (t->rounds != rounds) return;
  while (i > 0 && t->at[i - 1].bytes >= bytes) i--;
  if (i == t->n || t->at[i].bytes != bytes) {
    if (t->n == TC_LINK_POINTS) return;
    memmove(&t->at[i + 1], &t->at[i], (size_t)(t->n++ - i) * sizeof *t->at);
    t->at[i].bytes = bytes, t->at[i].sum = 0, t->at[i].rows = 0;
  }
  t->at[i].sum += s;
  t->at[i].rows++;
}

/* Their means less the latency, by the line that does not fall and is nearest to them in squares. */
static void take_times(struct tc_link *l, int coll, const struct times *t)
{
  struct tc_link_points *p = &l->measured[coll];
  p->n = t->n;
  for (int i = 0; i < t->n; i++) {               /* the largest over a of the least over b of the mean of [a, b] */
    p->bytes[i] = t->at[i].bytes;
    p->seconds[i] = 0;
    for (int a = 0; a <= i; a++) {
      double least = INFINITY, sum = 0;
      for (int b = a; b < t->n; b++) {
        sum += TC_MAX(t->at[b].sum / t->at[b].rows - l->latency_s[coll] * t->rounds, 0);
        if (b >= i) least = TC_MIN(least, sum / (b - a + 1));
      }
      p->seconds[i] = TC_MAX(p->seconds[i], least);
    }
  }
}

/* ---- a file ------------------------------------------------------------------------------ */

/* Rows that earlier versions wrote name none: it was the direct one. So are, as far as bytes go, a device's library's. */
static int algorithm_of(const json_t *row, int coll)
{
  const char *name = json_string_value(json_object_get(row, "algorithm"));
  const int a = name ? tc_algorithm_named(name) : -1;
  return a > TC_ALGORITHM_AUTO ? a : tc_algorithm_direct(coll);
}

/* Members on a node: several share what joins it to others, so that what leaves it is what counts. (Not of a file that has more
 * than anyone will measure.) */
static int members_each(const json_t *row, int members)
{
  const int64_t nodes = json_integer_value(json_object_get(row, "nodes"));
  return nodes > 1 && nodes <= members && members <= MOST_ON_NODES ? (int)tc_ceil_div(members, nodes) : members;
}

int tc_links_read(struct tc_link *l, const char *path, struct tc_err *err)
{
  json_t *rows, *row;
  struct fit fit[TC_COLLS] = { { 0 } };
  struct times times[TC_COLLS] = { { 0 } };
  size_t i;
  TC_TRY(tc_read_json(&rows, path, "output of tercio comm --json", MOST_FILE_BYTES, 0, NULL, err));
  json_array_foreach(rows, i, row) {
    const char *op = json_string_value(json_object_get(row, "op"));
    bool ring = op && !strcmp(op, "send_recv");
    int coll = !op ? -1 : ring ? TC_SEND : tc_coll_named(op);
    const int64_t ranks = json_integer_value(json_object_get(row, "ranks"));
    double bytes = json_number_value(json_object_get(row, "size"));
    double s = json_number_value(json_object_get(row, "median_us")) * 1e-6;
    if (!(s > 0)) s = json_number_value(json_object_get(row, "time_us")) * 1e-6;
    if (coll < 0 || ranks < 2 || ranks > MOST_RANKS || !(s > 0 && s <= MOST_SIZE && bytes > 0 && bytes <= MOST_SIZE)) continue;
    const int members = coll == TC_SEND ? 2 : (int)ranks;
    const double rounds = ceil(log2(members));
    const int n = coll == TC_SEND ? turns(ring, (int)ranks, members_each(row, (int)ranks)) : 1;
    if (n == 0) continue;
    const double x = tc_coll_busiest(algorithm_of(row, coll), coll, members, members_each(row, members), bytes);
    s /= n;
    add(&fit[coll], x / rounds, s / rounds);
    note(&times[coll], rounds, x, s);
  }
  json_decref(rows);
  struct tc_link x = *l;
  bool any = false;
  for (int c = TC_FIRST_COLL; c < TC_COLLS; c++) {
    if (!solve(&fit[c], &x.latency_s[c], &x.bytes_per_s[c])) continue;
    any = true;
    x.half_bytes[c] = 0;                         /* the sizes themselves say it */
    take_times(&x, c, &times[c]);
  }
  x.latency_s[TC_RECV] = x.latency_s[TC_SEND];
  x.bytes_per_s[TC_RECV] = x.bytes_per_s[TC_SEND];
  x.half_bytes[TC_RECV] = x.half_bytes[TC_SEND];
  x.measured[TC_RECV] = x.measured[TC_SEND];
  if (!any)
    return tc_fail(err, TC_EUSER,
                   "%s has no collective with two sizes: write it with tercio comm --op all "
                   "--json", path);
  *l = x;
  return 0;
}
