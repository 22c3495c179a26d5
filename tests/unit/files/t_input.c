/* t_input - text files: which kinds of inode are read, which are refused and with which sentence; none is waited for. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/input.h"
#include "tests/unit/tap.h"

/* A pipe with a text in it, as `<(...)` gives one; *path is /dev/fd/N. */
static int give_pipe(char *path, size_t size, const char *text)
{
  int end[2];
  if (pipe(end) || write(end[1], text, strlen(text)) < 0) exit(1);
  close(end[1]);
  snprintf(path, size, "/dev/fd/%d", end[0]);
  return end[0];
}

static void make_all(void)
{
  FILE *f = fopen("regular", "w");
  fputs("text", f);
  fclose(f);
  mkfifo("pipe", 0666);
  mkdir("folder", 0777);
  if (symlink("regular", "link") || symlink("pipe", "link-to-pipe") || symlink("none", "link-to-none")) exit(1);
  const int fd = open("large", O_WRONLY | O_CREAT, 0666);
  if (ftruncate(fd, INT64_C(4) << 30)) exit(1);
  close(fd);
  struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "socket" };
  const int s = socket(AF_UNIX, SOCK_STREAM, 0);
  if (bind(s, (struct sockaddr *)&a, sizeof a)) exit(1);
  close(s);
}

static const struct { const char *path, *sentence; } inputs[] = {
  { "regular", NULL }, { "link", NULL },
  { "pipe", "cannot read run file pipe: it is a named pipe; give a file, or <(COMMAND)" },
  { "link-to-pipe", "cannot read run file link-to-pipe: it is a named pipe; give a file, or <(COMMAND)" },
  { "folder", "cannot read run file folder: it is a folder; name a file in it" },
  { "/dev/zero", "cannot read run file /dev/zero: it is a device; give a file" },
  { "/dev/null", "cannot read run file /dev/null: it is a device; give a file" },
  { "socket", "cannot open run file socket: No such device or address" },
  { "none", "cannot open run file none: No such file or directory" },
  { "link-to-none", "cannot open run file link-to-none: No such file or directory" },
  { "regular/x", "cannot open run file regular/x: Not a directory" },
  { "large", "cannot read run file large: it has more than 1 MB, so it must be something else" },
};

static void test_kinds(void)
{
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    struct tc_err err = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    const int rc = tc_read_text(&text, &bytes, inputs[i].path, "run file", 1000000, &err);
    is_int(rc, inputs[i].sentence ? TC_EUSER : 0, "%s", inputs[i].path);
    if (inputs[i].sentence) is_str(err.text, inputs[i].sentence, "... why");
    else is_str(text, "text", "... is read");
    ok(!text == (rc < 0), "... and a text is there if it was");
    free(text);
  }
}

static void test_given_pipe(void)
{
  struct tc_err err = { 0 };
  char path[40], *text = NULL;
  size_t bytes = 0;
  int fd = give_pipe(path, sizeof path, "from a pipe");
  is_int(tc_read_text(&text, &bytes, path, "run file", 100, &err), 0, "a pipe that was given");
  is_str(text, "from a pipe", "... is read");
  free(text);
  close(fd);
  fd = give_pipe(path, sizeof path, "{\"a\": 1}");
  json_t *o = NULL;
  is_int(tc_read_json(&o, path, "config", 100, 0, NULL, &err), 0, "... as JSON too");
  is_int(json_integer_value(json_object_get(o, "a")), 1, "... with its values");
  json_decref(o);
  for (int i = 0; i < 2; i++) {
    is_int(tc_read_text(&text, &bytes, path, "config", 100, &err), 0, "it is read again");
    is_str(text ? text : "", "{\"a\": 1}", "... to the same text");
    free(text);
  }
  close(fd);
}

/* Files line by line, twice: lines longer than the buffer, a last one without an end, zeros. */
static void test_lines(void)
{
  struct tc_err err = { 0 };
  struct tc_lines *l = NULL;
  char path[40], *line, *text = tc_malloc(300000);
  size_t len = 0;
  memset(text, 'x', 200000);
  strcpy(text + 200000, "\n\nlast");
  FILE *f = fopen("lines", "w");
  fputs(text, f), fclose(f);
  const int fd = give_pipe(path, sizeof path, "line 1\n\nlast");
  const struct { const char *path; size_t first; } files[] = { { "lines", 200001 }, { path, 7 } };
  for (int i = 0; i < 2; i++)
    for (int again = 0; again < 2; again++) {
      is_int(tc_lines_open(&l, files[i].path, "file of questions", &err), 0, "%s: %s", files[i].path, err.text);
      ok(tc_lines_next(l, &line, &len, &err) == 1 && len == files[i].first && line[len - 1] == '\n' && !line[len], "a line");
      ok(tc_lines_next(l, &line, &len, &err) == 1 && !strcmp(line, "\n"), "... an empty one");
      ok(tc_lines_next(l, &line, NULL, &err) == 1 && !strcmp(line, "last"), "... one that does not end");
      is_int(tc_lines_next(l, &line, NULL, &err), 0, "... and no other");
      tc_lines_close(l);
    }
  close(fd);
  is_int(tc_lines_open(&l, "none", "file of questions", &err), TC_EUSER, "a file that is not there");
  ok(!l && !strcmp(err.text, "cannot open file of questions none: No such file or directory"), "... says so");
  tc_lines_close(l);
  is_int(tc_lines_open(&l, "large", "file of questions", &err), 0, "a large file of zeros");
  is_int(tc_lines_next(l, &line, NULL, &err), TC_EUSER, "... is no line");
  is_str(err.text, "cannot read file of questions large: a line of it has more than 67 MB, so it must be something else",
         "... as it says");
  tc_lines_close(l);
  free(text);
}

/* At most so many bytes, whether the size is known before or not. */
static void test_size(void)
{
  struct tc_err err = { 0 };
  char path[40], *text = NULL;
  size_t bytes = 0;
  is_int(tc_read_text(&text, &bytes, "regular", "test file", 4, &err), 0, "a file of the most bytes");
  ok(bytes == 4 && text && !strcmp(text, "text"), "... is read, and ended");
  free(text);
  is_int(tc_read_text(&text, &bytes, "regular", "test file", 3, &err), TC_EUSER, "one more");
  is_str(err.text, "cannot read test file regular: it has more than 0 MB, so it must be something else", "... why");
  ok(!text, "... without a text");
  const int fd = give_pipe(path, sizeof path, "text");
  is_int(tc_read_text(&text, &bytes, path, "test file", 3, &err), TC_EUSER, "the same from a pipe");
  close(fd);
}

static void test_json(void)
{
  struct tc_err err = { 0 };
  json_t *o = NULL;
  bool damaged = false;
  is_int(tc_read_json(&o, "regular", "config", 100, 0, &damaged, &err), TC_EUSER, "a text that is not JSON");
  ok(damaged && strstr(err.text, "config regular is not JSON: line 1"), "... is damaged: %s", err.text);
  is_int(tc_read_json(&o, "none", "config", 100, 0, &damaged, &err), TC_EUSER, "a file that is not there");
  ok(!damaged && !o, "... is not damaged");
  bool missing = false;
  ok(tc_open_text("none", "config", &missing, &err) < 0 && missing, "missing is told apart");
  ok(tc_open_text("folder", "config", &missing, &err) < 0 && !missing, "... from what can't be read");
}

int main(void)
{
  char dir[] = "t_input-XXXXXX";
  if (!mkdtemp(dir) || chdir(dir)) return 1;
  make_all();
  test_kinds();
  test_given_pipe();
  test_lines();
  test_size();
  test_json();
  static const char *const left[] = { "regular", "pipe", "link", "link-to-pipe", "link-to-none", "large", "socket", "lines" };
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) unlink(left[i]);
  rmdir("folder");
  ok(chdir("..") == 0 && rmdir(dir) == 0, "nothing else is left");
  return done_testing();
}
