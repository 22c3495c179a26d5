/* slurm_words.c - what Slurm says of a node: its state and its GPUs, read word by word.
 *
 * A state is a base and flags, "IDLE+CLOUD+POWERED_DOWN". A word may end in marks, "DOWN*", and older releases join
 * base and flags into one word, "DRAINED". A word is never looked for within another one. */
#include "src/launch/slurm.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* What a word means to a job that is submitted now and may wait for other jobs and for the end of a reservation.
 * POWER: the node is off, or starts: Slurm starts it for the job, and meanwhile it need not answer. */
enum meaning { FINE, POWER, SILENT, BAD };

/* The words of Slurm 17.11 to 25.05 (sinfo(1), and node_state_string of its sources). */
static const struct { const char *word; enum meaning is; } words[] = {
  /* the base */
  { "IDLE", FINE }, { "ALLOCATED", FINE }, { "MIXED", FINE }, { "DOWN", BAD }, { "ERROR", BAD }, { "FUTURE", BAD },
  { "UNKNOWN", BAD },
  /* flags */
  { "BLOCKED", FINE }, { "CLOUD", FINE }, { "COMPLETING", FINE }, { "DRAIN", BAD }, { "DYNAMIC_FUTURE", FINE },
  { "DYNAMIC_NORM", FINE }, { "FAIL", BAD }, { "INVALID_REG", BAD }, { "MAINTENANCE", FINE },
  { "NOT_RESPONDING", SILENT }, { "PERFCTRS", FINE }, { "PLANNED", FINE }, { "POWER", POWER }, { "POWER_DOWN", FINE },
  { "POWER_UP", POWER }, { "POWERED_DOWN", POWER }, { "POWERING_DOWN", POWER }, { "POWERING_UP", POWER },
  { "REBOOT_ISSUED", POWER }, { "REBOOT_REQUESTED", FINE }, { "RESERVED", FINE }, { "RESUME", FINE },
  /* base and flags in one word */
  { "DRAINED", BAD }, { "DRAINING", BAD }, { "FAILING", BAD }, { "INVAL", BAD }, { "MAINT", FINE },
  { "REBOOT", FINE } };

/* Marks at the end of a word. */
static const struct { char mark; enum meaning is; } marks[] = {
  { '*', SILENT }, { '~', POWER }, { '#', POWER }, { '%', POWER }, { '^', POWER }, { '!', FINE }, { '$', FINE },
  { '@', FINE }, { '-', FINE } };

static bool find_word(const char *text, int length, enum meaning *is)
{
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if ((int)strlen(words[i].word) == length && !memcmp(words[i].word, text, (size_t)length)) {
      *is = words[i].is;
      return true;
    }
  return false;
}

static bool find_mark(char mark, enum meaning *is)
{
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
    if (marks[i].mark == mark) {
      *is = marks[i].is;
      return true;
    }
  return false;
}

enum tc_slurm_state tc_slurm_state_of(const char *state, char *word, size_t size)
{
  bool has[BAD + 1] = { false }, unknown = *state == 0;
  snprintf(word, size, "%s", *state ? "" : "none");
  for (const char *at = state; *at; at += strcspn(at, "+"), at += *at == '+') {
    int n = (int)strcspn(at, "+");
    const int whole = n;
    enum meaning is;
    while (n > 0 && find_mark(at[n - 1], &is)) {
      has[is] = true;
      n--;
    }
    if (n == 0 && whole == 0) continue;          /* "ALLOCATED+": some of its jobs are ending */
    if (find_word(at, n, &is)) {
      has[is] = true;
    } else if (!unknown) {
      unknown = true;
      snprintf(word, size, "%.*s", whole, at);
    }
  }
  if (has[BAD] || (has[SILENT] && !has[POWER])) return TC_SLURM_STATE_BAD;
  return unknown ? TC_SLURM_STATE_UNKNOWN : TC_SLURM_STATE_GOOD;
}

/* The length of the text up to one of `ends` that is not within parentheses: "gpu:a100:4(S:0,2),shard:8". */
static int outside(const char *text, const char *ends)
{
  int depth = 0, n = 0;
  for (; text[n] && (depth > 0 || !strchr(ends, text[n])); n++) depth += (text[n] == '(') - (text[n] == ')');
  return n;
}

/* "8", "2K"; false: no number, as a type is. */
static bool read_count(const char *text, int n, double *count)
{
  const char *end;
  const int64_t x = tc_parse_whole(text, 1024, "KMGTP", &end);
  if (n == 0 || x < 0 || end != text + n) return false;
  *count = (double)x;
  return true;
}

const char *tc_slurm_gres_next(const char *list, struct tc_slurm_gres *out)
{
  const int n = outside(list, ",");
  *out = (struct tc_slurm_gres){ .count = 1 };
  for (const char *at = list, *end = list + n; at < end;) {
    const int part = (int)TC_MIN(outside(at, ":"), end - at), bare = (int)TC_MIN(strcspn(at, "("), (size_t)part);
    if (at == list) snprintf(out->name, sizeof out->name, "%.*s", bare, at);
    else if (!read_count(at, bare, &out->count) && bare > 0 && strncmp(at, "no_consume", (size_t)bare))
      snprintf(out->type, sizeof out->type, "%.*s", bare, at);
    at += part;
    at += at < end;
  }
  return list[n] ? list + n + 1 : NULL;
}

bool tc_slurm_is_slice(const char *type)
{
  for (const char *at = type; (at = strstr(at, "g.")); at++) {
    const size_t digits = strspn(at + 2, "0123456789");
    if (at > type && isdigit((unsigned char)at[-1]) && digits && !strncasecmp(at + 2 + digits, "gb", 2)) return true;
  }
  return false;
}
