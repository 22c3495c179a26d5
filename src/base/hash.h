/* hash.h - FNV-1a (Fowler, Noll, Vo): hashes that are the same on every machine and in every build.
 *
 * Hashes are stored in files and compared between ranks, so these functions must never change. */
#ifndef TC_HASH_H
#define TC_HASH_H

#include <stdint.h>

/* Local. The hash h with x added, which may be wider than a byte; it begins as TC_HASH64. */
#define TC_HASH64 UINT64_C(14695981039346656037)
static inline uint64_t tc_hash64_add(uint64_t h, uint64_t x) { return (h ^ x) * UINT64_C(1099511628211); }

/* Local. The hash of a string. */
static inline uint32_t tc_hash32(const char *text)
{
  uint32_t h = 2166136261u;
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
  return h;
}
static inline uint64_t tc_hash64(const char *text)
{
  uint64_t h = TC_HASH64;
  for (; *text; text++) h = tc_hash64_add(h, (unsigned char)*text);
  return h;
}

#endif
