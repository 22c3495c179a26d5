/* plan_list.h - long lists in the planner's tests: lines are collected, and compared by their digest.
 * SHOW=1 prints them, to be compared with what an older build prints. */
#ifndef TC_PLAN_LIST_H
#define TC_PLAN_LIST_H

#include "src/base/base.h"
#include "tests/unit/tap.h"

static char list[1 << 22];
static size_t list_bytes;

static void list_clear(void)
{
  list_bytes = 0;
  list[0] = '\0';
}

TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  list_bytes += (size_t)vsnprintf(list + list_bytes, sizeof list - list_bytes, fmt, ap);
  va_end(ap);
  TC_ASSERT(list_bytes < sizeof list);
}

/* CRC-32C, bit by bit. */
static uint32_t crc32c_of(const char *p, size_t bytes)
{
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < bytes; i++) {
    crc ^= (uint8_t)p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

static void is_list(uint32_t digest, const char *what)
{
  if (getenv("SHOW")) printf("%s", list);
  is_int(crc32c_of(list, list_bytes), digest, "%s", what);
}

#endif
