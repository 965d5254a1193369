# SPDX-License-Identifier: MIT
# OH_WARNINGS: probe each warning flag; --enable-werror, on by itself in a git tree.
# Substitutes OH_WARN_CFLAGS and OH_WARN_CXXFLAGS.

# OH_WARNING_FLAG(FLAG, VARIABLE): append FLAG to VARIABLE when the compiler of the current language takes it.
# A compiler may accept an unknown -Wno-x or -Wx with a mere warning, hence -Werror in the probe.
AC_DEFUN([OH_WARNING_FLAG], [
  AS_VAR_PUSHDEF([flags], [_AC_LANG_PREFIX[]FLAGS])
  oh_saved_flags="$flags"
  flags="$flags -Werror $1"
  AC_MSG_CHECKING([whether $_AC_CC accepts $1])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes]); $2="$$2 $1"], [AC_MSG_RESULT([no])])
  flags="$oh_saved_flags"
  AS_VAR_POPDEF([flags])
])

AC_DEFUN([OH_WARNINGS], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [make warnings errors (default: in a git tree)])], [],
    [AS_IF([test -e "$srcdir/.git"], [enable_werror=yes], [enable_werror=no])])

  AC_LANG_PUSH([C])
  m4_foreach_w([flag], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla],
    [OH_WARNING_FLAG(flag, [OH_WARN_CFLAGS])])
  AC_LANG_POP([C])
  AC_LANG_PUSH([C++])
  m4_foreach_w([flag], [-Wall -Wextra -Wshadow], [OH_WARNING_FLAG(flag, [OH_WARN_CXXFLAGS])])
  AC_LANG_POP([C++])

  oh_summary_warnings="reported"
  AS_IF([test "x$enable_werror" = xyes], [
    OH_WARN_CFLAGS="$OH_WARN_CFLAGS -Werror"
    OH_WARN_CXXFLAGS="$OH_WARN_CXXFLAGS -Werror"
    oh_summary_warnings="errors"])
  AC_SUBST([OH_WARN_CFLAGS])
  AC_SUBST([OH_WARN_CXXFLAGS])
])
