/* encode_chat.c - a conversation to ids and their weights.
 *
 * The ids are those of the whole text, as Hugging Face's apply_chat_template makes them. A token counts if any of its bytes is
 * of an answer, or of the token that ends it; so it does there with {% generation %} around both. */
#include "src/shards/impl.h"

#include <stdlib.h>
#include <string.h>

/* A turn's content, the end of it, and the end of what follows it. */
enum { PLACES = 3 };

/* place[PLACES * n] is of the turns turn[n], which are those that are asked for. All owned. */
struct work { struct tc_chat_line line; struct tc_chat_text text; struct tc_id_place *place; size_t *turn, n; };

static bool is_control(const struct tc_chat *c, uint32_t id)
{
  for (size_t i = 0; i < c->control.n; i++)
    if (c->control.id[i] == id) return true;
  return false;
}

/* The end of the last answer, by the numbers of turns. */
static size_t end_of_answers(const struct tc_chat_line *l)
{
  size_t end = l->n;
  while (end > 0 && l->turn[end - 1].role != TC_CHAT_ASSISTANT) end--;
  return end;
}

/* Whether turn i is one to be trained on. */
static bool counts(const struct tc_chat_line *l, size_t i, enum tc_train_on on, size_t end)
{
  return l->turn[i].role == TC_CHAT_ASSISTANT && l->turn[i].counts && (on != TC_TRAIN_LAST || i + 1 == end);
}

/* Whether s[n] has the text of a special token of the template. */
static bool has_control(const struct tc_shards_job *job, const char *s, size_t n)
{
  for (size_t i = 0; i < job->chat->control.n; i++) {
    size_t bytes;
    const char *token = tc_tokenizer_bytes(job->t, job->chat->control.id[i], &bytes);
    if (token && memmem(s, n, token, bytes)) return true;
  }
  return false;
}

/* Asks for the places of turns whose tokens are looked at. To find a place takes as long as what is before it up to an added
 * token, and thousands of answers of tools may have none between them. */
static void ask(struct work *w, const struct tc_shards_job *job, size_t end)
{
  w->place = tc_calloc(PLACES * w->line.n + 1, sizeof *w->place);
  w->turn = tc_calloc(w->line.n + 1, sizeof *w->turn);
  for (size_t i = 0; i < w->line.n; i++) {
    const struct tc_chat_span *s = &w->text.span[i];
    struct tc_id_place *p = &w->place[PLACES * w->n];
    if (!counts(&w->line, i, job->o->train_on, end) && !has_control(job, w->text.s + s->content, s->tail - s->content)) continue;
    p[0].byte = s->content, p[1].byte = s->tail, p[2].byte = s->end;
    w->turn[w->n++] = i;
  }
}

static int encode_turns(struct tc_text_unit *u, const struct tc_shards_job *job, struct tc_encoder *e, struct work *w)
{
  const size_t first = u->ids.n, end = end_of_answers(&w->line);
  TC_TRY(tc_chat_render(job->chat, w->line.turn, w->line.n, &w->text, &u->err));
  ask(w, job, end);
  TC_TRY(tc_encode_places(e, w->text.s, w->text.n, w->place, PLACES * w->n, &u->ids, &u->err));
  uint8_t *weight = tc_text_unit_weights(u, first);
  const uint32_t *id = u->ids.id + first;
  for (size_t i = 0; i < w->n; i++) {
    const struct tc_id_place *p = &w->place[PLACES * i];
    for (size_t k = p[0].ended; k < p[1].begun; k++) u->special += is_control(job->chat, id[k]);
    if (!counts(&w->line, w->turn[i], job->o->train_on, end)) continue;
    for (size_t k = p[0].ended; k < p[2].begun; k++) weight[k] |= TC_WEIGHT_COUNTS;
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
  else if (rc == TC_OK) rc = encode_turns(u, job, e, &w);
  if (rc == TC_OK) rc = end_sample(u, first, job->o->train_on == TC_TRAIN_ALL, &u->err);
  if (rc < 0) u->ids.n = first, u->special = special;
  tc_chat_line_free(&w.line);
  tc_chat_text_free(&w.text);
  TC_FREE(w.place, w.turn);
  return rc;
}

uint8_t *tc_text_unit_weights(struct tc_text_unit *u, size_t first)
{
  if (u->weight_cap < u->ids.n) u->weight = tc_realloc(u->weight, u->weight_cap = u->ids.cap);
  memset(u->weight + first, 0, u->ids.n - first);
  return u->weight + first;
}
