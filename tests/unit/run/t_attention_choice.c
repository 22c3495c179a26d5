/* t_attention_choice.c - whether a library computes attention, from what each rank could do. */
#include "src/run/impl.h"
#include "tests/unit/tap.h"

#include <string.h>
#include <unistd.h>

static char *const names[] = { "rank 0 on a", "rank 1 on a", "rank 2 on b" };

static void choice(struct tc_attention_answer a, struct tc_attention_answer b, struct tc_attention_answer c, bool want,
                   const char *say, const char *what)
{
  const struct tc_attention_answer all[] = { a, b, c };
  char text[600] = "";
  const bool got = tc_run_attention_choose(all, 3, names, text, sizeof text);
  ok(got == want && strstr(text, say), "%s: %s, %s", what, got ? "yes" : "no", text);
}

int main(void)
{
  const struct tc_attention_answer one = { 1, "cuDNN 9.19.0" }, two = { 2, "cuDNN 9.19.0" }, old = { 1, "cuDNN 9.18.0" };
  const struct tc_attention_answer none = { 0, "no call" }, no = { -1, "no module" };
  alarm(60);
  choice(one, one, one, true, "cuDNN 9.19.0", "all could");
  choice(one, two, one, true, "cuDNN 9.19.0", "... with other shapes on one");
  choice(none, one, none, true, "cuDNN 9.19.0", "... where one alone has attention");
  choice(one, one, no, false, "rank 2 on b: no module", "one could not");
  choice(no, one, no, false, "rank 0 on a: no module", "two could not: the first is named");
  choice(none, none, no, false, "rank 2 on b: no module", "one could not, the others have no attention");
  choice(one, old, one, false, "rank 0 on a has cuDNN 9.19.0, rank 1 on a has cuDNN 9.18.0", "another version");
  choice(none, one, old, false, "rank 1 on a has cuDNN 9.19.0, rank 2 on b has cuDNN 9.18.0", "... beside one without attention");
  choice(none, none, none, false, "it needs bf16", "no call is for it");
  return done_testing();
}
