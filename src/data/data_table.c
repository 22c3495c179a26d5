/* data_table.c - what one rank has found of the files of a data set, for the others: thousands of ranks that open thousands of
 * files at once would keep a file system's server of names busy for minutes.
 *
 * The structs as they are in memory, each followed by its name: all ranks run the same build. */
#include "src/data/impl.h"

#include <stdlib.h>
#include <string.h>

static void put(FILE *f, const void *p, size_t bytes) { TC_ASSERT(fwrite(p, 1, bytes, f) == bytes); }

static void put_name(FILE *f, const char *name) { put(f, name, strlen(name) + 1); }

void tc_data_pack(const struct tc_data *d, void **bytes, int64_t *n)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  put(f, d, sizeof *d);
  for (int i = 0; i < d->n; i++) {
    const struct tc_source *s = &d->source[i];
    put(f, s, sizeof *s);
    put_name(f, s->name);
    for (int k = 0; k < s->n_files; k++) {
      put(f, &s->file[k], sizeof s->file[k]);
      put_name(f, s->file[k].name);
      if (!s->weighted) continue;
      put(f, &s->weights[k], sizeof s->weights[k]);
      put_name(f, s->weights[k].name);
    }
    if (!d->packed) continue;
    put(f, s->packed.begin, (size_t)(s->packed.n + 1) * sizeof *s->packed.begin);
    put(f, s->packed.item, (size_t)s->packed.begin[s->packed.n] * sizeof *s->packed.item);
  }
  TC_ASSERT(fclose(f) == 0);
  *bytes = text;
  *n = (int64_t)size;
}

struct cursor { const char *at, *end; };

static void take(struct cursor *c, void *p, size_t bytes)
{
  TC_ASSERT(bytes <= (size_t)(c->end - c->at));
  memcpy(p, c->at, bytes);
  c->at += bytes;
}

static char *take_name(struct cursor *c)
{
  const size_t n = strnlen(c->at, (size_t)(c->end - c->at)) + 1;
  char *name = tc_malloc(n);
  take(c, name, n);
  return name;
}

static void take_file(struct cursor *c, struct tc_data_file *f)
{
  take(c, f, sizeof *f);
  f->name = take_name(c);
  f->unseen = true;
}

static void *take_array(struct cursor *c, size_t n, size_t size)
{
  void *p = tc_malloc(n * size);
  take(c, p, n * size);
  return p;
}

int tc_data_unpack(struct tc_data **out, const void *bytes, int64_t n, int files, struct tc_err *err)
{
  struct cursor c = { bytes, (const char *)bytes + n };
  struct tc_data of, *d = tc_calloc(1, sizeof *d);
  take(&c, &of, sizeof of);
  d->n = of.n;
  d->context = of.context;
  d->vocab = of.vocab;
  d->packed = of.packed;
  d->cut = of.cut;
  d->source = tc_calloc((size_t)d->n, sizeof *d->source);
  for (int i = 0; i < d->n; i++) {
    struct tc_source *s = &d->source[i];
    take(&c, s, sizeof *s);
    s->name = take_name(&c);
    s->file = tc_malloc((size_t)s->n_files * sizeof *s->file);
    s->weights = tc_calloc((size_t)s->n_files, sizeof *s->weights);
    for (int k = 0; k < s->n_files; k++) {
      take_file(&c, &s->file[k]);
      if (s->weighted) take_file(&c, &s->weights[k]);
    }
    if (!d->packed) continue;
    s->packed.begin = take_array(&c, (size_t)s->packed.n + 1, sizeof *s->packed.begin);
    s->packed.item = take_array(&c, (size_t)s->packed.begin[s->packed.n], sizeof *s->packed.item);
  }
  const int rc = tc_data_complete(d, files, err);
  if (rc == TC_OK) *out = d;
  else tc_data_free(d);
  return rc;
}
