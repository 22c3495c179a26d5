/* shard_box.c - which boxes of a tensor a rank stores, and which of them it writes to a checkpoint. */
#include "src/graph/shard_box.h"

#include <string.h>

/* Rows [r0, r1) of a box, seen as [rows, last dim], as boxes: for each leading dimension at most a partial
 * index at the start, a range of complete ones, and a partial one at the end. Tensors that are cut by rows
 * mostly have rank <= 2 or complete leading dimensions, and TC_BOXES bounds the number. */
static int rows_to_boxes(const struct tc_box *b, int rank, int64_t r0, int64_t r1,
                         struct tc_box *out)
{
  if (r0 >= r1) return 0;
  if (rank <= 2) {
    out[0] = *b;
    out[0].start[0] += r0;
    out[0].count[0] = r1 - r0;
    return 1;
  }
  int64_t inner = 1;                             /* rows of one index of dimension 0 */
  for (int d = 1; d < rank - 1; d++) inner *= b->count[d];
  int n = 0;
  while (r0 < r1) {
    int64_t i = r0 / inner, lo = r0 % inner, hi = TC_MIN(inner, lo + (r1 - r0));
    struct tc_box sub = *b;
    int64_t whole = lo == 0 ? (r1 - r0) / inner : 0;
    sub.start[0] += i;
    sub.count[0] = TC_MAX(whole, 1);
    if (whole) {
      out[n++] = sub;
      r0 += whole * inner;
    } else {
      struct tc_box rest = sub;                  /* the same without dimension 0 */
      memmove(rest.start, rest.start + 1, sizeof rest.start - sizeof rest.start[0]);
      memmove(rest.count, rest.count + 1, sizeof rest.count - sizeof rest.count[0]);
      struct tc_box part[TC_BOXES * 2];
      int k = rows_to_boxes(&rest, rank - 1, lo, hi, part);
      for (int j = 0; j < k; j++, n++) {
        TC_ASSERT(n < TC_BOXES * 2);
        out[n].start[0] = sub.start[0];
        out[n].count[0] = 1;
        for (int d = 1; d < rank; d++) {
          out[n].start[d] = part[j].start[d - 1];
          out[n].count[d] = part[j].count[d - 1];
        }
      }
      r0 += hi - lo;
    }
  }
  return n;
}

int tc_stored_boxes(const struct tc_tensor *t, const struct tc_mesh *m, int rank,
                    struct tc_box box[TC_BOXES])
{
  struct tc_local l;
  tc_tensor_local(t, m, m->coord + (size_t)rank * TC_AXES, &l);
  if (!l.here) return 0;
  struct tc_box b;
  memset(&b, 0, sizeof b);
  for (int d = 0; d < t->rank; d++) {
    b.start[d] = l.off[d];
    b.count[d] = l.dim[d];
  }
  struct tc_box part[TC_BOXES * 2];
  int n = 1;
  part[0] = b;
  if (l.rows >= 0) n = rows_to_boxes(&b, t->rank, l.row0, l.row0 + l.rows, part);
  int k = 0;
  for (int i = 0; i < n; i++) {                  /* without the padding */
    bool empty = false;
    for (int d = 0; d < t->rank; d++) {
      part[i].count[d] = TC_MIN(part[i].count[d], t->dim[d] - part[i].start[d]);
      if (part[i].count[d] <= 0) empty = true;
    }
    if (empty) continue;
    TC_ASSERT(k < TC_BOXES);
    box[k++] = part[i];
  }
  return k;
}

/* The replica that gets the first share of a tensor: depends on the name, so that not always the same
 * replicas have the longer share, or any share at all where there are more replicas than rows. */
static int64_t first_replica(const char *name)
{
  uint32_t h = tc_hash32(name);
  return h ^ h >> 15;
}

int tc_owned_boxes(const struct tc_tensor *t, const struct tc_mesh *m, int rank,
                   struct tc_box box[TC_BOXES])
{
  int n = tc_stored_boxes(t, m, rank, box);
  int64_t copies = 1, mine = 0;                  /* replicas of this block, and this rank's index among them */
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
    if (t->lay.on[a].kind != TC_R) continue;
    copies *= m->size[a];
    mine = mine * m->size[a] + tc_mesh_coord(m, rank, a);
  }
  if (copies == 1) return n;
  mine = (mine + first_replica(t->name)) % copies;
  if (t->rank == 0) return mine == 0 ? n : 0;
  int k = 0;
  for (int i = 0; i < n; i++) {
    int64_t lo = box[i].count[0] * mine / copies, hi = box[i].count[0] * (mine + 1) / copies;
    if (lo >= hi) continue;
    box[i].start[0] += lo;
    box[i].count[0] = hi - lo;
    box[k++] = box[i];
  }
  return k;
}
