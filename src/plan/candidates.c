/* candidates.c - the layouts of a search that may fit, in the order of their estimates; all others are counted by family
 * (the layouts with one value of one key), with the reason of the first that is impossible. */
#include "src/plan/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tc_plan_key_name[TC_KEYS] = {
#define NAME(id, section, key, member, rare) #section "." #key,
  TC_PLAN_KEYS(NAME, NAME, NAME)
};

#define RARE(id, section, key, member, rare) rare,
const bool tc_plan_key_rare[TC_KEYS] = { TC_PLAN_KEYS(RARE, RARE, RARE) };

const char *tc_plan_key_text(char *text, size_t size, int key, int64_t value)
{
  const char *word = NULL;
  switch (key) {
#define NUMBER(id, section, key, member, rare)
#define WORD(id, section, key, member, rare) case TC_KEY_##id: word = tc_word_##section##_##key((int)value); break;
#define YESNO(id, section, key, member, rare) case TC_KEY_##id: word = value ? "yes" : "no"; break;
  TC_PLAN_KEYS(NUMBER, WORD, YESNO)
  }
  if (!word && value == TC_AUTO) word = "auto";
  if (word) snprintf(text, size, "%s", word);
  else snprintf(text, size, "%lld", (long long)value);
  return text;
}

void tc_plan_key_flag(char *text, size_t size, int key, int64_t value)
{
  char word[48];
  tc_text_add(text, size, "%s--%s=%s", *text ? " " : "", tc_plan_key_name[key], tc_plan_key_text(word, sizeof word, key, value));
}

int64_t tc_plan_key_value(const struct tc_config *c, int key)
{
#define OF(id, section, key, member, rare) c->section##_##key,
  const int64_t of[TC_KEYS] = { TC_PLAN_KEYS(OF, OF, OF) };
  return of[key];
}

static int64_t value_of(const struct tc_cand *x, int key)
{
#define MEMBER(id, section, key, member, rare) x->member,
  const int64_t of[TC_KEYS] = { TC_PLAN_KEYS(MEMBER, MEMBER, MEMBER) };
  return of[key];
}

/* ---- families -------------------------------------------------------------------- */

static struct tc_plan_family *family(struct tc_plan_found *f, int key, const char *name)
{
  for (int i = 0; i < f->n_families; i++)
    if (f->family[i].key == key && !strcmp(f->family[i].name, name)) return &f->family[i];
  TC_GROW(f->family, f->n_families, f->cap_families);
  struct tc_plan_family *x = &f->family[f->n_families++];
  *x = (struct tc_plan_family){ .key = key, .least_bytes = INFINITY };
  snprintf(x->name, sizeof x->name, "%s", name);
  return x;
}

/* Without a pipeline there is no schedule. */
static const char *value_text(char *buf, size_t size, const struct tc_cand *x, int key)
{
  if (key == TC_KEY_SCHEDULE && x->pp == 1) snprintf(buf, size, "none");
  else tc_plan_key_text(buf, size, key, value_of(x, key));
  return buf;
}

/* Counts a layout in the family of its value of a key. why NULL: it is possible, with this much memory. */
static void count_in(struct tc_plan_found *out, const struct tc_cand *x, int key, const char *why, bool fits)
{
  char name[48];
  value_text(name, sizeof name, x, key);
  struct tc_plan_family *f = family(out, key, name);
  f->n++;
  f->fit += fits;
  if (why && !*f->why) snprintf(f->why, sizeof f->why, "%.190s", why);
  if (!why) f->least_bytes = TC_MIN(f->least_bytes, x->bytes);
}

static void count_layout(struct search *s, const struct tc_cand *x, const char *why, bool fits)
{
  for (int key = 0; s->out && key < TC_KEYS; key++)
    if (key != TC_KEY_CP || tc_splits_context(s)) count_in(s->out, x, key, why, fits);
}

void tc_search_refuse(struct search *s, const struct tc_cand *x, int key, const char *why)
{
  if (s->out) count_in(s->out, x, key, why, false);
}

/* ---- candidates ------------------------------------------------------------------ */

void tc_search_add(struct search *s, struct tc_cand *x)
{
  struct tc_err err = { 0 };
  double memory = s->k->device.memory_bytes;
  tc_guess_order(&s->g, x);
  if (s->out) s->out->considered++;
  if (tc_guess(&s->g, x, &err) < 0) {
    if (err.status == TC_EUSER && !s->wrong.status) s->wrong = err;
    count_layout(s, x, err.text, false);
    return;
  }
  if (s->k->device.host_bytes > 0 && x->host_bytes * s->k->devices > s->k->device.host_bytes) {
    count_layout(s, x, "needs more host memory than a node has", false);
    struct tc_plan_family *f = s->out ? family(s->out, TC_KEY_OFFLOAD, tc_word_parallel_offload(x->offload)) : NULL;
    double host = x->host_bytes * s->k->devices;
    if (f) f->least_host_bytes = f->least_host_bytes > 0 ? TC_MIN(f->least_host_bytes, host) : host;
    return;
  }
  bool fits = x->bytes <= memory;
  count_layout(s, x, NULL, fits);
  s->fitting += fits;
  if (s->out) {
    s->out->possible++;
    s->out->least_bytes = TC_MIN(s->out->least_bytes, x->bytes);
  }
  if (!s->out || x->bytes > 1.04 * memory) return; /* estimates may be too high by 4 % */
  TC_APPEND(s->cand, s->n, s->cap, *x);
}

static int by_time(const void *a, const void *b)
{
  const struct tc_cand *x = a, *y = b;
  if (x->s != y->s) return x->s < y->s ? -1 : 1;
  return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : 0;
}

/* If the host's memory is not known, what needs none of it comes first. */
static int by_host_and_time(const void *a, const void *b)
{
  const bool x = ((const struct tc_cand *)a)->host_bytes > 0, y = ((const struct tc_cand *)b)->host_bytes > 0;
  return x != y ? x - y : by_time(a, b);
}

void tc_search_sort(struct search *s)
{
  if (s->n)
    qsort(s->cand, (size_t)s->n, sizeof *s->cand, s->k->device.host_bytes > 0 ? by_time : by_host_and_time);
}
