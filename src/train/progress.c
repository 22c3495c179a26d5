/* progress.c - what a person reads on the terminal or in the job's log: what the run is, how far it has come, and
 * where its results are. Rank 0 alone prints, to standard error. */
#include "src/launch/launch.h"
#include "src/train/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- at the start ---------------------------------------------------------------------- */

static void say_model(const struct tc_train *t)
{
  const struct tc_model *m = &t->run.opts.model;
  const struct tc_config *c = t->run.cfg;
  const char *name = *c->model_preset ? c->model_preset : c->model_config;
  char n[32];
  tc_log("model: %s%s%s, %s parameters: layers %lld, hidden %lld, heads %lld, vocabulary %lld", name,
         *name ? ", " : "", tc_word_model_family(m->family), tc_human_count(n, sizeof n, (double)tc_model_params(m)),
         (long long)m->layers, (long long)m->hidden, (long long)m->heads, (long long)m->vocab);
}

static void say_batch(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const int64_t context = t->run.opts.model.context, end = tc_last_step(c);
  char stop[60] = "";
  if (end < c->train_steps) snprintf(stop, sizeof stop, ", stops after step %lld", (long long)end);
  tc_log("batch: %lld sequences of %lld tokens, %lld tokens per step; %lld steps%s", (long long)c->train_global_batch,
         (long long)context, (long long)(c->train_global_batch * context), (long long)c->train_steps, stop);
}

static void say_ranks(const struct tc_train *t)
{
  const struct tc_ranks *k = t->run.ranks;
  const char *gpu = t->run.device->ops->separate ? k->info[0].dev.name : "", *each = k->world > 1 ? " each" : "";
  int least = tc_launch_threads(t->run.cfg, k, 0), most = least;
  char threads[40], name[80] = "";
  for (int r = 1; r < k->world; r++) {
    const int n = tc_launch_threads(t->run.cfg, k, r);
    least = TC_MIN(least, n);
    most = TC_MAX(most, n);
  }
  if (least < most) snprintf(threads, sizeof threads, "%d to %d threads", least, most);
  else snprintf(threads, sizeof threads, "%d thread%s", most, tc_plural(most));
  if (*gpu) snprintf(name, sizeof name, " (%s)", gpu);
  tc_log("ranks: %d on %d node%s, %s%s; device %s%s; communication: %s", k->world, k->n_nodes,
         tc_plural(k->n_nodes), threads, each, t->run.device->ops->name, name,
         k->world == 1 ? "none" : tc_train_comm_name(t));
}

static void say_layout(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const int32_t *size = t->run.mesh->size;
  const int64_t micro = c->train_global_batch / tc_axes_size(size, TC_ON_DP) / size[TC_MB];
  char more[160] = "", mesh[TC_MESH_TEXT];
  if (size[TC_PP] > 1) tc_text_add(more, sizeof more, ", %s", tc_word_parallel_schedule(c->parallel_schedule));
  if (tc_axes_size(size, TC_ON_TP) > 1 && c->parallel_sequence) tc_text_add(more, sizeof more, ", sequence parallel");
  if (tc_axes_size(size, TC_ON_CP) > 1)
    tc_text_add(more, sizeof more, ", attention by %s%s", tc_word_parallel_context(c->parallel_context),
                c->parallel_zigzag ? ", zigzag" : "");
  if (c->parallel_offload)
    tc_text_add(more, sizeof more, ", offload %s", tc_word_parallel_offload(c->parallel_offload));
  if (c->train_recompute) tc_text_add(more, sizeof more, ", recompute %s", tc_word_train_recompute(c->train_recompute));
  tc_log("layout: %s, %s%s; %d micro-batch%s of %lld; precision %s", tc_mesh_text(mesh, size, " ", " x "),
         t->run.opts.system->name, more, size[TC_MB], size[TC_MB] == 1 ? "" : "es", (long long)micro,
         tc_word_train_precision(c->train_precision));
}

/* Whether all parameters have the system's placements. */
static bool is_placed_by(const struct tc_graph *g, const struct tc_mesh *m, const struct tc_system *s)
{
  for (int32_t i = 0; i < g->n_params * TC_AXES; i++) {
    const struct tc_param *p = &g->param[i / TC_AXES];
    const struct tc_layout *place[TC_PLACES] = { [TC_STORE] = &p->store, [TC_USE] = &p->use,
                                                 [TC_ACC] = &p->acc_lay, [TC_UPDATE] = &p->update };
    const int a = i % TC_AXES;
    for (const struct tc_annotation *row = s->rows; row->four && m->size[a] > 1; row++)
      for (int k = 0; k < TC_PLACES && row->axes >> a & 1; k++)
        if (!tc_place_equal(&place[k]->on[a], &row->place[k])) return false;
  }
  return true;
}

/* The built-in system whose placements all parameters have, `was` if it does; NULL: none. */
static const char *system_of(const struct tc_graph *g, const struct tc_mesh *m, const struct tc_system *was)
{
  if (is_placed_by(g, m, was)) return was->name;
  for (enum tc_data_parallel d = TC_DATA_DDP; d <= TC_DATA_NONE; d++)
    if (is_placed_by(g, m, &tc_systems[d])) return tc_systems[d].name;
  return NULL;
}

/* What a file of annotations makes of parallel.data, which is ddp where it was not set. */
static void say_annotations(const struct tc_train *t)
{
  const struct tc_graph *g = t->run.prog[TC_TRAIN]->graph;
  const char *was = t->run.opts.system->name, *now = system_of(g, t->run.mesh, t->run.opts.system);
  char result[60] = " becomes a layout of its own", placed[120] = "";
  if (now) snprintf(result, sizeof result, now == was ? " stays" : " becomes %s", now);
  for (int s = 0; s < TC_SETS; s++) {
    int32_t n = 0;
    if (s == TC_SET_PP || !tc_set_is_factor(s) || !tc_set_is_shown(t->run.mesh->size, s)) continue;
    for (int32_t i = 0; i < g->n_params; i++) n += (g->param[i].set_axes & tc_set_axes[s]) != 0;
    if (*placed) tc_text_add(placed, sizeof placed, ", %d on %s", n, tc_set_name[s]);
    else tc_text_add(placed, sizeof placed, "%d of %d parameters on %s", n, g->n_params, tc_set_name[s]);
  }
  tc_log("annotations: %s places %s: parallel.data = %s%s", t->run.cfg->parallel_annotations, placed, was, result);
}

static void say_output(const struct tc_train *t)
{
  char *out = realpath(t->out, NULL), *ckpt = realpath(t->ckpt.dir, NULL);
  if (*t->run.cfg->ckpt_dir)
    tc_log("output: %s; checkpoints: %s", out ? out : t->out, ckpt ? ckpt : t->ckpt.dir);
  else tc_log("output: %s", out ? out : t->out);
  TC_FREE(out, ckpt);
}

void tc_progress_begin(const struct tc_train *t)
{
  if (t->run.rank) return;
  say_model(t);
  say_batch(t);
  say_ranks(t);
  say_layout(t);
  if (*t->run.cfg->parallel_annotations) say_annotations(t);
  say_output(t);
}

/* ---- in between ------------------------------------------------------------------------ */

void tc_progress(const struct tc_train *t, const struct tc_step_report *r, struct tc_progress *p,
                 double tokens_per_s)
{
  const int64_t now = tc_now_ns(), end = tc_last_step(t->run.cfg);
  bool tty = isatty(STDERR_FILENO), last = r->step == end;
  if (p->steps++ == 0) p->first_ns = now;
  if (t->run.rank || (!last && p->shown_ns && !r->validated &&
                  now - p->shown_ns < (tty ? 200 : 2000) * INT64_C(1000000)))
    return;
  p->shown_ns = now;
  char val[1000] = "";
  if (r->validated) snprintf(val, sizeof val, "  val %.4f", r->val_loss);
  tc_tasks_text(t, r->step, val, sizeof val);
  /* The mean of all steps since the first, with the validations and checkpoints between them; after the first step,
   * which warms up, by its own rate. */
  const double own_s = tokens_per_s > 0 ? (double)r->tokens / tokens_per_s : 0;
  const double each_s = p->steps > 1 ? (double)(now - p->first_ns) * 1e-9 / (double)(p->steps - 1) : own_s;
  const int64_t left = (int64_t)((double)(end - r->step) * each_s);
  tc_say(tty ? "\r" : "", tty && !last && !*val ? "\033[K" : tty ? "\033[K\n" : "\n",
         "step %lld/%lld  loss %.4f%s  norm %.3f  lr %.2e  %.0f tok/s  left %lld:%02lld:%02lld", (long long)r->step,
         (long long)end, r->loss, val, r->grad_norm, r->lr, tokens_per_s, (long long)left / 3600,
         (long long)left / 60 % 60, (long long)left % 60);
}

/* ---- at the end ------------------------------------------------------------------------ */

void tc_progress_end(const struct tc_train *t)
{
  if (t->run.rank) return;
  char *out = realpath(t->out, NULL), *ckpt = realpath(t->ckpt.dir, NULL);
  const char *folder = ckpt ? ckpt : t->ckpt.dir;
  char *out_word = tc_shell_word(out ? out : t->out), *folder_word = tc_shell_word(folder);
  const int64_t end = t->ckpt.saved_step, steps = t->run.cfg->train_steps;
  if (t->ckpt.start_step < end)
    tc_log("done: step %lld of %lld%s; the checkpoint is %s/step-%08lld", (long long)end, (long long)steps,
           end == steps ? "" : tc_stop_if_met(&t->stop_if) ? " (train.stop_if)" : " (train.stop_at)", folder, (long long)end);
  tc_log("to look at it: tercio report %s -o report.html; tercio ckpt ls %s", out_word, folder_word);
  TC_FREE(out_word, folder_word, out, ckpt);
}
