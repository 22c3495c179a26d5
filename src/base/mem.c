/* mem.c - allocation that never returns NULL, and pools.
 *
 * A process that is out of host memory can't continue: it logs that and ends. */
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/arith.h"
#include "src/base/err.h"

_Noreturn void tc_out_of_memory(size_t bytes)
{
  tc_log("out of host memory: %zu more bytes could not be allocated (ulimit -v, or the job's memory)",
         bytes);
  _exit(-TC_EUSER);
}

void *tc_malloc(size_t bytes)
{
  void *p = malloc(bytes ? bytes : 1);
  if (!p) tc_out_of_memory(bytes);
  return p;
}

void *tc_calloc(size_t n, size_t bytes)
{
  void *p = n && bytes ? calloc(n, bytes) : calloc(1, 1);
  if (!p) tc_out_of_memory(bytes && n > SIZE_MAX / bytes ? SIZE_MAX : n * bytes);
  return p;
}

void *tc_realloc(void *p, size_t bytes)
{
  void *q = realloc(p, bytes ? bytes : 1);
  if (!q) tc_out_of_memory(bytes);
  return q;
}

int32_t *tc_no_indices(size_t n)
{
  return memset(tc_malloc(n * sizeof(int32_t)), -1, n * sizeof(int32_t));
}

char *tc_strdup(const char *s)
{
  size_t bytes = strlen(s) + 1;
  return memcpy(tc_malloc(bytes), s, bytes);
}

void tc_free_all(void *const *p, size_t n)
{
  for (size_t i = 0; i < n; i++) free(p[i]);
}

/* A pool is a list of blocks; small requests are cut from the newest, large ones get a block
 * of their own after it in the list. */
enum { POOL_ALIGN = 16, POOL_BLOCK_BYTES = 64 * 1024 };

struct pool_block {
  struct pool_block *next;
  size_t used_bytes, size_bytes;
  _Alignas(POOL_ALIGN) unsigned char data[];
};

struct tc_pool { struct pool_block *head; };

struct tc_pool *tc_pool_new(void)
{
  return tc_calloc(1, sizeof(struct tc_pool));
}

void tc_pool_free(struct tc_pool *p)
{
  if (!p) return;
  for (struct pool_block *b = p->head, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(p);
}

static struct pool_block *block_new(size_t size_bytes)
{
  struct pool_block *b = tc_calloc(1, sizeof *b + size_bytes);
  b->size_bytes = size_bytes;
  return b;
}

void *tc_pool_alloc(struct tc_pool *p, size_t bytes)
{
  if (bytes > SIZE_MAX / 2) tc_out_of_memory(bytes);
  bytes = (TC_MAX(bytes, 1) + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
  struct pool_block *b = p->head;
  if (b && b->size_bytes - b->used_bytes >= bytes) {
    void *at = b->data + b->used_bytes;
    b->used_bytes += bytes;
    return at;
  }
  struct pool_block *fresh = block_new(TC_MAX(bytes, (size_t)POOL_BLOCK_BYTES));
  fresh->used_bytes = bytes;
  if (b && bytes > POOL_BLOCK_BYTES / 4) {   /* the rest of b can still be used */
    fresh->next = b->next;
    b->next = fresh;
  } else {
    fresh->next = b;
    p->head = fresh;
  }
  return fresh->data;
}

char *tc_pool_strdup(struct tc_pool *p, const char *s)
{
  size_t bytes = strlen(s) + 1;
  return memcpy(tc_pool_alloc(p, bytes), s, bytes);
}
