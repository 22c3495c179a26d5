/* plan_kinds.c - a partition with several kinds of nodes: each is planned apart, as if it were asked for by --kind, since a job is
 * of one kind; a row for each. */
#include "src/cmd/plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* A kind's best layout, or why there is none. */
struct row {
  char kind[128], device[64], layout[TC_MESH_TEXT + 64], why[300];
  int nodes;
  double step_s, tokens_per_s, bytes;
};

static void set_layout(struct row *r, const struct tc_plan_job *j, const struct tc_plan_found *f)
{
  char mesh[TC_MESH_TEXT];
  struct tc_err err = { 0 };
  snprintf(r->device, sizeof r->device, "%s", j->cluster.device.name);
  r->nodes = j->cluster.nodes;
  if (!f->n_rows) {
    tc_plan_nothing(j, f, &err);
    snprintf(r->why, sizeof r->why, "%.299s", err.text);
    return;
  }
  const struct tc_plan *p = &f->row->plan;
  snprintf(r->layout, sizeof r->layout, "%s, %s", tc_mesh_text(mesh, p->size, " ", " x "), tc_word_parallel_data(f->row->cfg.parallel_data));
  r->step_s = p->time.step_s;
  r->tokens_per_s = p->time.tokens_per_s;
  r->bytes = (double)p->cls[p->worst].memory.bytes[TC_DEVICE];
}

/* The same command for that kind. */
static void plan_kind(struct row *r, int argc, char *const *argv)
{
  struct tc_plan_instead unused;
  struct tc_plan_job j;
  struct tc_plan_found f;
  struct tc_err err = { 0 };
  char **args = tc_calloc((size_t)argc + 3, sizeof *args);
  for (int i = 0; i < argc; i++) args[i] = argv[i];
  args[argc] = (char *)(uintptr_t)"--kind";
  args[argc + 1] = r->kind;
  int rc = tc_plan_job_new(&j, argc + 2, args, &unused, &err);
  if (!rc) rc = tc_plan_search(&f, j.cfg, &j.cluster, j.fixed, 1, &err);
  if (!rc) {
    set_layout(r, &j, &f);
    tc_plan_found_done(&f);
  }
  if (rc) snprintf(r->why, sizeof r->why, "%.299s", err.text);
  tc_plan_job_done(&j);
  free(args);
}

static int list_kinds(struct row **out, const struct tc_plan_job *j, const struct tc_plan_found *found, int argc, char *const *argv)
{
  const struct tc_slurm_part *s = &j->slurm;
  struct row *row = tc_calloc((size_t)s->n_left_out + 1, sizeof *row);
  int n = 0;
  for (int i = 0; i < s->n_left_out; i++) {
    const struct tc_slurm_kind *k = &s->left_out[i];
    if (k->why != TC_SLURM_OTHER) continue;
    struct row *r = &row[++n];
    r->nodes = k->nodes;
    tc_slurm_kind_name(r->kind, sizeof r->kind, k->gpus, k->gpu, k->cpus);
    plan_kind(r, argc, argv);
  }
  tc_slurm_kind_name(row->kind, sizeof row->kind, s->gpus, s->gpu, s->cpus);
  if (n) set_layout(row, j, found);
  *out = row;
  return n ? n + 1 : 0;
}

static void print_kinds(const struct row *row, int n)
{
  char a[32], b[32];
  printf("\nkinds of nodes, each planned apart (a job is of one; --kind NAME plans another):\n%6s %-24s %-10s %9s %10s %9s  %s\n",
         "nodes", "kind", "device", "step", "tokens/s", "memory", "layout");
  for (int i = 0; i < n; i++) {
    const struct row *r = &row[i];
    printf("%6d %-24s %-10s ", r->nodes, r->kind, *r->device ? r->device : "-");
    if (*r->why) printf("%s\n", r->why);
    else printf("%9s %10.4g %9s  %s\n", tc_human_seconds(a, sizeof a, r->step_s), r->tokens_per_s, tc_human_bytes(b, sizeof b, r->bytes),
                r->layout);
  }
}

static json_t *kinds_json(const struct row *row, int n)
{
  json_t *list = json_array();
  for (int i = 0; i < n; i++) {
    const struct row *r = &row[i];
    const bool none = *r->why;
    tc_out_row(list, "nodes=%d kind=%s device?=%s layout?=%s step_s?=%g tokens_per_s?=%g device_bytes?=%g why?=%s", r->nodes, r->kind,
               r->device, r->layout, none ? -1 : r->step_s, none ? -1 : r->tokens_per_s, none ? -1 : r->bytes, r->why);
  }
  return list;
}

json_t *tc_plan_kinds(const struct tc_plan_job *j, const struct tc_plan_found *found, int argc, char *const *argv)
{
  struct row *row;
  json_t *list = NULL;
  const int n = list_kinds(&row, j, found, argc, argv);
  if (n && j->json) list = kinds_json(row, n);
  else if (n) print_kinds(row, n);
  free(row);
  return list;
}
