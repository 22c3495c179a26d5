/* expand.c - words in braces within a value: {job}, {array} and {ranks} become what the launcher says, {array: A B C} the
 * entry of the list that belongs to this task of the array (the first to task 0). So that one run file does for a sweep.
 *
 * Other text in braces stays as it is, unless it is one lower-case word, which is taken for a mistake. */
#include "src/config/impl.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VARIABLES = 3 };
static const struct { const char *word, *variable[MOST_VARIABLES], *missing; } words[] = {
  { "array", { "SLURM_ARRAY_TASK_ID" }, "the task of a job array: sbatch --array=0-3, or SLURM_ARRAY_TASK_ID=0 to try one" },
  { "job", { "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID" }, "the job's number, which Slurm sets: SLURM_JOB_ID=1 to try" },
  { "ranks", { "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS" },
    "the number of ranks, which srun and mpirun set: SLURM_NTASKS=1 to try" } };
enum { WORDS = sizeof words / sizeof *words, ARRAY = 0, JOB = 1 };

/* What the environment has for a word; "": nothing. */
static const char *environment(int word)
{
  const char *value = "";
  for (int i = 0; i < MOST_VARIABLES && words[word].variable[i] && !*value; i++) value = tc_env(words[word].variable[i]);
  return value;
}

/* A text in braces: its word, or -1, and where its list begins, or NULL. */
static int find_word(const char *text, size_t len, const char **list)
{
  size_t n = 0;
  while (n < len && islower((unsigned char)text[n])) n++;
  *list = n < len && text[n] == ':' ? text + n + 1 : NULL;
  for (int i = 0; i < WORDS && (n == len || *list); i++)
    if (strlen(words[i].word) == n && memcmp(words[i].word, text, n) == 0) return i;
  return -1;
}

/* Writes the entry of a list that the number says. */
static int choose(FILE *f, const char *list, const char *end, const char *number, const char *where, const char *name,
                  struct tc_err *err)
{
  char *rest;
  errno = 0;
  const long long wanted = strtoll(number, &rest, 10);
  long long n = 0;
  for (const char *at = list; !*rest && !errno; n++) {
    at += strspn(at, " \t");
    const size_t len = strcspn(at, " \t}");
    if (at >= end || len == 0) break;
    if (n == wanted) {
      fwrite(at, 1, len, f);
      return 0;
    }
    at += len;
  }
  return tc_fail(err, TC_EUSER, "%s%s: {array:...} has %lld values, for SLURM_ARRAY_TASK_ID 0 to %lld, and this is task %.40s",
                 where, name, n, n - 1, number);
}

/* Writes what a text in braces becomes. */
static int put(FILE *f, const char *text, size_t len, const char *where, const char *name, struct tc_err *err)
{
  const char *list;
  const int word = find_word(text, len, &list);
  const bool plain = len > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyz_") == len;
  if (word < 0 && plain)
    return tc_fail(err, TC_EUSER, "%s%s: {%.*s} is not known; {array}, {array: A B C}, {job} and {ranks} are", where, name,
                   (int)TC_MIN(len, 60), text);
  if (word < 0 || (list && word != ARRAY)) {
    fprintf(f, "{%.*s}", (int)len, text);
    return 0;
  }
  const char *value = environment(word), *task = environment(ARRAY);
  if (!*value) return tc_fail(err, TC_EUSER, "%s%s: {%s} has no value here: it is %s", where, name, words[word].word, words[word].missing);
  if (list) return choose(f, list, text + len, value, where, name, err);
  fprintf(f, "%s", value);
  if (word == JOB && *task) fprintf(f, "_%s", task);       /* as squeue prints it */
  return 0;
}

int tc_expand(char **out, const char *value, const char *where, const char *name, struct tc_err *err)
{
  size_t size = 0;
  int rc = 0;
  *out = NULL;
  if (!strchr(value, '{')) return 0;
  FILE *f = open_memstream(out, &size);
  TC_ASSERT(f);
  while (*value && rc == 0) {
    const char *open = strchr(value, '{'), *close = open ? strchr(open, '}') : NULL;
    const size_t before = close ? (size_t)(open - value) : strlen(value);
    fwrite(value, 1, before, f);
    if (close) rc = put(f, open + 1, (size_t)(close - open) - 1, where, name, err);
    value = close ? close + 1 : value + before;
  }
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for a value");
  if (rc == 0) return 0;
  free(*out);
  *out = NULL;
  return rc;
}
