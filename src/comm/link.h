/* link.h - the interface by which p2p.c transfers bytes: implemented by self.c, hub.c and mpi.c. */
#ifndef TC_COMM_LINK_H
#define TC_COMM_LINK_H

#include "src/comm/comm.h"

/* A link transfers bytes between the members of one group. Non-blocking; used by one thread. */
struct tc_link_ops {
  /* Return a request >= 0 or a negative status. tag distinguishes calls in flight. */
  int (*send)(void *link, int to, const void *buf, int64_t bytes, int tag);
  int (*recv)(void *link, int from, void *buf, int64_t bytes, int tag);
  /* 1 done (the request is freed), 0 not yet, negative: peer ended or error. */
  int (*test)(void *link, int request);
  void (*cancel)(void *link, int request);        /* abandons a request */
  void (*free)(void *link);
};
/* members: world ranks, in coordinate order. */
struct tc_comm *tc_comm_p2p(const struct tc_link_ops *ops, void *link, int coord,
                            const int32_t *members, int size, const struct tc_comm_opts *o);

#endif
