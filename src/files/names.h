/* names.h - names in folders: rename, mkdir, link and unlink, listing, making and flushing folders.
 *
 * The calls that change a name try again what may pass (again.h). After an error they look what is there, since a
 * network file system may report a failure of what it carried out: then they have succeeded. */
#ifndef TC_NAMES_H
#define TC_NAMES_H

#include <fcntl.h>                 /* AT_FDCWD */
#include <stdbool.h>
#include <stdint.h>

#include "src/base/err.h"

/* Local. All return 0, or errno of the failure; the names are relative to the folder `at` (AT_FDCWD). */
int tc_rename(int at, const char *from, const char *to);      /* as rename(2) */
int tc_link(int at, const char *from, const char *to);        /* EEXIST if `to` is another file */
int tc_unlink(int at, const char *name);                      /* ENOENT is no failure */
int tc_rmdir(int at, const char *name);                       /* ENOENT is no failure */
/* A folder whose name nobody else makes, such as one with a random number in it: if it is there after an error and
 * empty, it is ours. */
int tc_mkdir_own(int at, const char *name);

/* Local. Looking, tried again. */
struct stat;
int tc_open(const char *path, int flags);  /* a descriptor, as open(2), of mode 0666 if it is made; -1 with errno */
int tc_open_read(const char *path);       /* one for reading, which waits for no pipe */
int tc_open_stat(const char *path, struct stat *st);   /* the same, and what it is of */
int tc_stat(const char *path, struct stat *st);        /* 0, or errno */
int tc_access(const char *path, int mode);             /* as access(2): 0, or errno */
char *tc_real_path(const char *path);                  /* owned; NULL with errno */
/* Whether something has this name, links followed; -errno if that can't be told: what takes it for there will find out
 * why. */
int tc_is_there(const char *path);
bool tc_is_folder(const char *path);                   /* false if that can't be told */

/* Local. Names in `dir` that begin with `prefix`, in no order: *names is an owned array of
 * owned strings. Returns the number; a folder that isn't there has none; TC_EUSER. */
int tc_folder_scan(const char *dir, const char *prefix, char ***names, struct tc_err *err);
void tc_names_free(char **names, int n);

/* Local. All fail with TC_EUSER, naming the folder. */
int tc_folder_make(const char *path, struct tc_err *err);     /* with its parents; durable */
/* The same; *made, owned, is the outermost folder that was not there, NULL: all were. After a failure of what the
 * folder is for, _unmake removes it and its parents down from *made, as far as nothing is in them; frees made. */
int tc_folder_make_new(const char *path, char **made, struct tc_err *err);
void tc_folder_unmake(const char *path, char *made);
int tc_folder_sync(const char *path, struct tc_err *err);     /* fsync of the folder itself */
/* The same, but that a folder in which one may write and not read, such as a drop box, can't be opened is no failure. */
int tc_folder_sync_written(const char *path, struct tc_err *err);
/* Within `dir`; durable when it returns. */
int tc_folder_rename(const char *dir, const char *from, const char *to, struct tc_err *err);

/* Local. All bytes to fd; false with errno. */
bool tc_write_all(int fd, const void *buf, int64_t bytes);
/* Local. bytes at `offset` of fd; false at an error or the end of the file (errno 0). */
bool tc_pread_all(int fd, void *buf, int64_t bytes, int64_t offset);

#endif
