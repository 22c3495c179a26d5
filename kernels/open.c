/* open.c - devices that are loaded when they are used, so that the program starts without their
 * libraries: tercio-NAME.so.
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

int tc_module_load(const struct tc_device_ops **out, const char *name, struct tc_err *err)
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
