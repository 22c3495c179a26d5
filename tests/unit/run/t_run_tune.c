/* t_run_tune.c - lines of what devices chose: of those with one key the first holds. */
#include "src/run/run.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <unistd.h>

static void merged(const char *lines, const char *want, const char *what)
{
  char *got = tc_run_tune_merge(lines);
  is_str(got, want, "%s", what);
  free(got);
}

int main(void)
{
  alarm(300);
  merged("", "", "no lines");
  merged("a b: 1\na c: 2\n", "a b: 1\na c: 2\n", "two keys");
  merged("a b: 1\na c: 2\na b: 3\n", "a b: 1\na c: 2\n", "a key of two ranks: the first rank's line");
  merged("a b: 1\na b: 1\na b: 2\na c: 1\n", "a b: 1\na c: 1\n", "... of three");
  merged("a bc: 1\na b: 2\nxa b: 3\n", "a bc: 1\na b: 2\nxa b: 3\n", "keys that begin or end alike");
  merged("a: x b: 1\nb: 2\n", "a: x b: 1\nb: 2\n", "a key within another's line");
  merged("a: 1\nb: 2", "a: 1\nb: 2", "a last line without an end");
  return done_testing();
}
