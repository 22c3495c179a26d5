/* files.h - files of the file systems that clusters have: how they are opened, read, made and renamed; includes all of
 * src/files.
 *
 * A file system of a network differs from a local disk in three ways that this folder is for:
 *   - an error may pass: a server that restarts answers EIO or ESTALE for a moment. "Could not look" is not "is bad":
 *     again.h says which errors are tried again, and for how long;
 *   - a call may be carried out and report an error all the same, since its answer was lost and it was sent twice.
 *     rename, mkdir, link and unlink therefore look what is there after an error (names.h);
 *   - a file of another node may be seen late.
 *
 * In: paths. Out: descriptors, texts, files that are complete or not there. The files, in reading order:
 *   again.h     errors that may pass
 *   names.h     rename, mkdir, link, unlink; folders: listing, making, flushing
 *   input.h     text files, also from a pipe that the user gave
 *   output.h    files that appear complete or not at all, and what they may replace */
#ifndef TC_FILES_H
#define TC_FILES_H

#include "src/files/again.h"
#include "src/files/input.h"
#include "src/files/names.h"
#include "src/files/output.h"

#endif
