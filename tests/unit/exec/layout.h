/* layout.h - a layout as a row of a table of tests, and the options of a program on it. */
#ifndef TC_TEST_LAYOUT_H
#define TC_TEST_LAYOUT_H

#include "src/passes/passes.h"
#include "src/program/program.h"
#include "tests/unit/named.h"

struct layout {
  const char *name, *system;
  int mb, dp, tp;
  bool sequence;
  int64_t head_chunk;
  bool serial;                   /* no overlap */
  int dtype;                     /* TC_F32 is 0 */
  int offload;
  bool nest, regather;
  int keep;                      /* 1 + enum tc_reshard_after; 0: the system's */
  int prefetch;                  /* 1 + units */
  int recompute;
  bool reduce_once;
  int pp;                        /* 0: 1 */
  const char *schedule;
  int virtual_stages;
  bool plain;                    /* without dropout */
  bool documents;                /* attention within documents */
};
/* The last argument is more fields, or .serial = false. */
#define L(n, s, m, d, t, ...) { .name = n, .system = s, .mb = m, .dp = d, .tp = t, __VA_ARGS__ }

static inline struct tc_program_opts layout_options(const struct layout *l, const struct tc_model *m, int64_t batch, int kind)
{
  struct tc_program_opts o = {
    .kind = kind, .model = *m, .gpt = { .batch = batch, .dtype = l->dtype, .grad_dtype = TC_F32,
    .dropout = l->plain ? 0 : 0.1f, .tp = l->tp, .nest = l->nest, .documents = l->documents },
    .system = system_named(l->system),
    .overlap = !l->serial, .head_chunk = l->head_chunk, .offload = l->offload,
    .reshard_after = l->keep - 1, .prefetch = l->prefetch ? l->prefetch - 1 : 1, .regather = l->regather,
    .recompute = l->recompute, .reduce_once = l->reduce_once,
    .schedule = schedule_named(l->schedule), .virtual_stages = l->virtual_stages };
  if (l->tp > 1) o.annotation[0] = tc_rows_tensor;
  if (l->sequence) o.annotation[1] = tc_rows_sequence;
  return o;
}

#endif
