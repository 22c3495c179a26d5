/* random.h - random numbers that depend only on key and counter, and one for file names. */
#ifndef TC_RANDOM_H
#define TC_RANDOM_H

#include <stdint.h>

/* Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * out[4] from a 64-bit key and a 128-bit counter {c0, c1}: no state, so an element's number
 * depends on its counter only. */
void tc_philox(uint32_t out[4], uint64_t key, uint64_t c0, uint64_t c1);
/* Uniform in [0, 1) with 24 bits, and standard normal (Box-Muller on one Philox block):
 * element i of stream (a, b) with key `seed`. */
float tc_uniform(uint64_t seed, uint32_t a, uint32_t b, uint64_t i);
float tc_normal(uint64_t seed, uint32_t a, uint32_t b, uint64_t i);
/* Uniform with deviation 1, between +-sqrt(3): of the same bits as tc_uniform. */
static inline float tc_even(float uniform) { return 1.73205081f * (2 * uniform - 1); }
/* 32 bits of element i of stream (a, b) with key `seed`: four elements, the first a multiple of 4, have one Philox block. */
uint32_t tc_bits(uint64_t seed, uint32_t a, uint32_t b, uint64_t i);

/* Local. A number that no other process is likely to draw, for names of temporary files. */
uint32_t tc_random_name(void);

#endif
