/* llmc.c - the layout of llm.c's model files, and a reader that does not trust their sizes: they
 * are bounded one by one, then together by the size of the file, before anything uses them. */
#include "io/formats/llmc.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, MOST_SIZE = 1 << 24 };

struct tc_llmc {
  char *path;                     /* owned */
  int fd, dtype;
  struct tc_llmc_sizes sizes;
};

void tc_llmc_shape(const struct tc_llmc_sizes *s, int kind, int64_t *rows, int64_t *cols)
{
  const int64_t c = s->hidden;
  const int64_t shape[TC_LLMC_TENSORS][2] = {
    [TC_LLMC_WTE] = { s->padded_vocab, c }, [TC_LLMC_WPE] = { s->context, c },
    [TC_LLMC_LN1_W] = { c, 1 }, [TC_LLMC_LN1_B] = { c, 1 },
    [TC_LLMC_QKV_W] = { 3 * c, c }, [TC_LLMC_QKV_B] = { 3 * c, 1 },
    [TC_LLMC_ATT_W] = { c, c }, [TC_LLMC_ATT_B] = { c, 1 },
    [TC_LLMC_LN2_W] = { c, 1 }, [TC_LLMC_LN2_B] = { c, 1 },
    [TC_LLMC_FC_W] = { 4 * c, c }, [TC_LLMC_FC_B] = { 4 * c, 1 },
    [TC_LLMC_PROJ_W] = { c, 4 * c }, [TC_LLMC_PROJ_B] = { c, 1 },
    [TC_LLMC_LNF_W] = { c, 1 }, [TC_LLMC_LNF_B] = { c, 1 } };
  *rows = shape[kind][0];
  *cols = shape[kind][1];
}

int64_t tc_llmc_place(const struct tc_llmc_sizes *s, int kind, int64_t layer)
{
  int64_t at = 0, rows, cols;
  for (int k = 0; k < kind; k++) {
    tc_llmc_shape(s, k, &rows, &cols);
    at += rows * cols * (k >= TC_LLMC_LN1_W && k <= TC_LLMC_PROJ_B ? s->layers : 1);
  }
  if (kind == TC_LLMC_TENSORS) return at;
  tc_llmc_shape(s, kind, &rows, &cols);
  return at + layer * rows * cols;
}

int64_t tc_llmc_padded(int64_t vocab) { return tc_round_up(vocab, 128); }

void tc_llmc_header(int32_t head[TC_LLMC_HEADER_BYTES / 4], const struct tc_llmc_sizes *s,
                    int dtype)
{
  const int64_t h[] = { MAGIC, dtype == TC_F32 ? VERSION_F32 : VERSION_BF16, s->context, s->vocab,
                        s->layers, s->heads, s->hidden, s->padded_vocab };
  memset(head, 0, TC_LLMC_HEADER_BYTES);
  for (size_t i = 0; i < sizeof h / sizeof *h; i++) head[i] = (int32_t)h[i];
}

/* ---- reading ----------------------------------------------------------------------- */

static int check_sizes(struct tc_llmc *f, const int32_t *h, int64_t file_bytes,
                       struct tc_err *err)
{
  f->sizes = (struct tc_llmc_sizes){ h[2], h[3], h[4], h[5], h[6], h[7] };
  const struct tc_llmc_sizes *s = &f->sizes;
  for (int i = 2; i < 8; i++)
    if (h[i] < 1 || h[i] > MOST_SIZE)
      return tc_fail(err, TC_EUSER, "%s: number %d of its header is %d, which is impossible", f->path,
                     i, h[i]);
  if (s->padded_vocab < s->vocab || s->hidden % s->heads)
    return tc_fail(err, TC_EUSER, "%s: its sizes contradict each other: vocabulary %lld padded to "
                   "%lld, hidden size %lld in %lld heads", f->path, (long long)s->vocab,
                   (long long)s->padded_vocab, (long long)s->hidden, (long long)s->heads);
  /* In floating point first: the true number may not fit 64 bits. */
  double c = (double)s->hidden, about = (double)s->layers * 12 * c * c;
  int64_t need = 0, elem = (int64_t)tc_dtype_bytes(f->dtype);
  if (about < (double)file_bytes)
    need = TC_LLMC_HEADER_BYTES + elem * tc_llmc_place(s, TC_LLMC_TENSORS, 0);
  if (need != file_bytes)
    return tc_fail(err, TC_EUSER, "%s: has %lld bytes, not as many as a model of %lld layers and hidden "
                   "size %lld needs: truncated or damaged", f->path, (long long)file_bytes,
                   (long long)s->layers, (long long)s->hidden);
  return 0;
}

static int open_file(struct tc_llmc *f, struct tc_err *err)
{
  struct stat st;
  int32_t h[8];
  f->fd = tc_open_stat(f->path, &st);
  if (f->fd < 0) return tc_fail(err, TC_EUSER, "%s: %s", f->path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return tc_fail(err, TC_EUSER, "%s: not a file", f->path);
  if (st.st_size < TC_LLMC_HEADER_BYTES || !tc_pread_all(f->fd, h, sizeof h, 0))
    return tc_fail(err, TC_EUSER, "%s: too short for a model file of llm.c", f->path);
  if (h[0] != MAGIC)
    return tc_fail(err, TC_EUSER, "%s: not a model file of llm.c: it begins with %d, not %d",
                   f->path, h[0], MAGIC);
  if (h[1] != VERSION_F32 && h[1] != VERSION_BF16)
    return tc_fail(err, TC_EUSER, "%s: version %d of llm.c's model files; %d (fp32) and %d (bf16) "
                   "can be read", f->path, h[1], VERSION_F32, VERSION_BF16);
  f->dtype = h[1] == VERSION_F32 ? TC_F32 : TC_BF16;
  return check_sizes(f, h, st.st_size, err);
}

int tc_llmc_open(struct tc_llmc **out, const char *path, struct tc_err *err)
{
  struct tc_llmc *f = tc_calloc(1, sizeof *f);
  f->path = tc_strdup(path);
  int rc = open_file(f, err);
  *out = rc == 0 ? f : NULL;
  if (rc < 0) tc_llmc_close(f);
  return rc;
}

void tc_llmc_close(struct tc_llmc *f)
{
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  TC_FREE(f->path, f);
}

const struct tc_llmc_sizes *tc_llmc_sizes(const struct tc_llmc *f) { return &f->sizes; }
int tc_llmc_dtype(const struct tc_llmc *f) { return f->dtype; }

int tc_llmc_read(const struct tc_llmc *f, int64_t from, int64_t n, void *buf, struct tc_err *err)
{
  int64_t elem = (int64_t)tc_dtype_bytes(f->dtype);
  if (tc_pread_all(f->fd, buf, n * elem, TC_LLMC_HEADER_BYTES + from * elem)) return 0;
  return tc_fail(err, TC_EUSER, "%s: can't be read: %s", f->path,
                 errno ? strerror(errno) : "the file ends too early");
}
