/* chat.c - which row of chat.def a tokenizer's folder has, and what the row makes of turns. */
#include "src/shards/chat.h"
#include "src/base/hash.h"
#include "src/files/files.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG "tokenizer_config.json"
#define JINJA "chat_template.jinja"

static const struct tc_chat_row rows[] = {
#define CHAT(word, ...) { .name = word, __VA_ARGS__ },
#include "src/shards/chat.def"
#undef CHAT
};
/* "chatml, llama3, ..., none", and what follows the last one. */
static const char row_names[] =
#define CHAT(word, ...) word ", "
#include "src/shards/chat.def"
#undef CHAT
  ;
enum { NAMES = sizeof row_names - sizeof ", " };
enum { ROWS = sizeof rows / sizeof *rows, MOST_BYTES = 16 << 20, HASHES = 4 };

static const char *const role_names[TC_CHAT_ROLES] = { "system", "user", "assistant", "tool" };

uint64_t tc_chat_hash(const char *text, size_t n)
{
  uint64_t h = TC_HASH64;
  for (size_t i = 0; i < n; i++) h = tc_hash64_add(h, (unsigned char)text[i]);
  return h;
}

uint64_t tc_chat_identity(const struct tc_chat *c)
{
  uint64_t h = tc_hash64(c->row->name);
  if (c->begin) h = tc_hash64_add(h, tc_hash64(c->begin));
  for (int i = 0; i < TC_CHAT_ROLES; i++)
    if (c->tail[i]) h = tc_hash64_add(h, tc_hash64(c->tail[i]));
  return h;
}

/* ---- which row ------------------------------------------------------------------------- */

/* What the folder of a tokenizer says. */
struct folder { char *text, *from, *bos, *eos; bool config; };      /* owned; text NULL: it has no template */

/* {"bos_token": "<s>"} or {"bos_token": {"content": "<s>"}}. */
static char *token_text(const json_t *config, const char *key)
{
  const json_t *x = json_object_get(config, key);
  if (json_is_object(x)) x = json_object_get(x, "content");
  return json_is_string(x) ? tc_strdup(json_string_value(x)) : NULL;
}

/* The text, or of several that with the name "default". */
static char *template_text(const json_t *config)
{
  const json_t *x = json_object_get(config, "chat_template"), *one;
  size_t i;
  json_array_foreach(x, i, one) {
    const char *name = json_string_value(json_object_get(one, "name"));
    if (name && strcmp(name, "default") == 0) return token_text(one, "template");
  }
  return json_is_string(x) ? tc_strdup(json_string_value(x)) : NULL;
}

/* Takes what the texts of the two files say; either may be NULL. *jinja becomes that of *f. */
static void take_files(struct folder *f, const json_t *config, char **jinja)
{
  f->text = *jinja ? *jinja : template_text(config);
  f->bos = token_text(config, "bos_token");
  f->eos = token_text(config, "eos_token");
  *jinja = NULL;
}

static int read_folder(struct folder *f, const char *path, struct tc_err *err)
{
  const char *slash = strrchr(path, '/');
  const int n = slash ? (int)(slash - path) + 1 : 0;
  char *config = tc_sprintf("%.*s" CONFIG, n, path), *jinja = tc_sprintf("%.*s" JINJA, n, path), *text = NULL;
  json_t *j = NULL;
  size_t bytes;
  int rc = TC_OK;
  f->config = tc_is_there(config) == 1;
  if (f->config) rc = tc_read_loose_json(&j, config, "file", MOST_BYTES, err);
  if (rc == TC_OK && tc_is_there(jinja) == 1) rc = tc_read_text(&text, &bytes, jinja, "file", MOST_BYTES, err);
  f->from = tc_strdup(text ? jinja : config);
  take_files(f, j, &text);
  json_decref(j);
  TC_FREE(config, jinja);
  return rc;
}

static void read_beside(struct folder *f, const json_t *files, const char *path)
{
  const char *config = json_string_value(json_object_get(files, CONFIG)), *jinja = json_string_value(json_object_get(files, JINJA));
  char *text = jinja ? tc_strdup(jinja) : NULL;
  json_t *j = config ? json_loads(config, 0, NULL) : NULL;
  f->config = config != NULL;
  f->from = tc_strdup(path);
  take_files(f, j, &text);
  json_decref(j);
}

static int find_row(const struct tc_chat_row **out, const char *name, const struct folder *f, struct tc_err *err)
{
  const char *s = f->text;
  size_t n = s ? strlen(s) : 0;
  for (*out = rows; *out < rows + ROWS && *name; ++*out)
    if (strcmp((*out)->name, name) == 0) return TC_OK;
  if (*name)
    return tc_fail(err, TC_EUSER, "--chat takes the name of a template, %.*s, or nothing: the one beside the tokenizer; '%.60s' "
                   "is %s", NAMES, row_names, name, tc_is_there(name) == 1 ? "a file: give files before --chat" : "no such name");
  if (!s)
    return tc_fail(err, TC_EUSER, "'%s' has no chat_template; name one by --chat %.*s", f->from, NAMES, row_names);
  if (tc_utf8_valid(s, n) == n) tc_utf8_strip(&s, &n);
  const uint64_t hash = tc_chat_hash(s, n);
  for (*out = rows; *out < rows + ROWS; ++*out)
    for (int i = 0; i < HASHES && (*out)->hash[i]; i++)
      if ((*out)->hash[i] == hash) return TC_OK;
  return tc_fail(err, TC_EUSER, "the chat_template of '%s' (hash %016llx) is not one of those that are known; if one of these "
                 "renders the same, name it: --chat %.*s", f->from, (unsigned long long)hash, NAMES, row_names);
}

/* text with the tokens in place of {bos} and {eos}; owned by the caller. NULL: NULL. */
static char *expand(const char *text, const char *bos, const char *eos)
{
  const char *at = text ? strchr(text, '{') : NULL;
  if (!at) return text ? tc_strdup(text) : NULL;
  return tc_sprintf("%.*s%s%s", (int)(at - text), text, strncmp(at, "{bos}", 5) == 0 ? bos : eos, at + 5);
}

/* Notes the added tokens of a text. */
static int note_control(struct tc_chat *c, const char *text, const struct tc_tokenizer *t, struct tc_encoder *e,
                        struct tc_err *err)
{
  struct tc_ids ids = { 0 };
  const int rc = tc_encode(e, text, strlen(text), TC_INVALID_REFUSE, &ids, NULL, err);
  for (size_t i = 0; i < ids.n; i++)
    if (tc_tokenizer_added(t, ids.id[i])) TC_APPEND(c->control.id, c->control.n, c->control.cap, ids.id[i]);
  tc_ids_free(&ids);
  return rc;
}

/* The tokens that the template ends answers with, and begins with, are those of the tokenizer. */
static int check_tokens(const struct tc_chat *c, const char *bos, const struct tc_tokenizer *t, const char *path,
                        struct tc_err *err)
{
  const char *need[] = { c->tail[TC_CHAT_ASSISTANT], c->begin && strstr(c->row->begin, "{bos}") ? bos : NULL };
  for (int i = 0; i < 2; i++) {
    const int64_t id = need[i] && *need[i] ? tc_tokenizer_find(t, need[i]) : 0;
    if (need[i] && !*need[i] && i == 0)
      return tc_fail(err, TC_EUSER, "chat template %s ends answers with the eos_token, which the tokenizer_config.json beside "
                     "'%s' does not have", c->row->name, path);
    if (need[i] && *need[i] && (id < 0 || !tc_tokenizer_added(t, (uint32_t)id)))
      return tc_fail(err, TC_EUSER, "chat template %s needs the token '%s', which tokenizer '%s' does not have as an added token",
                     c->row->name, need[i], path);
  }
  return TC_OK;
}

static int fill(struct tc_chat *c, const struct folder *f, const char *path, const struct tc_tokenizer *t, struct tc_err *err)
{
  const struct tc_chat_row *r = c->row;
  const char *bos = f->bos ? f->bos : f->config || !r->bos ? "" : r->bos, *eos = f->eos ? f->eos : "";
  struct tc_encoder *e;
  c->begin = expand(r->begin, bos, eos);
  for (int i = 0; i < TC_CHAT_ROLES; i++) c->tail[i] = expand(r->role[i].tail, bos, eos);
  TC_TRY(check_tokens(c, bos, t, path, err));
  TC_TRY(tc_encoder_new(&e, t, err));
  int rc = c->begin ? note_control(c, c->begin, t, e, err) : TC_OK;
  for (int i = 0; i < TC_CHAT_ROLES && rc == TC_OK; i++) {
    if (r->role[i].head) rc = note_control(c, r->role[i].head, t, e, err);
    if (c->tail[i] && rc == TC_OK) rc = note_control(c, c->tail[i], t, e, err);
  }
  tc_encoder_free(e);
  return rc;
}

/* The token that ends a text, by its usual names; owned by the caller. NULL: there is none. */
static char *end_of_text(const struct tc_tokenizer *t)
{
  const int64_t id = tc_tokenizer_end_of_text(t);
  size_t n;
  const char *s = id < 0 ? NULL : tc_tokenizer_bytes(t, (uint32_t)id, &n);
  return s ? tc_sprintf("%.*s", (int)n, s) : NULL;
}

/* Finds the row, and fills it, by a folder's files, which it frees; rc: what became of reading them. */
static int make(struct tc_chat **out, const char *name, struct folder *f, const char *path, const struct tc_tokenizer *t, int rc,
                struct tc_err *err)
{
  struct tc_chat *c = *out = tc_calloc(1, sizeof *c);
  if (rc == TC_OK) rc = find_row(&c->row, name, f, err);
  if (rc == TC_OK && !f->config) f->eos = end_of_text(t);
  if (rc == TC_OK) rc = fill(c, f, path, t, err);
  TC_FREE(f->text, f->from, f->bos, f->eos);
  if (rc == TC_OK) return TC_OK;
  tc_chat_free(c);
  *out = NULL;
  return rc;
}

int tc_chat_new(struct tc_chat **out, const char *name, const char *path, const struct tc_tokenizer *t, struct tc_err *err)
{
  struct folder f = { 0 };
  return make(out, name, &f, path, t, read_folder(&f, path, err), err);
}

int tc_chat_beside(struct tc_chat **out, const char *name, const json_t *files, const char *path, const struct tc_tokenizer *t,
                   struct tc_err *err)
{
  struct folder f = { 0 };
  read_beside(&f, files, path);
  return make(out, name, &f, path, t, TC_OK, err);
}

void tc_chat_free(struct tc_chat *c)
{
  if (!c) return;
  for (int i = 0; i < TC_CHAT_ROLES; i++) free(c->tail[i]);
  free(c->begin);
  tc_ids_free(&c->control);
  free(c);
}

/* ---- turns to text --------------------------------------------------------------------- */

static void put(struct tc_chat_text *to, const char *s, size_t n)
{
  if (to->n + n > to->cap) to->s = tc_realloc(to->s, to->cap = 2 * (to->n + n));
  if (n) memcpy(to->s + to->n, s, n);
  to->n += n;
}

static void put_text(struct tc_chat_text *to, const char *s) { if (s) put(to, s, strlen(s)); }

static int check_turn(const struct tc_chat *c, const struct tc_chat_turn *turn, size_t i, struct tc_err *err)
{
  if (!c->row->role[turn->role].head)
    return tc_fail(err, TC_EUSER, "turn %zu is of role '%s', which chat template %s does not have", i + 1,
                   role_names[turn->role], c->row->name);
  if (c->row->alternates && (turn->role == TC_CHAT_USER) != (i % 2 == 0))
    return tc_fail(err, TC_EUSER, "turn %zu is of role '%s', but with chat template %s user and assistant alternate, the user "
                   "first", i + 1, role_names[turn->role], c->row->name);
  return TC_OK;
}

/* Whether text begins, or ends, with a word. */
static bool has_begin(const char *s, size_t n, const char *word)
{
  return n >= strlen(word) && memcmp(s, word, strlen(word)) == 0;
}

static bool has_end(const char *s, size_t n, const char *word)
{
  return n >= strlen(word) && has_begin(s + n - strlen(word), strlen(word), word);
}

/* The last turn of the user that is no answer of a tool, after which answers show what they think. */
static size_t last_query(const struct tc_chat_turn *turn, size_t n)
{
  for (size_t i = n; i-- > 0;)
    if (turn[i].role == TC_CHAT_USER && !(has_begin(turn[i].content, turn[i].n, "<tool_response>") &&
                                          has_end(turn[i].content, turn[i].n, "</tool_response>"))) return i;
  return n - 1;
}

/* The last place of a word in s[n]; NULL: it is not there. */
static const char *last_of(const char *s, size_t n, const char *word)
{
  const char *found = NULL, *end = s + n;
  while ((s = memmem(s, (size_t)(end - s), word, strlen(word)))) found = s++;
  return found;
}

static void strip_lines(const char **s, const char **end)
{
  while (*s < *end && **s == '\n') ++*s;
  while (*end > *s && (*end)[-1] == '\n') --*end;
}

/* An answer: what was thought is left out, or, if it is open, stands before it; in the last one even if it is nothing. */
static void put_thinking(struct tc_chat_text *to, const char *s, size_t n, bool open, bool last)
{
  static const char begin[] = "<think>", close[] = "</think>";
  const char *end = s + n, *closed = memmem(s, n, close, strlen(close)), *thought = s, *thought_end = s;
  if (closed) {
    const char *inner;
    thought_end = closed;
    while (thought_end > s && thought_end[-1] == '\n') thought_end--;
    inner = last_of(s, (size_t)(thought_end - s), begin);
    if (inner) thought = inner + strlen(begin);
    strip_lines(&thought, &thought_end);
    s = last_of(s, n, close) + strlen(close);
  }
  open &= last || thought_end > thought;
  while (s < end && *s == '\n' && (closed || open)) s++;
  if (open) {
    put_text(to, "<think>\n");
    put(to, thought, (size_t)(thought_end - thought));
    put_text(to, "\n</think>\n\n");
  }
  put(to, s, (size_t)(end - s));
}

int tc_chat_render(const struct tc_chat *c, const struct tc_chat_turn *turn, size_t n, struct tc_chat_text *to,
                   struct tc_err *err)
{
  to->n = to->n_spans = 0;
  if (n == 0) return tc_fail(err, TC_EUSER, "its conversation has no turns");
  for (size_t i = 0; i < n; i++) TC_TRY(check_turn(c, &turn[i], i, err));
  const size_t query = last_query(turn, n);
  bool joined = false;
  put_text(to, c->begin);
  if (turn[0].role != TC_CHAT_SYSTEM) put_text(to, c->row->no_system);
  for (size_t i = 0; i < n; i++) {
    const enum tc_chat_role role = turn[i].role;
    const char *s = turn[i].content;
    size_t bytes = turn[i].n;
    struct tc_chat_span span;
    if (c->row->strips) tc_utf8_strip(&s, &bytes);
    if (!joined) put_text(to, c->row->role[role].head);
    if (i == 0 && role == TC_CHAT_SYSTEM) put_text(to, c->row->first_system);
    span.content = to->n;
    if (c->row->thinks && role == TC_CHAT_ASSISTANT) put_thinking(to, s, bytes, i > query, i + 1 == n);
    else put(to, s, bytes);
    span.tail = to->n;
    joined = c->row->tool_join && role == TC_CHAT_TOOL && i + 1 < n && turn[i + 1].role == TC_CHAT_TOOL;
    put_text(to, joined ? c->row->tool_join : c->tail[role]);
    span.end = to->n;
    if (!joined) put_text(to, c->row->after);
    TC_APPEND(to->span, to->n_spans, to->spans_cap, span);
  }
  return TC_OK;
}

int tc_chat_ask(const struct tc_chat *c, const struct tc_chat_turn *turn, size_t n, struct tc_chat_text *to, struct tc_err *err)
{
  TC_TRY(tc_chat_render(c, turn, n, to, err));
  const enum tc_chat_role last = turn[n - 1].role;
  if (last != TC_CHAT_USER && last != TC_CHAT_TOOL)
    return tc_fail(err, TC_EUSER, "its last turn is %s: one of the user's or a tool's is to be answered",
                   last == TC_CHAT_ASSISTANT ? "an answer" : "the system's");
  put_text(to, c->row->role[TC_CHAT_ASSISTANT].head);
  return TC_OK;
}

int32_t tc_chat_end(const struct tc_chat *c, const struct tc_tokenizer *t)
{ return c->tail[TC_CHAT_ASSISTANT] ? (int32_t)tc_tokenizer_find(t, c->tail[TC_CHAT_ASSISTANT]) : -1; }

void tc_chat_text_free(struct tc_chat_text *x)
{
  TC_FREE(x->s, x->span);
}
