/* base.c - status codes and sentences, logging, memory, element types, Philox, clocks.
 *
 * The one piece of state here is the rank that a thread's log lines are prefixed with; it is
 * thread-local, since ranks may be threads of one process. A log line goes out in one write,
 * so that lines of different ranks never mix. */
#include "src/base/base.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- errors and logging ------------------------------------------------------------ */

static _Thread_local int log_rank = -1;

int tc_fail(struct tc_err *err, int status, const char *fmt, ...)
{
  TC_ASSERT(status < 0);
  if (!err) return status;
  /* By way of a buffer: the arguments may point into err->text. */
  char text[sizeof err->text];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  for (char *c = text; *c; c++)   /* names come from files: one line, and nothing for a terminal */
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
  err->status = status;
  memcpy(err->text, text, sizeof text);
  return status;
}

int tc_say_failure(const struct tc_err *err)
{
  TC_ASSERT(err->status < 0);
  tc_log("%s", err->text);
  return -err->status;
}

void tc_log_set_rank(int rank)
{
  log_rank = rank;
}

int tc_log_rank(void)
{
  return log_rank;
}

__attribute__((format(printf, 2, 0)))
static void log_line(const char *kind, const char *fmt, va_list ap)
{
  char line[2048];
  int n = log_rank >= 0 ? snprintf(line, sizeof line, "tercio[%d]: %s", log_rank, kind)
                        : snprintf(line, sizeof line, "tercio: %s", kind);
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
  if (m > 0) n = TC_MIN(n + m, (int)sizeof line - 2);
  line[n++] = '\n';
  /* Nowhere to report a failure to: the next line may fare better. */
  ssize_t unused = write(STDERR_FILENO, line, (size_t)n);
  (void)unused;
}

void tc_log(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line("", fmt, ap);
  va_end(ap);
}

void tc_warn(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line("warning: ", fmt, ap);
  va_end(ap);
}

_Noreturn void tc_assert_fail(const char *cond, const char *file, int line)
{
  fflush(stdout);
  tc_log("bug: %s:%d: assertion failed: %s", file, line, cond);
  abort();
}

/* ---- memory -------------------------------------------------------------------------- */

_Noreturn static void out_of_memory(size_t bytes)
{
  tc_log("out of host memory: %zu bytes more could not be had (ulimit -v, or the job's memory)",
         bytes);
  _exit(-TC_EUSER);
}

void *tc_malloc(size_t bytes)
{
  void *p = malloc(bytes ? bytes : 1);
  if (!p) out_of_memory(bytes);
  return p;
}

void *tc_calloc(size_t n, size_t bytes)
{
  void *p = n && bytes ? calloc(n, bytes) : calloc(1, 1);
  if (!p) out_of_memory(bytes && n > SIZE_MAX / bytes ? SIZE_MAX : n * bytes);
  return p;
}

void *tc_realloc(void *p, size_t bytes)
{
  void *q = realloc(p, bytes ? bytes : 1);
  if (!q) out_of_memory(bytes);
  return q;
}

char *tc_strdup(const char *s)
{
  size_t bytes = strlen(s) + 1;
  return memcpy(tc_malloc(bytes), s, bytes);
}

const char *tc_env(const char *name)
{
  const char *v = getenv(name);
  return v ? v : "";
}

char *tc_sprintf(const char *fmt, ...)
{
  char *s;
  va_list ap;
  va_start(ap, fmt);
  int n = vasprintf(&s, fmt, ap);
  va_end(ap);
  if (n < 0) out_of_memory(0);
  return s;
}

void tc_text_add(char *text, size_t size, const char *fmt, ...)
{
  size_t at = strlen(text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + at, size - at, fmt, ap);
  va_end(ap);
}

int tc_read_text(char **out, size_t *bytes, const char *path, const char *kind, size_t most,
                 struct tc_err *err)
{
  *out = NULL;
  FILE *f = fopen(path, "re");
  if (!f)
    return tc_fail(err, TC_EUSER, "cannot open %s %.500s: %s", kind, path, strerror(errno));
  char *text = NULL;
  size_t n = 0, cap = 0, got;
  do {
    if (cap < n + 4096) text = tc_realloc(text, cap = 2 * n + 4096);
    got = fread(text + n, 1, cap - n - 1, f);
    n += got;
  } while (got > 0 && n <= most);
  int rc = 0;
  if (ferror(f))
    rc = tc_fail(err, TC_EUSER, "cannot read %s %.500s: %s", kind, path, strerror(errno));
  else if (n > most)
    rc = tc_fail(err, TC_EUSER, "cannot read %s %.500s: it has more than %zu MB, so it must be "
                 "something else", kind, path, most / 1000000);
  fclose(f);
  if (rc < 0) {
    free(text);
    return rc;
  }
  text[n] = '\0';
  *out = text;
  *bytes = n;
  return 0;
}

/* A pool is a list of blocks; small requests are cut from the newest, large ones get a block
 * of their own behind it. */
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
  if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
  bytes = (TC_MAX(bytes, 1) + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
  struct pool_block *b = p->head;
  if (b && b->size_bytes - b->used_bytes >= bytes) {
    void *at = b->data + b->used_bytes;
    b->used_bytes += bytes;
    return at;
  }
  struct pool_block *fresh = block_new(TC_MAX(bytes, (size_t)POOL_BLOCK_BYTES));
  fresh->used_bytes = bytes;
  if (b && bytes > POOL_BLOCK_BYTES / 4) {   /* the room left in b stays of use */
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

/* ---- element types --------------------------------------------------------------------- */

static const struct { const char *name; size_t bytes; } dtypes[TC_DTYPES] = {
  [TC_F32] = { "f32", 4 }, [TC_BF16] = { "bf16", 2 }, [TC_F64] = { "f64", 8 },
  [TC_I32] = { "i32", 4 }, [TC_U8] = { "u8", 1 },
};

size_t tc_dtype_bytes(int dtype)
{
  TC_ASSERT(dtype >= 0 && dtype < TC_DTYPES);
  return dtypes[dtype].bytes;
}

const char *tc_dtype_name(int dtype)
{
  TC_ASSERT(dtype >= 0 && dtype < TC_DTYPES);
  return dtypes[dtype].name;
}

int tc_dtype_parse(const char *name)
{
  for (int i = 0; i < TC_DTYPES; i++)
    if (strcmp(dtypes[i].name, name) == 0) return i;
  return -1;
}

/* ---- random numbers ---------------------------------------------------------------------- */

void tc_philox(uint32_t out[4], uint64_t key, uint64_t c0, uint64_t c1)
{
  uint32_t x0 = (uint32_t)c0, x1 = (uint32_t)(c0 >> 32);
  uint32_t x2 = (uint32_t)c1, x3 = (uint32_t)(c1 >> 32);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
    x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
    x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
    x1 = (uint32_t)p1;
    x3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;               /* the Weyl sequence: golden ratio and sqrt(3) - 1 */
    k1 += 0xBB67AE85u;
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

float tc_uniform(uint64_t seed, uint32_t a, uint32_t b, uint64_t i)
{
  uint32_t x[4];
  tc_philox(x, seed, i, (uint64_t)a << 32 | b);
  return (float)(x[0] >> 8) * 0x1p-24f;
}

float tc_normal(uint64_t seed, uint32_t a, uint32_t b, uint64_t i)
{
  uint32_t x[4];
  tc_philox(x, seed, i, (uint64_t)a << 32 | b);
  /* In double, so that libm's last bit seldom reaches the float; u1 is in (0, 1]. */
  double u1 = ((double)((uint64_t)x[0] << 21 | x[1] >> 11) + 1) * 0x1p-53;
  double u2 = (double)((uint64_t)x[2] << 21 | x[3] >> 11) * 0x1p-53;
  return (float)(sqrt(-2 * log(u1)) * cos(6.283185307179586476925 * u2));
}

/* ---- clocks, sizes, words -------------------------------------------------------------------------- */

int64_t tc_now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void tc_sleep_ns(int64_t ns)
{
  if (ns <= 0) return;
  struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
    continue;
}

int tc_order_double(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int tc_order_i64(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int tc_order_text(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

double tc_median(double *x, int n)
{
  TC_ASSERT(n > 0);
  qsort(x, (size_t)n, sizeof *x, tc_order_double);
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

int64_t tc_median_i64(int64_t *x, int n)
{
  TC_ASSERT(n > 0);
  qsort(x, (size_t)n, sizeof *x, tc_order_i64);
  return x[(n - 1) / 2];
}

char *tc_human_bytes(char *buf, size_t size, double bytes)
{
  static const char *const unit[] = { "B", "KB", "MB", "GB", "TB", "PB", "EB" };
  size_t u = 0;
  while (fabs(bytes) >= 999.5 && u + 1 < sizeof unit / sizeof *unit) {
    bytes /= 1000;
    u++;
  }
  snprintf(buf, size, "%.3g %s", bytes, unit[u]);
  return buf;
}

/* Optimal string alignment: insert, delete, replace, or swap two neighbours. */
static int edit_distance(const char *a, const char *b)
{
  enum { MAX = 63 };                         /* longer words are compared by their beginning */
  int d[MAX + 1][MAX + 1];
  int la = (int)strnlen(a, MAX), lb = (int)strnlen(b, MAX);
  for (int i = 0; i <= la; i++) d[i][0] = i;
  for (int j = 0; j <= lb; j++) d[0][j] = j;
  for (int i = 1; i <= la; i++) {
    for (int j = 1; j <= lb; j++) {
      int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      best = TC_MIN(best, TC_MIN(d[i - 1][j], d[i][j - 1]) + 1);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = TC_MIN(best, d[i - 2][j - 2] + 1);
      d[i][j] = best;
    }
  }
  return d[la][lb];
}

int tc_nearest(const char *word, const char *const *list, int n)
{
  int best = -1, least = TC_MAX(1, ((int)strlen(word) + 1) / 3) + 1;
  for (int i = 0; i < n; i++) {
    int d = edit_distance(word, list[i]);
    if (d >= least) continue;
    least = d;
    best = i;
  }
  return best;
}
