/* versions.h - the compiler and the libraries that this program was built with and runs on. */
#ifndef TC_VERSIONS_H
#define TC_VERSIONS_H

/* Local. "gcc 12.2.0, Open MPI v4.1.4, OpenPMIx 4.2.2, HDF5 1.10.8, oneDNN 2.6.3": the compiler
 * that built it, the libraries that are loaded. Owned by the caller. */
char *tc_versions_text(void);

#endif
