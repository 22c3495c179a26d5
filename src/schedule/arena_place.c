/* arena_place.c - the lowest free offset for an object, among those that are placed.
 *
 * Objects are kept in the order of their offsets, in a tree whose nodes know when the objects below
 * them in use: what is used at other times is not looked at. The chunks of the loss head make thousands
 * of small objects at the same offsets one after the other, so that is most of them. Micro-batches
 * are kept separately, since a chunk's objects are used again in each. */
#include "src/schedule/impl.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 32 /* below a node */, PARTS = 3 };

/* The live ranges of an object if they are few, else all as one; the others are empty. */
struct parts { struct tc_range in[PARTS]; };
struct spot { int64_t off, end; struct tc_range span; const struct tc_object *l; };
struct node {
  int n;
  bool leaf;
  int64_t off, end;              /* of the first object below, and the highest end of all */
  struct parts when;             /* of all objects below together, part by part */
  struct node *kid[MOST];        /* not of a leaf */
  struct spot spot[];            /* [MOST] of a leaf */
};
struct tc_placed { struct node *root; int64_t looked; };

static struct node *node_new(bool leaf)
{
  struct node *x = tc_calloc(1, sizeof *x + (leaf ? MOST * sizeof *x->spot : 0));
  x->leaf = leaf;
  x->off = INT64_MAX;
  for (int i = 0; i < PARTS; i++) x->when.in[i] = (struct tc_range){ INT32_MAX, -1 };
  return x;
}

static void node_free(struct node *x)
{
  for (int k = 0; !x->leaf && k < x->n; k++) node_free(x->kid[k]);
  free(x);
}

struct tc_placed *tc_placed_new(void)
{
  struct tc_placed *p = tc_calloc(1, sizeof *p);
  p->root = node_new(true);
  return p;
}

void tc_placed_free(struct tc_placed *p)
{
  if (!p) return;
  node_free(p->root);
  free(p);
}

static bool lives_with(const struct tc_range *a, const struct tc_range *b)
{
  return a->first <= b->last && b->first <= a->last;
}

static struct tc_range span_of(const struct tc_object *l)
{
  if (l->n == 0) return (struct tc_range){ INT32_MAX, -1 };
  return (struct tc_range){ l->in[0].first, l->in[(l->n - 1) * l->step].last };
}

static struct parts parts_of(const struct tc_object *l)
{
  struct parts p;
  for (int i = 0; i < PARTS; i++)
    p.in[i] = l->n <= PARTS && i < l->n ? l->in[i * l->step] : (struct tc_range){ INT32_MAX, -1 };
  if (l->n > PARTS) p.in[0] = span_of(l);
  return p;
}

static bool parts_meet(const struct parts *a, const struct parts *b)
{
  for (int i = 0; i < PARTS; i++)
    for (int k = 0; k < PARTS; k++)
      if (lives_with(&a->in[i], &b->in[k])) return true;
  return false;
}

/* Both lists of ranges ascend. */
static bool meet(const struct tc_object *a, const struct tc_object *b)
{
  for (int32_t i = 0, k = 0; i < a->n && k < b->n;) {
    const struct tc_range *x = &a->in[i * a->step], *y = &b->in[k * b->step];
    if (lives_with(x, y)) return true;
    if (x->last < y->last) i++;
    else k++;
  }
  return false;
}

struct query {
  const struct tc_object *l;
  struct tc_range span;
  struct parts when;
  int64_t at;                    /* the lowest offset so far; rises */
  int64_t looked;                /* objects and nodes that were looked at */
};

static void lowest_below(const struct node *x, struct query *q)
{
  for (int k = 0; x->leaf && k < x->n && x->spot[k].off < q->at + q->l->bytes; k++) {
    const struct spot *s = &x->spot[k];
    q->looked++;
    if (s->end > q->at && lives_with(&s->span, &q->span) && meet(s->l, q->l)) q->at = s->end;
  }
  for (int k = 0; !x->leaf && k < x->n && x->kid[k]->off < q->at + q->l->bytes; k++) {
    const struct node *kid = x->kid[k];
    q->looked++;
    if (kid->end > q->at && parts_meet(&kid->when, &q->when)) lowest_below(kid, q);
  }
}

int64_t tc_placed_lowest(struct tc_placed *p, const struct tc_object *l)
{
  struct query q = { l, span_of(l), parts_of(l), 0, 0 };
  lowest_below(p->root, &q);
  p->looked += q.looked;
  return q.at;
}

int64_t tc_placed_looked(const struct tc_placed *p) { return p->looked; }

/* What a node knows of the objects below it, with more of them. */
static void node_count(struct node *x, int64_t off, int64_t end, const struct parts *when)
{
  x->off = TC_MIN(x->off, off);
  x->end = TC_MAX(x->end, end);
  for (int i = 0; i < PARTS; i++) {
    x->when.in[i].first = TC_MIN(x->when.in[i].first, when->in[i].first);
    x->when.in[i].last = TC_MAX(x->when.in[i].last, when->in[i].last);
  }
}

static void node_recount(struct node *x)
{
  x->off = INT64_MAX;
  x->end = 0;
  for (int i = 0; i < PARTS; i++) x->when.in[i] = (struct tc_range){ INT32_MAX, -1 };
  for (int k = 0; k < x->n; k++) {
    const struct parts when = x->leaf ? parts_of(x->spot[k].l) : x->kid[k]->when;
    node_count(x, x->leaf ? x->spot[k].off : x->kid[k]->off,
               x->leaf ? x->spot[k].end : x->kid[k]->end, &when);
  }
}

/* Takes what x, which is full, has from place k on. */
static struct node *node_split(struct node *x, int k)
{
  struct node *y = node_new(x->leaf);
  y->n = x->n - k;
  x->n = k;
  if (x->leaf) memcpy(y->spot, x->spot + k, (size_t)y->n * sizeof *y->spot);
  else memcpy(y->kid, x->kid + k, (size_t)y->n * sizeof *y->kid);
  node_recount(x);
  node_recount(y);
  return y;
}

/* Behind all that begin where s does, or before. Returns the node that x was split into; NULL. */
static struct node *node_add(struct node *x, const struct spot *s)
{
  struct node *more = NULL, *into = x;
  int k = x->n;
  if (x->leaf) {
    while (k > 0 && x->spot[k - 1].off > s->off) k--;
  } else {
    while (k > 1 && x->kid[k - 1]->off > s->off) k--;
    more = node_add(x->kid[k - 1], s);
  }
  struct node *half = NULL;
  if ((x->leaf || more) && x->n == MOST) {       /* what comes last begins a node of its own */
    const int at = k == MOST ? MOST : MOST / 2;
    half = node_split(x, at);
    if (k > at || at == MOST) {
      into = half;
      k -= at;
    }
  }
  if (x->leaf) {
    memmove(into->spot + k + 1, into->spot + k, (size_t)(into->n - k) * sizeof *s);
    into->spot[k] = *s;
    into->n++;
  } else if (more) {
    memmove(into->kid + k + 1, into->kid + k, (size_t)(into->n - k) * sizeof more);
    into->kid[k] = more;
    into->n++;
  }
  const struct parts when = parts_of(s->l);
  if (half) {
    node_recount(x);
    node_recount(half);
  } else {
    node_count(x, s->off, s->end, &when);
  }
  return half;
}

void tc_placed_add(struct tc_placed *p, const struct tc_object *l)
{
  const struct spot s = { l->off, l->off + l->bytes, span_of(l), l };
  struct node *half = node_add(p->root, &s);
  if (!half) return;
  struct node *root = node_new(false);
  root->kid[root->n++] = p->root;
  root->kid[root->n++] = half;
  node_recount(root);
  p->root = root;
}
