/* links.c - a link from what `tercio comm --json` measured on it: for each collective, times by the bytes of the busiest member
 * (between nodes those that leave its own), and latency and rate by the line through them with the least squared relative
 * errors in time, since a step mostly waits for large transfers. Times need not lie on a line: a link may let short bursts
 * through, or lose packets when both ends send for long. */
#include "src/plan/impl.h"
#include "src/coll/flow.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { MOST_FILE_BYTES = 16 << 20, MOST_RANKS = 1 << 24 };
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
static double turns(bool ring, int ranks, int each)
{
  if (each < ranks && each % 2 == 0) return ring;
  return !ring ? 1 : ranks % 2 ? 3 : 2;
}

/* What is measured beside the latency. In the order of sizes; of two times of a size the mean. What finds no room is left out. */
static void note(struct tc_link_points *p, double bytes, double s)
{
  int i = p->n;
  while (i > 0 && p->bytes[i - 1] >= bytes) i--;
  if (i < p->n && p->bytes[i] == bytes) {
    p->seconds[i] = (p->seconds[i] + s) / 2;
    return;
  }
  if (p->n == TC_LINK_POINTS) return;
  for (int k = p->n++; k > i; k--) p->bytes[k] = p->bytes[k - 1], p->seconds[k] = p->seconds[k - 1];
  p->bytes[i] = bytes, p->seconds[i] = s;
}

/* Without the latency of its rounds. */
static double bytes_seconds(const struct tc_link *l, int coll, double bytes)
{
  const struct tc_link_points *p = &l->measured[coll];
  int i = 1;
  if (p->n < 2) return bytes / l->bytes_per_s[coll];
  while (i < p->n - 1 && bytes > p->bytes[i]) i++;
  const double slope = (p->seconds[i] - p->seconds[i - 1]) / (p->bytes[i] - p->bytes[i - 1]);
  if (bytes > p->bytes[i] && slope <= 0) return p->seconds[i] * bytes / p->bytes[i];
  return TC_MAX(p->seconds[i - 1] + slope * (bytes - p->bytes[i - 1]), 0);
}

double tc_link_seconds(const struct tc_link *l, int coll, double rounds, double bytes)
{
  return l->latency_s[coll] * rounds + bytes_seconds(l, coll, bytes);
}

/* Takes the latency off the times that were measured, in so many rounds each, and makes them grow. */
static void take_points(struct tc_link *l, int coll, const struct tc_link_points *p, double rounds)
{
  struct tc_link_points *out = &l->measured[coll];
  *out = *p;
  for (int i = 0; i < p->n; i++)
    out->seconds[i] = TC_MAX(p->seconds[i] - l->latency_s[coll] * rounds, i ? out->seconds[i - 1] : 0);
}

/* Rows that earlier versions wrote name none: it was the direct one. So are, as far as bytes go, a device's library's. */
static int algorithm_of(const json_t *row, int coll)
{
  const char *name = json_string_value(json_object_get(row, "algorithm"));
  const int a = name ? tc_algorithm_named(name) : -1;
  return a > TC_ALGORITHM_AUTO ? a : tc_algorithm_direct(coll);
}

/* Members on a node: several share what joins it to others, so that what leaves it is what counts. */
static int members_each(const json_t *row, int members)
{
  const int64_t nodes = json_integer_value(json_object_get(row, "nodes"));
  return nodes > 1 && nodes <= members ? (int)tc_ceil_div(members, nodes) : members;
}

int tc_links_read(struct tc_link *l, const char *path, struct tc_err *err)
{
  json_t *rows, *row;
  struct fit fit[TC_COLLS] = { { 0 } };
  struct tc_link_points points[TC_COLLS] = { { 0 } };
  double rounds_of[TC_COLLS] = { 0 };            /* of the last row: a file is of one group */
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
    if (coll < 0 || ranks < 2 || ranks > MOST_RANKS || !(s > 0 && s <= MOST_SIZE && bytes <= MOST_SIZE)) continue;
    const int members = coll == TC_SEND ? 2 : (int)ranks;
    const double rounds = ceil(log2(members)), n = coll == TC_SEND ? turns(ring, (int)ranks, members_each(row, (int)ranks)) : 1;
    if (n == 0) continue;
    const double x = tc_coll_busiest(algorithm_of(row, coll), coll, members, members_each(row, members), bytes);
    s /= n;
    add(&fit[coll], x / rounds, s / rounds);
    note(&points[coll], x, s);
    rounds_of[coll] = rounds;
  }
  json_decref(rows);
  struct tc_link x = *l;
  bool any = false;
  for (int c = TC_FIRST_COLL; c < TC_COLLS; c++) {
    if (!solve(&fit[c], &x.latency_s[c], &x.bytes_per_s[c])) continue;
    any = true;
    take_points(&x, c, &points[c], rounds_of[c]);
  }
  x.latency_s[TC_RECV] = x.latency_s[TC_SEND];
  x.bytes_per_s[TC_RECV] = x.bytes_per_s[TC_SEND];
  x.measured[TC_RECV] = x.measured[TC_SEND];
  if (!any)
    return tc_fail(err, TC_EUSER,
                   "%s has no collective with two sizes: write it with tercio comm --op all "
                   "--json", path);
  *l = x;
  return 0;
}
