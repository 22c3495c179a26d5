/* st_files.h - a model's tensors in one or several safetensors files: FILE, or those that an index
 * (model.safetensors.index.json: {"weight_map": {tensor: file, ...}}) names, all in its folder.
 *
 * An index is not trusted: files are names without a slash, each tensor is in the file that the
 * index says and in no other, and no file has a tensor that the index does not have. Everything here
 * is Local; faults of a file are TC_EUSER. */
#ifndef TC_ST_FILES_H
#define TC_ST_FILES_H

#include "io/formats/safetensors.h"

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
