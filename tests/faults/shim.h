/* shim.h - stands between a program and the C library's calls on files and folders.
 *
 * Counts every call on what lies under one folder, makes the K-th of them (or the first from there
 * on at which the fault makes sense) go wrong, or writes down what was done (for a replay). Linked
 * into a test it takes the place of the library's functions for the test and for all shared
 * libraries (HDF5, MPI); as shim.so it is preloaded into any program:
 *
 *   LD_PRELOAD=shim.so TC_SHIM_ROOT=DIR TC_SHIM_LOG=FILE [TC_SHIM_CALL=K TC_SHIM_FAULT=NAME]
 *   [TC_SHIM_RANK=R (of mpirun)] PROGRAM
 *
 * appends "calls N" to FILE at exit, or "fired NAME at call K: open PATH" when it strikes. With
 * TC_SHIM_LATE_MS every fdatasync (a save begins with that of the metrics) takes so long, with TC_SHIM_READ_MS every
 * pread of a file under DIR so much longer: a disk that answers late. With TC_SHIM_STUCK a pread that failed
 * fails again at that place.
 *
 * Each rank that is a thread counts its calls by a counter of its own, so that they have an order: a thread names
 * its counter, which is 0 otherwise. Memory maps and the streams of <stdio.h> aren't seen. */
#ifndef TC_SHIM_H
#define TC_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shim_kind {
  SHIM_CREATE, SHIM_OPEN, SHIM_MKDIR, SHIM_WRITE, SHIM_SYNC, SHIM_RENAME, SHIM_UNLINK, SHIM_SIZE,
  SHIM_CLOSE, SHIM_READ, SHIM_LOOK, SHIM_KINDS
};

enum shim_fault {
  SHIM_NONE,
  SHIM_KILL,                      /* SIGKILL before the call */
  SHIM_KILL_AFTER,                /* SIGKILL when it has had its effect */
  SHIM_KILL_MID,                  /* SIGKILL when half of a write is done */
  SHIM_EIO,                       /* fails; a close has closed all the same */
  SHIM_ENOSPC,
  SHIM_SHORT,                     /* writes half and says so */
  SHIM_SHORT_FULL,                /* writes half and says so, then the disk is full for good */
  SHIM_FULL,                      /* from here on nothing can be created or written */
  SHIM_READ_ONLY,                 /* from here on nothing can be changed (EROFS) */
  SHIM_FAULTS
};
extern const char *const shim_fault_name[SHIM_FAULTS];

enum { SHIM_COUNTERS = 8, SHIM_CALLS = 8192, SHIM_PATH = 512 };

/* Shared with children, so that what a killed one did can be seen. */
struct shim {
  char root[SHIM_PATH];           /* "": off */
  bool dry_sync;                  /* fsync does nothing: faster, and a kill loses no page */
  int counter, call, fault;       /* strike: from the call-th (from 1) of the counter on, once */
  int count[SHIM_COUNTERS];
  uint8_t kind[SHIM_COUNTERS][SHIM_CALLS];
  int fired;                      /* the strike took place */
  char what[SHIM_PATH + 64];      /* "fsync /path" */
};
struct shim *shim_ctl(void);

/* Sets the counter of this thread. */
void shim_counter(int counter);
/* Does the fault make sense at a call of this kind? */
bool shim_applies(int kind, int fault);
/* Counts from 0 under root; strikes as given (fault SHIM_NONE: never). */
void shim_arm(const char *root, int counter, int call, int fault);
void shim_disarm(void);

/* ---- the record ------------------------------------------------------------------- */

enum shim_op {
  OP_CREATE, OP_OPEN, OP_SIZE, OP_WRITE, OP_SYNC, OP_CLOSE, OP_RENAME, OP_MKDIR, OP_UNLINK,
  OP_RMDIR, OP_MARK
};
struct shim_record {
  int op, fd;                     /* MARK: fd is the number given */
  char *path, *to;                /* owned; NULL: not set */
  int64_t offset, bytes;          /* SIZE: bytes is the new size */
  char *data;                     /* owned */
};
/* While on, effects under the armed root are noted in the order they had. */
void shim_record_on(bool on);
void shim_mark(int number);
const struct shim_record *shim_records(int *n);   /* borrowed */

#endif
