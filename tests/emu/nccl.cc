/* nccl.cc - NCCL among emulated GPUs of one process, whose ranks are threads.
 *
 * An operation is done when all members' streams have come to it, a send's when the receiver's
 * has: until then the streams stand still, for ever if a member never comes. As NCCL's
 * communicators that don't block: making one, and the end of a group, return ncclInProgress; work
 * is in its stream only when ncclCommGetAsyncError has reported ncclSuccess. Calls that differ between
 * members, calls while one is in progress and memory that is not of the communicator's GPU end the
 * program. The first send or receive between two members, in each direction, is in progress until the other has made its own:
 * since the library connects the two then, both hosts wait for each other.
 * TC_EMU_NCCL_BAD names a GPU that can't join; with TC_EMU_NCCL_PARTS all are parts of one, as NCCL finds out while they join;
 * TC_EMU_NCCL_ABORT_MS is what an abort takes, TC_EMU_NCCL_VERSION the version. Sums are made in an order of their own, of bf16
 * in bf16. */
#include "emu.h"
#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, SEND, RECV };

struct op {
  emu_nccl *c;
  kind what;
  const char *send;
  char *recv;
  size_t count;                   /* elements; of a block where each has one */
  ncclDataType_t type;
  int red, root;                  /* root: or peer */
  cudaStream_t stream;
  std::vector<op *> *mates;       /* of all members, or sender and receiver; NULL: not yet there */
  uint64_t at;                    /* tasks before it in its stream */
  bool pushed, done;
};

struct group {
  int n;
  std::vector<emu_nccl *> member;
  std::deque<std::vector<op *>> coll;                       /* the i-th collective of each */
  std::map<std::pair<int, int>, std::deque<std::vector<op *>>> pair;   /* from, to */
};

struct emu_nccl {
  group *g;
  int rank, device, looks;        /* looks: until work that was started is in its stream */
  size_t n_coll;
  std::map<std::pair<int, int>, size_t> n_pair;
  std::vector<std::vector<op *>> starting;       /* a list for each stream */
  std::vector<op *> meeting;                     /* of these: sends and receives that connect two members */
  std::vector<op *> all;
  bool gone, ending;
};

static std::map<std::string, group *> groups;    /* all kept: streams refer to them */
static std::deque<op> ops;
static std::deque<emu_nccl> comms;
static unsigned n_ids;
static thread_local int depth;
static thread_local std::vector<op *> grouped;

static size_t type_bytes(ncclDataType_t t)
{
  return t == ncclUint8 ? 1 : t == ncclBfloat16 ? 2 : t == ncclFloat64 ? 8 : 4;
}

/* ---- what the operations do --------------------------------------------------------------- */

static float from_bf16(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
static uint16_t to_bf16(float x)
{
  const uint32_t u = __float_as_uint(x);
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u
                                                    : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

template <class T> static T join(T a, T b, int red) { return red == ncclSum ? a + b : a > b ? a : b; }

static void fold(char *into, const char *x, size_t n, ncclDataType_t type, int red)
{
  for (size_t i = 0; i < n; i++)
    switch (type) {
    case ncclFloat32: ((float *)into)[i] = join(((float *)into)[i], ((const float *)x)[i], red); break;
    case ncclFloat64:
      ((double *)into)[i] = join(((double *)into)[i], ((const double *)x)[i], red);
      break;
    case ncclInt32:
      ((int *)into)[i] = (int)join((int64_t)((int *)into)[i], (int64_t)((const int *)x)[i], red);
      break;
    case ncclBfloat16: {
      uint16_t *p = (uint16_t *)into + i;
      *p = to_bf16(join(from_bf16(*p), from_bf16(((const uint16_t *)x)[i]), red));
      break;
    }
    default: emu_stop("NCCL: this type is not reduced");
    }
}

static void touch(const op *o, const void *p, size_t bytes)
{
  if (!bytes) return;
  if (emu_device_of(p) != o->c->device || emu_device_of((const char *)p + bytes - 1) != o->c->device)
    emu_stop("NCCL: a buffer that is not in the memory of the communicator's GPU");
}

/* From the last member to the first: not the order that anybody promises. */
static std::string reduced(const std::vector<op *> &m, size_t first, size_t bytes)
{
  const op *last = m.back();
  std::string sum(last->send + first, bytes);
  for (size_t i = m.size() - 1; i-- > 0;)
    fold(&sum[0], m[i]->send + first, bytes / type_bytes(last->type), last->type, last->red);
  return sum;
}

static void put(const op *o, size_t first, const std::string &x)
{
  touch(o, o->recv + first, x.size());
  memcpy(o->recv + first, x.data(), x.size());
}

static void execute(std::vector<op *> &m)
{
  emu_access open;
  const op *a = m[0];
  const size_t n = m.size(), bytes = a->count * type_bytes(a->type);
  for (op *o : m) {
    const size_t sent = o->what == REDUCE_SCATTER ? n * bytes : bytes;
    bool sends = o->what != RECV && (o->what != BROADCAST || o->root == o->c->rank);
    if (o->what != a->what && !(a->what == SEND && o->what == RECV))
      emu_stop("NCCL: members call different operations");
    if (o->count != a->count || o->type != a->type || o->red != a->red
        || (o->root != a->root && a->what != SEND))
      emu_stop("NCCL: members' calls differ in count, type, operation or root");
    if (sends) touch(o, o->send, sent);
  }
  std::string x;
  switch (a->what) {
  case ALL_REDUCE: x = reduced(m, 0, bytes); break;
  case REDUCE: x = reduced(m, 0, bytes); break;
  case BROADCAST: x.assign(m[(size_t)a->root]->send, bytes); break;
  case SEND: x.assign(a->send, bytes); break;
  case ALL_GATHER: for (op *o : m) x.append(o->send, bytes); break;
  default: x = reduced(m, 0, n * bytes); break;
  }
  for (op *o : m) {
    if (a->what == REDUCE_SCATTER) put(o, 0, x.substr((size_t)o->c->rank * bytes, bytes));
    else if (a->what == SEND ? o->what == RECV : a->what != REDUCE || o->root == o->c->rank)
      put(o, 0, x);
    o->done = true;
  }
}

/* ---- when ------------------------------------------------------------------------------------ */

/* All members are there, and their streams have come so far. */
static bool attempt(op *o)
{
  for (op *m : *o->mates)
    if (!m || !m->pushed || m->c->gone) return false;
  for (op *m : *o->mates)
    if (!emu_advance(m->stream, m->at)) return false;
  if (!o->done) execute(*o->mates);
  return true;
}

/* A task of a stream: the operations of one group. */
static bool attempt_all(const std::vector<op *> &list)
{
  bool all = true;
  for (op *o : list)
    if (!o->done && !o->c->gone && !attempt(o)) all = false;
  return all;
}

static void push(const std::vector<op *> &list)
{
  for (op *o : list) {
    o->at = emu_pushed(o->stream);
    o->pushed = true;
  }
  emu_push_task(list[0]->stream, [=] { return attempt_all(list); });
}

static std::vector<op *> *seat(std::deque<std::vector<op *>> &row, size_t i, size_t members)
{
  while (row.size() <= i) row.emplace_back(members, (op *)NULL);
  return &row[i];
}

/* Finds its mates: the i-th collective goes with the others' i-th, as do sends and receives. */
static void seat_op(op *o)
{
  emu_nccl *c = o->c;
  if (o->what != SEND && o->what != RECV) {
    o->mates = seat(c->g->coll, c->n_coll++, (size_t)c->g->n);
    (*o->mates)[(size_t)c->rank] = o;
    return;
  }
  const bool sends = o->what == SEND;
  const std::pair<int, int> way(sends ? c->rank : o->root, sends ? o->root : c->rank);
  std::pair<int, int> mine(o->root, sends);
  if (c->n_pair[mine] == 0) c->meeting.push_back(o);
  o->mates = seat(c->g->pair[way], c->n_pair[mine]++, 2);
  (*o->mates)[sends ? 0 : 1] = o;
}

static ncclResult_t end_group(void)
{
  std::vector<emu_nccl *> of;
  for (op *o : grouped) {
    seat_op(o);
    emu_nccl *c = o->c;
    c->all.push_back(o);
    auto same = std::find_if(c->starting.begin(), c->starting.end(), [&](std::vector<op *> &l) {
      return l[0]->stream == o->stream;
    });
    if (same == c->starting.end()) c->starting.push_back({ o });
    else same->push_back(o);
    c->looks = 2;
  }
  const bool any = !grouped.empty();
  grouped.clear();
  return any ? ncclInProgress : ncclSuccess;
}

static ncclResult_t add(kind what, const void *send, void *recv, size_t count, ncclDataType_t type,
                        int red, int root, emu_nccl *c, cudaStream_t s)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  if (c->looks || (int)c->g->member.size() < c->g->n)
    emu_stop("NCCL: a call while another is in progress");
  if (emu_stream_device(s) != c->device || emu_current_device() != c->device)
    emu_stop("NCCL: a stream of another GPU, or that is not the thread's");
  ops.push_back({ c, what, (const char *)send, (char *)recv, count, type, red, root, s, NULL, 0,
                  false, false });
  grouped.push_back(&ops.back());
  return depth ? ncclSuccess : end_group();
}

static bool have_met(emu_nccl *c)
{
  for (const op *o : c->meeting)
    if (!(*o->mates)[0] || !(*o->mates)[1]) return false;
  c->meeting.clear();
  return true;
}

/* ---- the library's calls ---------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
  const char *other = getenv("TC_EMU_NCCL_VERSION");
  *version = other ? atoi(other) : NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "emulated %u", n_ids++);
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
  switch (r) {
  case ncclSuccess: return "no error";
  case ncclInvalidUsage: return "invalid usage";
  case ncclRemoteError: return "remote process exited or there was a network error";
  default: return "unhandled error";
  }
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  if (config->blocking) emu_stop("NCCL: only communicators that don't block are here");
  group *&g = groups[id.internal];
  if (!g) g = new group{ n, {}, {}, {} };
  if (g->n != n) emu_stop("NCCL: members say different sizes");
  for (const emu_nccl *m : g->member) {
    if (m->rank == rank) emu_stop("NCCL: a rank twice");
    if (m->device == emu_current_device()) return ncclInvalidUsage;  /* "Duplicate GPU detected" */
  }
  const char *bad = getenv("TC_EMU_NCCL_BAD");
  if (bad && atoi(bad) == emu_current_device()) return ncclInvalidUsage;
  comms.push_back({ g, rank, emu_current_device(), 0, 0, {}, {}, {}, {}, false, false });
  *out = &comms.back();
  g->member.push_back(*out);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *result)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  *result = (int)c->g->member.size() < c->g->n ? ncclInProgress : ncclSuccess;
  if (*result == ncclSuccess && c->g->n > 1 && getenv("TC_EMU_NCCL_PARTS")) *result = ncclInvalidUsage;
  if (c->looks > 1 || !have_met(c)) {
    c->looks = std::max(c->looks - 1, 1);
    *result = ncclInProgress;
  } else {
    for (auto &list : c->starting) push(list);
    c->starting.clear();
    c->looks = 0;
  }
  for (op *o : c->all)
    if (c->ending && !o->done && !emu_advance(o->stream, o->at + 1)) *result = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  c->ending = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
  if (!c->ending) emu_stop("NCCL: ncclCommDestroy before ncclCommFinalize would block");
  return ncclCommAbort(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
  const char *ms = getenv("TC_EMU_NCCL_ABORT_MS");
  if (ms) usleep((useconds_t)atoi(ms) * 1000);
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  c->gone = true;
  emu_changed();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
  depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  return --depth ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t red, ncclComm_t c, cudaStream_t s)
{
  return add(ALL_REDUCE, send, recv, count, type, red, 0, c, s);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t red, int root, ncclComm_t c, cudaStream_t s)
{
  return add(REDUCE, send, recv, count, type, red, root, c, s);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t block, ncclDataType_t type,
                               ncclRedOp_t red, ncclComm_t c, cudaStream_t s)
{
  return add(REDUCE_SCATTER, send, recv, block, type, red, 0, c, s);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t s)
{
  return add(BROADCAST, send, recv, count, type, 0, root, c, s);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t block, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t s)
{
  return add(ALL_GATHER, send, recv, block, type, 0, 0, c, s);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
  return add(SEND, send, NULL, count, type, 0, peer, c, s);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
  return add(RECV, NULL, recv, count, type, 0, peer, c, s);
}
