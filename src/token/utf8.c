/* utf8.c - what is valid UTF-8, white space and words, and the normal forms NFC and NFKC.
 *
 * Valid is what the Unicode standard calls well-formed: no surrogates, no overlong forms, nothing beyond
 * U+10FFFF. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The bytes of the character that text[n] begins with, or, if it is not valid, minus those of the maximal part of
 * one (table 3-7 of the Unicode standard). n > 0. */
static int length_at(const unsigned char *s, size_t n)
{
  const unsigned c = s[0];
  int want = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
  if (want < 1) return -1;
  for (int i = 1; i < want; i++) {
    unsigned least = 0x80, most = 0xbf;
    if (i == 1 && c == 0xe0) least = 0xa0;
    if (i == 1 && c == 0xed) most = 0x9f;
    if (i == 1 && c == 0xf0) least = 0x90;
    if (i == 1 && c == 0xf4) most = 0x8f;
    if ((size_t)i >= n || s[i] < least || s[i] > most) return -i;
  }
  return want;
}

size_t tc_utf8_valid(const char *text, size_t n)
{
  const unsigned char *s = (const unsigned char *)text;
  size_t i = 0;
  while (i < n) {
    uint64_t eight;
    while (n - i >= 8 && (memcpy(&eight, s + i, 8), !(eight & UINT64_C(0x8080808080808080)))) i += 8;
    if (i == n) break;
    const int length = length_at(s + i, n - i);
    if (length < 0) return i;
    i += (size_t)length;
  }
  return n;
}

size_t tc_utf8_invalid(const char *text, size_t n)
{
  return (size_t)abs(length_at((const unsigned char *)text, n));
}

bool tc_utf8_cut(const char *text, size_t n)
{
  const unsigned char *s = (const unsigned char *)text;
  return s[0] >= 0xc2 && s[0] < 0xf5 && length_at(s, n) == -(int)n;
}

char *tc_utf8_replace(const char *text, size_t n, size_t *bytes, int64_t *parts)
{
  char *copy = tc_malloc(3 * n + 1);
  size_t len = 0;
  for (size_t at = 0; at < n;) {
    const size_t valid = tc_utf8_valid(text + at, n - at);
    memcpy(copy + len, text + at, valid);
    len += valid;
    at += valid;
    if (at == n) break;
    memcpy(copy + len, "\xef\xbf\xbd", 3);
    len += 3;
    at += tc_utf8_invalid(text + at, n - at);
    ++*parts;
  }
  *bytes = len;
  return copy;
}

uint32_t tc_utf8_at(const char *text, size_t *bytes)
{
  const unsigned char *s = (const unsigned char *)text;
  const uint32_t c = s[0];
  *bytes = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  if (c < 0x80) return c;
  if (c < 0xe0) return (c & 0x1f) << 6 | (s[1] & 0x3fu);
  if (c < 0xf0) return (c & 0x0f) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
  return (c & 0x07) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

bool tc_is_space(uint32_t c)
{
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool tc_is_word(uint32_t c)
{
  switch (utf8proc_category((utf8proc_int32_t)c)) {
  case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC: return true;
  default:                /* joiners, and letters in circles and squares */
    return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
  }
}

/* ---- NFC, NFKC ------------------------------------------------------------------------------ */

/* Characters below U+0300 are in NFC by themselves and don't combine with what is before them, in NFKC those of ASCII:
 * the bytes below this one are all of theirs. */
static unsigned plain_below(bool compat) { return compat ? 0x80 : 0xcc; }

/* U+11A7 does not combine with what is before it, nor with what is after it; utf8proc 2.8 takes it for a final
 * consonant of Hangul, and drops it. */
static bool is_filler(const char *s, size_t n) { return n >= 3 && memcmp(s, "\xe1\x86\xa7", 3) == 0; }

/* The end of the stretch from `at`, a character that is neither, up to the next one that is. */
static size_t stretch_end(const char *text, size_t at, size_t n, unsigned plain)
{
  size_t bytes;
  while (at < n && (unsigned char)text[at] >= plain && !is_filler(text + at, n - at)) {
    tc_utf8_at(text + at, &bytes);
    at += bytes;
  }
  return at;
}

/* The next character that is neither. Bytes within a character are below 0xcc too, those of a filler are passed over. */
static size_t find_not_plain(const char *text, size_t at, size_t n, unsigned plain)
{
  while (at < n) {
    if ((unsigned char)text[at] < plain) at++;
    else if (is_filler(text + at, n - at)) at += 3;
    else break;
  }
  return at;
}

/* The bytes of the character before text[n] if it may combine with what is there. */
static size_t combining_before(const char *text, size_t n)
{
  if (n == 0 || (n >= 3 && is_filler(text + n - 3, 3))) return 0;
  return (unsigned char)text[n - 1] < 0x80 ? 1 : 2;
}

/* Appends bytes to *buf. */
static void append(char **buf, size_t *len, size_t *cap, const char *s, size_t n)
{
  if (*len + n > *cap) *buf = tc_realloc(*buf, *cap = 2 * (*len + n));
  memcpy(*buf + *len, s, n);
  *len += n;
}

/* What str.isspace() of Python is true of: also the separators U+001C to U+001F. */
static bool is_stripped(uint32_t c) { return tc_is_space(c) || (c >= 0x1c && c <= 0x1f); }

void tc_utf8_strip(const char **text, size_t *n)
{
  const char *s = *text, *end = s + *n;
  size_t bytes;
  for (; s < end && is_stripped(tc_utf8_at(s, &bytes)); s += bytes) ;
  for (const char *last = end; s < end; end = last) {
    do last--;
    while (((unsigned char)*last & 0xc0) == 0x80);
    if (!is_stripped(tc_utf8_at(last, &bytes))) break;
  }
  *text = s;
  *n = (size_t)(end - s);
}

static int class_of(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Sorts marks by their classes, those of one class in their order: in as many steps as there are marks, since a text may
 * be nothing but marks. (utf8proc's own way takes their square.) */
static void sort_marks(int32_t *mark, size_t n)
{
  size_t begin[257] = { 0 };
  int32_t *copy = tc_malloc(n * sizeof *copy);
  uint8_t *class = tc_malloc(n);
  memcpy(copy, mark, n * sizeof *copy);
  for (size_t i = 0; i < n; i++) begin[(class[i] = (uint8_t)class_of(copy[i])) + 1]++;
  for (int c = 0; c < 256; c++) begin[c + 1] += begin[c];
  for (size_t i = 0; i < n; i++) mark[begin[class[i]]++] = copy[i];
  TC_FREE(copy, class);
}

/* The canonical order of n decomposed characters. */
static void order_marks(int32_t *c, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    size_t end = i;
    while (end < n && class_of(c[end])) end++;
    if (end > i + 1) sort_marks(c + i, end - i);
    i = end;
  }
}

/* text[n] in its normal form: *form, owned by the caller, as bytes. Returns their number, or < 0, an error of
 * utf8proc. */
static int64_t normalize(const char *text, size_t n, bool compat, int32_t **form)
{
  enum { MOST_PARTS = 18 };                    /* of a decomposition */
  const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE | (compat ? UTF8PROC_COMPAT : 0);
  size_t len = 0, cap = n + MOST_PARTS + 1, bytes;
  *form = tc_malloc(cap * sizeof **form);
  for (size_t at = 0; at < n; at += bytes) {
    const int32_t c = (int32_t)tc_utf8_at(text + at, &bytes);
    if (cap - len <= MOST_PARTS) *form = tc_realloc(*form, (cap *= 2) * sizeof **form);
    const utf8proc_ssize_t got = utf8proc_decompose_char(c, *form + len, (utf8proc_ssize_t)(cap - len), options, NULL);
    if (got < 0) return got;
    len += (size_t)got;
  }
  order_marks(*form, len);
  return utf8proc_reencode(*form, (utf8proc_ssize_t)len, options);
}

int tc_normal_form(const char *text, size_t n, bool compat, const char **out, size_t *n_out, char **owned,
                   struct tc_err *err)
{
  const unsigned plain = plain_below(compat);
  size_t from = 0, len = 0, cap = n + 64, at = find_not_plain(text, 0, n, plain);
  *out = text, *n_out = n, *owned = NULL;
  if (at == n) return TC_OK;
  char *buf = tc_malloc(cap);
  while (at < n) {
    const size_t begin = at - combining_before(text + from, at - from);
    append(&buf, &len, &cap, text + from, begin - from);
    from = stretch_end(text, at, n, plain);
    int32_t *form;
    const int64_t got = normalize(text + begin, from - begin, compat, &form);
    if (got < 0) {
      TC_FREE(buf, form);
      return tc_fail(err, TC_EUSER, "the text cannot be normalized to %s: %s", compat ? "NFKC" : "NFC",
                     utf8proc_errmsg(got));
    }
    append(&buf, &len, &cap, (const char *)form, (size_t)got);
    free(form);
    at = find_not_plain(text, from, n, plain);
  }
  append(&buf, &len, &cap, text + from, n - from);
  *out = *owned = buf;
  *n_out = len;
  return TC_OK;
}
