/* t_data_change.c - token files that change, fail or are many while they are in use. */
#include "tests/unit/data_fixture.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char warned[1000];
static int warnings;

TAP_FORMAT(1, 2)
static void warn_here(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(warned, sizeof warned, fmt, ap);
  va_end(ap);
  warnings++;
}

#define tc_warn warn_here
#include "src/data/data.c"
#undef tc_warn

/* Writing to it changes its time of modification then, however coarse the clock is. */
static void make_old(const char *file)
{
  const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
  if (utimensat(AT_FDCWD, file, past, 0) != 0) perror(file);
}

/* Takes batches until one fails; its sentence is in *err. */
static bool fails(struct tc_data *d, struct tc_err *err)
{
  int32_t x[64 * 8], y[64 * 8];
  for (int step = 1; step <= 100; step++)
    if (draw(d, 1, step, 0, 64, x, y, err) != 0) return true;
  return false;
}

static void test_changed(const char *dir)
{
  enum { LONG = 20000 };
  uint16_t *tokens = calloc(LONG, sizeof *tokens);
  struct tc_err err = { 0 };
  char *file = path(dir, "live.bin"), *other = path(dir, "other.bin");
  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  struct tc_data *d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50257);
  ok(tc_data_check(d, true, &err) == 0 && !fails(d, &err), "an untouched file is as it was");
  chmod(file, 0600);
  ok(tc_data_check(d, false, &err) == 0, "a change of mode is no change of contents");
  put_bin(other, 20240520, 1, LONG, tokens, LONG);
  rename(other, file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "another file of the name");
  says(&err, file, "replaced");
  ok(!fails(d, &err), "  the open one can still be read");
  unlink(file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "removed");
  says(&err, file, "removed");
  tc_data_free(d);

  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  make_old(file);
  d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50257);
  tokens[LONG / 2] = 50257;
  put_at(file, 1024, tokens, 2 * LONG);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "rewritten");
  says(&err, file, "modified");
  ok(fails(d, &err), "  the token that is too large is found in a batch");
  says(&err, file, "token 50257 at place 10000 (byte 21024)");
  if (truncate(file, 1024 + 3001) != 0) perror("truncate");
  is_int(tc_data_check(d, true, &err), TC_EUSER, "truncated");
  says(&err, file, "had 41024 bytes and has 4025");
  ok(fails(d, &err), "  a batch beyond its end is not read");
  says(&err, file, "truncated");
  tc_data_free(d);

  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  make_old(file);
  d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50258);
  struct tc_data_identity id;
  ok(tc_data_identity(d, &id, &err) == 0, "the identity, asked for before");
  make_old(file);
  ok(tc_data_check(d, false, &err) == 0, "  a time set to what it was is no change");
  put_at(file, 1024 + 1000, "\1", 1);
  make_old(file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "rewritten, and the time set back");
  says(&err, file, "set back");
  tc_data_free(d);
  free(tokens);
  free(file);
  free(other);
}

/* More files than are kept open, and than the process may open. */
static void test_many(const char *dir)
{
  enum { FILES = 100, EACH = 50 };
  char *name[FILES], *whole = path(dir, "whole.txt");
  uint8_t all[FILES * EACH];
  struct tc_err err = { 0 };
  struct rlimit limit, few;
  int32_t x[256 * 16], y[256 * 16], x2[256 * 16], y2[256 * 16];
  scatter(all, sizeof all);
  for (int i = 0; i < FILES; i++) {
    name[i] = tc_sprintf("%s/part%03d.txt", dir, i);
    put(name[i], all + i * EACH, EACH);
    make_old(name[i]);
  }
  put(whole, all, sizeof all);
  struct tc_data *one = must_open(&whole, 1, TC_FORMAT_TEXT, 0, 16, 256);
  getrlimit(RLIMIT_NOFILE, &limit);
  few = limit;
  int next = dup(0);
  close(next);
  few.rlim_cur = (rlim_t)next + 4;
  setrlimit(RLIMIT_NOFILE, &few);
  struct tc_data *many = must_open(name, FILES, TC_FORMAT_TEXT, 0, 16, 256);
  take(one, 9, 1, 0, 256, x, y);
  take(many, 9, 1, 0, 256, x2, y2);
  setrlimit(RLIMIT_NOFILE, &limit);
  ok(memcmp(x, x2, sizeof x) == 0 && memcmp(y, y2, sizeof y) == 0,
     "%d files with 4 descriptors: the samples of one file", FILES);
  take(many, 9, 2, 0, 256, x2, y2);
  take(one, 9, 2, 0, 256, x, y);
  ok(memcmp(x, x2, sizeof x) == 0, "  and with enough of them");
  struct tc_data_identity id;
  ok(tc_data_identity(many, &id, &err) == 0, "the identity");
  for (int i = 0; i < FILES; i++) chmod(name[i], 0600);
  warnings = 0;
  ok(tc_data_check(many, true, &err) == 0 && tc_data_check(many, true, &err) == 0, "  all with another mode");
  is_int(warnings, 1, "  ... one warning: %s", warned);
  ok(strstr(warned, name[0]) && strstr(warned, "' and 99 others: "), "  ... says how many");
  for (int i = 0; i < FILES; i++) put(name[i], all, EACH);
  ok(tc_data_check(many, true, &err) != 0, "  all replaced: %s", err.text);
  take(one, 9, 3, 0, 256, x, y);
  ok(draw(many, 9, 3, 0, 256, x2, y2, &err) != 0 && strstr(err.text, "modified"),
     "  one that is opened again is looked at: %s", err.text);
  tc_data_free(one);
  tc_data_free(many);
  for (int i = 0; i < FILES; i++) free(name[i]);
  free(whole);
}

static void tests(const char *dir)
{
  test_changed(dir);
  test_many(dir);
}

int main(void)
{
  return in_folder("t_data_change", tests);
}
