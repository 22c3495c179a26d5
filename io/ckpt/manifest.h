/* manifest.h - the record of a checkpoint: what was saved, which box of which tensor lies
 * where, and the checksums of everything, its own text included.
 *
 * The text is JSON, one piece a line. Its last member, "crc32c", is the CRC-32C of the text
 * before that member; the end of the text has one fixed form, so that no bit of the file can
 * change unnoticed. */
#ifndef TC_MANIFEST_H
#define TC_MANIFEST_H

#include <jansson.h>

#include "io/ckpt/ckpt.h"

/* 1: one checksum per piece; 2: one per block. */
enum { TC_CKPT_FORMAT = 2 };

/* What a manifest may say. */
#define TC_MOST_BYTES (INT64_C(1) << 62)        /* of a tensor, a file */
#define TC_MOST_ATTACHED (INT64_C(1) << 30)     /* of the attached file, which is read at once */
enum { TC_MOST_NAME = 400 };                    /* bytes of a dataset's */

struct tc_piece {
  int32_t tensor, file;                    /* indices */
  int64_t start[TC_DIMS], count[TC_DIMS];  /* the box */
  int64_t offset, bytes;                   /* where its data lies in the file */
  const uint32_t *crc32c;                  /* [tc_blocks(bytes, block_bytes)] of its blocks */
  const char *dataset;                     /* "/tensors/wte.w" */
};

struct tc_ckpt_file {
  const char *name;                        /* "rank-00000.h5", no folder */
  int32_t writer;                          /* rank */
  int64_t size;                            /* bytes */
  uint32_t meta_crc32c;                    /* of all bytes that are no piece's, in order */
};

struct tc_manifest {
  struct tc_pool *pool;                    /* owns every string and array */
  struct tc_ckpt_meta meta;
  int64_t block_bytes;                     /* of data that has a checksum (io/ckpt/blocks.h) */
  int world;                               /* length of meta.rank_names */
  struct tc_ckpt_tensor *tensor; int n_tensors;
  struct tc_piece *piece; int n_pieces;    /* in order of tensors */
  int32_t *first_piece;                    /* [n_tensors + 1] */
  struct tc_ckpt_file *file; int n_files;
};

/* A row of meta.def. */
enum tc_meta_kind { TC_KIND_COUNT, TC_KIND_INT, TC_KIND_SEED, TC_KIND_TEXT, TC_KIND_WORD };
enum tc_meta_missing { TC_MISSING_FAULT, TC_MISSING_EMPTY, TC_MISSING_NOTHING };
struct tc_meta_row {
  const char *name;
  enum tc_meta_kind kind;
  int64_t least, most;
  enum tc_meta_missing missing;
  const char *shown;
  size_t field;                            /* offset in struct tc_ckpt_meta */
};
enum {                                     /* row numbers: TC_ROW_step, ... */
#define TC_META(name, ...) TC_ROW_##name,
#include "io/ckpt/meta.def"
#undef TC_META
  TC_META_ROWS
};
extern const struct tc_meta_row tc_meta_rows[TC_META_ROWS];
/* Local. The value of a row as it is in the manifest, owned by the caller; NULL: it is not written. */
json_t *tc_meta_json(const struct tc_ckpt_meta *m, const struct tc_meta_row *row);

/* Local. Sorts the pieces by tensor, fills first_piece, and checks all that readers rely on:
 * names, sizes without overflow, pieces inside their tensors and files, none overlapping in
 * either, every tensor covered exactly once, name and size of the attached file. `where` begins the
 * sentence. TC_EUSER. */
int tc_manifest_check(struct tc_manifest *m, const char *where, struct tc_err *err);

/* Local. An array of n numbers. */
json_t *tc_ints_json(const int64_t *x, int n);
/* Local. The text, owned by the caller. */
char *tc_manifest_text(const struct tc_manifest *m, size_t *bytes);
/* Local. Puts the checksum member at the end of a JSON object's text: an owned copy. */
char *tc_manifest_seal(const char *json, size_t bytes, size_t *sealed_bytes);

/* Local. The file `path`. TC_EINCOMPLETE if it isn't there or is cut off, TC_ECHECKSUM, TC_EUSER
 * (a newer format; nonsense with a right checksum). *out is owned by the caller. */
int tc_manifest_read(struct tc_manifest **out, const char *path, struct tc_err *err);
void tc_manifest_free(struct tc_manifest *m);

#endif
