/* t_loop_calls.c - a whole run of one rank (src/train/loop.c, src/run), call by call (script.h): from the making of
 * communicators to freeing them, with each call that may fail failing in turn. */
#include "src/train/parts.h"
#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "src/comm/nccl.h"
#include "src/model/optim.h"
#include "src/launch/process.h"
#include "src/program/setup.h"
#include "src/run/impl.h"
#include "src/watch/watch.h"
#include "tests/unit/script.h"

#include <errno.h>
#include <jansson.h>

static const struct scene {
  const char *name;
  int rank, world, pp, dp, tp;
  bool hub, mpi, nccl, native, separate, bf16;
  enum tc_device_kind device;
  int index; /* of this rank's GPU */
  int64_t start, stop_at, warmup, eval_every, eval_batches, bad;
  int rollback, stops; /* after so many steps */
  const char *out, *ckpt;
  bool borrowed, left; /* another run's checkpoint; the writer is left behind */
} scenes[] = {
  { "alone", 0, 1, 1, 1, 1, .device = TC_DEVICE_CPU, .index = -1, .eval_every = 2, .out = "o", .ckpt = "" },
  { "first of four", 0, 4, 1, 2, 2, .mpi = true, .nccl = true, .native = true, .separate = true,
    .bf16 = true, .device = TC_DEVICE_AUTO, .index = 2, .start = 3, .bad = 5, .rollback = 1, .out = "o",
    .ckpt = "c", .borrowed = true },
  { "third of four", 2, 4, 2, 2, 1, .hub = true, .nccl = true, .device = TC_DEVICE_AUTO, .index = -1,
    .stop_at = 3, .eval_every = 5, .eval_batches = 2, .bad = 2, .warmup = 9, .out = "o",
    .ckpt = "c" },
  { "first of two", 0, 2, 1, 2, 1, .hub = true, .nccl = true, .device = TC_DEVICE_CUDA, .index = 0,
    .start = 2, .stop_at = 4, .stops = 1, .warmup = 6, .out = "o", .ckpt = "c", .left = true },
  { "second of two", 1, 2, 2, 1, 1, .mpi = true, .device = TC_DEVICE_REF, .index = 1, .start = 6,
    .out = "o", .ckpt = "c", .borrowed = true, .warmup = 6 },
  { "done", 0, 1, 1, 1, 1, .device = TC_DEVICE_CPU, .index = -1, .start = 7, .out = "o", .ckpt = "" },
  { "no bf16", 1, 2, 1, 2, 1, .mpi = true, .bf16 = true, .device = TC_DEVICE_CPU, .index = -1, .out = "o",
    .ckpt = "c" },
  { "no folder", 0, 1, 1, 1, 1, .device = TC_DEVICE_CPU, .index = -1, .out = "", .ckpt = "" },
};

static const struct scene *the;
static char fake[100]; /* their addresses stand for objects that loop.c and src/run only pass on */
static int fakes, opened, steps, bads;
static struct tc_train *train, ended; /* the run, from its first call on; as it was when it was freed */
static struct tc_mesh mesh;
static int32_t nodes[16];          /* of the mesh's ranks: all on one */
static struct tc_graph graph[TC_PROGRAMS];
static struct tc_program program[TC_PROGRAMS];
static bool in_turns(void *d) { return (void)d, false; }
static struct tc_nccl_ops nccl = { .in_turns = in_turns };
static struct tc_device_ops ops;
static struct tc_device device[3];

static void *make(void) { return &fake[++fakes]; }
static int no(const void *p) { return p ? (int)((const char *)p - fake) : -1; }
static bool bf16(struct tc_device *d) { return d != device || the->separate; }

static struct tc_comm *comm(const char *kind, int id, const int32_t *members, int size,
                            const struct tc_comm_opts *o)
{
  note("%s %d %s %g", kind, id, o->name, o->deadline_s);
  for (int i = 0; i < size; i++) note("... %d %s", members ? members[i] : -1, o->rank_names[i]);
  return make();
}

static int device_open(struct tc_device **out, const char *name, int threads, struct tc_err *err)
{
  int rc = call(err, "device %s %d", name, threads);
  if (rc == 0) *out = &device[opened++];
  return rc;
}

static int exec_new(struct tc_exec **out, const struct tc_exec_opts *o, struct tc_program *const *p,
                    int n, struct tc_err *err)
{
  for (int a = 0; a < TC_SETS; a++)
    if (o->comm[a] || o->native[a]) note("set %s: %d %d", tc_set_name[a], no(o->comm[a]), no(o->native[a]));
  *out = make();
  return call(err, "exec %d %d %d %d %d %d %d %d %d", o->device == train->run.device,
              o->host == train->run.host, o->mesh == &mesh, o->rank, o->no_fusion, o->no_capture,
              !memcmp(p, train->run.prog, sizeof train->run.prog), n, o->fill_ctx == train);
}

static int exec_run(struct tc_exec *x, int i, const struct tc_runtime *r, struct tc_err *err)
{
  return call(err, "run %d %d %d %d %g %g %g %g %g %g of %d", no(x), i, (int)r->seed, (int)r->step,
              (double)r->lr, (double)r->beta1, (double)r->beta2, (double)r->eps,
              (double)r->weight_decay, (double)r->clip, (int)train->batches.eval_batch);
}

static int report(const struct tc_step_report *r, const char *what, struct tc_err *err)
{
  return call(err, "%s %d: %g %g %g %g %d %d %d %d", what, (int)r->step, r->loss, r->validated ? r->val_loss : (double)NAN,
              r->lr, r->grad_norm, (int)r->tokens, (int)r->step_ns, (int)r->wait_ns,
              (int)r->pp_wait_ns);
}

static void event(const struct tc_event *e)
{
  note("event %s %d %d %d %d %d %d", e->name, (int)e->begin_ns, (int)e->end_ns, (int)e->bytes,
       e->mb, e->track, e->kind);
}

static int rollback(const struct tc_step_report *r, int64_t *step, struct tc_err *err)
{
  int rc = report(r, "rollback", err);
  *step = r->step - 2;
  return rc;
}

static int finish(const struct tc_step_report *r, const int64_t *flag, bool *stop,
                  struct tc_err *err)
{
  int rc = report(r, "finish", err);
  note("flag %d", (int)flag[1]);
  *stop = ++steps == the->stops;
  return rc;
}

static int save_ended(bool wait, bool last, struct tc_err *err)
{
  return call(err, "save end %d %d", wait, last);
}

static int open_text(void *rank, const struct tc_err *err)
{
  return note("... %d %s", rank == train, err->text);
}

#define tc_rate_at(r, step) (note("rate of step %d", (int)(step)), 0.5 * (double)(step) + 0.125)
#include "src/train/when.c"

#define tc_comm_agree(world, names, rc, err) \
  (note("agree %d %d", no(world), rc), rc < 0 ? rc : call(err, "agreed"))
#define tc_comm_same_selection(world, names, s, file, err) call(err, "one table in %d", no(world))
#define tc_setup_mesh(out, c, n, nodes, devices, err) \
  (*(out) = &mesh, (void)(c), call(err, "mesh %d %d %d", n, (nodes)[1], devices))
#define tc_setup_program(o, c, m, rows, err)                                                  \
  ((o)->gpt.batch = 4, (o)->model.context = 8, (o)->gpt.dtype = the->bf16 ? TC_BF16 : TC_F32, \
   (o)->gpt.dropout = 0.5f, call(err, "program"))
#define tc_trace_comm(trace, name, o) note("trace of %s", name)
#define tc_comm_self(o) comm("self", 0, NULL, 1, o)
#define tc_comm_thread(h, id, mine, m, n, o) comm((mine) == the->rank ? "thread" : "?", id, m, n, o)
#define tc_comm_mpi(out, id, m, n, o, err) (*(out) = comm("mpi", id, m, n, o), call(err, "made"))
#define tc_comm_usable(c, err) call(err, "usable %d", no(c))
#define tc_ranks_abort(status, why) note("abort %d %s", status, why)
#define tc_mesh_group(m, r, a, out) \
  (note("group %d %d", r, a), (out)[0] = r, (out)[1] = (r + 1) % 4)
#define tc_comm_nccl_agree(use, want, o, d, x, w, names, err) \
  (*(use) = the->native, tc_fail(err, TC_EUSER, "no NCCL"),   \
   call(err, "nccl? %s %d %d", tc_word_run_comm(want), (o) == &nccl, no(w)))
#define tc_comm_nccl(out, o, d, host, last, m, p2p, opts, err) \
  (*(out) = comm("nccl", no(last), m, 2, opts), call(err, "of %d %d", no(host), p2p))
#define tc_log note
#define tc_warn note
#define tc_folder_make(path, err) call(err, "make %s", path)
#define tc_access(path, how) \
  (call(&(struct tc_err){ 0 }, "access %s %d", path, how) < 0 ? EACCES : 0)
#define tc_process_pool(n, err) call(err, "pool %d", n)
#define tc_ranks_gpu_name(me, name, size) snprintf(name, size, "cuda:%d", (me)->device)
#define tc_device_open device_open
#define tc_run_head_chunk(r, bytes, err) call(err, "head chunk %d", (int)(bytes))
#define tc_train_planned_bytes(t) 3.0
#define tc_run_could_fit(r, err) call(err, "could fit")
#define tc_program_new(out, o, m, rank, like, stats, err)                          \
  (*(out) = (m) == &mesh ? &program[(out)-train->run.prog] : NULL,                       \
   call(err, "new program %d %d %g %d", (o)->kind, rank, (double)(o)->gpt.dropout, \
        (like) ? (int)((struct tc_program *)(like)-program) : -1))
#define tc_run_fits(r, err) call(err, "fits")
#define tc_exec_new exec_new
#define tc_rss_bytes(peak) (peak ? 1 : 77)
#define tc_train_data_open(t, err) call(err, "data")
#define tc_train_plan(t, err) call(err, "plan")
#define tc_train_trace_open(t, err) call(err, "trace")
#define tc_train_eval_windows(t, s) TC_MIN(10 - 4 * (s), (2 - (s)) * (t)->run.opts.gpt.batch)
#define tc_data_sources(d) 2
#define tc_data_source_share(d, s) ((s) ? 0.25 : 0.75)
#define tc_train_counted(t, step) 32
#define tc_train_val_counted(t, s) ((double)tc_train_eval_windows(t, s))
#define tc_train_val_count(t, err) call(err, "counted")
#define tc_train_eval_batches(t, s) (note("batches of %d", s), 2 - (s))
#define tc_trace_pause(t) (note("pause"), 42)
#define tc_trace_resume(t, kind, name, t0) note("resume %d %s %d", kind, name, (int)(t0))
#define tc_exec_run exec_run
#define tc_exec_scalar(x, i, id) (2.5 + 10 * (i) + (double)(id))
#define tc_now_ns script_now
#define tc_fault_parse(f, text, n, err) call(err, "fault %s %d", text, n)
#define tc_fault_begin(f, r, s) note("fault begins %d %d", r, (int)(s))
#define tc_fault_end(f, r, s, ns) note("fault ends %d %d %d", r, (int)(s), (int)(ns))
#define tc_fault_fire(t, r) report(r, "fire", NULL)
#define tc_exec_wait_ns(x, axis) (1000 + (axis))
#define tc_trace_add(t, e) event(e)
#define tc_writer_copy(s) note("copy")
#define tc_train_save_begin(t, step) note("save begins %d", (int)(step))
#define tc_train_save_end(t, wait, last, err) save_ended(wait, last, err)
#define tc_train_asked_before(t, err) call(err, "asked before")
#define tc_metrics_begin(t) note("counters %d", (t) == train)
#define tc_time_limit_first_step(t) (void)((t)->limit.boundary_ns = script_now())
#define tc_at_step(s) note("step %d", (int)(s))
#define tc_at_phase(doing) note("at %s", doing)
#define tc_train_trace_step(t, s, err) call(err, "trace of %d", (int)(s))
#define tc_rollback_bad(t, r) (note("bad?"), (r)->step == the->bad && !bads++)
#define tc_train_data_check(t, err) call(err, "check")
#define tc_metrics_add(t, r) report(r, "line", NULL)
#define tc_rollback_go(t, r, step, err) rollback(r, step, err)
#define tc_train_read_flags(t, r, flag, err) ((flag)[1] = (r)->step, report(r, "flags", err))
#define tc_progress(t, r, p, rate) note("progress %.9g %d", rate, (int)((p)->shown_ns += 3))
#define tc_progress_begin(t) note("introduction %d", (t) == train)
#define tc_progress_end(t) note("results %d", (t) == train)
#define tc_train_finish_step(t, r, flag, stop, err) finish(r, flag, stop, err)
#define tc_train_writer_close(t, abandon) (ended = *(t), note("writer closes %d", abandon), !the->left)
#define tc_comms_free(c, n) all_free(c, n)
#define tc_owner_free(o) note("no owner %d", no(o))
#define tc_metrics_close(t) note("no lines")
#define tc_trace_free(t) note("no trace")
#define tc_straggler_free(s) note("no stragglers %d", no(s))
#define tc_exec_free(x) note("no exec %d", no(x))
#define tc_program_free(p) note("no program %d", (p) ? (int)((p)-program) : -1)
#define tc_device_close(d) note("no device %d", (d) ? (int)((d)-device) : -1)
#define tc_train_data_close(t) note("no data %d %d", no((t)->batches.train), no((t)->batches.val))
#define tc_mesh_free(m) note("no mesh %d", (m) == &mesh)
#define tc_annotations_free(rows) note("no rows")
#define tc_train_data_same(t, err) call(err, "same data")
#define tc_tasks_open(t, err) call(err, "tasks")
#define tc_tasks_same(t, err) call(err, "same tasks")
#define tc_tasks_ready(t) note("tasks are ready")
#define tc_tasks_ask(t, step, err) call(err, "ask after %d", (int)(step))
#define tc_tasks_close(t) note("no tasks")
#define tc_train_folders(t, err) call(err, "folders")
#define tc_train_own(t, err) ((t)->ckpt.owner = make(), (t)->ckpt.lease = tc_strdup("home"), call(err, "own"))
#define tc_request_begin(t) note("requests")
#define tc_interval_say(t) note("interval")
#define tc_start_say(t) note("start %d", (t) == train)
#define tc_train_restore(t, err)                                                                   \
  (note("back %d %d %d %d", (int)(t)->batches.eval_batch, (int)(t)->ckpt.saved_step, (int)(t)->rollback.back_to, \
        (t)->log.file.fd),                                                                          \
   (t)->ckpt.start_step = the->start, (t)->ckpt.borrowed = the->borrowed, call(err, "restore"))
#define tc_run_attention(r, err) call(err, "attention %d", (r) == &train->run)
#define tc_run_tune(r, known, time, err) call(err, "tune %d %d", (r) == &train->run, (known) == NULL)
#define tc_run_same_options(r, err) call(err, "same options")
#define tc_run_stages_layout(r, c, devices, err) 0
#define tc_train_stage(t, step) ((void)0)
#define tc_train_tokens(t, step) 0
#define tc_train_border(t, every, step) false
#define tc_train_writer_open(t, err) call(err, "writer")
#define tc_metrics_open(t, step, err) call(err, "lines from %d", (int)(step))
#define tc_train_run_json(t, err) call(err, "run.json %d", (int)(t)->run.base_rss_bytes)
#define tc_train_trace_end(t, rc, err) \
  (note("trace ends %d", rc), rc < 0 ? rc : call(err, "written"))
#define tc_time_limit_begin(t) \
  (train = (t), (t)->batches.train = make(), (t)->batches.val = make(), (t)->batches.val_loss = val_loss, \
   note("walltime %d", open_text(t, &(struct tc_err){ .text = "" })))
#define tc_log_set_rank(r) note("rank %d", r)
#define tc_train_trace_new(t) note("new trace")
#define tc_train_guard_clear(t) note("guard clear")

static double val_loss[2];

static bool all_free(struct tc_comm *const *c, int n)
{
  for (int i = 0; i < n; i++)
    if (c[i]) note("no comm %d", no(c[i]));
  return true;
}

#include "src/program/of_run.c"
#include "src/run/comms.c"
#include "src/run/open_device.c"
#include "src/run/run.c"
#include "src/train/loop.c"

static void play(void *ctx)
{
  static char *const who[] = { "rank 0", "rank 1", "rank 2", "rank 3" };
  const struct scene *s = the = ctx;
  struct tc_rank_info info[4] = { 0 };
  int32_t node[4] = { 0, 1, 1, 2 };
  const struct tc_ranks ranks = { .world = s->world, .info = info, .node_of_rank = node };
  const struct tc_config cfg = { .run_out = (char *)(uintptr_t)s->out,
                                 .run_fault = "none",
                                 .run_comm = TC_COMM_AUTO,
                                 .run_device = s->device,
                                 .run_deadline = 30,
                                 .run_poison = true,
                                 .run_fuse = s->rank == 0,
                                 .run_capture = s->rank == 1,
                                 .train_tf32 = true,
                                 .train_precision = s->bf16 ? TC_BF16 : TC_F32,
                                 .train_steps = 6,
                                 .train_stop_at = s->stop_at,
                                 .train_warmup = s->warmup ? s->warmup : TC_AUTO,
                                 .train_stop_if = (char *)(uintptr_t)"",
                                 .train_seed = 11,
                                 .train_seed_weights = TC_AUTO, .train_seed_data = 9, .train_seed_dropout = 12,
                                 .train_beta1 = 0.25,
                                 .train_beta2 = 0.75,
                                 .train_eps = 0.0625,
                                 .train_weight_decay = 0.03125,
                                 .train_clip = 3,
                                 .train_eval_every = s->eval_every,
                                 .train_eval_batches = s->eval_batches,
                                 .train_rollback = s->rollback,
                                 .ckpt_dir = (char *)(uintptr_t)s->ckpt };
  struct tc_err err = { .text = "" };
  fakes = opened = steps = bads = 0;
  for (int i = 0; i < s->world; i++) info[i].device = s->index, info[i].n_node_devices = 2;
  mesh = (struct tc_mesh){ .world = s->world, .node = nodes };
  for (int a = 0; a < TC_AXES; a++) mesh.size[a] = 1;
  mesh.size[TC_PP] = s->pp, mesh.size[TC_REST] = s->dp, mesh.size[TC_TP] = s->tp;
  tc_mesh_groups(mesh.group, mesh.size);
  for (int i = 0; i < TC_PROGRAMS; i++) {
    graph[i] = (struct tc_graph){ .loss = i + 1, .grad_norm = i + 5 };
    program[i].graph = &graph[i];
  }
  ops = (struct tc_device_ops){ .nccl = s->nccl ? &nccl : NULL,
                                .separate = s->separate,
                                .has_bf16 = bf16 };
  for (int i = 0; i < 3; i++) device[i] = (struct tc_device){ .ops = &ops };
  const struct tc_train_args args = { .cfg = &cfg,
                                      .ranks = &ranks,
                                      .rank_names = who,
                                      .rank = s->rank,
                                      .threads = 3,
                                      .hub = s->hub ? make() : NULL,
                                      .mpi = s->mpi };
  int rc = tc_train(&args, &err);
  fprintf(script.out, "%d %s; %d %d %d %d\n", rc, err.text, device[0].poison, device[0].tf32,
          ended.ckpt.borrowed, (int)ended.run.base_rss_bytes);
  if (!s->left) return;
  free(ended.run.names[TC_SETS + 1]);
  free(ended.out);
  free(ended.ckpt.lease);
  free(ended.ckpt.dir);
  free(ended.run.stack);
  free(train);
}

static char *make_scene(const char *line)
{
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
    if (!strcmp(scenes[i].name, line)) return script_play(play, (void *)(uintptr_t)&scenes[i]);
  return tc_strdup("none");
}

int main(int argc, char **argv)
{
  alarm(300);
  return digests(argc, argv, "run", make_scene);
}
