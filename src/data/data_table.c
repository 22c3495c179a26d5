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
    }
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

int tc_data_unpack(struct tc_data **out, const void *bytes, int64_t n, int files, struct tc_err *err)
{
  struct cursor c = { bytes, (const char *)bytes + n };
  struct tc_data of, *d = tc_calloc(1, sizeof *d);
  take(&c, &of, sizeof of);
  d->n = of.n;
  d->context = of.context;
  d->vocab = of.vocab;
  d->source = tc_calloc((size_t)d->n, sizeof *d->source);
  for (int i = 0; i < d->n; i++) {
    struct tc_source *s = &d->source[i];
    take(&c, s, sizeof *s);
    s->name = take_name(&c);
    s->file = tc_malloc((size_t)s->n_files * sizeof *s->file);
    for (int k = 0; k < s->n_files; k++) {
      take(&c, &s->file[k], sizeof s->file[k]);
      s->file[k].name = take_name(&c);
      s->file[k].unseen = true;
    }
  }
  const int rc = tc_data_complete(d, files, err);
  if (rc == TC_OK) *out = d;
  else tc_data_free(d);
  return rc;
}
