/* tensors.c - `tercio ckpt tensors`, `dump`, `diff` and `show --owners`: the commands for
 * tensors.
 *
 * Tensors are read block by block, so that memory is small for any size and shape.
 * Every printed value comes from data whose checksum was verified. */
#include "src/cmd/ckpt/ckpt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

static void *ints(const int64_t *x, int n) { return tc_ints_json(x, n); }

/* ---- tensors ---------------------------------------------------------------------- */

int ckpt_cmd_tensors(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_ckpt_open_held(&c, a->path[0], err));
  static const char form[] = "name=%-36s dtype:type=%-5s shape=%-18p min=%13.6g max=%13.6g mean=%13.6g nan:NaNs=%8lld "
    "norm=%13.6g";
  json_t *list = a->json ? json_array() : NULL;
  int rc = 0;
  if (!a->json) tc_out_head(form);
  for (int i = 0; i < tc_ckpt_n(c) && rc == 0 && !ferror(stdout); i++) {
    const struct tc_ckpt_tensor *t = tc_ckpt_at(c, i);
    struct tc_ckpt_stats s;
    rc = tc_ckpt_stats(&s, c, i, err);
    double mean = s.sum / (double)(s.n - s.n_nan), norm = sqrt(s.squares);
    if (rc < 0) break;
    tc_out_row(list, form, t->name, tc_dtype_name(t->dtype), ints(t->dim, t->rank), s.min, s.max, mean,
               (long long)s.n_nan, norm);
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

static const char delta_form[] = "name=%-36s result=%-8s{ why=%s} rel:|A-B|/|B|=%12.6g max_abs:max |A-B|=%12.6g "
  "elements=%12lld";

static void print_delta(const char *name, const struct tc_ckpt_delta *d, bool differs, json_t *list)
{
  const char *word = d->why ? "not comparable" : differs ? "differs" : d->n_bits ? "close" : "same";
  if (d->why && !list) printf("%-36s %s\n", name, d->why);
  else tc_out_row(list, delta_form, name, word, d->why ? d->why : "", d->rel, d->max, (long long)d->n_bits);
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
  json_t *list = args->json ? json_array() : NULL;
  int n_differ = 0, n = 0, rc = 0;
  if (!list) tc_out_head(delta_form);
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
    print_delta(name, &d, differs, list);
  }
  for (int j = 0; j < tc_ckpt_n(b) && rc == 0; j++) {
    struct tc_ckpt_delta d = { .why = "only in B" };
    const char *name = tc_ckpt_at(b, j)->name;
    if (tc_ckpt_find(a, name) >= 0 || !is_wanted(args, name)) continue;
    n++;
    n_differ++;
    print_delta(name, &d, true, list);
  }
  if (n == 0 && rc == 0 && args->only)
    rc = tc_fail(err, TC_EUSER, "ckpt diff: no tensor matches --only '%s'", args->only);
  if (args->json && rc == 0) {
    ckpt_print_json(tc_out_object("a=%s b=%s rtol=%g atol?=%g tensors_compared=%d differ=%d tensors=%p", a->path, b->path,
                                  args->rtol, args->atol, n, n_differ, (void *)list));
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

static const char slice_form[] = ":tensor=%-36s rank=%5d  node?=%-12s file=%-14s start=%-16p count=%-16p bytes=%12lld",
  owner_form[] = "rank=%5d  node?=%-12s slices=%10lld bytes=%15lld";

static void print_slice(const struct tc_manifest *m, const struct tc_piece *p, json_t *list)
{
  const struct tc_ckpt_tensor *t = &m->tensor[p->tensor];
  const struct tc_ckpt_file *f = &m->file[p->file];
  tc_out_row(list, slice_form, t->name, (int)f->writer, tc_ckpt_node(m, f->writer), f->name, ints(p->start, t->rank),
             ints(p->count, t->rank), (long long)p->bytes);
}

/* One line, or one JSON object, per rank, and the sum. */
static json_t *print_owners(const struct tc_manifest *m, const struct tc_ckpt_owner *o, int n, bool json)
{
  json_t *list = json ? json_array() : NULL;
  int64_t slices = 0;
  double bytes = 0;
  char size[32];
  if (!json) putchar('\n'), tc_out_head(owner_form);
  for (int i = 0; i < n && !ferror(stdout); i++) {
    slices += o[i].slices;
    bytes += (double)o[i].bytes;
    tc_out_row(list, owner_form, (int)o[i].rank, tc_ckpt_node(m, o[i].rank), (long long)o[i].slices,
               (long long)o[i].bytes);
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
    if (shown++ == 0 && !a->json) tc_out_head(slice_form);
    json_t *slices = a->json ? json_array() : NULL;
    for (int k = m->first_piece[i]; k < m->first_piece[i + 1] && !ferror(stdout); k++) {
      print_slice(m, &m->piece[k], slices);
      tc_ckpt_owner_add(o, n, m->file[m->piece[k].file].writer, m->piece[k].bytes);
    }
    if (a->json)
      tc_out_row(tensors, "name=%s dtype=%s shape=%p slices=%p", t->name, tc_dtype_name(t->dtype), ints(t->dim, t->rank),
                 (void *)slices);
  }
  if (shown == 0 && a->only)
    rc = tc_fail(err, TC_EUSER, "ckpt show: no tensor matches --tensor '%s'", a->only);
  json_t *ranks = rc == 0 ? print_owners(m, o, n, a->json) : NULL;
  if (rc == 0 && a->json)
    ckpt_print_json(tc_out_object("path=%s step=%lld tensors=%p ranks=%p", c->path, (long long)m->meta.step,
                                  (void *)tensors, (void *)ranks));
  else json_decref(tensors);
  free(o);
  tc_ckpt_close(c);
  return rc;
}
