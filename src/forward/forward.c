/* forward.c - the model on its ranks, and the loss of each token of a batch.
 *
 * A batch is the micro-batches that a run of the program takes: one, or during training those that fill a pipeline.
 * Every rank has all of its tokens and takes the rows that its placement of `tokens` leaves. The losses lie where the
 * loss head left them; each element has one owner (tc_owned_boxes), and a sum over all ranks, in which the others have
 * zeros, hands them out. */
#include "src/forward/impl.h"
#include "src/foreign/digest.h"
#include "src/graph/shard_box.h"

#include <stdlib.h>
#include <string.h>

#define SHOW_NS INT64_C(5000000000)    /* between two progress lines */

/* All programs of a run have one order. */
static const struct tc_row_order *rows_of(const struct tc_forward *x)
{
  int kind = 0;
  while (!x->run.prog[kind]) kind++;
  return &x->run.prog[kind]->graph->rows;
}

/* Rows are tokens of the batch, which has them in the natural order. */
void tc_forward_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows, int32_t *tokens,
                     int32_t *targets, int32_t *starts)
{
  const struct tc_forward *x = ctx;
  const struct tc_row_order *order = rows_of(x);
  (void)rt;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = tc_natural_row(order, row0 + i);
    tokens[i] = x->batch.tokens[at];
    targets[i] = x->batch.targets[at];
    if (starts) starts[i] = x->batch.starts ? x->batch.starts[at] : 0;
  }
}

/* A model, with adapters of its own if it has some. */
static int load_all(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  return tc_run_load(&((struct tc_forward *)ctx)->run, c, TC_LOAD_OTHER_CONTEXT, err);
}

static int load_base(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  return tc_run_load(&((struct tc_forward *)ctx)->run, c, TC_LOAD_OTHER_CONTEXT | TC_LOAD_BASE, err);
}

static int load_adapters(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  return tc_run_load(&((struct tc_forward *)ctx)->run, c, TC_LOAD_OTHER_CONTEXT | TC_LOAD_ADAPTERS, err);
}

/* Whether adapters of the path a->adapter, which note what they belong to, can be beside what was loaded: base, or a->foreign. */
static int check_base(const struct tc_run *r, const struct tc_forward_args *a, const char *known, struct tc_ckpt *base,
                      struct tc_err *err)
{
  uint64_t digest = 0;
  if (*known) TC_TRY(tc_run_base_digest(r, base, a->foreign, &digest, err));
  return tc_base_check(known, a->adapter, digest, a->path, base && tc_has_adapters(base), err);
}

static int add_adapters(struct tc_forward *x, const struct tc_forward_args *a, struct tc_ckpt *base, struct tc_err *err)
{
  const struct tc_run *r = &x->run;
  struct tc_ckpt *c = NULL;
  if (a->peft) {
    TC_TRY(check_base(r, a, tc_adapter_base(a->peft), base, err));
    return tc_run_agree(r, tc_run_load_foreign(r, a->peft, TC_LOAD_ADAPTERS, err), err);
  }
  TC_TRY(tc_ckpt_load_from(&c, a->adapter, load_adapters, x, r->world, r->rank_names, err));
  const bool same = base && tc_ckpt_is_same(base, c);
  char known[TC_DIGEST + 1];
  int rc = same ? 0 : tc_run_known_base(r, c, known, err);
  if (rc == 0 && !same) rc = check_base(r, a, known, base, err);
  tc_ckpt_close(c);
  return rc;
}

static int load_weights(struct tc_forward *x, const struct tc_forward_args *a, struct tc_err *err)
{
  const struct tc_run *r = &x->run;
  struct tc_ckpt *c = NULL;
  int rc;
  if (a->foreign) rc = tc_run_agree(r, tc_run_load_foreign(r, a->foreign, a->adapter ? TC_LOAD_BASE : 0, err), err);
  else rc = tc_ckpt_load_from(&c, a->path, a->adapter ? load_base : load_all, x, r->world, r->rank_names, err);
  if (rc == 0 && a->adapter) rc = add_adapters(x, a, c, err);
  if (rc == 0 && r->rank == 0 && r->opts.gpt.lora.rank)
    tc_log("adapters of rank %lld, scale %.4g, beside the model: %s", (long long)r->opts.gpt.lora.rank,
           (double)r->opts.gpt.lora.factor, a->adapter ? a->adapter : "its own");
  tc_ckpt_close(c);
  return rc;
}

int tc_forward_new(struct tc_forward **out, const struct tc_forward_args *a, struct tc_err *err)
{
  struct tc_forward *x = *out = tc_calloc(1, sizeof *x);
  struct tc_run *r = &x->run;
  *r = (struct tc_run){ .cfg = a->cfg, .ranks = a->ranks, .rank_names = a->rank_names, .rank = a->rank,
                        .threads = a->threads, .hub = a->hub, .mpi = a->mpi, .use = a->use };
  TC_TRY(tc_run_layout(r, err));
  r->opts.prefill = a->prefill;
  r->opts.gpt.documents |= a->documents;
  x->kind = TC_EVAL;
  x->sequences = r->opts.gpt.batch;
  TC_TRY(tc_run_comms(r, NULL, err));
  int rc = tc_run_agree(r, tc_run_device(r, err), err);
  if (rc == 0) rc = tc_run_precision(r, err);
  if (rc == 0) rc = tc_run_native(r, err);
  if (rc == TC_EPEER) return rc;
  TC_TRY(tc_run_agree(r, rc < 0 ? rc : tc_run_programs(r, tc_forward_fill, x, err), err));
  TC_TRY(tc_run_tune(r, NULL, false, err));
  return load_weights(x, a, err);
}

void tc_forward_of_training(struct tc_forward **out, const struct tc_run *training)
{
  struct tc_forward *x = *out = tc_calloc(1, sizeof *x);
  x->run = *training;
  x->borrowed = true;
  x->kind = TC_TASKS;
  x->sequences = training->opts.gpt.batch / training->mesh->size[TC_MB] * training->prog[TC_TASKS]->actions->n_mb;
}

void tc_forward_free(struct tc_forward *x, bool lost)
{
  if (!x) return;
  if (!x->borrowed) {
    if (!tc_run_comms_free(&x->run, false) || lost) return;   /* still in use; the process is about to end */
    tc_run_programs_free(&x->run);
    tc_run_free(&x->run);
  }
  free(x);
}

int64_t tc_forward_sequences(const struct tc_forward *x) { return x->sequences; }
int64_t tc_forward_context(const struct tc_forward *x) { return x->run.opts.model.context; }
const struct tc_run *tc_forward_run(const struct tc_forward *x) { return &x->run; }

/* This rank's own losses of a micro-batch into loss[], at their rows in it. */
static void take_own(struct tc_forward *x, int32_t mb, float *loss)
{
  const struct tc_run *r = &x->run;
  const int32_t id = r->prog[x->kind]->graph->nll;
  const struct tc_tensor *t = &r->prog[x->kind]->graph->tensor[id];
  struct tc_box own[TC_BOXES], stored[TC_BOXES];
  const int n_own = tc_owned_boxes(t, r->mesh, r->rank, own), n = tc_stored_boxes(t, r->mesh, r->rank, stored);
  const float *from = tc_exec_tensor_of(r->exec, tc_run_index(r, x->kind), id, mb);
  for (int s = 0; s < n; s++) {
    const int64_t begin = stored[s].start[0], end = begin + stored[s].count[0];
    for (int i = 0; i < n_own; i++) {
      const int64_t lo = TC_MAX(begin, own[i].start[0]), hi = TC_MIN(end, own[i].start[0] + own[i].count[0]);
      if (lo < hi) r->device->ops->copy(r->device, loss + lo, from + (lo - begin), (hi - lo) * (int64_t)sizeof *loss);
    }
    from += stored[s].count[0];
  }
}

int tc_forward_losses(struct tc_forward *x, const struct tc_forward_batch *batch, float *loss, struct tc_err *err)
{
  const struct tc_runtime rt = { .step = 1 };
  const int64_t n = tc_forward_sequences(x) * tc_forward_context(x);
  const struct tc_part part = { .src = loss, .dst = loss, .count = n, .block = n };
  const struct tc_coll_args sum = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .red = TC_SUM, .n_parts = 1,
                                    .parts = &part, .what = "the losses of a batch" };
  TC_ASSERT(!batch->starts || x->run.prog[x->kind]->graph->starts >= 0);
  x->batch = *batch;
  TC_TRY(tc_exec_run(x->run.exec, tc_run_index(&x->run, x->kind), &rt, err));
  memset(loss, 0, (size_t)n * sizeof *loss);
  const int32_t micro_batches = x->run.prog[x->kind]->actions->n_mb;
  for (int32_t mb = 0; mb < micro_batches; mb++) take_own(x, mb, loss + mb * (n / micro_batches));
  TC_TRY(tc_comm_run(x->run.world, &sum, err));
  const struct tc_row_order *order = rows_of(x);
  if (order->cp <= 1) return 0;
  float *natural = tc_malloc((size_t)n * sizeof *natural);
  for (int64_t i = 0; i < n; i++) natural[tc_natural_row(order, i)] = loss[i];
  memcpy(loss, natural, (size_t)n * sizeof *natural);
  free(natural);
  return 0;
}

/* ---- progress -------------------------------------------------------------------------------- */

struct tc_forward_progress tc_forward_begin(const char *name, const char *unit, int64_t n)
{
  const int64_t now = tc_now_ns();
  return (struct tc_forward_progress){ .name = name, .unit = unit, .n = n, .begin_ns = now, .shown_ns = now };
}

void tc_forward_show(const struct tc_forward *x, struct tc_forward_progress *p, int64_t done)
{
  const int64_t now = tc_now_ns();
  if (!p->name || x->run.rank != 0 || now - p->shown_ns < SHOW_NS) return;
  const double rate = (double)done / ((double)(now - p->begin_ns) * 1e-9);
  tc_log("%s: %.0f %%, %.4g %s/s, %.0f s left", p->name, 100.0 * (double)done / (double)p->n, rate, p->unit,
         (double)(p->n - done) / rate);
  p->shown_ns = now;
}
