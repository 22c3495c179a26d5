/* hub.c - the link between ranks that are threads of one process.
 *
 * A rendezvous: sends and receives meet in the receiver's inbox, in the order they were
 * posted; the receiver copies straight from the sender's buffer when it tests.
 *
 * Life of a message:
 *   POSTED   in the inbox's list, alone            -> MATCHED when its mate is posted
 *   MATCHED  out of the list, `mate` set           -> COPYING by the receiver's test,
 *                                                     DEAD when the mate is cancelled
 *   COPYING  the receiver reads the sender's buffer -> DONE
 *   DONE     the other side no longer uses it      -> FREE by test or cancel
 * Invariants: lists, `mate` and every change of state but COPYING -> DONE are under the
 * inbox's lock; only its own link's thread allocates and frees a message. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/hub.h"
#include "src/comm/link.h"

enum state { FREE, POSTED, MATCHED, COPYING, DONE, DEAD };

struct msg {
  struct msg *next, *mate;
  struct link *owner;
  void *buf;
  int64_t bytes;
  int id, from, tag;              /* sends and receives with equal values match; from: world rank */
  int other;                      /* world rank at the other end */
  bool is_send;
  struct inbox *inbox;            /* of the receiver */
  atomic_int state;
};

struct list { struct msg *head, *tail; };
struct inbox { pthread_mutex_t lock; struct list sends, recvs; };

struct tc_hub {
  int world;
  struct inbox *inbox;            /* [world] */
  atomic_bool *gone;              /* [world] */
};

struct link {
  struct tc_hub *hub;
  int id, rank;
  pthread_mutex_t lock;
  pthread_cond_t rung;
  bool bell;                      /* a request changed since its thread last waited; under the lock */
  struct msg **msg;               /* by request; a message's address never changes */
  int n, cap;
};

struct tc_hub *tc_hub_new(int world)
{
  TC_ASSERT(world > 0);
  struct tc_hub *h = tc_calloc(1, sizeof *h);
  h->world = world;
  h->inbox = tc_calloc((size_t)world, sizeof *h->inbox);
  h->gone = tc_calloc((size_t)world, sizeof *h->gone);
  for (int i = 0; i < world; i++) {
    pthread_mutex_init(&h->inbox[i].lock, NULL);
    atomic_init(&h->gone[i], false);
  }
  return h;
}

void tc_hub_free(struct tc_hub *h)
{
  if (!h) return;
  for (int i = 0; i < h->world; i++) pthread_mutex_destroy(&h->inbox[i].lock);
  TC_FREE(h->inbox, h->gone, h);
}

void tc_hub_leave(struct tc_hub *h, int rank)
{
  TC_ASSERT(rank >= 0 && rank < h->world);
  atomic_store(&h->gone[rank], true);
}

/* Called with the link's lock held: wakes its thread if it waits. */
static void ring_locked(struct link *l)
{
  if (!l->bell) pthread_cond_signal(&l->rung);
  l->bell = true;
}

static void ring(struct link *l)
{
  pthread_mutex_lock(&l->lock);
  ring_locked(l);
  pthread_mutex_unlock(&l->lock);
}

static void thread_wait(void *link, int64_t ns)
{
  struct link *l = link;
  const int64_t until_ns = tc_now_ns() + ns;
  pthread_mutex_lock(&l->lock);
  if (!l->bell) tc_cond_wait_until(&l->rung, &l->lock, until_ns);
  l->bell = false;
  pthread_mutex_unlock(&l->lock);
}

static void append(struct list *l, struct msg *m)
{
  m->next = NULL;
  if (l->tail) l->tail->next = m;
  else l->head = m;
  l->tail = m;
}

static void unlink_msg(struct list *l, const struct msg *m)
{
  struct msg *prev = NULL;
  for (struct msg *i = l->head; i != m; i = i->next) prev = i;
  if (prev) prev->next = m->next;
  else l->head = m->next;
  if (l->tail == m) l->tail = prev;
}

/* The oldest message in l that matches m. */
static struct msg *find_mate(const struct list *l, const struct msg *m)
{
  for (struct msg *i = l->head; i; i = i->next)
    if (i->id == m->id && i->from == m->from && i->tag == m->tag) return i;
  return NULL;
}

static int take_request(struct link *l)
{
  for (int i = 0; i < l->n; i++)
    if (atomic_load_explicit(&l->msg[i]->state, memory_order_relaxed) == FREE) return i;
  TC_GROW(l->msg, l->n, l->cap);
  l->msg[l->n] = tc_calloc(1, sizeof **l->msg);
  return l->n++;
}

static int thread_post(void *link, bool is_send, int other, void *buf, int64_t bytes, int tag)
{
  struct link *l = link;
  int request = take_request(l);
  struct msg *m = l->msg[request];
  int to = is_send ? other : l->rank;
  m->mate = NULL;
  m->owner = l;
  m->buf = buf;
  m->bytes = bytes;
  m->id = l->id;
  m->from = is_send ? l->rank : other;
  m->tag = tag;
  m->other = other;
  m->is_send = is_send;
  m->inbox = &l->hub->inbox[to];
  pthread_mutex_lock(&m->inbox->lock);
  struct list *theirs = is_send ? &m->inbox->recvs : &m->inbox->sends;
  struct msg *mate = find_mate(theirs, m);
  if (mate) {
    TC_ASSERT(mate->bytes == bytes);        /* the members' calls differ */
    unlink_msg(theirs, mate);
    m->mate = mate;
    mate->mate = m;
    atomic_store(&m->state, MATCHED);
    atomic_store(&mate->state, MATCHED);
    if (is_send) ring(mate->owner);          /* under the inbox's lock: it can't be cancelled and freed meanwhile */
  } else {
    append(is_send ? &m->inbox->sends : &m->inbox->recvs, m);
    atomic_store(&m->state, POSTED);
  }
  pthread_mutex_unlock(&m->inbox->lock);
  return request;
}

/* Copies the data of a matched receive. False if the sender has cancelled the message. */
static bool copy_data(struct msg *m)
{
  pthread_mutex_lock(&m->inbox->lock);
  struct msg *mate = atomic_load(&m->state) == MATCHED ? m->mate : NULL;
  if (mate) atomic_store(&mate->state, COPYING);
  pthread_mutex_unlock(&m->inbox->lock);
  if (!mate) return false;
  if (m->bytes) memcpy(m->buf, mate->buf, (size_t)m->bytes);
  struct link *sender = mate->owner;
  pthread_mutex_lock(&sender->lock);
  atomic_store(&mate->state, DONE);         /* from now on the sender may free it, and its link once this lock is free */
  ring_locked(sender);
  pthread_mutex_unlock(&sender->lock);
  return true;
}

static int thread_test(void *link, int request)
{
  struct link *l = link;
  struct msg *m = l->msg[request];
  /* `gone` is read before the state, since a peer may end after it has received the message. */
  bool gone = atomic_load(&l->hub->gone[m->other]);
  int state = atomic_load(&m->state);
  bool done = m->is_send ? state == DONE : state == MATCHED && copy_data(m);
  if (done) {
    atomic_store(&m->state, FREE);
    return 1;
  }
  if (state == COPYING) return 0;
  return state == DEAD || gone ? TC_EPEER : 0;
}

static void thread_cancel(void *link, int request)
{
  struct msg *m = ((struct link *)link)->msg[request];
  pthread_mutex_lock(&m->inbox->lock);
  int state = atomic_load(&m->state);
  if (state == POSTED) unlink_msg(m->is_send ? &m->inbox->sends : &m->inbox->recvs, m);
  if (state == MATCHED) {
    m->mate->mate = NULL;
    atomic_store(&m->mate->state, DEAD);
    ring(m->mate->owner);
  }
  pthread_mutex_unlock(&m->inbox->lock);
  /* Wait until the receiver has finished copying. */
  if (state == COPYING)
    while (atomic_load(&m->state) != DONE) sched_yield();
  atomic_store(&m->state, FREE);
}

static void thread_free(void *link)
{
  struct link *l = link;
  for (int i = 0; i < l->n; i++) {
    TC_ASSERT(atomic_load(&l->msg[i]->state) == FREE);
    free(l->msg[i]);
  }
  pthread_mutex_lock(&l->lock);             /* a receiver may still be ringing */
  pthread_mutex_unlock(&l->lock);
  pthread_mutex_destroy(&l->lock);
  pthread_cond_destroy(&l->rung);
  TC_FREE(l->msg, l);
}

struct tc_comm *tc_comm_thread(struct tc_hub *h, int id, int rank, const int32_t *members,
                               int size, const struct tc_comm_opts *o)
{
  static const struct tc_link_ops ops = { thread_post, thread_test, thread_cancel, thread_free, thread_wait };
  struct link *l = tc_calloc(1, sizeof *l);
  for (int i = 0; i < size; i++) TC_ASSERT(members[i] >= 0 && members[i] < h->world);
  l->hub = h;
  l->id = id;
  l->rank = rank;
  pthread_mutex_init(&l->lock, NULL);
  tc_cond_init(&l->rung);
  return tc_comm_p2p(&ops, l, rank, members, size, o);
}
