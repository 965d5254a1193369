# SPDX-License-Identifier: MIT
# OH_JANSSON: jansson 2.10 or later (JSON), linked by the onehop command only.
# Found by pkg-config; JANSSON_CPPFLAGS and JANSSON_LIBS of the caller come first (for example a static libjansson.a).
# Substitutes JANSSON_CPPFLAGS and JANSSON_LIBS.
AC_DEFUN([OH_JANSSON], [
  AC_ARG_VAR([JANSSON_CPPFLAGS], [preprocessor flags for jansson, overriding pkg-config])
  AC_ARG_VAR([JANSSON_LIBS], [linker flags for jansson, overriding pkg-config])
  AS_IF([test -z "$JANSSON_LIBS"], [
    AC_MSG_CHECKING([for jansson 2.10 or later])
    AS_IF([test -n "$PKG_CONFIG" && $PKG_CONFIG --exists 'jansson >= 2.10'], [
        JANSSON_CPPFLAGS=$($PKG_CONFIG --cflags jansson)
        JANSSON_LIBS=$($PKG_CONFIG --libs jansson)
        AC_MSG_RESULT([yes])],
      [ AC_MSG_RESULT([no])
        OH_MISSING([jansson 2.10 or later (Debian: libjansson-dev; or JANSSON_LIBS)])])])
])
