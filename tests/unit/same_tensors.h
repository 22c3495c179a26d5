/* same_tensors.h - models in safetensors files, compared. */
#ifndef TC_TEST_SAME_TENSORS_H
#define TC_TEST_SAME_TENSORS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/formats/safetensors.h"

/* Tensor i; owned by the caller. */
static inline void *bytes_of(const struct tc_st_files *s, int i)
{
  const struct tc_st_tensor *t = tc_st_files_at(s, i);
  void *buf = tc_malloc((size_t)t->bytes + 1);
  TC_ASSERT(tc_st_files_read(s, i, 0, t->bytes, buf, NULL) == 0);
  return buf;
}

/* The tensors of two models are the same: names, types, shapes, bytes. */
static inline bool same_tensors(const char *a, const char *b)
{
  struct tc_st_files *x = NULL, *y = NULL;
  struct tc_err err = { .text = "" };
  bool same = tc_st_files_open(&x, a, &err) == 0 && tc_st_files_open(&y, b, &err) == 0;
  if (!same) printf("# %s\n", err.text);
  same = same && tc_st_files_n(x) == tc_st_files_n(y);
  for (int i = 0; same && i < tc_st_files_n(x); i++) {
    const struct tc_st_tensor *t = tc_st_files_at(x, i);
    const int k = tc_st_files_find(y, t->name);
    const struct tc_st_tensor *u = k < 0 ? NULL : tc_st_files_at(y, k);
    same = u && u->dtype == t->dtype && u->rank == t->rank && !memcmp(u->dim, t->dim, sizeof t->dim);
    void *p = same ? bytes_of(x, i) : NULL, *q = same ? bytes_of(y, k) : NULL;
    same = same && memcmp(p, q, (size_t)t->bytes) == 0;
    if (!same) printf("# %s differs\n", t->name);
    free(p);
    free(q);
  }
  tc_st_files_close(x);
  tc_st_files_close(y);
  return same;
}

#endif
