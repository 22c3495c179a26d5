/* t_cmd_data.c - `tercio data`: bytes as tokens; reads that fail once or for ever; each kind of file as a text and as an
 * output; byte order marks and lines of JSON that can't be read. */
#include "src/base/base.h"
#include "src/cmd/cmd.h"
#include "src/data/data.h"
#include "tests/unit/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_from, fail_count, fail_errno, reads;

/* Of the calls from number fail_from on, fail_count fail. */
static ssize_t my_read(int fd, void *p, size_t n)
{
  if (++reads >= fail_from && reads < fail_from + fail_count) {
    errno = fail_errno;
    return -1;
  }
  return read(fd, p, n > 5000 ? 5000 : n);
}

#define read my_read
#include "src/shards/text_input.c"
#undef read

static char *whole;
enum { SIZE = 200000 };

static void put(const char *name, const char *text, size_t n)
{
  FILE *f = fopen(name, "w");
  TC_ASSERT(f && fwrite(text, 1, n, f) == n && fclose(f) == 0);
}

/* The command on these words, the last one NULL. Its standard error goes to the file err. */
static int run(const char *a, ...)
{
  char *argv[16] = { (char *)(uintptr_t)"data", (char *)(uintptr_t)a };
  int argc = 2;
  va_list ap;
  va_start(ap, a);
  while ((argv[argc] = va_arg(ap, char *))) argc++;
  va_end(ap);
  fflush(stdout);
  fflush(stderr);
  const int out = dup(1), err = dup(2), to = open("err", O_RDWR | O_CREAT | O_TRUNC, 0666);
  TC_ASSERT(dup2(to, 1) >= 0 && dup2(to, 2) >= 0);
  const int status = tc_cmd_data(argc, argv, NULL);
  fflush(stdout);
  dup2(out, 1);
  dup2(err, 2);
  close(out), close(err), close(to);
  return status;
}

static const char *said(void)
{
  static char text[4000];
  FILE *f = fopen("err", "r");
  text[fread(text, 1, sizeof text - 1, f)] = '\0';
  fclose(f);
  return text;
}

static void says(const char *what)
{
  if (!ok(strstr(said(), what) != NULL, "... %s", what)) printf("# it says %.*s\n", (int)strcspn(said(), "\n"), said());
}

/* The tokens of a shard as bytes; NULL: it has others. Owned by the caller. */
static char *tokens_of(const char *name, size_t *n)
{
  static uint16_t token[2 * SIZE];
  FILE *f = fopen(name, "r");
  *n = 0;
  if (!f || fseek(f, 1024, SEEK_SET) != 0) return NULL;
  *n = fread(token, 2, 2 * SIZE, f);
  fclose(f);
  char *text = tc_calloc(1, *n + 1);
  for (size_t i = 0; i < *n; i++) text[i] = (char)token[i];
  return text;
}

static void is_text(const char *name, const char *want, size_t n, const char *what)
{
  size_t got;
  char *text = tokens_of(name, &got);
  ok(text && got == n && memcmp(text, want, n) == 0, "%s: %zu tokens, the bytes of the text", what, got);
  free(text);
}

static bool exists(const char *name)
{
  struct stat st;
  return lstat(name, &st) == 0;
}

/* A read of a text that fails once is tried again; the sentence of one that fails for ever names the file. */
static void test_faults(void)
{
  static const int errors[] = { EIO, ESTALE, EINTR, ENOMEM, EACCES };
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    for (int at = 1; at <= 41; at += 20) {
      unlink("out");
      reads = 0, fail_from = at, fail_count = 1, fail_errno = errors[i];
      is_int(run("text", "-o", "out", NULL), 0, "%s once, at read %d", strerror(errors[i]), at);
      is_text("out", whole, SIZE, "...");
    }
  }
  unlink("out");
  reads = 0, fail_from = 3, fail_count = INT32_MAX - 3, fail_errno = ENXIO;
  is_int(run("text", "-o", "out", NULL), 2, "an error that does not pass");
  says("text file 'text': reading failed: No such device or address");
  ok(!exists("out"), "... no shard");
  fail_from = fail_count = 0;
}

/* A training on the shard takes the samples that it takes on the texts. */
static void test_same_samples(void)
{
  char *text[] = { (char[]){ "a.txt" }, (char[]){ "b.txt" } }, *shard = (char[]){ "ab.bin" };
  const struct tc_data_opts of_text = { .word = text, .n = 2, .format = TC_FORMAT_TEXT, .part = 1, .context = 64, .vocab = 256 },
                            of_shard = { .word = &shard, .n = 1, .format = TC_FORMAT_BIN, .part = 1, .context = 64, .vocab = 256 };
  const struct tc_samples s = { TC_ORDER_DRAWS, 3, 4 };
  struct tc_data *a, *b;
  struct tc_err err = { 0 };
  int32_t x[256], y[256], x2[256], y2[256];
  TC_ASSERT(tc_data_open(&a, &of_text, &err) == 0 && tc_data_open(&b, &of_shard, &err) == 0);
  TC_ASSERT(tc_data_train(a, NULL, &s, 5, 0, 4, &(struct tc_batch){ x, y, NULL }, &err) == 0);
  TC_ASSERT(tc_data_train(b, NULL, &s, 5, 0, 4, &(struct tc_batch){ x2, y2, NULL }, &err) == 0);
  ok(memcmp(x, x2, sizeof x) == 0 && memcmp(y, y2, sizeof y) == 0, "... the same samples");
  tc_data_free(a);
  tc_data_free(b);
}

/* What two texts become, as training reads it; what the command line refuses, and a disk that fills up. */
static void test_bytes(void)
{
  enum { LENGTH = (3 << 20) + 17 };        /* more than one unit */
  char *text = tc_malloc(LENGTH);
  uint16_t *got = tc_malloc(2 * LENGTH + 4);
  int32_t header[256];
  for (size_t i = 0; i < LENGTH; i++) text[i] = (char)((uint32_t)i * 2654435761u >> 24);
  put("a.txt", text, 1000);
  put("b.txt", text + 1000, LENGTH - 1000);
  is_int(run("a.txt", "b.txt", "--invalid=bytes", "-o", "ab.bin", NULL), 0, "tercio data a b -o ab");
  FILE *f = fopen("ab.bin", "rb");
  const size_t head = fread(header, 4, 256, f), n = fread(got, 2, LENGTH + 2, f);
  fclose(f);
  ok(head == 256 && header[0] == 20240520 && header[1] == 1 && header[2] == LENGTH, "... a header");
  int bad = n != LENGTH;
  for (size_t i = 0; i < n && i < LENGTH; i++) bad += got[i] != (uint8_t)text[i];
  is_int(bad, 0, "... the bytes as tokens");
  test_same_samples();
  is_int(run("a.txt", "none.txt", "--invalid=bytes", "-o", "ab.bin", NULL), 2, "a missing text");
  is_int(run("a.txt", "--invalid=bytes", "-out", "ab.bin", NULL), 2, "no -o with a name joined to it");
  ok(access("ut", F_OK) != 0, "... which would be a file");
  is_int(run("a.txt", "--invalid=bytes", "-o", "a.txt", NULL), 2, "onto its own text");
  is_int(run("-o", "ab.bin", NULL), 2, "no text");
  is_int(run("a.txt", NULL), 2, "no -o");
  is_int(run("a.txt", "-x", "-o", "ab.bin", NULL), 2, "an unknown option");
  is_int(run("a.txt", "--invalid=bytes", "-o", "no/ab.bin", NULL), 2, "a folder that is not there");
  is_int(run("a.txt", "--invalid=bytes", "-o", ".", NULL), 2, "onto a folder");
  struct stat st, before;
  ok(stat("ab.bin", &st) == 0 && st.st_size == 1024 + 2 * (off_t)LENGTH, "the old shard is untouched");
  struct rlimit limit, small;
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 1 << 20;                /* a disk that is full after a while */
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  is_int(run("b.txt", "--invalid=bytes", "-o", "ab.bin", NULL), 2, "a disk that fills up");
  setrlimit(RLIMIT_FSIZE, &limit);
  ok(stat("ab.bin", &st) == 0 && st.st_size == 1024 + 2 * (off_t)LENGTH, "... the old shard is untouched");
  put("none.txt", "", 0);
  is_int(run("none.txt", "-o", "ab.bin", NULL), 2, "an empty text");
  if (stat("/dev/full", &before) == 0 && access("/dev/full", W_OK) == 0) {
    is_int(run("a.txt", "--invalid=bytes", "-o", "/dev/full", NULL), 2, "onto a device");
    ok(stat("/dev/full", &st) == 0 && st.st_rdev == before.st_rdev, "... which is still there");
  }
  free(text);
  free(got);
  for (const char *const *at = (const char *const[]){ "a.txt", "b.txt", "ab.bin", "none.txt", NULL }; *at; at++) unlink(*at);
}

/* What can be named as a text, and what as the shard. */
static void test_files(void)
{
  TC_ASSERT(mkfifo("fifo", 0666) == 0 && mkdir("folder", 0777) == 0 && symlink("nowhere", "dangling") == 0);
  static const struct { const char *name, *says; } texts[] = {
    { "fifo", "text file fifo: it is a named pipe" }, { "/dev/zero", "text file /dev/zero: it is a device" },
    { "folder", "folder 'folder' has no files of text" }, { "none", "text file none: No such file" },
    { "dangling", "text file dangling: No such file" }, { "sparse", "is not text: byte 0 of it is 0x00" },
  }, outs[] = {
    { "text", "-o text is one of the texts" }, { "linked", "-o linked is one of the texts" },
    { "other", "-o other exists already and is not a token shard" }, { "fifo", "-o fifo is a pipe" },
    { "/dev/full", "-o /dev/full is a device" }, { "folder", "-o folder is a folder" },
    { "dangling", "-o dangling is a link whose file can't be found" }, { "no/out", "there is no folder no" },
  };
  int fd = open("sparse", O_WRONLY | O_CREAT, 0666);
  TC_ASSERT(ftruncate(fd, (off_t)4 << 30) == 0 && close(fd) == 0);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    is_int(run(texts[i].name, "-o", "out", NULL), 2, "a text that is %s", texts[i].name);
    says(texts[i].says);
  }
  put("other", "notes", 5);
  TC_ASSERT(link("text", "linked") == 0);
  for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
    is_int(run("text", "-o", outs[i].name, NULL), 2, "a shard that is %s", outs[i].name);
    says(outs[i].says);
  }
  size_t n;
  char *text;
  struct tc_err err;
  ok(tc_read_text(&text, &n, "other", "file", SIZE, &err) == 0 && n == 5 && !memcmp(text, "notes", 5),
     "the other file is as it was");
  free(text);
  unlink("out");
  is_int(run("text", "-o", "out", NULL), 0, "a name that is free");
  is_int(run("text", "text", "-o", "out", NULL), 0, "a shard that is there");
  is_int(run("out", "-o", "out2", NULL), 2, "a shard as a text");
  says("text file 'out' is a token shard; a training reads it as it is");
  int pipes[2];
  TC_ASSERT(pipe(pipes) == 0 && write(pipes[1], whole, 10000) == 10000 && close(pipes[1]) == 0);
  char *name = tc_sprintf("/dev/fd/%d", pipes[0]);
  is_int(run(name, "-o", "out", NULL), 0, "a pipe that the user gave");
  is_text("out", whole, 10000, "...");
  close(pipes[0]);
  free(name);
  for (const char *const *at = (const char *const[]){ "fifo", "dangling", "sparse", "linked", "other", "out", NULL }; *at; at++)
    unlink(*at);
  rmdir("folder");
}

/* Text and JSONL with a byte order mark and without one; empty texts. */
static void test_marks(void)
{
  put("a.txt", "\xef\xbb\xbf" "first", 8);
  put("b.txt", "\xef\xbb\xbf", 3);
  put("c.txt", "x\xef\xbb\xbfy", 5);
  put("d.jsonl", "\xef\xbb\xbf{\"text\": \"line\"}\n", 20);
  is_int(run("a.txt", "b.txt", "c.txt", "d.jsonl", "--eod", "10", "-o", "out", NULL), 0, "texts with marks");
  is_text("out", "first\nx\xef\xbb\xbfy\nline\n", 17, "... which are left out at the begin");
  says("1 empty document left out");
  unlink("out");
  is_int(run("b.txt", "-o", "out", NULL), 2, "an empty text alone");
  says("the text is empty: there is nothing to make out of");
  is_int(run("d.jsonl", "-o", "out", NULL), 2, "JSONL without a byte between its texts");
  says("'d.jsonl' is JSONL: without a tokenizer give the byte between its texts, such as --eod 10");
  is_int(run("a.txt", "--eod", "256", "-o", "out", NULL), 2, "a byte that is none");
  says("--eod 256: without a tokenizer a token is a byte: give its number, 0 to 255");
  is_int(run("a.txt", "--begin-token", "-o", "out", NULL), 2, "an option that needs a tokenizer");
  says("--begin-token needs --tokenizer");
  for (const char *const *at = (const char *const[]){ "a.txt", "b.txt", "c.txt", "d.jsonl", NULL }; *at; at++) unlink(*at);
}

/* Each line that can't be read ends the call, or is left out and counted. */
static void test_bad_lines(void)
{
  static const char *const bad[] = {
    "{\"text\": \"cut off", "{\"text\": 7}", "{\"other\": \"\"}", "[\"text\"]", "{\"text\": \"\\ud800\"}", "{\"text\": \"\xff\"}",
    "\x1f\x8b", "{\"text\": \"x\"} more", "{} {}", "nothing", "{\"text\": null}",
  };
  char lines[2000] = "{\"text\": \"first\"}\n";
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char one[200];
    snprintf(one, sizeof one, "{\"text\": \"first\"}\n\n%s\n", bad[i]);
    tc_text_add(lines, sizeof lines, "%s\n", bad[i]);
    put("one.jsonl", one, strlen(one));
    is_int(run("one.jsonl", "--eod", "0", "-o", "out", NULL), 2, "a bad line: %s", bad[i]);
    says("text 'one.jsonl', line 3: ");
    is_int(run("one.jsonl", "--eod", "0", "--bad-lines", "skip", "-o", "out", NULL), 0, "... left out");
    is_text("out", "first", 6, "...");
    says("1 line left out, which can't be read; the first: text 'one.jsonl', line 3: ");
    unlink("out");
  }
  tc_text_add(lines, sizeof lines, "{\"text\": \"last\"}");
  put("all.jsonl", lines, strlen(lines));
  is_int(run("all.jsonl", "all.jsonl", "--eod=0", "--bad-lines=skip", "-o", "out", NULL), 0, "bad lines among good ones");
  is_text("out", "first\0last\0first\0last", 22, "...");
  says("22 lines left out, which can't be read; the first: text 'all.jsonl', line 2: ");
  is_int(run("all.jsonl", "--eod=0", "--bad-lines=no", "-o", "out", NULL), 2, "another word");
  says("--bad-lines no: give refuse or skip");
  unlink("one.jsonl"), unlink("all.jsonl");
}

/* Flags that --chat would pass over. */
static void test_chat_flags(void)
{
  static const char *const dropped[][2] = { { "--field", "x" }, { "--eod", "</s>" }, { "--begin-token", NULL }, { "--jsonl", NULL } };
  for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
    is_int(run("--tokenizer=none", "-o", "out", "text", "--chat", "none", dropped[i][0], dropped[i][1], NULL), 2, "--chat and %s",
           dropped[i][0]);
    char *want = tc_sprintf("%s has no effect with --chat none", dropped[i][0]);
    says(want);
    free(want);
  }
}

int main(void)
{
  char dir[] = "/tmp/t_cmd_data-XXXXXX";
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  whole = tc_malloc(SIZE);
  for (int i = 0; i < SIZE; i++) whole[i] = (char)(' ' + i % 90);
  put("text", whole, SIZE);
  test_faults();
  test_bytes();
  test_files();
  test_marks();
  test_bad_lines();
  test_chat_flags();
  unlink("text"), unlink("out"), unlink("err");
  free(whole);
  return chdir("/") || rmdir(dir) || done_testing();
}
