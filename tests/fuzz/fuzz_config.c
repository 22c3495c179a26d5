/* fuzz_config.c - drawn values for every option, and damaged run files.
 *
 * What an option may be is taken from --help, as a user reads it: its choices, its range. A
 * value is judged here by that, by the C library's numbers and by jansson's UTF-8, and then set
 * by a flag and by a run file: both must agree with that and with each other. A run file
 * that is accepted, however damaged, must be written and read back as the same configuration.
 *
 * usage: fuzz_config.t [--full | --cases N | --seconds S] [--seed N] [--only CASE]; SEED=N too */
#include "src/config/config.h"

#include <ctype.h>
#include <float.h>
#include <jansson.h>
#include <time.h>

#include "tests/fuzz/fuzz.h"

/* An option as --help describes it. */
struct known {
  char name[80], values[120];           /* "train.lr"; "auto|N", "X", "TEXT", "FILE", "DIR", "FILES", "a|b" */
  char open, close;                     /* of the range; 0: there is none */
  long double lo, hi;
  bool as_float;
};
enum { MOST_KNOWN = 200, MOST_VALUE = 400 };

/* The options used as 32-bit floats, which --help does not say. */
static const char *const floats[] = {
  "model.norm_eps", "model.rope_theta", "train.lr", "train.min_lr", "train.weight_decay", "train.beta1", "train.beta2",
  "train.eps", "train.clip", "train.dropout", "model.sliding_theta", "model.attn_scale", "model.attn_cap", "model.logit_cap",
  "model.embed_scale", "model.residual_scale", "model.logit_divisor", "model.z_loss", "train.momentum", "train.muon_momentum"
};

static int read_help(struct known *k)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  tc_config_help(f, false);
  fclose(f);
  int n = 0;
  for (char *at = text; (at = strstr(at, "\n  --")) && n < MOST_KNOWN; n++) {
    char *next = strstr(at + 1, "\n  --"), *in;
    struct known *x = &k[n];
    *x = (struct known){ .open = 0 };
    TC_ASSERT(sscanf(at, "\n  --%79[^=]=%119s", x->name, x->values) == 2);
    if (next) *next = '\0';
    in = strstr(at, ", in [");
    if (!in) in = strstr(at, ", in (");
    if (in) {
      char *end;
      x->open = in[5];
      x->lo = strtold(in + 6, &end);
      x->hi = strtold(end + 1, &end);
      x->close = *end;
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
      x->as_float |= strcmp(floats[i], x->name) == 0;
    if (next) *next = '\n';
    at++;
  }
  free(text);
  return n;
}

/* ---- what is accepted --------------------------------------------------------------------- */

static bool has_part(const char *values, const char *value)
{
  char *copy = tc_strdup(values), *save = NULL;
  bool found = false;
  for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
    found |= strcmp(w, value) == 0 && strcmp(w, "N") != 0 && strcmp(w, "X") != 0;
  free(copy);
  return found;
}

/* digits [. digits] [e [sign] digits], at least one digit before the e; whole: digits alone. */
static bool is_decimal(const char *s, bool whole)
{
  int digits = 0;
  while (isdigit((unsigned char)*s)) s++, digits++;
  if (whole) return digits > 0 && !*s;
  if (*s == '.') s++;
  while (isdigit((unsigned char)*s)) s++, digits++;
  if (digits == 0) return false;
  if (*s == 'e' || *s == 'E') {
    s++;
    if (*s == '+' || *s == '-') s++;
    if (!isdigit((unsigned char)*s)) return false;
    while (isdigit((unsigned char)*s)) s++;
  }
  return !*s;
}

static bool within(const struct known *k, long double x)
{
  return (k->open == '[' ? x >= k->lo : x > k->lo) && (k->close == ']' ? x <= k->hi : x < k->hi);
}

static bool number_is_good(const struct known *k, const char *value)
{
  const bool whole = strchr(k->values, 'N') != NULL;
  if (has_part(k->values, value)) return true;
  if (!is_decimal(value, whole)) return false;
  long double x = strtold(value, NULL);
  const bool zero = strspn(value, "0.") == strcspn(value, "eE");
  if (whole) return within(k, x);
  if ((double)x == 0 && has_part(k->values, "0")) return zero;
  if (k->as_float && x > (long double)FLT_MAX) return false;
  if (k->as_float && !zero && x < (long double)FLT_MIN) return false;
  if (!zero && (double)x == 0) return false;
  struct known f = *k;
  f.lo = (long double)(k->as_float ? (double)(float)k->lo : (double)k->lo);
  f.hi = (long double)(k->as_float ? (double)(float)k->hi : (double)k->hi);
  return within(&f, (long double)(k->as_float ? (double)(float)x : (double)x));
}

static bool text_is_good(const char *value)
{
  json_t *utf8 = json_string(value);
  size_t n = strlen(value);
  bool good = utf8 != NULL && strstr(value, " ;") == NULL && *value != ';';
  for (size_t i = 0; i < n; i++) good &= !iscntrl((unsigned char)value[i]);
  good &= n == 0 || (*value != ' ' && value[n - 1] != ' ');
  json_decref(utf8);
  return good;
}

static bool list_is_good(const char *value)
{
  char word[MOST_VALUE];
  for (size_t i = 0, n = strlen(value); i < n;) {
    size_t len = 0, k = i;
    bool quoted = false;
    if (value[i] == ' ' || value[i] == '\t') {
      i++;
      continue;
    }
    while (k < n && strchr("0123456789.eE+-", value[k])) k++;       /* a weight */
    if (k > i && value[k] == ':') k++;
    else k = i;
    for (; i < k; i++) word[len++] = value[i];
    if (value[i] == '"') {
      for (i++; i < n && (value[i] != '"' || value[i + 1] == '"'); i++) word[len++] = value[i += value[i] == '"'];
      if (i == n || (value[i + 1] && value[i + 1] != ' ' && value[i + 1] != '\t')) return false;
      i++;
      quoted = true;
    } else
      while (i < n && value[i] != ' ' && value[i] != '\t') word[len++] = value[i++];
    word[len] = '\0';
    if (!text_is_good(word) || (quoted && !len)) return false;
  }
  return true;
}

static bool is_good(const struct known *k, const char *value)
{
  if (k->open) return number_is_good(k, value);
  const char *const text[] = { "TEXT", "FILE", "DIR" };
  for (int i = 0; i < 3; i++)
    if (strcmp(k->values, text[i]) == 0) return text_is_good(value);
  if (strcmp(k->values, "FILES") == 0) return list_is_good(value);
  return has_part(k->values, value);
}

/* What was set must be the number that the text says. */
static bool is_set(const char *text, const struct known *k, const char *value)
{
  if (!k->open || has_part(k->values, value)) return true;
  const char *key = strchr(k->name, '.') + 1, *at = text;
  char section[40], line[120];
  snprintf(section, sizeof section, "[%.*s]", (int)(key - k->name) - 1, k->name);
  snprintf(line, sizeof line, "\n%s = ", key);
  at = strstr(strstr(text, section), line) + strlen(line);
  if (strchr(k->values, 'N')) return strtoll(at, NULL, 10) == strtoll(value, NULL, 10);
  const double got = strtod(at, NULL), want = strtod(value, NULL);
  return got == want;
}

/* ---- drawing values ------------------------------------------------------------------------ */

static const char *const edges[] = {
  "", " ", "0", "-0", "-1", "1", "2", "7", "00", "0.0", "1.0", "1.5", ".5", "5.", ".", "e", "1e",
  "1e+", "1e5", "1E-5", "+1", "1 ", " 1", "1x", "0x10", "1e30", "1.0000001e30", "1e39", "1e308",
  "1e309", "1e-45", "1e-46", "1.1754944e-38", "1.17549e-38", "1e-300", "1e-330", "4e-324",
  "0.99999994", "0.99999997", "0.9999999999999", "0.99999999999999999999", "1.00000000000001",
  "100.000001", "127", "128", "255", "256", "4096", "4097", "65535", "65536", "65537",
  "2147483647", "2147483648", "4294967296", "9007199254740992", "9007199254740993",
  "9223372036854775807", "9223372036854775808", "18446744073709551615", "99999999999999999999",
  "-9223372036854775808", "nan", "NaN", "inf", "-inf", "infinity", "auto", "Auto", "no", "yes",
  "NO", "true", "none", "adamw", "cuda", "a|b", "|", "text", "\xc3\xbc", "\xe2\x82\xac",
  "\xf0\x9f\x98\x80", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x82", "a b",
  "a\tb", "a\nb", "\x7f", "a;b", "a ;b", ";", "#", "[x]", "a=b", "a: b", "\"q\"", "'", "\"a b\"", "0.7:\"a b\" c",
  "\"a\"\"b\"", "\"a b", "\"a\"b", "\"\"", "\"\"\"\"", "a\"b c\"", "\" a\"", "1:\"\"", "\"a ;b\"", "$(x)",
  "%s%n", "../x", "/", "0-3,4-11", "AAAA", "nan@4"
};
enum { EDGES = sizeof edges / sizeof *edges };

static void draw_digits(struct fuzz *f, char *text, size_t n)
{
  for (size_t i = 0; i < n; i++) text[i] = (char)('0' + fuzz_below(f, 10));
  text[n] = '\0';
}

static void draw(struct fuzz *f, const struct known *k, char value[MOST_VALUE])
{
  size_t n = 0;
  char digits[30];
  switch (fuzz_below(f, 8)) {
  case 0: case 1: case 2:
    snprintf(value, MOST_VALUE, "%s", edges[fuzz_below(f, EDGES)]);
    break;
  case 3:                                        /* at and beside an end of the range */
    snprintf(value, MOST_VALUE, "%.*Lg", 10 + (int)fuzz_below(f, 12),
             (fuzz_below(f, 2) ? k->lo : k->hi) + (long double)fuzz_below(f, 3) - 1);
    break;
  case 4:
    draw_digits(f, value, 1 + fuzz_below(f, 22));
    break;
  case 5:
    draw_digits(f, digits, 1 + fuzz_below(f, 20));
    snprintf(value, MOST_VALUE, "%zu.%se%s%zu", fuzz_below(f, 10), digits,
             fuzz_below(f, 2) ? "-" : "", fuzz_below(f, 40));
    break;
  case 6:                                        /* one of its choices, maybe damaged */
    snprintf(value, MOST_VALUE, "%s", k->values);
    for (char *at = value; (at = strchr(at, '|'));) {
      if (fuzz_below(f, 2)) *at = '\0';
      else memmove(value, at + 1, strlen(at + 1) + 1), at = value;
    }
    break;
  default:                                       /* bytes */
    for (n = fuzz_below(f, MOST_VALUE - 1); n > 0; n--)
      value[n - 1] = (char)(1 + fuzz_below(f, 255));
    value[fuzz_below(f, 2) ? fuzz_below(f, 6) : MOST_VALUE - 1] = '\0';
  }
}

/* ---- a case of each kind ------------------------------------------------------------------- */

static int try_file(struct fuzz *f, const char *text, size_t n, struct tc_config **c,
                    struct tc_err *err)
{
  char word[] = "train", *argv[] = { word, f->path };
  fuzz_write(f, text, n);
  *err = (struct tc_err){ 0 };
  return tc_config_new(c, 2, argv, err);
}

/* One line that says something, with what begins it. */
static bool is_sentence(const struct tc_err *err)
{
  const size_t n = strlen(err->text);
  return n > 20 && n < sizeof err->text - 1 && !strchr(err->text, '\n');
}

/* The line of a file can't hold these; what is cut off would be another value. */
static bool fits_line(const char *value)
{
  const char *s = value + strspn(value, " \t");
  if (strpbrk(value, "\n\r")) return false;
  for (const char *at = value; *at; at++)
    if (*at == ';' && (at == value || at[-1] == ' ' || at[-1] == '\t')) return false;
  return *value == *s && (!*value || !strchr(" \t", value[strlen(value) - 1]));
}

static int fuzz_option(struct fuzz *f, const struct known *k)
{
  char value[MOST_VALUE] = "", flag[MOST_VALUE + 100], file[MOST_VALUE + 200], word[] = "train";
  char *argv[] = { word, flag };
  struct tc_config *c = NULL, *d = NULL;
  struct tc_err err = { 0 }, err2;
  draw(f, k, value);
  const char *dot = strchr(k->name, '.');
  const bool pair = strcmp(k->name, "train.min_lr") == 0 || strcmp(k->name, "train.lr") == 0;
  snprintf(flag, sizeof flag, "--%s=%s", k->name, value);
  snprintf(file, sizeof file, "[%.*s]\n%s = %s\n", (int)(dot - k->name), k->name, dot + 1, value);
  bool want = is_good(k, value);
  const int rc = tc_config_new(&c, 2, argv, &err);
  const char *what = NULL;
  if (pair && want && rc < 0 && strstr(err.text, "has to be at most train.lr")) want = false;
  if (want && rc < 0 && strstr(err.text, " file of train.rows ")) want = false;          /* what is no row names a file */
  if (want && rc < 0 && strstr(err.text, " = stage is after each stage, but the run has only one")) want = false;
  if ((rc == 0) != want) what = want ? "a good value was refused" : "a bad value was taken";
  else if (rc < 0 && (rc != TC_EUSER || !is_sentence(&err))) what = "no sentence";
  if (!what && fits_line(value)) {
    const int rc2 = try_file(f, file, strlen(file), &d, &err2);
    if (rc2 != rc) what = "the run file does not agree with the flag";
    else if (rc2 < 0 && !is_sentence(&err2)) what = "no sentence for the run file";
  }
  char *a = c ? tc_config_text(c) : NULL, *b = d ? tc_config_text(d) : NULL;
  if (!what && a && b && strcmp(a, b)) what = "the run file sets another value than the flag";
  if (!what && a && !is_set(a, k, value)) what = "another number was set";
  f->accepted += rc == 0;
  if (what) printf("# %s: %s\n", flag, err.text);
  free(a);
  free(b);
  tc_config_free(c);
  tc_config_free(d);
  return what ? fuzz_fault(f, what) : 0;
}

/* Lines: the first GOOD of them may stand anywhere, or nearly. */
static const char *const lines[] = {
  "\n", "\r\n", "[train] # x\n", "[data]\n", "; c = 1\n", "# [c]\n", "  ; c\n", "\t\n",
  "  [run]\r\n", " train : a b ; c\n  c d\n", "  lr = 0.5 ; x\n", "out =\n", "out = a;b # c\n",
  "[nope]\n", "[", "]\n", "steps = 7\n[train]\nsteps = 8\n", "\te=f\n", " val: v\n", "  c d\n",
  "out = a ;b\n", "=\n", ":\n", "key\n", "\xef\xbb\xbf", "\xff", "\v", "\f",
  "seed = 9223372036854775807\n", " ", "=", ";"
};
enum { LINES = sizeof lines / sizeof *lines, GOOD = 13, MOST_TEXT = 20000 };

static void put(char *text, size_t *n, size_t at, const char *what)
{
  const size_t len = strlen(what);
  memmove(text + at + len, text + at, *n - at);
  memcpy(text + at, what, len);
  *n += len;
}

/* Some lines of a configuration's text, others between them, damaged some times or not. */
static size_t draw_file(struct fuzz *f, const char *written, char *text)
{
  size_t n = 0, most = MOST_TEXT - 4000;
  const bool mild = fuzz_below(f, 3) > 0;
  for (const char *at = written; *at;) {
    const size_t len = strcspn(at, "\n") + 1;
    if (*at == '[' || fuzz_below(f, 4) == 0) {
      memcpy(text + n, at, len);
      n += len;
    }
    at += len;
  }
  if (fuzz_below(f, 8) == 0) put(text, &n, 0, "\xef\xbb\xbf");
  for (size_t k = fuzz_below(f, mild ? 3 : 10); k > 0; k--) {
    size_t at = fuzz_below(f, n + 1);
    if (mild || fuzz_below(f, 2)) while (at > 0 && text[at - 1] != '\n') at--;
    put(text, &n, at, lines[fuzz_below(f, mild ? GOOD : LINES)]);
  }
  if (fuzz_below(f, 20) == 0) {                  /* a very long line */
    memcpy(text + n, "[data]\nval = ", 13);
    memset(text + n + 13, 'x', 1500);
    n += 1513;
  }
  for (size_t k = mild ? fuzz_below(f, 2) : fuzz_below(f, 4); k > 0 && n > 1; k--)
    fuzz_damage(f, text, &n, 0, most);
  return n;
}

static int fuzz_file(struct fuzz *f, const char *written)
{
  static char text[MOST_TEXT];
  struct tc_config *c, *d = NULL;
  struct tc_err err;
  const size_t n = draw_file(f, written, text);
  const int rc = try_file(f, text, n, &c, &err);
  if (rc < 0) return rc == TC_EUSER && is_sentence(&err) ? 0 : fuzz_fault(f, "no sentence");
  f->accepted++;
  char *a = tc_config_text(c), *b = NULL;
  const char *what = NULL;
  if (memchr(text, 0, n)) what = "a byte that is 0 was taken";
  if (try_file(f, a, strlen(a), &d, &err) < 0) what = err.text;
  else if (strcmp(a, b = tc_config_text(d))) what = "what was written reads as something else";
  int faults = what ? fuzz_fault(f, what) : 0;
  free(a);
  free(b);
  tc_config_free(c);
  tc_config_free(d);
  return faults;
}

int main(int argc, char **argv)
{
  static struct known k[MOST_KNOWN];
  struct fuzz f;
  char word[] = "train", *none[] = { word };
  struct tc_config *c;
  struct tc_err err;
  fuzz_start(&f, argc, argv);
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--full") == 0) f.most_cases = 100000;
  const int n = read_help(k);
  TC_ASSERT(n > 50 && tc_config_new(&c, 1, none, &err) == 0);
  char *written = tc_config_text(c);
  int64_t rss_kb = fuzz_rss_kb();
  int faults = 0;
  uint64_t files = 0;
  while (fuzz_more(&f) && faults < 20) {
    const uint64_t before = f.accepted;
    faults += f.cases % 2 ? fuzz_option(&f, &k[fuzz_below(&f, (size_t)n)]) : fuzz_file(&f, written);
    files += f.cases % 2 ? 0 : f.accepted - before;
  }
  ok(f.cases < 1000 || (files > f.cases / 50 && f.accepted - files > f.cases / 50),
     "enough of them are accepted: %llu values, %llu run files",
     (unsigned long long)(f.accepted - files), (unsigned long long)files);
  is_int(faults, 0, "SEED=%llu: values and run files mean what they say, or are refused",
         (unsigned long long)f.seed);
  free(written);
  tc_config_free(c);
  return fuzz_end(&f, "run files", rss_kb);
}
