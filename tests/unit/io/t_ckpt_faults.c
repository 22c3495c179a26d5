/* t_ckpt_faults.c - what is damaged is noticed and named, and nothing crashes: flipped bits,
 * files cut off, missing, exchanged; manifests made up; a full disk; kill -9 while saving. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "io/ckpt/blocks.h"
#include "io/ckpt/h5.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/verify_step.h"

/* HDF5 1.10 leaks some of its own memory after a write that found the disk full. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libhdf5"; }

static char *read_file(const char *path, size_t *bytes)
{
  FILE *f = fopen(path, "rb");
  struct stat st;
  TC_ASSERT(f && fstat(fileno(f), &st) == 0);
  char *text = tc_malloc((size_t)st.st_size + 1);
  *bytes = fread(text, 1, (size_t)st.st_size, f);
  text[*bytes] = '\0';
  fclose(f);
  return text;
}

static void write_file(const char *path, const void *data, size_t bytes)
{
  FILE *f = fopen(path, "wb");
  TC_ASSERT(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

static int verify(const char *dir, struct tc_err *err)
{
  char *path = tc_ckpt_step_path(dir, 1);
  int rc = verify_step(path, true, err);
  free(path);
  return rc;
}

/* ---- flipped bits ----------------------------------------------------------------- */

static void flip(const char *path, int64_t at, int bit)
{
  int fd = open(path, O_RDWR);
  unsigned char c;
  TC_ASSERT(pread(fd, &c, 1, at) == 1);
  c ^= (unsigned char)(1 << bit);
  TC_ASSERT(pwrite(fd, &c, 1, at) == 1);
  close(fd);
}

/* The piece that byte `at` of the file belongs to; NULL: metadata. */
static const struct tc_piece *piece_at(const struct tc_ckpt *c, int file, int64_t at)
{
  for (int k = 0; k < c->m->n_pieces; k++) {
    const struct tc_piece *p = &c->m->piece[k];
    if (p->file == file && at >= p->offset && at < p->offset + p->bytes) return p;
  }
  return NULL;
}

/* Flips of one file, half of them in metadata: found, named, and reading gives an error or
 * what was saved. */
static void flips_of(const char *dir, const struct tc_ckpt *c, int file, int n)
{
  const char *name = c->m->file[file].name;
  char *path = tc_sprintf("%s/%s", c->path, name);
  int missed = 0, unnamed = 0, wrong = 0, n_meta = 0;
  for (int i = 0; i < n; i++) {
    int64_t at = 0;
    const struct tc_piece *p = NULL;
    do {
      at = fx_random((uint32_t)c->m->file[file].size);
      p = piece_at(c, file, at);
    } while ((p == NULL) != (i % 2 == 0));
    struct tc_err err = {0};
    struct tc_ckpt *again;
    int bit = (int)fx_random(8);
    flip(path, at, bit);
    n_meta += p == NULL;
    missed += verify(dir, &err) != TC_ECHECKSUM;
    unnamed += !strstr(err.text, name) || (p && !strstr(err.text, fx_tensor[p->tensor].name));
    TC_ASSERT(tc_ckpt_open(&again, dir, &err) == 0);
    int got = fx_read_all(again, 1, &err);
    wrong += p ? got != TC_ECHECKSUM : got != 1;
    tc_ckpt_close(again);
    flip(path, at, bit);
  }
  is_int(missed, 0, "%s: %d flipped bits (%d in metadata) are noticed", name, n, n_meta);
  is_int(unnamed, 0, "file and tensor are named");
  is_int(wrong, 0, "reading gives the error, or what was saved");
  free(path);
}

static void test_flips(void)
{
  const char *dir = fx_folder();
  struct tc_ckpt *c;
  struct tc_err err = {0};
  fx_save(dir, 1, 1, 2, 0);
  TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
  for (int file = 0; file < c->m->n_files; file++) flips_of(dir, c, file, 250);
  char *path = tc_sprintf("%s/manifest.json", c->path);
  size_t bytes;
  free(read_file(path, &bytes));
  int missed = 0;
  for (int i = 0; i < 400; i++) {
    int64_t at = i < 40 * 8 / 4 ? (int64_t)bytes - 1 - i / 4 : fx_random((uint32_t)bytes);
    int bit = (int)fx_random(8);
    flip(path, at, bit);
    missed += verify(dir, &err) != TC_ECHECKSUM;
    flip(path, at, bit);
  }
  is_int(missed, 0, "manifest: 400 flipped bits are noticed");
  is_int(verify(dir, &err), 0, "unharmed again, it verifies");
  free(path);
  tc_ckpt_close(c);
  fx_clean();
}

/* ---- files cut off, missing, exchanged -------------------------------------------- */

static int run(const char *fmt, const char *step)
{
  char *cd = tc_sprintf("cd '%s' && %s", step, fmt);
  int rc = system(cd);
  free(cd);
  return rc;
}

static void test_files(void)
{
  static const struct { const char *harm, *undo; int status; const char *word; } rows[] = {
    { "mv rank-00001.h5 x", "mv x rank-00001.h5", TC_EINCOMPLETE, "rank-00001.h5" },
    { "mv manifest.json x", "mv x manifest.json", TC_EINCOMPLETE, "manifest.json" },
    { "cp manifest.json x; : > manifest.json", "mv x manifest.json", TC_EINCOMPLETE,
      "manifest.json" },
    { "cp rank-00000.h5 x; printf z >> rank-00000.h5", "mv x rank-00000.h5", TC_ECHECKSUM,
      "rank-00000.h5" },
    { "mv rank-00000.h5 x; mv rank-00001.h5 rank-00000.h5; mv x rank-00001.h5",
      "mv rank-00000.h5 x; mv rank-00001.h5 rank-00000.h5; mv x rank-00001.h5",
      0, "rank-0000" },               /* any status but 0: sizes may differ */
    { "mv rank-00000.h5 x; mkdir rank-00000.h5", "rmdir rank-00000.h5; mv x rank-00000.h5",
      TC_ECHECKSUM, "rank-00000.h5" },
    { "mv rank-00000.h5 x; mkfifo rank-00000.h5", "mv x rank-00000.h5", TC_ECHECKSUM,
      "rank-00000.h5" },
    { "mv manifest.json x; ln -s nowhere manifest.json", "mv x manifest.json", TC_EINCOMPLETE,
      "manifest.json" },
  };
  const char *dir = fx_folder();
  char *step = tc_ckpt_step_path(dir, 1);
  struct tc_err err = {0};
  fx_save(dir, 1, 1, 2, 0);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    TC_ASSERT(run(rows[i].harm, step) == 0);
    int rc = verify(dir, &err);
    if (rows[i].status) is_int(rc, rows[i].status, "%s", rows[i].harm);
    else ok(rc == TC_ECHECKSUM || rc == TC_EINCOMPLETE, "%s", rows[i].harm);
    ok(strstr(err.text, rows[i].word) != NULL, "names it: %s", err.text);
    TC_ASSERT(run(rows[i].undo, step) == 0);
    if (verify(dir, &err) < 0) printf("# %s\n", err.text);
  }
  int missed = 0;
  static const char *const names[] = { "rank-00000.h5", "rank-00001.h5", "manifest.json" };
  for (int i = 0; i < 60; i++) {
    char *path = tc_sprintf("%s/%s", step, names[i % 3]);
    size_t bytes;
    char *text = read_file(path, &bytes);
    size_t cut = i < 3 ? bytes - 1 : fx_random((uint32_t)bytes);
    TC_ASSERT(truncate(path, (off_t)cut) == 0);
    int rc = verify(dir, &err);
    missed += i % 3 < 2 ? rc != TC_EINCOMPLETE : rc != TC_ECHECKSUM && rc != TC_EINCOMPLETE;
    write_file(path, text, bytes);
    free(text);
    free(path);
  }
  is_int(missed, 0, "60 files cut off at any length are noticed");
  is_int(verify(dir, &err), 0, "put together again, it verifies");
  free(step);
  fx_clean();
}

/* ---- made-up manifests with a right checksum -------------------------------------- */

static int open_sealed(const char *path, const char *json, size_t n, const char *dir,
                       struct tc_err *err)
{
  struct tc_ckpt *c;
  size_t bytes;
  char *sealed = tc_manifest_seal(json, n, &bytes);
  write_file(path, sealed, bytes);
  free(sealed);
  int rc = tc_ckpt_open(&c, dir, err);
  if (rc < 0) return rc;
  /* It passed the checks: reading and verifying must be safe, whatever they find. */
  for (int t = 0; t < tc_ckpt_n(c); t++) {
    const struct tc_ckpt_tensor *x = tc_ckpt_at(c, t);
    const int64_t zero[TC_DIMS] = {0};
    int64_t n_elems = tc_box_elems(x->rank, x->dim);
    if (n_elems > 1 << 20) continue;
    void *buf = tc_malloc((size_t)n_elems * tc_dtype_bytes(x->dtype));
    tc_ckpt_read(c, t, zero, x->dim, buf, err);
    free(buf);
  }
  char *step = tc_strdup(tc_ckpt_path(c));
  tc_ckpt_close(c);
  verify_step(step, true, err);
  free(step);
  return 0;
}

/* One value somewhere in the tree becomes something else. */
static void mutate(json_t *j, int depth)
{
  static const char *const odd[] = { "null", "-1", "1e300", "\"\"", "[]", "{}", "0", "1", "true",
    "9223372036854775807", "-9223372036854775808", "4611686018427387904", "\"../../etc/passwd\"",
    "\"a\\u0000b\"", "[1,2,3,4,5,6,7]", "\"/tensors/..\"", "\"ffffffffffffffffffff\"", "65536" };
  size_t n = json_is_array(j) ? json_array_size(j) : json_object_size(j);
  if (n == 0) return;
  size_t pick = fx_random((uint32_t)n);
  void *it = json_is_array(j) ? NULL : json_object_iter(j);
  for (size_t i = 0; it && i < pick; i++) it = json_object_iter_next(j, it);
  json_t *v = it ? json_object_iter_value(it) : json_array_get(j, pick);
  if ((json_is_array(v) || json_is_object(v)) && (depth < 2 || fx_random(8))) {
    mutate(v, depth + 1);
    return;
  }
  json_t *fresh = json_loads(odd[fx_random(sizeof odd / sizeof *odd)], JSON_DECODE_ANY |
                             JSON_ALLOW_NUL, NULL);
  if (it) json_object_iter_set_new(j, it, fresh);
  else json_array_set_new(j, pick, fresh);
}

static void test_made_up(void)
{
  static const struct { const char *from, *to, *word; } rows[] = {
    { "\"format\": 2", "\"format\": 3", "newer" },
    { "\"format\": 2", "\"format\": \"2\"", "format" },
    { "\"block_bytes\": 1048576", "\"block_bytes\": 0", "block_bytes" },
    { "\"block_bytes\": 1048576", "\"block_bytes\": 1048577", "block_bytes" },
    { "\"block_bytes\": 1048576", "\"block_bytes\": 4096", "crc32c" },
    { "\"block_bytes\": 1048576,", "", "block_bytes" },
    { "1444, \"crc32c\": \"", "1444, \"crc32c\": \"00000000", "crc32c" },
    { "1444, \"crc32c\": \"", "1444, \"crc32c\": \"z", "crc32c" },
    { "\"step\": 1,", "\"step\": 1, \"step\": 1,", "duplicate" },
    { "\"name\": \"rank-00000.h5\"", "\"name\": \"../rank-00000.h5\"", "file" },
    { "\"name\": \"rank-00000.h5\"", "\"name\": \"rank-00001.h5\"", "" },
    { "\"shape\": [37, 19]", "\"shape\": [38, 19]", "holds its element [37, 0]" },
    { "\"shape\": [37, 19]", "\"shape\": [9223372036854775807, 2]", "shape" },
    { "\"shape\": [37, 19]", "\"shape\": [4294967296, 4294967296]", "shape" },
    { "\"shape\": [37, 19]", "\"shape\": [-37, 19]", "shape" },
    { "\"dtype\": \"u8\"", "\"dtype\": \"i32\"", "" },
    { "\"dtype\": \"u8\"", "\"dtype\": \"u9\"", "type" },
    { "\"start\": [0, 0]", "\"start\": [1, 0]", "" },
    { "\"start\": [0, 0]", "\"start\": [0]", "start" },
    { "\"offset\": ", "\"offset\": 9999999", "outside of its file" },
    { "\"name\": \"bias\"", "\"name\": \"counter\"", "two" },
    { "\"name\": \"bias\"", "\"name\": \"../bias\"", "name" },
    { "\"dataset\": \"/tensors/", "\"dataset\": \"/other/", "dataset" },
    { "\"tensors\": [", "\"tensor\": [", "tensors" },
    { "\"who\": [", "\"who\": [1, ", "who" },
    { "\"seed\": \"", "\"seed\": \"-", "seed" },
  };
  const char *dir = fx_folder();
  struct tc_err err = {0};
  size_t bytes;
  fx_save(dir, 1, 1, 2, 0);
  char *path = tc_sprintf("%s/step-00000001/manifest.json", dir), *text = read_file(path, &bytes);
  char *crc = strstr(text, ",\n\"crc32c\"");
  json_t *tree = json_loads(text, 0, NULL);
  strcpy(crc, "\n}\n");
  is_int(open_sealed(path, text, strlen(text), dir, &err), 0, "sealed again it opens");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *at = strstr(text, rows[i].from);
    TC_ASSERT(at != NULL);
    char *made = tc_sprintf("%.*s%s%s", (int)(at - text), text, rows[i].to,
                            at + strlen(rows[i].from));
    int rc = open_sealed(path, made, strlen(made), dir, &err);
    const int want = strstr(rows[i].word, "newer") ? TC_EUSER : TC_ECHECKSUM;
    if (!ok(rc == want && strstr(err.text, rows[i].word),
            "refused: %s", rows[i].to))
      printf("#   status %d: %s\n", rc, err.text);
    free(made);
  }
  /* Format 1: one checksum a piece (none here is longer than a block). */
  char *at = strstr(text, "\"format\": 2"), *rest = strstr(text, "\"step\": ");
  char *old = tc_sprintf("%.*s\"format\": 1,\n%s", (int)(at - text), text, rest);
  is_int(open_sealed(path, old, strlen(old), dir, &err), 0, "format 1 opens");
  is_int(verify(dir, &err), 0, "and verifies");
  struct tc_ckpt *c;
  TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
  is_int(fx_read_all(c, 1, &err), 1, "and reads");
  tc_ckpt_close(c);
  free(old);
  char *deep = tc_malloc(400001);
  memset(deep, '[', 400000);
  deep[399999] = '}';
  is_int(open_sealed(path, deep, 400000, dir, &err), TC_ECHECKSUM, "200,000 brackets");
  free(deep);
  int opened = 0, refused = 0;
  for (int i = 0; i < 1500; i++) {
    json_t *copy = json_deep_copy(tree);
    json_object_del(copy, "crc32c");
    for (uint32_t k = fx_random(2); k < 2; k++) mutate(copy, 0);
    char *made = json_dumps(copy, JSON_INDENT(1));
    int rc = open_sealed(path, made, strlen(made), dir, &err);
    opened += rc == 0;
    refused += rc < 0;
    free(made);
    json_decref(copy);
  }
  ok(opened > 0 && refused > 700, "1500 mutations: %d refused, %d opened, none crashed", refused,
     opened);
  json_decref(tree);
  free(text);
  free(path);
  fx_clean();
}

/* ---- disk full -------------------------------------------------------------------- */

static int64_t free_bytes(const char *dir)
{
  struct statfs s;
  TC_ASSERT(statfs(dir, &s) == 0);
  return (int64_t)s.f_bavail * s.f_bsize;
}

/* Leaves `left` pages free. */
static void fill(const char *dir, int64_t left_bytes)
{
  char *path = tc_sprintf("%s/filler", dir);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  int64_t bytes = free_bytes(dir) - left_bytes;
  TC_ASSERT(fd >= 0 && (bytes <= 0 || posix_fallocate(fd, 0, bytes) == 0));
  close(fd);
  free(path);
}

static void unfill(const char *dir)
{
  char *path = tc_sprintf("%s/filler", dir);
  unlink(path);
  free(path);
}

/* HDF5 alone, nothing reserved: with any room that is left, success means a right file. */
static void full_h5(const char *dir)
{
  const int64_t dim[] = { 40, 1000 }, zero[] = { 0, 0 };
  unsigned char *data = tc_malloc(160000), *back = tc_malloc(160000);
  int lied = 0, good = 0, failed = 0, unnamed = 0;
  for (int i = 0; i < 160000; i++) data[i] = fx_byte(3, 3, i, 0);
  for (int64_t left = 0; left <= 50 * 4096; left += 4096) {
    char *path = tc_sprintf("%s/x.h5", dir);
    struct tc_h5_opts o = { .step = 1 };
    struct tc_h5_slice s = { .dataset = "/tensors/x", .dtype = TC_F32, .rank = 2,
                             .global = dim, .start = zero, .count = dim };
    struct tc_err err = {0};
    uint32_t crc[40];
    int64_t size;
    int fd = -1;
    fill(dir, left);
    int rc = tc_h5_lay(&fd, &size, path, &o, &s, 1, &err);
    struct tc_stretch x = { .data = (char *)data, .offset = s.offset, .bytes = 160000,
                            .crc32c = crc };
    if (rc == 0) rc = tc_blocks_write(fd, &x, 1, 4096, path, &err);
    if (fd >= 0) close(fd);
    if (rc == 0) rc = tc_h5_check(path, 1, 0, &s, 1, &err);
    if (rc == 0) {
      fd = open(path, O_RDONLY);
      good++;
      lied += !tc_pread_all(fd, back, 160000, s.offset) || memcmp(back, data, 160000) != 0;
      close(fd);
    } else {
      failed++;
      unnamed += !strstr(err.text, path) || !strstr(err.text, "No space left");
      if (unnamed == 1) printf("# %s\n", err.text);
    }
    unlink(path);
    unfill(dir);
    free(path);
  }
  ok(good > 5 && failed > 30, "%d files fitted, %d didn't", good, failed);
  is_int(lied, 0, "what was reported to be written is there");
  is_int(unnamed, 0, "what failed names the file and says why");
  free(back);
  free(data);
}

static void full_save(const char *dir)
{
  struct tc_err err = {0};
  int bad = 0, good = 0, failed = 0, named = 0;
  char text[200] = "";
  is_int(fx_save(dir, 1, 1, 2, 0), 0, "a first checkpoint fits");
  for (int64_t left = 0; left < 100 * 4096; left += 3 * 4096) {
    struct fx_save f = { .dir = dir, .step = 2, .salt = 2, .world = 2 };
    fill(dir, left);
    fx_threads(&f, fx_rank_save);
    char *path = tc_ckpt_step_path(dir, 2);
    if (f.status[0] == 0) {
      good++;
      bad += verify_step(path, true, &err) != 0;
    } else {
      failed++;
      bad += f.status[0] != TC_EUSER || access(path, F_OK) == 0;
      const char *at = f.err[0].text, name[] = "rank 1 on node1: ";   /* rank 0's comes first, without */
      if (strncmp(at, name, strlen(name)) == 0) at += strlen(name), named++;
      bad += strncmp(at, dir, strlen(dir)) != 0;
      snprintf(text, sizeof text, "%.199s", f.err[0].text);
    }
    bad += f.status[1] != f.status[0] || strcmp(f.err[1].text, f.err[0].text) != 0;
    bad += fx_count(dir, ".") != 0;
    bad += verify(dir, &err) != 0;
    tc_folder_remove(path, &err);
    free(path);
    unfill(dir);
  }
  ok(good > 2 && failed > 5, "%d saves fitted, %d didn't, %d on rank 1 first", good, failed, named);
  is_int(bad, 0, "all ranks agree, name a file, leave nothing, and the older one verifies");
  printf("# such as: %s\n", text);
  is_int(fx_save(dir, 3, 3, 2, 0), 0, "with room again it saves");
}

static void test_disk_full(void)
{
  const char *dir = fx_folder();
  if (mount("tmpfs", dir, "tmpfs", 0, "size=1m") < 0) {
    skip("a small file system can't be mounted: %s (only root can)", strerror(errno));
  } else {
    full_h5(dir);
    full_save(dir);
    TC_ASSERT(umount2(dir, MNT_DETACH) == 0);
  }
  fx_clean();
}

/* ---- kill -9 ---------------------------------------------------------------------- */

/* Resumes and saves on until it is killed; keep 1 and the same step again every other time
 * make replacing and deleting part of the game. */
static void child(const char *dir, int round)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt *c = NULL;
  int64_t step = 0;
  if (tc_ckpt_resume(&c, dir, -1, self, NULL, NULL) < 0) _exit(7);
  if (c) step = tc_ckpt_meta(c)->step;
  tc_ckpt_close(c);
  for (int i = 0; i < 10000; i++) {
    step += round % 2 == 0 || i % 2 == 0;
    if (fx_save(dir, step, (uint32_t)step, 2, 1 + round % 2) < 0) _exit(8);
  }
  _exit(9);
}

static int64_t newest_step(const char *dir)
{
  int64_t *steps, step = -1;
  if (tc_ckpt_list(dir, &steps, NULL) > 0) step = steps[0];
  free(steps);
  return step;
}

static void test_kill(void)
{
  const char *dir = fx_folder();
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  int died = 0, bad_step = 0, lost = 0, wrong = 0, leftovers = 0;
  int64_t newest = 1;
  fx_save(dir, 1, 1, 2, 1);
  for (int round = 0; round < 25; round++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) child(dir, round);
    /* Any moment after its first commit, so that a slow machine gets on too. */
    int64_t end_ns = tc_now_ns() + INT64_C(60000000000);
    while (newest_step(dir) <= newest && tc_now_ns() < end_ns) usleep(500);
    usleep(fx_random(80000));
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    died += WIFSIGNALED(status);
    leftovers += fx_count(dir, ".") > 0;
    int64_t *steps;
    struct tc_err err = {0};
    int n = tc_ckpt_list(dir, &steps, NULL);
    for (int i = 0; i < n; i++) {
      char *path = tc_ckpt_step_path(dir, steps[i]);
      if (verify_step(path, true, &err) < 0) printf("# %s\n", err.text), bad_step++;
      free(path);
    }
    free(steps);
    struct tc_ckpt *c = NULL;
    if (tc_ckpt_resume(&c, dir, -1, self, NULL, &err) < 0 || !c) {
      lost++;
      printf("# %s\n", err.text);
      continue;
    }
    int64_t step = tc_ckpt_meta(c)->step;
    lost += step < newest;
    newest = step;
    wrong += fx_read_all(c, (uint32_t)step, &err) != 1;
    tc_ckpt_close(c);
  }
  is_int(died, 25, "25 savers were killed, %d of them left something half done", leftovers);
  is_int(bad_step, 0, "every folder step-* verifies, each time");
  is_int(lost, 0, "the newest is found and never older than before (it came to step %d)",
         (int)newest);
  is_int(wrong, 0, "and holds what was saved");
  ok(newest > 25, "the savers did get on");
  tc_comm_free(self);
  fx_clean();
}

/* The moment in which a step that is saved again has no folder: killed just there. */
static void test_kill_replacing(void)
{
  const char *dir = fx_folder();
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  char *manifest = tc_sprintf("%s/step-00000001/manifest.json", dir);
  int lost = 0, hit = 0;
  fx_save(dir, 1, 1, 1, 1);
  for (int round = 0; round < 30; round++) {
    fflush(stdout);
    pid_t pid = fork();
    while (pid == 0)
      if (fx_save(dir, 1, 1, 1, 1) < 0) _exit(8);
    int64_t end_ns = tc_now_ns() + INT64_C(1000000000);
    bool there = true;
    while (there && tc_now_ns() < end_ns) there = access(manifest, F_OK) == 0;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    hit += access(manifest, F_OK) < 0;
    struct tc_ckpt *c = NULL;
    struct tc_err err = {0};
    if (tc_ckpt_resume(&c, dir, -1, self, NULL, &err) < 0 || !c || fx_read_all(c, 1, &err) != 1) {
      lost++;
      fx_save(dir, 1, 1, 1, 1);
    }
    tc_ckpt_close(c);
  }
  is_int(lost, 0, "30 kills while the only step was being replaced, %d of them between: it is "
         "there", hit);
  free(manifest);
  tc_comm_free(self);
  fx_clean();
}

int main(void)
{
  alarm(1100);
  test_flips();
  test_files();
  test_made_up();
  test_disk_full();
  test_kill();
  test_kill_replacing();
  return done_testing();
}
