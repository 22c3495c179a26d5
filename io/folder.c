/* folder.c - folders of checkpoints. A rename is durable once the folder that holds the new name
 * is fsynced; the old name may be one folder down, in an owner's lease folder (io/ckpt/owner.h).
 * Removal never goes deeper than one folder and follows no links. */
#include "io/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/watch/watch.h"

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

int tc_folder_scan(const char *dir, const char *prefix, char ***names, struct tc_err *err)
{
  char **list = NULL;
  int n = 0, cap = 0;
  *names = NULL;
  DIR *d = opendir(dir);
  if (!d && errno == ENOENT) return 0;
  if (!d) return tc_fail(err, TC_EUSER, "%s: %s", dir, strerror(errno));
  struct dirent *e;
  while (errno = 0, (e = readdir(d))) {
    if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    TC_GROW(list, n, cap);
    list[n++] = tc_strdup(e->d_name);
  }
  int why = errno;
  closedir(d);
  if (why) {
    tc_names_free(list, n);
    return tc_fail(err, TC_EUSER, "%s: reading the folder failed: %s", dir, strerror(why));
  }
  *names = list;
  return n;
}

void tc_names_free(char **names, int n)
{
  for (int i = 0; i < n; i++) free(names[i]);
  free(names);
}

int tc_folder_sync(const char *path, struct tc_err *err)
{
  tc_at_file("fsync", path);
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  /* Some file systems can't fsync a folder; they say EINVAL and are synchronous there. */
  int rc = fd < 0 ? -1 : fsync(fd);
  int why = errno;
  if (fd >= 0) close(fd);
  if (rc < 0 && why != EINVAL)
    return tc_fail(err, TC_EUSER, "%s: can't be flushed to disk: %s", path, strerror(why));
  return 0;
}

char *tc_folder_of(const char *path)
{
  char *p = tc_strdup(path);
  size_t n = strlen(p);
  while (n > 1 && p[n - 1] == '/') p[--n] = '\0';
  char *slash = strrchr(p, '/');
  if (!slash) {
    free(p);
    return tc_strdup(".");
  }
  if (slash == p) slash++;
  *slash = '\0';
  return p;
}

int tc_folder_make(const char *path, struct tc_err *err)
{
  struct stat st;
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return 0;
    return tc_fail(err, TC_EUSER, "%s: there is a file of this name; a folder is needed", path);
  }
  char *up = tc_folder_of(path);
  int rc = mkdir(path, 0777);
  if (rc < 0 && errno == ENOENT && strcmp(up, path) != 0) {
    rc = tc_folder_make(up, err);
    if (rc < 0) {
      free(up);
      return rc;
    }
    rc = mkdir(path, 0777);
  }
  if (rc < 0 && errno == EEXIST) rc = 0;
  if (rc < 0) rc = tc_fail(err, TC_EUSER, "%s: can't be made: %s", path, strerror(errno));
  else rc = tc_folder_sync(up, err);
  free(up);
  return rc;
}

int tc_folder_remove(const char *path, struct tc_err *err)
{
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return 0;
    return tc_fail(err, TC_EUSER, "%s: %s", path, strerror(errno));
  }
  unlinkat(fd, TC_MANIFEST, 0);
  char **names;
  int n = tc_folder_scan(path, "", &names, err), why = 0;
  for (int i = 0; i < n; i++)
    if (unlinkat(fd, names[i], 0) < 0 && errno != ENOENT) why = errno;
  close(fd);
  if (n < 0) return n;
  tc_names_free(names, n);
  if (!why && rmdir(path) < 0 && errno != ENOENT) why = errno;
  if (why) return tc_fail(err, TC_EUSER, "%s: can't be removed: %s", path, strerror(why));
  return 0;
}

int tc_folder_rename(const char *dir, const char *from, const char *to, struct tc_err *err)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return tc_fail(err, TC_EUSER, "%s: %s", dir, strerror(errno));
  int rc = renameat(fd, from, fd, to);
  if (rc < 0)
    rc = tc_fail(err, TC_EUSER, "%s/%s: can't be renamed to %s: %s", dir, from, to,
                 strerror(errno));
  close(fd);
  return rc < 0 ? rc : tc_folder_sync(dir, err);
}

bool tc_pread_all(int fd, void *buf, int64_t bytes, int64_t offset)
{
  char *at = buf;
  while (bytes > 0) {
    size_t ask = (size_t)TC_MIN(bytes, INT64_C(1) << 30);
    tc_at_again();
    ssize_t n = pread(fd, at, ask, (off_t)offset);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    at += n;
    bytes -= n;
    offset += n;
  }
  return true;
}
