/* t_simulate.c - what the check and the simulation of pipeline schedules (simulate.c) say of schedules and queues of
 * transfers in which one thing is wrong, one after the other, as digests (digest.h). Lines are KIND P V M. */
#include "src/schedule/pipeline.h"
#include "tests/unit/named.h"
#include "tests/unit/digest.h"

static void say_sched(FILE *f, const struct tc_pipeline *s, const struct tc_transfers *t,
                      const char *what, int r, int i)
{
  const struct tc_pipeline_cost even = { 1, 1, 1, 0 };
  struct tc_err err = { 0 };
  struct tc_simulation *sim = NULL;
  int rc = tc_pipeline_check(s, &err);
  fprintf(f, "%s %d %d: %d %s", what, r, i, rc, rc < 0 ? err.text : "");
  rc = tc_pipeline_simulate(&sim, s, &even, 1, t, &err);
  fprintf(f, " %d %s\n", rc, rc < 0 ? err.text : "");
  tc_simulation_free(sim);
}

/* Item i of rank r, in its work, its place, and what it is of. */
static void break_item(FILE *f, struct tc_pipeline *s, const struct tc_transfers *t, int r, int i)
{
  struct tc_item *x = &s->item[r][i], was = x[0], next = x[1];
  for (int k = 0; k < TC_WORKS; k++) {
    x->work = (uint8_t)k;
    say_sched(f, s, t, "work", r, i);
  }
  x->work = was.work;
  for (int d = -was.virtual_stage - 1; d <= s->v - was.virtual_stage; d++) {
    x->virtual_stage = was.virtual_stage + d;
    say_sched(f, s, t, "virtual stage", r, i);
  }
  x->virtual_stage = was.virtual_stage;
  for (int mb = -1; mb <= s->m; mb++) {
    x->mb = mb;
    say_sched(f, s, t, "micro-batch", r, i);
  }
  x[0] = next;
  x[1] = was;
  say_sched(f, s, t, "swapped", r, i);
  x[0] = was;
  x[1] = next;
}

static int break_sched(FILE *f, const char *line, struct tc_err *err)
{
  char name[20] = "";
  int p = 0, v = 0, m = 0;
  struct tc_pipeline *s;
  struct tc_transfers *t;
  sscanf(line, "%19s %d %d %d", name, &p, &v, &m);
  TC_TRY(tc_pipeline_new(&s, schedule_named(name), p, v, m, err));
  TC_TRY(tc_pipeline_transfers(&t, s, NULL, 0, err));
  for (int r = 0; r < p; r++) {
    for (int i = 0; i + 1 < s->n_items[r]; i++) {
      break_item(f, s, NULL, r, i);
      break_item(f, s, t, r, i);
    }
    for (int i = 0; i + 1 < t->n_queue[r]; i++) {
      int32_t *q = &t->queue[r][i], was = q[0];
      q[0] = q[1], q[1] = was;
      say_sched(f, s, t, "queue", r, i);
      q[1] = q[0], q[0] = was;
    }
    s->n_items[r]--;
    say_sched(f, s, NULL, "short", r, 0);
    s->n_items[r]++;
    t->n_queue[r]--;
    say_sched(f, s, t, "short queue", r, 0);
    t->n_queue[r]++;
  }
  tc_transfers_free(t);
  tc_pipeline_free(s);
  return 0;
}

static char *make(const char *line)
{
  char *text = NULL;
  size_t bytes = 0;
  struct tc_err err = { 0 };
  FILE *f = open_memstream(&text, &bytes);
  const int rc = break_sched(f, line, &err);
  fclose(f);
  if (rc >= 0) return text;
  free(text);
  return tc_sprintf("status %d: %s", rc, err.text);
}

int main(int argc, char **argv) { return digests(argc, argv, "simulate", make); }
