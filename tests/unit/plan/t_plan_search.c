/* t_plan_search.c - the planner's search: the rows it finds, what is excluded and why, and its guesses
 * against the programs that are made. */
#include "src/plan/plan.h"
#include "tests/unit/plan_config.h"

#include <math.h>
#include <sched.h>

static const struct tc_plan_family *find_family(const struct tc_plan_found *f, int key,
                                                const char *name)
{
  for (int i = 0; i < f->n_families; i++)
    if (f->family[i].key == key && !strcmp(f->family[i].name, name)) return &f->family[i];
  return NULL;
}

static void test_search(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan_found f;
  struct tc_plan p;
  tc_cluster_read(&k, "a100-40", &err);
  k.nodes = 2;
  k.devices = 4;
  struct tc_config *c = CONFIG("--model.preset=gpt2-1558m", "--train.global_batch=32",
                               "--train.precision=bf16");
  is_int(tc_plan_search(&f, c, &k, 0, 3, &err), 0, "a search: %s", err.text);
  ok(f.n_rows == 3 && f.fitting > 0, "three rows");
  for (int i = 0; i < f.n_rows; i++) {
    const struct tc_plan_row *r = &f.row[i];
    const struct tc_plan_memory *m = &r->plan.cls[r->plan.worst].memory;
    ok((double)m->bytes[TC_DEVICE] <= 40e9, "row %d fits", i);
    ok(!i || r[-1].plan.time.step_s <= r->plan.time.step_s,
       "... and is no faster than the one before");
    near_f(r->guess_bytes, (double)m->bytes[TC_DEVICE], 0.15, "... in the memory that was guessed");
    near_f(r->guess_s, r->plan.time.step_s, 0.2, "... and the time");
    is_int(tc_plan_layout(&p, &r->cfg, 8, &k, true, &err), 0, "... and can be: %s", err.text);
    near_f((double)m->bytes[TC_DEVICE], (double)p.cls[p.worst].memory.bytes[TC_DEVICE], 0.001,
           "... in the memory that a run takes");
  }
  const struct tc_plan_family *x = find_family(&f, TC_KEY_TP, "4");
  ok(x && strstr(x->why, "25 attention heads"), "tp = 4 is excluded: %s", x ? x->why : "");
  x = find_family(&f, TC_KEY_TP, "8");
  ok(x && strstr(x->why, "leaves its node of 4"), "tp = 8 is excluded: %s", x ? x->why : "");
  tc_plan_found_done(&f);
  c->mesh_pp = 3;
  is_int(tc_plan_search(&f, c, &k, 1u << TC_KEY_PP, 3, &err), TC_ELAYOUT, "3 stages on 8 ranks");
  ok(strstr(err.text, "do not divide") != NULL, "... %s", err.text);
  tc_plan_found_done(&f);
  k.device.memory_bytes = 1.5e9;
  is_int(tc_plan_search(&f, c, &k, 0, 3, &err), 0, "1.5 GB: %s", err.text);
  ok(f.n_rows == 0 && f.least_bytes > 1.5e9 && f.least_bytes < 40e9, "nothing fits; %g bytes would",
     f.least_bytes);
  ok(f.least_nodes > 2, "... or %d nodes", f.least_nodes);
  k.nodes = f.least_nodes;
  tc_plan_found_done(&f);
  is_int(tc_plan_search(&f, c, &k, 0, 1, &err), 0, "... with them");
  ok(f.n_rows == 1, "... something fits");
  tc_plan_found_done(&f);
  tc_config_free(c);
}

/* A layout must take each stage of the run: a micro-batch of 4 or 8 none of 10 sequences. */
static void test_stages(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan_found f;
  tc_cluster_read(&k, "h100", &err);
  k.nodes = 1;
  k.devices = 4;
  struct tc_config *c = CONFIG("--model.layers=2", "--model.hidden=16", "--model.heads=2", "--model.context=16",
                               "--model.vocab=256", "--train.global_batch=8", "--stage2.from=3", "--stage2.train.global_batch=10");
  is_int(tc_plan_search(&f, c, &k, 0, 3, &err), 0, "a search for two stages: %s", err.text);
  is_int(f.n_rows, 3, "... finds layouts of both");
  const struct tc_plan_family *x = find_family(&f, TC_KEY_MICRO, "4");
  ok(x && strstr(x->why, "sequences of stage 2"), "... and says why others are excluded: %s", x ? x->why : "");
  tc_plan_found_done(&f);
  tc_config_free(c);
}

/* What rests in host memory is not on the device: weights that are stored elsewhere than used, too. */
static void test_offloaded(void)
{
  const struct { enum tc_data_parallel data; enum tc_offload offload; enum tc_dtype precision; } of[] = {
    { TC_DATA_ZERO1, TC_OFFLOAD_PARAMS, TC_BF16 }, { TC_DATA_ZERO3, TC_OFFLOAD_NO, TC_F32 }, { TC_DATA_ZERO3, TC_OFFLOAD_PARAMS, TC_F32 },
    { TC_DATA_ZERO3, TC_OFFLOAD_UPDATE, TC_BF16 }, { TC_DATA_SERVER, TC_OFFLOAD_NO, TC_F32 }, { TC_DATA_SERVER, TC_OFFLOAD_PARAMS, TC_F32 },
    { TC_DATA_SERVER, TC_OFFLOAD_PARAMS, TC_BF16 } };
  const unsigned fixed = 1u << TC_KEY_PP | 1u << TC_KEY_DP | 1u << TC_KEY_TP | 1u << TC_KEY_MICRO |
                        1u << TC_KEY_DATA | 1u << TC_KEY_RECOMPUTE | 1u << TC_KEY_OFFLOAD;
  struct tc_cluster k;
  struct tc_err err = { 0 };
  tc_cluster_read(&k, "h200", &err);
  k.nodes = 1;
  k.devices = 2;
  struct tc_config *c = CONFIG("--model.preset=gpt2-1558m", "--train.global_batch=2",
                               "--train.micro_batch=1", "--mesh.dp=2", "--mesh.tp=1",
                               "--train.recompute=full");
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    struct tc_plan_found f;
    c->parallel_data = of[i].data;
    c->parallel_offload = of[i].offload;
    c->train_precision = of[i].precision;
    is_int(tc_plan_search(&f, c, &k, fixed, 1, &err), 0, "%s, %s, offload %s: %s",
           tc_word_parallel_data(of[i].data), tc_word_train_precision(of[i].precision),
           tc_word_parallel_offload(of[i].offload), err.text);
    if (ok(f.n_rows == 1, "... a row")) {
      const struct tc_plan_memory *m = &f.row->plan.cls[f.row->plan.worst].memory;
      near_f(f.row->guess_bytes, (double)m->bytes[TC_DEVICE], 0.15, "... in the memory that was guessed");
    }
    tc_plan_found_done(&f);
  }
  tc_config_free(c);
  tc_cluster_done(&k);
}

/* What is guessed of a layout is the same whichever others were guessed before. */
static void test_guessed_alone(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan_found f, one;
  int stages = 0;
  tc_cluster_read(&k, "a100-80", &err);
  k.nodes = 1;
  k.devices = 4;
  struct tc_config *c = CONFIG("--model.preset=gpt2-124m", "--model.layers=4", "--train.global_batch=32",
                               "--mesh.tp=1", "--parallel.schedule=1f1b", "--train.recompute=none",
                               "--parallel.data=ddp");
  const unsigned fixed = 1u << TC_KEY_TP | 1u << TC_KEY_SCHEDULE | 1u << TC_KEY_RECOMPUTE | 1u << TC_KEY_DATA;
  is_int(tc_plan_search(&f, c, &k, fixed, 20, &err), 0, "layouts of several stages: %s", err.text);
  for (int i = 0; i < f.n_rows; i++) {
    const struct tc_plan_row *r = &f.row[i];
    stages |= (int)r->cfg.mesh_pp;
    is_int(tc_plan_search(&one, &r->cfg, &k, fixed | 1u << TC_KEY_PP | 1u << TC_KEY_DP | 1u << TC_KEY_MICRO, 1, &err),
           0, "pp %lld, micro-batches of %lld alone: %s", (long long)r->cfg.mesh_pp,
           (long long)r->cfg.train_micro_batch, err.text);
    if (ok(one.n_rows == 1, "... one layout"))
      near_f(one.row->guess_bytes, r->guess_bytes, 1e-9, "... in the same memory");
    tc_plan_found_done(&one);
  }
  is_int(stages, 7, "with 1, 2 and 4 stages");
  tc_plan_found_done(&f);
  tc_config_free(c);
  tc_cluster_done(&k);
}

/* Of two stages the last also has the head: logits of a large vocabulary beside few layers. */
static void test_guessed_stages(void)
{
  static const enum tc_schedule schedule[] = { TC_SCHEDULE_GPIPE, TC_SCHEDULE_1F1B, TC_SCHEDULE_ZB };
  struct tc_cluster k;
  struct tc_err err = { 0 };
  tc_cluster_read(&k, "a100-80", &err);
  k.nodes = 1;
  k.devices = 2;
  struct tc_config *c = CONFIG("--model.preset=gpt2-124m", "--model.layers=4", "--train.global_batch=16",
                               "--mesh.pp=2", "--train.micro_batch=4");
  for (size_t i = 0; i < sizeof schedule / sizeof *schedule; i++) {
    struct tc_plan_found f;
    c->parallel_schedule = schedule[i];
    is_int(tc_plan_search(&f, c, &k, 1u << TC_KEY_PP | 1u << TC_KEY_MICRO | 1u << TC_KEY_SCHEDULE |
                          1u << TC_KEY_RECOMPUTE | 1u << TC_KEY_DATA, 1, &err), 0, "%s on two stages: %s",
           tc_word_parallel_schedule(schedule[i]), err.text);
    if (ok(f.n_rows == 1, "... one layout"))
      near_f(f.row[0].guess_bytes, (double)f.row[0].plan.cls[f.row[0].plan.worst].memory.bytes[TC_DEVICE], 0.32,
             "... in the memory that was guessed");
    tc_plan_found_done(&f);
  }
  tc_config_free(c);
  tc_cluster_done(&k);
}

/* The rows for a smaller top are the first of those for a larger one: guesses err, so of fewer programs
 * another one may be the fastest. */
static void test_top(void)
{
  static const int tops[] = { 1, 2, 8, TC_PLAN_ROWS };
  enum { TOPS = sizeof tops / sizeof *tops };
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan_found f[TOPS];
  tc_cluster_read(&k, "a100-40", &err);
  k.nodes = 2;
  k.devices = 4;
  struct tc_config *c = CONFIG("--model.preset=gpt2-1558m", "--train.global_batch=32", "--train.precision=bf16");
  for (int i = 0; i < TOPS; i++) {
    is_int(tc_plan_search(&f[i], c, &k, 0, tops[i], &err), 0, "the first %d: %s", tops[i], err.text);
    is_int(f[i].n_rows, tops[i], "... so many rows");
  }
  for (int i = 0; i + 1 < TOPS; i++)
    for (int r = 0; r < TC_MIN(f[i].n_rows, f[TOPS - 1].n_rows); r++) {
      const struct tc_plan_row *few = &f[i].row[r], *many = &f[TOPS - 1].row[r];
      ok(!memcmp(&few->cfg, &many->cfg, sizeof few->cfg) && few->guess_s == many->guess_s &&
         few->plan.time.step_s == many->plan.time.step_s, "row %d of %d is that of the whole list: %g s and %g s",
         r, tops[i], few->plan.time.step_s, many->plan.time.step_s);
    }
  for (int i = 0; i < TOPS; i++) tc_plan_found_done(&f[i]);
  tc_config_free(c);
  tc_cluster_done(&k);
}

/* Rates of GPT-3's table 2.1; between two sizes the nearer one by ratio; warm-up by tokens, within the run. */
static void test_rates(void)
{
  const struct { double parameters, lr; } row[] = {
    { 1e6, 6e-4 }, { 125e6, 6e-4 }, { 209e6, 6e-4 }, { 210e6, 3e-4 }, { 760e6, 2.5e-4 }, { 1.3e9, 2e-4 },
    { 2.7e9, 1.6e-4 }, { 6.7e9, 1.2e-4 }, { 13e9, 1e-4 }, { 40e9, 1e-4 }, { 175e9, 6e-5 }, { 4e11, 6e-5 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    ok(tc_plan_rate(row[i].parameters)->lr == row[i].lr, "%g parameters: %g", row[i].parameters, row[i].lr);
  is_int((int)tc_plan_warmup(0.5e6, 1000000), 750, "375 M tokens of warm-up");
  is_int((int)tc_plan_warmup(4e6, 1000000), 94, "... rounded up");
  is_int((int)tc_plan_warmup(0.5e6, 100), 5, "at most a twentieth of the steps");
}

/* Layouts whose host memory is not known come last; if it is known, those that exceed it are left out. */
static void test_host(void)
{
  struct tc_config *c = CONFIG("--model.preset=tiny", "--train.global_batch=8");
  struct tc_cluster k;
  struct tc_plan_found f;
  struct tc_err err = { 0 };
  is_int(tc_cluster_read(&k, "h100", &err), 0, "a device");
  k.nodes = 1, k.devices = 2, k.device.memory_bytes = 8.5e6;
  is_int(tc_plan_search(&f, c, &k, 0, TC_PLAN_ROWS, &err), 0, "a search without host memory: %d rows", f.n_rows);
  int offloaded = 0, late = 0;
  double host = 0;
  for (int i = 0; i < f.n_rows; i++) {
    const bool off = f.row[i].cfg.parallel_offload != TC_OFFLOAD_NO;
    ok(f.row[i].host_unchecked == off, "row %d %s host memory", i + 1, off ? "needs" : "needs no");
    if (offloaded && !off) late++;
    offloaded += off;
    host = TC_MAX(host, tc_plan_host_bytes(&f.row[i].plan, &k));
  }
  ok(offloaded > 0 && offloaded < f.n_rows && !late, "%d offloaded rows of %d, all at the end", offloaded, f.n_rows);
  tc_plan_found_done(&f);
  k.device.host_bytes = host / 2;
  is_int(tc_plan_search(&f, c, &k, 0, TC_PLAN_ROWS, &err), 0, "with half of the most: %d rows", f.n_rows);
  for (int i = 0; i < f.n_rows; i++)
    ok(!f.row[i].host_unchecked && tc_plan_host_bytes(&f.row[i].plan, &k) <= host / 2, "row %d fits", i + 1);
  tc_plan_found_done(&f);
  /* On CPUs, state on the host is in the same memory as the ranks. */
  struct tc_plan p;
  c->parallel_offload = TC_OFFLOAD_PARAMS;
  is_int(tc_plan_layout(&p, c, 1, &k, true, &err), 0, "a layout that offloads");
  const double gpu = tc_plan_host_bytes(&p, &k), device = (double)p.cls[0].memory.bytes[TC_DEVICE];
  strcpy(k.device.name, "cpu");
  ok(gpu > 0 && tc_plan_host_bytes(&p, &k) == gpu + device, "a CPU's host has both: %g + %g", gpu, device);
  tc_cluster_done(&k);
  tc_config_free(c);
}

/* Where stages balanced by time do not fit: others, which take little more than the division of all that takes least. */
static void test_balance(void)
{
  static const struct { const char *preset; int layers; } row[] = { { "llama3-70b", 12 }, { "gpt3-6.7b", 9 }, { "gemma2-2b", 13 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_cluster k;
    struct tc_err err = { 0 };
    struct tc_plan_found f;
    struct tc_plan p;
    char preset[40], layers[40], text[48];
    snprintf(preset, sizeof preset, "--model.preset=%s", row[i].preset);
    snprintf(layers, sizeof layers, "--model.layers=%d", row[i].layers);
    struct tc_config *c = CONFIG(preset, layers, "--train.precision=bf16", "--train.global_batch=4", "--train.micro_batch=1",
                                 "--mesh.pp=2", "--parallel.schedule=1f1b");
    tc_cluster_read(&k, "h100", &err);
    k.devices = 2;
    double least = INFINITY, by_time = 0;
    for (int cut = 0; cut < row[i].layers; cut++) {        /* 0: by time */
      struct tc_config one = *c;
      snprintf(text, sizeof text, "0-%d,%d-%d", cut - 1, cut, row[i].layers - 1);
      if (cut == 1) snprintf(text, sizeof text, "0,1-%d", row[i].layers - 1);
      if (cut == row[i].layers - 1) snprintf(text, sizeof text, "0-%d,%d", cut - 1, cut);
      one.mesh_stages = cut ? text : c->mesh_stages;
      is_int(tc_plan_layout(&p, &one, 2, &k, true, &err), 0, "%s, stages %s", row[i].preset, one.mesh_stages);
      const double bytes = (double)p.cls[p.worst].memory.bytes[TC_DEVICE];
      least = TC_MIN(least, bytes);
      if (!cut) by_time = bytes;
    }
    if (!ok(least < by_time, "%s: %.1f GB by time, %.1f at least", row[i].preset, by_time * 1e-9, least * 1e-9)) continue;
    k.device.memory_bytes = (least + by_time) / 2;
    is_int(tc_plan_search(&f, c, &k, (1u << TC_KEYS) - 1, 3, &err), 0, "... a search between them: %s", err.text);
    const double found = f.n_rows ? (double)f.row->plan.cls[f.row->plan.worst].memory.bytes[TC_DEVICE] : INFINITY;
    ok(found <= k.device.memory_bytes && found < 1.15 * least, "... finds %.1f GB: %s", found * 1e-9,
       f.n_rows ? f.row->cfg.mesh_stages : "nothing");
    tc_plan_found_done(&f);
    tc_config_free(c);
  }
}

/* Layouts that are compiled at the same time give what one after the other gives. */
static void test_threads(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan_found f[2];
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  if (CPU_COUNT(&all) < 2) {
    skip("one CPU");
    return;
  }
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  tc_cluster_read(&k, "a100-40", &err);
  k.nodes = 2;
  k.devices = 4;
  k.device.memory_bytes = 12e9;                  /* so that some do not fit, and others are skipped for them */
  struct tc_config *c = CONFIG("--model.preset=gpt2-774m", "--train.global_batch=32", "--train.precision=bf16");
  for (int i = 0; i < 2; i++) {
    sched_setaffinity(0, sizeof one, i ? &all : &one);
    is_int(tc_plan_search(&f[i], c, &k, 0, TC_PLAN_ROWS, &err), 0, "a search by %s", i ? "all CPUs" : "one CPU");
  }
  int same = f[0].n_rows == f[1].n_rows;
  for (int i = 0; same && i < f[0].n_rows; i++)
    for (int key = 0; key < TC_KEYS; key++)
      same &= tc_plan_key_value(&f[0].row[i].cfg, key) == tc_plan_key_value(&f[1].row[i].cfg, key) &&
              f[0].row[i].plan.time.step_s == f[1].row[i].plan.time.step_s;
  ok(same && f[0].n_rows > 8, "the same %d rows", f[0].n_rows);
  tc_plan_found_done(&f[0]);
  tc_plan_found_done(&f[1]);
  tc_config_free(c);
}

int main(void)
{
  test_search();
  test_threads();
  test_balance();
  test_top();
  test_stages();
  test_offloaded();
  test_guessed_alone();
  test_guessed_stages();
  test_rates();
  test_host();
  return done_testing();
}
