/* crc.c - CRC-32C through isa-l, which picks the fastest instructions of the processor.
 *
 * isa-l's crc32_iscsi inverts neither at the start nor at the end, takes a length that is an
 * int and a pointer that is not const (it only reads): all of that is evened out here. */
#include "io/crc.h"

#include <isa-l/crc.h>

uint32_t tc_crc32c(uint32_t crc, const void *p, size_t bytes)
{
  const unsigned char *at = p;
  const size_t most_bytes = (size_t)1 << 30;
  uint32_t raw = ~crc;
  while (bytes > 0) {
    size_t n = bytes < most_bytes ? bytes : most_bytes;
    raw = crc32_iscsi((unsigned char *)(uintptr_t)at, (int)n, raw);
    at += n;
    bytes -= n;
  }
  return ~raw;
}
