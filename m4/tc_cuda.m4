# tc_cuda.m4 - --with-cuda=check|yes|no|DIR: nvcc for kernels/cuda/*.cu, cudart to link with.
#
# A C program linked with cudart decides. cudart is linked statically where that is there, so
# that the program starts on machines without CUDA; it finds the driver when it is first used.
# NVCC, CUDA_CFLAGS, CUDA_LIBS, CUDA_GENCODE; condition TC_CUDA; defines TC_CUDA*.

# Sets tc_cuda_missing to what can't be found, "" if everything is there.
AC_DEFUN([TC_CUDA_TRY], [
  tc_cuda_missing=
  tc_cuda_path=
  for tc_dir in "$tc_cuda_dir" "$CUDA_HOME" "$CUDA_PATH"; do
    AS_IF([test -n "$tc_dir"], [tc_cuda_path=$tc_cuda_path$tc_dir/bin:])
  done
  # A folder given by name counts alone.
  AS_IF([test -n "$tc_cuda_dir"], [tc_cuda_path=$tc_cuda_dir/bin],
    [tc_cuda_path=$tc_cuda_path$PATH:/usr/local/cuda/bin])
  AC_PATH_PROG([NVCC], [nvcc], [], [$tc_cuda_path])
  AS_IF([test -z "$NVCC"], [tc_cuda_missing=nvcc],
    [TC_CUDA_ROOT
     TC_CUDA_CHECKS])
])

# tc_cuda_root: nvcc in PATH may be a link or a script, so it is asked for its folder.
AC_DEFUN([TC_CUDA_ROOT], [
  echo > conftest.cu
  tc_cuda_root=`$NVCC --dryrun -c conftest.cu -o conftest.o 2>&1 | sed -n 's/^#\\$ TOP=//p' | head -n 1`
  rm -f conftest.cu conftest.o
  AS_IF([test -z "$tc_cuda_root"], [tc_cuda_root=`dirname "$NVCC"`/..])
  tc_cuda_root=`cd "$tc_cuda_root" && pwd`
  CUDA_CFLAGS=-I$tc_cuda_root/include
  tc_cuda_L=
  for tc_dir in lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib; do
    AS_IF([test -z "$tc_cuda_L" && ls "$tc_cuda_root/$tc_dir"/libcudart* >/dev/null 2>&1],
      [tc_cuda_L="-L$tc_cuda_root/$tc_dir"])
  done
])

# TC_CUDA_LINK(HEADER, CALL, LIBS, WHAT, ACTION)
AC_DEFUN([TC_CUDA_LINK], [
  AS_IF([test -z "$tc_cuda_missing"],
    [AC_MSG_CHECKING([for $4])
     tc_save_CPPFLAGS=$CPPFLAGS tc_save_LIBS=$LIBS
     CPPFLAGS=$CUDA_CFLAGS LIBS="$tc_cuda_L $3 $LIBS"
     AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <$1>]], [[(void)$2;]])],
       [AC_MSG_RESULT([yes])
        $5],
       [AC_MSG_RESULT([no])
        tc_cuda_missing="$4 ($1, $3)"])
     CPPFLAGS=$tc_save_CPPFLAGS LIBS=$tc_save_LIBS])
])

AC_DEFUN([TC_CUDA_CHECKS], [
  CUDA_GENCODE="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=@<:@sm_90,compute_90@:>@"
  AC_MSG_CHECKING([that nvcc compiles for sm_80 and sm_90])
  cat > conftest.cu <<'_TC_END'
__global__ void f(float *x) { x@<:@threadIdx.x@:>@ += 1; }
_TC_END
  AS_IF([$NVCC $CUDA_GENCODE -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     tc_cuda_missing="an nvcc that compiles for sm_80 and sm_90 ($NVCC)"])
  tc_cuda_archs="sm_80 sm_90"
  # Blackwell, from CUDA 12.8 on; an older nvcc leaves it the PTX of compute_90, which the driver compiles at each start.
  for tc_arch in 100 120; do
    tc_code="-gencode arch=compute_$tc_arch,code=sm_$tc_arch"
    AS_IF([test -n "$tc_cuda_missing"], [continue])
    AC_MSG_CHECKING([whether nvcc compiles for sm_$tc_arch])
    AS_IF([$NVCC $tc_code -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1],
      [AC_MSG_RESULT([yes])
       CUDA_GENCODE="$CUDA_GENCODE $tc_code" tc_cuda_archs="$tc_cuda_archs sm_$tc_arch"],
      [AC_MSG_RESULT([no])])
  done
  rm -f conftest.cu conftest.o
  TC_CUDA_LINK([cuda_runtime_api.h], [cudaGetDeviceCount((int *)0)],
    [-lcudart_static -lpthread -ldl -lrt], [cudart, static],
    [CUDA_LIBS="$tc_cuda_L -lcudart_static -lpthread -ldl -lrt"])
  AS_IF([test -n "$tc_cuda_missing"],
    [tc_cuda_missing=
     TC_CUDA_LINK([cuda_runtime_api.h], [cudaGetDeviceCount((int *)0)], [-lcudart], [cudart],
       [CUDA_LIBS="$tc_cuda_L -lcudart"])])
  TC_CUDA_LINK([cublasLt.h], [cublasLtGetVersion()], [-lcublasLt], [cublasLt],
    [CUBLASLT_LIBS="$tc_cuda_L -lcublasLt"])
  TC_CUDA_NCCL
  TC_CUDA_NVTX
])

# The module opens libnccl itself when it is asked for; only its header is needed, and that not by all: that of
# NCCL_HOME, which the module looks into, too, or one that the compiler finds. nvcc does not get the user's CPPFLAGS.
AC_DEFUN([TC_CUDA_NCCL], [
  AC_MSG_CHECKING([for nccl.h])
  tc_nccl_I=
  AS_IF([test -n "$NCCL_HOME"], [tc_nccl_I=-I$NCCL_HOME/include])
  tc_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$tc_nccl_I $CUDA_CFLAGS"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]],
      [[ncclConfig_t c = NCCL_CONFIG_INITIALIZER; return c.blocking;]])],
    [AC_MSG_RESULT([yes])
     NCCL_FLAGS="-DTC_NCCL $tc_nccl_I"],
    [AC_MSG_RESULT([no: set NCCL_HOME to the folder with include/nccl.h, of 2.14 or later])])
  CPPFLAGS=$tc_save_CPPFLAGS
])

# Names for profilers (streams.cu) need a header alone, which the toolkit has from CUDA 10 on.
AC_DEFUN([TC_CUDA_NVTX], [
  AC_MSG_CHECKING([for nvtx3/nvToolsExt.h])
  tc_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS=$CUDA_CFLAGS
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nvtx3/nvToolsExt.h>]], [[return nvtxDomainCreateA("") != 0;]])],
    [AC_MSG_RESULT([yes])
     NVTX_FLAGS=-DTC_NVTX],
    [AC_MSG_RESULT([no])])
  CPPFLAGS=$tc_save_CPPFLAGS
])

# Attention by cuDNN is a module of its own (kernels/cudnn): C++, cudnn-frontend's headers and cuDNN's, linked with cuDNN
# and with NVRTC, which the headers call. cuDNN may be in the toolkit's folder or in CUDNN_HOME. Sets tc_cudnn_missing.
AC_DEFUN([TC_CUDNN_TRY], [
  tc_cudnn_missing=
  tc_cudnn_I= tc_cudnn_L=
  for tc_dir in "$tc_cudnn_dir" "$CUDNN_FRONTEND_HOME"; do
    AS_IF([test -n "$tc_dir" && test -z "$tc_cudnn_I"],
      [AS_IF([test -f "$tc_dir/include/cudnn_frontend.h"], [tc_cudnn_I="-isystem $tc_dir/include"],
        [tc_cudnn_I="-isystem $tc_dir"])])
  done
  AS_IF([test -n "$CUDNN_HOME"],
    [tc_cudnn_I="$tc_cudnn_I -isystem $CUDNN_HOME/include"
     for tc_dir in lib lib64; do
       AS_IF([test -d "$CUDNN_HOME/$tc_dir"], [tc_cudnn_L="$tc_cudnn_L -L$CUDNN_HOME/$tc_dir"])
     done])
  tc_cudnn_I="$tc_cudnn_I -isystem $tc_cuda_root/include"
  AC_LANG_PUSH([C++])
  tc_save_CPPFLAGS=$CPPFLAGS tc_save_CXXFLAGS=$CXXFLAGS tc_save_LIBS=$LIBS
  CPPFLAGS=$tc_cudnn_I CXXFLAGS="$CXXFLAGS -std=c++17"          # as the module is compiled: GCC 8 takes C++14
  AC_MSG_CHECKING([for cudnn_frontend.h, 1.14 or later, and cudnn.h, 9.8 or later])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <cudnn.h>
#include <cudnn_frontend_version.h>
#if !__has_include(<cudnn_frontend.h>) || CUDNN_FRONTEND_VERSION < 11400 || CUDNN_VERSION < 90800 || __cplusplus < 201703L
#error too old
#endif]], [[]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     tc_cudnn_missing="cudnn_frontend.h (1.14 or later) or cudnn.h (9.8 or later)"])
  AS_IF([test -z "$tc_cudnn_missing"],
    [AC_MSG_CHECKING([for libcudnn.so.9 and libnvrtc])
     tc_cudnn_libs="$tc_cudnn_L $tc_cuda_L -l:libcudnn.so.9 -lnvrtc"
     LIBS="$tc_cudnn_libs $CUDA_LIBS $LIBS"
     AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cudnn.h>
#include <nvrtc.h>]], [[int n; return nvrtcVersion(&n, &n) + (int)cudnnGetVersion();]])],
       [AC_MSG_RESULT([yes])],
       [AC_MSG_RESULT([no])
        tc_cudnn_missing="libcudnn.so.9 or libnvrtc"])])
  CPPFLAGS=$tc_save_CPPFLAGS CXXFLAGS=$tc_save_CXXFLAGS LIBS=$tc_save_LIBS
  AC_LANG_POP([C++])
])

AC_DEFUN([TC_CUDNN], [
  AC_ARG_WITH([cudnn-frontend],
    [AS_HELP_STRING([--with-cudnn-frontend=check|yes|no|DIR],
      [attention by cuDNN, for run.deterministic = no; needs cudnn-frontend, cuDNN 9 and C++17 (default: check)])],
    [], [with_cudnn_frontend=check])
  AC_ARG_VAR([CUDNN_FRONTEND_HOME], [the folder with include/cudnn_frontend.h, if the compiler does not find it])
  AC_ARG_VAR([CUDNN_HOME], [the folder with include/cudnn.h and lib/libcudnn.so.9, if they are not in CUDA's])
  tc_cudnn=no
  tc_cudnn_said=no
  tc_cudnn_dir=
  CUDNN_FLAGS= CUDNN_LIBS=
  AS_CASE(["$with_cudnn_frontend"],
    [no], [],
    [AS_CASE(["$with_cudnn_frontend"], [yes|check], [], [tc_cudnn_dir=$with_cudnn_frontend])
     AS_IF([test "$tc_cuda" = no], [tc_cudnn_missing="CUDA"],
       [test "$tc_cxx" = no], [tc_cudnn_missing="a C++ compiler"],
       [TC_CUDNN_TRY])
     AS_IF([test -z "$tc_cudnn_missing"],
       [tc_cudnn=yes
        tc_cudnn_said=yes
        CUDNN_FLAGS=$tc_cudnn_I
        CUDNN_LIBS="$tc_cudnn_libs $CUDA_LIBS"],
       [AS_IF([test "x$with_cudnn_frontend" != xcheck],
          [AC_MSG_ERROR([--with-cudnn-frontend=$with_cudnn_frontend: $tc_cudnn_missing was not found])])
        tc_cudnn_said="no: $tc_cudnn_missing was not found"])])
  AC_SUBST([CUDNN_FLAGS])
  AC_SUBST([CUDNN_LIBS])
  AM_CONDITIONAL([TC_CUDNN], [test "$tc_cudnn" = yes])
])

AC_DEFUN([TC_FIND_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=check|yes|no|DIR],
      [kernels for NVIDIA GPUs; needs nvcc, cudart and cublasLt; NCCL if its header is found (default: check)])],
    [], [with_cuda=check])
  AC_ARG_VAR([NCCL_HOME], [the folder with include/nccl.h, if the compiler does not find it])
  tc_cuda_dir=
  tc_cuda=no
  tc_cuda_said=no
  CUDA_CFLAGS= CUDA_LIBS= CUDA_GENCODE= CUBLASLT_LIBS= NCCL_FLAGS= NVTX_FLAGS=
  AS_CASE(["$with_cuda"],
    [no], [],
    [AS_CASE(["$with_cuda"], [yes|check], [], [tc_cuda_dir=$with_cuda])
     TC_CUDA_TRY
     AS_IF([test -z "$tc_cuda_missing"],
       [tc_cuda=yes
        tc_cuda_version=`$NVCC --version | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`
        tc_cuda_said="$tc_cuda_version in $tc_cuda_root"
        AS_IF([test -z "$NCCL_FLAGS"], [tc_cuda_said="$tc_cuda_said, without NCCL"])
        AS_IF([test -z "$NVTX_FLAGS"], [tc_cuda_said="$tc_cuda_said, without NVTX"])
        AC_DEFINE([TC_CUDA], [1], [Kernels for NVIDIA GPUs are built.])
        AC_DEFINE_UNQUOTED([TC_CUDA_VERSION], ["$tc_cuda_version"], [CUDA's version.])
        AC_DEFINE_UNQUOTED([TC_CUDA_ARCHS], ["$tc_cuda_archs"], [What kernels are compiled for.])],
       [AS_IF([test "x$with_cuda" != xcheck],
          [AC_MSG_ERROR([--with-cuda=$with_cuda: $tc_cuda_missing was not found])])
        CUDA_CFLAGS= CUDA_LIBS=
        tc_cuda_said="no: $tc_cuda_missing was not found"])])
  AC_SUBST([CUDA_CFLAGS])
  AC_SUBST([CUDA_LIBS])
  AC_SUBST([CUBLASLT_LIBS])
  AC_SUBST([NCCL_FLAGS])
  AC_SUBST([NVTX_FLAGS])
  AC_SUBST([CUDA_GENCODE])
  AM_CONDITIONAL([TC_CUDA], [test "$tc_cuda" = yes])
])
