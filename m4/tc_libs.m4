# tc_libs.m4 - the libraries that Tercio needs. If one is missing or too old, configure stops and names
# the package to install.

# TC_MISSING(PROBLEM, PACKAGE[, INSTEAD]): stops; PACKAGE is Debian's name of it.
AC_DEFUN([TC_MISSING],
  [AC_MSG_ERROR([$1: install $2 (Debian, Ubuntu; docs/install.md has other names)]m4_ifval([$3], [[, or $3]]))])

# TC_PKG(VARIABLE, MODULE, LEAST, PACKAGE): VARIABLE_CFLAGS and VARIABLE_LIBS by pkg-config, of version
# LEAST or later.
AC_DEFUN([TC_PKG], [
  PKG_CHECK_MODULES([$1], [$2 >= $3], [],
    [tc_found=`$PKG_CONFIG --modversion $2 2>/dev/null`
     AS_IF([test -n "$tc_found"], [tc_found="$2 $tc_found is too old, $3 or later is needed"],
       [tc_found="$2 $3 or later was not found"])
     TC_MISSING([$tc_found], [$4])])
])

# TC_VERSION(NAME, HEADER, CPPFLAGS, MAJOR, MINOR, LEAST-MAJOR, LEAST-MINOR, PACKAGE): a header's macros MAJOR
# and MINOR are at least these.
AC_DEFUN([TC_VERSION], [
  AC_MSG_CHECKING([that $1 is $6.$7 or later])
  tc_version_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $3"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <$2>
#if !($4 > $6 || ($4 == $6 && $5 >= $7))
#error too old
#endif
]], [])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_COMPUTE_INT([tc_major], [$4], [#include <$2>], [tc_major=])
     AC_COMPUTE_INT([tc_minor], [$5], [#include <$2>], [tc_minor=])
     AS_IF([test -n "$tc_major" && test -n "$tc_minor"],
       [tc_found="$1 $tc_major.$tc_minor is too old, $6.$7 or later is needed"],
       [tc_found="$2 is not that of $1 $6.$7 or later (it has no $4)"])
     TC_MISSING([$tc_found], [$8])])
  CPPFLAGS=$tc_version_CPPFLAGS
])

# TC_SEARCH_LIB(LIBRARY, HEADER, FUNCTION, PACKAGE, VARIABLE): a library without pkg-config.
AC_DEFUN([TC_SEARCH_LIB], [
  AC_CHECK_HEADER([$2], [], [TC_MISSING([$2 was not found], [$4])])
  AC_CHECK_LIB([$1], [$3], [$5="-l$1"],
    [TC_MISSING([lib$1 with $3 was not found], [$4])])
  AC_SUBST([$5])
])

# TC_OPENMP: OPENMP_CFLAGS. Off for the thread sanitizer, which takes libgomp's own synchronisation for races. Without
# it parameters that only a pragma names are unused.
AC_DEFUN([TC_OPENMP], [
  TC_OPENMP_WARNINGS=
  tc_openmp=no
  AS_IF([test "x$enable_sanitize" = xthread],
    [OPENMP_CFLAGS=
     TC_OPENMP_WARNINGS="-Wno-unknown-pragmas -Wno-unused-parameter"
     AC_SUBST([OPENMP_CFLAGS])
     dnl oneDNN links the library itself; the number of its threads is set through it.
     AC_CHECK_LIB([gomp], [omp_set_num_threads], [OPENMP_LIBS=-lgomp],
       [TC_MISSING([libgomp was not found], [libgomp1])])],
    [AC_OPENMP
     AS_CASE(["$ac_cv_prog_c_openmp"],
       [unsupported|no], [AC_MSG_ERROR([the compiler $CC does not support OpenMP: use gcc, or install libomp-dev for clang])])
     tc_openmp=yes])
  AC_SUBST([OPENMP_LIBS])
])

# TC_MPICC: tc_mpicc, Open MPI's compiler wrapper: $MPICC if the user names one, else the mpicc in PATH,
# where a module puts it; "" if that is another MPI's.
AC_DEFUN([TC_MPICC], [
  AC_ARG_VAR([MPICC], [the MPI compiler wrapper that is asked for flags (default: mpicc, then pkg-config ompi-c)])
  tc_mpicc=$MPICC
  AS_IF([test -z "$MPICC"], [AC_PATH_PROG([MPICC], [mpicc])])
  AC_MSG_CHECKING([that the mpicc is Open MPI's])
  AS_IF([test -z "$MPICC"], [AC_MSG_RESULT([there is none])],
    [$MPICC --showme:compile >/dev/null 2>&1], [AC_MSG_RESULT([yes])
     tc_mpicc=$MPICC],
    [test -n "$tc_mpicc"], [AC_MSG_RESULT([no])
     AC_MSG_ERROR([MPICC=$MPICC is not Open MPI's (it does not accept --showme): name Open MPI's mpicc])],
    [AC_MSG_RESULT([no: $MPICC does not accept --showme, pkg-config is asked for Open MPI])
     MPICC=])
])

# TC_MPI: MPI_CFLAGS and MPI_LIBS, both as the user has set them, else of mpicc, else of pkg-config; MPIRUN.
AC_DEFUN([TC_MPI], [
  AC_ARG_VAR([MPI_CFLAGS], [C compiler flags for MPI, or nothing, with MPI_LIBS in place of MPICC])
  AC_ARG_VAR([MPI_LIBS], [linker flags for MPI, or nothing, with MPI_CFLAGS])
  tc_mpicc=
  dnl Either may be set to nothing; if both are, they are as good as unset.
  AS_CASE(["$MPI_CFLAGS$MPI_LIBS|${MPI_CFLAGS+c}${MPI_LIBS+l}"],
    [?*"|c"], [AC_MSG_ERROR([MPI_CFLAGS is set, but MPI_LIBS is not: set both, or MPICC])],
    [?*"|l"], [AC_MSG_ERROR([MPI_LIBS is set, but MPI_CFLAGS is not: set both, or MPICC])],
    [?*"|cl"], [],
    [TC_MPICC
     AS_IF([test -n "$tc_mpicc"],
       [MPI_CFLAGS=`$tc_mpicc --showme:compile`
        MPI_LIBS=`$tc_mpicc --showme:link`],
       [PKG_CHECK_MODULES([MPI], [ompi-c], [], [
          PKG_CHECK_MODULES([MPI], [ompi], [],
            [TC_MISSING([Open MPI was not found], [libopenmpi-dev], [set MPICC])])])])])
  TC_VERSION([Open MPI], [mpi.h], [$MPI_CFLAGS], [OMPI_MAJOR_VERSION], [OMPI_MINOR_VERSION], [4], [1],
    [libopenmpi-dev])
  TC_TRY_LINK([MPI], [mpi.h], [MPI_Init_thread(0, 0, MPI_THREAD_MULTIPLE, 0)],
    [libopenmpi-dev])
  tc_path=$PATH
  AS_IF([test -n "$tc_mpicc"], [tc_path=`dirname "$(command -v "${tc_mpicc%% *}")"`:$PATH])
  AC_PATH_PROG([MPIRUN], [mpirun], [], [$tc_path])
  AS_IF([test -z "$MPIRUN"], [TC_MISSING([mpirun was not found], [openmpi-bin])])
  TC_MPIRUN
])

# TC_MPIRUN: warns if $MPIRUN is not of the Open MPI whose header is compiled with. No reason to stop: srun starts
# ranks, too, and another release of Open MPI may do.
AC_DEFUN([TC_MPIRUN], [
  AC_MSG_CHECKING([that $MPIRUN is of the same Open MPI])
  tc_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $MPI_CFLAGS"
  AC_COMPUTE_INT([tc_major], [OMPI_MAJOR_VERSION], [#include <mpi.h>], [tc_major=])
  AC_COMPUTE_INT([tc_minor], [OMPI_MINOR_VERSION], [#include <mpi.h>], [tc_minor=])
  CPPFLAGS=$tc_save_CPPFLAGS
  tc_found=`$MPIRUN --version 2>&1 </dev/null | sed -n 1p`
  AS_CASE(["$tc_found"],
    [*"(Open MPI) $tc_major.$tc_minor".*], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_WARN([$MPIRUN is not of Open MPI $tc_major.$tc_minor, which Tercio is linked with ('mpirun --version' says '$tc_found'): the tests may fail to start ranks; put that Open MPI's mpirun first in PATH, or set MPIRUN])])
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
  TC_VERSION([HDF5], [hdf5.h], [$HDF5_CFLAGS $MPI_CFLAGS], [H5_VERS_MAJOR], [H5_VERS_MINOR], [1], [10],
    [libhdf5-openmpi-dev])
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

# TC_DNNL: oneDNN. Its C API changed in 3.0: a function that only 3.x has decides.
AC_DEFUN([TC_DNNL], [
  TC_SEARCH_LIB([dnnl], [dnnl.h], [dnnl_sgemm], [libdnnl-dev], [DNNL_LIBS])
  TC_VERSION([oneDNN], [dnnl.h], [], [DNNL_VERSION_MAJOR], [DNNL_VERSION_MINOR], [2], [6], [libdnnl-dev])
  AC_CHECK_LIB([dnnl], [dnnl_matmul_primitive_desc_create],
    [tc_dnnl_api=3 DNNL_CFLAGS=-DTC_DNNL_V3], [tc_dnnl_api=2 DNNL_CFLAGS=])
  AC_SUBST([DNNL_CFLAGS])
])
