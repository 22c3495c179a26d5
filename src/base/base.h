/* base.h - what every room stands on: status codes and error sentences, logging, memory
 * that is freed at once, element types, the Philox random numbers, clocks.
 *
 * A function that can fail returns 0 or a negative enum tc_status and writes one sentence
 * for the user into *err: what, where, what to do. The status is minus the exit status of
 * the command (see "Exit status" in tercio(1)). */
#ifndef TC_BASE_H
#define TC_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum tc_status {
  TC_OK = 0,
  TC_DIFFERS = -1,       /* `diff` found a difference */
  TC_EUSER = -2,         /* usage, configuration or I/O */
  TC_EINCOMPLETE = -3,   /* checkpoint incomplete */
  TC_ECHECKSUM = -4,     /* checksum wrong */
  TC_ENOCKPT = -5,       /* no usable checkpoint */
  TC_ELAYOUT = -6,       /* layout impossible */
  TC_EDIVERGED = -7,     /* training diverged: not a number */
  TC_EPEER = -8,         /* a peer did not answer */
  TC_STOPPED = -85,      /* stopped on request after saving: requeue */
  TC_ENDED = -86,        /* stopped on request after saving: neither requeue nor start again */
  TC_NOPROGRESS = -93    /* no progress over the last restarts: don't requeue */
};

/* The least compute capability of GPUs that Tercio runs on, times 10: those before multiply no
 * bf16. */
enum { TC_CAPABILITY = 80 };

struct tc_err {
  int status;            /* the status last failed with */
  char text[1000];       /* one sentence, no newline */
};

/* Local. Writes the sentence (err may be NULL) and returns `status`. */
int tc_fail(struct tc_err *err, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. Prints the sentence on stderr and returns the exit status (-err->status). */
int tc_say_failure(const struct tc_err *err);

/* Pass a failure on. */
#define TC_TRY(expr) do { int tc_try_ = (expr); if (tc_try_ < 0) return tc_try_; } while (0)

/* A bug, not an environment error: prints rank, file, line and aborts. */
#define TC_ASSERT(cond) ((cond) ? (void)0 : tc_assert_fail(#cond, __FILE__, __LINE__))
_Noreturn void tc_assert_fail(const char *cond, const char *file, int line);

/* The rank that log lines and assertions of this thread are prefixed with (-1: none). */
void tc_log_set_rank(int rank);
int tc_log_rank(void);
/* Local. One line on stderr, "tercio[rank]: ...". */
void tc_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void tc_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* malloc and friends that never return NULL (out of host memory ends the process with status 2). */
void *tc_malloc(size_t bytes);
void *tc_calloc(size_t n, size_t bytes);
void *tc_realloc(void *p, size_t bytes);
char *tc_strdup(const char *s);
/* The variable of the environment; "" if it is not set. */
const char *tc_env(const char *name);
/* An owned, formatted string. */
char *tc_sprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Local. Appends to `text`, which has room for size bytes; what is beyond is cut off. */
void tc_text_add(char *text, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. All of a file of text, with a 0 behind it: *out is owned by the caller. TC_EUSER: it can't be
 * read, or has more than `most` bytes (as /dev/zero); `kind` is its name in sentences, "run file". */
int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most,
                 struct tc_err *err);

/* Make room for one more element in a growing array. */
#define TC_GROW(arr, n, cap) do { if ((n) >= (cap)) { \
    (cap) = (cap) ? 2 * (cap) : 16; \
    (arr) = tc_realloc((arr), (size_t)(cap) * sizeof *(arr)); } } while (0)

#define TC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TC_MAX(a, b) ((a) > (b) ? (a) : (b))
static inline int64_t tc_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tc_round_up(int64_t a, int64_t b) { return tc_ceil_div(a, b) * b; }

/* A pool: allocations that are freed together. Zeroed memory, aligned to 16. */
struct tc_pool;
struct tc_pool *tc_pool_new(void);
void tc_pool_free(struct tc_pool *p);
void *tc_pool_alloc(struct tc_pool *p, size_t bytes);
char *tc_pool_strdup(struct tc_pool *p, const char *s);

enum { TC_DIMS = 6 };                          /* most dimensions of a tensor */

/* Element types. */
enum tc_dtype { TC_F32, TC_BF16, TC_F64, TC_I32, TC_U8, TC_DTYPES };
size_t tc_dtype_bytes(int dtype);
const char *tc_dtype_name(int dtype);             /* "f32", "bf16", "f64", "i32", "u8" */
int tc_dtype_parse(const char *name);             /* -1 if none */

static inline float tc_bf16_to_f32(uint16_t h)
{
  union { uint32_t u; float f; } x = { .u = (uint32_t)h << 16 };
  return x.f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t tc_f32_to_bf16(float f)
{
  union { float f; uint32_t u; } x = { .f = f };
  if ((x.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x.u >> 16) | 0x40u);
  return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

/* Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * out[4] from a 64-bit key and a 128-bit counter {c0, c1}: no state, so an element's number
 * depends on its counter alone. */
void tc_philox(uint32_t out[4], uint64_t key, uint64_t c0, uint64_t c1);
/* Uniform in [0, 1) with 24 bits; standard normal (Box-Muller on one Philox block).
 * Element i of stream (a, b) under `seed`. */
float tc_uniform(uint64_t seed, uint32_t a, uint32_t b, uint64_t i);
float tc_normal(uint64_t seed, uint32_t a, uint32_t b, uint64_t i);

int64_t tc_now_ns(void);                          /* monotonic */
void tc_sleep_ns(int64_t ns);

/* ---- threads (thread.c) ---- */
/* Local. Starts a thread that runs fn(arg), with all signals blocked except those of a crash, with
 * the caller's log rank and a signal stack. TC_EUSER if it can't be started; err may be NULL. */
int tc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, struct tc_err *err);
/* Local. A stack for the calling thread's signal handlers, so that the overflow of its stack
 * can be reported; NULL without memory, which _free takes. Freed by the same thread. */
void *tc_signal_stack_new(void);
void tc_signal_stack_free(void *stack);

/* Local. The index of the word in list[n] nearest to `word` by edit distance (swapping two
 * neighbours counts as one), for "did you mean"; -1 if none is near. */
int tc_nearest(const char *word, const char *const *list, int n);

/* Local. For qsort: double, int64_t and char * in rising order. */
int tc_order_double(const void *a, const void *b);
int tc_order_i64(const void *a, const void *b);
int tc_order_text(const void *a, const void *b);
/* Local. The middle of x[n], which is sorted; n > 0. Of two in the middle their mean; of integers the
 * lower. */
double tc_median(double *x, int n);
int64_t tc_median_i64(int64_t *x, int n);

/* "1.5 GB", "312 KB": decimal units, into buf. Returns buf. */
char *tc_human_bytes(char *buf, size_t size, double bytes);

#endif
