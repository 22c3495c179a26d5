# Devices: ref (the oracle), cpu (oneDNN, OpenMP), cuda where it was found.
noinst_LIBRARIES += libtercio_kernels.a
libtercio_kernels_a_CPPFLAGS = $(AM_CPPFLAGS) $(DNNL_CFLAGS)
libtercio_kernels_a_SOURCES = \
  %D%/cpu.h \
  %D%/cpu_attn.c \
  %D%/cpu_device.c \
  %D%/cpu_dnnl.c \
  %D%/cpu_elem.c \
  %D%/cpu_embed.c \
  %D%/cpu_head.c \
  %D%/cpu_math.h \
  %D%/cpu_norm.c \
  %D%/cpu_optim.c \
  %D%/cpu_tile.c \
  %D%/cuda_probe.h \
  %D%/device.c \
  %D%/kernel.h \
  %D%/ref.h \
  %D%/ref_device.c \
  %D%/ref_elem.c \
  %D%/ref_head.c \
  %D%/ref_model.c

# nvcc takes none of CFLAGS. No exceptions and no guarded statics: the C linker needs cudart
# alone. CUDA sources are distributed whether they are built or not.
cuda_sources = %D%/cuda_probe.cu
EXTRA_DIST += $(cuda_sources)
CUDA_FLAGS = -std=c++17 -O3 -lineinfo -Xcompiler '-Wall -fno-exceptions -fno-threadsafe-statics'
SUFFIXES = .cu
.cu.o:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) $(CUDA_FLAGS) $(CUDA_GENCODE) -I$(top_srcdir) \
	  -MD -MF $(@:.o=.cu.d) -c $< -o $@

if TC_CUDA
cuda_objects = %D%/cuda_probe.o
libtercio_kernels_a_LIBADD = $(cuda_objects)
CLEANFILES += $(cuda_objects) $(cuda_objects:.o=.cu.d)
-include %D%/cuda_probe.cu.d
endif
