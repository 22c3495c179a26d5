/* t_metrics_out.c - run.tensorboard and run.openmetrics: event files read back by a reader of this test's own (CRCs bit by
 * bit, protobuf without knowledge of the writer), over starts, rollbacks and records cut short; the page of OpenMetrics; what
 * is not replaced; what a failure costs.
 *
 * t_metrics_out.t --print FOLDER prints the figures of a folder of event files as TensorBoard has them: STEP TAG VALUE TIME. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/files.h"
#include "src/metrics/metrics.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/samples.h"
#include "tests/unit/stderr_text.h"

/* ---- a reader of event files ----------------------------------------------------------------- */

struct figure { int64_t step; char *tag; float value; double wall_s; };
struct figures { struct figure *f; int n, cap, dropped, files; bool damaged; };

static void free_figures(struct figures *x)
{
  for (int i = 0; i < x->n; i++) free(x->f[i].tag);
  free(x->f);
  *x = (struct figures){ 0 };
}

static uint32_t crc_by_bits(const unsigned char *p, size_t n)
{
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint64_t little_endian(const unsigned char *p, int bytes)
{
  uint64_t x = 0;
  while (bytes--) x = x << 8 | p[bytes];
  return x;
}

/* A field of a message: its number, and a number or n bytes. */
struct field { unsigned number, type; uint64_t x; const unsigned char *p; size_t n; };

static uint64_t varint(const unsigned char **at, const unsigned char *end)
{
  uint64_t x = 0;
  for (int shift = 0; *at < end; shift += 7) {
    const unsigned char c = *(*at)++;
    x |= (uint64_t)(c & 127) << shift;
    if (c < 128) break;
  }
  return x;
}

static bool next_field(const unsigned char **at, const unsigned char *end, struct field *f)
{
  if (*at >= end) return false;
  const uint64_t key = varint(at, end);
  *f = (struct field){ .number = (unsigned)(key >> 3), .type = key & 7 };
  if (f->type == 0) f->x = varint(at, end);
  if (f->type == 2) f->n = varint(at, end);
  if (f->type == 1) f->n = 8;
  if (f->type == 5) f->n = 4;
  f->p = *at;
  if (f->type == 1 || f->type == 5) f->x = little_endian(f->p, (int)f->n);
  *at += f->n;
  return *at <= end && f->type != 3 && f->type != 4;
}

static void read_value(struct figures *x, const struct field *value, int64_t step, double wall_s)
{
  struct figure got = { .step = step, .wall_s = wall_s };
  struct field f;
  for (const unsigned char *at = value->p; next_field(&at, value->p + value->n, &f);) {
    if (f.number == 1) got.tag = tc_sprintf("%.*s", (int)f.n, (const char *)f.p);
    const uint32_t bits = (uint32_t)f.x;
    if (f.number == 2 && f.type == 5) memcpy(&got.value, &bits, sizeof bits);
  }
  if (got.tag) TC_APPEND(x->f, x->n, x->cap, got);
}

/* As TensorBoard's reader does after a restart. */
static void drop_from(struct figures *x, int64_t step)
{
  int n = 0;
  for (int i = 0; i < x->n; i++) {
    if (x->f[i].step < step) x->f[n++] = x->f[i];
    else free(x->f[i].tag);
  }
  x->dropped += x->n - n;
  x->n = n;
}

/* first: of a file, which says its version. */
static void read_event(struct figures *x, const unsigned char *p, size_t n, bool first)
{
  double wall_s = 0;
  int64_t step = 0;
  bool version = false;
  struct field f, v;
  for (const unsigned char *at = p; next_field(&at, p + n, &f);) {
    if (f.number == 1) memcpy(&wall_s, &f.x, sizeof wall_s);
    if (f.number == 2) step = (int64_t)f.x;
    if (f.number == 3) version = f.n == 13 && !memcmp(f.p, "brain.Event:2", 13);
    if (f.number == 7 && f.n == 2 && f.p[0] == 8 && f.p[1] == 1) drop_from(x, step);
    if (f.number == 5)
      for (const unsigned char *in = f.p; next_field(&in, f.p + f.n, &v);) read_value(x, &v, step, wall_s);
  }
  x->damaged |= first != version;
}

/* Until the first record that is not whole. */
static void read_file(struct figures *x, const char *path)
{
  FILE *f = fopen(path, "r");
  unsigned char head[12], *data;
  bool first = true, whole = true;
  while (f && whole && fread(head, 1, 12, f) == 12) {
    const size_t n = (size_t)little_endian(head, 8);
    whole = little_endian(head + 8, 4) == crc_by_bits(head, 8);
    if (!whole) break;
    data = tc_malloc(n + 4);
    whole = fread(data, 1, n + 4, f) == n + 4 && little_endian(data + n, 4) == crc_by_bits(data, n);
    if (whole) read_event(x, data, n, first);
    free(data);
    first = false;
  }
  x->damaged |= !whole || !f || !feof(f);
  if (f) fclose(f);
  x->files++;
}

static int is_event_file(const struct dirent *e) { return strstr(e->d_name, "tfevents") != NULL; }

static void read_folder(struct figures *x, const char *folder)
{
  struct dirent **names;
  const int n = scandir(folder, &names, is_event_file, alphasort);
  *x = (struct figures){ 0 };
  for (int i = 0; i < n; i++) {
    char *path = tc_sprintf("%s/%s", folder, names[i]->d_name);
    read_file(x, path);
    free(path);
    free(names[i]);
  }
  if (n >= 0) free(names);
}

static int print_folder(const char *folder)
{
  struct figures x;
  read_folder(&x, folder);
  for (int i = 0; i < x.n; i++)
    printf("%lld %s %.9g %.0f\n", (long long)x.f[i].step, x.f[i].tag, (double)x.f[i].value, x.f[i].wall_s);
  const bool damaged = x.damaged;
  free_figures(&x);
  return damaged;
}

/* ---- event files ----------------------------------------------------------------------------- */

static const struct tc_sample samples[] = {
  INT(STEP, 5000000000), REAL(LOSS, 0, NAN), NOT(VAL_LOSS, NULL, NULL, TC_NULL), REAL(LR, 0, 1.0 / 3), REAL(GRAD_NORM, 0, INFINITY),
  REAL(STEP_MS, 0, -INFINITY), TEXT(TIME, 0, "now"), TEXT(SLOWEST_HOST, 0, "node"),
  TEXT(SOURCES_NAME, 0, "a \"b\\\n"), TEXT(SOURCES_NAME, 1, "c"), TEXT(SOURCES_NAME, 2, "c"),
  REAL(SOURCES_SHARE, 0, 0.5), REAL(SOURCES_SHARE, 1, 0.25), REAL(SOURCES_SHARE, 2, 0.125),
  TEXT(VAL_SOURCES_NAME, 0, "v"), REAL(VAL_SOURCES_LOSS, 0, 2),
  { .metric = TC_METRIC_HASHES, .there = TC_THERE, .type = TC_METRIC_TEXT, .text = "0f", .word = { "12" } },
  TEXT(TASKS_NAME, 0, "a\xff"), INT(TASKS_QUESTIONS, 7), NOT(COMM_CALLS, "pp", "send", TC_UNUSED),
  WORD(COMM_CALLS, "dp", "all_reduce", 2), WORD(COMM_CALLS, "dp+cp", "send", 3), WORD(COMM_BYTES, "dp", "all_reduce", 8),
  WORD(CTL_CALLS, "barrier", NULL, 1),
};
static const struct { const char *tag; double value; } tags[] = {
  { "step", 5e9 }, { "loss", NAN }, { "lr", 1.0 / 3 }, { "grad_norm", INFINITY }, { "step_ms", -INFINITY },
  { "sources/a \"b\\\n/share", 0.5 }, { "sources/c/share", 0.25 }, { "sources/c (3)/share", 0.125 }, { "val_sources/v/loss", 2 },
  { "tasks/a?/questions", 7 }, { "comm/dp/all_reduce/calls", 2 }, { "comm/dp+cp/send/calls", 3 },
  { "comm/dp/all_reduce/bytes", 8 }, { "comm/ctl/barrier/calls", 1 },
};
enum { SAMPLES = sizeof samples / sizeof *samples, TAGS = sizeof tags / sizeof *tags };

static void all_figures(struct tc_metrics_out *o)
{
  tc_metrics_out_begin(o);
  for (int i = 0; i < SAMPLES; i++) tc_metrics_out_take(o, &samples[i]);
  tc_metrics_out_step(o, 5000000000, "2026-11-26T06:00:00Z");
}

static struct tc_metrics_out out_of(const struct tc_metrics_form *form, const char *path)
{
  return (struct tc_metrics_out){ .form = form, .path = path, .run = ".", .lease = "home", .alone = true };
}

static void test_figures(void)
{
  struct tc_err err = { 0 };
  struct tc_metrics_out o = out_of(&tc_event_files, "new/tb");
  struct figures x;
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a folder of event files %s", err.text);
  all_figures(&o);
  all_figures(&o);
  tc_metrics_out_close(&o);
  ok(!o.form && !o.names && !o.text, "closed");
  read_folder(&x, "new/tb");
  is_int(x.n, 2 * TAGS, "each number that is there, and no text");
  ok(!x.damaged && !x.dropped && x.files == 1, "... in whole records of one file");
  for (int i = 0; i < x.n; i++) {
    const struct figure *f = &x.f[i];
    const float want = (float)tags[i % TAGS].value;
    is_str(f->tag, tags[i % TAGS].tag, "a tag");
    ok(!memcmp(&f->value, &want, sizeof want), "... its value, %g", (double)f->value);
    ok(f->step == 5000000000 && f->wall_s == 1795672800, "... step and time, %.0f", f->wall_s);
  }
  free_figures(&x);
}

/* A step whose only figures are its loss, and in every third one a validation's. */
static void add(struct tc_metrics_out *o, int64_t from, int64_t to, double loss)
{
  for (int64_t i = from; i <= to; i++) {
    const struct tc_sample s = REAL(LOSS, 0, loss + (double)i), v = REAL(VAL_LOSS, 0, loss);
    tc_metrics_out_begin(o);
    tc_metrics_out_take(o, &s);
    if (i % 3 == 0) tc_metrics_out_take(o, &v);
    tc_metrics_out_step(o, i, "2026-11-26T06:00:00Z");
  }
}

/* "1:101 2:102": steps and losses. */
static const char *losses(const char *folder, int *dropped)
{
  static char text[2000];
  struct figures x;
  read_folder(&x, folder);
  *text = 0;
  for (int i = 0; i < x.n; i++)
    if (!strcmp(x.f[i].tag, "loss"))
      tc_text_add(text, sizeof text, "%s%lld:%g", *text ? " " : "", (long long)x.f[i].step, (double)x.f[i].value);
  if (x.damaged) tc_text_add(text, sizeof text, " damaged");
  *dropped = x.dropped;
  free_figures(&x);
  return text;
}

/* The last file in the order of names; owned. */
static char *last_file(const char *folder)
{
  struct dirent **names;
  char *path = NULL;
  const int n = scandir(folder, &names, is_event_file, alphasort);
  for (int i = 0; i < n; i++) {
    if (i == n - 1) path = tc_sprintf("%s/%s", folder, names[i]->d_name);
    free(names[i]);
  }
  if (n >= 0) free(names);
  return path;
}

static void put_file(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  if (f) fputs(text, f);
  if (f) fclose(f);
}

static void is_file(const char *path, const char *want, const char *what)
{
  char got[4000] = "";
  FILE *f = fopen(path, "r");
  if (f) got[fread(got, 1, sizeof got - 1, f)] = 0;
  if (f) fclose(f);
  is_str(f ? got : NULL, want, "%s", what);
}

/* A file of one record, an event of step 9 that says nothing. */
enum { EVENT_BYTES = 16, RECORD_BYTES = 12 + EVENT_BYTES + 4 };
static void put_unversioned(const char *path)
{
  unsigned char r[RECORD_BYTES] = { EVENT_BYTES, [12] = 1 << 3 | 1, [21] = 2 << 3, [22] = 9, [23] = 8 << 3 | 2, [24] = 3 };
  const uint32_t crc[2] = { crc_by_bits(r, 8), crc_by_bits(r + 12, EVENT_BYTES) };
  memcpy(r + 8, &crc[0], 4);
  memcpy(r + 12 + EVENT_BYTES, &crc[1], 4);
  FILE *f = fopen(path, "w");
  if (f) fwrite(r, 1, sizeof r, f);
  if (f) fclose(f);
}

/* Damage to the last record but one, in the CRC of its length or in its event: it and the last are cut off. */
static void test_damage(void)
{
  for (int i = 0; i < 2; i++) {
    struct tc_err err = { 0 };
    char *folder = tc_sprintf("damaged%d", i);
    struct tc_metrics_out o = out_of(&tc_event_files, folder);
    int dropped;
    is_int(tc_metrics_out_open(&o, 0, &err), 0, "a folder %s", err.text);
    add(&o, 1, 2, 0);
    const int64_t at = o.events.end + (i ? 12 + 3 : 8);
    add(&o, 3, 4, 0);
    FILE *f = fopen(o.events.name, "r+");
    if (f && fseek(f, (long)at, SEEK_SET) == 0) fputc(0x5a, f);
    if (f) fclose(f);
    tc_metrics_out_close(&o);
    ok(strstr(losses(folder, &dropped), " damaged") != NULL, "a damaged %s", i ? "event" : "length");
    o = out_of(&tc_event_files, folder);
    is_int(tc_metrics_out_open(&o, 4, &err), 0, "... is met at a start %s", err.text);
    tc_metrics_out_close(&o);
    is_str(losses(folder, &dropped), "1:1 2:2", "... it is cut off");
    free(folder);
  }
}

static void test_starts(void)
{
  struct tc_err err = { 0 };
  struct tc_metrics_out o = out_of(&tc_event_files, "tb"), other = o;
  int dropped;
  other.run = "another";
  is_int(tc_metrics_out_open(&other, 0, &err), 0, "another run's file %s", err.text);
  add(&other, 1, 2, 900);
  char *others = last_file("tb");
  put_file("tb/events.out.tfevents.9000000000.host", "of another program");
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a first start %s", err.text);
  add(&o, 1, 5, 100);
  tc_metrics_out_back(&o, 3);
  add(&o, 4, 6, 200);
  tc_metrics_out_close(&o);
  is_file("tb/events.out.tfevents.9000000000.host", "of another program", "another program's file stays");
  remove("tb/events.out.tfevents.9000000000.host");
  struct figures x = { 0 };
  read_file(&x, others);
  ok(x.n == 2 && !x.damaged && x.f[1].value == 902, "... and another run's");
  free_figures(&x);
  remove(others);
  free(others);
  tc_metrics_out_close(&other);
  is_str(losses("tb", &dropped), "1:101 2:102 3:103 4:204 5:205 6:206", "after a rollback");
  is_int(dropped, 0, "... what is done again is cut");
  char *path = last_file("tb");
  FILE *f = fopen(path, "a");
  if (f) fwrite("\x30\0\0\0\0\0\0\0garbage", 1, 15, f);
  if (f) fclose(f);
  o = out_of(&tc_event_files, "tb");
  is_int(tc_metrics_out_open(&o, 5, &err), 0, "a start after one that was killed within a record %s", err.text);
  add(&o, 6, 7, 300);
  tc_metrics_out_close(&o);
  is_str(losses("tb", &dropped), "1:101 2:102 3:103 4:204 5:205 6:306 7:307", "... goes on");
  is_int(dropped, 0, "... what is done again is cut");
  o = out_of(&tc_event_files, "tb");
  o.alone = false;
  is_int(tc_metrics_out_open(&o, 2, &err), 0, "another process may have the files open %s", err.text);
  add(&o, 3, 4, 400);
  tc_metrics_out_back(&o, 3);
  add(&o, 4, 4, 500);
  tc_metrics_out_close(&o);
  is_str(losses("tb", &dropped), "1:101 2:102 3:403 4:504", "... the steps are right");
  is_int(dropped, 7, "... since it is said that later ones are no more");
  put_file(path, "not an event file, which has this name");
  char *begins = tc_sprintf("%s1.tercio%s", "tb/events.out.tfevents.", strrchr(path, '-'));
  put_unversioned(begins);
  o = out_of(&tc_event_files, "tb");
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "from the start %s", err.text);
  tc_metrics_out_close(&o);
  is_file(path, "not an event file, which has this name", "a file of this run's name that is none stays");
  struct stat st;
  ok(stat(begins, &st) == 0 && st.st_size == RECORD_BYTES, "... and one of events that begins in another way");
  remove(path);
  remove(begins);
  TC_FREE(path, begins);
  is_str(losses("tb", &dropped), "", "... no step is left");
  is_int(dropped, 0, "... in any file");
}

static void test_events_refused(void)
{
  struct tc_err err = { 0 };
  const struct tc_output_kept kept = { "kept", "the folder of checkpoints" };
  struct tc_metrics_out o = out_of(&tc_event_files, "kept/in/it");
  mkdir("kept", 0700);
  o.kept = &kept, o.n_kept = 1;
  is_int(tc_metrics_out_open(&o, 0, &err), TC_EUSER, "a folder where nothing is made");
  ok(strstr(err.text, "run.tensorboard: kept/in/it/events.out.tfevents.") == err.text && strstr(err.text, "is in kept, the folder of "
     "checkpoints"), "... in these words: %s", err.text);
  ok(rmdir("kept") == 0, "... nor is a folder left there");
  tc_metrics_out_close(&o);
  put_file("file", "x");
  o = out_of(&tc_event_files, "file");
  is_int(tc_metrics_out_open(&o, 0, &err), TC_EUSER, "a file in the folder's place");
  is_str(err.text, "file: there is a file of this name; a folder is needed", "... in these words");
  tc_metrics_out_close(&o);
  o = out_of(&tc_event_files, "gone");
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a folder");
  add(&o, 1, 1, 1);
  if (rename("gone", "elsewhere")) printf("Bail out! no rename\n");
  put_file("gone", "x");
  tc_metrics_out_back(&o, 0);
  is_str(stderr_text(), "tercio: warning: gone: there is a file of this name; a folder is needed; no more figures are written "
         "there\n", "within a run it is a warning");
  add(&o, 1, 2, 1);
  is_str(stderr_text(), "", "... and the last");
  tc_metrics_out_close(&o);
  o = out_of(&tc_event_files, "lost");
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a folder");
  add(&o, 1, 3, 1);
  rmdir("home");
  tc_metrics_out_back(&o, 1);
  add(&o, 2, 2, 50);
  mkdir("home", 0700);
  tc_metrics_out_close(&o);
  int dropped;
  is_str(losses("lost", &dropped), "1:2 2:3 3:4", "a later start has the folder: nothing is cut or added");
  is_str(stderr_text(), "", "... without a word");
}

/* What there is no room for leaves no part of itself. */
static void test_full(void)
{
  struct rlimit before, few;
  struct tc_err err = { 0 };
  struct tc_metrics_out o = out_of(&tc_event_files, "full");
  int dropped;
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a folder %s", err.text);
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &before);
  few = before;
  add(&o, 1, 130, 0);                             /* more bytes than the warning has, which goes to a file */
  few.rlim_cur = (rlim_t)o.events.end + 20;
  setrlimit(RLIMIT_FSIZE, &few);
  add(&o, 131, 133, 0);
  setrlimit(RLIMIT_FSIZE, &before);
  char *want = tc_sprintf("tercio: warning: run.tensorboard: cannot write %s: File too large; the figures of this step are missing "
                          "there, and of each that can't be written, without another warning\n", o.events.name);
  is_str(stderr_text(), want, "no room: one warning");
  free(want);
  add(&o, 134, 134, 0);
  tc_metrics_out_close(&o);
  ok(tc_ends_with(losses("full", &dropped), " 127:127 128:128 129:129 130:130 134:134"), "... the other steps are there");
}

/* ---- OpenMetrics ------------------------------------------------------------------------------- */

static const char page[] =
  "# HELP tercio_step the step, counted from 1; always the first key\n# TYPE tercio_step gauge\n"
  "tercio_step{run=\"r\\\"\\\\\"} 5000000000\n"
  "# HELP tercio_loss (nats) mean loss of the step's tokens, before the step's update\n# TYPE tercio_loss gauge\n"
  "tercio_loss{run=\"r\\\"\\\\\"} NaN\n"
  "# HELP tercio_lr learning rate of the step\n# TYPE tercio_lr gauge\ntercio_lr{run=\"r\\\"\\\\\"} 0.333333333333\n"
  "# HELP tercio_grad_norm norm of the gradient, before it is clipped\n# TYPE tercio_grad_norm gauge\n"
  "tercio_grad_norm{run=\"r\\\"\\\\\"} +Inf\n"
  "# HELP tercio_step_ms (ms) duration of the step, without validations and checkpoints\n# TYPE tercio_step_ms gauge\n"
  "# UNIT tercio_step_ms ms\ntercio_step_ms{run=\"r\\\"\\\\\"} -Inf\n"
  "# HELP tercio_sources_share its share of the sequences so far, from 0 to 1; of several stages, in this one\n# TYPE tercio_sources_share gauge\n"
  "tercio_sources_share{run=\"r\\\"\\\\\",source=\"a \\\"b\\\\\\n\"} 0.5\n"
  "tercio_sources_share{run=\"r\\\"\\\\\",source=\"c\"} 0.25\n"
  "tercio_sources_share{run=\"r\\\"\\\\\",source=\"c (3)\"} 0.125\n"
  "# HELP tercio_val_sources_loss (nats) its validation loss\n# TYPE tercio_val_sources_loss gauge\n"
  "tercio_val_sources_loss{run=\"r\\\"\\\\\",source=\"v\"} 2\n"
  "# HELP tercio_tasks_questions their number\n# TYPE tercio_tasks_questions gauge\n"
  "tercio_tasks_questions{run=\"r\\\"\\\\\",task=\"a?\"} 7\n"
  "# HELP tercio_comm_calls collectives of this rank on the axis, or axes (pp, dp, cp, tp, dp+cp, ...), since the last line\n"
  "# TYPE tercio_comm_calls gauge\ntercio_comm_calls{run=\"r\\\"\\\\\",axis=\"dp\",op=\"all_reduce\"} 2\n"
  "tercio_comm_calls{run=\"r\\\"\\\\\",axis=\"dp+cp\",op=\"send\"} 3\n"
  "# HELP tercio_comm_bytes (bytes) that this rank sent in them\n# TYPE tercio_comm_bytes gauge\n# UNIT tercio_comm_bytes bytes\n"
  "tercio_comm_bytes{run=\"r\\\"\\\\\",axis=\"dp\",op=\"all_reduce\"} 8\n"
  "# HELP tercio_comm_ctl_calls the same of control data, on all axes\n# TYPE tercio_comm_ctl_calls gauge\n"
  "tercio_comm_ctl_calls{run=\"r\\\"\\\\\",op=\"barrier\"} 1\n# EOF\n";

static void test_page(void)
{
  struct tc_err err = { 0 };
  struct tc_metrics_out o = out_of(&tc_openmetrics, "page.prom");
  o.run = "r\"\\";
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "a page %s", err.text);
  ok(access("page.prom", F_OK) != 0, "... is not there before the first step");
  all_figures(&o);
  is_file("page.prom", page, "a page of all kinds of figures");
  add(&o, 1, 1, 0);
  is_file("page.prom", page, "the next step within a second is not written");
  o.page.wrote_ns -= 1000000000;
  all_figures(&o);
  add(&o, 7, 8, 0);
  is_file("page.prom", page, "... but after it");
  tc_metrics_out_close(&o);
  is_file("page.prom", "# HELP tercio_loss (nats) mean loss of the step's tokens, before the step's update\n# TYPE tercio_loss gauge\n"
          "tercio_loss{run=\"r\\\"\\\\\"} 8\n# EOF\n", "... and the last step's at the end");
  o = out_of(&tc_openmetrics, "page.prom");
  is_int(tc_metrics_out_open(&o, 0, &err), TC_EUSER, "another file is not replaced, which does not begin so");
  is_str(err.text, "run.openmetrics: page.prom exists already and is not figures of tercio train in OpenMetrics' format; remove it "
         "or give another name", "... in these words");
  tc_metrics_out_close(&o);
  put_file("page.prom", page);
  o = out_of(&tc_openmetrics, "page.prom");
  is_int(tc_metrics_out_open(&o, 0, &err), 0, "one of an earlier run is %s", err.text);
  rmdir("home");
  add(&o, 1, 1, 0);
  is_file("page.prom", page, "... unless a later start has the folder");
  mkdir("home", 0700);
  put_file("page.prom", "somebody's");
  o.page.wrote_ns = 0;
  add(&o, 2, 2, 0);
  o.page.wrote_ns = 0;
  add(&o, 3, 3, 0);
  is_str(stderr_text(), "tercio: warning: run.openmetrics: page.prom exists already and is not figures of tercio train in "
         "OpenMetrics' format; remove it or give another name; the figures of this step are missing there, and of each that can't "
         "be written, without another warning\n", "what came meanwhile: one warning");
  is_file("page.prom", "somebody's", "... and it stays");
  tc_metrics_out_close(&o);
}

int main(int argc, char **argv)
{
  if (argc == 3 && !strcmp(argv[1], "--print")) return print_folder(argv[2]);
  const char *dir = fx_folder();
  const int keep = dup(STDERR_FILENO),
            to = dir && chdir(dir) == 0 ? open("stderr", O_RDWR | O_CREAT | O_APPEND, 0600) : -1;
  if (to < 0 || dup2(to, STDERR_FILENO) < 0) return 1;
  mkdir("home", 0700);
  test_figures();
  test_starts();
  test_damage();
  test_events_refused();
  test_full();
  test_page();
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
