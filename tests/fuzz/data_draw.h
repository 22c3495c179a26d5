/* data_draw.h - for fuzz_data.c: a set of token files, drawn and written. */
#ifndef TC_TEST_DATA_DRAW_H
#define TC_TEST_DATA_DRAW_H

#include <sys/stat.h>

#include "src/data/data.h"
#include "tests/fuzz/fuzz.h"

enum { SOURCES = 4, FILES = 5, TOKENS = 1500, WORDS = SOURCES * FILES };

struct token_file { char name[96]; int width, header, megatron; int64_t first, n; };
struct source {
  double weight;
  int n_files;
  struct token_file file[FILES];
  int64_t n, lo, hi;
  int32_t token[FILES * TOKENS];
  bool weighted;
  uint8_t counts[FILES * TOKENS];            /* 1: the token counts, 2: a sample begins with it */
  int lost;                                  /* the file whose weights are not there; -1: all are */
};
struct set {
  enum tc_data_format format;
  int n, n_words, part;
  int64_t context, vocab;
  bool blend;
  int texts;                                 /* of AUTO: 0 tokens, 1 text, 2 either for each source */
  bool has_text, has_tokens;
  char word[WORDS][128], dir[64];
  struct source source[SOURCES];
  int bad_source; int64_t bad_at;            /* the token that is too large; -1: none */
};

static void write_all(const char *name, const void *a, size_t n, const void *b, size_t m)
{
  FILE *f = fopen(name, "wb");
  TC_ASSERT(f && fwrite(a, 1, n, f) == n && fwrite(b, 1, m, f) == m && fclose(f) == 0);
}

/* ---- making a set --------------------------------------------------------------------------- */

/* NAME.idx with sequences of random lengths, none of them empty. */
static void write_index(struct fuzz *z, const struct token_file *f)
{
  uint8_t idx[34 + TOKENS * 12 + 16], code = f->width == 1 ? 1 : f->width == 2 ? 8 : 4;
  int32_t length[TOKENS];
  uint64_t one = 1, n = 0, documents = 2;
  for (int64_t left = f->n; left > 0; left -= length[n++]) {
    const int64_t some = 1 + (int64_t)fuzz_below(z, 300);
    length[n] = (int32_t)TC_MIN(left, some);
  }
  memcpy(idx, "MMIDIDX\0\0", 9);
  memcpy(idx + 9, &one, 8);
  idx[17] = code;
  memcpy(idx + 18, &n, 8);
  memcpy(idx + 26, &documents, 8);
  int64_t at = 0;
  for (uint64_t i = 0; i < n; i++) {
    memcpy(idx + 34 + 4 * i, &length[i], 4);
    memcpy(idx + 34 + 4 * n + 8 * i, &at, 8);
    at += (int64_t)length[i] * f->width;
  }
  const int64_t document[2] = { 0, (int64_t)n };
  memcpy(idx + 34 + 12 * n, document, 16);
  char name[128];
  snprintf(name, sizeof name, "%.*sidx", (int)strlen(f->name) - 3, f->name);
  write_all(name, idx, 34 + 12 * n + 16, "", 0);
}

static void write_file(struct fuzz *z, const struct token_file *f, const int32_t *token)
{
  static const int32_t magic[5] = { 0, 0, 20240520, 0, 20240801 };
  const int32_t header[256] = { magic[f->width], f->width == 2 ? 1 : 7, (int32_t)f->n, 123, 456 };
  uint8_t *raw = tc_malloc((size_t)(f->n * 4));
  for (int64_t i = 0; i < f->n; i++) memcpy(raw + i * f->width, &token[i], (size_t)f->width);
  write_all(f->name, header, (size_t)f->header, raw, (size_t)(f->n * f->width));
  if (f->megatron) write_index(z, f);
  free(raw);
}

/* What np.save writes of the weights of a file. */
static void write_weights(const struct token_file *f, const uint8_t *weight)
{
  char header[129], text[100], name[128];
  const int stem = (int)strlen(f->name) - (strstr(f->name, ".bin") ? 4 : 0);
  snprintf(text, sizeof text, "{'descr': '|u1', 'fortran_order': False, 'shape': (%lld,), }", (long long)f->n);
  snprintf(header, sizeof header, "\x93NUMPY\x01%c%c%c%-117s\n", 'v', 'v', 'v', text);
  header[7] = header[9] = 0;
  snprintf(name, sizeof name, "%.*s.weights.npy", stem, f->name);
  write_all(name, header, 128, weight, (size_t)f->n);
}

/* What a file of the set may be. */
static void choose_kind(struct fuzz *z, const struct set *s, struct token_file *f, bool text)
{
  static const int wide[] = { 2, 4 };
  f->width = wide[fuzz_below(z, 2)];
  switch (s->format) {
  case TC_FORMAT_UINT16: f->width = 2; break;
  case TC_FORMAT_UINT32: f->width = 4; break;
  case TC_FORMAT_TEXT: f->width = 1; break;
  case TC_FORMAT_BIN: f->header = 1024; break;
  case TC_FORMAT_MEGATRON: f->megatron = true; break;
  case TC_FORMAT_AUTO:
    if (text) f->width = 1;
    else if (fuzz_below(z, 2)) f->header = 1024;
    else f->megatron = true;
  }
}

/* How many tokens there are of a file's width. */
static int64_t limit_of(const struct token_file *f) { return INT64_C(1) << 8 * f->width; }

/* n bytes of characters, the last one of which may be cut off. */
static void draw_text(struct fuzz *z, int32_t *byte, int64_t n)
{
  static const uint32_t most[] = { 0x80, 0x800, 0xd800, 0x110000 };
  for (int64_t i = 0; i < n;) {
    uint32_t c = 1 + (uint32_t)fuzz_below(z, most[fuzz_below(z, 4)] - 1);
    if (c >= 0xd800 && c < 0xe000) c = 0xfffd;
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint32_t lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    for (int k = 0; k <= more && i < n; k++)
      byte[i++] = (int32_t)(k ? 0x80 | (c >> 6 * (more - k) & 0x3f) : lead[more] | c >> 6 * more);
  }
}

/* Whether bytes are text, by decoding them: no zero, no overlong forms, no surrogates; the last character may be cut off. */
static bool is_text(const int32_t *byte, int64_t n)
{
  for (int64_t i = 0; i < n;) {
    const int b = byte[i];
    const int more = b < 0x80 ? 0 : b >= 0xc0 && b < 0xe0 ? 1 : b >= 0xe0 && b < 0xf0 ? 2 : b >= 0xf0 && b < 0xf8 ? 3 : -1;
    uint32_t c = (uint32_t)(more > 0 ? b & (0x3f >> more) : b), high = c;
    int k = 1;
    if (more < 0 || b == 0) return false;
    for (; k <= more && i + k < n; k++) {
      if ((byte[i + k] & 0xc0) != 0x80) return false;
      c = c << 6 | (uint32_t)(byte[i + k] & 0x3f);
      high = c;
    }
    for (; k <= more; k++) {                       /* cut off: the least and the largest that it may be */
      c = c << 6;
      high = high << 6 | 0x3f;
    }
    static const uint32_t least[] = { 1, 0x80, 0x800, 0x10000 };
    if (high < least[more] || c > 0x10ffff || (c >= 0xd800 && high < 0xe000)) return false;
    i += more + 1;
  }
  return true;
}

/* Which file AUTO must refuse; NULL: none. */
static const struct token_file *find_no_text(const struct set *s)
{
  for (int k = 0; k < s->n && s->format == TC_FORMAT_AUTO; k++)
    for (int i = 0; i < s->source[k].n_files; i++) {
      const struct token_file *f = &s->source[k].file[i];
      if (f->width == 1 && !f->megatron && !is_text(s->source[k].token + f->first, f->n)) return f;
    }
  return NULL;
}

/* A file whose weights are lost; NULL: there is none. */
static const struct token_file *find_lost(const struct set *s)
{
  for (int k = 0; k < s->n; k++)
    if (s->source[k].lost >= 0) return &s->source[k].file[s->source[k].lost];
  return NULL;
}

static void draw_weights(struct fuzz *z, struct source *x)
{
  x->weighted = fuzz_below(z, 4) == 0;
  x->lost = x->weighted && x->n_files > 1 && fuzz_below(z, 6) == 0 ? (int)fuzz_below(z, (size_t)x->n_files) : -1;
  for (int64_t i = 0; i < x->n; i++) x->counts[i] = (uint8_t)(x->weighted ? fuzz_below(z, 4) : 1);
}

static void make_source(struct fuzz *z, struct set *s, int k)
{
  struct source *x = &s->source[k];
  const bool text = s->format == TC_FORMAT_TEXT ||
                    (s->format == TC_FORMAT_AUTO && (s->texts == 2 ? fuzz_below(z, 2) == 0 : s->texts));
  const bool drawn = s->format == TC_FORMAT_AUTO && text && fuzz_below(z, 8);
  s->has_text |= text;
  s->has_tokens |= !text;
  char dir[80];
  x->n = 0;
  x->n_files = 1 + (int)fuzz_below(z, FILES);
  x->weight = 1 + (double)fuzz_below(z, 20);
  snprintf(dir, sizeof dir, "%s/s%d", s->dir, k);
  TC_ASSERT(mkdir(dir, 0755) == 0);
  for (int i = 0; i < x->n_files; i++) {
    struct token_file *f = &x->file[i];
    *f = (struct token_file){ .first = x->n, .n = 1 + (int64_t)fuzz_below(z, fuzz_below(z, 4) ? TOKENS : 20) };
    if (i == 0) f->n = TC_MAX(f->n, 21 * (s->context + 1));      /* also for 5 % of it */
    f->n = TC_MIN(f->n, TOKENS);
    snprintf(f->name, sizeof f->name, "%s/f%d.%s", dir, i, text ? "txt" : "bin");
    choose_kind(z, s, f, text);
    const int64_t most = TC_MIN(s->vocab, limit_of(f));
    for (int64_t t = 0; t < f->n; t++) x->token[x->n + t] = (int32_t)fuzz_below(z, (size_t)most);
    if (drawn) draw_text(z, x->token + x->n, f->n);
    x->n += f->n;
  }
  draw_weights(z, x);
  const int64_t cut = x->n / 100 * 95 + x->n % 100 * 95 / 100;
  x->lo = s->part == 2 ? cut : 0;
  x->hi = s->part == 1 ? cut : x->n;
  const int form = (int)fuzz_below(z, 3);
  for (int i = 0; i < (form == 0 ? x->n_files : 1); i++) {
    char *word = s->word[s->n_words++], weight[32] = "";
    if (i == 0 && s->blend) snprintf(weight, sizeof weight, "%g:", x->weight);
    if (form == 0) snprintf(word, 128, "%s%s", weight, x->file[i].name);
    else snprintf(word, 128, "%s%s%s", weight, dir, form == 1 ? "" : "/f*");
  }
}

static void make_set(struct fuzz *z, struct set *s, const char *top)
{
  static const int64_t vocabs[] = { 256, 1000, 50257, 70000, 200000 };
  memset(s, 0, sizeof *s);
  static const char *const blanks[] = { "", "", " with blanks", " \"" };
  snprintf(s->dir, sizeof s->dir, "%s/%llu%s", top, (unsigned long long)z->cases, blanks[fuzz_below(z, 4)]);
  TC_ASSERT(mkdir(s->dir, 0755) == 0);
  s->format = (enum tc_data_format)((int)fuzz_below(z, 10) - 1);
  if (s->format > TC_FORMAT_UINT32) s->format = TC_FORMAT_AUTO;
  s->n = 1 + (int)fuzz_below(z, SOURCES);
  s->texts = (int)fuzz_below(z, 8) ? (int)fuzz_below(z, 2) : 2;
  s->blend = s->n > 1 || fuzz_below(z, 2);
  s->part = (int)fuzz_below(z, 3);
  s->context = 1 + (int64_t)fuzz_below(z, 60);
  s->vocab = vocabs[fuzz_below(z, 5)];
  s->bad_at = -1;
  for (int k = 0; k < s->n; k++) make_source(z, s, k);
  if (fuzz_below(z, 5) == 0) {
    s->bad_source = (int)fuzz_below(z, (size_t)s->n);
    struct source *x = &s->source[s->bad_source];
    const int64_t at = (int64_t)fuzz_below(z, (size_t)x->n);
    int i = x->n_files - 1;
    while (x->file[i].first > at) i--;
    if (s->vocab < limit_of(&x->file[i])) x->token[s->bad_at = at] = (int32_t)s->vocab;
  }
  for (int k = 0; k < s->n; k++)
    for (int i = 0; i < s->source[k].n_files; i++) {
      const struct source *x = &s->source[k];
      write_file(z, &x->file[i], x->token + x->file[i].first);
      if (x->weighted && i != x->lost) write_weights(&x->file[i], x->counts + x->file[i].first);
    }
}

#endif
