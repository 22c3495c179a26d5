# Checkpoints: the only place that sees HDF5.
noinst_LIBRARIES += libtercio_io.a
libtercio_io_a_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) $(MPI_CFLAGS)
libtercio_io_a_SOURCES = \
  %D%/blocks.c \
  %D%/blocks.h \
  %D%/ckpt.h \
  %D%/ckpt_file.c \
  %D%/ckpt_file.h \
  %D%/ckpt_io.h \
  %D%/ckpt_read.c \
  %D%/ckpt_write.c \
  %D%/crc.c \
  %D%/crc.h \
  %D%/folder.c \
  %D%/folder.h \
  %D%/h5.c \
  %D%/h5.h \
  %D%/json.c \
  %D%/json.h \
  %D%/llmc.c \
  %D%/llmc.h \
  %D%/manifest.c \
  %D%/manifest_check.c \
  %D%/manifest.h \
  %D%/outfile.c \
  %D%/outfile.h \
  %D%/owner.c \
  %D%/owner.h \
  %D%/safetensors.c \
  %D%/safetensors.h \
  %D%/verify.c \
  %D%/view.c
