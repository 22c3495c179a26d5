/* plan_for.c - prints what `tercio eval` or `tercio sample` takes of a device, and how fast it is: `tercio plan
 * --for`. */
#include "src/cmd/plan/plan.h"

const char *const tc_plan_uses[] = { [TC_TO_TRAIN] = "train", [TC_TO_EVALUATE] = "eval", [TC_TO_SAMPLE] = "sample" };

static double gb(double bytes) { return bytes * 1e-9; }

static int64_t activations(const struct tc_plan_stage *s)
{
  const struct tc_plan_memory *m = &s->memory;
  return m->bytes[TC_DEVICE] - m->by_class[TC_DEVICE][TC_CLS_PARAM] - s->cache_bytes - m->staging_bytes;
}

static void print_memory(FILE *f, const struct tc_plan_job *j, const struct tc_plan_forward *p)
{
  const bool samples = p->use == TC_TO_SAMPLE;
  fprintf(f, "\nmemory of a rank (GB)\n%5s %5s %10s %10s", "rank", "stage", "params", "weights");
  if (samples) fprintf(f, " %10s", "KV cache");
  fprintf(f, " %11s %9s %9s\n", "activations", "staging", "device");
  for (int i = 0; i < p->n_stages; i++) {
    const struct tc_plan_stage *s = &p->stage[i];
    fprintf(f, "%5d %5d %9.1fM %10.4f", s->rank, i, (double)s->parameters * 1e-6,
            gb((double)s->memory.by_class[TC_DEVICE][TC_CLS_PARAM]));
    if (samples) fprintf(f, " %10.4f", gb((double)s->cache_bytes));
    fprintf(f, " %11.4f %9.4f %9.4f\n", gb((double)activations(s)), gb((double)s->memory.staging_bytes),
            gb((double)s->memory.bytes[TC_DEVICE]));
  }
  const double most = (double)p->stage[p->worst].memory.bytes[TC_DEVICE], memory = j->cluster.device.memory_bytes;
  fprintf(f, "%s: needs %.4g GB, %s has %.4g GB (%.0f %%; kernel workspace not counted)\n",
          most <= memory ? "fits" : "does not fit", gb(most), j->cluster.device.name, gb(memory), 100 * most / memory);
}

static void print_time(FILE *f, const struct tc_plan_job *j, const struct tc_plan_forward *p)
{
  char a[32], b[32];
  fprintf(f, "\non %s: ", j->cluster.device.name);
  if (p->use == TC_TO_EVALUATE) {
    fprintf(f, "%.4g tokens/s; a batch takes %s\n", p->batch.tokens_per_s, tc_human_seconds(a, sizeof a, p->batch.run_s));
    return;
  }
  fprintf(f, "prompts are read at %.4g tokens/s (as long as the context, %lld tokens of each at once)\n",
          p->prompt.tokens_per_s, (long long)p->at_once);
  fprintf(f, "decoding: %.4g tokens/s, %.4g of each sequence; a token takes %s, of which reading the weights once is "
          "%s\n",
          p->token.tokens_per_s, 1 / p->token.run_s, tc_human_seconds(a, sizeof a, p->token.run_s),
          tc_human_seconds(b, sizeof b, p->weights_s));
}

static void print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_forward *p)
{
  tc_plan_head_print(f, j);
  fprintf(f, "%-10s %s\n", "for", tc_plan_uses[p->use]);
  char mesh[TC_MESH_TEXT];
  fprintf(f, "%-10s %d rank%s: %s\n", "layout", p->world, tc_plural(p->world), tc_mesh_text(mesh, p->size, " ", " x "));
  fprintf(f, "%-10s %lld sequence%s at once, context %lld\n", "batch", (long long)p->sequences,
          tc_plural(p->sequences), (long long)p->model.context);
  print_memory(f, j, p);
  print_time(f, j, p);
}

static json_t *json(const struct tc_plan_job *j, const struct tc_plan_forward *p)
{
  const double most = (double)p->stage[p->worst].memory.bytes[TC_DEVICE];
  json_t *stages = json_array();
  for (int i = 0; i < p->n_stages; i++) {
    const struct tc_plan_stage *s = &p->stage[i];
    const struct tc_plan_memory *m = &s->memory;
    tc_out_row(stages, "rank=%d stage=%d parameters=%lld weights_bytes=%lld cache_bytes=%lld state=%lld scratch=%lld "
               "staging=%lld total=%lld", s->rank, i, (long long)s->parameters,
               (long long)m->by_class[TC_DEVICE][TC_CLS_PARAM], (long long)s->cache_bytes, (long long)m->state_bytes,
               (long long)m->scratch_bytes, (long long)m->staging_bytes, (long long)m->bytes[TC_DEVICE]);
  }
  json_t *o = tc_out_object("for=%s ranks=%d layout=%p device=%s parameters=%lld sequences=%lld stages=%p device_bytes=%g "
                            "fits!=%d", tc_plan_uses[p->use], p->world, (void *)tc_mesh_json(p->size),
                            j->cluster.device.name, (long long)p->parameters, (long long)p->sequences,
                            (void *)stages, most, most <= j->cluster.device.memory_bytes);
  if (p->use == TC_TO_EVALUATE) {
    tc_figure(o, "tokens_per_s", p->batch.tokens_per_s);
  } else {
    tc_figure(o, "prompt_tokens_per_s", p->prompt.tokens_per_s);
    tc_figure(o, "new_tokens_per_s", p->token.tokens_per_s);
    tc_figure(o, "weights_s", p->weights_s);
  }
  json_object_set_new(o, "from", tc_plan_head_json(j));
  return o;
}

int tc_plan_use(const struct tc_plan_job *j, struct tc_err *err)
{
  struct tc_plan_forward p;
  char a[32], b[32];
  TC_TRY(tc_plan_forward(&p, j->cfg, j->use, j->sequences, j->world, &j->cluster, err));
  if (j->json) tc_out_json(json(j, &p), TC_PLAN_JSON);
  else print(stdout, j, &p);
  const double most = (double)p.stage[p.worst].memory.bytes[TC_DEVICE], memory = j->cluster.device.memory_bytes;
  if (most <= memory) return 0;
  return tc_fail(err, TC_ELAYOUT, "tercio %s does not fit: a device needs %s and has %s; use more ranks (mesh.tp, "
                 "mesh.pp) or fewer sequences at once (--batch)", tc_plan_uses[p.use],
                 tc_human_bytes(a, sizeof a, most), tc_human_bytes(b, sizeof b, memory));
}
