/* rss.c - what the kernel counts as this process's memory. */
#include "src/run/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t tc_rss_bytes(bool peak)
{
  const char *key = peak ? "VmHWM:" : "VmRSS:";
  char line[256];
  long long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) kb = strtoll(line + strlen(key), NULL, 10);
  if (f) fclose(f);
  return kb * 1024;
}
