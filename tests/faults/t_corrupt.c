/* t_corrupt.c [--full | N] [SEED] - checkpoints damaged at random: each damage is found, nothing that
 * is damaged is loaded, and nothing crashes or hangs on it.
 *
 * A folder of two checkpoints is copied for each case and the newer (or both) damaged. Then
 * - `tercio ckpt verify --deep` must exit with 2, 3 or 4;
 * - another command of the inspector must end by itself, with a status of tercio(1);
 * - a resume, in a child, must take the older one with its very data, or nothing.
 * TERCIO: the program, maybe one made with sanitizers. Short form: 60 cases; full: 1000. */
#include <fcntl.h>
#include <sys/wait.h>

#include "tests/faults/faults.h"

enum { CASE_SECONDS = 120, SANITIZER_STATUS = 99 };

static const char *tercio;

/* ---- bytes ------------------------------------------------------------------------ */

static char *read_file(const char *path, int64_t *bytes)
{
  struct stat st;
  int fd = open(path, O_RDONLY);
  TC_ASSERT(fd >= 0 && fstat(fd, &st) == 0);
  char *data = tc_malloc((size_t)st.st_size + 1);
  TC_ASSERT(tc_pread_all(fd, data, st.st_size, 0));
  close(fd);
  data[st.st_size] = '\0';
  *bytes = st.st_size;
  return data;
}

static void write_file(const char *path, const char *data, int64_t bytes)
{
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  TC_ASSERT(fd >= 0 && write(fd, data, (size_t)bytes) == bytes);
  close(fd);
}

/* Overwrites a part of a file; false if that changes nothing. */
static bool patch(const char *path, int64_t at, const char *with, int64_t n)
{
  int64_t bytes;
  char *data = read_file(path, &bytes);
  n = TC_MIN(n, bytes - at);
  bool changes = n > 0 && memcmp(data + at, with, (size_t)n) != 0;
  if (changes) {
    memcpy(data + at, with, (size_t)n);
    write_file(path, data, bytes);
  }
  free(data);
  return changes;
}

/* ---- damages ---------------------------------------------------------------------- */

/* A file of the step, any or one of data; owned. `other`: the same file of the older step. */
struct victim { char *step, *file, *other; };

typedef bool damage_fn(const struct victim *v);   /* false: nothing changed, try again */

static int64_t any_place(const char *path)
{
  struct stat st;
  TC_ASSERT(stat(path, &st) == 0 && st.st_size > 0);
  return fx_random((uint32_t)st.st_size);
}

static bool flip_bit(const struct victim *v)
{
  int64_t bytes, at = any_place(v->file);
  char *data = read_file(v->file, &bytes), c = (char)(data[at] ^ (1 << fx_random(8)));
  free(data);
  return patch(v->file, at, &c, 1);
}

static bool scribble(const struct victim *v)
{
  char junk[64];
  for (size_t i = 0; i < sizeof junk; i++) junk[i] = (char)fx_random(256);
  return patch(v->file, any_place(v->file), junk, 1 + fx_random(sizeof junk));
}

static bool zero_page(const struct victim *v)
{
  static const char zeros[4096];
  return patch(v->file, any_place(v->file) / 4096 * 4096, zeros, sizeof zeros);
}

static bool copy_page(const struct victim *v)
{
  int64_t bytes, from = any_place(v->file) / 512 * 512;
  char *data = read_file(v->file, &bytes);
  bool done = patch(v->file, any_place(v->file) / 512 * 512, data + from,
                    TC_MIN(512, bytes - from));
  free(data);
  return done;
}

static bool cut(const struct victim *v) { return truncate(v->file, any_place(v->file)) == 0; }
static bool empty(const struct victim *v) { return truncate(v->file, 0) == 0; }
static bool missing(const struct victim *v) { return unlink(v->file) == 0; }

static bool extend(const struct victim *v)
{
  struct stat st;
  TC_ASSERT(stat(v->file, &st) == 0);
  return truncate(v->file, st.st_size + 1 + fx_random(70000)) == 0;
}

static bool swap(const struct victim *v)
{
  sh("cd '%s' && mv rank-00000.h5 x && mv rank-00001.h5 rank-00000.h5 && mv x rank-00001.h5",
     v->step);
  return true;
}

static bool older_file(const struct victim *v)
{
  sh("cp '%s' '%s'", v->other, v->file);
  return true;
}

static bool older_manifest(const struct victim *v)
{
  sh("cp '%s/../step-00000001/manifest.json' '%s'", v->step, v->step);
  return true;
}

static bool older_folder(const struct victim *v)
{
  sh("cp '%s/../step-00000001/'* '%s'", v->step, v->step);
  return true;
}

static bool not_a_file(const struct victim *v)
{
  static const char *const make[] = { "mkdir '%s'", "mkfifo '%s'", "ln -s /dev/zero '%s'",
                                      "ln -s nowhere '%s'" };
  char *cmd = tc_sprintf("%s", make[fx_random(4)]);
  unlink(v->file);
  cmd[strstr(cmd, "'%s'") - cmd] = '\0';
  sh("%s '%s'", cmd, v->file);
  free(cmd);
  return true;
}

/* One digit is another: the text is still JSON. sealed: its checksum is made right again; then the
 * digit is one of the data's places and checksums. */
static bool edit_manifest(const struct victim *v, bool sealed)
{
  char *path = tc_sprintf("%s/" TC_MANIFEST, v->step);
  int64_t bytes;
  char *text = read_file(path, &bytes), *from = sealed ? strstr(text, "\"files\"") : text;
  char *end = strstr(text, ",\n\"crc32c\": \"");
  TC_ASSERT(from && end && from < end);
  char *at = from + fx_random((uint32_t)(end - from));
  while (at < end && !(*at >= '0' && *at <= '9')) at++;
  bool done = at < end;
  if (done) {
    char was = *at;
    while (*at == was) *at = (char)('0' + fx_random(10));
    size_t n = (size_t)bytes;
    char *made = NULL;
    if (sealed) {
      strcpy(end, "\n}\n");
      made = tc_manifest_seal(text, strlen(text), &n);
    }
    write_file(path, made ? made : text, (int64_t)n);
    free(made);
  }
  free(text);
  free(path);
  return done;
}

static bool edit(const struct victim *v) { return edit_manifest(v, false); }
static bool forge(const struct victim *v) { return edit_manifest(v, true); }

static const struct { const char *name; damage_fn *damage; bool data_only, old_is_free; } kinds[] = {
  { "a flipped bit", flip_bit, false, false },
  { "bytes overwritten", scribble, false, false },
  { "a zeroed page", zero_page, false, false },
  { "a sector in another's place", copy_page, false, false },
  { "a file cut off", cut, false, false },
  { "an empty file", empty, false, false },
  { "a missing file", missing, false, false },
  { "an extended file", extend, false, false },
  { "files exchanged", swap, false, false },
  { "a file of an older step", older_file, true, true },
  { "an older manifest", older_manifest, false, true },
  { "an older step's files", older_folder, false, true },
  { "something that is no file", not_a_file, false, false },
  { "an edited manifest", edit, false, false },
  { "an edited manifest with a right checksum", forge, false, false },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void damage(const char *dir, int step, int kind)
{
  static const char *const names[] = { "rank-00000.h5", "rank-00001.h5", TC_MANIFEST };
  const char *name = names[fx_random(kinds[kind].data_only ? 2 : 3)];
  struct victim v = { .step = tc_sprintf("%s/step-%08d", dir, step) };
  v.file = tc_sprintf("%s/%s", v.step, name);
  v.other = tc_sprintf("%s/step-00000001/%s", dir, name);
  while (!kinds[kind].damage(&v)) { }
  free(v.step);
  free(v.file);
  free(v.other);
}

/* ---- what is made of it ----------------------------------------------------------- */

/* The program's exit status on a command, 128 + a signal's number. Its words go to `logged`. */
static int inspect(const char *logged, const char *const *args)
{
  int status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    const char *argv[12] = { tercio, "ckpt" };
    for (int i = 0; args[i]; i++) argv[2 + i] = args[i];
    int fd = open(logged, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(fd, 1);
    dup2(fd, 2);
    alarm(CASE_SECONDS);
    execvp(tercio, (char *const *)(uintptr_t)argv);
    _exit(127);
  }
  TC_ASSERT(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* What a resume takes, found out by a child: its step, 0 if it says that none is whole; 90: other
 * data, 91 and above: it ended wrongly. */
static int resumed_step(const char *dir)
{
  int status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    struct tc_comm_opts o = { .name = "world" };
    struct tc_comm *self = tc_comm_self(&o);
    struct tc_ckpt *c = NULL;
    struct tc_err err = {0};
    int got = 92;
    if (!freopen("/dev/null", "w", stderr)) _exit(93);
    alarm(CASE_SECONDS);
    int rc = tc_ckpt_resume(&c, dir, -1, self, NULL, &err);
    if (rc == TC_ENOCKPT && *err.text) got = 0;
    if (rc == 0 && c) {
      int64_t step = tc_ckpt_meta(c)->step;
      got = fx_read_all(c, (uint32_t)step, &err) == 1 ? (int)step : 90;
    }
    tc_ckpt_close(c);
    tc_comm_free(self);
    _exit(got);
  }
  TC_ASSERT(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static struct { int cases, missed, loaded, broken; } tally[KINDS];
static int n_commands;

static void complain(int kind, int n, const char *what, int status, const char *logged)
{
  printf("# case %d, %s: %s: status %d\n", n, kinds[kind].name, what, status);
  if (logged) sh("sed 's/^/#   /' '%s' | head -30", logged);
}

static void one_case(const char *root, int n)
{
  int kind = n % KINDS, got;
  bool both = !kinds[kind].old_is_free && fx_random(4) == 0;
  char *dir = tc_sprintf("%s/case", root), *step = tc_sprintf("%s/step-00000002", dir);
  char *old = tc_sprintf("%s/step-00000001", dir), *logged = tc_sprintf("%s/reported", root);
  const char *const verify[] = { "verify", "--deep", step, NULL };
  const char *const others[][6] = {
    { "ls", dir, NULL }, { "show", step, NULL }, { "tensors", step, NULL },
    { "show", "--owners", step, NULL }, { "dump", step, "big", NULL }, { "diff", old, step, NULL },
    { "verify", "--quick", dir, NULL }, { "latest", dir, NULL }, { "ls", "--json", dir, NULL },
    { "tensors", "--json", step, NULL }, { "verify", "--json", dir, NULL } };
  sh("rm -rf '%s' && cp -r '%s/whole' '%s'", dir, root, dir);
  damage(dir, 2, kind);
  if (both) damage(dir, 1, kind);
  tally[kind].cases++;
  got = inspect(logged, verify);
  if (got > 5) tally[kind].broken++;
  if (got < 2 || got > 4) {
    tally[kind].missed++;
    complain(kind, n, "verify", got, logged);
  }
  const char *const *other = others[fx_random(sizeof others / sizeof *others)];
  got = inspect(logged, other);
  n_commands += 2;
  if (got > 5) {
    tally[kind].broken++;
    complain(kind, n, other[0], got, logged);
  }
  got = resumed_step(dir);
  if (got != (both ? 0 : 1)) {
    if (got == 2 || got == 90) tally[kind].loaded++;
    else tally[kind].broken++;
    complain(kind, n, "resume took", got, NULL);
  }
  free(dir);
  free(step);
  free(old);
  free(logged);
}

int main(int argc, char **argv)
{
  bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
  int cases = full ? 1000 : argc > 1 ? atoi(argv[1]) : 60, total = 0, bad = 0;
  fx_state = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : (uint32_t)test_seed(full);
  tercio = getenv("TERCIO") ? getenv("TERCIO") : "./tercio";
  if (access(tercio, X_OK) < 0) skip_all("TERCIO names no program");
  const char *asan = getenv("ASAN_OPTIONS");
  char *options = tc_sprintf("%s%sexitcode=%d", asan ? asan : "", asan ? ":" : "",
                             SANITIZER_STATUS);
  setenv("ASAN_OPTIONS", options, 1);
  free(options);
  alarm(full ? 36000 : 1100);
  const char *root = fx_folder();
  char *dir = tc_sprintf("%s/whole", root), *logged = tc_sprintf("%s/reported", root);
  TC_ASSERT(fx_save(dir, 1, 1, 2, 0) == 0 && fx_save(dir, 2, 2, 2, 0) == 0);
  is_int(inspect(logged, (const char *const[]){ "verify", "--deep", dir, NULL }), 0,
         "undamaged it verifies");
  is_int(resumed_step(dir), 2, "undamaged the newest is resumed from");
  for (int i = 0; i < cases; i++) one_case(root, i);
  for (int k = 0; k < KINDS; k++) {
    if (!tally[k].cases) continue;
    total += tally[k].cases;
    bad += tally[k].missed + tally[k].loaded + tally[k].broken;
    ok(tally[k].missed + tally[k].loaded + tally[k].broken == 0, "%s: %d cases; %d not noticed, "
       "%d loaded, %d crashes or hangs", kinds[k].name, tally[k].cases, tally[k].missed,
       tally[k].loaded, tally[k].broken);
  }
  is_int(bad, 0, "%d corruptions, %d commands of the inspector", total, n_commands);
  free(dir);
  free(logged);
  fx_clean();
  return done_testing();
}
