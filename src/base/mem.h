/* mem.h - allocation that never returns NULL, arrays that grow, pools whose memory is freed at once. */
#ifndef TC_MEM_H
#define TC_MEM_H

#include <stddef.h>

/* malloc and friends that never return NULL (out of host memory ends the process with status 2). */
void *tc_malloc(size_t bytes);
void *tc_calloc(size_t n, size_t bytes);
void *tc_realloc(void *p, size_t bytes);
char *tc_strdup(const char *s);
/* Local. Logs that `bytes` bytes could not be allocated, and ends the process with status 2. */
_Noreturn void tc_out_of_memory(size_t bytes);

/* Grows an array, so that it has space for one more element. Under the address sanitizer an array of up to 4096
 * elements moves each time, so that a pointer into it that is used after another element was added is found. */
#ifdef __SANITIZE_ADDRESS__
#define TC_GROWN(n, cap) ((n) < 4096 ? (n) + 1 : 2 * (n))
#else
#define TC_GROWN(n, cap) ((cap) ? 2 * (cap) : 16)
#endif
#define TC_GROW(arr, n, cap) do { if ((n) >= (cap)) { \
    (cap) = TC_GROWN(n, cap); \
    (arr) = tc_realloc((arr), (size_t)(cap) * sizeof *(arr)); } } while (0)

/* A pool: allocations that are freed together. Memory is zeroed and aligned to 16 bytes. */
struct tc_pool;
struct tc_pool *tc_pool_new(void);
void tc_pool_free(struct tc_pool *p);
void *tc_pool_alloc(struct tc_pool *p, size_t bytes);
char *tc_pool_strdup(struct tc_pool *p, const char *s);

#endif
