/* folder.c - folders of checkpoints. Removal never goes deeper than one folder and follows no links: of a link, the
 * link is removed. */
#include "io/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files/again.h"

int64_t tc_step_of_name(const char *name)
{
  char again[32];
  if (strncmp(name, "step-", 5) != 0) return -1;
  size_t digits = strspn(name + 5, "0123456789");
  if (digits < 8 || digits > 18 || name[5 + digits]) return -1;
  long long step = strtoll(name + 5, NULL, 10);
  snprintf(again, sizeof again, "step-%08lld", step);
  return strcmp(again, name) == 0 ? (int64_t)step : -1;
}

static int fail(const char *path, const char *what, int why, struct tc_err *err)
{
  const int rc = tc_fail(err, TC_EUSER, "%s: %s%s%s", path, what ? what : "", what ? ": " : "", strerror(why));
  errno = why;
  return rc;
}

int tc_folder_remove(const char *path, struct tc_err *err)
{
  char **names = NULL, at[2];
  const int fd = tc_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int why = errno;
  if (fd < 0 && why == ENOENT) return 0;
  if (fd < 0 && readlink(path, at, sizeof at) >= 0) {
    why = tc_unlink(AT_FDCWD, path);
    return why ? fail(path, "can't be removed", why, err) : 0;
  }
  if (fd < 0) return fail(path, NULL, why, err);
  why = tc_unlink(fd, TC_MANIFEST);
  const int n = why ? 0 : tc_folder_scan(path, "", &names, err);
  for (int i = 0; i < n; i++) {
    const int failed = tc_unlink(fd, names[i]);
    if (failed) why = failed;
    if (tc_may_pass(failed)) break;              /* the others would take as long; a later removal does the rest */
  }
  close(fd);
  if (n < 0) return n;
  tc_names_free(names, n);
  if (!why) why = tc_rmdir(AT_FDCWD, path);
  return why ? fail(path, "can't be removed", why, err) : 0;
}

int tc_first_line(const char *path, char *buf, size_t size)
{
  struct tc_again again = { 0 };
  *buf = 0;
  int fd = tc_open_read(path);
  if (fd < 0) return errno;
  ssize_t n;
  do n = read(fd, buf, size - 1);
  while (n < 0 && tc_again(&again, errno));
  const int why = n < 0 ? errno : 0;
  close(fd);
  buf[TC_MAX(n, 0)] = 0;
  buf[strcspn(buf, "\n")] = 0;
  return why;
}
