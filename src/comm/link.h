/* link.h - the interface by which p2p.c transfers bytes: implemented by self.c, hub.c and mpi.c. */
#ifndef TC_COMM_LINK_H
#define TC_COMM_LINK_H

#include "src/comm/comm.h"

/* A link transfers bytes between the members of one group. Non-blocking; used by one thread. */
struct tc_link_ops {
  /* Begins to send buf, which stays as it is, or to receive into it. peer: a world rank; tag distinguishes calls in
   * flight. A request >= 0 or a negative status. */
  int (*post)(void *link, bool is_send, int peer, void *buf, int64_t bytes, int tag);
  /* 1 done (the request is freed), 0 not yet, negative: peer ended or error. */
  int (*test)(void *link, int request);
  void (*cancel)(void *link, int request);        /* abandons a request */
  void (*free)(void *link);
  void (*wait)(void *link, int64_t ns);           /* at most so long, until a request may be done; NULL: it can't tell */
};
/* members: world ranks, in coordinate order, of which `rank` is this one's. */
struct tc_comm *tc_comm_p2p(const struct tc_link_ops *ops, void *link, int rank,
                            const int32_t *members, int size, const struct tc_comm_opts *o);

#endif
