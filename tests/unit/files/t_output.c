/* t_output - what a file that the program makes may replace, and that nothing is there of one that was not finished. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/output.h"
#include "tests/unit/tap.h"

static const struct tc_output_kind letter = { "a letter", { "Dear ", "Hello " } };

static void put(const char *name, const char *text)
{
  FILE *f = fopen(name, "w");
  if (f) fputs(text, f), fclose(f);
}

/* The contents of a file; "" if there is none. */
static const char *get(const char *name)
{
  static char text[200];
  FILE *f = fopen(name, "r");
  text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
  if (f) fclose(f);
  return text;
}

/* How many names in the current folder begin so. */
static int count(const char *prefix)
{
  int n = 0;
  DIR *d = opendir(".");
  for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, prefix, strlen(prefix));
  closedir(d);
  return n;
}

static void make_all(void)
{
  put("own", "Dear reader");
  put("own-2", "Hello reader");
  put("other", "Once upon a time");
  put("data", "Dear data");
  put("empty", "");
  put("linked", "Dear friend");
  put("linked-other", "Once");
  mkdir("folder", 0777);
  mkdir("kept", 0777);
  mkdir("kept/deep", 0777);
  mkfifo("pipe", 0666);
  if (symlink("kept", "link-kept") || symlink("linked", "link") || symlink("linked-other", "link-other") || symlink("none", "link-none") ||
      symlink("/dev/null", "link-device") || link("data", "hard-link")) exit(1);
}

/* before: what the file has that must stay; "" where a letter replaces it or is made. */
static const struct { const char *path, *before, *sentence; } outputs[] = {
  { "absent", "", NULL },
  { "own", "", NULL },
  { "own-2", "", NULL },
  { "empty", "", NULL },
  { "link", "", NULL },
  { "other", "Once upon a time", "-o other exists already and is not a letter; remove it or give another name" },
  { "data", "Dear data", "-o data is the training data; give another name" },
  { "kept/new", "", "-o kept/new is in kept, the checkpoints; give another name" },
  { "kept/deep/new", "", "-o kept/deep/new is in kept, the checkpoints; give another name" },
  { "link-kept/new", "", "-o link-kept/new is in kept, the checkpoints; give another name" },
  { "./folder/../soon", "", "-o ./folder/../soon is the metrics; give another name" },
  { "hard-link", "Dear data", "-o hard-link is the training data; give another name" },
  { "link-other", "Once", "-o link-other exists already and is not a letter; remove it or give another name" },
  { "link-none", "", "-o link-none is a link whose file can't be found: No such file or directory; remove it or give "
    "another name" },
  { "link-device", "", "-o link-device is a device, not a file that can be made; give another name" },
  { "/dev/null", "", "-o /dev/null is a device, not a file that can be made; give another name" },
  { "folder", "", "-o folder is a folder, not a file that can be made; give another name" },
  { "folder/", "", "-o 'folder/' is not the name of a file" },
  { "pipe", NULL, "-o pipe is a pipe, not a file that can be made; give another name" },
  { "", "", "-o '' is not the name of a file" },
  { "no-folder/x", "", "-o no-folder/x can't be written: there is no folder no-folder" },
  { "own/x", "", "-o own/x can't be written: Not a directory" },
};

static void test_places(void)
{
  const struct tc_output_kept kept[] = { { "no such", "a file that is gone" }, { "data", "the training data" },
                                         { "kept", "the checkpoints" }, { "soon", "the metrics" } };
  const struct tc_output_opts o = { .kind = &letter, .flag = "-o", .kept = kept, .n_kept = 4 };
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
    struct tc_err err = { 0 };
    const char *path = outputs[i].path;
    const int may = tc_output_check(path, &o, &err), rc = tc_output_text(path, &o, "Dear all", &err);
    is_int(may, rc, "'%s': the check says what happens", path);
    is_int(rc, outputs[i].sentence ? TC_EUSER : 0, "'%s'", path);
    if (outputs[i].sentence) is_str(err.text, outputs[i].sentence, "... why");
    if (outputs[i].sentence && outputs[i].before) is_str(get(path), outputs[i].before, "... stays");
    if (!outputs[i].sentence) is_str(get(path), "Dear all", "... is written");
  }
  struct stat st;
  ok(lstat("link", &st) == 0 && S_ISLNK(st.st_mode), "a link stays one");
  is_str(get("linked"), "Dear all", "... and its file is written");
  is_int(count(".tmp-"), 0, "nothing unfinished is left");
}

/* Without a kind nothing is replaced, also not by the slower of two. */
static void test_two(void)
{
  const struct tc_output_opts o = { .kind = NULL };
  struct tc_err err = { 0 };
  struct tc_output *a, *b;
  is_int(tc_output_text("own", &o, "x", &err), TC_EUSER, "without a kind");
  is_str(err.text, "own exists already; remove it or give another name", "... why");
  ok(!tc_output_new(&a, "two", &o, &err) && !tc_output_new(&b, "two", &o, &err), "two begin one file");
  tc_output_write(a, "AAAA", 4, &err);
  tc_output_write(b, "BB", 2, &err);
  is_int(tc_output_finish(b, &err), 0, "one is finished");
  is_int(tc_output_finish(a, &err), TC_EUSER, "the other is not");
  ok(strstr(err.text, "two exists already"), "... %s", err.text);
  is_str(get("two"), "BB", "the file is that of the first, whole");
  is_int(count(".tmp-"), 0, "nothing unfinished is left");
}

/* An earlier file, whatever it is, is kept as NAME~, and what is there is kept, too. */
static void test_backup(void)
{
  const struct tc_output_opts o = { .kind = &letter, .backup = true };
  struct tc_err err = { 0 };
  put("edited", "not a letter");
  is_int(tc_output_text("edited", &o, "Dear 1", &err), 0, "an earlier file");
  is_str(get("edited~"), "not a letter", "... is kept");
  is_int(tc_output_text("edited", &o, "Dear 2", &err), 0, "and the next");
  is_str(get("edited~"), "not a letter", "... is kept, too");
  is_str(get("edited~2"), "Dear 1", "... under another name");
  is_str(get("edited"), "Dear 2", "... beside the file");
  unlink("edited~2");
  unlink("edited");
  unlink("edited~");
  const int fd = tc_scratch_file(".", &err);
  char text[5] = "";
  ok(fd >= 0 && pwrite(fd, "text", 4, 0) == 4 && pread(fd, text, 4, 0) == 4 && !strcmp(text, "text"), "a file without a name");
  is_int(count(".tmp-"), 0, "... has none");
  close(fd);
  is_int(tc_scratch_file("no-folder", &err), TC_EUSER, "... in a folder that is not there");
}

static void test_stream(void)
{
  const struct tc_output_opts o = { .kind = &letter, .executable = true };
  struct tc_err err = { 0 };
  struct tc_output *f;
  struct stat st;
  is_int(tc_output_new(&f, "stream", &o, &err), 0, "a stream");
  fprintf(tc_output_stream(f), "Dear %d", 7);
  ok(access("stream", F_OK) < 0, "... has no name before it is finished");
  is_int(tc_output_finish(f, &err), 0, "... is finished");
  is_str(get("stream"), "Dear 7", "... and has its text");
  ok(stat("stream", &st) == 0 && st.st_mode & 0100, "... and may be executed");
  chmod("stream", 0640);
  tc_output_text("stream", &(struct tc_output_opts){ .kind = &letter }, "Dear 8", &err);
  ok(stat("stream", &st) == 0 && (st.st_mode & 0777) == 0640, "what replaces it has its mode");
  is_int(tc_output_new(&f, "/dev/full/x", &o, &err), TC_EUSER, "a device in place of a folder");
}

/* An error of the stream's writes is told by its reason. */
static void test_full(void)
{
  const struct tc_output_opts o = { .kind = &letter };
  struct tc_err err = { 0 };
  struct tc_output *f;
  tc_output_new(&f, "full", &o, &err);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  dup2(full, tc_output_fd(f));
  close(full);
  for (int i = 0; i < 100000; i++) fputs("Dear", tc_output_stream(f));
  is_int(tc_output_finish(f, &err), TC_EUSER, "a disk that is full");
  is_str(err.text, "full can't be written: No space left on device", "... why");
  ok(access("full", F_OK) < 0, "... and there is no file");
}

/* What a signal does, in a process of its own, since nothing is begun afterwards. */
static void end_by_signal(void)
{
  const pid_t pid = fork();
  if (pid == 0) {
    tc_output_remove_unfinished();
    _exit(0);
  }
  TC_ASSERT(waitpid(pid, NULL, 0) == pid);
}

/* What a signal removes: what this process has begun and not finished. */
static void test_unfinished(void)
{
  const struct tc_output_opts o = { .kind = &letter };
  struct tc_err err = { 0 };
  struct tc_output *f[40];
  for (int i = 0; i < 40; i++) {
    char name[20];
    snprintf(name, sizeof name, "many-%d", i);
    tc_output_new(&f[i], name, &o, &err);
  }
  tc_output_finish(f[3], &err);
  tc_output_abandon(f[4]);
  is_int(count(".tmp-"), 38, "files that are not finished");
  end_by_signal();
  is_int(count(".tmp-"), 8, "... are removed, 32 of them");
  is_int(count("many-"), 1, "... a finished one is not");
  for (int i = 0; i < 40; i++)
    if (i != 3 && i != 4) tc_output_abandon(f[i]);
  is_int(count(".tmp-"), 0, "nothing is left");
  unlink("many-3");
}

/* A folder that is filled under a temporary name. */
static void test_remember(void)
{
  static const char *const path[] = { "fresh", "fresh/owner", "fresh/beat", "fresh/never" };
  int place[4];
  for (int finished = 0; finished < 2; finished++) {
    for (int i = 0; i < 4; i++) place[i] = tc_output_remember(path[i]);
    TC_ASSERT(mkdir("fresh", 0777) == 0);
    for (int i = 1; i < 3; i++) {
      FILE *f = fopen(path[i], "w");
      TC_ASSERT(f && fclose(f) == 0);
    }
    for (int i = 0; i < 4 && finished; i++) tc_output_forget(place[i]);
    end_by_signal();
    is_int(access("fresh/owner", F_OK) == 0, finished, "a folder that is%s finished", finished ? "" : " not");
    is_int(access("fresh", F_OK) == 0, finished, "... is%s there", finished ? "" : " not");
    for (int i = 0; i < 4 && !finished; i++) tc_output_forget(place[i]);
  }
  unlink("fresh/owner");
  unlink("fresh/beat");
  rmdir("fresh");
}

/* Makes folders under temporary names, fills them and gives them a name, one after another, as fast as it can. */
static void *make_folders(void *arg)
{
  (void)arg;
  for (int n = 0;; n++) {
    char name[] = "making/new-000000", file[] = "making/new-000000/owner", to[] = "making/run-000000";
    snprintf(name, sizeof name, "making/new-%06d", n % 1000000);
    snprintf(file, sizeof file, "%s/owner", name);
    snprintf(to, sizeof to, "making/run-%06d", n % 1000000);
    const int place[] = { tc_output_remember(file), tc_output_remember(name) };
    if (mkdir(name, 0777) == 0) {
      const int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
      if (fd >= 0) close(fd);
      rename(name, to);
    }
    for (int i = 0; i < 2; i++) tc_output_forget(place[i]);
  }
  return NULL;
}

/* The thread that makes something goes on while another one removes what is not finished. */
static void test_other_threads(void)
{
  int left = 0;
  for (int i = 0; i < 60; i++) {
    TC_ASSERT(mkdir("making", 0777) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      pthread_t thread;
      pthread_create(&thread, NULL, make_folders, NULL);
      tc_sleep_ns(1000000 + i * 37000);
      tc_output_remove_unfinished();
      _exit(0);
    }
    TC_ASSERT(waitpid(pid, NULL, 0) == pid);
    left += system("ls making | grep -q new") == 0;
    TC_ASSERT(system("rm -r making") == 0);
  }
  is_int(left, 0, "a signal leaves nothing half made, whatever the other threads do: 60 times");
}

int main(void)
{
  char dir[] = "t_output-XXXXXX";
  if (!mkdtemp(dir) || chdir(dir)) return 1;
  make_all();
  test_places();
  test_two();
  test_backup();
  test_stream();
  test_full();
  test_unfinished();
  test_remember();
  test_other_threads();
  static const char *const left[] = { "own", "own-2", "other", "data", "hard-link", "empty", "linked", "linked-other", "link",
                                      "link-other", "link-none", "link-device", "pipe", "absent", "two", "stream",
                                      "link-kept" };
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) unlink(left[i]);
  rmdir("folder");
  rmdir("kept/deep");
  rmdir("kept");
  ok(chdir("..") == 0 && rmdir(dir) == 0, "nothing else is left");
  return done_testing();
}
