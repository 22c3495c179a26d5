/* comm_self.c - a group of one: the stand-in that keeps "if there are peers" out of the rest.
 *
 * Its link has nobody to send to, so it is never called. */
#include "src/comm.h"

static int no_send(void *link, int to, const void *buf, int64_t bytes, int tag)
{
  (void)link, (void)to, (void)buf, (void)bytes, (void)tag;
  TC_ASSERT(!"a group of one sends nothing");
  return -1;
}

static int no_recv(void *link, int from, void *buf, int64_t bytes, int tag)
{
  return no_send(link, from, buf, bytes, tag);
}

static int no_test(void *link, int request)
{
  return no_send(link, request, NULL, 0, 0);
}

static void no_cancel(void *link, int request)
{
  no_send(link, request, NULL, 0, 0);
}

static void no_free(void *link)
{
  (void)link;
}

struct tc_comm *tc_comm_self(const struct tc_comm_opts *o)
{
  static const struct tc_link_ops ops = { no_send, no_recv, no_test, no_cancel, no_free };
  const int32_t me = 0;
  return tc_comm_p2p(&ops, NULL, 0, &me, 1, o);
}
