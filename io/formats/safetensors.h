/* safetensors.h - files of named arrays as Hugging Face's safetensors library defines them: 8
 * bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}},
 * then the data, without gaps.
 *
 * A file is not trusted: for any header, an open reader's tensors lie within the file,
 * don't overlap, and have the bytes that their type and shape need; memory is bounded by
 * TC_ST_HEADER_BYTES. All errors in a file are TC_EUSER. Everything here is Local.
 *
 * io/formats reads and writes model files of other programs, for `tercio ckpt export` and `import`.
 * In: tensors, one at a time. Out: a file that is complete or does not exist. The files, in reading order:
 *   safetensors.c   Hugging Face's files
 *   st_files.c      several of them as one model
 *   llmc.c          llm.c's files
 *   json_values.c   a bound on the values of a JSON text, before it is parsed */
#ifndef TC_SAFETENSORS_H
#define TC_SAFETENSORS_H

#include "src/base/base.h"

enum { TC_ST_HEADER_BYTES = 64 << 20 };   /* a longer header is an error */

/* Further types, which only the reader supports; TC_ST_OTHER: known, but not supported. */
enum { TC_ST_F16 = TC_DTYPES, TC_ST_OTHER };

struct tc_st_tensor {
  const char *name;              /* UTF-8 */
  int dtype, rank;               /* enum tc_dtype, or one of the above */
  int64_t dim[TC_DIMS];          /* may be 0 */
  int64_t offset, bytes;         /* in the data */
};

/* ---- reading ----------------------------------------------------------------------- */
struct tc_st;
/* *out is owned by the caller; its tensors are in order of their data. */
int tc_st_open(struct tc_st **out, const char *path, struct tc_err *err);
void tc_st_close(struct tc_st *s);
int tc_st_n(const struct tc_st *s);
const struct tc_st_tensor *tc_st_at(const struct tc_st *s, int i);       /* borrowed */
int tc_st_find(const struct tc_st *s, const char *name);                 /* -1: none */
/* The text of a key of "__metadata__"; NULL if it is missing. */
const char *tc_st_note(const struct tc_st *s, const char *key);
/* Reads `bytes` bytes of tensor i from its byte `from` on. */
int tc_st_read(const struct tc_st *s, int i, int64_t from, int64_t bytes, void *buf,
               struct tc_err *err);

/* ---- writing ----------------------------------------------------------------------- */
/* Begins a file with the header: dtype, rank and dim of each tensor are used. The data follow, in the order of the list,
 * by tc_output_write; *end: the bytes of the whole file. notes: key, value, key, value, ... NULL. *out is owned by the
 * caller, also after a failure; NULL: it was not begun. */
struct tc_output;
int tc_st_create(struct tc_output **out, int64_t *end, const char *path, const struct tc_st_tensor *tensor, int n,
                 const char *const *notes, struct tc_err *err);

/* ---- st_files.c: a model's tensors in one or several files: FILE, or those that an index
 * (model.safetensors.index.json: {"weight_map": {tensor: file, ...}}) names, all in its folder.
 *
 * An index is not trusted: files are names without a slash, each tensor is in the file that the
 * index says and in no other, and no file has a tensor that the index does not have. */

struct tc_st_files;
/* A path that ends in ".json" is an index. *out is owned by the caller. */
int tc_st_files_open(struct tc_st_files **out, const char *path, struct tc_err *err);
void tc_st_files_close(struct tc_st_files *s);
/* Tensors, in the order of the files' names and within a file of their data. */
int tc_st_files_n(const struct tc_st_files *s);
const struct tc_st_tensor *tc_st_files_at(const struct tc_st_files *s, int i);   /* borrowed */
int tc_st_files_find(const struct tc_st_files *s, const char *name);             /* -1: none */
/* tc_st_note of the first file. */
const char *tc_st_files_note(const struct tc_st_files *s, const char *key);
/* tc_st_read. */
int tc_st_files_read(const struct tc_st_files *s, int i, int64_t from, int64_t bytes, void *buf,
                   struct tc_err *err);

#endif
