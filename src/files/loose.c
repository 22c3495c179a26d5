/* loose.c - JSON as Python's json module writes it: with NaN, Infinity, and numbers of any size, which JSON and jansson
 * do not have. Each becomes a text of the same letters, so that only who reads that member has to refuse it. */
#include "src/files/input.h"
#include "src/base/base.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The length of a number or word at `at` that jansson would refuse; 0: there is none. *length, of what is there. */
static bool is_refused(const char *at, size_t *length)
{
  static const char *const words[] = { "NaN", "Infinity", "-Infinity" };
  for (int i = 0; i < 3; i++)
    if (strncmp(at, words[i], strlen(words[i])) == 0) return *length = strlen(words[i]), true;
  *length = strspn(at, "0123456789+-.eE");
  if (!*length || (*at != '-' && (*at < '0' || *at > '9'))) return *length = 1, false;
  errno = 0;
  if (strcspn(at, ".eE") < *length) return !isfinite(strtod(at, NULL));
  return strtoll(at, NULL, 10), errno == ERANGE;
}

/* text[n], which ends with a 0, with those in quotes; owned by the caller. */
static char *with_quotes(const char *text, size_t n, size_t *bytes)
{
  char *out = tc_malloc(2 * n + 1), *to = out;
  bool string = false;
  for (const char *at = text; at < text + n;) {
    size_t length = 1;
    bool quote = false;
    if (string) length = *at == '\\' && at + 1 < text + n ? 2 : 1;
    else quote = is_refused(at, &length);
    if (*at == '"') string = !string;
    if (quote) *to++ = '"';
    memcpy(to, at, length);
    to += length;
    if (quote) *to++ = '"';
    at += length;
  }
  *bytes = (size_t)(to - out);
  return out;
}

int tc_read_loose_json(json_t **out, const char *path, const char *kind, size_t most, struct tc_err *err)
{
  json_error_t why;
  char *text;
  size_t n, bytes;
  *out = NULL;
  TC_TRY(tc_read_text(&text, &n, path, kind, most, err));
  char *loose = with_quotes(text, n, &bytes);
  *out = json_loadb(loose, bytes, JSON_REJECT_DUPLICATES, &why);
  TC_FREE(loose, text);
  if (json_is_object(*out)) return 0;
  if (!*out) return tc_fail(err, TC_EUSER, "%s %.500s is not JSON: line %d: %s", kind, path, why.line, why.text);
  json_decref(*out);
  *out = NULL;
  return tc_fail(err, TC_EUSER, "%.500s: JSON, but not an object", path);
}
