/* open.c - opening a device by its name. Some are loaded when they are used, so that the program starts without their
 * libraries, from a module: tercio-NAME.so.
 *
 * It is searched in the folder TERCIO_MODULES, in lib/tercio beside the program's
 * bin, in the folder of the installation, and in kernels/ beside the program (a build tree). The
 * first one found is used. A module stays loaded. */
#include "kernels/kernel.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct tc_device_ops *const devices[] = { &tc_ref_ops, &tc_cpu_ops };

/* The folder of the running program; false: unknown. */
static bool program_folder(char *buf, size_t size)
{
  ssize_t n = readlink("/proc/self/exe", buf, size - 1);
  if (n <= 0) return false;
  buf[n] = '\0';
  char *slash = strrchr(buf, '/');
  if (slash) *slash = '\0';
  return slash != NULL;
}

static bool is_there(char *path, size_t size, const char *folder, const char *sub, const char *name)
{
  int n = snprintf(path, size, "%s%s/tercio-%s.so", folder, sub, name);
  return n > 0 && (size_t)n < size && access(path, R_OK) == 0;
}

static bool look(char *path, size_t size, const char *name)
{
  char program[PATH_MAX];
  const char *env = getenv("TERCIO_MODULES");
  if (env && *env) return is_there(path, size, env, "", name);
  bool known = program_folder(program, sizeof program);
  if (known && is_there(path, size, program, "/../lib/tercio", name)) return true;
#ifdef TC_PKGLIBDIR
  if (is_there(path, size, TC_PKGLIBDIR, "", name)) return true;
#endif
  return known && is_there(path, size, program, "/kernels", name);
}

static int load_module(const struct tc_device_ops **out, const char *name, struct tc_err *err)
{
  char path[PATH_MAX + 64];
  if (!look(path, sizeof path, name))
    return tc_fail(err, TC_EUSER, "device %s: its module tercio-%s.so was not found (this build is "
                   "without it, or TERCIO_MODULES names another folder); configure with "
                   "--with-%s, or set run.device = cpu", name, name, name);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!lib) {
    const char *why = dlerror();
    return tc_fail(err, TC_EUSER, "device %s: its module can't be loaded: %s; install that library "
                   "or add its folder to LD_LIBRARY_PATH, or set run.device = cpu", name,
                   why ? why : path);
  }
  const struct tc_module *m = dlsym(lib, "tc_module");
  if (!m || m->version != TC_MODULE_VERSION || m->layout != TC_MODULE_LAYOUT)
    return tc_fail(err, TC_EUSER, "device %s: %s is of another version of Tercio; install both "
                   "from the same build", name, path);
  *out = m->ops;
  return 0;
}

static int find(const struct tc_device_ops **ops, const char *name, struct tc_err *err)
{
  for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
    if (strcmp(devices[i]->name, name) != 0) continue;
    *ops = devices[i];
    return 0;
  }
  if (strcmp(name, "cuda") == 0) return load_module(ops, name, err);
  return tc_fail(err, TC_EUSER, "device \"%s\" is not known; set run.device to cpu, "
                 "cuda or ref", name);
}

int tc_device_open(struct tc_device **out, const char *name, int threads, struct tc_err *err)
{
  TC_ASSERT(threads >= 1);
  *out = NULL;
  char kind[32];
  const char *colon = strchr(name, ':');
  snprintf(kind, sizeof kind, "%.*s", colon ? (int)(colon - name) : (int)sizeof kind - 1, name);
  const struct tc_device_ops *ops;
  TC_TRY(find(&ops, kind, err));
  struct tc_device *d = tc_calloc(1, sizeof *d);
  d->ops = ops;
  d->threads = threads;
  if (colon && strchr(colon + 1, ':')) snprintf(d->bus, sizeof d->bus, "%s", colon + 1);
  else d->index = colon ? atoi(colon + 1) : 0;
  int rc = d->ops->open(d, err);
  if (rc < 0) {
    free(d);
    return rc;
  }
  *out = d;
  return 0;
}

void tc_device_close(struct tc_device *d)
{
  if (!d) return;
  d->ops->close(d);
  free(d);
}
