/* source.c - the files of a source as one stream of tokens.
 *
 * Token i of the stream is in the file with first <= i < first + tokens. */
#include "src/data/impl.h"
#include "src/files/files.h"
#include "src/token/token.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ----------------------------------------------------------------------------------- */

/* The file of weights beside a file of tokens, if there is one. */
static int find_weights(struct tc_data_file *w, struct tc_reader *r, const struct tc_data_file *f, struct tc_err *err)
{
  char header[TC_WEIGHTS_BYTES] = "";
  *w = (struct tc_data_file){ .name = tc_weights_path(f->name), .width = 1, .header = TC_WEIGHTS_BYTES };
  const int there = tc_is_there(w->name);
  if (there < 0) return tc_fail(err, TC_EUSER, "data file '%s': %s", w->name, strerror(errno));
  if (!there) return TC_OK;
  TC_TRY(tc_file_open(r, w, err));
  if (w->was.st_size >= (int64_t)sizeof header) TC_TRY(tc_file_read(r, w, header, sizeof header, 0, err));
  TC_TRY(tc_weights_check(header, w->was.st_size, f->tokens, w->name, err));
  w->tokens = f->tokens;
  return TC_OK;
}

/* Whether the data.json beside a shard says that it was made with weights. */
static bool is_of_chat(const struct tc_data_file *f)
{
  enum { MOST_BYTES = 64 << 20 };
  char *folder = tc_folder_of(f->name), *path = tc_sprintf("%s/" TC_SHARDS_NOTE, folder);
  json_t *j = NULL;
  struct tc_err unread;                          /* then nothing is known of it */
  tc_read_json(&j, path, TC_SHARDS_NOTE, MOST_BYTES, 0, NULL, &unread);
  const bool is = json_object_get(json_object_get(j, "command"), "chat") != NULL;
  json_decref(j);
  TC_FREE(folder, path);
  return is;
}

static bool same_folder(const char *a, const char *b)
{
  const char *x = strrchr(a, '/'), *y = strrchr(b, '/');
  return x - a == y - b && (!x || memcmp(a, b, (size_t)(x - a)) == 0);
}

/* TC_EUSER if weights of the source were lost, so that all of its tokens would count: some files have weights and some have none,
 * or a shard is one of conversations. Asks once for shards of a folder that follow each other. */
static int check_weights(const struct tc_source *s, struct tc_err *err)
{
  const struct tc_data_file *with = NULL, *asked = NULL;
  for (int i = 0; i < s->n_files; i++)
    if (s->weights[i].tokens && !with) with = &s->file[i];
  for (int i = 0; i < s->n_files; i++) {
    const struct tc_data_file *f = &s->file[i];
    if (s->weights[i].tokens || (asked && same_folder(asked->name, f->name))) continue;
    if (with)
      return tc_fail(err, TC_EUSER, "'%s' does not lie beside '%s', though '%s' has weights: copy it there, or name files without "
                     "weights as another source of a blend", s->weights[i].name, f->name, with->name);
    if (!f->marked) continue;
    if (is_of_chat(f))
      return tc_fail(err, TC_EUSER, "'%s' does not lie beside '%s', which `tercio data --chat` made with weights, as the "
                     TC_SHARDS_NOTE " beside them says: copy it there, or make the shards again", s->weights[i].name, f->name);
    asked = f;
  }
  return TC_OK;
}

static int open_files(struct tc_source *s, struct tc_reader *r, const struct tc_data_opts *o, const struct tc_between *between,
                      struct tc_err *err)
{
  int64_t first = 0;
  s->weights = tc_calloc((size_t)s->n_files, sizeof *s->weights);
  for (int i = 0; i < s->n_files; i++) {
    struct tc_data_file *f = &s->file[i];
    TC_TRY(tc_format_find(r, f, o->format, err));
    TC_TRY(find_weights(&s->weights[i], r, f, err));
    s->weighted |= s->weights[i].tokens > 0;
    TC_TRY(between->call(between->ctx, err));
    f->first = first;
    if (__builtin_add_overflow(first, f->tokens, &first))
      return tc_fail(err, TC_EUSER, "data file '%s': the files have more tokens than can be counted", f->name);
  }
  return o->separate ? TC_OK : check_weights(s, err);
}

static int choose_part(struct tc_source *s, const struct tc_data_opts *o, struct tc_err *err)
{
  static const char *const what[] = { "", " in the training part (the first 95 %)",
                                      " in the validation part (the last 5 %)" };
  const struct tc_data_file *last = &s->file[s->n_files - 1];
  const int64_t total = last->first + last->tokens;
  const int64_t cut = total / 100 * 95 + total % 100 * 95 / 100;
  s->lo = o->part == 2 ? cut : 0;
  s->hi = o->part == 1 ? cut : total;
  if (o->separate || o->pack || s->hi - s->lo > (o->shorter ? 1 : o->context)) return TC_OK;
  if (o->shorter)
    return tc_fail(err, TC_EUSER, "%s has one token, but a loss needs two: the second is predicted from the first",
                   s->file[0].name);
  return tc_fail(err, TC_EUSER, "%s%s: too few tokens%s: %lld, but a sample of model.context = %lld "
                 "needs one more than the context; give more text or a shorter context",
                 s->file[0].name, s->n_files > 1 ? " and the files after it" : "", what[o->part],
                 (long long)(s->hi - s->lo), (long long)o->context);
}

/* The tokenizer.json beside the file; owned. */
static char *tokenizer_beside(const struct tc_data_file *f)
{
  const char *slash = strrchr(f->name, '/');
  return tc_sprintf("%.*s" TC_TOKENIZER_FILE, slash ? (int)(slash + 1 - f->name) : 0, f->name);
}

int tc_source_open(struct tc_source *s, struct tc_reader *r, const struct tc_data_opts *o, const struct tc_between *between,
                   struct tc_err *err)
{
  TC_TRY(open_files(s, r, o, between, err));
  if (o->format == TC_FORMAT_AUTO && s->file[0].width == 1 && !s->file[0].header && o->vocab < 256)
    return tc_fail(err, TC_EUSER, "model.vocab = %lld is too small for data file '%s', which is text, whose "
                   "tokens are bytes: 256 would do", (long long)o->vocab, s->file[0].name);
  TC_TRY(choose_part(s, o, err));
  return o->pack ? tc_source_pack(s, r, o->context, o->cut, between, err) : TC_OK;
}

/* ---- tokens ------------------------------------------------------------------------------------ */

/* Widens n tokens of a file; returns the largest. */
static uint32_t widen(const uint8_t *raw, int width, int64_t n, int32_t *out)
{
  const uint16_t *u16 = (const void *)raw;
  const uint32_t *u32 = (const void *)raw;
  uint32_t max = 0;
  for (int64_t i = 0; width == 1 && i < n; i++) max = TC_MAX(max, raw[i]), out[i] = raw[i];
  for (int64_t i = 0; width == 2 && i < n; i++) max = TC_MAX(max, u16[i]), out[i] = u16[i];
  for (int64_t i = 0; width == 4 && i < n; i++) max = TC_MAX(max, u32[i]), out[i] = (int32_t)u32[i];
  return max;
}

/* Advice for the error. A header of another program has no vocabulary, but the folder may have the tokenizer. */
static void suggest(char *hint, size_t size, const struct tc_data_file *f, uint32_t token)
{
  char *json = tokenizer_beside(f), shown[TC_TOKEN_SHOWN] = "";
  struct tc_tokenizer *t = NULL;
  struct tc_err why;
  const bool there = (!f->marked || f->tokenizer) && tc_tokenizer_load(&t, json, &why) == 0;
  if (there && (!f->marked || tc_tokenizer_hash(t) == f->tokenizer)) tc_token_shown(t, token, shown);
  if (f->marked && token < f->vocab)
    snprintf(hint, size, "its header says a vocabulary of %lld: model.vocab = %lld, or text without %s%s%s, would fit",
             (long long)f->vocab, (long long)f->vocab, *shown ? "'" : "this token", shown, *shown ? "'" : "");
  else if (f->marked)
    snprintf(hint, size, "its header says a vocabulary of %lld: the file is damaged; make or copy it again",
             (long long)f->vocab);
  else if (there && token < tc_tokenizer_vocab(t))
    snprintf(hint, size, "model.vocab = %lld would fit, by %.400s", (long long)tc_tokenizer_vocab(t), json);
  else snprintf(hint, size, "was the file made with another tokenizer?");
  tc_tokenizer_free(t);
  free(json);
}

/* Names the first of the n tokens that is too large. */
static int fail_token(struct tc_reader *r, const struct tc_data_file *f, int64_t vocab, int64_t from, int64_t n,
                      const int32_t *token, struct tc_err *err)
{
  struct tc_err changed;
  char hint[500] = "the file was modified during the run";
  int64_t i = 0;
  while (i < n - 1 && (uint32_t)token[i] < vocab) i++;
  if (tc_file_same(r, f, &changed) == 0) suggest(hint, sizeof hint, f, (uint32_t)token[i]);
  return tc_fail(err, TC_EUSER, "data file '%s': token %u at place %lld (byte %lld) is not below "
                 "model.vocab = %lld; %s", f->name, (uint32_t)token[i], (long long)(from + i),
                 (long long)(f->header + (from + i) * f->width), (long long)vocab, hint);
}

int tc_source_file(const struct tc_source *s, int64_t pos)
{
  int lo = 0, hi = s->n_files - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (s->file[mid].first <= pos) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

int tc_source_read(const struct tc_source *s, struct tc_reader *r, int64_t vocab, int64_t pos, int64_t n,
                   int32_t *out, struct tc_err *err)
{
  for (int i = tc_source_file(s, pos); n > 0; i++) {
    TC_ASSERT(i < s->n_files);
    struct tc_data_file *f = &s->file[i];
    const int64_t from = pos - f->first, here = TC_MIN(n, f->tokens - from);
    TC_TRY(tc_file_read(r, f, r->raw, here * f->width, f->header + from * f->width, err));
    if (widen(r->raw, f->width, here, out) >= vocab) return fail_token(r, f, vocab, from, here, out, err);
    out += here;
    pos += here;
    n -= here;
  }
  return TC_OK;
}
