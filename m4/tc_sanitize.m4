# tc_sanitize.m4 - --enable-sanitize=address|thread: SANITIZE_CFLAGS for compiler and linker.
AC_DEFUN([TC_SANITIZE], [
  AC_ARG_ENABLE([sanitize],
    [AS_HELP_STRING([--enable-sanitize=address|thread],
      [address: with the address and undefined behaviour sanitizers; thread: with the thread sanitizer, without OpenMP])],
    [], [enable_sanitize=no])
  AS_CASE(["$enable_sanitize"],
    [no], [SANITIZE_CFLAGS=],
    [address], [SANITIZE_CFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer"],
    dnl Functions cloned for several CPUs are chosen while the program is loaded, before the
    dnl thread sanitizer is up.
    [thread], [SANITIZE_CFLAGS="-fsanitize=thread -DTC_NO_CLONES"],
    [AC_MSG_ERROR([--enable-sanitize=$enable_sanitize: it has to be address or thread])])
  AC_SUBST([SANITIZE_CFLAGS])
  AM_CONDITIONAL([TC_SANITIZED], [test "$enable_sanitize" != no])
  AS_IF([test -n "$SANITIZE_CFLAGS"],
    [AC_MSG_CHECKING([whether $CC takes $SANITIZE_CFLAGS])
     tc_save_CFLAGS=$CFLAGS
     CFLAGS="$CFLAGS $SANITIZE_CFLAGS"
     AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
       [AC_MSG_RESULT([no])
        AC_MSG_ERROR([$CC has no such sanitizer: install its run-time libraries])])
     CFLAGS=$tc_save_CFLAGS])
])
