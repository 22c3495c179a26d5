/* token_weights.c - a file of weights, in NumPy's format: what np.save writes of an array of uint8. */
#include "src/data/impl.h"

#include <string.h>

enum { PREFIX = 10 };               /* magic, version, length of the text */

char *tc_weights_path(const char *shard)
{
  const size_t n = strlen(shard), end = tc_ends_with(shard, ".bin") ? 4 : 0;
  return tc_sprintf("%.*s.weights.npy", (int)(n - end), shard);
}

void tc_weights_pack(int64_t n_tokens, char header[TC_WEIGHTS_BYTES])
{
  memset(header, ' ', TC_WEIGHTS_BYTES);
  memcpy(header, TC_WEIGHTS_MAGIC "\x01\x00", 8);
  header[8] = TC_WEIGHTS_BYTES - PREFIX;
  header[9] = 0;
  const int n = snprintf(header + PREFIX, TC_WEIGHTS_BYTES - PREFIX,
                         "{'descr': '|u1', 'fortran_order': False, 'shape': (%lld,), }", (long long)n_tokens);
  header[PREFIX + n] = ' ';         /* the text's end */
  header[TC_WEIGHTS_BYTES - 1] = '\n';
}

int tc_weights_check(const char header[TC_WEIGHTS_BYTES], int64_t size, int64_t n_tokens, const char *name, struct tc_err *err)
{
  char want[TC_WEIGHTS_BYTES];
  tc_weights_pack(n_tokens, want);
  if (memcmp(header, want, sizeof want) == 0 && size == TC_WEIGHTS_BYTES + n_tokens) return TC_OK;
  return tc_fail(err, TC_EUSER, "'%s' does not have the weights of its shard's %lld tokens: it has to be what np.save writes of "
                 "as many uint8", name, (long long)n_tokens);
}

int tc_weights_read(struct tc_reader *r, struct tc_data_file *f, int64_t from, int64_t n, uint8_t *out, struct tc_err *err)
{
  TC_TRY(tc_file_read(r, f, out, n, f->header + from, err));
  for (int64_t i = 0; i < n; i++)
    if (out[i] > (TC_WEIGHT_COUNTS | TC_WEIGHT_BEGINS))
      return tc_fail(err, TC_EUSER, "'%s' has %d at place %lld; a weight is 0 or 1, and 2 or 3 where a sample begins", f->name,
                     out[i], (long long)(from + i));
  return TC_OK;
}
