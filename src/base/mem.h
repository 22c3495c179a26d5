/* mem.h - allocation that never returns NULL, arrays that grow, pools whose memory is freed at once. */
#ifndef TC_MEM_H
#define TC_MEM_H

#include <stddef.h>
#include <stdint.h>

/* malloc and friends that never return NULL (out of host memory ends the process with status 2). */
void *tc_malloc(size_t bytes);
void *tc_calloc(size_t n, size_t bytes);
void *tc_realloc(void *p, size_t bytes);
char *tc_strdup(const char *s);
/* Local. Logs that `bytes` bytes could not be allocated, and ends the process with status 2. */
_Noreturn void tc_out_of_memory(size_t bytes);
/* Frees each pointer of the list, which is evaluated before anything is freed: TC_FREE(x->name, x). */
#define TC_FREE(...) tc_free_all((void *[]){ __VA_ARGS__ }, sizeof(void *[]){ __VA_ARGS__ } / sizeof(void *))
void tc_free_all(void *const *p, size_t n);

/* Grows an array, so that it has space for one more element. Under the address sanitizer an array of up to 64
 * elements moves each time, a longer one each time a 64th is added, so that a pointer into it that is used after another
 * element was added is found. */
#ifdef __SANITIZE_ADDRESS__
#define TC_GROWN(n, cap) ((n) + 1 + (n) / 64)
#else
#define TC_GROWN(n, cap) ((cap) ? 2 * (cap) : 16)
#endif
#define TC_GROW(arr, n, cap) do { if ((n) >= (cap)) { \
    (cap) = TC_GROWN(n, cap); \
    (arr) = tc_realloc((arr), (size_t)(cap) * sizeof *(arr)); } } while (0)
/* Adds an element to the end of an array. */
#define TC_APPEND(arr, n, cap, ...) do { TC_GROW(arr, n, cap); (arr)[(n)++] = __VA_ARGS__; } while (0)

/* n indices that are -1: none. Owned by the caller. */
int32_t *tc_no_indices(size_t n);

/* A pool: allocations that are freed together. Memory is zeroed and aligned to 16 bytes. */
struct tc_pool;
struct tc_pool *tc_pool_new(void);
void tc_pool_free(struct tc_pool *p);
void *tc_pool_alloc(struct tc_pool *p, size_t bytes);
char *tc_pool_strdup(struct tc_pool *p, const char *s);

#endif
