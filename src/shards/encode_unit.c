/* encode_unit.c - the text of a unit to ids: a part of a document, or lines of JSON with one each.
 *
 * An empty document gives no ids at all, so that no end-of-document token follows another. A byte order mark before a
 * text is no part of it, and left out. */
#include "src/shards/impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct span { const char *s; size_t n; };

struct job {
  struct tc_text_unit *unit;
  const struct tc_shards_job *of;
  struct tc_encoder *e;
  const char *path;
  int64_t line;                   /* of JSONL */
};

static void put(struct tc_ids *to, const struct tc_ids *ids)
{
  tc_ids_reserve(to, ids->n);
  if (ids->n) memcpy(to->id + to->n, ids->id, ids->n * sizeof *ids->id);
  to->n += ids->n;
}

static void begin_document(const struct job *j)
{
  if (j->of->o->begin_token) put(&j->unit->ids, tc_tokenizer_begin(j->of->t));
}

/* The template may end with the end-of-document token itself. */
static void end_document(const struct job *j)
{
  struct tc_ids *ids = &j->unit->ids;
  const struct tc_ids *end = tc_tokenizer_end(j->of->t);
  const int64_t eod = j->of->eod;
  const bool there = j->of->o->begin_token && end->n && end->id[end->n - 1] == eod;
  if (j->of->o->begin_token) put(ids, end);
  if (eod >= 0 && !there) put(ids, &(struct tc_ids){ (uint32_t[]){ (uint32_t)eod }, 1, 1 });
  j->unit->documents++;
}

/* begins: the text does, else it goes on behind a cut. */
static int encode(const struct job *j, const char *text, size_t n, bool begins)
{
  return (begins ? tc_encode : tc_encode_on)(j->e, text, n, j->of->o->invalid, &j->unit->ids, &j->unit->invalid,
                                             &j->unit->err);
}

/* The bytes of the mark at the begin of a text. */
static size_t mark_size(const struct tc_text_unit *u)
{
  return u->at.offset == 0 && u->n >= 3 && memcmp(u->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* ---- a part of a text ------------------------------------------------------------------ */

static int encode_text(const struct job *j)
{
  struct tc_text_unit *u = j->unit;
  const bool begins = u->at.offset == 0;
  const size_t mark = mark_size(u);
  if (begins && u->ends && u->n == mark) return u->empty++, TC_OK;
  if (j->of->o->invalid == TC_INVALID_REFUSE) {
    const size_t valid = tc_utf8_valid(u->text, u->n);
    if (valid < u->n)
      return tc_fail(&u->err, TC_EUSER, "text '%s': invalid UTF-8 at byte %lld: 0x%02x; --invalid replace or bytes "
                     "takes it", j->path, (long long)u->at.offset + (long long)valid,
                     (unsigned char)u->text[valid]);
  }
  if (begins) begin_document(j);
  if (encode(j, u->text + mark, u->n - mark, begins) < 0) {
    const struct tc_err why = u->err;
    return tc_fail(&u->err, why.status, "text '%s', from byte %lld: %.700s", j->path, (long long)u->at.offset,
                   why.text);
  }
  if (u->ends) end_document(j);
  return TC_OK;
}

/* ---- lines of JSON --------------------------------------------------------------------- */

static int fail_line(const struct job *j, const char *why)
{
  struct tc_err was;               /* why may be in the sentence that is written */
  snprintf(was.text, sizeof was.text, "%s", why);
  return tc_fail(&j->unit->err, TC_EUSER, "text '%s', line %lld: %.700s", j->path, (long long)j->line, was.text);
}

/* The UTF-16 unit of \uXXXX at s, of n bytes; -1: there is none. */
static int utf16_at(const char *s, size_t n)
{
  int x = 0;
  if (n < 6 || s[0] != '\\' || s[1] != 'u') return -1;
  for (int i = 2; i < 6; i++) {
    const char c = s[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return -1;
    x = 16 * x + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return x;
}

/* Escapes that are half of a surrogate pair become U+FFFD, in place. Returns their number. */
static int64_t replace_halves(char *s, size_t n)
{
  int64_t parts = 0;
  for (size_t i = 0; i + 1 < n;) {
    if (s[i] != '\\') {
      i++;
      continue;
    }
    const int x = utf16_at(s + i, n - i);
    if (x < 0xd800 || x > 0xdfff) i += 2;
    else if (x < 0xdc00 && utf16_at(s + i + 6, n - i - TC_MIN(n - i, 6)) >> 10 == 0xdc00 >> 10) i += 12;
    else {
      memcpy(s + i + 2, "fffd", 4);
      parts++;
      i += 6;
    }
  }
  return parts;
}

/* A line without invalid UTF-8; NULL: it has some, which is refused. */
static char *clean_line(const struct job *j, const char *line, size_t n, size_t *bytes)
{
  const enum tc_invalid how = j->of->o->invalid;
  const size_t valid = tc_utf8_valid(line, n);
  int64_t *parts = &j->unit->invalid;
  char why[160];
  if (valid < n && how != TC_INVALID_REPLACE) {
    snprintf(why, sizeof why, "invalid UTF-8 at its byte %zu: 0x%02x; --invalid replace takes it%s", valid,
             (unsigned char)line[valid], how == TC_INVALID_BYTES ? ", --invalid bytes is for text that is not JSON"
                                                                   : "");
    fail_line(j, why);
    return NULL;
  }
  char *copy = tc_utf8_replace(line, n, bytes, parts);
  if (how == TC_INVALID_REPLACE) *parts += replace_halves(copy, *bytes);
  return copy;
}

/* The JSON of a line, owned by the caller. TC_EUSER: it can't be read. */
static int read_json(const struct job *j, const char *line, size_t n, json_t **object)
{
  json_error_t why;
  size_t bytes;
  char *copy = clean_line(j, line, n, &bytes);
  if (!copy) return TC_EUSER;
  *object = json_loadb(copy, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
  free(copy);
  return *object ? TC_OK : fail_line(j, why.text);
}

/* The text of a line, as *object, which is owned by the caller, has it. */
static int read_line(const struct job *j, const char *line, size_t n, json_t **object, struct span *text)
{
  const char *field = j->of->o->field ? j->of->o->field : "text";
  TC_TRY(read_json(j, line, n, object));
  const json_t *value = json_object_get(*object, field);
  if (json_is_string(value)) {
    *text = (struct span){ json_string_value(value), json_string_length(value) };
    return TC_OK;
  }
  if (json_object_get(*object, "messages") || json_object_get(*object, "conversations"))
    return fail_line(j, "it is a conversation, which --chat takes");
  char missing[200];
  snprintf(missing, sizeof missing, "it has no text in a field '%.80s'; --field names another", field);
  return fail_line(j, missing);
}

/* Goes on after a line that can't be read, if that is allowed. */
static int leave_out(const struct job *j)
{
  struct tc_text_unit *u = j->unit;
  if (!j->of->o->skip_bad) return TC_EUSER;
  if (!u->bad++) u->first_bad = u->err;
  u->err = (struct tc_err){ 0 };
  return TC_OK;
}

static int encode_line(const struct job *j, const char *line, size_t n)
{
  json_t *object = NULL;
  struct span text = { 0 };
  if (strspn(line, " \t\r") >= n) return TC_OK;
  int status = read_line(j, line, n, &object, &text);
  if (status < 0) status = leave_out(j);
  else if (text.n == 0) j->unit->empty++;
  else {
    begin_document(j);
    status = encode(j, text.s, text.n, true);
    if (status < 0) fail_line(j, j->unit->err.text);
    else end_document(j);
  }
  json_decref(object);
  return status;
}

static int encode_chat(const struct job *j, const char *line, size_t n)
{
  json_t *object = NULL;
  if (strspn(line, " \t\r") >= n) return TC_OK;
  int status = read_json(j, line, n, &object);
  if (status == TC_OK && tc_text_unit_chat(j->unit, j->of, j->e, object) < 0) status = fail_line(j, j->unit->err.text);
  json_decref(object);
  return status < 0 ? leave_out(j) : TC_OK;
}

static int encode_lines(struct job *j)
{
  const struct tc_text_unit *u = j->unit;
  for (size_t at = mark_size(u); at < u->n; j->line++) {
    const char *end = memchr(u->text + at, '\n', u->n - at);
    const size_t n = end ? (size_t)(end - u->text) - at : u->n - at;
    TC_TRY((j->of->chat ? encode_chat : encode_line)(j, u->text + at, n));
    at += n + 1;
  }
  return TC_OK;
}

void tc_text_unit_encode(struct tc_text_unit *unit, const struct tc_shards_job *of, struct tc_encoder *e)
{
  struct job j = { unit, of, e, of->o->text[unit->at.source], unit->at.line };
  unit->ids.n = 0;
  unit->documents = unit->empty = unit->invalid = unit->bad = unit->counted = unit->special = 0;
  unit->err.status = TC_OK;
  const int status = unit->jsonl ? encode_lines(&j) : encode_text(&j);
  TC_ASSERT(status == unit->err.status);
}
