/* t_manifest.c - whether slices cover a tensor once, against counting; manifests that would cost
 * much to look at. */
#include "io/formats/json_values.h"
#include "tests/unit/ckpt_fixture.h"

/* A manifest in memory, of one u8 tensor in one file. */
static struct tc_manifest *made_manifest(int rank, const int64_t *dim, int pieces)
{
  struct tc_manifest *m = tc_calloc(1, sizeof *m);
  m->pool = tc_pool_new();
  m->tensor = tc_pool_alloc(m->pool, sizeof *m->tensor);
  m->tensor[0] = (struct tc_ckpt_tensor){ .name = "t", .dtype = TC_U8, .rank = rank };
  memcpy(m->tensor[0].dim, dim, (size_t)rank * sizeof *dim);
  m->file = tc_pool_alloc(m->pool, sizeof *m->file);
  m->file[0] = (struct tc_ckpt_file){ .name = "a.h5", .size = 1 << 30 };
  m->piece = tc_pool_alloc(m->pool, (size_t)pieces * sizeof *m->piece);
  m->n_tensors = m->n_files = 1;
  m->n_pieces = pieces;
  return m;
}

/* Boxes of few elements, at times a tiling, at times nearly one: what is reported of them is what
 * counting the elements says. */
static void test_cover(void)
{
  enum { W = 4, MOST = 24 };
  const int64_t dim[3] = { W, W, 3 };
  struct tc_err err = {0};
  int whole = 0, wrong = 0;
  for (int round = 0; round < 20000; round++) {
    struct tc_piece box[MOST] = { { .count = { W, W, 3 } } };
    int n = 1, hits[W * W * 3] = {0}, bad = 0;
    for (int cuts = (int)fx_random(8); cuts > 0; cuts--) {       /* one of them into two */
      struct tc_piece *p = &box[fx_random((uint32_t)n)];
      int d = (int)fx_random(3);
      if (p->count[d] < 2) continue;
      int64_t at = 1 + fx_random((uint32_t)p->count[d] - 1);
      box[n] = *p;
      box[n].start[d] += at;
      box[n++].count[d] -= at;
      p->count[d] = at;
    }
    for (int odd = (int)fx_random(3); odd > 0; odd--) {          /* one of them is moved */
      struct tc_piece *p = &box[fx_random((uint32_t)n)];
      int d = (int)fx_random(3);
      p->start[d] = fx_random((uint32_t)(dim[d] - p->count[d]) + 1);
    }
    struct tc_manifest *m = made_manifest(3, dim, n);
    for (int i = 0, at = 0; i < n; at += (int)box[i++].bytes) {
      box[i].bytes = tc_box_elems(3, box[i].count);
      box[i].offset = at;
      box[i].dataset = "/tensors/t";
      m->piece[i] = box[i];
      for (int64_t e = 0; e < W * W * 3; e++) {
        const int64_t x[3] = { e / 3 / W, e / 3 % W, e % 3 };
        bool in = true;
        for (int d = 0; d < 3; d++)
          in &= x[d] >= box[i].start[d] && x[d] < box[i].start[d] + box[i].count[d];
        hits[e] += in;
      }
    }
    for (int e = 0; e < W * W * 3; e++) bad += hits[e] != 1;
    wrong += (tc_manifest_check(m, "m", &err) == 0) != (bad == 0);
    whole += bad == 0;
    tc_manifest_free(m);
  }
  is_int(wrong, 0, "20000 sets of boxes: each is found to cover a tensor or not");
  ok(whole > 1000 && whole < 19000, "... of which %d do", whole);
}

/* Many slices along whichever dimension, or half of them along another, are checked at once. */
static void test_cover_time(void)
{
  enum { N = 200000 };
  struct tc_err err = {0};
  for (int form = 0; form < 3; form++) {
    const int64_t flat[3] = { form == 0 ? 1 : N, form == 0 ? N : 1, 1 }, half = N / 2;
    const int64_t both[3] = { 2, half, half };
    struct tc_manifest *m = made_manifest(3, form < 2 ? flat : both, N);
    for (int i = 0; i < N; i++) {
      struct tc_piece *p = &m->piece[i];
      *p = (struct tc_piece){ .count = { 1, 1, 1 }, .offset = i, .bytes = 1,
                              .dataset = "/tensors/t" };
      p->start[form == 0] = i;
      if (form < 2) continue;
      p->start[0] = i / half;
      p->start[1] = p->start[0] ? i % half : 0;
      p->start[2] = p->start[0] ? 0 : i % half;
      p->count[1] = p->start[0] ? 1 : half;
      p->count[2] = p->start[0] ? half : 1;
      p->bytes = half;
      p->offset = half * i;
    }
    m->file[0].size = half * N;
    int64_t ns = tc_now_ns();
    is_int(tc_manifest_check(m, "m", &err), 0, "%d slices, form %d", N, form);
    ok(tc_now_ns() - ns < INT64_C(60000000000), "... are checked in %.2f s",
       (double)(tc_now_ns() - ns) * 1e-9);
    tc_manifest_free(m);
  }
}

/* A text of `n` values that mean nothing: refused before they are taken apart. */
static void test_values(void)
{
  enum { N = 100000 };
  char *text = tc_calloc(2 * N + 100, 1), *path = tc_sprintf("%s/manifest.json", fx_folder());
  struct tc_manifest *m;
  struct tc_err err = {0};
  size_t bytes;
  int at = sprintf(text, "{\"format\": 2, \"x\": [");
  for (int i = 0; i < N; i++) at += sprintf(text + at, "0,");
  strcpy(text + at - 1, "]\n}\n");
  char *sealed = tc_manifest_seal(text, strlen(text), &bytes);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes && fclose(f) == 0);
  is_int(tc_manifest_read(&m, path, &err), TC_ECHECKSUM, "%d zeros", N);
  ok(strstr(err.text, "more values") != NULL, "... are refused: %s", err.text);
  fx_clean();
  free(sealed);
  free(text);
  free(path);
}

/* Any bytes become a JSON string: what is no UTF-8 loses its high bytes. */
static void test_text(void)
{
  static const struct { const char *text, *want; } c[] = {
    { "plain", "plain" }, { "", "" }, { NULL, "" }, { "\"\n\\", "\"\n\\" }, { "h\xc3\xa9",
        "h\xc3\xa9" },
    { "a\xff z", "a? z" }, { "\xc3", "?" }, { "\x80\x7f~", "?\x7f~" },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    json_t *j = tc_text_json(c[i].text);
    if (!ok(j != NULL, "text %zu is JSON", i)) continue;
    is_str(json_string_value(j), c[i].want, "... as it is, or in ASCII");
    json_decref(j);
  }
}

/* ---- what is wrong with a manifest ---- */

static const char good[] =
  "{\"format\": 2, \"block_bytes\": 4096, \"step\": 7, \"time\": \"t\", \"seed\": \"5\", \"tokens\": 9,"
  " \"model\": \"m\", \"mesh\": \"p\", \"system\": \"s\", \"job\": \"j\", \"restart\": 1, \"who\": [\"w\"],"
  " \"version\": \"v\", \"loop\": \"l\", \"config\": \"c\", \"stack\": \"k\", \"data\": \"d\", \"base\": \"b\", \"tuned\": \"q\", \"nodes\": \"n\",\n"
  "\"attached\": {\"name\": \"u.json\", \"size\": 77, \"crc32c\": \"0000000e\"},\n"
  "\"files\": [{\"name\": \"a.h5\", \"writer\": 0, \"size\": 100, \"meta_crc32c\": \"0000000a\"},"
  " {\"name\": \"b.h5\", \"writer\": 1, \"size\": 90, \"meta_crc32c\": \"ffffffff\"}],\n"
  "\"tensors\": [{\"name\": \"x\", \"dtype\": \"f32\", \"shape\": [2, 3], \"pieces\": ["
  "{\"file\": \"a.h5\", \"dataset\": \"/tensors/x.0\", \"start\": [0, 0], \"count\": [1, 3], \"offset\": 8, "
  "\"bytes\": 12, \"crc32c\": \"0000000b\"},"
  "{\"file\": \"a.h5\", \"dataset\": \"/tensors/x.1\", \"start\": [1, 0], \"count\": [1, 3], \"offset\": 20, "
  "\"bytes\": 12, \"crc32c\": \"0000000c\"}]},\n"
  "{\"name\": \"y\", \"dtype\": \"u8\", \"shape\": [], \"pieces\": ["
  "{\"file\": \"b.h5\", \"dataset\": \"/tensors/y\", \"start\": [], \"count\": [], \"offset\": 89, "
  "\"bytes\": 1, \"crc32c\": \"0000000d\"}]}]\n}\n";

#define NOT(key) "not a manifest: \"" key "\" is missing or makes no sense"
#define OUTSIDE "tensor x: a piece in a.h5 is outside of its shape"

/* One change each; what the sentence says after the path, "" where it is as good. */
static const struct { const char *from, *to, *says; } change[] = {
  { "", "", "" }, { "format\": 2", "format\": 3", "format 3 is newer than this program's 2: use a newer tercio" },
  { "format\": 2", "format\": 0", NOT("format") }, { "format\": 2", "format\": 2.0", NOT("format") },
  { "format\": 2, \"block_bytes\": 4096", "format\": 1", "" }, { "\"format\": 2, ", "", NOT("format") },
  { "4096", "8192", "" }, { "4096", "1073741824", "" }, { "4096", "1073745920", NOT("block_bytes") },
  { "4096", "4095", NOT("block_bytes") }, { "4096", "4097", NOT("block_bytes") }, { "4096", "0", NOT("block_bytes") },
  { "step\": 7", "step\": 0", "" }, { "step\": 7", "step\": -1", NOT("step") },
  { "step\": 7", "step\": 9007199254740992", "" }, { "step\": 7", "step\": 9007199254740993", NOT("step") },
  { "\"t\"", "1", NOT("time") }, { "\"5\"", "5", NOT("seed") }, { "\"5\"", "\"\"", NOT("seed") },
  { "\"5\"", "\"18446744073709551615\"", "" }, { "\"5\"", "\"18446744073709551616\"", NOT("seed") },
  { "\"5\"", "\"5a\"", NOT("seed") }, { "\"5\"", "\"+5\"", NOT("seed") }, { "\"5\"", "\"a\"", NOT("seed") },
  { "tokens\": 9", "tokens\": -9", "" }, { "tokens\": 9", "tokens\": \"9\"", NOT("tokens") },
  { "\"m\"", "null", NOT("model") }, { "\"p\"", "null", NOT("mesh") }, { "\"s\"", "null", NOT("system") },
  { "\"j\"", "null", NOT("job") }, { "restart\": 1", "restart\": 2147483648", NOT("restart") },
  { "restart\": 1", "restart\": 2147483647", "" }, { "[\"w\"]", "[3]", NOT("who") }, { "[\"w\"]", "3", NOT("who") },
  { "[\"w\"]", "[]", "" }, { "\"v\"", "null", NOT("version") }, { "\"l\"", "null", NOT("loop") },
  { "\"c\"", "null", NOT("config") }, { "\"d\"", "3", NOT("data") }, { ", \"data\": \"d\"", "", "" },
  { "\"k\"", "3", NOT("stack") }, { ", \"stack\": \"k\"", "", "" },
  { "\"b\", \"tuned\"", "3, \"tuned\"", NOT("base") }, { ", \"base\": \"b\"", "", "" },
  { "\"q\"", "3", NOT("tuned") }, { ", \"tuned\": \"q\"", "", "" },
  { "\"n\"", "3", NOT("nodes") }, { ", \"nodes\": \"n\"", "", "" },
  { "\"u.json\"", "3", NOT("name") }, { "\"u.json\"", "\"../u\"", "attached file ../u: not a good file name" },
  { "\"u.json\"", "\"manifest.json\"", "attached file manifest.json: not a good file name" },
  { "\"u.json\"", "\"b.h5\"", "file b.h5: listed twice" }, { "77", "-1", NOT("size") }, { "77", "0", "" },
  { "77", "1073741824", "" }, { "77", "1073741825", NOT("size") }, { "0000000e", "x", NOT("crc32c") },
  { "{\"name\": \"u.json\", \"size\": 77, \"crc32c\": \"0000000e\"}", "3", NOT("name") },
  { "\"attached\": {\"name\": \"u.json\", \"size\": 77, \"crc32c\": \"0000000e\"},\n", "", "" },
  { "files", "file", NOT("files") }, { "a.h5\", \"w", "c.h5\", \"w", NOT("file") },
  { "\"writer\": 1", "\"writer\": -1", NOT("writer") }, { "\"size\": 90", "\"size\": -1", NOT("size") },
  { "\"size\": 90", "\"size\": 89", "tensor y: a piece is outside of its file b.h5" },
  { "\"size\": 100", "\"size\": 32", "" }, { "\"size\": 100", "\"size\": 31",
    "tensor x: a piece is outside of its file a.h5" },
  { "\"size\": 100", "\"size\": 11", "tensor x: a piece is outside of its file a.h5" },
  { "ffffffff", "fffffffff", NOT("meta_crc32c") }, { "ffffffff", "FF", NOT("meta_crc32c") }, { "ffffffff", "0", "" },
  { "b.h5\", \"w", "a.h5\", \"w", NOT("file") }, { "[{\"name\": \"a.h5", "[{\"name\": \"a.h5\", \"writer\": 3, "
    "\"size\": 0, \"meta_crc32c\": \"1\"}, {\"name\": \"a.h5", "file a.h5: listed twice" },
  { "[{\"name\": \"a.h5", "[{\"name\": \".a\", \"writer\": 3, \"size\": 0, \"meta_crc32c\": \"1\"}, "
    "{\"name\": \"a.h5", "file .a: not a good file name" },
  { "[{\"name\": \"a.h5", "[{\"name\": \"manifest.json\", \"writer\": 3, \"size\": 0, \"meta_crc32c\": \"1\"}, "
    "{\"name\": \"a.h5", "file manifest.json: not a good file name" },
  { "tensors\": [", "tensor\": [", NOT("tensors") }, { "\"y\", \"d", "\"x\", \"d", "tensor x: there are two of "
    "this name" }, { "\"y\", \"d", "\"\", \"d", "tensor : not a good name" },
  { "\"y\", \"d", "\"a//b\", \"d", "tensor a//b: not a good name" },
  { "\"y\", \"d", "\"a/..\", \"d", "tensor a/..: not a good name" },
  { "\"y\", \"d", "\"a b\", \"d", "tensor a b: not a good name" },
  { "\"y\", \"d", "\"a\\u007f\", \"d", "tensor a\\u007f: not a good name" },
  { "\"y\", \"d", "\"z\", \"d", "tensor z: not a good dataset name" },
  { "\"u8", "\"u9", "tensor y: unknown type" }, { "[2, 3]", "[2, 0]", "tensor x: impossible shape" },
  { "[2, 3]", "[1, 2, 3]", NOT("start, count") }, { "[2, 3]", "[2, 3, 1, 1, 1, 1, 1]", NOT("shape") },
  { "[2, 3]", "[2, \"3\"]", NOT("shape") }, { "[2, 3]", "[2, 2]", OUTSIDE },
  { "[2, 3]", "[2, 4]", "tensor x: no slice holds its element [0, 3]" },
  { "[2, 3]", "[3, 3]", "tensor x: no slice holds its element [2, 0]" },
  { "[1, 0], \"c", "[0, 0], \"c", "tensor x: two slices overlap at [0, 0], in a.h5 and a.h5" },
  { "[1, 0], \"c", "[2, 0], \"c", OUTSIDE }, { "[1, 0], \"c", "[-1, 0], \"c", OUTSIDE },
  { "[1, 0], \"c", "[1, 1], \"c", OUTSIDE }, { "[1, 0], \"c", "[1], \"c", NOT("start, count") },
  { "[1, 3], \"offset\": 20", "[1, 2], \"offset\": 20", "tensor x: a piece is outside of its file a.h5" },
  { "[1, 3], \"offset\": 20", "[0, 3], \"offset\": 20", OUTSIDE },
  { "[1, 3], \"offset\": 20", "[3, 3], \"offset\": 20", OUTSIDE },
  { "[1, 3], \"offset\": 20", "[3], \"offset\": 20", NOT("start, count") },
  { "offset\": 20", "offset\": 19", "file a.h5: two pieces share bytes" }, { "offset\": 20", "offset\": 21", "" },
  { "offset\": 20", "offset\": 0", "file a.h5: two pieces share bytes" }, { "offset\": 8", "offset\": 0", "" },
  { "offset\": 8", "offset\": -1", NOT("offset") }, { "offset\": 20", "offset\": 88", "" },
  { "offset\": 20", "offset\": 89", "tensor x: a piece is outside of its file a.h5" },
  { "bytes\": 1,", "bytes\": 0,", NOT("bytes") }, { "bytes\": 1,", "bytes\": 2,",
    "tensor y: a piece is outside of its file b.h5" },
  { "0000000d", "000000d", NOT("crc32c") }, { "0000000d", "0000000D", NOT("crc32c") },
  { "0000000d", "0000000d0000000d", NOT("crc32c") }, { "\"0000000d\"", "3", NOT("crc32c") },
  { "/tensors/y", "/tensors/y.", "tensor y: not a good dataset name" }, { "/tensors/y", "/tensors/y.12", "" },
  { "/tensors/y", "/tensors/y.1a", "tensor y: not a good dataset name" },
  { "/tensors/y", "/tensors/yy", "tensor y: not a good dataset name" },
  { "/tensors/y", "/tensor5/y", "tensor y: not a good dataset name" },
  { "\"file\": \"b.h5\"", "\"file\": \"c.h5\"", NOT("file") }, { "\"file\": \"b.h5\"", "\"file\": 3", NOT("file") },
};

static void test_change(void)
{
  char *path = tc_sprintf("%s/manifest.json", fx_folder());
  for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
    const char *at = strstr(good, change[i].from);
    struct tc_manifest *m = NULL;
    struct tc_err err = { .text = "" };
    size_t bytes;
    TC_ASSERT(at);
    char *text = tc_sprintf("%.*s%s%s", (int)(at - good), good, change[i].to, at + strlen(change[i].from));
    char *sealed = tc_manifest_seal(text, strlen(text), &bytes), *want;
    FILE *f = fopen(path, "w");
    TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes && fclose(f) == 0);
    is_int(tc_manifest_read(&m, path, &err), !*change[i].says ? 0 : strstr(change[i].says, "newer") ? TC_EUSER : TC_ECHECKSUM, "%s for %s", change[i].to, change[i].from);
    want = *change[i].says ? tc_sprintf("%s: %s", path, change[i].says) : tc_strdup("");
    is_str(err.text, want, "... in these words");
    tc_manifest_free(m);
    free(want);
    free(sealed);
    free(text);
  }
  free(path);
  fx_clean();
}

/* The seal follows the last value, whatever newlines are around the closing brace. */
static void test_seal(void)
{
  static const char *const text[] = { "{\"a\": 1}", "{\"a\": 1\n}", "{\"a\": 1\n}\n",
                                      "{\"a\": 1\n\n\n}\n\n", "{\"a\": 1}\n" };
  size_t bytes;
  char *want = tc_manifest_seal(text[0], strlen(text[0]), &bytes);
  TC_ASSERT(bytes > 8 && !memcmp(want, "{\"a\": 1", 7) && want[7] != '\n');
  for (size_t i = 1; i < sizeof text / sizeof *text; i++) {
    size_t n;
    char *got = tc_manifest_seal(text[i], strlen(text[i]), &n);
    ok(n == bytes && !memcmp(got, want, n), "a seal is in the same place, newlines %d", (int)i);
    free(got);
  }
  free(want);
}

/* What is read is what is written. */
static void test_fields(void)
{
  char *path = tc_sprintf("%s/manifest.json", fx_folder());
  struct tc_manifest *m;
  struct tc_err err;
  size_t bytes, again;
  char *sealed = tc_manifest_seal(good, strlen(good), &bytes);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes && fclose(f) == 0);
  TC_ASSERT(tc_manifest_read(&m, path, &err) == 0);
  const struct tc_ckpt_meta *a = &m->meta;
  ok(a->step == 7 && a->seed == 5 && a->tokens == 9 && a->restart == 1 && m->world == 1 && m->block_bytes == 4096,
     "numbers of a manifest");
  char *words = tc_sprintf("%s %s %s %s %s %s %s %s %s %s %s %s %s %s %s", a->time, a->model, a->mesh, a->system, a->job, a->rank_names[0],
                           a->version, a->loop, a->config, a->stack, a->data, a->base, a->tuned, a->nodes, m->file[1].name);
  is_str(words, "t m p s j w v l c k d b q n b.h5", "... its words");
  ok(!strcmp(a->attached[0].name, "u.json") && a->attached[0].bytes == 77 && a->attached[0].crc32c == 14 && !a->attached[0].data,
     "... its attached file");
  ok(m->file[0].meta_crc32c == 10 && m->file[1].meta_crc32c == UINT32_MAX && m->file[1].writer == 1 &&
     m->file[0].size == 100 && m->n_files == 2, "... its files");
  ok(m->n_tensors == 2 && m->n_pieces == 3 && m->piece[1].start[0] == 1 && m->piece[1].offset == 20 &&
     m->piece[1].crc32c[0] == 12 && m->piece[2].file == 1 && m->first_piece[1] == 2 && m->first_piece[2] == 3,
     "... its pieces");
  char *text = tc_manifest_text(m, &again);
  json_t *x = json_loadb(sealed, bytes, 0, NULL), *y = json_loadb(text, again, 0, NULL);
  json_object_del(x, "crc32c");
  json_object_del(y, "crc32c");
  ok(json_equal(x, y), "written again it says the same");
  ok(again > 25 && text[again - 1] == '\n' && strstr(text, "{\n\"format\": 2,\n\"block_bytes\": 4096,\n\"step\": 7,"),
     "... line by line");
  json_decref(x);
  json_decref(y);
  free(text);
  free(words);
  free(sealed);
  free(path);
  tc_manifest_free(m);
  fx_clean();
}

/* ---- limits ---- */

static int read_sealed(const char *path, const char *text, struct tc_err *err)
{
  struct tc_manifest *m = NULL;
  size_t bytes;
  char *sealed = tc_manifest_seal(text, strlen(text), &bytes);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes && fclose(f) == 0);
  int rc = tc_manifest_read(&m, path, err);
  tc_manifest_free(m);
  free(sealed);
  return rc;
}

/* The manifest is read, or refused with this sentence. */
static void reads(const json_t *o, const char *path, const char *says, const char *what, int64_t n)
{
  struct tc_err err = { .text = "" };
  char *text = json_dumps(o, 0), *want = *says ? tc_sprintf("%s: %s", path, says) : tc_strdup("");
  is_int(read_sealed(path, text, &err), *says ? TC_ECHECKSUM : 0, "%s of %lld", what, (long long)n);
  is_str(err.text, want, "... in these words");
  free(want);
  free(text);
}

static json_t *letters(const char *before, int n)
{
  char *text = tc_calloc(strlen(before) + (size_t)n + 1, 1);
  memset(text + sprintf(text, "%s", before), 'a', (size_t)n);
  json_t *j = json_string(text);
  free(text);
  return j;
}

/* The longest of each text is read, one more letter is not; the largest number, and one more. */
static void test_limits(void)
{
  static const struct { const char *key; int most; const char *says; } c[] = {
    { "time", 100, NOT("time") }, { "model", 1 << 20, NOT("model") }, { "mesh", 1 << 20, NOT("mesh") },
    { "system", 1 << 20, NOT("system") }, { "job", 1 << 20, NOT("job") },
    { "version", 1 << 20, NOT("version") }, { "loop", 1 << 20, NOT("loop") },
    { "config", 1 << 20, NOT("config") }, { "data", 1 << 20, NOT("data") },
    { "stack", 1 << 20, NOT("stack") }, { "base", 1 << 20, NOT("base") }, { "tuned", 1 << 20, NOT("tuned") },
    { "nodes", 1 << 20, NOT("nodes") } };
  static const struct { int64_t dim, size; const char *says; } number[] = {
    { 3, INT64_C(1) << 62, "" }, { 3, (INT64_C(1) << 62) + 1, NOT("size") },
    { INT64_C(1) << 58, 100, "tensor x: no slice holds its element [0, 3]" },
    { (INT64_C(1) << 58) + 1, 100, "tensor x: impossible shape" } };
  char *path = tc_sprintf("%s/manifest.json", fx_folder()), *words;
  json_t *o = json_loads(good, 0, NULL), *file, *tensor, *piece;
  for (int more = 0; more <= 1; more++) {
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
      json_object_set_new(o, c[i].key, letters("", c[i].most + more));
      reads(o, path, more ? c[i].says : "", c[i].key, c[i].most + more);
      json_object_set_new(o, c[i].key, json_string("short"));
    }
    file = json_pack("{s:o, s:i, s:i, s:s}", "name", letters("", 100 + more), "writer", INT32_MAX,
                     "size", 0, "meta_crc32c", "0");
    json_array_append_new(json_object_get(o, "files"), file);
    words = tc_sprintf("file %.100s: not a good file name",
                       json_string_value(json_object_get(file, "name")));
    reads(o, path, more ? words : "", "a file's name", 100 + more);
    json_array_remove(json_object_get(o, "files"), 2);
    free(words);
    tensor = json_array_get(json_object_get(o, "tensors"), 1);
    piece = json_array_get(json_object_get(tensor, "pieces"), 0);
    json_object_set_new(tensor, "name", letters("", 200 + more));
    json_object_set_new(piece, "dataset", letters("/tensors/", 200 + more));
    words = tc_sprintf("tensor %.100s: not a good name",
                       json_string_value(json_object_get(tensor, "name")));
    reads(o, path, more ? words : "", "a tensor's name", 200 + more);
    free(words);
  }
  json_object_set_new(tensor, "name", json_string("y"));
  json_object_set_new(piece, "dataset", json_string("/tensors/y"));
  file = json_array_get(json_object_get(o, "files"), 0);
  tensor = json_array_get(json_object_get(o, "tensors"), 0);
  for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
    json_object_set_new(file, "size", json_integer(number[i].size));
    json_object_set_new(tensor, "shape", json_pack("[i, I]", 2, (json_int_t)number[i].dim));
    reads(o, path, number[i].says, "a size", number[i].size);
  }
  json_object_set_new(tensor, "shape", json_pack("[i, i]", 2, 3));
  json_array_clear(json_object_get(json_array_get(json_object_get(o, "tensors"), 1), "pieces"));
  reads(o, path, "tensor y: no slice holds its element []", "pieces of a scalar", 0);
  json_decref(o);
  free(path);
  fx_clean();
}

/* As many values as a text of its size may have, and one more. */
static void test_most_values(void)
{
  enum { N = 3000 };
  char *path = tc_sprintf("%s/manifest.json", fx_folder()), text[8 * N];
  struct tc_err err;
  for (int more = 0; more <= 1; more++) {
    int at = sprintf(text, "{\"x\": [0");
    for (int i = 1; i < N; i++) at += sprintf(text + at, ",0");
    /* Sealed, the text has a value and 25 bytes more, and a brace less. */
    const int64_t bytes = 8 * (N + 3 - 1000 - more) + 7;
    TC_ASSERT(bytes > at + 25);
    while (at + 1 + 25 < bytes) text[at++] = ' ';
    strcpy(text + at, "]}");
    is_int(read_sealed(path, text, &err), TC_ECHECKSUM, "%d values in %lld bytes", N, (long long)bytes);
    char *want = tc_sprintf("%s: %s", path, more ? "it has more values than a manifest of its size could"
                                                 : NOT("format"));
    is_str(err.text, want, "... in these words");
    free(want);
  }
  free(path);
  fx_clean();
}

/* What is no manifest's text at all. */
static void test_no_text(void)
{
  static const struct { const char *made, *says; int status; } c[] = {
    { "true", "is not there: the checkpoint is incomplete", TC_EINCOMPLETE },
    { ": > m", "is empty: the checkpoint is incomplete", TC_EINCOMPLETE },
    { "printf '\\n}\\n' > m", "wrong checksum: the manifest is damaged, cut off or was edited",
      TC_ECHECKSUM },
    { "truncate -s 1073741825 m", "too large to be a manifest", TC_ECHECKSUM },
    { "rm m; mkfifo m", "not a file", TC_ECHECKSUM }, { "rm m; mkdir m", "not a file", TC_ECHECKSUM },
    { "rmdir m; ln -s m m", "can't be read: Too many levels of symbolic links", TC_EUSER } };
  const char *dir = fx_folder();
  char *path = tc_sprintf("%s/m", dir);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_err err;
    struct tc_manifest *m = (void *)path;
    char *cmd = tc_sprintf("cd '%s' && %s", dir, c[i].made);
    char *want = tc_sprintf("%s: %s", path, c[i].says);
    TC_ASSERT(system(cmd) == 0);
    is_int(tc_manifest_read(&m, path, &err), c[i].status, "%s", c[i].made);
    is_str(err.text, want, "... in these words");
    ok(!m, "... and nothing is read");
    free(want);
    free(cmd);
  }
  free(path);
  fx_clean();
}

/* Of each row of meta.def: what it is to a manifest that it is missing from, and whether it is written then. */
static void test_rows(void)
{
  char *path = tc_sprintf("%s/manifest.json", fx_folder());
  for (int i = 0; i < TC_META_ROWS; i++) {
    const struct tc_meta_row *row = &tc_meta_rows[i];
    struct tc_manifest *m = NULL;
    struct tc_err err = { .text = "" };
    json_t *o = json_loads(good, 0, NULL);
    size_t bytes;
    TC_ASSERT(json_object_del(o, row->name) == 0);
    char *text = json_dumps(o, 0);
    const int rc = read_sealed(path, text, &err);
    if (row->missing == TC_MISSING_FAULT) {
      char *want = tc_sprintf("%s: not a manifest: \"%s\" is missing or makes no sense", path, row->name);
      is_int(rc, TC_ECHECKSUM, "a manifest without %s is damaged", row->name);
      is_str(err.text, want, "... in these words");
      free(want);
    } else {
      is_int(rc, 0, "a manifest without %s is an earlier program's", row->name);
      TC_ASSERT(tc_manifest_read(&m, path, &err) == 0);
      is_str(*(const char **)(void *)((char *)&m->meta + row->field), "", "... it is empty then");
      char *again = tc_manifest_text(m, &bytes), *member = tc_sprintf("\n\"%s\": ", row->name);
      again[bytes - 1] = '\0';
      is_int(strstr(again, member) != NULL, row->missing == TC_MISSING_EMPTY, "... and whether it is written again");
      free(again);
      free(member);
      tc_manifest_free(m);
    }
    json_decref(o);
    free(text);
  }
  free(path);
  fx_clean();
}

int main(void)
{
  alarm(1100);
  test_change();
  test_seal();
  test_limits();
  test_most_values();
  test_no_text();
  test_fields();
  test_rows();
  test_text();
  test_cover();
  test_cover_time();
  test_values();
  return done_testing();
}
