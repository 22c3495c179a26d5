/* t_manifest.c - whether slices cover a tensor once, against counting; manifests that would cost
 * much to look at. */
#include "io/json.h"
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

/* Boxes of few elements, at times a tiling, at times nearly one: what is said of them is what
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
  is_int(tc_manifest_read(&m, path, &err), TC_EUSER, "%d zeros", N);
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

int main(void)
{
  alarm(1100);
  test_text();
  test_cover();
  test_cover_time();
  test_values();
  return done_testing();
}
