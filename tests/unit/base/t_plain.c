/* t_plain.c - what of others' text reaches a terminal, by every way to stdout and stderr. */
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/base.h"
#include "tests/unit/tap.h"

static const struct { const char *is, *lines, *line; } texts[] = {
  { "plain ~ text", "plain ~ text", "plain ~ text" },
  { "a\tb\nc", "a\tb\nc", "a\\u0009b\\u000ac" },
  { "\033[2J\r\a\177", "\\u001b[2J\\u000d\\u0007\\u007f", NULL },
  { "\xc2\x80 \xc2\x9b \xc2\x9f\xc2\xa0", "\\u0080 \\u009b \\u009f\xc2\xa0", NULL },         /* C1, and a blank */
  { "\xe2\x80\xae" "exe.\xe2\x81\xa9", "\\u202eexe.\\u2069", NULL },                       /* right to left */
  { "\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xa8\xef\xbb\xbf", "\\u061c\\u200e\\u200f\\u2028\\ufeff", NULL },
  { "\x9b" "31m \xff", "\\x9b31m \\xff", NULL },                                           /* C1 as a byte */
  { "\xc0\x9b \xe0\x80\x9b \xed\xa0\x80 \xf4\x90\x80\x80", "\\xc0\\x9b \\xe0\\x80\\x9b \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80",
    NULL },                                                                              /* overlong, surrogate, beyond */
  { "\xc2\033 \xe2\x80", "\\xc2\\u001b \\xe2\\x80", NULL },                                /* cut short */
  { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x80\x8d", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x80\x8d", NULL },
};
enum { TEXTS = sizeof texts / sizeof *texts };

static void test_plain(void)
{
  char to[200];
  for (int i = 0; i < TEXTS; i++) {
    is_str(tc_plain(to, sizeof to, texts[i].is, true), texts[i].lines, "text %d", i);
    is_str(tc_plain(to, sizeof to, texts[i].is, false), texts[i].line ? texts[i].line : texts[i].lines, "... as a line");
  }
  for (int size = 1; size < 20; size++) {
    memset(to, '#', sizeof to);
    tc_plain(to, (size_t)size, "\033\xe2\x82\xac" "a", false);
    const int want = size > 10 ? 10 : size > 9 ? 9 : size > 6 ? 6 : 0;
    ok((int)strlen(to) == want && !strncmp(to, "\\u001b\xe2\x82\xac" "a", (size_t)want) && to[size] == '#',
       "a unit is not cut: %d bytes of %d", want, size);
  }
}

/* What a child that calls `body` prints on fd; the text goes into it by `how` bytes at once. */
static const char *printed(int fd, void (*body)(const char *text, int how), const char *text, int how)
{
  static char got[4000];
  FILE *f = tmpfile();
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(f), fd);
    alarm(60);
    body(text, how);
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  memset(got, 0, sizeof got);
  rewind(f);
  got[fread(got, 1, sizeof got - 1, f)] = 0;
  fclose(f);
  return status ? "it ended badly" : got;
}

static void to_stdout(const char *text, int how)
{
  tc_plain_stdout();
  for (size_t at = 0, n = strlen(text); at < n; at += (size_t)how) {
    fwrite(text + at, 1, TC_MIN((size_t)how, n - at), stdout);
    fflush(stdout);
  }
  printf("%s", "");
  putchar('.');
  puts("");
}

static void to_log(const char *text, int how)
{
  struct tc_err err;
  if (how == 0) tc_log("%s", text);
  if (how == 1) tc_warn("%s", text);
  if (how == 2) tc_say("", "\n", "%s", text);
  if (how != 3) return;
  tc_fail(&err, TC_EUSER, "%s", text);
  tc_say_failure(&err);
}

static void test_streams(void)
{
  static const char *const begin[] = { "tercio: ", "tercio: warning: ", "", "tercio: " };
  char want[300];
  for (int i = 0; i < TEXTS; i++) {
    snprintf(want, sizeof want, "%s.\n", texts[i].lines);
    for (int at_once = 1; at_once < 5; at_once++)
      is_str(printed(STDOUT_FILENO, to_stdout, texts[i].is, at_once), want, "text %d on stdout, %d at once", i, at_once);
    for (int how = 0; how < 4; how++) {
      snprintf(want, sizeof want, "%s%s\n", begin[how], texts[i].line ? texts[i].line : texts[i].lines);
      is_str(printed(STDERR_FILENO, to_log, texts[i].is, how), want, "... on stderr, %d", how);
    }
  }
}

int main(void)
{
  test_plain();
  test_streams();
  return done_testing();
}
