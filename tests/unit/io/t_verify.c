/* t_verify.c - how many threads verify a step: as many as there are CPUs, or as
 * -j asks for, but not more than there is work for; and the order of what they find. */
#include "tests/unit/ckpt_fixture.h"

static int started;
static bool refused;
static int each(int64_t n, int jobs, tc_each_fn *fn, void *ctx, struct tc_err *err)
{
  started += jobs - 1;
  return tc_each(n, refused ? 1 : jobs, fn, ctx, err);      /* one where no thread can be started (t_each) */
}
static long cpus;

#define sysconf(name) ((name) == _SC_NPROCESSORS_ONLN ? cpus : -1)
#define tc_each(n, jobs, fn, ctx, err) each(n, jobs, fn, ctx, err)
#include "io/ckpt/verify.c"

static void test_order(void)
{
  static const char *const text[] = { "c.h5: 1", "a.h5: 2", "b.h5: 3",
                                      "a.h5: 1", "d.h5: 4", "b.h5: 2" };
  static const char *const want[] = { "a.h5: 2", "a.h5: 1", "b.h5: 3",
                                      "b.h5: 2", "c.h5: 1", "d.h5: 4" };
  struct tc_findings f = { 0 };
  for (size_t i = 0; i < sizeof text / sizeof *text; i++) report(&f, TC_ECHECKSUM, text[i]);
  sort_faults(&f);
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    is_str(f.fault[i].text, want[i], "by file, else as found");
  tc_findings_free(&f);
}

int main(void)
{
  test_order();
  static const struct { int64_t jobs; long cpus; int started; } row[] = {
    { 0, 3, 2 }, { 0, 1, 0 }, { 0, -1, 0 }, { 1, 3, 0 }, { 2, 1, 1 }, { 4, 1, 3 } };
  char *dir = tc_sprintf("%s/ckpt", fx_folder()), *step = tc_sprintf("%s/step-00000004", dir);
  fx_save(dir, 4, 1, 4, 0);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_findings f = { 0 };
    cpus = row[i].cpus;
    started = 0;
    is_int(tc_ckpt_verify_step(step, true, row[i].jobs, &f), 0, "good, -j %d on %ld CPUs",
           (int)row[i].jobs, cpus);
    is_int(started, row[i].started, "... threads besides this one");
    tc_findings_free(&f);
  }
  struct tc_findings f = { 0 };
  started = 0;
  is_int(tc_ckpt_verify_step(step, true, 1000, &f), 0, "good, -j 1000");
  struct tc_ckpt *c;
  TC_ASSERT(tc_ckpt_open(&c, step, NULL) == 0);
  is_int(started, c->m->n_files + c->m->n_pieces - 1, "... a thread for each file and each piece");
  tc_ckpt_close(c);
  refused = true;
  is_int(tc_ckpt_verify_step(step, true, 4, &f), 0, "good, without threads");
  char *file = tc_sprintf("%s/rank-00003.h5", step);
  TC_ASSERT(unlink(file) == 0);
  ok(tc_ckpt_verify_step(step, true, 4, &f) < 0 && f.n > 0 && strstr(f.fault[0].text, "rank-00003.h5"),
     "a missing file is found without threads");
  tc_findings_free(&f);
  free(file);
  free(step);
  free(dir);
  fx_clean();
  return done_testing();
}
