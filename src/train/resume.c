/* resume.c - compares the settings and the data of a resumed run with those of the run
 * that saved its checkpoint. config/options.def says for each option whether a change is refused,
 * warned about or free. Of the data the tokens are compared, not the names: files may move. */
#include "src/train/parts.h"
#include "src/base/hash.h"
#include "src/coll/selection.h"
#include "src/foreign/digest.h"
#include "src/program/setup.h"
#include "src/token/token.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The configuration in the checkpoint; NULL if no run had it: an import has no version. */
static struct tc_config *saved_config(const struct tc_ckpt_meta *meta)
{
  if (!*meta->version || !strstr(meta->config, "[train]")) return NULL;
  struct tc_config *was = tc_config_as_saved(meta->config);
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

/* How a run with another value of an option can begin with what a checkpoint has; adapters: this run has some. Owned by the
 * caller. */
static char *new_run(const struct tc_ckpt *c, const char *option, bool adapters)
{
  char *word = tc_shell_word(tc_ckpt_path(c));
  char *text = !tc_has_adapters(c) ? tc_sprintf(" from its weights: another run.out, with ckpt.from = %s", word)
    : !adapters ? tc_sprintf(" without adapters: another run.out; ckpt.adapter = %s gives their options", word)
    : strncmp(option, "train.lora", strlen("train.lora")) == 0 ? tc_strdup(" with other adapters: another run.out")
    : tc_sprintf(" from its adapters: another run.out, with the same ckpt.from and ckpt.adapter = %s", word);
  free(word);
  return text;
}

int tc_resume_check(const struct tc_train *t, const struct tc_ckpt *c, struct tc_err *err)
{
  struct tc_config *was = saved_config(tc_ckpt_meta(c));
  struct tc_config_change x;
  int rc = 0;
  for (int i = 0; was && !rc && (i = tc_config_next_change(was, t->run.cfg, i, &x)) >= 0; i++) {
    if (x.resume != TC_RESUME_REFUSED) continue;
    char *text = new_run(c, x.name, t->run.cfg->train_lora > 0);
    rc = tc_fail(err, TC_EUSER, "%s was saved with %s = %s, and this run has %s: set it as it was, or begin a new run%s",
                 tc_ckpt_path(c), x.name, *x.was ? x.was : "nothing", *x.is ? x.is : "nothing", text);
    free(text);
  }
  tc_config_free(was);
  return rc;
}

/* ---- the rates ---- */

/* The learning rate by the step: those of the stages, each from its first step on. */
struct rates { int n; int64_t first[TC_MOST_STAGES]; struct tc_rate of[TC_MOST_STAGES]; };

static void make_rates(struct rates *r, const struct tc_config *c, const struct tc_stage *stages)
{
  r->n = c->n_stages + 1;
  for (int k = 0; k < r->n; k++) {
    struct tc_config at;
    tc_config_at_stage(&at, c, k);
    r->of[k] = tc_rate_of(&at);
    r->first[k] = stages[k].first;
  }
}

static double rate_at(const struct rates *r, int64_t step)
{
  int k = r->n - 1;
  while (k > 0 && r->first[k] > step) k--;
  return tc_rate_at(&r->of[k], step);
}

/* Whether the first of the steps after `from` up to `to` has the same rate with both, and LOOKS more of them, or all. */
static bool same_between(const struct rates *a, const struct rates *b, int64_t from, int64_t to)
{
  enum { LOOKS = 1000 };
  for (int64_t i = 0; i <= LOOKS && from < to; i++) {
    const int64_t step = i ? from + tc_ceil_div((to - from) * i, LOOKS) : from + 1;
    if ((float)rate_at(a, step) != (float)rate_at(b, step)) return false;
  }
  return true;
}

/* The same before and after each turn of a's schedule and each begin of its stages. */
static bool same_at_turns(const struct rates *a, const struct rates *b, int64_t from, int64_t steps)
{
  bool same = true;
  for (int k = 0; k < a->n && same; k++) {
    const int64_t turn[] = { a->of[k].warmup, a->of[k].steps - a->of[k].cooldown, a->first[k] - 1 };
    for (size_t i = 0; i < sizeof turn / sizeof *turn && same; i++)
      same = same_between(a, b, from, TC_MIN(turn[i], steps)) && same_between(a, b, TC_MAX(from, turn[i]), steps);
  }
  return same;
}

static bool same_rate(const struct rates *a, const struct rates *b, int64_t from, int64_t steps)
{ return same_at_turns(a, b, from, steps) && same_at_turns(b, a, from, steps); }

/* ---- two configurations of a run ---- */

/* What a checkpoint's run had, and what it has now; steps after `step` up to `steps` are compared. */
struct pair {
  struct tc_config *was, mixed;  /* mixed: `was` at first; its options become those of now one by one, to see which change the rate */
  const struct tc_config *is;
  struct tc_stage *stages;       /* of `was`; those of now are the run's */
  const struct tc_stage *now;
  int64_t step, steps;
  bool same;                     /* the rates */
};

/* The stages of a saved configuration, whose model is that of the checkpoint but for its context, as model.config may be
 * elsewhere. What can't be computed is as it stands there. */
static struct tc_stage *saved_stages(const struct tc_config *was, const struct tc_ckpt_meta *meta)
{
  struct tc_config c = *was;
  struct tc_model m;
  struct tc_stage *list = NULL;
  struct tc_err why;
  char no_config[] = "";
  if (tc_model_parse(&m, meta->model, "", &why) == 0) {
    tc_setup_fill_model(&c, &m);
    c.model_config = no_config;
  }
  if (tc_setup_stages(&list, &c, &why) == 0) return list;
  list = tc_calloc((size_t)c.n_stages + 1, sizeof *list);
  for (int k = 1; k <= c.n_stages; k++) list[k].first = c.stage[k - 1].tokens ? -1 : c.stage[k - 1].from;
  return list;
}

static void pair_free(struct pair *p)
{
  free(p->stages);
  tc_config_free(p->was);
}

static bool pair_same(const struct pair *p, const struct tc_config *a, const struct tc_config *b)
{
  struct rates one, other;
  make_rates(&one, a, p->stages);
  make_rates(&other, b, b == p->is ? p->now : p->stages);
  return same_rate(&one, &other, p->step, p->steps);
}

/* false: no run had the settings of the checkpoint. */
static bool pair_new(struct pair *p, const struct tc_train *t, const struct tc_ckpt_meta *meta, int64_t step, int64_t steps)
{
  *p = (struct pair){ .was = saved_config(meta), .is = t->run.cfg, .now = t->run.stages, .step = step, .steps = steps };
  if (!p->was) return false;
  p->stages = saved_stages(p->was, meta);
  p->mixed = *p->was;
  p->same = pair_same(p, p->was, p->is);
  return true;
}

/* Whether the stage of a changed `from` begins with the same step after all, such as after as many tokens. */
static bool same_begin(const struct pair *p, const struct tc_config_change *x)
{
  const int k = x->stage - 1;
  return x->stage && !strcmp(strchr(x->name, '.'), ".from") && k <= p->was->n_stages && k <= p->is->n_stages
         && p->stages[k].first == p->now[k].first;
}

/* ---- the data ---- */

#define STAGE_NOTE "stage%d tokens %" PRId64 " hash %" PRIx64 " begin %" PRIx64

/* What is noted of the data of a stage, from 0. False: nothing. */
static bool data_noted(const char *data, int k, struct tc_data_identity *id, uint64_t *begin)
{
  char name[20];
  int number;
  *begin = 0;
  if (k == 0) return sscanf(data, "tokens %" SCNd64 " hash %" SCNx64, &id->tokens, &id->hash) == 2;
  snprintf(name, sizeof name, " stage%d ", k + 1);
  const char *at = strstr(data, name);
  return at && sscanf(at, " stage%d tokens %" SCNd64 " hash %" SCNx64 " begin %" SCNx64, &number, &id->tokens, &id->hash, begin) == 4;
}

/* Adds how the training data differ from those that `data` is of, as tc_resume_data wrote it, after `sep`: "the training data
 * had 5 tokens, now have 6; ...", of each stage that both runs have. */
static void data_changes(const struct tc_train *t, const char *data, const char *sep, char *text, size_t size)
{
  for (int k = 0; k < t->run.n_stages; k++) {
    const struct tc_stage_data *is = &t->batches.stage[k];
    struct tc_data_identity was;
    uint64_t begin;
    char of[30] = "";
    if (!data_noted(data, k, &was, &begin)) continue;
    const bool fewer = was.tokens != is->id.tokens, other = was.hash != is->id.hash;
    if (!fewer && !other && (k == 0 || begin == is->begin)) continue;
    if (k) snprintf(of, sizeof of, " of stage %d", k + 1);
    tc_text_add(text, size, "%sthe training data%s ", *text ? "; " : sep, of);
    if (fewer) tc_text_add(text, size, "had %lld tokens, now have %lld", (long long)was.tokens, (long long)is->id.tokens);
    else if (other) tc_text_add(text, size, "have changed, though not in length (%lld tokens)", (long long)is->id.tokens);
    else tc_text_add(text, size, "go on after other stages than before");
  }
}

static void warn_of_data(const struct tc_train *t, const char *data)
{
  char text[500] = "";
  data_changes(t, data, "", text, sizeof text);
  if (*text) tc_warn("%s: from here on each step sees different samples", text);
}

char *tc_resume_data(const struct tc_train *t)
{
  const struct tc_train_tokenizer *k = &t->tokenizer;
  const struct tc_stage_data *s = t->batches.stage;
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  fprintf(f, "tokens %" PRId64 " hash %016" PRIx64, s->id.tokens, s->id.hash);
  if (k->end >= 0) fprintf(f, " " TC_END_NOTE, k->end);
  if (k->hash) fprintf(f, " " TC_TOKENIZER_NOTE, k->hash);
  else if (k->is_bytes) fprintf(f, " " TC_BYTES_NOTE);
  for (int i = 1; i < t->run.n_stages; i++) fprintf(f, " " STAGE_NOTE, i + 1, s[i].id.tokens, s[i].id.hash, s[i].begin);
  if (fclose(f)) TC_ASSERT(!"out of memory for a note on the data");
  return text;
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

/* The number of the first option from number `from` on that changes what the steps of the pair give, and its values; -1. */
static int next_difference(struct pair *p, int from, struct tc_config_change *x)
{
  for (int i = from; (i = tc_config_next_change(p->was, p->is, i, x)) >= 0; i++) {
    const struct tc_config before = p->mixed;
    const bool rate = x->resume == TC_RESUME_RATE;
    if (same_begin(p, x)) continue;
    if (rate && !x->stage) tc_config_copy(&p->mixed, p->is, i);
    if (x->resume == TC_RESUME_SAMPLES || x->resume == TC_RESUME_MATH || (x->resume == TC_RESUME_BEGIN && p->step == 0) ||
        (rate && !p->same && (x->stage || !pair_same(p, &before, &p->mixed)))) return i;
  }
  return -1;
}

void tc_resume_say(const struct tc_train *t, const struct tc_ckpt_meta *meta)
{
  static const char *const what[] = {
    [TC_RESUME_SAMPLES] = "each step sees different samples",
    [TC_RESUME_RATE] = "the learning rate differs",
    [TC_RESUME_MATH] = "the arithmetic of a step differs" };
  struct tc_config_change x;
  struct pair p;
  const bool known = pair_new(&p, t, meta, meta->step, t->run.cfg->train_steps);
  if (*meta->version) log_changes(t, meta, known ? p.was : NULL);
  warn_of_data(t, meta->data);
  warn_of_stack(t, meta->stack);
  warn_of_nodes(t, meta);
  if (!known) return;
  if (p.stages[0].context && p.stages[0].context != p.now[0].context)
    tc_warn("model.context was %lld, is %lld: from here on each step sees different samples", (long long)p.stages[0].context,
            (long long)p.now[0].context);
  for (int i = 0; (i = next_difference(&p, i, &x)) >= 0; i++)
    tc_warn("%s was %s, is %s: from here on %s", x.name, *x.was ? x.was : "empty", *x.is ? x.is : "empty", what[x.resume]);
  pair_free(&p);
}

/* "; the training data had ...; train.lr was 1, is 2": what gives steps after `from` up to `to` other results; without `rates`
 * only what does so at equal rates. Cut off if it is long. */
static void list_differences(const struct tc_train *t, const struct tc_ckpt_meta *meta, int64_t from, int64_t to, bool rates,
                             char *text, size_t size)
{
  struct tc_config_change x;
  struct pair p;
  if (!pair_new(&p, t, meta, from, to)) return;
  data_changes(t, meta->data, "; ", text, size);
  for (int i = 0; (i = next_difference(&p, i, &x)) >= 0; i++) {
    /* Not the user's choice, but that of the device of each start. */
    if (!strcmp(x.name, "train.precision") && t->precision_by_device) continue;
    if (x.resume == TC_RESUME_RATE && !rates) continue;
    tc_text_add(text, size, "; %s was %.60s, is %.60s", x.name, *x.was ? x.was : "empty", *x.is ? x.is : "empty");
  }
  pair_free(&p);
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
