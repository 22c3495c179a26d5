/* t_foreign.c - boxes of weights from other programs' files: those of transformers' folders in tests/oracle, in both
 * rotary orders, compared with whole tensors that are put into our order element by element; and how much of a file is
 * read. */
#include "src/foreign/foreign.h"
#include "tests/unit/tap.h"

static int64_t bytes_read;
static int count_read(const struct tc_st_files *s, int i, int64_t from, int64_t bytes, void *buf, struct tc_err *err)
{
  bytes_read += bytes;
  return tc_st_files_read(s, i, from, bytes, buf, err);
}
#define tc_st_files_read count_read
#include "src/foreign/boxes.c"
#undef tc_st_files_read

static uint64_t state = 7;
static int64_t draw(int64_t least, int64_t most)
{
  state = state * 6364136223846793005u + 1442695040888963407u;
  return least + (int64_t)(state >> 33) % (most - least + 1);
}

static struct tc_config *new_config(void)
{
  struct tc_config *c;
  char word[] = "test", *argv[] = { word };
  TC_ASSERT(tc_config_new(&c, 1, argv, NULL) == 0);
  return c;
}

/* Tensor i as a whole, with the places of tc_foreign_next; owned by the caller. */
static float *whole(const struct tc_foreign *f, int i)
{
  const struct tc_ckpt_tensor *t = tc_foreign_at(f, i);
  float *to = tc_calloc((size_t)tc_box_elems(t->rank, t->dim), sizeof *to);
  for (int k = f->first[i]; k < f->first[i + 1]; k++) {
    const struct tc_foreign_part *p = &f->part[k];
    const int index = tc_foreign_index(f, p->hf);
    const struct tc_st_tensor *s = tc_st_files_at(f->st, index);
    char *data = tc_malloc((size_t)s->bytes);
    TC_ASSERT(tc_st_files_read(f->st, index, 0, s->bytes, data, NULL) == 0);
    struct tc_foreign_walk w = { .t = p, .form = f->form };
    for (int64_t e = 0; e < tc_foreign_elems(p); e++) {
      uint16_t half;
      float *at = &to[tc_foreign_next(&w)];
      memcpy(&half, data + (s->dtype == TC_BF16 ? e * 2 : 0), sizeof half);
      if (s->dtype == TC_BF16) *at = tc_bf16_to_f32(half);
      else memcpy(at, data + e * 4, sizeof *at);
    }
    free(data);
  }
  return to;
}

/* The box of a whole tensor, element by element. */
static void cut(float *out, const float *from, int rank, const int64_t *dim, const int64_t *start, const int64_t *count)
{
  const int64_t n = tc_box_elems(rank, count);
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i, at = 0, step = 1;
    for (int d = rank - 1; d >= 0; d--) {
      at += (start[d] + rest % count[d]) * step;
      step *= dim[d];
      rest /= count[d];
    }
    out[i] = from[at];
  }
}

/* Boxes of tensor i: all of it, then drawn ones. Returns how many are wrong, or took more of the file than they
 * have. */
static int wrong_boxes(const struct tc_foreign *f, int i)
{
  const struct tc_ckpt_tensor *t = tc_foreign_at(f, i);
  float *all = whole(f, i), *want = tc_calloc((size_t)tc_box_elems(t->rank, t->dim), sizeof *want);
  float *got = tc_calloc((size_t)tc_box_elems(t->rank, t->dim), sizeof *got);
  struct place place = { 0 };
  int wrong = find_place(f, &f->part[f->first[i]], &place, NULL);
  const int size = place.dtype == TC_F32 ? 4 : 2;
  for (int k = 0; k < 30; k++) {
    int64_t start[TC_DIMS] = { 0 }, count[TC_DIMS];
    memcpy(count, t->dim, sizeof count);
    for (int d = 0; d < t->rank && k > 0; d++) {
      if (draw(0, 2) == 0) continue;
      start[d] = draw(0, t->dim[d] - 1);
      count[d] = draw(1, t->dim[d] - start[d]);
    }
    const int64_t n = tc_box_elems(t->rank, count);
    cut(want, all, t->rank, t->dim, start, count);
    memset(got, 0xff, (size_t)n * sizeof *got);
    bytes_read = 0;
    struct tc_err err;
    const bool read = tc_foreign_read(f, i, start, count, got, &err) == 0;
    wrong += !read || memcmp(got, want, (size_t)n * sizeof *got) != 0 || bytes_read != n * size;
  }
  free(all);
  free(want);
  free(got);
  return wrong;
}

static void test_boxes(const char *folder, const char *rope)
{
  char path[600];
  struct tc_foreign *f;
  struct tc_err err = { .text = "" };
  struct tc_config *c = new_config();
  snprintf(path, sizeof path, "%s/tests/oracle/%s", getenv("srcdir") ? getenv("srcdir") : ".", folder);
  ok(tc_foreign_is(path), "%s is another program's", folder);
  if (!is_int(tc_foreign_open(&f, path, rope, c, &err), 0, "%s %s", folder, err.text)) exit(1);
  int wrong = 0;
  for (int i = 0; i < tc_foreign_n(f); i++) {
    wrong += wrong_boxes(f, i);
    wrong += tc_foreign_find(f, tc_foreign_at(f, i)->name) != i;
  }
  ok(tc_foreign_n(f) >= 15, "%d tensors", tc_foreign_n(f));
  is_int(wrong, 0, "%s %s: boxes are those of the whole tensors, and nothing else is read", folder, rope ? rope : "");
  is_int(tc_foreign_find(f, "h.9.ln_1.weight"), -1, "no other tensor");
  tc_foreign_close(f);
  tc_config_free(c);
}

int main(void)
{
  test_boxes("bytes-gpt2", NULL);
  test_boxes("bytes-llama", NULL);
  test_boxes("hf-llama", NULL);
  test_boxes("hf-llama", "interleaved");
  test_boxes("hf-qwen3", NULL);
  test_boxes("hf-qwen3", "interleaved");
  ok(!tc_foreign_is("/"), "a folder without a model");
  ok(!tc_foreign_is("/dev/null"), "a device");
  ok(!tc_foreign_is("none/such"), "nothing");
  return done_testing();
}
