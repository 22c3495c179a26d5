/* timeout.c - the report of a call that exceeds its timeout, to the watchdog and to the
 * user: the same sentence for all backends. */
#include "src/comm/impl.h"

static const char *call_name(const struct tc_late *l, const struct tc_coll_args *a, char *text,
                             size_t size)
{
  if (a->what)
    snprintf(text, size, "%s '%s' on axis %s", tc_coll_name[a->coll], a->what, l->axis);
  else
    snprintf(text, size, "%s on axis %s", tc_coll_name[a->coll], l->axis);
  return text;
}

static void name_member(const struct tc_late *l, int i, char *text, size_t size)
{
  const char *comma = *text ? ", " : "";
  if (l->rank_names) tc_text_add(text, size, "%s%s", comma, l->rank_names[i]);
  else tc_text_add(text, size, "%scoordinate %d", comma, i);
}

void tc_late_say(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns,
                 const int *late, int n)
{
  char call[256];
  int32_t rank[TC_SUSPECTS];
  n = TC_MIN(n, TC_SUSPECTS);
  for (int i = 0; i < n; i++) rank[i] = l->members[late[i]];
  call_name(l, a, call, sizeof call);
  tc_blocked_call_set(l->blocked, call, (double)age_ns * 1e-9, rank, n);
}

int tc_late_fail(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns,
                 const int *late, int n, struct tc_err *err)
{
  char call[256], late_names[512] = "";
  struct tc_diagnosis b;
  tc_late_say(l, a, age_ns, late, n);
  bool found = tc_blocked_call_diagnose(l->blocked, &b);
  for (int i = 0; i < TC_MIN(n, TC_SUSPECTS) && !b.n; i++) name_member(l, late[i], late_names, sizeof late_names);
  if (!b.n && n > TC_SUSPECTS) tc_text_add(late_names, sizeof late_names, " and %d more", n - TC_SUSPECTS);
  return tc_fail(err, TC_EPEER, "%s: no answer from %s after %g s (deadline run.deadline): %s",
                 call_name(l, a, call, sizeof call), b.n ? b.suspects : late_names, l->deadline_s,
                 found ? b.why : "find out what stopped it, or raise the deadline");
}

int tc_late_gone(const struct tc_late *l, const struct tc_coll_args *a, int peer,
                 struct tc_err *err)
{
  char call[256], name[256] = "";
  name_member(l, peer, name, sizeof name);
  return tc_fail(err, TC_EPEER, "%s: %s has left the run or can no longer be reached; see "
                 "its log", call_name(l, a, call, sizeof call), name);
}

int tc_late_broken(const struct tc_late *l, const struct tc_coll_args *a, const int *late, int n,
                   struct tc_err *err)
{
  char call[256];
  const struct tc_err why = *err;
  struct tc_diagnosis b = { 0 };
  if (why.status == TC_EPEER) {
    tc_late_say(l, a, 0, late, n);
    tc_blocked_call_diagnose(l->blocked, &b);
  }
  return tc_fail(err, why.status, "%s: %.400s%s%s%s%s", call_name(l, a, call, sizeof call), why.text,
                 b.n ? "; " : "", b.suspects, b.n ? ": " : "", b.n ? b.why : "");
}
