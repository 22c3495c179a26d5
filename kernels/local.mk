# Devices: ref (the oracle), cpu (oneDNN, OpenMP), cuda where it was found.
noinst_LIBRARIES += libtercio_kernels.a
libtercio_kernels_a_CPPFLAGS = $(AM_CPPFLAGS) $(DNNL_CFLAGS) -DTC_PKGLIBDIR='"$(pkglibdir)"'
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
  %D%/device.c \
  %D%/kernel.h \
  %D%/module.c \
  %D%/ref.h \
  %D%/ref_device.c \
  %D%/ref_elem.c \
  %D%/ref_head.c \
  %D%/ref_model.c

# The CUDA device is a shared object that the program loads when it is asked for (module.c), so the
# program itself needs no CUDA library. nvcc takes none of CFLAGS. No exceptions and no guarded
# statics: the module needs cudart and cuBLASLt, not C++'s library. Its sources are distributed
# whether they are built or not; the tests build them as C++ too (tests/emu).
cuda_sources = \
  %D%/cuda_attn.cu \
  %D%/cuda_attn_bwd.cu \
  %D%/cuda_attn_fwd.cu \
  %D%/cuda_attn_plain.cu \
  %D%/cuda_capture.cu \
  %D%/cuda_clock.cu \
  %D%/cuda_copy.cu \
  %D%/cuda_device.cu \
  %D%/cuda_elem.cu \
  %D%/cuda_embed.cu \
  %D%/cuda_gemm.cu \
  %D%/cuda_head.cu \
  %D%/cuda_nccl.cu \
  %D%/cuda_optim.cu \
  %D%/cuda_rows.cu \
  %D%/cuda_xent.cu
EXTRA_DIST += $(cuda_sources) %D%/cuda_dev.h %D%/cuda_ptx.h
CUDA_FLAGS = -std=c++17 -O3 -lineinfo \
  -Xcompiler '-Wall -fPIC -fvisibility=hidden -fno-exceptions -fno-threadsafe-statics'
SUFFIXES = .cu
.cu.o:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) $(CUDA_FLAGS) $(NCCL_FLAGS) $(CUDA_GENCODE) -I$(top_srcdir) \
	  -MD -MF $(@:.o=.cu.d) -c $< -o $@

if TC_CUDA
cuda_objects = $(cuda_sources:.cu=.o)
cuda_module = %D%/tercio-cuda.so
moduleexecdir = $(pkglibdir)
moduleexec_DATA = $(cuda_module)
$(cuda_module): $(cuda_objects)
	$(AM_V_GEN)$(CC) -shared -Wl,-z,defs -o $@ $(cuda_objects) $(CUDA_LIBS) $(CUBLASLT_LIBS) -lm
CLEANFILES += $(cuda_module) $(cuda_objects) $(cuda_objects:.o=.cu.d)
-include $(cuda_objects:.o=.cu.d)
endif
