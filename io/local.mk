# Checkpoints and files of other programs; a part of libtercio_run.a.
io_sources = \
  %D%/ckpt/blocks.c \
  %D%/ckpt/blocks.h \
  %D%/ckpt/ckpt.h \
  %D%/ckpt/commit.c \
  %D%/ckpt/compare.c \
  %D%/ckpt/meta.def \
  %D%/ckpt/rank_file.c \
  %D%/ckpt/h5.c \
  %D%/ckpt/h5.h \
  %D%/ckpt/impl.h \
  %D%/ckpt/inspect.h \
  %D%/ckpt/load.c \
  %D%/ckpt/manifest.c \
  %D%/ckpt/manifest.h \
  %D%/ckpt/manifest_check.c \
  %D%/ckpt/owner.c \
  %D%/ckpt/owner.h \
  %D%/ckpt/owner_before.c \
  %D%/ckpt/owner_take.c \
  %D%/ckpt/read.c \
  %D%/ckpt/save.c \
  %D%/ckpt/steps.c \
  %D%/ckpt/tidy.c \
  %D%/ckpt/verify.c \
  %D%/ckpt/h5_view.c \
  %D%/crc.c \
  %D%/crc.h \
  %D%/folder.c \
  %D%/folder.h \
  %D%/formats/json_values.c \
  %D%/formats/json_values.h \
  %D%/formats/llmc.c \
  %D%/formats/llmc.h \
  %D%/formats/safetensors.c \
  %D%/formats/safetensors.h \
  %D%/formats/st_files.c
