/* t_token_file.c - token files, call by call: the files are made up here, a read gives
 * 2000 bytes at most, and calls fail, one at a time, with several errors. */
#include "src/data/impl.h"
#include "src/files/files.h"
#include "tests/unit/script.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 11, FIRST_FD = 100, OPEN = 2 };

static struct file {
  mode_t mode;
  int64_t bytes, mtime, ctime;
  int dev, ino, salt;
  int32_t header[3];
  bool missing, open;
} file[MOST];
static char *const name[MOST] = { "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k" };
static bool bin;

static struct file *find(const char *path) { return &file[*path - 'a']; }

static int fail(void)
{
  errno = script.status == TC_EUSER     ? EIO
          : script.status == TC_EPEER   ? ENOENT
          : script.status == TC_STOPPED ? EMFILE
                                        : EINTR;
  return -1;
}

static int state(const struct file *f, struct stat *st, const char *what, const char *path)
{
  if (call(NULL, "%s %s", what, path) < 0) return fail();
  *st = (struct stat){
    .st_mode = f->mode, .st_size = f->bytes, .st_dev = (dev_t)f->dev, .st_ino = (ino_t)f->ino
  };
  st->st_mtim.tv_sec = f->mtime / 10, st->st_mtim.tv_nsec = f->mtime % 10;
  st->st_ctim.tv_sec = f->ctime / 10, st->st_ctim.tv_nsec = f->ctime % 10;
  return f->missing ? errno = ENOENT, -1 : 0;
}

static int open_it(const char *path)
{
  if (call(NULL, "open %s", path) < 0) return fail();
  if (find(path)->missing) return errno = ENOENT, -1;
  find(path)->open = true;
  return FIRST_FD + *path - 'a';
}

static uint8_t byte_at(const struct file *f, int64_t at)
{
  if (!bin) return (uint8_t)(at * 37 + f->salt);
  if (at < 1024) return at < 12 ? ((const uint8_t *)f->header)[at] : 0;
  return (uint8_t)(((at - 1024) / 2 * 7919 + f->salt * 10477) % 50000 >> (at % 2 * 8));
}

static ssize_t read_it(int fd, void *to, size_t bytes, off_t at)
{
  const struct file *f = &file[fd - FIRST_FD];
  if (call(NULL, "read %c%s %zu %lld", fd - FIRST_FD + 'a', f->open ? "" : ", closed", bytes,
           (long long)at) < 0)
    return fail();
  const int64_t n = TC_MAX(TC_MIN(TC_MIN((int64_t)bytes, 2000), f->bytes - at), 0);
  for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = byte_at(f, at + i);
  return (ssize_t)n;
}

/* One more try, without a pause. */
static bool try_again(struct tc_again *a, int errnum)
{
  const bool more = tc_may_pass(errnum) && a->tries++ == 0;
  if (more) note("again");
  errno = errnum;
  return more;
}

#define tc_again(a, errnum) try_again(a, errnum)
#define open(path, flags) ((void)(flags), open_it(path))
#define fstat(fd, st) state(&file[fd - FIRST_FD], st, "fstat", name[fd - FIRST_FD])
#define stat(path, st) state(find(path), st, "stat", path)
#define pread read_it
#define close(fd) (note("close %c", fd - FIRST_FD + 'a'), file[fd - FIRST_FD].open = false)
#define tc_warn note
#include "src/data/data.c"
#include "src/data/identity.c"
#include "src/data/token_file.c"
#include "src/data/format.c"
#include "src/data/token_names.c"
#include "src/data/source.c"

static void make_files(int n, int64_t tokens)
{
  for (int i = 0; i < n; i++) {
    const int64_t here = tokens + i % 3 * 7;
    file[i] = (struct file){ .mode = S_IFREG,
                             .bytes = bin ? 1024 + 2 * here : here,
                             .mtime = 12345,
                             .ctime = 54321,
                             .dev = 1,
                             .ino = i + 1,
                             .salt = i + 1,
                             .header = { 20240520, 1, (int32_t)here } };
  }
}

static void say(const struct tc_data *d, const char *what, int rc, struct tc_err *err)
{
  int open = 0;
  for (int i = 0; d && i < OPEN; i++) open += d->files->open[i].file != NULL;
  note("%s: %d %s; %d open", what, rc, err->text, open);
  for (int i = 0; i < MOST; i++)
    if (file[i].open) note("open: %s", name[i]);
  *err->text = '\0';
}

static void say_tokens(const int32_t *x, const int32_t *y, int64_t n)
{
  for (int64_t i = 0; i < n; i++) fprintf(script.out, " %d-%d", x[i], y[i]);
  fputc('\n', script.out);
}

static void use(struct tc_data *d, int64_t context)
{
  int32_t x[4 * 24] = { 0 }, y[4 * 24] = { 0 };
  struct tc_data_identity id = { 0 };
  struct tc_err err = { .text = "" };
  const int64_t windows = tc_data_windows(d, 0);
  const struct tc_samples s = { TC_ORDER_DRAWS, 7, 5 };
  const struct tc_batch to = { x, y, NULL };
  note("%lld tokens, %lld windows", (long long)tc_data_tokens(d), (long long)windows);
  int rc = tc_data_train(d, NULL, &s, 3, 1, 4, &to, &err);
  say(d, "train", rc, &err);
  say_tokens(x, y, 4 * context);
  for (int64_t w = 0; w < windows; w += TC_MAX(windows - 1, 1)) {
    rc = tc_data_window(d, NULL, 0, w, &to, &err);
    say(d, "window", rc, &err);
    say_tokens(x, y, context);
  }
  rc = tc_data_identity(d, &id, &err);
  say(d, "identity", rc, &err);
  note("%lld %016" PRIx64, (long long)id.tokens, id.hash);
}

static void set_back(const struct file *was)
{
  const bool is_open = file[0].open;
  file[0] = *was;
  file[0].open = is_open;
}

/* The first file changes, in one way after the other. */
static void change(struct tc_data *d)
{
  struct file was = file[0];
  struct tc_err err = { .text = "" };
  for (int i = 0; i < 9; i++) {
    set_back(&was);
    if (i == 1 || i == 2) file[0].ctime++; /* the check warns of it once */
    if (i == 2) was.ctime++;
    if (i == 3) file[0].ctime = was.ctime += 20;
    if (i == 4) file[0].bytes--;
    if (i == 5) file[0].ino++;
    if (i == 6) file[0].dev++;
    if (i == 7) file[0].mtime += 600;
    if (i == 8) file[0].missing = true;
    int rc = tc_data_check(d, i != 3, &err);
    say(d, "check", rc, &err);
    tc_files_close(d->files);
    rc = tc_file_open(d->own, &d->source[0].file[0], &err);
    say(d, "opened again", rc, &err);
  }
  set_back(&was);
  file[0].salt++, file[0].ctime++;
  int rc = tc_data_check(d, false, &err);
  say(d, "set back", rc, &err);
}

static const struct scene {
  const char *name;
  enum tc_data_format format;
  int n, part;
  int64_t tokens, context, vocab;
} scenes[] = {
  { "text", TC_FORMAT_TEXT, 1, 0, 300, 8, 256 },
  { "text, training", TC_FORMAT_TEXT, 2, 1, 333, 8, 256 },
  { "text, validation", TC_FORMAT_TEXT, 3, 2, 733, 24, 256 },
  { "tokens", TC_FORMAT_BIN, 1, 0, 9, 8, 50000 },
  { "many files of tokens", TC_FORMAT_BIN, MOST, 0, 30, 24, 60000 },
  { "tokens, validation", TC_FORMAT_BIN, 4, 2, 400, 12, 70000 },
  { "a large file", TC_FORMAT_TEXT, 1, 0, (1 << 17) + 300, 24, 255 },
};

static void play(void *ctx)
{
  const struct scene *s = ctx;
  struct tc_data *d = NULL;
  struct tc_err err = { .text = "" };
  bin = s->format == TC_FORMAT_BIN;
  memset(file, 0, sizeof file);
  make_files(s->n, s->tokens);
  const struct tc_data_opts o = { name, s->n, s->format, s->part, s->context, s->vocab, OPEN, false, false, false, false };
  int rc = tc_data_open(&d, &o, &err);
  say(d, "opened", rc, &err);
  if (!d) return;
  use(d, s->context);
  change(d);
  tc_data_free(d);
  say(NULL, "closed", 0, &err);
}

/* Files that are refused, with the whole message. */
static void refused(void *ctx)
{
  static const struct {
    enum tc_data_format format;
    int part;
    int64_t vocab;
    struct file with;
  } row[] = {
    { TC_FORMAT_TEXT, 0, 256, { .mode = S_IFDIR, .bytes = 100 } },
    { TC_FORMAT_TEXT, 0, 256, { .mode = S_IFIFO, .bytes = 100 } },
    { TC_FORMAT_TEXT, 0, 256, { .mode = S_IFREG } },
    { TC_FORMAT_TEXT, 0, 256, { .mode = S_IFREG, .missing = true } },
    { TC_FORMAT_TEXT, 0, 256, { .mode = S_IFREG, .bytes = 8 } },
    { TC_FORMAT_TEXT, 1, 256, { .mode = S_IFREG, .bytes = 9 } },
    { TC_FORMAT_TEXT, 2, 256, { .mode = S_IFREG, .bytes = 160 } },
    { TC_FORMAT_TEXT, 0, 255, { .mode = S_IFREG, .bytes = 300 } },
    { TC_FORMAT_TEXT, 0, 37, { .mode = S_IFREG, .bytes = 9 } },
    { TC_FORMAT_TEXT, 0, 1, { .mode = S_IFREG, .bytes = 9 } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1023 } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1024 } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1044, .header = { 20240519, 1, 10 } } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 2, 10 } } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, 11 } } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1045, .header = { 20240520, 1, 10 } } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, -10 } } },
    { TC_FORMAT_BIN, 0, 50000, { .mode = S_IFREG, .bytes = 1024, .header = { 20240520, 1, 0 } } },
    { TC_FORMAT_BIN, 0, 47513, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, 10 } } },
    { TC_FORMAT_BIN, 0, 47514, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, 10 } } },
    { TC_FORMAT_BIN, 0, 65535, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, 10 } } },
    { TC_FORMAT_BIN, 0, 65536, { .mode = S_IFREG, .bytes = 1044, .header = { 20240520, 1, 10 } } },
  };
  struct tc_err err = { .text = "" };
  (void)ctx;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    for (int n = 1; n <= 2; n++) {
      struct tc_data *d = NULL;
      bin = row[i].format == TC_FORMAT_BIN;
      memset(file, 0, sizeof file);
      make_files(2, 2);
      file[n - 1] = row[i].with;
      const struct tc_data_opts o = { name, n, row[i].format, row[i].part, 8, row[i].vocab, OPEN, false, false, false, false };
      int rc = tc_data_open(&d, &o, &err);
      say(d, "opened", rc, &err);
      tc_data_free(d);
    }
  struct tc_data *d = (void *)file;
  const struct tc_data_opts o = { name, 0, TC_FORMAT_TEXT, 0, 8, 256, OPEN, false, false, false, false };
  int rc = tc_data_open(&d, &o, &err);
  note("%d", d != NULL);
  say(d, "none", rc, &err);
}

static char *make_scene(const char *line)
{
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
    if (!strcmp(scenes[i].name, line)) return script_play(play, (void *)(uintptr_t)&scenes[i]);
  return script_play(refused, NULL);
}

int main(int argc, char **argv)
{
  alarm(300);
  setenv("TZ", "UTC", 1);
  tc_data_free(NULL);
  return digests(argc, argv, "data", make_scene);
}
