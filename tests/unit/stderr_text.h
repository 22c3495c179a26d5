/* stderr_text.h - for tests whose stderr is a file: what was written there. */
#ifndef TC_STDERR_TEXT_H
#define TC_STDERR_TEXT_H

#include <stdio.h>
#include <unistd.h>

#include "src/base/base.h"

/* What was written to stderr since the last call. */
static const char *stderr_text(void)
{
  static char text[2000];
  fflush(stderr);
  const ssize_t n = pread(STDERR_FILENO, text, sizeof text - 1, 0);
  text[TC_MAX(n, 0)] = 0;
  if (ftruncate(STDERR_FILENO, 0) < 0) printf("Bail out! stderr cannot be cut\n");
  return text;
}

#endif
