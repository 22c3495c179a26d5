/* versions.c - the compiler and the libraries that this program was built with and runs on. */
#include "src/run/run.h"
#include "io/ckpt/h5.h"
#include "kernels/kernel.h"
#include "src/comm/mpi.h"
#include "src/launch/ranks.h"

#include <string.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void compiler(char *text, size_t size) { snprintf(text, size, "%s", COMPILER); }

char *tc_versions_text(void)
{
  void (*const version[])(char *, size_t) = { compiler, tc_mpi_version, tc_pmix_version,
                                              tc_h5_version, tc_cpu_version };
  char text[500] = "";
  for (size_t i = 0; i < sizeof version / sizeof *version; i++) {
    char one[100] = "";
    version[i](one, sizeof one);
    /* "Open MPI v4.1.4, package: Debian OpenMPI, ...", "gcc 11.4.1 20231218 (Red Hat 11.4.1-3)" */
    one[strcspn(one, ",(\n")] = 0;
    for (size_t n = strlen(one); n > 0 && one[n - 1] == ' ';) one[--n] = 0;
    tc_text_add(text, sizeof text, "%s%s", i ? ", " : "", one);
  }
  return tc_strdup(text);
}
