/* t_crc.c - CRC-32C against published values (RFC 3720, appendix B.4), and against a naive
 * bit-by-bit division. */
#include "io/crc.h"

#include <sys/mman.h>

#include "tests/unit/tap.h"

static uint32_t naive(uint32_t crc, const unsigned char *p, size_t n)
{
  crc = ~crc;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

int main(void)
{
  unsigned char buf[4096];
  memset(buf, 0, 32);
  is_int(tc_crc32c(0, "123456789", 9), 0xe3069283u, "the digits");
  is_int(tc_crc32c(0, buf, 32), 0x8a9136aau, "32 bytes of zeros");
  memset(buf, 0xff, 32);
  is_int(tc_crc32c(0, buf, 32), 0x62a8ab43u, "32 bytes of ones");
  for (int i = 0; i < 32; i++) buf[i] = (unsigned char)i;
  is_int(tc_crc32c(0, buf, 32), 0x46dd794eu, "0 to 31");
  is_int(tc_crc32c(0, buf, 0), 0, "no bytes");

  uint32_t x = 1;
  int wrong = 0, wrong_chained = 0;
  for (size_t i = 0; i < sizeof buf; i++) buf[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
  for (int i = 0; i < 500; i++) {
    size_t from = (x = x * 1664525 + 1013904223) % 64, n = (x >> 12) % (sizeof buf - 64);
    size_t cut = n ? (x >> 3) % n : 0;
    uint32_t whole = naive(0, buf + from, n);
    wrong += tc_crc32c(0, buf + from, n) != whole;
    uint32_t part = tc_crc32c(tc_crc32c(0, buf + from, cut), buf + from + cut, n - cut);
    wrong_chained += part != whole;
  }
  is_int(wrong, 0, "500 random pieces as bit-by-bit division has them");
  is_int(wrong_chained, 0, "and in two parts");

  /* More than fits in an int's worth of calls: 1 GiB + 5 bytes of the zero page. */
  size_t big = ((size_t)1 << 30) + 5;
  void *zeros = mmap(NULL, big, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) {
    skip("no address space for 1 GiB");
  } else {
    uint32_t parts = tc_crc32c(0, zeros, big / 3);
    parts = tc_crc32c(parts, zeros, big - big / 3);
    is_int(tc_crc32c(0, zeros, big), parts, "1 GiB and 5 bytes at once and in two parts");
  }
  return done_testing();
}
