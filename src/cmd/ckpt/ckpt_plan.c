/* ckpt_plan.c - `tercio ckpt plan`: what each rank of a layout would read of a checkpoint. */
#include "src/cmd/ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

#include "src/foreign/digest.h"
#include "src/program/setup.h"
#include "src/run/reads.h"

enum { MOST_RANKS = 1 << 16 };

/* ---- the layout asked for ---------------------------------------------------------- */

/* The mesh of the saved run, as flags before the user's own. */
static int default_flags(char *flag[TC_SETS], const struct tc_ckpt *c, bool dp_is_left)
{
  int32_t size[TC_AXES];
  int n = 0;
  if (!tc_mesh_parse(tc_ckpt_meta(c)->mesh, size)) return 0;
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(size, s))
      flag[n++] = s == TC_SET_DP && dp_is_left ? tc_sprintf("--mesh.%s=auto", tc_set_name[s])
                  : tc_sprintf("--mesh.%s=%d", tc_set_name[s], tc_axes_size(size, tc_set_axes[s]));
  return n;
}

static int make_config(struct tc_config **cfg, const struct tc_ckpt *c, const struct ckpt_args *a, struct tc_err *err)
{
  char *own[TC_SETS], **argv = tc_calloc((size_t)a->n_flags + TC_SETS, sizeof *argv);
  int n_own = default_flags(own, c, a->world > 0 || a->cluster), argc = 0;
  argv[argc++] = a->flag[0];
  for (int i = 0; i < n_own; i++) argv[argc++] = own[i];
  for (int i = 1; i < a->n_flags; i++) argv[argc++] = a->flag[i];
  int rc = tc_config_saved(cfg, tc_ckpt_meta(c)->config, argc, argv, err);
  struct tc_model saved;
  struct tc_err why;
  if (rc == 0 && *(*cfg)->model_config && tc_model_parse(&saved, tc_ckpt_meta(c)->model, tc_ckpt_path(c), &why) == 0) {
    tc_setup_fill_model(*cfg, &saved);
    (*cfg)->model_config[0] = '\0';              /* that file may be elsewhere by now */
  }
  for (int i = 0; i < n_own; i++) free(own[i]);
  free(argv);
  return rc;
}

/* The number of ranks, and the node of each; *node is owned. */
static int make_cluster(const struct tc_config *c, const struct ckpt_args *a, int32_t **node, struct tc_err *err)
{
  int64_t world = a->world;
  *node = NULL;
  if (a->cluster) {
    int n = tc_mesh_synthetic(a->cluster, "block", node, err);
    if (n >= 0 && a->world > 0 && a->world != n)
      return tc_fail(err, TC_EUSER, "ckpt plan: --simulate has %d ranks, --world %lld", n,
                     (long long)a->world);
    if (n < 0) return n;
    world = n;
  } else if (world == 0) {
    if (c->mesh_dp == TC_AUTO || c->mesh_tp == TC_AUTO)
      return tc_fail(err, TC_EUSER, "ckpt plan: mesh.%s = auto needs --world N, or --simulate "
                     "CLUSTER", c->mesh_dp == TC_AUTO ? "dp" : "tp");
    world = (int64_t)TC_MIN(tc_setup_ranks(c), 1e9);
  }
  if (world < 1 || world > MOST_RANKS)
    return tc_fail(err, world < 1 ? TC_ELAYOUT : TC_EUSER, "ckpt plan: %lld ranks: from 1 to %d",
                   (long long)world, MOST_RANKS);
  if (!*node) *node = tc_calloc((size_t)world, sizeof **node);
  return (int)world;
}

/* ---- output ------------------------------------------------------------------------ */

struct plan { const struct tc_ckpt *c; struct tc_reads r; };

/* Consecutive ranks with the same cost are on one line. */
static void print_text(const struct plan *p)
{
  const struct tc_mesh *m = p->r.mesh;
  const struct tc_read *sum = &p->r.sum, *most = &p->r.most;
  char a[32], b[32], mesh[TC_MESH_TEXT];
  printf("%s, saved by %s %s\nto %s %s, %d ranks\n\n", p->c->path, p->c->m->meta.mesh, p->c->m->meta.system,
         tc_mesh_text(mesh, m->size, "", " "), p->r.system, m->world);
  printf("%-13s", "rank");
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_shown(m->size, s)) printf(" %*s", tc_set_width(s), tc_set_name[s]);
  printf(" %15s %15s %9s %7s\n", "needs", "reads", "pieces", "files");
  for (int r = 0, end; r < m->world && !ferror(stdout); r = end) {
    char ranks[32];
    for (end = r + 1; end < m->world && memcmp(&p->r.rank[r], &p->r.rank[end], sizeof *p->r.rank) == 0; end++) {}
    if (end == r + 1) snprintf(ranks, sizeof ranks, "%d", r);
    else snprintf(ranks, sizeof ranks, "%d-%d", r, end - 1);
    printf("%-13s", ranks);
    for (int s = 0; s < TC_SETS; s++) {
      const int at = tc_mesh_index(m, r, tc_set_axes[s]), width = tc_set_width(s);
      bool one = true;
      if (!tc_set_is_shown(m->size, s)) continue;
      for (int k = r; k < end; k++) one &= tc_mesh_index(m, k, tc_set_axes[s]) == at;
      if (one) printf(" %*d", width, at);
      else printf(" %*s", width, "*");
    }
    printf(" %15lld %15lld %9lld %7d\n", (long long)p->r.rank[r].need, (long long)p->r.rank[r].read,
           (long long)p->r.rank[r].pieces, (int)p->r.rank[r].files);
  }
  printf("\nall ranks  %s needed, %s read\n", tc_human_bytes(a, sizeof a, (double)sum->need),
         tc_human_bytes(b, sizeof b, (double)sum->read));
  printf("most       %s needed, %s read\n", tc_human_bytes(a, sizeof a, (double)most->need),
         tc_human_bytes(b, sizeof b, (double)most->read));
  printf("more than needed: %s, since blocks are read completely\n",
         tc_human_bytes(a, sizeof a, (double)(sum->read - sum->need)));
  const struct tc_base base = tc_base_noted(p->c);
  if (base.elsewhere) printf("not counted: the weights beside the adapters, which are read from %s\n", base.path);
}

static void *cost_json(const struct tc_read *c)
{
  return tc_out_object("need_bytes=%lld read_bytes=%lld more_bytes=%lld pieces=%lld", (long long)c->need,
                       (long long)c->read, (long long)(c->read - c->need), (long long)c->pieces);
}

static void print_json(const struct plan *p)
{
  const struct tc_mesh *m = p->r.mesh;
  json_t *ranks = json_array();
  char mesh[TC_MESH_TEXT];
  for (int r = 0; r < m->world; r++) {
    json_t *o = cost_json(&p->r.rank[r]);
    json_object_set_new(o, "rank", json_integer(r));
    json_object_update_new(o, tc_mesh_place_json(m, r));
    json_object_set_new(o, "files", json_integer(p->r.rank[r].files));
    json_array_append_new(ranks, o);
  }
  ckpt_print_json(tc_out_object("path=%s step=%lld from=%p to=%p total=%p most=%p ranks=%p", p->c->path,
    (long long)p->c->m->meta.step, tc_out_object("mesh=%s system=%s", p->c->m->meta.mesh, p->c->m->meta.system),
    tc_out_object("mesh=%s system=%s ranks=%d", tc_mesh_text(mesh, m->size, "", " "), p->r.system, (int)m->world), cost_json(&p->r.sum),
    cost_json(&p->r.most), (void *)ranks));
}

int ckpt_cmd_plan(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  struct tc_config *cfg = NULL;
  int32_t *node = NULL;
  TC_TRY(tc_ckpt_open(&c, a->path[0], err));
  struct plan p = { .c = c };
  int rc = make_config(&cfg, c, a, err);
  const int world = rc < 0 ? rc : make_cluster(cfg, a, &node, err);
  rc = world < 0 ? world : tc_run_reads(&p.r, c, cfg, world, node, err);
  if (rc == 0 && a->json) print_json(&p);
  else if (rc == 0) print_text(&p);
  tc_reads_free(&p.r);
  free(node);
  tc_config_free(cfg);
  tc_ckpt_close(c);
  return rc;
}
