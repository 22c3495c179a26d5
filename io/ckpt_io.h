/* ckpt_io.h - what the files of io/ and the inspector (src/cmd_ckpt*.c) share and nobody else
 * needs. */
#ifndef TC_CKPT_IO_H
#define TC_CKPT_IO_H

#include "io/manifest.h"

struct tc_ckpt {
  char *path;                     /* the step folder; owned */
  struct tc_manifest *m;          /* owned */
  uint8_t *checked;               /* bit k: piece k was read and its CRC-32C is right */
  int fd, fd_file;                /* the file last read from; -1 */
};

static inline bool tc_piece_checked(const struct tc_ckpt *c, int k)
{ return c->checked[k / 8] >> (k % 8) & 1; }
static inline void tc_piece_set_checked(struct tc_ckpt *c, int k)
{ c->checked[k / 8] |= (uint8_t)(1u << (k % 8)); }

/* Local. Opens file f for reading after checking its size: TC_EINCOMPLETE if it is missing or
 * too short, TC_ECHECKSUM if too long. Returns a descriptor. */
int tc_ckpt_open_file(const struct tc_ckpt *c, int f, struct tc_err *err);
/* Local. CRC-32C of `bytes` of fd at offset, going on from *crc; false if they can't be read. */
bool tc_crc_range(int fd, int64_t offset, int64_t bytes, uint32_t *crc);
/* Local. CRC-32C of a file's bytes that are not data: the n pieces given must be sorted by
 * offset. False if they can't be read. */
bool tc_crc_meta(int fd, int64_t size, const struct tc_piece *const *by_offset, int n,
                 uint32_t *crc);
/* Local. The fault sink of a verification. */
struct tc_faults {
  void (*fault)(void *ctx, int status, const char *text);   /* may be NULL */
  void *ctx;
  int worst, n;                   /* worst status, number of faults */
  struct tc_err first;
};
/* Local. Verifies the files first, first + stride, ... of an open checkpoint. */
void tc_ckpt_verify_files(struct tc_ckpt *c, bool deep, int first, int stride,
                          struct tc_faults *f);

/* Collective. All ranks return the status and the sentence of the first rank that failed. */
int tc_ckpt_agree(struct tc_comm *world, int status, struct tc_err *err);
/* Collective. All ranks return rank 0's status and sentence. */
int tc_ckpt_follow(struct tc_comm *world, int status, struct tc_err *err);

/* Local. Puts back steps whose replacement was interrupted, deletes what was being deleted or
 * written and was given up (all but `except`, which may be NULL). Faults are only warned of. */
void tc_ckpt_tidy(const char *dir, const char *except);

#endif
