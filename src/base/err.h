/* err.h - status codes, error sentences, log lines and assertions.
 *
 * A function that can fail returns 0 or a negative enum tc_status and writes one sentence
 * for the user into *err: what is wrong, where, and what to do. The status is minus the exit status of
 * the command (see "Exit status" in tercio(1)). */
#ifndef TC_ERR_H
#define TC_ERR_H

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

struct tc_err {
  int status;            /* of the last failure */
  char text[1000];       /* one sentence, plain (plain.h), no newline */
};

/* Local. Writes the sentence (err may be NULL) and returns `status`. Arguments may point into err->text. */
int tc_fail(struct tc_err *err, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. Prints the sentence on stderr and returns the exit status (-err->status). */
int tc_say_failure(const struct tc_err *err);

/* Returns the failure of `expr`, if it failed, from the calling function. */
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
/* Local. A line on stderr without that, such as progress on a terminal: `begin` and `end` are our own, "\r" and "\033[K"
 * for instance. All that goes to stderr goes by one of these, or by tc_say_failure: texts of others are made plain.h's. */
void tc_say(const char *begin, const char *end, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
