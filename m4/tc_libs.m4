# tc_libs.m4 - the libraries Tercio stands on. A missing one stops configure with the name of
# the Debian package to install.

# TC_PKG(VARIABLE, MODULES, PACKAGE): VARIABLE_CFLAGS and VARIABLE_LIBS by pkg-config.
AC_DEFUN([TC_PKG], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [AC_MSG_ERROR([$2 was not found: install $3])])
])

# TC_SEARCH_LIB(LIBRARY, HEADER, FUNCTION, PACKAGE, VARIABLE): a library without pkg-config.
AC_DEFUN([TC_SEARCH_LIB], [
  AC_CHECK_HEADER([$2], [], [AC_MSG_ERROR([$2 was not found: install $4])])
  AC_CHECK_LIB([$1], [$3], [$5="-l$1"],
    [AC_MSG_ERROR([lib$1 with $3 was not found: install $4])])
  AC_SUBST([$5])
])

# TC_OPENMP: OPENMP_CFLAGS. Off for the thread sanitizer, which takes libgomp's own
# synchronisation for races.
AC_DEFUN([TC_OPENMP], [
  TC_OPENMP_WARNINGS=
  tc_openmp=no
  AS_IF([test "x$enable_sanitize" = xthread],
    [OPENMP_CFLAGS=
     TC_OPENMP_WARNINGS=-Wno-unknown-pragmas
     AC_SUBST([OPENMP_CFLAGS])
     dnl oneDNN brings the library itself; the number of its threads is set through it.
     AC_CHECK_LIB([gomp], [omp_set_num_threads], [OPENMP_LIBS=-lgomp],
       [AC_MSG_ERROR([libgomp was not found: install libgomp1])])],
    [AC_OPENMP
     AS_CASE(["$ac_cv_prog_c_openmp"],
       [unsupported|no], [AC_MSG_ERROR([the compiler $CC knows no OpenMP: use gcc, or install libomp-dev for clang])])
     tc_openmp=yes])
  AC_SUBST([OPENMP_LIBS])
])

# TC_MPI: MPI_CFLAGS and MPI_LIBS. From $MPICC if the user names one, else pkg-config, else the
# mpicc in PATH.
AC_DEFUN([TC_MPI], [
  AC_ARG_VAR([MPICC], [the MPI compiler wrapper that is asked for flags (default: pkg-config ompi-c, then mpicc)])
  tc_mpi=no
  AS_IF([test -z "$MPICC"],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [tc_mpi=pkg-config], [
       PKG_CHECK_MODULES([MPI], [ompi], [tc_mpi=pkg-config], [:])])])
  AS_IF([test "$tc_mpi" = no],
    [AS_IF([test -z "$MPICC"], [AC_PATH_PROG([MPICC], [mpicc])])
     AS_IF([test -z "$MPICC"],
       [AC_MSG_ERROR([Open MPI was not found: install libopenmpi-dev, or set MPICC])])
     MPI_CFLAGS=`$MPICC --showme:compile` && MPI_LIBS=`$MPICC --showme:link` ||
       AC_MSG_ERROR([$MPICC does not understand --showme: Open MPI's mpicc is needed])])
  TC_TRY_LINK([MPI], [mpi.h], [MPI_Init_thread(0, 0, MPI_THREAD_MULTIPLE, 0)],
    [libopenmpi-dev])
  AC_CHECK_PROG([MPIRUN], [mpirun], [mpirun])
  AS_IF([test -z "$MPIRUN"], [AC_MSG_ERROR([mpirun was not found: install openmpi-bin])])
])

# TC_TRY_LINK(VARIABLE, HEADER, CALL, PACKAGE): a call links with VARIABLE_CFLAGS and _LIBS.
AC_DEFUN([TC_TRY_LINK], [
  AC_MSG_CHECKING([that $2 compiles and links])
  tc_save_CPPFLAGS=$CPPFLAGS tc_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $$1_CFLAGS" LIBS="$$1_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <$2>]], [[(void)$3;]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([$2 does not compile and link with $$1_CFLAGS $$1_LIBS: install $4])])
  CPPFLAGS=$tc_save_CPPFLAGS LIBS=$tc_save_LIBS
])

# TC_HDF5: the parallel HDF5, built with the same MPI.
AC_DEFUN([TC_HDF5], [
  PKG_CHECK_MODULES([HDF5], [hdf5-openmpi], [], [
    PKG_CHECK_MODULES([HDF5], [hdf5], [],
      [AC_MSG_ERROR([parallel HDF5 was not found: install libhdf5-openmpi-dev])])])
  AC_MSG_CHECKING([that HDF5 is parallel])
  tc_save_CPPFLAGS=$CPPFLAGS tc_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $HDF5_CFLAGS $MPI_CFLAGS" LIBS="$HDF5_LIBS $MPI_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <hdf5.h>
#ifndef H5_HAVE_PARALLEL
#error serial
#endif
]], [[(void)H5Pset_fapl_mpio(0, MPI_COMM_WORLD, MPI_INFO_NULL);]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([HDF5 is not the parallel build: install libhdf5-openmpi-dev])])
  CPPFLAGS=$tc_save_CPPFLAGS LIBS=$tc_save_LIBS
])

# TC_DNNL: oneDNN. Its C API changed in 3.0; the header has no version that both know, so a
# function that only 3.x has is asked for.
AC_DEFUN([TC_DNNL], [
  TC_SEARCH_LIB([dnnl], [dnnl.h], [dnnl_sgemm], [libdnnl-dev], [DNNL_LIBS])
  AC_CHECK_LIB([dnnl], [dnnl_matmul_primitive_desc_create],
    [tc_dnnl_api=3 DNNL_CFLAGS=-DTC_DNNL_V3], [tc_dnnl_api=2 DNNL_CFLAGS=])
  AC_SUBST([DNNL_CFLAGS])
])
