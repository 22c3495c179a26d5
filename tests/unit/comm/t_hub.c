/* t_hub.c - messages between threads (hub.c), by one thread: what meets what, in which
 * order, what a test and a cancel leave. Threads are t_comm's. */
#include "src/base/base.h"
#include "src/comm/hub.h"
#include "tests/unit/locks.h"
#include "tests/unit/tap.h"
#include "src/comm/hub.c"

static struct tc_hub *hub;
static struct link l[3]; /* of the ranks 0, 1, 2 */

static void make(void)
{
  hub = tc_hub_new(3);
  for (int i = 0; i < 3; i++) l[i] = (struct link){ .hub = hub, .id = 4, .rank = i };
}

static void done(void)
{
  for (int i = 0; i < 3; i++) {
    ok(!hub->inbox[i].sends.head && !hub->inbox[i].sends.tail && !hub->inbox[i].recvs.head &&
           !hub->inbox[i].recvs.tail,
       "inbox %d is empty", i);
    for (int k = 0; k < l[i].n; k++) {
      is_int(l[i].msg[k]->state, FREE, "... a message of %d is free", i);
      free(l[i].msg[k]);
    }
    free(l[i].msg);
  }
  tc_hub_free(hub);
  ok(locks == 0 && least_locks == 0, "all locks are let go");
}

/* Sends and receives meet by kind, pair and tag, in their order, whichever comes first. */
static void test_meet(void)
{
  char a[4] = "abc", b[4] = "xyz", got[4] = "", other[4] = "";
  make();
  int s1 = thread_post(&l[0], true, 1, a, 4, 7), s2 = thread_post(&l[0], true, 1, b, 4, 7);
  ok(s1 == 0 && s2 == 1 && thread_test(&l[0], s1) == 0, "two sends wait");
  int wrong = thread_post(&l[1], false, 0, other, 4, 8);
  int from = thread_post(&l[1], false, 2, other, 4, 7);
  l[1].id = 5;
  int kind = thread_post(&l[1], false, 0, other, 4, 7);
  l[1].id = 4;
  ok(thread_test(&l[1], wrong) == 0 && thread_test(&l[1], from) == 0 &&
         thread_test(&l[1], kind) == 0,
     "another tag, another rank, another group do not meet them");
  int r = thread_post(&l[1], false, 0, got, 4, 7);
  is_int(thread_test(&l[0], s1), 0, "a send that met is not done before its copy");
  is_int(thread_test(&l[1], r), 1, "the receive is");
  is_str(got, "abc", "... with the first");
  is_int(thread_test(&l[0], s1), 1, "... then the send, too");
  is_int(thread_test(&l[0], s2), 0, "... and not the second");
  is_int(thread_post(&l[1], false, 0, got, 4, 7), r, "a place is taken again");
  is_int(thread_test(&l[1], r), 1, "the second");
  is_str(got, "xyz", "... comes");
  is_int(thread_test(&l[0], s2), 1, "... and is done");
  int r0 = thread_post(&l[2], false, 1, NULL, 0, 0), s0 = thread_post(&l[1], true, 2, NULL, 0, 0);
  ok(thread_test(&l[2], r0) == 1 && thread_test(&l[1], s0) == 1,
     "a receive that came first; nothing to copy");
  thread_cancel(&l[1], from);
  thread_cancel(&l[1], kind);
  thread_cancel(&l[1], wrong);
  is_str(other, "", "what is given up gets nothing");
  done();
}

/* What is given up before it met, after, and by whom. */
static void test_cancel(void)
{
  char a[2] = "a", b[2] = "b", c[2] = "c", got[2] = "";
  make();
  int s[3] = { thread_post(&l[0], true, 1, a, 2, 0), thread_post(&l[0], true, 1, b, 2, 0),
               thread_post(&l[0], true, 1, c, 2, 0) };
  thread_cancel(&l[0], s[1]);
  ok(hub->inbox[1].sends.head->buf == a && hub->inbox[1].sends.head->next->buf == c &&
         hub->inbox[1].sends.tail->buf == c,
     "one in the middle");
  thread_cancel(&l[0], s[2]);
  ok(hub->inbox[1].sends.head->buf == a && !hub->inbox[1].sends.head->next &&
         hub->inbox[1].sends.tail->buf == a,
     "the last one");
  s[1] = thread_post(&l[0], true, 1, b, 2, 0);
  thread_cancel(&l[0], s[0]);
  ok(hub->inbox[1].sends.head->buf == b && hub->inbox[1].sends.tail->buf == b, "the first one");
  int r = thread_post(&l[1], false, 0, got, 2, 0);
  is_int(l[1].msg[r]->state, MATCHED, "the other meets a receive");
  thread_cancel(&l[0], s[1]);
  ok(!copy_data(l[1].msg[r]) && l[1].msg[r]->state == DEAD, "... which finds nothing to copy");
  is_int(thread_test(&l[1], r), TC_EPEER, "a send that was given up");
  is_str(got, "", "... brings nothing");
  thread_cancel(&l[1], r);
  r = thread_post(&l[1], false, 0, got, 2, 0);
  s[0] = thread_post(&l[0], true, 1, a, 2, 0);
  thread_cancel(&l[1], r);
  is_int(thread_test(&l[0], s[0]), TC_EPEER, "a receive that was given up");
  thread_cancel(&l[0], s[0]);
  done();
}

static void test_gone(void)
{
  char a[2] = "a", got[2] = "";
  make();
  int s = thread_post(&l[0], true, 1, a, 2, 0), r = thread_post(&l[2], false, 0, got, 2, 0);
  tc_hub_leave(hub, 1);
  is_int(thread_test(&l[0], s), TC_EPEER, "a send to who has left");
  is_int(thread_test(&l[2], r), 0, "a receive from who has not");
  tc_hub_leave(hub, 0);
  is_int(thread_test(&l[2], r), TC_EPEER, "... and has");
  thread_cancel(&l[0], s);
  thread_cancel(&l[2], r);
  s = thread_post(&l[0], true, 2, a, 2, 0);
  r = thread_post(&l[2], false, 0, got, 2, 0);
  is_int(thread_test(&l[2], r), 1, "what was sent before is received");
  is_str(got, "a", "... whole");
  is_int(thread_test(&l[0], s), 1, "... and has gone");
  s = thread_post(&l[0], true, 2, a, 2, 0);
  l[0].msg[s]->state = COPYING;
  tc_hub_leave(hub, 2);
  is_int(thread_test(&l[0], s), 0, "who is in the middle of a copy has not left it");
  l[0].msg[s]->state = POSTED;
  thread_cancel(&l[0], s);
  done();
}

int main(void)
{
  test_meet();
  test_cancel();
  test_gone();
  tc_hub_free(NULL);
  return done_testing();
}
