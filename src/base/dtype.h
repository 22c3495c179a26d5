/* dtype.h - element types: sizes, names, and bfloat16 to and from float. */
#ifndef TC_DTYPE_H
#define TC_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum { TC_DIMS = 6 };                          /* most dimensions of a tensor */

/* Element types. */
enum tc_dtype { TC_DTYPE_AUTO = -1, TC_F32, TC_BF16, TC_F64, TC_I32, TC_U8, TC_DTYPES };
size_t tc_dtype_bytes(int dtype);
const char *tc_dtype_name(int dtype);             /* "f32", "bf16", "f64", "i32", "u8" */
int tc_dtype_parse(const char *name);             /* -1 if none */

static inline float tc_bf16_to_f32(uint16_t h)
{
  union { uint32_t u; float f; } x = { .u = (uint32_t)h << 16 };
  return x.f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t tc_f32_to_bf16(float f)
{
  union { float f; uint32_t u; } x = { .f = f };
  const uint32_t rounded = x.u + 0x7fffu + ((x.u >> 16) & 1u), quiet = x.u | 0x400000u;
  return (uint16_t)(((x.u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}
/* Up or down, by bits & 0xffff: if these are drawn evenly, f is the mean of what is returned, as far as bf16's range goes.
 * NaN and infinity stay what they are. */
static inline uint16_t tc_f32_to_bf16_by(float f, uint32_t bits)
{
  union { float f; uint32_t u; } x = { .f = f };
  const uint32_t drawn = (x.u + (bits & 0xffffu)) >> 16;
  return (x.u & 0x7f800000u) == 0x7f800000u ? tc_f32_to_bf16(f) : (uint16_t)drawn;
}

#endif
