/* tensors.c - `tercio ckpt tensors`, `dump`, `diff` and `show --owners`: the commands for
 * tensors.
 *
 * Tensors are read block by block, so that memory is small for any size and shape.
 * Every printed value comes from data whose checksum was verified. */
#include "src/cmd/ckpt/ckpt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "[768, 3072]": a shape or a corner, x[rank], into buf; returns buf. 160 bytes suffice. */
static const char *ints_text(char *buf, size_t size, const int64_t *x, int rank)
{
  size_t n = (size_t)snprintf(buf, size, "[");
  for (int d = 0; d < rank && n < size; d++)
    n += (size_t)snprintf(buf + n, size - n, "%s%lld", d ? ", " : "", (long long)x[d]);
  if (n < size) snprintf(buf + n, size - n, "]");
  return buf;
}

/* ---- tensors ---------------------------------------------------------------------- */

int ckpt_cmd_tensors(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_ckpt_open_held(&c, a->path[0], err));
  json_t *list = json_array();
  char shape[160];
  int rc = 0;
  if (!a->json)
    printf("%-36s %-5s %-18s %13s %13s %13s %8s %13s\n", "name", "type", "shape", "min", "max",
           "mean", "NaNs", "norm");
  for (int i = 0; i < tc_ckpt_n(c) && rc == 0 && !ferror(stdout); i++) {
    const struct tc_ckpt_tensor *t = tc_ckpt_at(c, i);
    struct tc_ckpt_stats s;
    rc = tc_ckpt_stats(&s, c, i, err);
    double mean = s.sum / (double)(s.n - s.n_nan), norm = sqrt(s.squares);
    if (rc < 0) break;
    if (a->json) {
      json_t *o = json_pack("{s:s, s:s, s:o, s:n, s:n, s:n, s:I, s:n}", "name", t->name, "dtype",
                            tc_dtype_name(t->dtype), "shape", tc_ints_json(t->dim, t->rank), "min", "max", "mean",
                            "nan", (json_int_t)s.n_nan, "norm");
      tc_figure(o, "min", s.min);
      tc_figure(o, "max", s.max);
      tc_figure(o, "mean", mean);
      tc_figure(o, "norm", norm);
      json_array_append_new(list, o);
    } else {
      printf("%-36s %-5s %-18s %13.6g %13.6g %13.6g %8lld %13.6g\n", t->name,
             tc_dtype_name(t->dtype), ints_text(shape, sizeof shape, t->dim, t->rank),
             s.min, s.max, tc_unsigned_nan(mean), (long long)s.n_nan, tc_unsigned_nan(norm));
    }
  }
  if (a->json && rc == 0) ckpt_print_json(list);
  else json_decref(list);
  return tc_ckpt_close_held(c, a->path[0], rc, err);
}

/* ---- dump ------------------------------------------------------------------------- */

static void print_value(double x, int digits, bool json)
{
  if (json && tc_not_finite(x)) printf("\"%s\"", tc_not_finite(x));
  else printf("%.*g", digits, tc_unsigned_nan(x));
}

/* One line per row of the last dimension; `begin` is the first element of the output. */
static void print_block(const struct tc_ckpt_walk *w, const struct tc_ckpt_tensor *t, int64_t begin,
                        bool json)
{
  int digits = t->dtype == TC_F64 ? 17 : t->dtype == TC_I32 ? 10 : 9;
  int64_t line = t->rank > 1 ? t->dim[t->rank - 1] : 1;
  for (int64_t k = 0; k < w->n && !ferror(stdout); k++) {
    int64_t i = w->first + k;
    if (json && i % line == 0) fputs(i > begin ? ",\n  [" : "\n  [", stdout);
    else if (i % line) fputs(json ? ", " : " ", stdout);
    print_value(tc_ckpt_value(w->buf, t->dtype, k), digits, json);
    if ((i + 1) % line == 0) fputs(json ? "]" : "\n", stdout);
  }
}

static int dump_rows(struct tc_ckpt *c, int tensor, const struct ckpt_args *a,
                     struct tc_err *err)
{
  const struct tc_ckpt_tensor *t = tc_ckpt_at(c, tensor);
  int64_t rows = t->rank ? t->dim[0] : 1, elems = tc_box_elems(t->rank, t->dim) / rows;
  int64_t end = a->row1 < 0 ? rows : a->row1;
  if (end > rows || a->row0 >= end)
    return tc_fail(err, TC_EUSER, "%s has %lld rows: --rows %lld:%lld is not among them",
                   t->name, (long long)rows, (long long)a->row0, (long long)end);
  struct tc_ckpt_walk w;
  int rc = 1;
  if (a->json) {
    json_t *shape = tc_ints_json(t->dim, t->rank), *name = tc_text_json(t->name);
    printf("{\"name\": ");
    json_dumpf(name, stdout, JSON_ENCODE_ANY);
    json_decref(name);
    printf(", \"dtype\": \"%s\", \"shape\": ", tc_dtype_name(t->dtype));
    json_dumpf(shape, stdout, 0);
    printf(", \"rows\": [%lld, %lld], \"values\": [", (long long)a->row0, (long long)end);
    json_decref(shape);
  }
  tc_ckpt_walk_new(&w, c, tensor, a->row0 * elems, end * elems);
  while (rc == 1 && !ferror(stdout) && (rc = tc_ckpt_walk_next(&w, err)) == 1)
    print_block(&w, t, a->row0 * elems, a->json);
  if (a->json && rc >= 0) printf("]}\n");
  tc_ckpt_walk_free(&w);
  return TC_MIN(rc, 0);
}

int ckpt_cmd_dump(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_ckpt_open_held(&c, a->path[0], err));
  int i = tc_ckpt_find(c, a->path[1]);
  int rc = i < 0 ? tc_fail(err, TC_EUSER, "%s: tensor %s does not exist; `tercio ckpt tensors` "
                           "lists them", c->path, a->path[1])
                 : dump_rows(c, i, a, err);
  return tc_ckpt_close_held(c, a->path[0], rc, err);
}

/* ---- diff ------------------------------------------------------------------------- */

static void print_delta(const char *name, const struct tc_ckpt_delta *d, bool differs, json_t *list,
                        bool json)
{
  const char *word = differs ? "differs" : d->n_bits ? "close" : "same";
  if (json) {
    json_t *o = json_pack("{s:s, s:s, s:s, s:n, s:n, s:I}", "name", name, "result",
                          d->why ? "not comparable" : word, "why", d->why ? d->why : "", "rel", "max_abs", "elements",
                          (json_int_t)d->n_bits);
    tc_figure(o, "rel", d->rel);
    tc_figure(o, "max_abs", d->max);
    json_array_append_new(list, o);
  } else if (d->why) {
    printf("%-36s %s\n", name, d->why);
  } else {
    printf("%-36s %-8s %12.6g %12.6g %12lld\n", name, word, tc_unsigned_nan(d->rel),
           tc_unsigned_nan(d->max), (long long)d->n_bits);
  }
}

/* Whether the tensor's name matches args->only. */
static bool is_wanted(const struct ckpt_args *args, const char *name)
{
  return !args->only || fnmatch(args->only, name, 0) == 0;
}

/* Whether tensors that are not bit-identical are within the tolerances. */
static bool is_close(const struct tc_ckpt_delta *d, const struct ckpt_args *args)
{
  return (args->rtol > 0 && d->rel <= args->rtol) || (args->atol >= 0 && d->max <= args->atol);
}

static int diff(struct tc_ckpt *a, struct tc_ckpt *b, const struct ckpt_args *args,
                struct tc_err *err)
{
  json_t *list = json_array();
  int n_differ = 0, n = 0, rc = 0;
  if (!args->json)
    printf("%-36s %-8s %12s %12s %12s\n", "name", "result", "|A-B|/|B|", "max |A-B|",
           "elements");
  for (int i = 0; i < tc_ckpt_n(a) && rc == 0; i++) {
    struct tc_ckpt_delta d = { .why = "only in A" };
    const char *name = tc_ckpt_at(a, i)->name;
    if (!is_wanted(args, name)) continue;
    n++;
    int j = tc_ckpt_find(b, name);
    if (j >= 0) rc = tc_ckpt_compare(&d, a, i, b, j, err);
    if (rc < 0) break;
    bool differs = d.why || (d.n_bits > 0 && !is_close(&d, args));
    n_differ += differs;
    print_delta(name, &d, differs, list, args->json);
  }
  for (int j = 0; j < tc_ckpt_n(b) && rc == 0; j++) {
    struct tc_ckpt_delta d = { .why = "only in B" };
    const char *name = tc_ckpt_at(b, j)->name;
    if (tc_ckpt_find(a, name) >= 0 || !is_wanted(args, name)) continue;
    n++;
    n_differ++;
    print_delta(name, &d, true, list, args->json);
  }
  if (n == 0 && rc == 0 && args->only)
    rc = tc_fail(err, TC_EUSER, "ckpt diff: no tensor matches --only '%s'", args->only);
  if (args->json && rc == 0) {
    json_t *o = json_pack("{s:o, s:o, s:n, s:n, s:i, s:i, s:o}", "a", tc_text_json(a->path), "b",
                          tc_text_json(b->path), "rtol", "atol", "tensors_compared", n, "differ", n_differ, "tensors",
                          list);
    tc_figure(o, "rtol", args->rtol);
    if (args->atol >= 0) tc_figure(o, "atol", args->atol);
    ckpt_print_json(o);
  } else {
    json_decref(list);
  }
  if (!args->json && rc == 0) printf("%d tensors, %d differ\n", n, n_differ);
  return rc < 0 ? rc : n_differ ? TC_DIFFERS : 0;
}

int ckpt_cmd_diff(const struct ckpt_args *args, struct tc_err *err)
{
  struct tc_ckpt *a, *b;
  TC_TRY(tc_ckpt_open_held(&a, args->path[0], err));
  int rc = tc_ckpt_open_held(&b, args->path[1], err);
  if (rc == 0) rc = tc_ckpt_close_held(b, args->path[1], diff(a, b, args, err), err);
  return tc_ckpt_close_held(a, args->path[0], rc, err);
}

/* ---- owners ----------------------------------------------------------------------- */

static json_t *node_json(const struct tc_manifest *m, int32_t rank)
{
  const char *node = tc_ckpt_node(m, rank);
  return node ? tc_text_json(node) : json_null();
}

static void print_slice(const struct tc_manifest *m, const struct tc_piece *p, json_t *list)
{
  const struct tc_ckpt_tensor *t = &m->tensor[p->tensor];
  const struct tc_ckpt_file *f = &m->file[p->file];
  const char *node = tc_ckpt_node(m, f->writer);
  char start[160], count[160];
  if (list)
    json_array_append_new(list, json_pack("{s:i, s:o, s:s, s:o, s:o, s:I}", "rank",
      (int)f->writer, "node", node_json(m, f->writer), "file", f->name, "start",
      tc_ints_json(p->start, t->rank), "count", tc_ints_json(p->count, t->rank), "bytes",
      (json_int_t)p->bytes));
  else
    printf("%-36s %5d  %-12s %-14s %-16s %-16s %12lld\n", t->name, (int)f->writer,
           node ? node : "-", f->name, ints_text(start, sizeof start, p->start, t->rank),
           ints_text(count, sizeof count, p->count, t->rank), (long long)p->bytes);
}

/* One line, or one JSON object, per rank, and the sum. */
static json_t *print_owners(const struct tc_manifest *m, const struct tc_ckpt_owner *o, int n, bool json)
{
  json_t *list = json ? json_array() : NULL;
  int64_t slices = 0;
  double bytes = 0;
  char size[32];
  if (!json) printf("\n%5s  %-12s %10s %15s\n", "rank", "node", "slices", "bytes");
  for (int i = 0; i < n && !ferror(stdout); i++) {
    const char *node = tc_ckpt_node(m, o[i].rank);
    slices += o[i].slices;
    bytes += (double)o[i].bytes;
    if (json)
      json_array_append_new(list, json_pack("{s:i, s:o, s:I, s:I}", "rank", (int)o[i].rank,
        "node", node_json(m, o[i].rank), "slices", (json_int_t)o[i].slices, "bytes",
        (json_int_t)o[i].bytes));
    else
      printf("%5d  %-12s %10lld %15lld\n", (int)o[i].rank, node ? node : "-",
             (long long)o[i].slices, (long long)o[i].bytes);
  }
  if (!json)
    printf("%d rank%s, %lld slice%s, %s\n", n, tc_plural(n), (long long)slices,
           tc_plural(slices), tc_human_bytes(size, sizeof size, bytes));
  return list;
}

int ckpt_cmd_owners(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_ckpt_open(&c, a->path[0], err));
  const struct tc_manifest *m = c->m;
  int n, shown = 0, rc = 0;
  struct tc_ckpt_owner *o = tc_ckpt_owners(m, &n);
  json_t *tensors = a->json ? json_array() : NULL;
  for (int i = 0; i < m->n_tensors && !ferror(stdout); i++) {
    const struct tc_ckpt_tensor *t = &m->tensor[i];
    if (!is_wanted(a, t->name)) continue;
    if (shown++ == 0 && !a->json)
      printf("%-36s %5s  %-12s %-14s %-16s %-16s %12s\n", "tensor", "rank", "node", "file",
             "start", "count", "bytes");
    json_t *slices = a->json ? json_array() : NULL;
    for (int k = m->first_piece[i]; k < m->first_piece[i + 1] && !ferror(stdout); k++) {
      print_slice(m, &m->piece[k], slices);
      tc_ckpt_owner_add(o, n, m->file[m->piece[k].file].writer, m->piece[k].bytes);
    }
    if (a->json)
      json_array_append_new(tensors, json_pack("{s:s, s:s, s:o, s:o}", "name", t->name, "dtype",
        tc_dtype_name(t->dtype), "shape", tc_ints_json(t->dim, t->rank), "slices", slices));
  }
  if (shown == 0 && a->only)
    rc = tc_fail(err, TC_EUSER, "ckpt show: no tensor matches --tensor '%s'", a->only);
  json_t *ranks = rc == 0 ? print_owners(m, o, n, a->json) : NULL;
  if (rc == 0 && a->json)
    ckpt_print_json(json_pack("{s:o, s:I, s:o, s:o}", "path", tc_text_json(c->path), "step",
                    (json_int_t)m->meta.step, "tensors", tensors, "ranks", ranks));
  else json_decref(tensors);
  free(o);
  tc_ckpt_close(c);
  return rc;
}
