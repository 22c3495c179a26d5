/* encode_chat.c - a conversation to ids and their weights.
 *
 * The ids are those of the whole text, as Hugging Face's apply_chat_template makes them. A token counts if any of its bytes is
 * of an answer, or of the token that ends it; so it does there with {% generation %} around both. */
#include "src/shards/impl.h"

#include <stdlib.h>
#include <string.h>

/* Each turn's content, the end of it, and the end of what follows it. */
enum { PLACES = 3 };

struct work { struct tc_chat_line line; struct tc_chat_text text; struct tc_id_place *place; };

static bool is_control(const struct tc_chat *c, uint32_t id)
{
  for (size_t i = 0; i < c->control.n; i++)
    if (c->control.id[i] == id) return true;
  return false;
}

/* Whether turn i is one to be trained on. */
static bool counts(const struct tc_chat_line *l, size_t i, enum tc_train_on on)
{
  size_t last = l->n;
  while (last > 0 && l->turn[last - 1].role != TC_CHAT_ASSISTANT) last--;
  return l->turn[i].role == TC_CHAT_ASSISTANT && l->turn[i].counts && (on != TC_TRAIN_LAST || i + 1 == last);
}

static int encode(struct tc_text_unit *u, const struct tc_shards_job *job, struct tc_encoder *e, struct work *w)
{
  const size_t first = u->ids.n, n = w->line.n;
  TC_TRY(tc_chat_render(job->chat, w->line.turn, n, &w->text, &u->err));
  w->place = tc_calloc(PLACES * n + 1, sizeof *w->place);
  for (size_t i = 0; i < n; i++) {
    const struct tc_chat_span *s = &w->text.span[i];
    w->place[PLACES * i].byte = s->content;
    w->place[PLACES * i + 1].byte = s->tail;
    w->place[PLACES * i + 2].byte = s->end;
  }
  TC_TRY(tc_encode_places(e, w->text.s, w->text.n, w->place, PLACES * n, &u->ids, &u->err));
  uint8_t *weight = tc_text_unit_weights(u, first);
  const uint32_t *id = u->ids.id + first;
  for (size_t i = 0; i < n; i++) {
    const struct tc_id_place *p = &w->place[PLACES * i];
    for (size_t k = p[0].ended; k < p[1].begun; k++) u->special += is_control(job->chat, id[k]);
    for (size_t k = p[0].ended; k < p[2].begun && counts(&w->line, i, job->o->train_on); k++) weight[k] |= TC_WEIGHT_COUNTS;
  }
  return TC_OK;
}

static void put_raw(struct tc_text_unit *u, const struct tc_chat_line *l)
{
  const size_t first = u->ids.n;
  tc_ids_reserve(&u->ids, l->ids.n);
  memcpy(u->ids.id + first, l->ids.id, l->ids.n * sizeof *l->ids.id);
  u->ids.n += l->ids.n;
  memcpy(tc_text_unit_weights(u, first), l->weight, l->ids.n);
}

/* The tokens from `first` on are a sample. */
static int end_sample(struct tc_text_unit *u, size_t first, bool all, struct tc_err *err)
{
  int64_t n = 0;
  for (size_t i = first; i < u->ids.n && all; i++) u->weight[i] |= TC_WEIGHT_COUNTS;
  for (size_t i = first + 1; i < u->ids.n; i++) n += u->weight[i] & TC_WEIGHT_COUNTS;      /* nothing predicts the first one */
  if (n == 0) return tc_fail(err, TC_EUSER, "none of its %zu tokens is to be trained on", u->ids.n - first);
  u->weight[first] |= TC_WEIGHT_BEGINS;
  u->counted += n;
  u->documents++;
  return TC_OK;
}

int tc_text_unit_chat(struct tc_text_unit *u, const struct tc_shards_job *job, struct tc_encoder *e, const struct json_t *line)
{
  struct work w = { 0 };
  const size_t first = u->ids.n;
  const int64_t special = u->special;
  int rc = tc_chat_line_read(&w.line, line, tc_tokenizer_vocab(job->t), &u->err);
  if (rc == TC_OK && w.line.raw) put_raw(u, &w.line);
  else if (rc == TC_OK) rc = encode(u, job, e, &w);
  if (rc == TC_OK) rc = end_sample(u, first, job->o->train_on == TC_TRAIN_ALL, &u->err);
  if (rc < 0) u->ids.n = first, u->special = special;
  tc_chat_line_free(&w.line);
  tc_chat_text_free(&w.text);
  free(w.place);
  return rc;
}

uint8_t *tc_text_unit_weights(struct tc_text_unit *u, size_t first)
{
  if (u->weight_cap < u->ids.n) u->weight = tc_realloc(u->weight, u->weight_cap = u->ids.cap);
  memset(u->weight + first, 0, u->ids.n - first);
  return u->weight + first;
}
