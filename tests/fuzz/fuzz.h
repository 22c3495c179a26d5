/* fuzz.h - a reader of files fed with damaged copies of valid ones: seeded, so that a case can be
 * made again; counted; in memory alone.
 *
 * usage: fuzz_X.t [--cases N | --seconds S] [--seed N] [--only CASE]      (else 3,000 cases of test_seed's)
 *
 * Built with a sanitizer it finds reads and writes out of bounds, leaks, and arithmetic that
 * overflows; a case that takes over 5 s of the CPU or 512 MB more memory than before is a fault too. */
#ifndef TC_FUZZ_H
#define TC_FUZZ_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/base.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

struct fuzz {
  uint64_t seed, cases, most_cases, accepted;
  int64_t end_ns;                 /* 0: by cases */
  int fd;                         /* a file in memory */
  char path[40];                  /* its name, for the reader */
  uint64_t state;
};

static inline uint64_t fuzz_next(struct fuzz *f)
{
  f->state ^= f->state << 13;
  f->state ^= f->state >> 7;
  return f->state ^= f->state << 17;
}

static inline size_t fuzz_below(struct fuzz *f, size_t n) { return n ? fuzz_next(f) % n : 0; }

static inline void fuzz_start(struct fuzz *f, int argc, char **argv)
{
  bool many = false;
  for (int i = 1; i < argc; i++) many |= !strcmp(argv[i], "--full") || !strcmp(argv[i], "--seconds");
  *f = (struct fuzz){ .seed = test_seed(many), .most_cases = 3000 };
  for (int i = 1; i + 1 < argc; i++) {
    uint64_t x = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--cases") == 0) f->most_cases = x;
    if (strcmp(argv[i], "--seconds") == 0) f->end_ns = tc_now_ns() + (int64_t)x * 1000000000;
    if (strcmp(argv[i], "--seed") == 0) f->seed = x;
    if (strcmp(argv[i], "--only") == 0) f->cases = (f->most_cases = x) - 1;
  }
  f->fd = memfd_create("fuzz", MFD_CLOEXEC);
  TC_ASSERT(f->fd >= 0);
  snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
}

/* Whether there is another case; it is of a seed of its own. */
static inline bool fuzz_more(struct fuzz *f)
{
  if (f->end_ns ? tc_now_ns() >= f->end_ns : f->cases >= f->most_cases) return false;
  f->state = (f->seed << 32) + ++f->cases;
  for (int i = 0; i < 4; i++) fuzz_next(f);
  setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = 5 }, NULL);   /* or SIGPROF */
  return true;
}

/* A fault of this case, which --only makes again. */
static inline int fuzz_fault(const struct fuzz *f, const char *what)
{
  printf("# case %llu of seed %llu: %s\n", (unsigned long long)f->cases,
         (unsigned long long)f->seed, what);
  return 1;
}

/* What stands in the place of a number. */
static const char *const fuzz_numbers[] = { "0", "-1", "1", "2147483647", "2147483648",
  "4294967296", "4611686018427387904", "9223372036854775807", "-9223372036854775808",
  "18446744073709551616", "1e308", "1.5", "null", "\"x\"", "[]", "{}", "true" };
enum { FUZZ_NUMBERS = sizeof fuzz_numbers / sizeof *fuzz_numbers };

/* text[*n], with room for `most`, is damaged once. The first `from` bytes stay. */
static inline void fuzz_damage(struct fuzz *f, char *text, size_t *n, size_t from, size_t most)
{
  size_t at = from + fuzz_below(f, *n - from), len = 1 + fuzz_below(f, 16), k;
  switch (fuzz_below(f, 8)) {
  case 0: text[at] ^= (char)(1 << fuzz_below(f, 8)); break;
  case 1: text[at] = (char)fuzz_next(f); break;
  case 2: *n = at; break;                        /* cut off */
  case 3:                                        /* bytes removed */
    len = TC_MIN(len, *n - at);
    memmove(text + at, text + at + len, *n - at - len);
    *n -= len;
    break;
  case 4:                                        /* bytes of elsewhere put in */
    k = from + fuzz_below(f, *n - from);
    len = TC_MIN(TC_MIN(len * 8, *n - k), most - *n);
    memmove(text + at + len, text + at, *n - at);
    memmove(text + at, text + (k >= at ? TC_MIN(k + len, *n) : k), len);
    *n += len;
    break;
  case 5: text[at] = "{}[]\",:0-"[fuzz_below(f, 9)]; break;
  default:                                       /* the next number becomes another value */
    while (at < *n && (text[at] < '0' || text[at] > '9')) at++;
    for (k = at; k < *n && text[k] >= '0' && text[k] <= '9'; k++) {}
    const char *now = fuzz_numbers[fuzz_below(f, FUZZ_NUMBERS)];
    len = strlen(now);
    if (*n - (k - at) + len > most) break;
    memmove(text + at + len, text + k, *n - k);
    memcpy(text + at, now, len);
    *n = *n - (k - at) + len;
  }
}

/* The file in memory has these bytes. */
static inline void fuzz_write(struct fuzz *f, const char *text, size_t n)
{
  TC_ASSERT(ftruncate(f->fd, 0) == 0 && pwrite(f->fd, text, n, 0) == (ssize_t)n);
}

static inline int64_t fuzz_rss_kb(void)
{
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_maxrss;
}

static inline int fuzz_end(struct fuzz *f, const char *what, int64_t rss_kb)
{
  setitimer(ITIMER_PROF, &(struct itimerval){ .it_value.tv_sec = 0 }, NULL);
  printf("# %s: %llu cases of seed %llu, %llu accepted, %lld MB at most\n", what,
         (unsigned long long)f->cases, (unsigned long long)f->seed,
         (unsigned long long)f->accepted, (long long)fuzz_rss_kb() >> 10);
  ok(f->cases > 0, "%s: damaged files are refused or read within bounds", what);
  ok(fuzz_rss_kb() - rss_kb < 512 << 10, "with no more than 512 MB");
  close(f->fd);
  return done_testing();
}

#endif
