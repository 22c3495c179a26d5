/* again.h - errors of file operations that may pass. */
#ifndef TC_AGAIN_H
#define TC_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

/* Tries of one operation; zeroed by its owner. */
struct tc_again { int tries; int64_t since_ns; };

/* Local. Whether an operation that failed with this errno may succeed a moment later: a server that is busy or
 * restarts, memory or descriptors that are short. */
bool tc_may_pass(int errnum);

/* Local. Pauses and returns true if the operation is to be tried again: its error may pass, and less than TC_AGAIN_TRIES
 * tries were made, with pauses that double, 6.3 s in all; and the first failure is less than half a minute ago, since each
 * try may take long by itself. errno is errnum when it returns.
 *
 *   struct tc_again again = { 0 };
 *   do fd = open(path, O_RDONLY);
 *   while (fd < 0 && tc_again(&again, errno)); */
enum { TC_AGAIN_TRIES = 7 };
bool tc_again(struct tc_again *a, int errnum);

/* Pauses and returns true if a name that should be there, or a file that should be longer, is to be looked for again:
 * what another node has made may be seen late. The folder that holds `path` is opened first, upon which a node asks the
 * server anew. TC_LATE_TRIES looks, 1.6 s in all. */
enum { TC_LATE_TRIES = 6 };
bool tc_late(struct tc_again *a, const char *path);

#endif
