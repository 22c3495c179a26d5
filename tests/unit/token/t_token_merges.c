/* t_token_merges.c - merges against the naive way: join the leftmost pair of the lowest rank, search again. With
 * tokenizers that are drawn here, of bytes and of characters: merges in any order, pieces that go through the cache, the search
 * and the heap, and such that are split where no merge joins two characters. */
#include "tests/unit/seed.h"
#include "tests/unit/token_fixture.h"

enum { LETTERS = 3, MERGES = 60, TOKENS = 256 + MERGES, MOST = 700 };

struct model {
  char text[TOKENS][64];                  /* of letters; those of bytes are only counted */
  int n;                                  /* tokens; token 256 + i is merge order[i]'s */
  int left[MERGES], right[MERGES], rank[MERGES], n_merges;
};

/* Bytes a, b, c are ids 0 to 2, the other bytes those up to 255. */
static int find(const struct model *m, const char *text)
{
  for (int i = 0; i < m->n; i++)
    if (strcmp(m->text[i], text) == 0) return i;
  return -1;
}

/* A model of up to `most` merges. */
static void draw_model(struct model *m, struct dice *d, int most)
{
  *m = (struct model){ .n = 256 };
  for (int i = 0; i < LETTERS; i++) snprintf(m->text[i], sizeof m->text[i], "%c", 'a' + i);
  for (int i = LETTERS; i < 256; i++) snprintf(m->text[i], sizeof m->text[i], "?%d", i);
  for (int tries = 0; m->n_merges < most && tries < 1000; tries++) {
    const int n_made = m->n - 256, a = (int)roll(d, (uint32_t)(LETTERS + n_made)),
              b = (int)roll(d, (uint32_t)(LETTERS + n_made));
    const int left = a < LETTERS ? a : 256 + a - LETTERS, right = b < LETTERS ? b : 256 + b - LETTERS;
    char joined[130];
    bool there = false;
    for (int i = 0; i < m->n_merges; i++) there |= m->left[i] == left && m->right[i] == right;
    snprintf(joined, sizeof joined, "%s%s", m->text[left], m->text[right]);
    if (there || strlen(joined) > 40) continue;
    if (find(m, joined) < 0) snprintf(m->text[m->n++], sizeof m->text[0], "%.63s", joined);
    m->left[m->n_merges] = left;
    m->right[m->n_merges++] = right;
  }
  for (int i = 0; i < m->n_merges; i++) {         /* in any order: a merge may come before those it needs */
    const int k = (int)roll(d, (uint32_t)i + 1);
    m->rank[i] = m->rank[k];
    m->rank[k] = i;
  }
}

/* The alphabet's character of a byte. */
static void put_byte(char *out, int byte)
{
  int c = byte, next = 0x100;
  for (int b = 0; b <= byte; b++) {
    const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    c = itself ? b : next++;
  }
  if (c < 0x80) snprintf(out, 4, "%c", c);
  else snprintf(out, 4, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
}

/* Of characters, bytes have ids behind those of the model, and the letters are characters. */
static struct tc_tokenizer *make_tokenizer(const struct model *m, bool characters)
{
  json_t *vocab = json_object(), *merges = json_array();
  int id = LETTERS;
  for (int b = 0; b < 256; b++) {
    char text[8];
    const bool letter = b >= 'a' && b < 'a' + LETTERS;
    if (characters) snprintf(text, sizeof text, "<0x%02X>", b);
    else put_byte(text, b);
    json_object_set_new(vocab, text, json_integer(characters ? m->n + b : letter ? b - 'a' : id++));
  }
  for (int i = 0; characters && i < LETTERS; i++) json_object_set_new(vocab, m->text[i], json_integer(i));
  for (int i = 256; i < m->n; i++) json_object_set_new(vocab, m->text[i], json_integer(i));
  for (int r = 0; r < m->n_merges; r++)
    for (int i = 0; i < m->n_merges; i++)
      if (m->rank[i] == r) {
        const char *a = m->text[m->left[i]], *b = m->text[m->right[i]];
        json_array_append_new(merges, r % 2 ? json_pack("[s, s]", a, b) : json_sprintf("%s %s", a, b));
      }
  json_t *j = json_pack("{s:{s:s, s:o, s:o}, s:{s:s, s:b, s:b}}", "model", "type", "BPE", "vocab", vocab, "merges",
                        merges, "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
  if (characters) {
    json_object_set_new(j, "decoder", json_pack("{s:s}", "type", "ByteFallback"));
    json_object_set_new(j, "pre_tokenizer", json_null());
    json_object_set_new(json_object_get(j, "model"), "byte_fallback", json_true());
  }
  char *text = json_dumps(j, 0);
  struct tc_tokenizer *t = NULL;
  struct tc_err err = { 0 };
  if (tc_tokenizer_parse(&t, text, strlen(text), "made here", &err) < 0) printf("Bail out! %s\n", err.text), exit(1);
  free(text);
  json_decref(j);
  return t;
}

/* The ids of a text of letters, slowly. Returns their number. */
static size_t naive(const struct model *m, const char *text, size_t n, uint32_t *id)
{
  for (size_t i = 0; i < n; i++) id[i] = (uint32_t)(text[i] - 'a');
  for (;;) {
    int best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < n; i++)
      for (int k = 0; k < m->n_merges; k++)
        if ((uint32_t)m->left[k] == id[i] && (uint32_t)m->right[k] == id[i + 1] &&
            (best < 0 || m->rank[k] < m->rank[best])) {
          best = k;
          at = i;
        }
    if (best < 0) return n;
    char joined[130];
    snprintf(joined, sizeof joined, "%s%s", m->text[id[at]], m->text[id[at + 1]]);
    id[at] = (uint32_t)find(m, joined);
    memmove(id + at + 1, id + at + 2, (--n - at - 1) * sizeof *id);
  }
}

int main(int argc, char **argv)
{
  struct dice d = { argc > 1 ? strtoull(argv[1], NULL, 10) : test_seed(false), 0 };
  const int models = argc > 2 ? atoi(argv[2]) : 24;
  struct model m;
  printf("# seed %llu, %d models: t_token_merges.t SEED MODELS\n", (unsigned long long)d.seed, models);
  for (int k = 0; k < models; k++) {
    struct tc_encoder *e;
    struct tc_err err = { 0 };
    struct tc_ids ids = { 0 };
    int wrong = 0, merged = 0;
    draw_model(&m, &d, k % 4 == 1 ? 4 : MERGES);        /* few: not all letters are joined */
    struct tc_tokenizer *t = make_tokenizer(&m, k % 2);
    TC_ASSERT(tc_encoder_new(&e, t, &err) == TC_OK);
    for (int i = 0; i < 300; i++) {
      char text[MOST];
      uint32_t want[MOST];
      const size_t n = 1 + roll(&d, i % 10 == 0 ? MOST : i % 3 == 0 ? 100 : 12);
      for (size_t c = 0; c < n; c++) text[c] = (char)('a' + roll(&d, LETTERS));
      const struct tc_ids w = { want, naive(&m, text, n, want), 0 };
      ids.n = 0;
      TC_ASSERT(tc_encode(e, text, n, TC_INVALID_REFUSE, &ids, NULL, &err) == TC_OK);
      wrong += !same_ids(&ids, &w);
      merged += ids.n < n;
    }
    ok(wrong == 0 && merged > 100, "model %d, of %s: %d merges, %d of 300 pieces differ, %d have merges", k,
       k % 2 ? "characters" : "bytes", m.n_merges, wrong, merged);
    tc_encoder_free(e);
    tc_tokenizer_free(t);
    tc_ids_free(&ids);
  }
  return done_testing();
}
