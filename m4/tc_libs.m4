# tc_libs.m4 - the libraries Tercio stands on. A missing one stops configure, which names what to
# install.

# TC_MISSING(PROBLEM, PACKAGE[, INSTEAD]): stops; PACKAGE is Debian's name of it.
AC_DEFUN([TC_MISSING],
  [AC_MSG_ERROR([$1: install $2 (Debian, Ubuntu; docs/install.md has other names)]m4_ifval([$3], [[, or $3]]))])

# TC_PKG(VARIABLE, MODULES, PACKAGE): VARIABLE_CFLAGS and VARIABLE_LIBS by pkg-config.
AC_DEFUN([TC_PKG], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [TC_MISSING([$2 was not found], [$3])])
])

# TC_SEARCH_LIB(LIBRARY, HEADER, FUNCTION, PACKAGE, VARIABLE): a library without pkg-config.
AC_DEFUN([TC_SEARCH_LIB], [
  AC_CHECK_HEADER([$2], [], [TC_MISSING([$2 was not found], [$4])])
  AC_CHECK_LIB([$1], [$3], [$5="-l$1"],
    [TC_MISSING([lib$1 with $3 was not found], [$4])])
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
       [TC_MISSING([libgomp was not found], [libgomp1])])],
    [AC_OPENMP
     AS_CASE(["$ac_cv_prog_c_openmp"],
       [unsupported|no], [AC_MSG_ERROR([the compiler $CC knows no OpenMP: use gcc, or install libomp-dev for clang])])
     tc_openmp=yes])
  AC_SUBST([OPENMP_LIBS])
])

# TC_MPI: MPI_CFLAGS and MPI_LIBS. From $MPICC if the user names one, else Open MPI's mpicc in PATH, where
# a module puts it, else pkg-config; MPI_CFLAGS and MPI_LIBS of the user's come before both.
AC_DEFUN([TC_MPI], [
  AC_ARG_VAR([MPICC], [the MPI compiler wrapper that is asked for flags (default: mpicc, then pkg-config ompi-c)])
  tc_mpicc=$MPICC
  AS_IF([test -z "$MPICC$MPI_CFLAGS$MPI_LIBS"],
    [AC_PATH_PROG([MPICC], [mpicc])
     AS_IF([test -n "$MPICC" && $MPICC --showme:compile >/dev/null 2>&1], [tc_mpicc=$MPICC])])
  AS_IF([test -n "$tc_mpicc"],
    [MPI_CFLAGS=`$tc_mpicc --showme:compile` && MPI_LIBS=`$tc_mpicc --showme:link` ||
       AC_MSG_ERROR([$tc_mpicc does not understand --showme: Open MPI's mpicc is needed])
     AC_SUBST([MPI_CFLAGS])
     AC_SUBST([MPI_LIBS])],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [], [
       PKG_CHECK_MODULES([MPI], [ompi], [],
         [TC_MISSING([Open MPI was not found], [libopenmpi-dev], [set MPICC])])])])
  TC_TRY_LINK([MPI], [mpi.h], [MPI_Init_thread(0, 0, MPI_THREAD_MULTIPLE, 0)],
    [libopenmpi-dev])
  AC_CHECK_PROG([MPIRUN], [mpirun], [mpirun])
  AS_IF([test -z "$MPIRUN"], [TC_MISSING([mpirun was not found], [openmpi-bin])])
])

# TC_TRY_LINK(VARIABLE, HEADER, CALL, PACKAGE): a call links with VARIABLE_CFLAGS and _LIBS.
AC_DEFUN([TC_TRY_LINK], [
  AC_MSG_CHECKING([that $2 compiles and links])
  tc_save_CPPFLAGS=$CPPFLAGS tc_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $$1_CFLAGS" LIBS="$$1_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <$2>]], [[(void)$3;]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     TC_MISSING([$2 does not compile and link with $$1_CFLAGS $$1_LIBS], [$4])])
  CPPFLAGS=$tc_save_CPPFLAGS LIBS=$tc_save_LIBS
])

# TC_HDF5: the parallel HDF5, built with the same MPI. Sites' own ones often have no pkg-config file.
AC_DEFUN([TC_HDF5], [
  AC_ARG_WITH([hdf5],
    [AS_HELP_STRING([--with-hdf5=DIR],
      [the parallel HDF5 in DIR/include and DIR/lib or lib64 (default: pkg-config hdf5-openmpi, then hdf5)])],
    [], [with_hdf5=yes])
  AS_CASE(["$with_hdf5"],
    [no], [AC_MSG_ERROR([--with-hdf5=no: checkpoints are HDF5 files, it can't be left out])],
    [yes], [PKG_CHECK_MODULES([HDF5], [hdf5-openmpi], [], [
      PKG_CHECK_MODULES([HDF5], [hdf5], [],
        [TC_MISSING([parallel HDF5 was not found], [libhdf5-openmpi-dev], [name its folder: --with-hdf5=DIR])])])],
    [tc_hdf5_lib=
     tc_dir=`cd "$with_hdf5" 2>/dev/null && pwd` && with_hdf5=$tc_dir       # make runs elsewhere
     for tc_dir in "$with_hdf5/lib64" "$with_hdf5/lib"; do
       AS_IF([test -z "$tc_hdf5_lib" && ls "$tc_dir"/libhdf5.* >/dev/null 2>&1], [tc_hdf5_lib=$tc_dir])
     done
     AS_IF([test -z "$tc_hdf5_lib" || test ! -f "$with_hdf5/include/hdf5.h"],
       [AC_MSG_ERROR([--with-hdf5=$with_hdf5: there is no include/hdf5.h, or no libhdf5 in lib or lib64])])
     HDF5_CFLAGS=-I$with_hdf5/include
     HDF5_LIBS="-L$tc_hdf5_lib -Wl,-rpath,$tc_hdf5_lib -lhdf5"])
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
     TC_MISSING([HDF5 is not the parallel build], [libhdf5-openmpi-dev], [name its folder: --with-hdf5=DIR])])
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
