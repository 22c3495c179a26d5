/* placement.c - comparing and printing placements, and the collective between two. */
#include "src/graph/placement.h"

#include <string.h>

struct tc_layout tc_layout_r(void)
{
  struct tc_layout l;
  memset(&l, 0, sizeof l);
  return l;
}

bool tc_nests_inside(int a, int b, int d)
{
  const bool last_a = d > 0 && tc_axis_role[a] == TC_ROLE_TOKENS, last_b = d > 0 && tc_axis_role[b] == TC_ROLE_TOKENS;
  return last_a != last_b ? last_a : a > b;
}

bool tc_place_equal(const struct tc_place *a, const struct tc_place *b)
{
  if (a->kind != b->kind) return false;
  switch (a->kind) {
  case TC_S: return a->dim == b->dim;
  case TC_P: return a->op == b->op;
  case TC_AT: return a->at == b->at;
  default: return true;
  }
}

bool tc_layout_equal(const struct tc_layout *a, const struct tc_layout *b)
{
  for (int i = 0; i < TC_AXES; i++)
    if (!tc_place_equal(&a->on[i], &b->on[i])) return false;
  return true;
}

uint8_t tc_layout_axes(const struct tc_layout *l, enum tc_kind kind)
{
  unsigned axes = 0;
  for (int a = 0; a < TC_AXES; a++) axes |= (unsigned)(l->on[a].kind == kind) << a;
  return (uint8_t)axes;
}

/* The set of most axes among these that have the placement of axis a; -1: none has a name. */
static int set_with(const struct tc_layout *l, const struct tc_mesh *m, int a, unsigned among)
{
  int best = -1;
  for (int s = 0; s < TC_SETS; s++) {
    const struct tc_group *x = &m->group[s];
    bool same = x->axes >> a & 1 && !(x->axes & ~among);
    for (int b = 0; b < TC_AXES; b++)
      if (x->axes >> b & 1) same &= tc_place_equal(&l->on[a], &l->on[b]);
    if (same && (best < 0 || x->size > m->group[best].size)) best = s;
  }
  return best;
}

char *tc_layout_text(char *buf, size_t size, const struct tc_layout *l, const struct tc_mesh *m)
{
  size_t n = 0;
  unsigned left = (1u << TC_AXES) - 1;
  if (size) buf[0] = 0;
  for (int a = 0; a < TC_AXES; a++) {
    const struct tc_place *p = &l->on[a];
    const int set = set_with(l, m, a, left);
    char what[24] = "";
    if (a != TC_MB && (m->size[a] == 1 || !(left >> a & 1))) continue;
    left &= ~(set >= 0 ? m->group[set].axes : 1u << a);
    switch (p->kind) {
    case TC_S: snprintf(what, sizeof what, "S(%d)", p->dim); break;
    case TC_FLAT: snprintf(what, sizeof what, "S(*)"); break;
    case TC_P: snprintf(what, sizeof what, "P(%s)", p->op == TC_MAX_OP ? "max" : "sum"); break;
    case TC_AT: snprintf(what, sizeof what, "at(%d)", p->at); break;
    default: continue;
    }
    if (n < size)
      n += (size_t)snprintf(buf + n, size - n, "%s%s:%s", n ? " " : "", set >= 0 ? tc_set_name[set] : tc_axis_name[a], what);
  }
  if (!n && size) snprintf(buf, size, "R");
  return buf;
}

int tc_coll_between(const struct tc_place *from, const struct tc_place *to)
{
  int f = from->kind, t = to->kind;
  if (f == TC_R) {
    if (tc_is_split(t)) return TC_SLICE;
    if (t == TC_AT) return TC_DROP;
    if (t == TC_P) return TC_ZERO;
  } else if (f == TC_P) {
    if (t == TC_R) return TC_ALL_REDUCE;
    if (tc_is_split(t)) return TC_REDUCE_SCATTER;
    if (t == TC_AT) return TC_REDUCE;
  } else if (tc_is_split(f)) {
    if (t == TC_R) return TC_ALL_GATHER;
    if (t == TC_AT) return TC_GATHER;
    if (f == TC_S && t == TC_S && from->dim != to->dim) return TC_ALL_TO_ALL;
  } else if (f == TC_AT) {
    if (t == TC_R) return TC_BROADCAST;
    if (tc_is_split(t)) return TC_SCATTER;
    if (t == TC_P) return TC_ZERO;
    if (t == TC_AT && from->at != to->at) return TC_SEND;
  }
  return -1;
}
