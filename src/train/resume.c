/* resume.c - compares the settings and the data of a resumed run with those of the run
 * that saved its checkpoint. config/options.def says for each option whether a change is refused,
 * warned about or free. Of the data the tokens are compared, not the names: files may move. */
#include "src/train/parts.h"
#include "src/base/hash.h"
#include "src/coll/selection.h"
#include "src/token/token.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The configuration in the checkpoint; NULL if no run had it: an import has no version. */
static struct tc_config *saved_config(const struct tc_ckpt_meta *meta)
{
  struct tc_config *was = NULL;
  struct tc_err err;
  if (!*meta->version || !strstr(meta->config, "[train]")) return NULL;
  if (tc_config_saved(&was, meta->config, 0, NULL, &err) < 0) return NULL;
  tc_seeds_fill(was);
  return was;
}

void tc_resume_order(struct tc_train *t, const struct tc_ckpt_meta *meta)
{
  enum tc_data_order *order = &t->own.data_order;
  struct tc_config *was = meta && *order == TC_ORDER_BY_RUN ? saved_config(meta) : NULL;
  if (was) *order = was->data_order;
  if (*order == TC_ORDER_BY_RUN) *order = TC_ORDER_PERMUTATION;
  tc_config_free(was);
}

int tc_resume_check(const struct tc_train *t, const struct tc_ckpt_meta *meta, const char *path,
                    struct tc_err *err)
{
  struct tc_config *was = saved_config(meta);
  struct tc_config_change x;
  char *word = tc_shell_word(path);
  int rc = 0;
  for (int i = 0; was && !rc && (i = tc_config_next_change(was, t->run.cfg, i, &x)) >= 0; i++)
    if (x.resume == TC_RESUME_REFUSED)
      rc = tc_fail(err, TC_EUSER, "%s was saved with %s = %s, and this run has %s: set it as it "
                   "was, or begin a new run from its weights: another run.out, with ckpt.from = %s", path, x.name,
                   x.was, x.is, word);
  tc_config_free(was);
  free(word);
  return rc;
}

/* Whether the first of the steps after `from` up to `to` has the same rate with both, and LOOKS more of them, or all. */
static bool same_between(const struct tc_rate *a, const struct tc_rate *b, int64_t from, int64_t to)
{
  enum { LOOKS = 1000 };
  for (int64_t i = 0; i <= LOOKS && from < to; i++) {
    const int64_t step = i ? from + tc_ceil_div((to - from) * i, LOOKS) : from + 1;
    if ((float)tc_rate_at(a, step) != (float)tc_rate_at(b, step)) return false;
  }
  return true;
}

/* Whether the steps after `from` have the same learning rate with both: before and after each turn of either schedule. */
static bool same_rate(const struct tc_config *a, const struct tc_config *b, int64_t from, int64_t steps)
{
  const struct tc_rate one = tc_rate_of(a), other = tc_rate_of(b);
  const int64_t turn[] = { one.warmup, other.warmup, one.steps - one.cooldown, other.steps - other.cooldown };
  for (size_t i = 0; i < sizeof turn / sizeof *turn; i++)
    if (!same_between(&one, &other, from, TC_MIN(turn[i], steps)) || !same_between(&one, &other, TC_MAX(from, turn[i]), steps))
      return false;
  return true;
}

/* How the training data differ from those that `data` is of, as tc_resume_data wrote it: "had 5 tokens, now have 6". NULL:
 * they do not, or it is not known. Owned. */
static char *data_change(const struct tc_train *t, const char *data)
{
  struct tc_data_identity was, is = t->batches.id;
  if (sscanf(data, "tokens %" SCNd64 " hash %" SCNx64, &was.tokens, &was.hash) != 2) return NULL;
  if (was.tokens != is.tokens)
    return tc_sprintf("had %lld tokens, now have %lld", (long long)was.tokens, (long long)is.tokens);
  return was.hash == is.hash ? NULL : tc_sprintf("have changed, though not in length (%lld tokens)", (long long)is.tokens);
}

static void warn_of_data(const struct tc_train *t, const char *data)
{
  char *change = data_change(t, data);
  if (change) tc_warn("the training data %s: from here on each step sees different samples", change);
  free(change);
}

char *tc_resume_data(const struct tc_train *t)
{
  const struct tc_train_tokenizer *k = &t->tokenizer;
  char tokenizer[80] = "";
  if (k->end >= 0) tc_text_add(tokenizer, sizeof tokenizer, " " TC_END_NOTE, k->end);
  if (k->hash) tc_text_add(tokenizer, sizeof tokenizer, " " TC_TOKENIZER_NOTE, k->hash);
  else if (k->is_bytes) tc_text_add(tokenizer, sizeof tokenizer, " " TC_BYTES_NOTE);
  return tc_sprintf("tokens %" PRId64 " hash %016" PRIx64 "%s", t->batches.id.tokens, t->batches.id.hash, tokenizer);
}

/* oneDNN and compilers add up in orders of their own. */
static void warn_of_stack(const struct tc_train *t, const char *was)
{
  if (*was && strcmp(was, t->run.stack))
    tc_warn("the checkpoint was saved with other versions (%s; now %s): from here on losses may "
            "differ in their last digits", was, t->run.stack);
}

char *tc_resume_mesh(const struct tc_train *t)
{
  char mesh[TC_MESH_TEXT];
  return tc_strdup(tc_mesh_text(mesh, t->run.mesh->size, "", " "));
}

/* Adds to the hash on which nodes the members of a rank's group on a set are, where the order of its sums depends on that.
 * False: it does not. */
static bool hash_group(uint64_t *hash, const struct tc_run *r, int rank, int set)
{
  struct tc_members x = tc_mesh_members(r->mesh, rank, r->mesh->group[set].axes);
  const bool matters = x.partial && x.size > 2 && !r->native[set];
  *hash = tc_hash64_add(tc_hash64_add(*hash, (uint64_t)set), (uint64_t)x.spread);
  for (int i = 0; i < x.size && x.nodes && matters; i++) *hash = tc_hash64_add(*hash, (uint64_t)x.nodes->row[i]);
  tc_members_done(&x);
  return matters;
}

/* Nodes are numbered in each group in the order of their first ranks: their names do not matter. The table of algorithms counts
 * by its rows of sums, whatever its file is called. */
char *tc_resume_nodes(const struct tc_train *t)
{
  const struct tc_mesh *m = t->run.mesh;
  uint64_t hash = tc_hash64("nodes");
  bool any = false;
  for (int s = 0; s < TC_SETS; s++)
    for (int i = 0; i < m->world && m->group[s].named; i++)
      if (tc_mesh_index(m, i, m->group[s].axes) == 0) any |= hash_group(&hash, &t->run, i, s);
  const uint64_t rows = tc_selection_hash(m->selection, true);
  if (rows != tc_selection_hash(NULL, true)) hash = tc_hash64_add(hash, rows);
  return any ? tc_sprintf("%d nodes %016" PRIx64, m->n_nodes, hash) : tc_strdup("");
}

/* Another layout rounds otherwise anyway, and the line of changes has it; programs of before did not say on which nodes. */
static void warn_of_nodes(const struct tc_train *t, const struct tc_ckpt_meta *meta)
{
  if (!*meta->version || !*meta->nodes) return;
  char *mesh = tc_resume_mesh(t), *is = tc_resume_nodes(t);
  const bool alike = !strcmp(meta->mesh, mesh) && !strcmp(meta->system, t->run.opts.system->name);
  if (alike && strcmp(meta->nodes, is))
    tc_warn("ranks are on other nodes together than when the checkpoint was saved, or run.sums, run.comm or the rows of "
            "run.collectives differ, so their sums are added in another order: from here on losses may differ in their last "
            "digits");
  TC_FREE(mesh, is);
}

/* One line of all that differs, whether it matters or not: "layout was pp1 dp2 tp1 ddp, is ...; train.lr was ...". */
static void log_changes(const struct tc_train *t, const struct tc_ckpt_meta *meta, const struct tc_config *was)
{
  char *text = NULL, *mesh = tc_resume_mesh(t);
  size_t size = 0;
  struct tc_config_change x;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  if (strcmp(meta->mesh, mesh) || strcmp(meta->system, t->run.opts.system->name))
    fprintf(f, "; layout was %s %s, is %s %s", meta->mesh, meta->system, mesh, t->run.opts.system->name);
  for (int i = 0; was && (i = tc_config_next_change(was, t->run.cfg, i, &x)) >= 0; i++)
    fprintf(f, "; %s was %s, is %s", x.name, *x.was ? x.was : "empty", *x.is ? x.is : "empty");
  if (fclose(f)) TC_ASSERT(!"out of memory for a line of changes");
  if (*text) tc_log("changed since step %lld was saved: %s", (long long)meta->step, text + 2);
  TC_FREE(text, mesh);
}

/* The number of the first option from number `from` on that changes what steps after `step` up to `steps` give, and its
 * values; -1. mixed: `was` at first; its options become those of now one by one, to see which of them change the rate. */
static int next_difference(const struct tc_config *was, const struct tc_config *is, struct tc_config *mixed, int from,
                           int64_t step, int64_t steps, struct tc_config_change *x)
{
  const bool same = same_rate(was, is, step, steps);
  for (int i = from; (i = tc_config_next_change(was, is, i, x)) >= 0; i++) {
    const struct tc_config before = *mixed;
    if (x->of_stage && x->resume != TC_RESUME_FREE) return i;
    if (x->resume == TC_RESUME_RATE) tc_config_copy(mixed, is, i);
    if (x->resume == TC_RESUME_SAMPLES || x->resume == TC_RESUME_MATH ||
        (x->resume == TC_RESUME_BEGIN && step == 0) || (x->resume == TC_RESUME_RATE && !same && !same_rate(&before, mixed, step, steps))) return i;
  }
  return -1;
}

void tc_resume_say(const struct tc_train *t, const struct tc_ckpt_meta *meta)
{
  static const char *const what[] = {
    [TC_RESUME_SAMPLES] = "each step sees different samples",
    [TC_RESUME_RATE] = "the learning rate differs",
    [TC_RESUME_MATH] = "the arithmetic of a step differs" };
  const struct tc_config *is = t->run.cfg;
  struct tc_config *was = saved_config(meta), mixed;
  struct tc_config_change x;
  if (*meta->version) log_changes(t, meta, was);
  warn_of_data(t, meta->data);
  warn_of_stack(t, meta->stack);
  warn_of_nodes(t, meta);
  if (!was) return;
  mixed = *was;
  for (int i = 0; (i = next_difference(was, is, &mixed, i, meta->step, is->train_steps, &x)) >= 0; i++)
    tc_warn("%s was %s, is %s: from here on %s", x.name, x.was, x.is, what[x.resume]);
  tc_config_free(was);
}

/* "; the training data had ...; train.lr was 1, is 2": what gives steps after `from` up to `to` other results; without `rates`
 * only what does so at equal rates. Cut off if it is long. */
static void list_differences(const struct tc_train *t, const struct tc_ckpt_meta *meta, int64_t from, int64_t to, bool rates,
                             char *text, size_t size)
{
  struct tc_config *was = saved_config(meta), mixed;
  struct tc_config_change x;
  char *data = was ? data_change(t, meta->data) : NULL;
  if (data) tc_text_add(text, size, "; the training data %s", data);
  free(data);
  if (was) mixed = *was;
  for (int i = 0; was && (i = next_difference(was, t->run.cfg, &mixed, i, from, to, &x)) >= 0; i++) {
    /* Not the user's choice, but that of the device of each start. */
    if (!strcmp(x.name, "train.precision") && t->precision_by_device) continue;
    if (x.resume == TC_RESUME_RATE && !rates) continue;
    tc_text_add(text, size, "; %s was %.60s, is %.60s", x.name, *x.was ? x.was : "empty", *x.is ? x.is : "empty");
  }
  tc_config_free(was);
}

/* No step is left: what they were made with is what is asked for now, or it is refused. */
static int check_finished(const struct tc_train *t, const struct tc_ckpt_meta *meta, struct tc_err *err)
{
  char text[500] = "";
  list_differences(t, meta, 0, meta->step, true, text, sizeof text);
  if (!*text) return 0;
  const char *more = tc_stop_if_met(&t->stop_if) ? "another train.stop_if"
                     : meta->step < t->run.cfg->train_steps ? "a later train.stop_at" : "more train.steps";
  return tc_fail(err, TC_EUSER, "nothing is trained: %.200s has all its steps, %lld, made with other settings: %s. Another run.out "
                 "trains with these, ckpt.resume = no starts anew in this folder, and %s with ckpt.changed = accept goes on "
                 "from there", t->out, (long long)meta->step, text + 2, more);
}

int tc_resume_changed(const struct tc_train *t, const struct tc_ckpt_meta *meta, struct tc_err *err)
{
  char text[500] = "";
  if (meta->step >= tc_last_step(t->run.cfg) || tc_stop_if_met(&t->stop_if)) return check_finished(t, meta, err);
  if (t->run.cfg->ckpt_changed == TC_CHANGED_ACCEPT) return 0;
  list_differences(t, meta, meta->step, t->run.cfg->train_steps, true, text, sizeof text);
  if (!*text) return 0;
  return tc_fail(err, TC_EUSER, "%.200s was begun with other settings, and has %lld steps: %s. Set them as they were, or take "
                 "another run.out; ckpt.changed = accept goes on from there with the new ones", t->out, (long long)meta->step,
                 text + 2);
}

int tc_resume_branch(const struct tc_train *t, const struct tc_ckpt_meta *meta, const char *path, struct tc_err *err)
{
  char text[500] = "";
  if (t->run.cfg->ckpt_changed == TC_CHANGED_ACCEPT) return 0;
  list_differences(t, meta, meta->step, t->run.cfg->train_steps, false, text, sizeof text);
  if (!*text) return 0;
  return tc_fail(err, TC_EUSER, "%.300s is of a run with other settings: %s. With ckpt.from_state = all a run may have another "
                 "schedule; ckpt.changed = accept goes on with all of these, ckpt.from_state = weights begins anew", path,
                 text + 2);
}
