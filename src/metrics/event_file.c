/* event_file.c - run.tensorboard: a folder of TensorBoard's event files, with a record for each step.
 *
 * A file is a sequence of records: length, its CRC, an Event of TensorFlow's protobuf, the CRC of that; integers are little
 * endian. Each start and each rollback begin a file of their own. Its second record (SessionLog START) tells a TensorBoard
 * that has read the files before it to drop their later steps.
 *
 * - A file of this run has the hash of run.out in its name. It is cut after the step from which the run goes on, or where a
 *   record is not whole, unless another process may have it open. No other file is read or changed.
 * - The time in the name of a file is later than that of the run's other files, since TensorBoard reads them by name.
 * - Steps in a file only grow, so what is to be cut is its end. */
#include "src/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/crc.h"
#include "src/files/files.h"

static const char prefix[] = "events.out.tfevents.", version[] = "brain.Event:2";
enum { HEAD_BYTES = 12, CRC_BYTES = 4, MOST_BYTES = 1 << 26 };     /* of a record: length and its CRC; CRC; all data */
enum { STEP_AT = 10 };           /* in an Event as it is written here, after the wall time */

/* ---- protobuf ------------------------------------------------------------------------------ */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(FILE *f, uint64_t x)
{
  for (; x >= 0x80; x >>= 7) fputc((int)(x & 0x7f) | 0x80, f);
  fputc((int)x, f);
}

static void put_key(FILE *f, unsigned field, unsigned type) { put_varint(f, field << 3 | type); }

static void put_fixed(FILE *f, uint64_t bits, int bytes)
{
  for (int i = 0; i < bytes; i++) fputc((int)(bits >> 8 * i & 0xff), f);
}

static void put_bytes(FILE *f, unsigned field, const void *p, size_t n)
{
  put_key(f, field, BYTES);
  put_varint(f, n);
  fwrite(p, 1, n, f);
}

static void put_double(FILE *f, unsigned field, double x)
{
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  put_key(f, field, FIXED64);
  put_fixed(f, bits, sizeof bits);
}

static void put_float(FILE *f, unsigned field, float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  put_key(f, field, FIXED32);
  put_fixed(f, bits, sizeof bits);
}

/* A message that is written before its length is known. */
struct message { FILE *to; char *at; size_t bytes; };

static void begin_message(struct message *m)
{
  m->to = open_memstream(&m->at, &m->bytes);
  if (!m->to) tc_out_of_memory(0);
}

static void end_message(struct message *m) { if (fclose(m->to)) tc_out_of_memory(0); }

/* ---- a step's figures: the field `value` of a Summary, repeated ------------------------------ */

/* "comm/dp/all_reduce/bytes"; of a list's member "tasks/NAME/loss". */
static void put_tag(FILE *f, const struct tc_sample *s, const char *member)
{
  const char *at = tc_metric_row[s->metric].key, *const *word = s->word;
  struct tc_metric_name n = { .last = false };
  while (!n.last) {
    n = tc_metric_name(&at);
    fputs(n.word ? *word++ : n.text, f);
    if (n.list) fprintf(f, "/%s", member);
    if (!n.last) fputc('/', f);
  }
}

static void figure(struct tc_metrics_out *o, const struct tc_sample *s, const char *member)
{
  struct message tag, value;
  begin_message(&tag);
  put_tag(tag.to, s, member);
  end_message(&tag);
  begin_message(&value);
  put_bytes(value.to, 1, tag.at, tag.bytes);
  put_float(value.to, 2, s->type == TC_METRIC_REAL ? (float)s->real : (float)s->integer);
  end_message(&value);
  put_bytes(o->figures, 1, value.at, value.bytes);
  TC_FREE(tag.at, value.at);
}

/* ---- records ------------------------------------------------------------------------------- */

static uint32_t masked_crc(const void *p, size_t n)
{
  const uint32_t crc = tc_crc32c(0, p, n);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* A record's event: wall time, step, and the field that says what happened. */
static void put_record(FILE *f, double wall_s, int64_t step, unsigned field, const void *p, size_t n)
{
  struct message event, head;
  begin_message(&event);
  put_double(event.to, 1, wall_s);
  put_key(event.to, 2, VARINT);
  put_varint(event.to, (uint64_t)step);
  put_bytes(event.to, field, p, n);
  end_message(&event);
  begin_message(&head);
  put_fixed(head.to, event.bytes, 8);
  end_message(&head);
  fwrite(head.at, 1, head.bytes, f);
  put_fixed(f, masked_crc(head.at, head.bytes), CRC_BYTES);
  fwrite(event.at, 1, event.bytes, f);
  put_fixed(f, masked_crc(event.at, event.bytes), CRC_BYTES);
  TC_FREE(event.at, head.at);
}

/* Adds whole records to the file, or nothing. */
static int add_records(struct tc_metrics_out *o, const struct message *m, struct tc_err *err)
{
  const bool all = tc_write_all(o->events.fd, m->at, (int64_t)m->bytes);
  const int why = errno;
  if (all) {
    o->events.end += (int64_t)m->bytes;
    return 0;
  }
  tc_fail(err, TC_EUSER, "%s: cannot write %s: %s", o->form->option, o->events.name, strerror(why));
  if (ftruncate(o->events.fd, o->events.end)) tc_text_add(err->text, sizeof err->text, " (and its last record is cut short)");
  return TC_EUSER;
}

/* ---- what is there -------------------------------------------------------------------------- */

static uint64_t get_fixed(const unsigned char *p, int bytes)
{
  uint64_t bits = 0;
  for (int i = 0; i < bytes; i++) bits |= (uint64_t)p[i] << 8 * i;
  return bits;
}

/* The step of an event of n bytes. */
static int64_t step_of(const unsigned char *event, size_t n)
{
  uint64_t step = 0;
  int shift = 0;
  for (size_t i = STEP_AT; i < n && shift < 64; i++, shift += 7) {
    step |= (uint64_t)(event[i] & 0x7f) << shift;
    if (event[i] < 0x80) break;
  }
  return (int64_t)step;
}

/* Reads the record at *at, which goes to the next. *event, [*n], is owned by the caller. 1: it is whole; 0: it is not, or
 * the file ends; or -1 with errno. */
static int read_record(int fd, int64_t *at, unsigned char **event, size_t *n)
{
  unsigned char head[HEAD_BYTES];
  *event = NULL;
  if (!tc_pread_all(fd, head, HEAD_BYTES, *at)) return errno ? -1 : 0;
  const uint64_t bytes = get_fixed(head, 8);
  if (bytes <= STEP_AT || bytes > MOST_BYTES || get_fixed(head + 8, CRC_BYTES) != masked_crc(head, 8)) return 0;
  *n = (size_t)bytes;
  *event = tc_malloc(*n + CRC_BYTES);
  if (!tc_pread_all(fd, *event, (int64_t)*n + CRC_BYTES, *at + HEAD_BYTES)) return errno ? -1 : 0;
  if (get_fixed(*event + *n, CRC_BYTES) != masked_crc(*event, *n)) return 0;
  *at += HEAD_BYTES + (int64_t)*n + CRC_BYTES;
  return 1;
}

/* Where the records of steps up to `step` end; -1: the file does not begin as those here, or with *why it can't be read. */
static int64_t end_of(int fd, int64_t step, int *why)
{
  int64_t at = 0, end = -1;
  bool stays = true;
  while (stays) {
    unsigned char *event;
    size_t n;
    const int rc = read_record(fd, &at, &event, &n);
    *why = rc < 0 ? errno : 0;
    stays = rc > 0 && (end < 0 ? memmem(event, n, version, strlen(version)) != NULL : step_of(event, n) <= step);
    if (stays) end = at;
    free(event);
  }
  return *why ? -1 : end;
}

/* Cuts a file of this run after the records of steps up to `step`. */
static int cut(const char *path, int64_t step, struct tc_err *err)
{
  struct stat st;
  const int fd = tc_open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  int why = fd < 0 || fstat(fd, &st) < 0 ? errno : 0;
  const int64_t end = !why && S_ISREG(st.st_mode) ? end_of(fd, step, &why) : -1;
  if (end >= 0 && end < st.st_size && (ftruncate(fd, end) < 0 || fsync(fd) < 0)) why = errno;
  if (fd >= 0) close(fd);
  return why ? tc_fail(err, TC_EUSER, "cannot cut %s after step %lld: %s. Move it away to go on without its steps", path,
                       (long long)step, strerror(why)) : 0;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Cuts the files of this run, whose names end in this way. *newest grows to the latest time in their names. */
static int cut_all(const struct tc_metrics_out *o, const char *ending, int64_t step, int64_t *newest, struct tc_err *err)
{
  char **names;
  const int n = tc_folder_scan(o->path, prefix, &names, err);
  int rc = TC_MIN(n, 0);
  for (int i = 0; i < n && rc == 0; i++) {
    if (!tc_ends_with(names[i], ending)) continue;
    char *path = tc_sprintf("%s/%s", o->path, names[i]);
    *newest = TC_MAX(*newest, atoll(names[i] + strlen(prefix)));
    if (o->alone || (o->events.name && !strcmp(path, o->events.name))) rc = cut(path, step, err);
    free(path);
  }
  if (n >= 0) tc_names_free(names, n);
  return rc;
}

static void close_file(struct tc_metrics_out *o)
{
  if (o->events.fd >= 0) close(o->events.fd);
  free(o->events.name);
  o->events.fd = -1;
  o->events.name = NULL;
  o->events.end = 0;
}

/* Makes a file of a new name: none is replaced. */
static int make_file(struct tc_metrics_out *o, const char *ending, int64_t time_s, struct tc_err *err)
{
  const struct tc_output_opts opts = { .flag = o->form->option, .kept = o->kept, .n_kept = o->n_kept };
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  o->events.name = tc_sprintf("%s/%s%010lld.%s%s", o->path, prefix, (long long)time_s, host, ending);
  TC_TRY(tc_output_check(o->events.name, &opts, err));
  o->events.fd = tc_open(o->events.name, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (o->events.fd < 0)
    return tc_fail(err, TC_EUSER, "%s: cannot make %s: %s", o->form->option, o->events.name, strerror(errno));
  return tc_folder_sync_written(o->path, err);
}

/* The first records: the version, and that steps after this one begin anew. */
static int begin_file(struct tc_metrics_out *o, int64_t step, struct tc_err *err)
{
  static const char start[] = { 1 << 3 | VARINT, 1 };       /* a SessionLog's status: START */
  struct message m;
  const double now = (double)time(NULL);
  begin_message(&m);
  put_record(m.to, now, 0, 3, version, strlen(version));
  put_record(m.to, now, step + 1, 7, start, sizeof start);
  end_message(&m);
  const int rc = add_records(o, &m, err);
  free(m.at);
  return rc;
}

static int begin(struct tc_metrics_out *o, int64_t step, struct tc_err *err)
{
  int64_t newest = 0;
  char *run = tc_real_path(o->run), *made = NULL;
  char *ending = tc_sprintf(".tercio-%016llx", (unsigned long long)tc_hash64(run ? run : o->run));
  int rc = tc_folder_make_new(o->path, &made, err);
  if (rc == 0) rc = cut_all(o, ending, step, &newest, err);
  close_file(o);
  if (rc == 0) rc = make_file(o, ending, TC_MAX((int64_t)time(NULL), newest + 1), err);
  if (rc == 0) rc = begin_file(o, step, err);
  if (rc < 0) tc_folder_unmake(o->path, made);
  else free(made);
  if (rc < 0) close_file(o);
  TC_FREE(run, ending);
  return rc;
}

static int step(struct tc_metrics_out *o, int64_t at, const char *time, struct tc_err *err)
{
  struct tm tm = { 0 };
  struct message m;
  strptime(time, "%Y-%m-%dT%H:%M:%SZ", &tm);
  begin_message(&m);
  put_record(m.to, (double)timegm(&tm), at, 5, o->text, o->bytes);
  end_message(&m);
  const int rc = add_records(o, &m, err);
  free(m.at);
  return rc;
}

static int end(struct tc_metrics_out *o, struct tc_err *err)
{
  (void)err;
  close_file(o);
  return 0;
}

const struct tc_metrics_form tc_event_files = {
  .option = "run.tensorboard", .begin = begin, .figure = figure, .step = step, .end = end
};
