/* dtype.c - the names and sizes of element types. */
#include "src/base/dtype.h"

#include <string.h>

#include "src/base/err.h"

static const struct { const char *name; size_t bytes; } dtypes[TC_DTYPES] = {
  [TC_F32] = { "f32", 4 }, [TC_BF16] = { "bf16", 2 }, [TC_F64] = { "f64", 8 },
  [TC_I32] = { "i32", 4 }, [TC_U8] = { "u8", 1 },
};

size_t tc_dtype_bytes(int dtype)
{
  TC_ASSERT(dtype >= 0 && dtype < TC_DTYPES);
  return dtypes[dtype].bytes;
}

const char *tc_dtype_name(int dtype)
{
  TC_ASSERT(dtype >= 0 && dtype < TC_DTYPES);
  return dtypes[dtype].name;
}

int tc_dtype_parse(const char *name)
{
  for (int i = 0; i < TC_DTYPES; i++)
    if (strcmp(dtypes[i].name, name) == 0) return i;
  return -1;
}
