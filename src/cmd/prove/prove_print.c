/* prove_print.c - a proof as tables and as JSON. */
#include "src/cmd/prove/prove.h"

#include <math.h>
#include <stdlib.h>

void tc_prove_print_scaled(const struct tc_proving *p)
{
  if (p->ask.json) return;
  char mesh[TC_MESH_TEXT];
  printf("%d rank%s on %d node%s: %s, parallel.data = %s\n", p->scaled.world, tc_plural(p->scaled.world), p->mesh->n_nodes,
         tc_plural(p->mesh->n_nodes), tc_mesh_text(mesh, p->mesh->size, " ", " x "),
         tc_word_parallel_data(p->cfg->parallel_data));
  if (p->scaled.n_notes) printf("made small, since only what divides and what does not makes a difference to a layout:\n");
  for (int i = 0; i < p->scaled.n_notes; i++) {
    const struct tc_scale_note *n = &p->scaled.note[i];
    char was[24] = "auto";
    if (n->was != TC_AUTO) snprintf(was, sizeof was, "%lld", (long long)n->was);
    printf("  %-20s %8s -> %-6lld %s\n", n->name, was, (long long)n->is, n->why);
  }
}

/* The worst of a class; below 0: there is none. */
static double worst_of(const struct tc_proof *f, int part, int class)
{
  double worst = -1;
  for (int i = 0; i < f->n_params; i++)
    if (f->param[i].class == class && !isnan(worst) && !(f->param[i].off[part] <= worst)) worst = f->param[i].off[part];
  return worst;
}

static const char *figure(char buf[16], double x)
{
  if (x < 0) return "-";
  snprintf(buf, 16, "%.1e", x);
  return buf;
}

void tc_prove_print(const struct tc_proof *f)
{
  char b[TC_PROOF_CLASSES + 1][16];
  printf("  %-14s", "differs by");
  for (int k = 0; k < TC_PROOF_CLASSES; k++) printf(" %10s", tc_proof_class_name[k]);
  printf("  tolerance\n");
  for (int part = 0; part < TC_PROOF_PARTS; part++) {
    bool any = false;
    for (int k = 0; k < TC_PROOF_CLASSES; k++) any |= worst_of(f, part, k) >= 0;
    printf("  %-14s", tc_proof_part_name[part]);
    for (int k = 0; k < TC_PROOF_CLASSES; k++) printf(" %10s", figure(b[k], worst_of(f, part, k)));
    printf("  %9s\n", figure(b[TC_PROOF_CLASSES], any ? f->tolerance[part] : -1));
  }
  printf("  %-14s %10s%45s%9s\n", "loss", figure(b[0], tc_proof_largest(f->loss, f->steps + 1)), "",
         figure(b[1], f->loss_tolerance[f->steps]));
  printf("  %-14s %10s%45s%9s\n", "gradient norm", figure(b[0], tc_proof_largest(f->norm, f->steps)), "",
         figure(b[1], f->norm_tolerance[f->steps - 1]));
  printf("  memory and bytes sent: %s\n", *f->unpredicted ? f->unpredicted : "as predicted, to the byte");
}

json_t *tc_prove_json(const struct tc_proof *f, const char *precision, const char *device, const struct tc_blame *b)
{
  json_t *parts = json_object(), *params = json_array(), *with = json_array();
  static const char *const key[TC_PROOF_PARTS] = { "gradient", "weight", "m", "v" };
  for (int part = 0; part < TC_PROOF_PARTS; part++) tc_figure(parts, key[part], f->tolerance[part]);
  tc_figures(parts, "loss", f->loss_tolerance, f->steps + 1);
  tc_figures(parts, "norm", f->norm_tolerance, f->steps);
  for (int i = 0; i < f->n_params; i++)
    tc_out_row(params, "name=%s gradient=%g weight=%g m=%g v=%g", f->param[i].name, f->param[i].off[0], f->param[i].off[1],
               f->param[i].off[2], f->param[i].off[3]);
  for (int i = 0; b && i < b->n; i++) json_array_append_new(with, json_string(b->what[i]));
  json_t *out = tc_out_object("precision=%s device=%s steps=%d equal!=%d worst?=%s worst_step=%d unpredicted?=%s fault?=%s "
                              "tolerance=%p goes_with=%p parameters=%p", precision, device, f->steps, f->equal, f->worst,
                              f->worst_step, f->unpredicted, f->fault, (void *)parts, (void *)with, (void *)params);
  tc_figures(out, "loss", f->loss, f->steps + 1);
  tc_figures(out, "norm", f->norm, f->steps);
  return out;
}

void tc_prove_json_run(const struct tc_proving *p)
{
  json_t *sizes = json_object();
  for (int i = 0; i < p->scaled.n_notes; i++) {
    const struct tc_scale_note *n = &p->scaled.note[i];
    json_object_set_new(sizes, n->name, json_pack("[I, I]", (json_int_t)n->was, (json_int_t)n->is));
  }
  json_object_set_new(p->out, "world", json_integer(p->scaled.world));
  json_object_set_new(p->out, "mesh", tc_mesh_json(p->mesh->size));
  json_object_set_new(p->out, "seed", json_integer((json_int_t)p->ask.seed));
  json_object_set_new(p->out, "made_small", sizes);
}
