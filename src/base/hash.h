/* hash.h - FNV-1a (Fowler, Noll, Vo): hashes that are the same on every machine and in every build.
 *
 * Hashes are stored in files and compared between ranks, so these functions must never change. */
#ifndef TC_HASH_H
#define TC_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Local. The hash of a string. */
static inline uint32_t tc_hash32(const char *text)
{
  uint32_t h = 2166136261u;
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
  return h;
}
static inline uint64_t tc_hash64(const char *text)
{
  uint64_t h = UINT64_C(14695981039346656037);
  for (; *text; text++) h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
  return h;
}

#endif
