/* paths.c - the files and folders that a run file names, as absolute paths: a job starts in the folder from which
 * sbatch is called, which need not be the one in which it was planned. */
#include "src/config/list.h"
#include "src/emit/emit.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The options that name files or folders, by their types in options.def. */
static const struct { const char *name; size_t field; bool list; } paths[] = {
#define PATH_INT(...)
#define PATH_REAL(...)
#define PATH_FLOAT(...)
#define PATH_STR(...)
#define PATH_BOOL(...)
#define PATH_FILE(name, field) { name, offsetof(struct tc_config, field), false },
#define PATH_DIR PATH_FILE
#define PATH_LIST(name, field) { name, offsetof(struct tc_config, field), true },
#define OPT(section, key, type, ...) PATH_##type(#section "." #key, section##_##key)
#include "src/config/options.def"
};
enum { PATHS = sizeof paths / sizeof *paths };

/* One value of an option; *text stays, or becomes a string of the configuration's. A word of data.train or data.val may
 * have a weight before its path. */
static int set_absolute(const struct tc_config *c, const char *option, char **text, const char *cwd, struct tc_err *err)
{
  const size_t at = strncmp(option, "data.", 5) ? 0 : tc_list_weight_size(*text);
  const char *path = *text + at;
  if (!*path || *path == '/') return 0;
  while (!strncmp(path, "./", 2)) path += 2;
  char *full = tc_sprintf("%.*s%s/%s", (int)at, *text, strcmp(cwd, "/") ? cwd : "", path);
  int rc = 0;
  if (!tc_config_is_plain(full))
    rc = tc_fail(err, TC_EUSER, "%s = %s is relative to %s, whose name a run file cannot hold: plan in a folder without "
                 "control characters or \";\" in its name", option, *text, cwd);
  else *text = tc_pool_strdup(c->pool, full);
  free(full);
  return rc;
}

int tc_emit_absolute(struct tc_config *c, struct tc_err *err)
{
  char *cwd = getcwd(NULL, 0);
  int rc = cwd ? 0 : tc_fail(err, TC_EUSER, "the name of the current folder is not known: %s", strerror(errno));
  for (int i = 0; i < PATHS && !rc; i++) {
    void *field = (char *)c + paths[i].field;
    const char *name = paths[i].name;
    const bool given = tc_config_source(c, name) != TC_FROM_DEFAULT;
    if (!given || !strcmp(name, "run.plan_device")) continue;       /* emit.c writes the device file */
    if (!strcmp(name, "run.trace") && !strcmp(c->run_trace, "no")) continue;
    if (!paths[i].list) {
      rc = set_absolute(c, name, field, cwd, err);
      continue;
    }
    /* A list of its own: *c may be a copy of a configuration that shares the array. */
    struct tc_list *l = field;
    char **item = tc_pool_alloc(c->pool, (size_t)TC_MAX(l->n, 1) * sizeof *item);
    for (int k = 0; k < l->n && !rc; k++) {
      item[k] = l->item[k];
      rc = set_absolute(c, name, &item[k], cwd, err);
    }
    if (!rc) l->item = item;
  }
  free(cwd);
  return rc;
}
