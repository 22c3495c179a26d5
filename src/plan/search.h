/* search.h - what the files of the search share: the candidates, and what was refused (candidates.c); the keys, their
 * values and the rules that refuse some (space.c); search.c puts both together. */
#ifndef TC_PLAN_SEARCH_H
#define TC_PLAN_SEARCH_H

#include "src/plan/guess.h"

struct search {
  struct tc_guess g;
  struct tc_plan_found *out;     /* NULL: only find out whether anything fits */
  const struct tc_config *c;
  const struct tc_cluster *k;
  int nodes;
  unsigned fixed;
  struct tc_stage *stages;       /* [c->n_stages + 1]; owned: each must take the layout */
  struct tc_cand *cand; int n, cap;              /* candidates that may fit */
  int64_t fitting;
  struct tc_err wrong;           /* the first layout that is refused for a reason in the configuration; status 0: none */
};

/* Tokens that a part of a sequence has at least, where mesh.cp is searched. */
enum { TC_CONTEXT_PART = 4096 };

static inline bool tc_is_fixed(const struct search *s, int key) { return s->fixed >> key & 1; }

/* Whether mesh.cp has more than one value, or one that is given. */
static inline bool tc_splits_context(const struct search *s)
{
  return tc_is_fixed(s, TC_KEY_CP) || s->g.model.context >= 2 * TC_CONTEXT_PART;
}

/* candidates.c: estimates a layout, counts it in the families of its values, and keeps it if it may fit. */
void tc_search_add(struct search *s, struct tc_cand *x);
/* Counts x's value of a key as impossible. */
void tc_search_refuse(struct search *s, const struct tc_cand *x, int key, const char *why);
/* Sorts the candidates: what needs host memory comes last where its amount is not known; then by time, by memory. */
void tc_search_sort(struct search *s);

/* space.c: adds every combination of values on s->nodes nodes. */
void tc_search_all(struct search *s);
/* TC_ELAYOUT: the fixed options contradict each other, or the device. */
int tc_search_contradicts(const struct search *s, struct tc_err *err);

#endif
