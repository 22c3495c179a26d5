/* decode.c - from ids to text, as the decoder of a tokenizer.json says.
 *
 * A decoder is a list of steps: Replace, Metaspace, ByteFallback and ByteLevel change tokens one by one, Fuse joins them, and
 * Strip removes characters in front of the whole. So what a token is decoded to is made when the file is read, and
 * only the first token, the begin of the text, and tokens of bytes need what is around them: bytes one after the other
 * are text if all of them are valid UTF-8, and U+FFFD for each byte if not. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------- */

static int refuse(const struct tc_tokenizer *t, const char *type, const char *what, struct tc_err *err)
{
  return tc_part_refuse(t, "decoder", type, what, err);
}

static int load_replace(struct tc_tokenizer *t, const char *from, const char *to, struct tc_err *err)
{
  struct tc_decoding *d = &t->decoding;
  if (!from || !*from || !to) return refuse(t, "Replace", "a pattern that is a text, and content, are", err);
  if (d->bytes || d->fused) return refuse(t, "Replace", "it has to stand before ByteFallback and Fuse", err);
  if (d->n == TC_STEPS) return refuse(t, "Replace", "there are too many", err);
  d->replace[d->n].from = tc_token_keep(t, from, strlen(from));
  d->replace[d->n++].to = tc_token_keep(t, to, strlen(to));
  return TC_OK;
}

/* A number that is not negative; -1. */
static int64_t number(const json_t *j, const char *key)
{
  const json_t *x = json_object_get(j, key);
  return json_is_integer(x) && json_integer_value(x) >= 0 ? json_integer_value(x) : -1;
}

static int load_strip(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  struct tc_decoding *d = &t->decoding;
  const char *content = json_string_value(json_object_get(j, "content"));
  const int64_t start = number(j, "start"), stop = number(j, "stop");
  if (!d->fused || d->stripped.s || !content || !*content || start < 0 || stop != 0)
    return refuse(t, "Strip", "one after Fuse, with stop = 0, is", err);
  d->stripped = tc_token_keep(t, content, strlen(content));
  d->strip = start;
  return TC_OK;
}

static int load_metaspace(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *scheme = json_string_value(json_object_get(j, "prepend_scheme"));
  const char *mark = json_string_value(json_object_get(j, "replacement"));
  bool space;
  TC_TRY(tc_part_flag(t, j, "add_prefix_space", true, &space, err));
  t->decoding.without_spaces = space && !(scheme && strcmp(scheme, "never") == 0);
  return load_replace(t, mark, " ", err);
}

static int load_step(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  const char *type = tc_part_type(j);
  struct tc_decoding *d = &t->decoding;
  const json_t *pattern = json_object_get(j, "pattern");
  if (strcmp(type, "Sequence") == 0) return tc_part_each(t, j, "decoders", load_step, err);
  if (strcmp(type, "ByteLevel") == 0)
    return t->characters ? refuse(t, type, "the pre-tokenizer does not end with ByteLevel", err) : TC_OK;
  if (!t->characters) return refuse(t, type, "ByteLevel is, as the pre-tokenizer has it", err);
  if (strcmp(type, "Metaspace") == 0) return load_metaspace(t, j, err);
  if (strcmp(type, "Strip") == 0) return load_strip(t, j, err);
  if (strcmp(type, "Replace") == 0)
    return load_replace(t, json_string_value(json_object_get(pattern, "String")),
                        json_string_value(json_object_get(j, "content")), err);
  if (strcmp(type, "Fuse") == 0) return d->fused = true, TC_OK;
  if (strcmp(type, "ByteFallback") == 0 && !d->fused) return d->bytes = true, TC_OK;
  return refuse(t, type, "Replace, Metaspace, ByteFallback, Fuse, Strip and Sequence are, in this order", err);
}

int tc_load_decoder(struct tc_tokenizer *t, const json_t *j, struct tc_err *err)
{
  if ((!j || json_is_null(j)) && !t->characters) return TC_OK;
  return load_step(t, j, err);
}

/* ---- a token ------------------------------------------------------------------------------- */

/* The byte of "<0x0A>"; -1: it is another text. */
static int byte_named(struct tc_bytes x)
{
  static const char digits[] = "0123456789abcdefABCDEF";
  char *end;
  if (x.n != 6 || memcmp(x.s, "<0x", 3) != 0 || x.s[5] != '>' || strspn(x.s + 3, digits) != 2) return -1;
  return (int)strtol(x.s + 3, &end, 16);
}

/* x with `to` in place of each `from`; a copy in the pool. */
static struct tc_bytes replaced(struct tc_tokenizer *t, struct tc_bytes x, struct tc_bytes from, struct tc_bytes to)
{
  char *out = tc_malloc(x.n * TC_MAX(to.n, 1) + 1);
  size_t len = 0;
  for (size_t i = 0; i < x.n;) {
    const bool here = x.n - i >= from.n && memcmp(x.s + i, from.s, from.n) == 0;
    const struct tc_bytes next = here ? to : (struct tc_bytes){ x.s + i, 1 };
    memcpy(out + len, next.s, next.n);
    len += next.n;
    i += here ? from.n : 1;
  }
  x = tc_token_keep(t, out, len);
  free(out);
  return x;
}

struct tc_bytes tc_decoded(struct tc_tokenizer *t, const char *text, size_t n)
{
  const struct tc_decoding *d = &t->decoding;
  struct tc_bytes x = { text, n };
  for (int i = 0; i < d->n; i++)
    if (memmem(x.s, x.n, d->replace[i].from.s, d->replace[i].from.n))
      x = replaced(t, x, d->replace[i].from, d->replace[i].to);
  const int byte = d->bytes ? byte_named(x) : -1;
  if (byte >= 0) return tc_token_keep(t, (char[]){ (char)byte }, 1);
  return x.s == text ? tc_token_keep(t, text, n) : x;
}

/* ---- a text, token by token ---------------------------------------------------------------- */

struct tc_decoder {
  const struct tc_tokenizer *t;
  bool keeps_bytes, begun;
  int64_t strip;                  /* so many characters may still be removed */
  char *out, *run;                /* run: bytes that may still become invalid */
  size_t n_out, out_cap, n_run, run_cap;
};

struct tc_decoder *tc_decoder_new(const struct tc_tokenizer *t, bool keeps_bytes)
{
  struct tc_decoder *d = tc_calloc(1, sizeof *d);
  d->t = t;
  d->keeps_bytes = keeps_bytes;
  d->begun = true;
  return d;
}

void tc_decoder_free(struct tc_decoder *d)
{
  if (d) TC_FREE(d->out, d->run, d);
}

void tc_decoder_begin(struct tc_decoder *d)
{
  d->begun = false;
  d->strip = d->t->decoding.strip;
}

static void put(struct tc_decoder *d, const char *s, size_t n)
{
  const struct tc_bytes *x = &d->t->decoding.stripped;
  while (d->strip > 0 && n > 0) {
    if (n < x->n || memcmp(s, x->s, x->n) != 0) d->strip = 0;
    else s += x->n, n -= x->n, d->strip--;
  }
  if (d->n_out + n > d->out_cap) d->out = tc_realloc(d->out, d->out_cap = 2 * (d->n_out + n));
  if (n) memcpy(d->out + d->n_out, s, n);
  d->n_out += n;
}

static void end_run(struct tc_decoder *d)
{
  const bool valid = d->keeps_bytes || tc_utf8_valid(d->run, d->n_run) == d->n_run;
  if (valid) put(d, d->run, d->n_run);
  for (size_t i = 0; !valid && i < d->n_run; i++) put(d, "\xef\xbf\xbd", 3);
  d->n_run = 0;
}

static bool is_byte(const struct tc_tokenizer *t, uint32_t id)
{
  const struct tc_bytes *x = &t->token[id];
  return t->decoding.bytes && x->n == 1 && t->byte_id[(unsigned char)*x->s] == id;
}

const char *tc_decode(struct tc_decoder *d, uint32_t id, size_t *bytes)
{
  const struct tc_tokenizer *t = d->t;
  size_t n;
  const char *s = tc_tokenizer_bytes(t, id, &n);
  d->n_out = 0;
  if (s && is_byte(t, id)) {
    TC_APPEND(d->run, d->n_run, d->run_cap, *s);
    if (d->keeps_bytes) end_run(d);
  } else if (s) {
    end_run(d);
    for (size_t i = 0; !d->begun && t->decoding.without_spaces && i < n; i++)
      if (s[i] != ' ') put(d, s + i, 1);
    if (d->begun || !t->decoding.without_spaces) put(d, s, n);
  }
  d->begun |= s != NULL;
  *bytes = d->n_out;
  return d->out;
}

const char *tc_decode_end(struct tc_decoder *d, size_t *bytes)
{
  d->n_out = 0;
  end_run(d);
  *bytes = d->n_out;
  return d->out;
}
