/* restore.c - restores the run's state from a checkpoint, or makes the initial one: at the start and, as often as
 * train.rollback allows, after a bad step (rollback.c). Each rank reads the boxes that it stores, from whichever files
 * have them. */
#include "io/ckpt/ckpt.h"
#include "src/foreign/digest.h"
#include "src/train/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- at the start ---------------------------------------------------------------------- */

/* What tc_ckpt_load runs on each rank. The guard counts this start once, with the newest
 * checkpoint's step, before anything is loaded, so that a crash while loading counts too. */
struct loading {
  struct tc_train *t;
  bool guarded;
  bool resumes;                  /* the state of a run that goes on: this one, or a branch of another */
  bool another;                  /* another run's: what it noted of its validations does not end this one */
  unsigned how;                  /* tc_run_load's */
};

/* What a checkpoint says of the loop; "": nothing happened yet. */
static int take_note(struct tc_train *t, const char *note, struct tc_err *err)
{
  tc_stop_if_parse(&t->stop_if, note);
  return tc_rollback_parse(t, note, err);
}

/* Before the state is read, which may take long. */
static int check_resumes(struct loading *l, const struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_train *t = l->t;
  const struct tc_ckpt_meta *meta = tc_ckpt_meta(c);
  tc_resume_order(t, meta);
  TC_TRY(tc_train_order_check(t, err));
  TC_TRY(tc_resume_check(t, c, err));
  if (l->another) return tc_resume_branch(t, meta, tc_ckpt_path(c), err);
  tc_stop_if_parse(&t->stop_if, meta->loop);
  return tc_resume_changed(t, meta, err);
}

/* Whether the weights beside the adapters of a checkpoint of this run come from there, too. Without ckpt.base the next one does
 * not have them, so that they have to be elsewhere (load_base). */
static bool has_own_base(const struct tc_train *t, const struct tc_ckpt *c)
{ return t->run.cfg->train_lora && t->run.cfg->ckpt_base && !tc_base_noted(c).elsewhere; }

/* What is loaded of a checkpoint: of ckpt.from as load.how says, of this run's own all but what load_base loads. */
static unsigned what_of(const struct loading *l, const struct tc_ckpt *c)
{
  const bool leaves = l->t->run.cfg->train_lora && !(l->how & TC_LOAD_BASE) && !has_own_base(l->t, c);
  return l->how | (leaves ? TC_LOAD_ADAPTERS : 0);
}

static int load_checked(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  struct loading *l = ctx;
  if (!l->guarded && l->t->run.rank == 0)
    TC_TRY(tc_train_guard(l->t, tc_ckpt_meta(c)->step, err));
  l->guarded = true;
  TC_TRY(tc_train_tokenizer_check(l->t, c, err));
  TC_TRY(tc_run_check_model(&l->t->run, c, l->how | (l->resumes ? TC_LOAD_OTHER_CONTEXT : 0), err));
  if (l->resumes) TC_TRY(check_resumes(l, c, err));
  TC_TRY(tc_run_load(&l->t->run, c, what_of(l, c), err));
  TC_TRY(take_note(l->t, l->how & TC_LOAD_WEIGHTS ? "" : tc_ckpt_meta(c)->loop, err));
  if (l->another) tc_stop_if_parse(&l->t->stop_if, "");
  return 0;
}

/* Weights without an optimizer's state, which an import has at step 0 alone (src/foreign/import.c). */
static bool is_import(const struct tc_ckpt_meta *meta)
{ return meta->step == 0 && !*meta->version; }

static void log_loaded(const struct tc_train *t)
{
  if (t->run.rank) return;
  tc_log("%s %s, step %lld%s", t->ckpt.weights_alone ? "weights from" : "resumed from", t->ckpt.loaded,
         (long long)t->ckpt.loaded_step,
         t->ckpt.imported ? ": imported weights; the optimizer's state starts at zero" : "");
}

/* After a load: makes the weights in the working precision. Closes c. */
static int refresh(struct tc_train *t, struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_runtime rt = { 0 };
  t->ckpt.saved_step = tc_ckpt_meta(c)->step;
  tc_train_tokenizer_take(t, c);
  if (!t->ckpt.tuned && tc_ckpt_meta(c)->tuned) t->ckpt.tuned = tc_strdup(tc_ckpt_meta(c)->tuned);
  tc_ckpt_close(c);
  return tc_exec_run(t->run.exec, TC_REFRESH, &rt, err);
}

/* ---- what stands beside adapters ------------------------------------------------------- */

/* Whether ckpt.from is the step that a checkpoint notes, or its folder. */
static bool is_noted(const char *from, const char *noted)
{
  char *real = *from && *noted ? tc_real_path(from) : NULL, *folder = real ? tc_folder_of(noted) : NULL;
  const bool is = real && (!strcmp(real, folder) || !strcmp(real, noted));
  TC_FREE(real, folder);
  return is;
}

/* Where the weights beside this run's adapters are: in the step that its checkpoint notes, if ckpt.from is not given or is the
 * folder of that step, of which another may be the newest by now; else, or if that step is gone, in ckpt.from. *path is owned by
 * the caller. The same on all ranks. */
static int place_of_base(const struct tc_train *t, const char *noted, char **path, struct tc_err *err)
{
  const char *given = t->run.cfg->ckpt_from;
  int64_t there = *noted && (!*given || (is_noted(given, noted) && tc_is_there(noted)));
  TC_TRY(tc_comm_max_i64(t->run.world, &there, 1, err));
  *path = tc_strdup(there ? noted : given);
  return 0;
}

/* Notes the weights that were read from c. */
static int note_base(struct tc_train *t, struct tc_ckpt *c, uint64_t *digest, struct tc_err *err)
{
  TC_TRY(tc_run_base_digest(&t->run, c, NULL, digest, err));
  char *path = tc_real_path(tc_ckpt_path(c));
  t->ckpt.base = tc_base_note(*digest, path ? path : tc_ckpt_path(c));
  free(path);
  return 0;
}

static int load_base_of_run(void *train, struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_train *t = train;
  return tc_run_load(&t->run, c, TC_LOAD_OTHER_CONTEXT | TC_LOAD_BASE, err);
}

static int check_given_model(void *train, struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_train *t = train;
  return tc_run_check_model(&t->run, c, TC_LOAD_OTHER_CONTEXT, err);
}

/* The weights beside the adapters of `own` come from there: those of another ckpt.from than it notes, if it is there, have to be
 * what they belong to. */
static int check_given(struct tc_train *t, struct tc_ckpt *own, struct tc_err *err)
{
  const char *given = t->run.cfg->ckpt_from;
  int64_t another = *given && tc_is_there(given) && !is_noted(given, tc_base_noted(own).path);
  struct tc_ckpt *c = NULL;
  char known[TC_DIGEST + 1];
  uint64_t digest;
  TC_TRY(tc_comm_max_i64(t->run.world, &another, 1, err));
  if (!another) return 0;
  int rc = tc_ckpt_load_from(&c, given, check_given_model, t, t->run.world, t->run.rank_names, err);
  if (rc == 0) rc = tc_run_known_base(&t->run, own, known, err);
  if (rc == 0) rc = tc_run_base_digest(&t->run, c, NULL, &digest, err);
  if (rc == 0) rc = tc_base_check(known, tc_ckpt_path(own), digest, tc_ckpt_path(c), false, err);
  tc_ckpt_close(c);
  return rc;
}

/* The weights beside the adapters of `own`, this run's, unless they were loaded with these. */
static int load_base(struct tc_train *t, struct tc_ckpt *own, struct tc_err *err)
{
  const struct tc_base noted = tc_base_noted(own);
  struct tc_ckpt *c = NULL;
  uint64_t digest;
  char *path;
  if (has_own_base(t, own)) return t->ckpt.base = tc_strdup(tc_ckpt_meta(own)->base), check_given(t, own, err);
  TC_TRY(place_of_base(t, noted.path, &path, err));
  int rc = *path && *noted.digest ? 0
    : tc_fail(err, TC_EUSER, "the weights beside the adapters of %s began at random, so that they are in no other checkpoint: "
              "ckpt.base = yes would fit", tc_ckpt_path(own));
  if (rc == 0) {
    rc = tc_ckpt_load_from(&c, path, load_base_of_run, t, t->run.world, t->run.rank_names, err);
    if (rc < 0 && rc != TC_EPEER)
      rc = tc_fail(err, rc, "the weights beside the adapters of %.300s: %s; ckpt.from may name another checkpoint of the same "
                   "weights", tc_ckpt_path(own), err->text);
  }
  if (rc == 0) rc = note_base(t, c, &digest, err);
  if (rc == 0) rc = tc_base_check(noted.digest, tc_ckpt_path(own), digest, tc_ckpt_path(c), false, err);
  tc_ckpt_close(c);
  free(path);
  return rc;
}

static int load_adapter_of_run(void *train, struct tc_ckpt *c, struct tc_err *err)
{
  const struct tc_train *t = train;
  return tc_run_load(&t->run, c, TC_LOAD_WEIGHTS | TC_LOAD_OTHER_CONTEXT | TC_LOAD_ADAPTERS, err);
}

/* Adapters of PEFT in place of the initial ones. */
static int load_peft(struct tc_train *t, struct tc_ckpt *base, uint64_t digest, struct tc_err *err)
{
  const char *path = t->run.cfg->ckpt_adapter;
  struct tc_config own = *t->run.cfg;            /* of this rank alone, as others of the process read the run's */
  struct tc_foreign *f = NULL;
  own.pool = tc_pool_new();
  int rc = tc_adapter_open(&f, path, &own, err);
  if (rc == 0) rc = tc_base_check(tc_adapter_base(f), path, digest, tc_ckpt_path(base), tc_has_adapters(base), err);
  if (rc == 0) rc = tc_run_load_foreign(&t->run, f, TC_LOAD_ADAPTERS, err);
  tc_foreign_close(f);
  tc_pool_free(own.pool);
  return tc_run_agree(&t->run, rc, err);
}

/* Adapters of ckpt.adapter in place of the initial ones, beside the base that is loaded, which may have them itself. */
static int load_adapter(struct tc_train *t, struct tc_ckpt *base, uint64_t digest, struct tc_err *err)
{
  const char *path = t->run.cfg->ckpt_adapter;
  struct tc_ckpt *c = NULL;
  if (tc_adapter_is(path)) return load_peft(t, base, digest, err);
  TC_TRY(tc_ckpt_load_from(&c, path, load_adapter_of_run, t, t->run.world, t->run.rank_names, err));
  const bool same = tc_ckpt_is_same(c, base);
  char known[TC_DIGEST + 1];
  int rc = same ? 0 : tc_run_known_base(&t->run, c, known, err);
  if (rc == 0 && !same) rc = tc_base_check(known, tc_ckpt_path(c), digest, tc_ckpt_path(base), tc_has_adapters(base), err);
  tc_ckpt_close(c);
  return tc_run_agree(&t->run, rc, err);
}

/* What stands beside adapters that begin is c. */
static int begin_adapters(struct tc_train *t, struct tc_ckpt *c, struct tc_err *err)
{
  uint64_t digest;
  TC_TRY(note_base(t, c, &digest, err));
  if (*t->run.cfg->ckpt_adapter) return load_adapter(t, c, digest, err);
  if (!tc_has_adapters(c)) return 0;
  return tc_fail(err, TC_EUSER, "%s has adapters beside its weights, which would be left: tercio ckpt export --merge makes a "
                 "model of both, ckpt.adapter = %.200s goes on from them", tc_ckpt_path(c), t->run.cfg->ckpt_from);
}

/* The same at the start. compare: the checkpoint is of a run with settings that may differ from this one's. */
static int resume_from(struct tc_train *t, struct tc_ckpt *c, bool compare, struct tc_err *err)
{
  t->ckpt.imported = is_import(tc_ckpt_meta(c));
  t->ckpt.loaded = tc_strdup(tc_ckpt_path(c));
  t->ckpt.loaded_step = tc_ckpt_meta(c)->step;
  log_loaded(t);
  if (t->run.rank == 0 && compare) tc_resume_say(t, tc_ckpt_meta(c));
  return refresh(t, c, err);
}

static int initialise(struct tc_train *t, struct tc_err *err)
{
  tc_resume_order(t, NULL);
  struct tc_runtime rt = { .seed = (uint64_t)t->run.cfg->train_seed_weights };
  t->ckpt.saved_step = -1;
  TC_TRY(take_note(t, "", err));
  return tc_exec_run(t->run.exec, TC_INIT, &rt, err);
}

/* Rank 0. Renames the checkpoints after `step`, where the run resumes: a restart must not load
 * them. */
static int set_aside(struct tc_train *t, int64_t step, struct tc_err *err)
{
  char tag[20];
  snprintf(tag, sizeof tag, "%llx", (unsigned long long)tc_now_ns());
  return tc_ckpt_set_aside(t->ckpt.dir, step, tag, NULL, "the run goes on from before it", err);
}

static void log_start(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const char *at = *c->ckpt_from ? "starting from ckpt.from" : "starting at step 0";
  if (c->ckpt_resume == TC_NO) tc_log("ckpt.resume = no: %s", at);
  else tc_log("no checkpoint in %s: %s", t->ckpt.dir, at);
}

/* The run goes on after the step of c, in the order of samples of c's run; or begins with its weights. */
static void begin_after(struct tc_train *t, const struct tc_ckpt *c)
{
  const bool alone = t->ckpt.weights_alone;
  t->ckpt.start_step = alone ? 0 : tc_ckpt_meta(c)->step;
  tc_resume_order(t, alone ? NULL : tc_ckpt_meta(c));
}

/* Whether a path is a checkpoint of this run's folder, or that folder. */
static bool is_own_folder(const struct tc_train *t, const char *path)
{
  char *own = tc_real_path(t->ckpt.dir), *from = tc_real_path(path), *above = from ? tc_folder_of(from) : NULL;
  const bool is = own && from && (strcmp(own, from) == 0 || strcmp(own, above) == 0);
  TC_FREE(own, from, above);
  return is;
}

/* Takes up this run's newest good checkpoint, or that of a step (not -1). *found: there was one. */
static int resume_own(struct tc_train *t, int64_t step, bool *found, struct tc_err *err)
{
  const bool accepts = t->run.cfg->ckpt_changed == TC_CHANGED_ACCEPT;
  struct loading l = { .t = t, .resumes = true, .how = accepts ? TC_LOAD_OTHER_CONTEXT : 0 };
  struct tc_ckpt *c = NULL;
  TC_TRY(tc_ckpt_load(&c, t->ckpt.dir, step, load_checked, &l, t->run.world, t->run.rank_names, err));
  *found = c != NULL;
  if (!c) return 0;
  begin_after(t, c);
  const int rc = t->run.cfg->train_lora ? load_base(t, c, err) : 0;
  if (rc == 0) return resume_from(t, c, true, err);
  tc_ckpt_close(c);
  return rc;
}

/* ckpt.resume = no sets checkpoints of this folder aside, so none of them can be where the run begins. */
static int check_own(const struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->run.cfg;
  const bool from = is_own_folder(t, c->ckpt_from);
  if (!from && !is_own_folder(t, c->ckpt_adapter)) return 0;
  return tc_fail(err, TC_EUSER, "%s = %.300s is of this run's own folder, whose checkpoints ckpt.resume = no sets aside; "
                 "ckpt.resume = STEP alone goes back to one of them%s", from ? "ckpt.from" : "ckpt.adapter",
                 from ? c->ckpt_from : c->ckpt_adapter, from ? "" : ", and another run.out begins with its adapters");
}

/* Begins with ckpt.from, which is not in this run's folder yet: with all of its state, or with its weights, beside the
 * initial state of all else. */
static int start_from(struct tc_train *t, struct tc_err *err)
{
  const enum tc_from_state state = t->run.cfg->ckpt_from_state;
  int64_t own = is_own_folder(t, t->run.cfg->ckpt_from);
  struct loading l = { .t = t, .guarded = true, .another = true, .how = TC_LOAD_OTHER_CONTEXT };
  struct tc_ckpt *c = NULL;
  TC_TRY(tc_comm_max_i64(t->run.world, &own, 1, err));
  if (t->run.cfg->train_lora && state == TC_STATE_ALL)
    return tc_fail(err, TC_EUSER, "ckpt.from_state = all: with train.lora ckpt.from has the weights beside the adapters, which are "
                   "taken alone; ckpt.from_state = weights would fit, and ckpt.adapter for adapters");
  t->ckpt.weights_alone = t->run.cfg->train_lora || state == TC_STATE_WEIGHTS || (state == TC_STATE_AUTO && !own);
  l.resumes = !t->ckpt.weights_alone;
  if (t->ckpt.weights_alone) {
    TC_TRY(initialise(t, err));
    l.how |= TC_LOAD_WEIGHTS | (t->run.cfg->train_lora ? TC_LOAD_BASE : 0);
  }
  TC_TRY(tc_ckpt_load_from(&c, t->run.cfg->ckpt_from, load_checked, &l, t->run.world, t->run.rank_names, err));
  begin_after(t, c);
  const int rc = t->run.cfg->train_lora ? begin_adapters(t, c, err) : 0;
  if (rc < 0) return tc_ckpt_close(c), rc;
  TC_TRY(resume_from(t, c, l.resumes, err));
  t->ckpt.saved_step = -1;
  t->ckpt.borrowed = true;
  return 0;
}

/* Begins with random weights, of which what does not train has to be saved. */
static int start_anew(struct tc_train *t, struct tc_err *err)
{
  const struct tc_config *c = t->run.cfg;
  if (*c->ckpt_adapter)
    return tc_fail(err, TC_EUSER, "ckpt.adapter = %.300s has adapters without the weights beside them: ckpt.from = CHECKPOINT "
                   "names those", c->ckpt_adapter);
  if (c->train_lora && !c->ckpt_base)
    return tc_fail(err, TC_EUSER, "train.lora: no checkpoint would have the weights beside the adapters: ckpt.from = CHECKPOINT "
                   "names those that a model was trained to, ckpt.base = yes would save random ones");
  return initialise(t, err);
}

int tc_train_restore(struct tc_train *t, struct tc_err *err)
{
  const int64_t how = t->run.cfg->ckpt_resume;
  const bool root = t->run.rank == 0;
  bool found = false;
  t->ckpt.begun_ns = tc_now_ns();
  if (how == TC_NO) TC_TRY(tc_run_agree(&t->run, check_own(t, err), err));
  if (how != TC_NO) TC_TRY(resume_own(t, how == TC_AUTO ? -1 : how, &found, err));
  /* Where the user chose the start, later checkpoints are not of this run: a rollback must not
   * load them. */
  int rc = how != TC_AUTO && root ? set_aside(t, found ? t->ckpt.start_step : -1, err) : 0;
  if (how != TC_AUTO) TC_TRY(tc_run_agree(&t->run, rc, err));
  if (found) return 0;
  if (root) log_start(t);
  TC_TRY(tc_run_agree(&t->run, root ? tc_train_guard(t, -1, err) : 0, err));
  return *t->run.cfg->ckpt_from ? start_from(t, err) : start_anew(t, err);
}

/* ---- after a bad step ------------------------------------------------------------------ */

/* The newest step below `before` that there is; -1: none. The same on all ranks. */
static int step_below(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  int64_t *steps = NULL;
  int n = t->run.rank == 0 ? tc_ckpt_list(t->ckpt.dir, &steps, err) : 0;
  *step = -1;
  for (int i = 0; i < n && *step < 0; i++)
    if (steps[i] < before) *step = steps[i];
  free(steps);
  TC_TRY(tc_run_agree(&t->run, TC_MIN(n, 0), err));
  return tc_comm_max_i64(t->run.world, step, 1, err);
}

/* The state of the newest good checkpoint below `before` or, where nothing was ever saved, the initial one: *step (0).
 * Later ones are set aside. */
static int go_back(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err)
{
  struct loading l = { .t = t, .guarded = true, .how = TC_LOAD_OTHER_CONTEXT };
  struct tc_ckpt *c = NULL;
  int tried = 0;
  for (; !c; before = *step, tried++) {
    TC_TRY(step_below(t, before, step, err));
    if (*step < 0) break;
    int rc = tc_ckpt_load(&c, t->ckpt.dir, *step, load_checked, &l, t->run.world, t->run.rank_names, err);
    if (rc == TC_EPEER || rc == TC_EUSER) return rc;   /* what can't be read is no reason to go further back */
    if (rc < 0 && t->run.rank == 0) tc_warn("%s; looking for an older one", err->text);
  }
  if (!c && tried)
    return tc_fail(err, TC_ENOCKPT, "%s: none of the %d checkpoints before it is whole",
                   t->ckpt.dir, tried);
  if (!c && (t->ckpt.saved_step >= 0 || t->ckpt.start_step > 0))
    return tc_fail(err, TC_EDIVERGED, "training diverged, and %s has no checkpoint from before it "
                   "to go back to", t->ckpt.dir);
  if (!c) *step = 0;                             /* nothing was ever saved */
  int rc = tc_run_agree(&t->run, t->run.rank == 0 ? set_aside(t, *step, err) : 0, err);
  if (rc == 0 && !c) return initialise(t, err);
  if (rc == 0) {
    if (t->run.rank == 0) tc_log("resumed from %s, step %lld", tc_ckpt_path(c), (long long)*step);
    return refresh(t, c, err);
  }
  tc_ckpt_close(c);
  return rc;
}

/* What was found after a bad step: "loss 3.2, gradient norm 1.5, validation loss nan". */
static void describe(const struct tc_train *t, const struct tc_step_report *s, char *text, size_t size)
{
  snprintf(text, size, "loss %g, gradient norm %g", tc_unsigned_nan(s->loss), tc_unsigned_nan(s->grad_norm));
  if (s->validated) tc_text_add(text, size, ", validation loss %g", tc_unsigned_nan(s->val_loss));
  if (t->ckpt.diverged) tc_text_add(text, size, ", weights or moments that are not finite");
  for (int i = 0; i < t->tasks.n && s->validated; i++)
    if (t->tasks.task[i].not_finite)
      tc_text_add(text, size, ", %lld answers of %.60s without a finite loss", (long long)t->tasks.task[i].not_finite,
                  t->tasks.task[i].name);
}

int tc_rollback_go(struct tc_train *t, const struct tc_step_report *s, int64_t *step,
                   struct tc_err *err)
{
  const int64_t bad = s->step, most = t->run.cfg->train_rollback;
  struct tc_rollback *r = &t->rollback;
  char what[400];
  describe(t, s, what, sizeof what);
  if (r->rollbacks >= most && bad == t->ckpt.start_step + 1 && t->ckpt.start_step > 0) {
    char *word = tc_shell_word(t->ckpt.dir);
    tc_fail(err, TC_EDIVERGED, "step %lld, the first of this start: %s: the weights that it began with may have diverged "
            "before they were saved: `tercio ckpt tensors %.300s` shows NaNs and infinities; ckpt.resume = STEP goes on "
            "from an older checkpoint", (long long)bad, what, word);
    free(word);
    return TC_EDIVERGED;
  }
  if (r->rollbacks >= most)
    return tc_fail(err, TC_EDIVERGED, "step %lld: %s: training diverged%s. Try a lower train.lr, a longer "
                   "train.warmup, %s", (long long)bad, what, most ? ", and train.rollback is used up" : "",
                   most ? "or train.clip" : "train.clip, or train.rollback");
  /* Bad in the first step after going back: the checkpoint itself may be bad; take an older one. */
  int64_t before = r->back_to >= 0 && bad == r->back_to + 1 ? r->back_to : bad;
  int64_t rollbacks = r->rollbacks, skipped = r->skipped;
  if (t->run.rank == 0)
    tc_warn("step %lld: %s: going back, %lld of %lld times", (long long)bad, what, (long long)rollbacks + 1,
            (long long)most);
  TC_TRY(go_back(t, before, step, err));
  r->rollbacks = rollbacks + 1;
  r->skipped = skipped + bad - *step;
  r->back_to = *step;
  t->ckpt.diverged = false;
  if (t->run.rank == 0)
    tc_log("went back to step %lld: the samples of steps %lld to %lld are left out",
           (long long)*step, (long long)(*step + skipped + 1), (long long)(bad + skipped));
  tc_metrics_back(t, *step);
  return 0;
}
