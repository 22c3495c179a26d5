/* identity.c - what identifies a data set, and whether its files change under a run. */
#include "src/data/impl.h"

#include <stdlib.h>

static uint64_t hash_byte(uint64_t hash, uint32_t byte) { return tc_hash64_add(hash, byte & 0xff); }

/* FNV-1a (base/hash.h) over n tokens from pos, two bytes each, the low one first; four of a token that has more. */
static int hash_tokens(struct tc_data *d, const struct tc_source *s, int64_t pos, int64_t n, uint64_t *hash,
                       struct tc_err *err)
{
  for (int64_t end = pos + n; pos < end; pos += d->context) {
    int64_t here = TC_MIN(end - pos, d->context);
    TC_TRY(tc_source_read(s, d->own, d->vocab, pos, here, d->own->sample, err));
    for (int64_t i = 0; i < here; i++) {
      const uint32_t token = (uint32_t)d->own->sample[i];
      for (int k = 0; k < (token >> 16 ? 4 : 2); k++) *hash = hash_byte(*hash, token >> 8 * k);
    }
  }
  return TC_OK;
}

/* Adds all weights: one alone can move samples between packed windows. */
static int hash_weights(struct tc_data *d, const struct tc_source *s, uint64_t *hash, const struct tc_between *between,
                        struct tc_err *err)
{
  enum { BLOCK = 1 << 20 };
  uint8_t *buf = tc_malloc(BLOCK);
  int rc = TC_OK;
  for (int64_t at = s->lo, n; at < s->hi && rc == TC_OK; at += n) {
    n = TC_MIN(s->hi - at, BLOCK);
    rc = tc_source_weights(s, d->own, at, n, buf, err);
    for (int64_t i = 0; i < n && rc == TC_OK; i++) *hash = hash_byte(*hash, buf[i]);
    if (rc == TC_OK) rc = between->call(between->ctx, err);
  }
  free(buf);
  return rc;
}

static int hash_source(struct tc_data *d, const struct tc_source *s, uint64_t *hash, const struct tc_between *between,
                       struct tc_err *err)
{
  enum { ENDS = 4096, PIECES = 64, PIECE = 64 };
  const int64_t n = s->hi - s->lo, ends = TC_MIN(n, ENDS), piece = TC_MIN(n, PIECE);
  *hash = TC_HASH64;
  TC_TRY(hash_tokens(d, s, s->lo, ends, hash, err));
  TC_TRY(hash_tokens(d, s, s->hi - ends, ends, hash, err));
  for (int64_t i = 0; i < PIECES; i++)
    TC_TRY(hash_tokens(d, s, s->lo + (n - piece) / (PIECES - 1) * i, piece, hash, err));
  return s->weighted ? hash_weights(d, s, hash, between, err) : TC_OK;
}

int tc_data_identity(struct tc_data *d, struct tc_data_identity *out, struct tc_err *err)
{
  return tc_data_identity_between(d, out, &tc_between_nothing, err);
}

int tc_data_identity_between(struct tc_data *d, struct tc_data_identity *out, const struct tc_between *between, struct tc_err *err)
{
  *out = (struct tc_data_identity){ tc_data_tokens(d), 0 };
  for (int i = 0; i < d->n; i++) {
    uint64_t hash;
    TC_TRY(hash_source(d, &d->source[i], &hash, between, err));
    if (d->n == 1) out->hash = hash;
    for (int k = 0; d->n > 1 && k < 8; k++) out->hash = hash_byte(out->hash, (uint32_t)(hash >> 8 * k));
    for (int k = 0; d->n > 1 && k < 4; k++)
      out->hash = hash_byte(out->hash, (uint32_t)(d->blend.count[i] >> 8 * k));
  }
  if (!d->identity.tokens) d->identity = *out;
  return TC_OK;
}

uint64_t tc_data_inodes(const struct tc_data *d)
{
  uint64_t hash = TC_HASH64;
  for (int i = 0; i < d->n; i++)
    if (!tc_file_inode(&d->source[i].file[0], &hash)) return 0;
  return hash;
}

void tc_data_identify(struct tc_data *d, const struct tc_data_identity *id) { d->identity = *id; }

/* ---- files that change ------------------------------------------------------------------------- */

/* After a change of ctime alone, of n files, f the first of them; `warn` gives a warning of it. */
static int check_identity(struct tc_data *d, const struct tc_data_file *f, int n, bool warn, struct tc_err *err)
{
  struct tc_data_identity was = d->identity, now;
  TC_TRY(tc_data_identity(d, &now, err));
  const bool changed = was.tokens && now.hash != was.hash;
  char more[50] = "";
  if (n > 1) snprintf(more, sizeof more, "%s%d others", changed ? " or one of " : " and ", n - 1);
  if (changed)
    return tc_fail(err, TC_EUSER, "data file '%s'%s was modified during the run, and its time of "
                   "modification set back", f->name, more);
  if (warn)
    tc_warn("data file '%s'%s: mode, owner, name or links changed during the run; by size "
            "and time of modification the contents did not, so the run goes on", f->name, more);
  return TC_OK;
}

int tc_data_check(struct tc_data *d, bool warn, struct tc_err *err)
{
  const struct tc_data_file *first = NULL;
  int n = 0;
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < 2 * d->source[i].n_files; k++) {
      struct tc_data_file *f = (k % 2 ? d->source[i].weights : d->source[i].file) + k / 2;
      bool touched = false;
      if (f->tokens) TC_TRY(tc_file_check(d->files, f, &touched, err));
      if (touched && !n++) first = f;
    }
  return n ? check_identity(d, first, n, warn, err) : TC_OK;
}
