/* again.c - errors of file operations that may pass. */
#include "src/files/again.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "src/base/base.h"
#include "src/watch/watch.h"

#define FIRST_PAUSE_NS INT64_C(50000000)
#define LONGEST_NS INT64_C(30000000000)
#define FIRST_LATE_NS INT64_C(25000000)

/* EACCES is mostly meant, but servers say it while they learn who may do what: it is tried again for 0.8 s only. */
static const struct { int errnum, tries; } passing[] = {
  { EIO, TC_AGAIN_TRIES }, { ESTALE, TC_AGAIN_TRIES }, { EINTR, TC_AGAIN_TRIES }, { EAGAIN, TC_AGAIN_TRIES },
  { ENOMEM, TC_AGAIN_TRIES }, { ENFILE, TC_AGAIN_TRIES }, { EMFILE, TC_AGAIN_TRIES },
  { ETIMEDOUT, TC_AGAIN_TRIES }, { EREMOTEIO, TC_AGAIN_TRIES }, { ENOLINK, TC_AGAIN_TRIES },
  { ECOMM, TC_AGAIN_TRIES }, { EPROTO, TC_AGAIN_TRIES }, { ECONNRESET, TC_AGAIN_TRIES },
  { ECONNREFUSED, TC_AGAIN_TRIES }, { ENOTCONN, TC_AGAIN_TRIES }, { ESHUTDOWN, TC_AGAIN_TRIES },
  { EHOSTDOWN, TC_AGAIN_TRIES }, { EHOSTUNREACH, TC_AGAIN_TRIES }, { ENETUNREACH, TC_AGAIN_TRIES },
  { EACCES, 4 },
};

/* How often an operation that failed with this errno is tried again; 0: the error does not pass. */
static int tries_of(int errnum)
{
  for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
    if (passing[i].errnum == errnum) return passing[i].tries;
  return 0;
}

bool tc_may_pass(int errnum) { return tries_of(errnum) > 0; }

bool tc_again(struct tc_again *a, int errnum)
{
  const int64_t now = tc_now_ns();
  if (!a->tries) a->since_ns = now;
  if (a->tries >= tries_of(errnum) || now - a->since_ns > LONGEST_NS) {
    errno = errnum;
    return false;
  }
  tc_at_again();
  if (errnum != EINTR || a->tries) tc_sleep_ns(FIRST_PAUSE_NS << a->tries);
  a->tries++;
  errno = errnum;
  return true;
}

bool tc_late(struct tc_again *a, const char *path)
{
  if (a->tries >= TC_LATE_TRIES) return false;
  char *folder = tc_folder_of(path);
  tc_at_again();
  tc_sleep_ns(FIRST_LATE_NS << a->tries++);
  DIR *d = opendir(folder);
  if (d) closedir(d);
  free(folder);
  return true;
}
