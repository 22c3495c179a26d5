# Devices: ref (the oracle), cpu (oneDNN, OpenMP), cuda where it was found.
noinst_LIBRARIES += libtercio_kernels.a
libtercio_kernels_a_CPPFLAGS = $(AM_CPPFLAGS) $(DNNL_CFLAGS) -DTC_PKGLIBDIR='"$(pkglibdir)"'
libtercio_kernels_a_SOURCES = \
  %D%/cpu/cpu_act.c \
  %D%/cpu/cpu_attn.c \
  %D%/cpu/cpu_attn_bwd.c \
  %D%/cpu/cpu_attn_pack.c \
  %D%/cpu/cpu_bf16.c \
  %D%/cpu/cpu_cache.c \
  %D%/cpu/cpu.h \
  %D%/cpu/cpu_device.c \
  %D%/cpu/cpu_dnnl.c \
  %D%/cpu/cpu_elem.c \
  %D%/cpu/cpu_embed.c \
  %D%/cpu/cpu_few.c \
  %D%/cpu/cpu_head.c \
  %D%/cpu/cpu_kv.c \
  %D%/cpu/math.h \
  %D%/cpu/cpu_muon.c \
  %D%/cpu/cpu_norm.c \
  %D%/cpu/cpu_part.c \
  %D%/cpu/cpu_qk_scale.c \
  %D%/cpu/cpu_rms.c \
  %D%/cpu/cpu_round.c \
  %D%/cpu/cpu_rope.c \
  %D%/cpu/cpu_optim.c \
  %D%/cpu/cpu_tile.c \
  %D%/cpu/attn.h \
  %D%/attn_order.h \
  %D%/device.c \
  %D%/kernel.h \
  %D%/muon.h \
  %D%/nccl.h \
  %D%/open.c \
  %D%/ref/ref_act.c \
  %D%/ref/ref_device.c \
  %D%/ref/ref_elem.c \
  %D%/ref/ref_head.c \
  %D%/ref/ref_llama.c \
  %D%/ref/ref_model.c \
  %D%/ref/ref_muon.c \
  %D%/ref/ref.h

# The CUDA device is a shared object that the program loads when it is asked for (open.c), so the
# program itself needs no CUDA library. nvcc takes none of CFLAGS. No exceptions and no guarded
# statics: the module needs cudart and cuBLASLt, not C++'s library. Its sources are distributed
# whether they are built or not; the tests build them as C++ too (tests/emu).
cuda_sources = \
  %D%/cuda/attn.cu \
  %D%/cuda/attn_bwd.cu \
  %D%/cuda/attn_fwd.cu \
  %D%/cuda/attn_plain.cu \
  %D%/cuda/cache.cu \
  %D%/cuda/capture.cu \
  %D%/cudnn/cudnn.cu \
  %D%/cuda/device.cu \
  %D%/cuda/elem.cu \
  %D%/cuda/embed.cu \
  %D%/cuda/gemm.cu \
  %D%/cuda/head.cu \
  %D%/cuda/muon.cu \
  %D%/cuda/nccl.cu \
  %D%/cuda/norm.cu \
  %D%/cuda/optim.cu \
  %D%/cuda/qknorm.cu \
  %D%/cuda/rope.cu \
  %D%/cuda/rows.cu \
  %D%/cuda/streams.cu \
  %D%/cuda/tune.cu \
  %D%/cuda/xent.cu
EXTRA_DIST += $(cuda_sources) %D%/cuda/attn.h %D%/cuda/dev.h %D%/cuda/gemm.h %D%/cuda/ptx.h
CUDA_FLAGS = -std=c++17 -O3 -lineinfo \
  -Xcompiler '-Wall -fPIC -fvisibility=hidden -fno-exceptions -fno-threadsafe-statics'
SUFFIXES = .cu
.cu.o:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) $(CUDA_FLAGS) $(NCCL_FLAGS) $(NVTX_FLAGS) $(CUDA_GENCODE) -I$(top_srcdir) \
	  -MD -MF $(@:.o=.cu.d) -c $< -o $@

if TC_CUDA
cuda_objects = $(cuda_sources:.cu=.o)
cuda_module = %D%/tercio-cuda.so
moduleexecdir = $(pkglibdir)
moduleexec_DATA = $(cuda_module) $(cudnn_module)
$(cuda_module): $(cuda_objects)
	$(AM_V_GEN)$(CC) -shared -Wl,-z,defs -o $@ $(cuda_objects) $(CUDA_LIBS) $(CUBLASLT_LIBS) -lm
CLEANFILES += $(cuda_module) $(cuda_objects) $(cuda_objects:.o=.cu.d)
-include $(cuda_objects:.o=.cu.d)
endif

# Attention by cuDNN: a shared object that the CUDA module opens where it is there. C++ with its library, as
# cudnn-frontend needs it. Little of what is compiled is called, and all of it once: -O1 takes half the time.
cudnn_sources = %D%/cudnn/attention.cc
EXTRA_DIST += $(cudnn_sources) %D%/cudnn/attention.h %D%/cudnn/cut.h
if TC_CUDNN
cudnn_module = %D%/tercio-cudnn.so
%D%/cudnn/attention.o: $(top_srcdir)/%D%/cudnn/attention.cc $(top_srcdir)/%D%/cudnn/attention.h $(top_srcdir)/%D%/cudnn/cut.h
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(CXX) -std=c++17 -O1 -fPIC -fvisibility=hidden $(TC_WARNINGS) -I$(top_srcdir) $(CUDNN_FLAGS) \
	  -c $(top_srcdir)/%D%/cudnn/attention.cc -o $@
$(cudnn_module): %D%/cudnn/attention.o
	$(AM_V_GEN)$(CXX) -shared -Wl,-z,defs -o $@ %D%/cudnn/attention.o $(CUDNN_LIBS)
CLEANFILES += $(cudnn_module) %D%/cudnn/attention.o
endif
