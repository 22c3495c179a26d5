/* share.c - finds the files that come with the program: train.sbatch and, installed, the examples. */
#include "src/emit/emit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tc_share_program(void)
{
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  return tc_strdup(path);
}

/* Whether the folder, which is freed if not, has train.sbatch. */
static bool has_template(char *folder)
{
  char *path = tc_sprintf("%s/train.sbatch", folder);
  const bool is = access(path, R_OK) == 0;
  free(path);
  if (!is) free(folder);
  return is;
}

char *tc_share_folder(void)
{
  /* From the program's own folder: a build in the source tree, beside it, installed. */
  const char *const places[] = { "slurm", "../slurm", "../share/tercio" };
  char *program = tc_share_program(), *slash = strrchr(program, '/'), *found = NULL;
  const int dir = slash ? (int)(slash - program) : 0;
  for (size_t i = 0; i < sizeof places / sizeof *places && !found; i++) {
    char *folder = tc_sprintf("%.*s/%s", dir, program, places[i]);
    if (has_template(folder)) found = folder;
  }
  free(program);
  return found;
}
