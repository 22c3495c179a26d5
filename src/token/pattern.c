/* pattern.c - the regexes of a normalizer or pre-tokenizer for PCRE2.
 *
 * Hugging Face's library matches by Oniguruma, in Ruby's syntax. Most of that means the same to PCRE2, but not
 * all: \s has other characters, \h and \w mean something else, {1,2}+ too, and (*ACCEPT) is a verb here. So a pattern is
 * read from left to right, by the grammar below: what is known to mean the same is copied, \s becomes the characters of
 * White_Space, and anything else is refused by name.
 *
 *   pattern     alternatives with |, of atoms with quantifiers
 *   atom        a character; .; an escape; [...]; (...), (?:...), (?>...), a group of `caseless`
 *   lookahead   (?=...), (?!...), where an atom may be; it has no quantifier, nor has a group of nothing else
 *   quantifier  ?, *, + alone or before + or ?; {2}, {1,3}, {2,} alone
 *   [...]       characters, escapes, ranges of single characters; - as itself only at the begin or the end */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
  "\\x{202f}\\x{205f}\\x{3000}"

const char tc_pattern_gpt2[] =
  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Patterns of which it is known what they do between a letter of ASCII and " " before another: they split there,
 * since none of their alternatives matches a letter and then a space, or looks beyond a letter; or they match
 * neither letters nor spaces. */
static const struct { enum tc_cuts cuts; const char *pattern; } known[] = {
  { TC_CUTS, tc_pattern_gpt2 },
  { TC_CUTS, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
  /* Llama 3 and Qwen 2 */
  { TC_CUTS, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
             "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
  { TC_CUTS, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
             "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
  /* GPT-4 and GPT-4o */
  { TC_CUTS, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
             "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" },
  { TC_CUTS, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
             "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
             "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}"
             "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
  { TC_CUTS_NOT, "\\p{N}" },
  { TC_CUTS_NOT, "\\p{N}+" },
  { TC_CUTS_NOT, "\\p{N}{1,3}" },
};

/* Groups without regard to case: a folding of several characters (ss) is Oniguruma's alone. */
static const char *const caseless[] = { "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)" };
static const char *const groups[] = { "(?:", "(?=", "(?!", "(?>" };
static const char *const properties[] = {
  "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe",
  "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cs", "Han",
  "Hiragana", "Katakana", "Hangul", "Latin", "Greek", "Cyrillic", "Thai", "Arabic", "Hebrew", "Devanagari",
};

enum { MOST_DEPTH = 100 };

struct translation {
  const char *name, *part, *in;      /* part: of the tokenizer; in: what is left to read */
  char *out;                  /* owned */
  size_t len, cap;
  bool in_class;
  bool atom;                  /* a quantifier may follow */
  struct { bool ahead, solid; } group[MOST_DEPTH + 1];     /* open ones: a lookahead; it has more than lookaheads in it */
  int depth;
  struct tc_err *err;
};

static void put(struct translation *t, const char *s, size_t n)
{
  if (t->len + n + 1 > t->cap) t->out = tc_realloc(t->out, t->cap = 2 * (t->len + n) + 64);
  memcpy(t->out + t->len, s, n);
  t->out[t->len += n] = '\0';
}

static void copy(struct translation *t, size_t n)
{
  put(t, t->in, n);
  t->in += n;
}

/* n bytes, and the rest of their last character, are not supported. */
static int refuse(const struct translation *t, size_t n)
{
  while (((unsigned char)t->in[n] & 0xc0) == 0x80) n++;
  return tc_fail(t->err, TC_EUSER, "tokenizer '%s': the regex of its %s has '%.*s'%s, which is not supported: the patterns "
                 "of GPT-2, Llama 3, Qwen and others of their kind are", t->name, t->part, (int)n, t->in,
                 t->in_class ? " within [...]" : "");
}

/* The first of list[n] that t->in begins with; NULL. */
static const char *one_of(const struct translation *t, const char *const *list, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (strncmp(t->in, list[i], strlen(list[i])) == 0) return list[i];
  return NULL;
}
#define ONE_OF(t, list) one_of(t, list, sizeof (list) / sizeof *(list))

/* \p{Lu}, \P{Lu}. */
static int property(struct translation *t)
{
  const char *end = t->in[2] == '{' ? strchr(t->in, '}') : NULL;
  if (!end) return refuse(t, strnlen(t->in, 3));
  const size_t n = (size_t)(end - t->in) - 3;
  for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
    if (strlen(properties[i]) == n && strncmp(t->in + 3, properties[i], n) == 0) {
      copy(t, n + 4);
      return TC_OK;
    }
  return refuse(t, TC_MIN(n + 4, 40));
}

/* \x41, \x{1f600}, \u00e9: as \x{...}. */
static int hexadecimal(struct translation *t)
{
  static const char digits[] = "0123456789abcdefABCDEF";
  const bool braces = t->in[1] == 'x' && t->in[2] == '{';
  const char *from = t->in + 2 + braces;
  const size_t n = strspn(from, digits), want = t->in[1] == 'u' ? 4 : 2;
  if (braces ? n < 1 || n > 6 || from[n] != '}' : n < want) return refuse(t, strnlen(t->in, 4));
  if (!braces && want == 2 && *from >= '8') return refuse(t, 4);      /* in Oniguruma a byte, here a character */
  put(t, "\\x{", 3);
  put(t, from, braces ? n : want);
  put(t, "}", 1);
  t->in = from + (braces ? n + 1 : want);
  return TC_OK;
}

static int escape(struct translation *t)
{
  const char c = t->in[1];
  if (c == 'p' || c == 'P') return property(t);
  if (c == 'x' || c == 'u') return hexadecimal(t);
  if (c == 's' || (c == 'S' && !t->in_class)) {
    const char *open = t->in_class ? "" : c == 's' ? "[" : "[^";
    put(t, open, strlen(open));
    put(t, SPACES, sizeof SPACES - 1);
    put(t, "]", !t->in_class);
    t->in += 2;
    return TC_OK;
  }
  if (c == 'd' || c == 'D') {
    put(t, c == 'd' ? "\\p{Nd}" : "\\P{Nd}", 6);
    t->in += 2;
    return TC_OK;
  }
  if (c && (strchr("rntf", c) || (c > ' ' && c < 127 && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
                                  !(c >= 'A' && c <= 'Z')))) {
    copy(t, 2);
    return TC_OK;
  }
  return refuse(t, c ? 2 : 1);
}

/* One character of a class, or an escape for several (*single false). */
static int class_item(struct translation *t, bool *single)
{
  static const char several[] = "pPsSdD";
  *single = *t->in != '\\' || !t->in[1] || !strchr(several, t->in[1]);
  if (*t->in == '[') return refuse(t, 1);
  if (t->in[0] == '&' && t->in[1] == '&') return refuse(t, 2);
  if (*t->in == '\\') return escape(t);
  copy(t, 1);
  while (((unsigned char)*t->in & 0xc0) == 0x80) copy(t, 1);
  return TC_OK;
}

/* What is between [ and ]; a - that is no range's is the first or the last there. */
static int class_items(struct translation *t)
{
  bool single;
  if (*t->in == '-') copy(t, 1);
  while (*t->in && *t->in != ']') {
    if (*t->in == '-' && t->in[1] != ']') return refuse(t, strnlen(t->in, 2));
    TC_TRY(class_item(t, &single));
    if (*t->in != '-' || t->in[1] == ']') continue;
    if (!single) return refuse(t, strnlen(t->in, 2));
    copy(t, 1);
    if (*t->in) TC_TRY(class_item(t, &single));
    if (!single) return refuse(t, strnlen(t->in, 2));
  }
  return TC_OK;
}

static int bracket(struct translation *t)
{
  copy(t, t->in[1] == '^' ? 2 : 1);
  t->in_class = true;
  if (*t->in == ']') return refuse(t, 1);
  TC_TRY(class_items(t));
  if (!*t->in) return tc_fail(t->err, TC_EUSER, "tokenizer '%s': the regex of its %s has a [ without its ]", t->name, t->part);
  copy(t, 1);
  t->in_class = false;
  t->atom = true;
  return TC_OK;
}

static int open_group(struct translation *t)
{
  const char *all = t->in[1] == '?' ? ONE_OF(t, caseless) : NULL;
  if (all) {
    copy(t, strlen(all));
    t->atom = true;
    return TC_OK;
  }
  const char *word = t->in[1] == '?' ? ONE_OF(t, groups) : "(";
  if (!word || t->in[1] == '*' || t->depth == MOST_DEPTH) return refuse(t, strnlen(t->in, 4));
  t->group[++t->depth].ahead = word[1] && (word[2] == '=' || word[2] == '!');
  t->group[t->depth].solid = false;
  copy(t, strlen(word));
  t->atom = false;
  return TC_OK;
}

static int close_group(struct translation *t)
{
  if (!t->depth) return refuse(t, 1);
  t->atom = !t->group[t->depth].ahead && t->group[t->depth].solid;
  t->depth--;
  copy(t, 1);
  return TC_OK;
}

/* ?, *, + and what may follow them: + for no way back, ? for as few as possible. */
static int repeated(struct translation *t)
{
  if (!t->atom) return refuse(t, strnlen(t->in, 2));
  copy(t, t->in[1] == '+' || t->in[1] == '?' ? 2 : 1);
  t->atom = false;
  return TC_OK;
}

/* {2}, {1,3}; another quantifier after it means something else in Ruby's syntax. */
static int counted(struct translation *t)
{
  static const char digits[] = "0123456789";
  size_t n = 1 + strspn(t->in + 1, digits);
  const bool number = n > 1;
  if (t->in[n] == ',') n += 1 + strspn(t->in + n + 1, digits);
  if (!number || !t->atom || t->in[n] != '}' || strchr("+?*{", t->in[n + 1] ? t->in[n + 1] : 'x'))
    return refuse(t, strnlen(t->in, n + 2));
  copy(t, n + 1);
  t->atom = false;
  return TC_OK;
}

static int next_part(struct translation *t)
{
  switch (*t->in) {
  case '[': return bracket(t);
  case '(': return open_group(t);
  case ')': return close_group(t);
  case '?': case '*': case '+': return repeated(t);
  case '{': return counted(t);
  case '^': case '$': return refuse(t, 1);
  case '\\': t->atom = true; return escape(t);
  default: t->atom = *t->in != '|'; copy(t, 1); return TC_OK;
  }
}

static int translate(struct translation *t)
{
  put(t, "", 0);
  while (*t->in) {
    TC_TRY(next_part(t));
    t->group[t->depth].solid |= t->atom;
  }
  if (t->depth)
    return tc_fail(t->err, TC_EUSER, "tokenizer '%s': the regex of its %s has a ( without its )", t->name, t->part);
  return TC_OK;
}

static int compile(pcre2_code **out, const struct translation *t, struct tc_err *err)
{
  int error;
  size_t at;
  uint32_t empty = 0;
  pcre2_compile_context *c = pcre2_compile_context_create(NULL);
  if (!c) tc_out_of_memory(0);
  pcre2_set_newline(c, PCRE2_NEWLINE_LF);
  *out = pcre2_compile((PCRE2_SPTR)t->out, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, c);
  pcre2_compile_context_free(c);
  if (!*out) {
    char why[200] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    return tc_fail(err, TC_EUSER, "tokenizer '%s': the regex of its %s is wrong: %s (at '%.20s')", t->name, t->part, why,
                   t->out + TC_MIN(at, strlen(t->out)));
  }
  pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty)
    return tc_fail(err, TC_EUSER, "tokenizer '%s': the regex of its %s matches an empty text, which is not supported",
                   t->name, t->part);
  pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);      /* without it matches are slower */
  return TC_OK;
}

int tc_pattern_compile(pcre2_code **out, const char *pattern, enum tc_cuts *cuts, const char *name, const char *part,
                       struct tc_err *err)
{
  *out = NULL;
  *cuts = TC_CUTS_UNKNOWN;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(pattern, known[i].pattern) == 0) *cuts = known[i].cuts;
  struct translation t = { .name = name, .part = part, .in = pattern, .err = err };
  int status = translate(&t);
  if (status == TC_OK) status = compile(out, &t, err);
  free(t.out);
  return status;
}
