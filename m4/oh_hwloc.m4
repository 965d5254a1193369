# SPDX-License-Identifier: MIT
# OH_HWLOC: hwloc 2.0 or later, linked by the tools only.
# Takes --with-hwloc=DIR; --without-hwloc builds the tools without the NUMA and PCI columns.
# Substitutes HWLOC_CPPFLAGS and HWLOC_LIBS, defines HAVE_HWLOC.
AC_DEFUN([OH_HWLOC], [
  AC_ARG_WITH([hwloc],
    [AS_HELP_STRING([--with-hwloc=DIR],
      [hwloc for the tools (default: by pkg-config); --without-hwloc: no NUMA columns])],
    [OH_DISTCHECK_FLAG([--with-hwloc=$withval])], [with_hwloc=yes])

  HWLOC_CPPFLAGS=
  HWLOC_LIBS=
  oh_summary_hwloc="none (--without-hwloc): no NUMA columns"
  AS_IF([test "x$with_hwloc" != xno], [
    AS_IF([test "x$with_hwloc" != xyes], [
        AS_IF([test ! -r "$with_hwloc/include/hwloc.h"],
          [AC_MSG_ERROR([--with-hwloc: there is no $with_hwloc/include/hwloc.h])])
        HWLOC_LIBS=-lhwloc
        AS_IF([test "$with_hwloc" != /usr], [
          HWLOC_CPPFLAGS="-isystem $with_hwloc/include"
          HWLOC_LIBS="-L$with_hwloc/lib -Wl,-rpath,$with_hwloc/lib -lhwloc"])],
      [test -n "$PKG_CONFIG" && $PKG_CONFIG --exists hwloc], [
        HWLOC_CPPFLAGS=$($PKG_CONFIG --cflags hwloc)
        HWLOC_LIBS=$($PKG_CONFIG --libs hwloc)],
      [HWLOC_LIBS=-lhwloc])

    AC_MSG_CHECKING([for hwloc 2.0 or later])
    oh_saved_CPPFLAGS="$CPPFLAGS"
    oh_saved_LIBS="$LIBS"
    CPPFLAGS="$CPPFLAGS $HWLOC_CPPFLAGS"
    LIBS="$HWLOC_LIBS $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <hwloc.h>
      #if HWLOC_API_VERSION < 0x20000
      #error too old
      #endif]], [[return hwloc_get_api_version() == 0;]])], [oh_hwloc=yes], [oh_hwloc=no])
    CPPFLAGS="$oh_saved_CPPFLAGS"
    LIBS="$oh_saved_LIBS"
    AC_MSG_RESULT([$oh_hwloc])
    oh_summary_hwloc="$HWLOC_LIBS"
    AS_IF([test "x$oh_hwloc" = xyes],
      [AC_DEFINE([HAVE_HWLOC], [1], [the tools have hwloc 2.0 or later])],
      [OH_MISSING([hwloc 2.0 or later (Debian: libhwloc-dev; or --with-hwloc=DIR, or --without-hwloc)])])])
  AC_SUBST([HWLOC_CPPFLAGS])
  AC_SUBST([HWLOC_LIBS])
])
