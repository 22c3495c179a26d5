/* places.c - where bytes of a text are among its ids.
 *
 * Steps of a tokenizer may change a text, so a token does not say which bytes it came from. But the ids before a place are
 * mostly those of the text that ends there: both begin alike from the last added token before it. From the first id that
 * differs on, tokens of the whole text are counted until they have as many bytes as those of the text that ends at the
 * place. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const struct tc_tokenizer *t, uint32_t id)
{
  size_t n = 0;
  return tc_tokenizer_bytes(t, id, &n) ? n : 0;
}

/* part[n_part]: ids of the text from a mark to the place; whole[n_whole]: of the whole text from this mark on. */
static void count(const struct tc_tokenizer *t, const struct tc_ids *part, const uint32_t *whole, size_t n_whole,
                  struct tc_id_place *p, size_t before)
{
  size_t same = 0, want = 0, got = 0;
  while (same < part->n && same < n_whole && part->id[same] == whole[same]) same++;
  for (size_t i = same; i < part->n; i++) want += bytes_of(t, part->id[i]);
  size_t ended = same;
  for (size_t n; ended < n_whole && got < want && got + (n = bytes_of(t, whole[ended])) <= want; ended++) got += n;
  p->ended = before + ended;
  p->begun = p->ended + (got < want && ended < n_whole);
}

static int find(struct tc_encoder *e, const struct tc_tokenizer *t, const char *text, const struct tc_mark *m, size_t end,
                const struct tc_ids *ids, struct tc_id_place *p, struct tc_ids *part, struct tc_err *err)
{
  if (p->byte == m->byte || m->within) {
    p->ended = m->ids;
    p->begun = m->ids + (p->byte > m->byte);
    return TC_OK;
  }
  part->n = 0;
  TC_TRY(tc_encode_between(e, text, m->byte, p->byte, part, err));
  count(t, part, ids->id + m->ids, end - m->ids, p, m->ids);
  return TC_OK;
}

int tc_encode_places(struct tc_encoder *e, const char *text, size_t n, struct tc_id_place *place, size_t n_places,
                     struct tc_ids *out, struct tc_err *err)
{
  const struct tc_tokenizer *t = tc_encoder_tokenizer(e);
  const size_t first = out->n, valid = tc_utf8_valid(text, n);
  struct tc_marks marks = { 0 };
  struct tc_ids part = { 0 };
  if (valid < n) return tc_fail(err, TC_EUSER, "invalid UTF-8 at byte %zu: 0x%02x", valid, (unsigned char)text[valid]);
  TC_APPEND(marks.at, marks.n, marks.cap, ((struct tc_mark){ 0, first, false }));
  int rc = tc_encode_marked(e, text, n, out, &marks, err);
  for (size_t i = 0, m = 0; i < n_places && rc == TC_OK; i++) {
    while (m + 1 < marks.n && marks.at[m + 1].byte <= place[i].byte) m++;
    const size_t end = m + 1 < marks.n ? marks.at[m + 1].ids : out->n;
    rc = find(e, t, text, &marks.at[m], end, out, &place[i], &part, err);
    place[i].ended -= first, place[i].begun -= first;
  }
  free(marks.at);
  tc_ids_free(&part);
  return rc;
}
