/* metrics_file.c - the file metrics.jsonl: cut when a run resumes or rolls back, written line by
 * line, opened again when it was removed or renamed.
 *
 * - The file is cut in place, so that who follows it (tail -f) goes on, where no other process can have it open: in a
 *   rollback, and where the start before has ended. Otherwise (the start before was on another node, and was lost or
 *   killed with it) the lines that stay are copied to a new file, which is renamed over the old one when it is on disk:
 *   a superseded start that still runs has the old file open, so its lines are not mixed with those of the new start.
 *   So is a file whose lines to keep are not its first. A file that cannot be read to its end stays as it is.
 * - Only a regular file of metrics is read or written, also through a symbolic link: a pipe or a device may
 *   block for ever, and another program's file is not ours to change.
 * - Within a run an error costs lines, not the run, and gives one warning. */
#include "io/ckpt/owner.h"
#include "io/folder.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file ---- */

/* Owned. */
static char *metrics_path(const struct tc_train *t)
{
  return t->run.rank == 0 ? tc_sprintf("%s/metrics.jsonl", t->out)
                      : tc_sprintf("%s/metrics.%d.jsonl", t->out, t->run.rank);
}

static const struct tc_output_kind metrics = { "a metrics.jsonl of tercio train", { "{\"step\":" } };
static const struct tc_output_opts tc_metrics_opts = { .kind = &metrics, .instead = "take another run.out",
                                                 .zeros = true };

/* For reading and appending; -1 with errno. */
static int open_there(const char *path)
{
  struct tc_again again = { 0 };
  int fd;
  do fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  while (fd < 0 && tc_again(&again, errno));
  return fd;
}

/* A file of metrics, made if it is not there. Its descriptor, or < 0. */
static int open_file(const char *path, struct tc_err *err)
{
  TC_TRY(tc_output_check(path, &tc_metrics_opts, err));
  int fd = open_there(path);
  if (fd < 0 && errno == ENOENT) {
    TC_TRY(tc_output_text(path, &tc_metrics_opts, "", err));
    fd = open_there(path);
  }
  return fd < 0 ? tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno)) : fd;
}

/* The step of a line that is whole, or -1. */
static int64_t step_of(const char *line, size_t len)
{
  json_t *o = json_loadb(line, len, 0, NULL), *step = json_object_get(o, "step");
  int64_t n = line[len - 1] == '\n' && json_is_integer(step) ? json_integer_value(step) : -1;
  json_decref(o);
  return n;
}

/* A stream on a descriptor of its own, NULL with errno. */
static FILE *stream(int fd, const char *how)
{
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  FILE *f = own < 0 ? NULL : fdopen(own, how);
  if (!f && own >= 0) close(own);
  return f;
}

/* Copies the whole lines of steps up to `step`; to < 0: none. *cut <- where they end, if they are the file's first, or
 * -1. */
static int copy_lines(int from, int to, const char *path, int64_t step, int64_t *cut, struct tc_err *err)
{
  char *line = NULL;
  size_t cap = 0;
  FILE *in = stream(from, "r"), *out = to < 0 ? NULL : stream(to, "a");
  int unread = in ? 0 : errno, unwritten = out || to < 0 ? 0 : errno;
  bool left_out = false;
  *cut = 0;
  if (in) rewind(in);                           /* the descriptors share their place */
  while (!unread && !unwritten) {
    errno = 0;
    ssize_t len = getline(&line, &cap, in);
    if (ferror(in) || (len < 0 && !feof(in))) unread = errno ? errno : EIO;  /* within a line too */
    if (unread || len < 0) break;
    const int64_t n = step_of(line, (size_t)len);
    const bool stays = n >= 0 && n <= step;
    if (stays) *cut = left_out || *cut < 0 ? -1 : *cut + len;
    left_out |= !stays;
    if (stays && out && fwrite(line, 1, (size_t)len, out) != (size_t)len) unwritten = errno;
  }
  if (in) fclose(in);
  if (out && fclose(out) && !unwritten) unwritten = errno;
  free(line);
  if (unread)
    return tc_fail(err, TC_EUSER, "cannot read %s: %s; it is left as it is. Move it away to go on "
                   "without its lines", path, strerror(unread));
  return unwritten ? tc_fail(err, TC_EUSER, "cannot rewrite %s: %s; it is left as it is", path,
                             strerror(unwritten)) : 0;
}

/* Puts a new file in the place of the one that is open as `old`, with its lines up to `step`. The
 * new one's descriptor, or < 0. */
static int rewrite(int old, const char *path, int64_t step, struct tc_err *err)
{
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, &tc_metrics_opts, err));
  int64_t cut;
  int rc = step > 0 ? copy_lines(old, tc_output_fd(f), path, step, &cut, err) : 0;
  /* Lines go to this file, whatever has its name by then. */
  const int fd = rc < 0 ? -1 : fcntl(tc_output_fd(f), F_DUPFD_CLOEXEC, 0);
  if (rc == 0 && (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0))
    rc = tc_fail(err, TC_EUSER, "cannot write %s: %s", path, strerror(errno));
  if (rc == 0) rc = tc_output_finish(f, err);
  else tc_output_abandon(f);
  if (rc == 0) return fd;
  if (fd >= 0) close(fd);
  return rc;
}

/* Cuts the file after the lines up to `step`, which no other process has open. 1: done; 0: it has to be rewritten. */
static int cut_in_place(int fd, const char *path, int64_t step, struct tc_err *err)
{
  int64_t cut;
  TC_TRY(copy_lines(fd, -1, path, step, &cut, err));
  if (cut < 0) return 0;
  if (ftruncate(fd, cut) == 0 && fsync(fd) == 0) return 1;
  return tc_fail(err, TC_EUSER, "cannot cut %s after step %lld: %s. Move it away to go on without its lines", path,
                 (long long)step, strerror(errno));
}

/* Whether fd, if it is open, is what has this name, or that can't be told. */
static bool is_same_file(int fd, const char *path)
{
  struct stat mine, there;
  if (fd < 0) return false;
  const int why = fstat(fd, &mine) < 0 ? errno : tc_stat(path, &there);
  return why ? why != ENOENT && why != ENOTDIR : mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

static bool has_metrics(const struct tc_train *t) { return t->run.rank == 0 || t->run.cfg->run_all_ranks; }

int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err)
{
  struct tc_log *m = &t->log;
  m->wanted = has_metrics(t);
  if (!m->wanted) return 0;
  char *path = metrics_path(t), *real = NULL;
  const bool ours = is_same_file(m->fd, path) || (t->ckpt.owner && tc_owner_alone(t->ckpt.owner));
  tc_metrics_close(t);
  tc_at_phase("rewriting the metrics");
  int old = open_file(path, err), rc = TC_MIN(old, 0);
  const int cut = rc == 0 && ours ? cut_in_place(old, path, step, err) : rc;
  if (cut == 0) {
    real = tc_real_path(path);                  /* a link stays, and what it names is replaced */
    rc = real ? rewrite(old, real, step, err)
              : tc_fail(err, TC_EUSER, "cannot find %s: %s", path, strerror(errno));
  }
  if (old >= 0 && cut <= 0) close(old);
  if (cut < 0) rc = cut;
  if (rc >= 0) m->fd = cut ? old : rc;
  free(real);
  free(path);
  return TC_MIN(rc, 0);
}

void tc_metrics_close(struct tc_train *t)
{
  if (t->log.fd >= 0) close(t->log.fd);
  t->log.fd = -1;
}

void tc_metrics_back(struct tc_train *t, int64_t step)
{
  struct tc_err err = { 0 };
  if (!has_metrics(t)) return;
  /* A later start's file must not be cut. This one ends because of it too, but may notice it later. */
  const int ours = tc_is_there(t->ckpt.lease);
  if (ours == 0) tc_metrics_close(t);
  else if (ours < 0) tc_fail(&err, TC_EUSER, "%s can't be seen: %s", t->ckpt.lease, strerror(-ours));
  if (ours == 0 || (ours > 0 && tc_metrics_open(t, step, &err) == 0)) return;
  tc_warn("%s; no more lines are written", err.text);     /* they would come after later steps' */
  t->log.wanted = false;
  tc_metrics_close(t);
}

/* Lines from this step on are missing, until the next checkpoint that finds it otherwise. */
static void pause_metrics(struct tc_log *m, int64_t step, const char *why)
{
  if (!m->warned)
    tc_warn("%s; the lines from step %lld on are missing. It is tried again with each checkpoint",
            why, (long long)step);
  m->warned = m->paused = true;
}

/* Opens the file anew; its name is on disk before a checkpoint that its lines belong to. */
static int open_again(const char *path, struct tc_err *err)
{
  char *dir = tc_folder_of(path);
  int fd = open_file(path, err), rc = fd < 0 ? fd : tc_folder_sync(dir, err);
  free(dir);
  if (rc == 0) return fd;
  if (fd >= 0) close(fd);
  return rc;
}

void tc_metrics_look(struct tc_train *t, int64_t step)
{
  struct tc_log *m = &t->log;
  struct tc_err err = { 0 };
  if (!m->wanted) return;
  tc_at_phase("looking at the metrics");
  m->paused = false;
  char *path = metrics_path(t);
  if (!is_same_file(m->fd, path) && tc_is_there(t->ckpt.lease) == 1) {     /* no later start owns the folder */
    const bool was_open = m->fd >= 0;
    tc_metrics_close(t);
    m->fd = open_again(path, &err);
    if (m->fd < 0) pause_metrics(m, step, err.text);
    else if (was_open)
      tc_warn("%s was removed, renamed or replaced during the run; it goes on there from step %lld",
              path, (long long)step);
  }
  free(path);
}

/* ---- a line ---- */

static void add_counters(struct tc_comm_counters *to, const struct tc_comm_counters *n)
{
  for (int k = 0; k < TC_COLLS; k++) {
    to->data[k].calls += n->data[k].calls;
    to->data[k].bytes += n->data[k].bytes;
    to->ctl[k].calls += n->ctl[k].calls;
    to->ctl[k].bytes += n->ctl[k].bytes;
  }
}

static void read_counters(const struct tc_train *t, struct tc_comm_counters c[TC_COMMS])
{
  for (int a = 0; a <= TC_AXES; a++) {
    const struct tc_comm *m = a < TC_AXES ? t->run.comm[a] : t->run.world;
    if (m) c[a] = *tc_comm_counters(m);
    else memset(&c[a], 0, sizeof c[a]);
    if (a < TC_AXES && t->run.native[a]) add_counters(&c[a], tc_comm_counters(t->run.native[a]));
  }
  tc_writer_counters(t->ckpt.writer, &c[TC_AXES + 1]);
}

void tc_metrics_add_counts(struct json_t *into, const struct tc_coll_count *now,
                           const struct tc_coll_count *before)
{
  for (int k = 0; k < TC_COLLS; k++) {
    int64_t calls = now[k].calls - before[k].calls, bytes = now[k].bytes - before[k].bytes;
    if (!calls) continue;
    json_t *old = json_object_get(into, tc_coll_name[k]);
    if (old) {
      calls += json_integer_value(json_object_get(old, "calls"));
      bytes += json_integer_value(json_object_get(old, "bytes"));
    }
    json_object_set_new(into, tc_coll_name[k],
                        json_pack("{s:I,s:I}", "calls", (json_int_t)calls, "bytes",
                                  (json_int_t)bytes));
  }
}

/* What was sent since the last line: by the step, its control reduction, an evaluation; and between
 * steps, such as to agree on a checkpoint. */
static json_t *comm_json(struct tc_train *t)
{
  struct tc_comm_counters now[TC_COMMS], *before = t->log.counted;
  read_counters(t, now);
  json_t *o = json_object(), *ctl = json_object();
  for (int a = TC_PP; a < TC_AXES; a++) {
    json_t *x = json_object();
    tc_metrics_add_counts(x, now[a].data, before[a].data);
    json_object_set_new(o, tc_axis_name[a], x);
  }
  for (int a = 0; a < TC_COMMS; a++) tc_metrics_add_counts(ctl, now[a].ctl, before[a].ctl);
  json_object_set_new(o, "ctl", ctl);
  memcpy(t->log.counted, now, sizeof now);
  return o;
}

void tc_metrics_begin(struct tc_train *t) { read_counters(t, t->log.counted); }

void tc_metrics_stalled(struct tc_train *t, int64_t stall_ns, bool copied)
{
  t->log.stall_ns += stall_ns;
  t->log.copied |= copied;
}

void tc_metrics_saved(struct tc_train *t, int64_t step, int64_t write_ns)
{
  t->log.saved = (struct tc_log_save){ .step = step, .write_ns = write_ns };
}

/* What checkpoints cost since the last line: how long training waited for them; and of one that was
 * committed, its step and how long writing took. NULL: nothing. */
static json_t *ckpt_json(struct tc_train *t)
{
  const struct tc_log_save *r = &t->log.saved;
  if (!t->log.copied && !r->step) return NULL;
  json_t *o = json_object();
  tc_figure(o, "stall_ms", (double)t->log.stall_ns * 1e-6);
  if (r->step) {
    json_object_set_new(o, "saved", json_integer(r->step));
    tc_figure(o, "write_ms", (double)r->write_ns * 1e-6);
    json_object_set_new(o, "bytes", json_integer(t->ckpt.bytes));
  }
  t->log.stall_ns = 0;
  t->log.copied = false;
  t->log.saved = (struct tc_log_save){ 0 };
  return o;
}

static json_t *slowest_json(const struct tc_train *t, const struct tc_slowest *s)
{
  json_t *o = json_pack("{s:i,s:s}", "rank", s->rank, "host", t->run.ranks->info[s->rank].host);
  tc_figure(o, "work_ms", (double)s->work_ns * 1e-6);
  tc_figure(o, "median_ms", (double)s->median_ns * 1e-6);
  return o;
}

char *tc_metrics_line(struct tc_train *t, const struct tc_step_report *r)
{
  double s = (double)r->step_ns * 1e-9;
  json_t *o = json_object();
  json_object_set_new(o, "step", json_integer(r->step));
  tc_figure(o, "loss", r->loss);
  json_object_set_new(o, "val_loss", json_null());
  if (r->validated) tc_figure(o, "val_loss", r->val_loss);
  tc_figure(o, "lr", r->lr);
  tc_figure(o, "grad_norm", r->grad_norm);
  json_object_set_new(o, "tokens", json_integer(r->step * r->tokens));
  tc_figure(o, "tokens_per_s", (double)r->tokens / s);
  tc_figure(o, "step_ms", s * 1e3);
  json_object_set_new(o, "time", json_string(r->time));
  if (t->end.straggler) json_object_set_new(o, "slowest", slowest_json(t, &r->slowest));
  tc_figure(o, "wait_ms", (double)r->wait_ns * 1e-6);
  tc_train_data_line(t, r, o);
  tc_tasks_line(t, r->step, o);
  json_object_set_new(o, "mfu", json_null());
  if (t->plan.peak_s > 0) tc_figure(o, "mfu", t->plan.peak_s / s);
  json_t *ckpt = ckpt_json(t);
  if (ckpt) json_object_set_new(o, "ckpt", ckpt);
  if (t->rollback.skipped) {
    json_object_set_new(o, "skipped", json_integer(t->rollback.skipped));
    json_object_set_new(o, "rollbacks", json_integer(t->rollback.rollbacks));
  }
  json_object_set_new(o, "comm", comm_json(t));
  tc_figure(o, "bubble", (double)r->pp_wait_ns / (double)r->step_ns);
  char *text = json_dumps(o, JSON_REAL_PRECISION(12)), *line = tc_sprintf("%s\n", text);
  free(text);
  json_decref(o);
  return line;
}

void tc_metrics_add(struct tc_train *t, const struct tc_step_report *r)
{
  struct tc_log *m = &t->log;
  if (m->fd < 0 || m->paused) return;
  tc_at_phase("writing the metrics");
  char *line = tc_metrics_line(t, r);
  const int64_t len = (int64_t)strlen(line), begin = lseek(m->fd, 0, SEEK_END);
  int64_t done = 0;
  ssize_t n = 0;
  while (done < len && (n = write(m->fd, line + done, (size_t)(len - done))) != 0) {
    if (n > 0) done += n;
    else if (errno != EINTR) break;
  }
  const int why = n < 0 ? errno : 0;
  if (done < len) {
    struct tc_err err = { 0 };
    char *path = metrics_path(t);
    tc_fail(&err, TC_EUSER, "cannot write %s: %s", path,
            why ? strerror(why) : "no byte was written");
    if (done > 0 && begin >= 0 && ftruncate(m->fd, begin))
      tc_text_add(err.text, sizeof err.text, " (and its last line is cut short)");
    pause_metrics(m, r->step, err.text);
    free(path);
  }
  free(line);
}
