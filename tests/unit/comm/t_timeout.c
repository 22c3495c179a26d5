/* t_timeout.c - the sentences of a call that waits too long (timeout.c), with a made-up watchdog. */
#include "src/comm/impl.h"
#include "tests/unit/tap.h"

static struct {
  const char *who, *why;
  int n;
  bool is_found;
} found;
static struct {
  char call[300];
  double age_s;
  int32_t late[TC_SUSPECTS];
  int n, times, blames;
} given;
static struct tc_blocked_call *const blocked = (struct tc_blocked_call *)&given;

static void tell(struct tc_blocked_call *s, const char *call, double age_s, const int32_t *late, int n)
{
  snprintf(given.call, sizeof given.call, "%s", s == blocked ? call : "another call");
  given.age_s = age_s;
  given.n = n;
  given.times++;
  memcpy(given.late, late, (size_t)n * sizeof *late);
}

static bool accuse(struct tc_blocked_call *s, struct tc_diagnosis *b)
{
  *b = (struct tc_diagnosis){ .n = s == blocked ? found.n : 9 };
  given.blames++;
  if (!found.is_found) return false;
  snprintf(b->suspects, sizeof b->suspects, "%s", found.who);
  snprintf(b->why, sizeof b->why, "%s", found.why);
  return true;
}

#define tc_blocked_call_set tell
#define tc_blocked_call_diagnose accuse
#include "src/comm/timeout.c"

enum { MANY = TC_SUSPECTS + 3 };
static const char *const names[MANY] = { "rank 9 on a", "rank 7 on b", "rank 5 on c" };
static const int32_t members[MANY] = { 9, 7, 5 };
static const struct tc_coll_args what = { .coll = TC_ALL_REDUCE, .what = "h.1" },
                                 bare = { .coll = TC_BARRIER };

static void test_fail(void)
{
#define RAISE "find out what stopped it, or raise the deadline"
  static const struct {
    const struct tc_coll_args *a;
    bool names;
    int n, late[3], blamed;
    bool found;
    const char *want;
  } rows[] = {
    { &what,
      true,
      1,
      { 1 },
      0,
      false,
      "all_reduce 'h.1' on axis dp: no answer from rank 7 on b "
      "after 2.5 s (deadline "
      "run.deadline): " RAISE },
    { &what,
      true,
      2,
      { 2, 0 },
      0,
      false,
      "all_reduce 'h.1' on axis dp: no answer from rank 5 "
      "on c, rank 9 on a after "
      "2.5 s (deadline run.deadline): " RAISE },
    { &bare,
      false,
      2,
      { 2, 0 },
      0,
      false,
      "barrier on axis dp: no answer from coordinate 2, "
      "coordinate 0 after 2.5 s "
      "(deadline run.deadline): " RAISE },
    { &bare,
      true,
      1,
      { 1 },
      1,
      true,
      "barrier on axis dp: no answer from rank 3 on x after 2.5 "
      "s (deadline "
      "run.deadline): it sleeps" },
    { &bare,
      true,
      1,
      { 1 },
      0,
      true,
      "barrier on axis dp: no answer from rank 7 on b after 2.5 "
      "s (deadline "
      "run.deadline): it sleeps" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_late l = { .axis = "dp",
                               .rank_names = rows[i].names ? names : NULL,
                               .members = members,
                               .blocked = blocked,
                               .deadline_s = 2.5 };
    struct tc_err err = { 0 };
    found.who = "rank 3 on x";
    found.why = "it sleeps";
    found.n = rows[i].blamed;
    found.is_found = rows[i].found;
    memset(&given, 0, sizeof given);
    is_int(tc_late_fail(&l, rows[i].a, 3000000000, rows[i].late, rows[i].n, &err), TC_EPEER,
           "late, row %d", (int)i);
    is_str(err.text, rows[i].want, "... the sentence");
    is_int(err.status, TC_EPEER, "... its status");
    ok(given.age_s == 3 && given.n == rows[i].n && given.times == 1 && given.blames == 1,
       "... the watchdog was informed");
    for (int k = 0; k < rows[i].n; k++)
      is_int(given.late[k], members[rows[i].late[k]], "... of this rank");
    is_str(given.call, rows[i].a == &what ? "all_reduce 'h.1' on axis dp" : "barrier on axis dp",
           "... in this call");
  }
}

/* More than can be named. */
static void test_many(void)
{
  const struct tc_late l = { .axis = "tp", .members = members, .blocked = blocked, .deadline_s = 60 };
  int late[MANY];
  for (int n = TC_SUSPECTS - 1; n <= MANY; n++) {
    char want[500] = "barrier on axis tp: no answer from ", more[30] = "";
    struct tc_err err = { 0 };
    for (int i = 0; i < n; i++) late[i] = i;
    for (int i = 0; i < TC_MIN(n, TC_SUSPECTS); i++)
      snprintf(want + strlen(want), sizeof want - strlen(want), "%scoordinate %d", i ? ", " : "",
               i);
    if (n > TC_SUSPECTS) snprintf(more, sizeof more, " and %d more", n - TC_SUSPECTS);
    snprintf(want + strlen(want), sizeof want - strlen(want),
             "%s after 60 s (deadline run.deadline): " RAISE, more);
    memset(&found, 0, sizeof found);
    memset(&given, 0, sizeof given);
    tc_late_fail(&l, &bare, 1, late, n, &err);
    is_str(err.text, want, "%d are late", n);
    is_int(given.n, TC_MIN(n, TC_SUSPECTS), "... so many are passed on");
    found.n = 1;
    found.is_found = true;
    found.who = "a rank";
    found.why = "why";
    tc_late_fail(&l, &bare, 1, late, n, &err);
    is_str(err.text,
           "barrier on axis tp: no answer from a rank after 60 s (deadline "
           "run.deadline): why",
           "... one of them is the suspect");
  }
}

static void test_gone(void)
{
  struct tc_late l = { .axis = "dp", .rank_names = names, .members = members };
  struct tc_err err = { 0 };
  is_int(tc_late_gone(&l, &what, 2, &err), TC_EPEER, "a peer has gone");
  is_str(err.text,
         "all_reduce 'h.1' on axis dp: rank 5 on c has left the run or can no "
         "longer be reached; see its log",
         "... which one");
  l.rank_names = NULL;
  tc_late_gone(&l, &bare, 1, &err);
  is_str(err.text,
         "barrier on axis dp: coordinate 1 has left the run or can no longer be "
         "reached; see its log",
         "... without names");
}

static void test_broken(void)
{
  static const struct {
    int status, blamed;
    bool found;
    const char *want;
    int blames;
  } rows[] = {
    { TC_EUSER, 1, true, "barrier on axis dp: out of memory", 0 },
    { TC_EPEER, 0, true, "barrier on axis dp: out of memory", 1 },
    { TC_EPEER, 1, true, "barrier on axis dp: out of memory; rank 3 on x: it sleeps", 1 },
  };
  const struct tc_late l = { .axis = "dp", .rank_names = names, .members = members, .blocked = blocked };
  const int late[] = { 2, 1 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    memset(&given, 0, sizeof given);
    found.n = rows[i].blamed;
    found.is_found = rows[i].found;
    found.who = found.n ? "rank 3 on x" : "";
    found.why = "it sleeps";
    tc_fail(&err, rows[i].status, "out of memory");
    is_int(tc_late_broken(&l, &bare, late, 2, &err), rows[i].status, "a library broke, status %d",
           rows[i].status);
    is_str(err.text, rows[i].want, "... the sentence");
    ok(given.times == rows[i].blames && given.blames == rows[i].blames, "... the watchdog was asked");
    if (given.times)
      ok(given.age_s == 0 && given.n == 2 && given.late[0] == 5 && given.late[1] == 7,
         "... of those waited for");
  }
}

int main(void)
{
  test_fail();
  test_many();
  test_gone();
  test_broken();
  return done_testing();
}
