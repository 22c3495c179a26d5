/* units.c - the input as units, which are encoded separately.
 *
 * A unit of JSONL is some whole lines. A file of text is one document: a unit of it ends where the tokenizer allows a
 * cut, or with the document. Where a unit ends depends on the bytes from its begin on alone, neither on how much a
 * read returned nor on what was before; so from the begin of any unit the same units follow again. */
#include "src/shards/impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 1 << 20 };
static const size_t MOST_BYTES = (size_t)1 << 32;      /* of a document without a cut */

struct tc_text_units {
  const struct tc_shards_job *job;
  const struct tc_shards_opts *o;
  struct tc_text_place at;        /* of the next unit */
  struct tc_text_input *in;            /* NULL: the source isn't open */
  char *rest;                     /* [n_rest] what was read and is not in a unit yet */
  size_t n_rest, rest_cap;
  atomic_llong done;              /* bytes of files that are read, and of the one in use */
  atomic_llong begun;             /* done when the first unit began; -1: not yet */
  int64_t done_before;
  bool (*stop)(void *);
  void *arg;
};

static void note_done(struct tc_text_units *u) { atomic_store(&u->done, u->done_before + tc_text_input_done(u->in)); }

/* Passes over the first `skip` bytes of the source, or until asked to stop. */
static int pass_over(struct tc_text_units *u, int64_t skip, struct tc_err *err)
{
  const int sought = tc_text_input_seek(u->in, skip, err);
  int status = TC_OK;
  if (sought) return sought < 0 ? sought : TC_OK;
  char *buf = tc_malloc(UNIT_BYTES);
  while (skip > 0 && status == TC_OK && !u->stop(u->arg)) {
    const int64_t got = tc_text_input_read(u->in, buf, TC_MIN(skip, UNIT_BYTES), u->stop, u->arg, err);
    if (got < 0) status = (int)got;
    else if (got == 0 && !u->stop(u->arg))
      status = tc_fail(err, TC_EUSER, "text '%s' is shorter than it was: it ends %lld bytes before the place where the "
                       "shards go on", u->o->text[u->at.source], (long long)skip);
    skip -= TC_MAX(got, 0);
    note_done(u);
  }
  free(buf);
  return status;
}

/* Opens the source at the place of the next unit. */
static int open_source(struct tc_text_units *u, struct tc_err *err)
{
  TC_TRY(tc_text_input_open(&u->in, u->o->text[u->at.source], u->o->invalid == TC_INVALID_REFUSE, err));
  TC_TRY(tc_text_input_same(u->in, &u->job->was[u->at.source], err));
  if (u->at.offset) TC_TRY(pass_over(u, u->at.offset, err));
  note_done(u);
  if (atomic_load(&u->begun) < 0 && !u->stop(u->arg)) atomic_store(&u->begun, atomic_load(&u->done));
  return TC_OK;
}

struct tc_text_units *tc_text_units_new(const struct tc_shards_job *job, struct tc_text_place from, bool (*stop)(void *),
                                        void *arg)
{
  struct tc_text_units *u = tc_calloc(1, sizeof *u);
  u->job = job;
  u->o = job->o;
  u->at = from;
  u->stop = stop;
  u->arg = arg;
  atomic_init(&u->done, 0);
  atomic_init(&u->begun, -1);
  for (int i = 0; i < from.source; i++) u->done_before += job->was[i].st_size;
  return u;
}

void tc_text_units_free(struct tc_text_units *u)
{
  if (!u) return;
  tc_text_input_free(u->in);
  TC_FREE(u->rest, u);
}

int64_t tc_text_units_done(const struct tc_text_units *u, int64_t *begun)
{
  *begun = atomic_load(&u->begun);
  return atomic_load(&u->done);
}

/* The unit's text grows to `want` bytes, or to the end of the source (*end). */
static int fill(struct tc_text_units *u, struct tc_text_unit *unit, size_t want, bool *end, struct tc_err *err)
{
  if (unit->cap < want) unit->text = tc_realloc(unit->text, unit->cap = want);
  const size_t kept = TC_MIN(u->n_rest, want - unit->n);
  if (kept) {
    memcpy(unit->text + unit->n, u->rest, kept);
    memmove(u->rest, u->rest + kept, u->n_rest -= kept);
    unit->n += kept;
  }
  const int64_t got = tc_text_input_read(u->in, unit->text + unit->n, (int64_t)(want - unit->n), u->stop, u->arg, err);
  if (got < 0) return (int)got;
  unit->n += (size_t)got;
  *end = unit->n < want;
  note_done(u);
  return TC_OK;
}

/* Where after `from` the unit's text can end; 0: nowhere. */
static size_t find_end(const struct tc_text_units *u, const struct tc_text_unit *unit, size_t from)
{
  if (!unit->jsonl) return tc_tokenizer_cut(u->job->t, unit->text, from > 2 ? from - 2 : 1, unit->n);
  const char *last = memrchr(unit->text + from, '\n', unit->n - from);
  return last ? (size_t)(last - unit->text) + 1 : 0;
}

/* Puts what is after the unit's first `n` bytes back. */
static void put_back(struct tc_text_units *u, struct tc_text_unit *unit, size_t n)
{
  const size_t rest = unit->n - n;
  if (u->n_rest + rest > u->rest_cap) u->rest = tc_realloc(u->rest, u->rest_cap = u->n_rest + rest);
  if (u->n_rest) memmove(u->rest + rest, u->rest, u->n_rest);
  if (rest) memcpy(u->rest, unit->text + n, rest);
  u->n_rest += rest;
  unit->n = n;
}

static int64_t count_lines(const char *text, size_t n)
{
  int64_t lines = 0;
  for (const char *p = text, *end = text + n; (p = memchr(p, '\n', (size_t)(end - p))); p++) lines++;
  return lines;
}

/* The next unit of the source; n == 0: it has ended. */
static int next_of_source(struct tc_text_units *u, struct tc_text_unit *unit, struct tc_err *err)
{
  size_t from = 0, cut = 0;
  bool end = false;
  unit->at = u->at;
  unit->jsonl = tc_text_is_jsonl(u->o, u->at.source);
  unit->n = 0;
  for (size_t want = UNIT_BYTES; !cut; from = want, want *= 2) {
    if (want > MOST_BYTES)
      return tc_fail(err, TC_EUSER, "text '%s': no %s within %zu GB after byte %lld: split it", u->o->text[u->at.source],
                     unit->jsonl ? "end of a line" : "place where the tokenizer allows a cut", MOST_BYTES >> 30,
                     (long long)u->at.offset);
    TC_TRY(fill(u, unit, want, &end, err));
    if (end) break;
    cut = find_end(u, unit, from);
  }
  if (!end) put_back(u, unit, cut);
  unit->ends = end;
  u->at.offset += (int64_t)unit->n;
  if (unit->jsonl) u->at.line += count_lines(unit->text, unit->n);
  return TC_OK;
}

int tc_text_units_next(struct tc_text_units *u, struct tc_text_unit *unit, struct tc_err *err)
{
  while (u->at.source < u->o->n_texts && !u->stop(u->arg)) {
    if (!u->in) TC_TRY(open_source(u, err));
    TC_TRY(next_of_source(u, unit, err));
    if (u->stop(u->arg)) return 0;
    if (unit->ends) {
      TC_TRY(tc_text_input_same(u->in, &u->job->was[unit->at.source], err));
      u->done_before += tc_text_input_done(u->in);
      tc_text_input_free(u->in);
      u->in = NULL;
      u->at = (struct tc_text_place){ u->at.source + 1, 0, 1 };
    }
    if (unit->n || (unit->ends && !unit->jsonl)) return 1;
  }
  return 0;
}
