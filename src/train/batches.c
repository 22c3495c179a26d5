/* batches.c - the batches of a rank, and data that fail or change under a run.
 *
 * - A batch is read in the middle of a step, on one rank. If that fails, the other ranks already
 *   wait for this one's transfers, so it continues with tokens 0; the control reduction at the end
 *   of the step tells all ranks, and the run ends.
 * - A state is saved only after all ranks have found every file as it was at the start. So a
 *   checkpoint never holds what was trained on other data. */
#include "src/data/documents.h"
#include "src/train/impl.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

int tc_train_data_open(struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->run.cfg;
  const struct tc_model *m = &t->run.opts.model;
  tc_at_file("opening the data", NULL);
  if (!c->data_train.n)
    return tc_fail(err, TC_EUSER, "data.train is empty: name the training files");
  if (c->data_documents == TC_DOCUMENTS_MASK)
    TC_TRY(tc_documents_end(&t->batches.end_token, c->data_end_token, c->data_train.item, c->data_train.n,
                            c->data_format, m->vocab, err));
  bool split = c->data_val.n == 0;
  TC_TRY(tc_data_open(&t->batches.train, c->data_train.item, c->data_train.n, c->data_format,
                      split ? 1 : 0, m->context, m->vocab, err));
  return tc_data_open(&t->batches.val, split ? c->data_train.item : c->data_val.item,
                      split ? c->data_train.n : c->data_val.n, c->data_format, split ? 2 : 0,
                      m->context, m->vocab, err);
}

/* Nodes may have copies of their own, and where these differ, so do the samples. */
int tc_train_data_same(struct tc_train *t, struct tc_err *err)
{
  enum { TRAIN, TRAIN_HASH, VAL, VAL_HASH, EACH };
  struct tc_data_identity train = { 0 }, val = { 0 };
  int rc = tc_data_identity(t->batches.train, &train, err);
  t->batches.id = train;
  if (!rc) rc = tc_data_identity(t->batches.val, &val, err);
  TC_TRY(tc_run_agree(&t->run, rc, err));
  const int world = t->run.mesh->world;
  const int64_t mine[EACH] = { train.tokens, (int64_t)train.hash, val.tokens, (int64_t)val.hash };
  int64_t *all = tc_malloc((size_t)(world * EACH) * sizeof *all);
  rc = tc_comm_all_i64(t->run.world, mine, EACH, all, err);
  for (int r = 1; r < world && rc == 0; r++)
    for (int k = TRAIN; k <= VAL && rc == 0; k += VAL) {
      const int64_t *a = all + k, *b = all + r * EACH + k;
      if (a[0] != b[0] || a[1] != b[1])
        rc = tc_fail(err, TC_EUSER, "%s and %s read different %s data (%lld and %lld tokens): "
                     "every node needs the same files", t->run.who[r], t->run.who[0],
                     k == TRAIN ? "training" : "validation", (long long)b[0], (long long)a[0]);
    }
  free(all);
  return rc;
}

void tc_train_data_from(struct tc_train *t, int64_t eval_batch)
{
  t->batches.eval_batch = eval_batch;
}

static int read_batch(struct tc_train *t, const struct tc_runtime *rt, int64_t b0, int64_t n,
                      int32_t *tokens, int32_t *targets, struct tc_err *err)
{
  const int64_t T = t->run.opts.model.context;
  if (t->batches.eval_batch < 0)
    return tc_data_train(t->batches.train, rt->seed, rt->step + t->rollback.skipped, b0, n, tokens,
                         targets, err);
  for (int64_t i = 0; i < n; i++) {              /* windows beyond the last count for nothing */
    int64_t w = t->batches.eval_batch * t->run.opts.gpt.batch + b0 + i;
    if (w < tc_data_windows(t->batches.val)) {
      TC_TRY(tc_data_window(t->batches.val, w, tokens + i * T, targets + i * T, err));
    } else {
      memset(tokens + i * T, 0, (size_t)T * sizeof *tokens);
      memset(targets + i * T, -1, (size_t)T * sizeof *targets);
    }
  }
  return 0;
}

/* Rows may begin and end inside a sequence: an annotation file can split tokens over any axis. */
static int read_rows(struct tc_train *t, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                     int32_t *tokens, int32_t *targets, int32_t *starts, struct tc_err *err)
{
  const int64_t T = t->run.opts.model.context, b0 = row0 / T, n = (row0 + rows + T - 1) / T - b0;
  if (rows == n * T) {
    TC_TRY(read_batch(t, rt, b0, n, tokens, targets, err));
    if (starts) tc_documents_starts(tokens, rows, T, t->batches.end_token, starts);
    return 0;
  }
  int32_t *whole = tc_malloc((size_t)(3 * n * T) * sizeof *whole), *part[3] = { tokens, targets, starts };
  int rc = read_batch(t, rt, b0, n, whole, whole + n * T, err);
  if (rc == 0) tc_documents_starts(whole, n * T, T, t->batches.end_token, whole + 2 * n * T);
  for (int k = 0; k < 3 && rc == 0; k++)
    if (part[k]) memcpy(part[k], whole + k * n * T + (row0 - b0 * T), (size_t)rows * sizeof *whole);
  free(whole);
  return rc;
}

void tc_train_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                   int32_t *tokens, int32_t *targets, int32_t *starts)
{
  struct tc_train *t = ctx;
  tc_at("reading a batch", NULL, NULL, rt->mb);
  if (t->batches.err.status == 0 &&
      read_rows(t, rt, row0, rows, tokens, targets, starts, &t->batches.err) == 0) return;
  memset(tokens, 0, (size_t)rows * sizeof *tokens);
  memset(targets, 0, (size_t)rows * sizeof *targets);
  if (starts) memset(starts, 0, (size_t)rows * sizeof *starts);
}

static int check_files(struct tc_train *t, struct tc_err *err)
{
  const bool warn = t->run.rank == 0;
  if (t->batches.err.status < 0) return tc_fail(err, TC_EUSER, "%s", t->batches.err.text);
  tc_at_file("looking whether the data changed", NULL);
  TC_TRY(tc_data_check(t->batches.train, warn, err));
  return tc_data_check(t->batches.val, warn && t->run.cfg->data_val.n, err);
}

int tc_train_data_check(struct tc_train *t, struct tc_err *err)
{
  int rc = tc_run_agree(&t->run, check_files(t, err), err);
  if (rc >= 0 || rc == TC_EPEER) return rc;
  struct tc_err why = *err;
  if (tc_train_save_end(t, true, false, err) == TC_EPEER) return TC_EPEER;
  if (t->ckpt.saved_step < 0)
    return tc_fail(err, TC_EUSER, "%.600s. No checkpoint was saved; run the same command again to "
                   "start anew", why.text);
  return tc_fail(err, TC_EUSER, "%.600s. What was trained after step %lld is not saved, since it may "
                 "be of other data. Restore the file and run the same command again to resume from "
                 "there; for changed data start a new run (another run.out)", why.text,
                 (long long)t->ckpt.saved_step);
}
