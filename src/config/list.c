/* list.c - see list.h. */
#include "src/config/list.h"

#include <string.h>

static const char blanks[] = " \t\n";

size_t tc_list_weight_size(const char *word)
{
  const size_t n = strspn(word, "0123456789.eE+-");
  return n && word[n] == ':' ? n + 1 : 0;
}

/* What is between quotes, from the opening one on. Returns what follows the closing one; NULL: there is none. */
static const char *unquote(const char *at, char **to)
{
  for (at++; *at; at++) {
    if (*at == '"' && *++at != '"') return at;
    *(*to)++ = *at;
  }
  return NULL;
}

int tc_list_next(const char **at, char *word)
{
  const char *s = *at + strspn(*at, blanks);
  if (!*s) return *at = s, 0;
  const size_t weight = tc_list_weight_size(s);
  memcpy(word, s, weight);
  word += weight;
  s += weight;
  if (*s == '"') {
    s = unquote(s, &word);
    if (!s || (*s && !strchr(blanks, *s))) return -1;
  } else {
    const size_t n = strcspn(s, blanks);
    memcpy(word, s, n);
    word += n;
    s += n;
  }
  *word = '\0';
  *at = s;
  return 1;
}

void tc_list_put(FILE *f, const char *word)
{
  const size_t weight = tc_list_weight_size(word);
  const char *name = word + weight;
  if (*name != '"' && *name && !strpbrk(name, blanks)) {
    fputs(word, f);
    return;
  }
  fprintf(f, "%.*s\"", (int)weight, word);
  for (; *name; name++) fputs(*name == '"' ? "\"\"" : (char[]){ *name, '\0' }, f);
  fputc('"', f);
}
