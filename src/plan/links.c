/* links.c - a link's latency and rate from what `tercio comm --json` measured on it: for each collective, the
 * line through (bytes of the busiest member, between nodes those that leave its own, time) with the least squared relative errors in time, since
 * a step mostly waits for large transfers. */
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
 * ranks; send is one. */
static double turns(bool ring, int ranks) { return !ring ? 1 : ranks % 2 ? 3 : 2; }

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
    double rounds = ceil(log2((double)(coll == TC_SEND ? 2 : ranks)));
    s /= turns(ring, (int)ranks);
    const int members = coll == TC_SEND ? 2 : (int)ranks;
    add(&fit[coll], tc_coll_busiest(algorithm_of(row, coll), coll, members, members_each(row, members), bytes) / rounds,
        s / rounds);
  }
  json_decref(rows);
  struct tc_link x = *l;
  bool any = false;
  for (int c = TC_FIRST_COLL; c < TC_COLLS; c++) any |= solve(&fit[c], &x.latency_s[c], &x.bytes_per_s[c]);
  x.latency_s[TC_RECV] = x.latency_s[TC_SEND];
  x.bytes_per_s[TC_RECV] = x.bytes_per_s[TC_SEND];
  if (!any)
    return tc_fail(err, TC_EUSER,
                   "%s has no collective with two sizes: write it with tercio comm --op all "
                   "--json", path);
  *l = x;
  return 0;
}
