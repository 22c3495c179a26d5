/* t_calls.c - what is done to the disk, call by call, when owners take folders and checkpoints and other
 * files are written and read; and what is reported and left when any one of these calls fails. */
#include "io/ckpt/ckpt.h"
#include "io/folder.h"
#include "src/files/output.h"
#include "io/ckpt/owner.h"
#include "io/formats/safetensors.h"
#include "src/train/parts.h"
#include "tests/unit/io/calls.h"
#include "tests/unit/digest.h"
#include "tests/unit/verify_step.h"

static struct tc_comm *self;

static void put(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Folders and files: "a/" is a folder, "a/b=text" a file. */
static void make_tree(const char *const *item)
{
  for (; *item; item++) {
    char *path = tc_strdup(*item), *text = strchr(path, '=');
    if (text) *text++ = 0;
    if (text)
      put(path, text);
    else
      TC_ASSERT(mkdir(path, 0777) == 0);
    free(path);
  }
}

#define TREE(...) make_tree((const char *const[]){ __VA_ARGS__, NULL })

/* The names below `path`, or away with them. */
static void walk(FILE *out, const char *path)
{
  struct dirent **item;
  int n = scandir(path, &item, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    const char *name = item[i]->d_name;
    char *sub = tc_sprintf("%s/%s", path, name);
    if (strcmp(name, ".") && strcmp(name, "..")) {
      if (out) fprintf(out, " %s", sub + 2);
      walk(out, sub);
      if (!out) remove(sub);
    }
    free(sub);
    free(item[i]);
  }
  if (n >= 0) free(item);
}

static int descriptors(void)
{
  int n = 0;
  for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

/* ---- what is done ------------------------------------------------------------------------- */

static void nothing(void) {}

static void folders(void)
{
  TREE(
      "d/", "d/.run-00000003/", "d/.run-00000003/beat=0000000007\n", "d/.run-00000003/sub/",
      "d/.run-00000003/sub/file=x", "d/.new-0badcafe/", "d/.new-0badcafe/beat=1",
      "d/.gone-run-00000001-00000002/",
      "d/.run-00000003/owner={\"job\": \"5\", \"host\": \"far\", \"machine\": \"m\", \"pid\": 1, \"born\": 2}");
}

static int take(const char *dir, struct tc_err *err)
{
  struct tc_owner *o = tc_owner_new(dir, "5", 2);
  int rc = tc_owner_take(o, err);
  fprintf(calls.out, "  home %s\n", tc_owner_lease(o));
  tc_owner_free(o);
  return rc;
}

static int take_over(struct tc_err *err) { return take("d", err); }
static int take_fresh(struct tc_err *err) { return take("d/e", err); }

static void ended(void) { TREE("d/", "d/.run-00000003/", "d/.run-00000003/ended={}"); }

static int alive(struct tc_err *err) { return tc_owner_alive("d", err); }

static int output(struct tc_err *err)
{
  struct tc_output *f;
  int rc = tc_output_new(&f, "x", &(struct tc_output_opts){ 0 }, err);
  if (rc < 0) return rc;
  rc = tc_output_write(f, "0123456789", 10, err);
  if (rc == 0) rc = tc_output_write(f, "abc", 3, err);
  fprintf(calls.out, "  %lld bytes\n", (long long)tc_output_bytes(f));
  if (rc == 0) return tc_output_finish(f, err);
  tc_output_abandon(f);
  return rc;
}

static void there(void) { TREE("x=old"); }

static int weights(struct tc_err *err)
{
  static const struct tc_st_tensor t[] = {
    { .name = "a", .dtype = TC_F32, .rank = 1, .dim = { 2 } },
    { .name = "b", .dtype = TC_U8, .rank = 2, .dim = { 3, 1 } }
  };
  static const char *const notes[] = { "format", "pt", NULL };
  struct tc_output *f;
  int64_t bytes;
  int rc = tc_st_create(&f, &bytes, "x", t, 2, notes, err);
  if (rc == 0) rc = tc_output_write(f, "\0\0\200\077\0\0\0\100", 8, err);
  if (rc == 0) rc = tc_output_write(f, "xyz", 3, err);
  if (rc == 0) TC_ASSERT(tc_output_bytes(f) == bytes);
  if (rc == 0) return tc_output_finish(f, err);
  tc_output_abandon(f);
  return rc;
}

static int twice(struct tc_err *err)
{
  static const struct tc_st_tensor t[] = { { .name = "a", .dtype = TC_U8 },
                                           { .name = "a", .dtype = TC_U8 } };
  static const char *const none[] = { NULL };
  struct tc_output *f;
  int64_t bytes;
  const int rc = tc_st_create(&f, &bytes, "x", t, 2, none, err);
  TC_ASSERT(f == NULL);
  return rc;
}

static void weights_there(void)
{
  struct tc_err err;
  TC_ASSERT(weights(&err) == 0);
}

static int weights_read(struct tc_err *err)
{
  struct tc_st *s;
  char text[4] = "";
  float x[2] = { 0 };
  int rc = tc_st_open(&s, "x", err);
  if (rc < 0) return rc;
  rc = tc_st_read(s, tc_st_find(s, "b"), 1, 2, text, err);
  if (rc == 0) rc = tc_st_read(s, tc_st_find(s, "a"), 0, 8, x, err);
  fprintf(calls.out, "  %d %s %g %g %s\n", tc_st_n(s), text, (double)x[0], (double)x[1],
          tc_st_note(s, "format"));
  tc_st_close(s);
  return rc;
}

static void steps(void)
{
  TREE("d/", "d/step-00000001/", "d/step-00000001/manifest.json=x", "d/step-00000001/a=x",
       "d/step-00000002/", "d/step-00000002/manifest.json=x", "d/step-00000005/",
       "d/step-00000005/a=x", "d/step-00000007/", "d/.was-step-00000003-00000aaa/",
       "d/.was-step-00000001-00000aaa/", "d/.was-x/", "d/.tmp-step-00000009-5-0-1/",
       "d/.tmp-step-00000009-5-0-1/a=x", "d/.old-step-00000000-1/", "d/.run-00000004/");
}

static int remove_one(struct tc_err *err) { return tc_folder_remove("d/step-00000001", err); }
static int rename_one(struct tc_err *err)
{
  return tc_folder_rename("d", "step-00000001", "step-00000009", err);
}
static int make_deep(struct tc_err *err) { return tc_folder_make("d/a/b/", err); }

static int prune(struct tc_err *err)
{
  (void)err;
  tc_ckpt_prune("d", 2);
  return 0;
}

static float values[] = { 1, 2, 3, 4, 5, 6 };
static const struct tc_ckpt_tensor tensor = { "t", TC_F32, 2, { 2, 3 } };
static const struct tc_ckpt_slice slice[] = {
  { .count = { 1, 3 }, .data = values },
  { .start = { 1, 0 }, .count = { 1, 3 }, .data = values + 3 }
};

static int save_as(int64_t step, const char *home, struct tc_err *err)
{
  static const char *const who[] = { "rank 0 on here" };
  const struct tc_ckpt_meta meta = { .step = step,
                                     .model = "",
                                     .config = "",
                                     .mesh = "",
                                     .system = "",
                                     .version = "",
                                     .loop = "",
                                     .job = "a/b",
                                     .restart = 3,
                                     .rank_names = who,
                                     .lease = home };
  return tc_ckpt_save("d", &meta, &tensor, 1, slice, 2, self, err);
}

static int save(struct tc_err *err) { return save_as(2, NULL, err); }
static int save_home(struct tc_err *err) { return save_as(8, ".run-00000004", err); }

static void saved(void)
{
  struct tc_err err;
  TC_ASSERT(save_as(2, NULL, &err) == 0 && save_as(3, NULL, &err) == 0);
}

static void saved_bad(void)
{
  saved();
  put("d/step-00000003/manifest.json", "");
  TREE("d/quarantine-step-00000003/", "d/quarantine-step-00000003.2/");
}

static int use(struct tc_ckpt *c, int rc, struct tc_err *err)
{
  const int64_t start[2] = { 0, 1 }, count[2] = { 2, 2 };
  float x[4] = { 0 };
  if (rc < 0 || !c) return rc;
  rc = tc_ckpt_read(c, 0, start, count, x, err);
  fprintf(calls.out, "  %s: %g %g %g %g\n", tc_ckpt_path(c), (double)x[0], (double)x[1],
          (double)x[2], (double)x[3]);
  tc_ckpt_close(c);
  return rc;
}

static int read_newest(struct tc_err *err)
{
  struct tc_ckpt *c = NULL;
  int rc = tc_ckpt_open(&c, "d/", err);
  return use(c, rc, err);
}

static int resume(struct tc_err *err)
{
  struct tc_ckpt *c = NULL;
  int rc = tc_ckpt_resume(&c, "d", -1, self, NULL, err);
  return use(c, rc, err);
}

static int load_from(struct tc_err *err)
{
  struct tc_ckpt *c = NULL;
  int rc = tc_ckpt_load_from(&c, "d/step-00000002", NULL, NULL, self, NULL, err);
  return use(c, rc, err);
}

static int verify(struct tc_err *err)
{
  struct tc_findings f = { 0 };
  const int rc = verify_step_of("d/step-00000003", true, &f, err);
  for (int i = 0; i < f.n; i++) fprintf(calls.out, "  fault %d %s\n", f.fault[i].status, f.fault[i].text);
  tc_findings_free(&f);
  return rc;
}

static int guard(struct tc_err *err)
{
  struct tc_config cfg = { .ckpt_max_restarts_without_progress = 3 };
  struct tc_ranks r = { .job = "17" };
  struct tc_train t = { .run.cfg = &cfg, .run.ranks = &r, .ckpt.dir = (char *)(uintptr_t) "d" };
  int rc = tc_train_guard(&t, 8, err);
  if (rc == 0) tc_train_guard_clear(&t);
  return rc;
}

static const struct {
  const char *name;
  void (*before)(void);
  int (*act)(struct tc_err *err);
} scene[] = {
  { "take a folder over", folders, take_over },
  { "take one that is not there", nothing, take_fresh },
  { "look for an owner", ended, alive },
  { "look for one in no folder", nothing, alive },
  { "a file", nothing, output },
  { "a file that is there", there, output },
  { "weights", nothing, weights },
  { "weights twice", nothing, twice },
  { "weights read", weights_there, weights_read },
  { "a folder removed", steps, remove_one },
  { "a folder renamed", steps, rename_one },
  { "folders made", nothing, make_deep },
  { "steps pruned", steps, prune },
  { "a step saved", steps, save },
  { "a step saved by an owner", steps, save_home },
  { "the newest step read", saved, read_newest },
  { "resumed", saved_bad, resume },
  { "a start from a step", saved, load_from },
  { "a step verified", saved, verify },
  { "starts counted", ended, guard },
};

/* Once, with call `at` failing so; false: there is no such call. */
static bool once(FILE *out, size_t i, int at, int how)
{
  struct tc_err err = { .text = "" };
  char *trace = NULL, logged[3000];
  size_t n = 0;
  scene[i].before();
  const int fds = descriptors(), keep = dup(2), log = open("log", O_RDWR | O_CREAT | O_TRUNC, 0600);
  calls.out = open_memstream(&trace, &n);
  calls.at = at, calls.how = how, calls.n = 0, calls.hit = false, calls.dice = 0, *calls.last = 0;
  dup2(log, 2);
  tracing = true;
  int rc = scene[i].act(&err);
  tracing = false;
  dup2(keep, 2);
  fclose(calls.out);
  ssize_t m = pread(log, logged, sizeof logged - 1, 0);
  logged[TC_MAX(m, 0)] = 0;
  close(keep);
  close(log);
  unlink("log");
  if (at == 0 || calls.hit) {
    fprintf(out, "call %d, failure %d: %d %s\n%s%sleft:", at, how, rc, rc < 0 ? err.text : "",
            trace, logged);
    walk(out, ".");
    fprintf(out, "%s\n", descriptors() == fds ? "" : " and descriptors");
  }
  free(trace);
  walk(NULL, ".");
  return at == 0 || calls.n >= at;
}

static char *make(const char *line)
{
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  for (size_t i = 0; i < sizeof scene / sizeof *scene; i++) {
    if (strcmp(scene[i].name, line)) continue;
    for (int how = 0; how < FAILURES; how++)
      for (int at = how > 0; once(out, i, at, how); at++) continue;
  }
  fclose(out);
  return text;
}

int main(int argc, char **argv)
{
  const struct tc_comm_opts o = { .name = "world" };
  alarm(600);
  self = tc_comm_self(&o);
  int rc = digests(argc, argv, "calls", make);
  tc_comm_free(self);
  return rc;
}
