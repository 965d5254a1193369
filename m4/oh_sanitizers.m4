# SPDX-License-Identifier: MIT
# OH_SANITIZERS: --enable-asan, --enable-tsan, --enable-ubsan.
# Substitutes OH_SAN_CFLAGS (compile and link), OH_NO_UNDEFINED (the linker's check for undefined symbols, left out
# with a sanitizer, whose runtime may come with the program) and OH_SANITIZERS (their names, for the tests).
AC_DEFUN([OH_SANITIZERS], [
  AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan], [build with AddressSanitizer])], [], [enable_asan=no])
  AC_ARG_ENABLE([tsan], [AS_HELP_STRING([--enable-tsan], [build with ThreadSanitizer])], [], [enable_tsan=no])
  AC_ARG_ENABLE([ubsan], [AS_HELP_STRING([--enable-ubsan], [build with UndefinedBehaviorSanitizer])], [],
    [enable_ubsan=no])
  AS_IF([test "x$enable_asan$enable_tsan" = xyesyes],
    [AC_MSG_ERROR([--enable-asan and --enable-tsan exclude each other])])

  oh_sanitizers=
  AS_IF([test "x$enable_asan" = xyes], [oh_sanitizers="$oh_sanitizers,address"])
  AS_IF([test "x$enable_tsan" = xyes], [oh_sanitizers="$oh_sanitizers,thread"])
  AS_IF([test "x$enable_ubsan" = xyes], [oh_sanitizers="$oh_sanitizers,undefined"])
  oh_sanitizers=${oh_sanitizers#,}

  OH_SAN_CFLAGS=
  OH_NO_UNDEFINED=-Wl,-z,defs
  AS_IF([test -n "$oh_sanitizers"], [
    OH_SAN_CFLAGS="-fsanitize=$oh_sanitizers -fno-omit-frame-pointer"
    OH_NO_UNDEFINED=
    oh_saved_CFLAGS="$CFLAGS"
    CFLAGS="$CFLAGS $OH_SAN_CFLAGS"
    AC_MSG_CHECKING([whether $CC links with -fsanitize=$oh_sanitizers])
    AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
      [AC_MSG_RESULT([no])
       AC_MSG_ERROR([$CC lacks the runtime of -fsanitize=$oh_sanitizers (Debian: libasan8, libtsan2, libubsan1)])])
    CFLAGS="$oh_saved_CFLAGS"
    # gcc warns of fences, which ThreadSanitizer does not know; ours order memory for another process (src/comm/stats/live.c).
    AS_IF([test "x$enable_tsan" = xyes], [OH_WARNING_FLAG([-Wno-tsan], [OH_SAN_CFLAGS])])])
  AC_SUBST([OH_SAN_CFLAGS])
  AC_SUBST([OH_NO_UNDEFINED])
  AC_SUBST([OH_SANITIZERS], [$oh_sanitizers])
  oh_summary_sanitizers=${oh_sanitizers:-none}
])
