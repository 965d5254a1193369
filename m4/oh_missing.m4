# SPDX-License-Identifier: MIT
# What the machine lacks is collected, so that one run of configure names everything.

# OH_MISSING(TEXT): note one missing thing; TEXT names it and what brings it.
AC_DEFUN([OH_MISSING], [
  AC_MSG_WARN([missing: $1])
  oh_missing="$oh_missing
    $1"
])

# OH_MISSING_REPORT: stop when something is missing.
AC_DEFUN([OH_MISSING_REPORT], [
  AS_IF([test -n "$oh_missing"], [AC_MSG_ERROR([cannot build without:
$oh_missing

  On Debian and Ubuntu, ./scripts/quickstart installs the packages above that the distribution has.])])
])

# OH_DISTCHECK_FLAG(FLAG): hand a configure flag on to the configure run inside "make distcheck".
AC_DEFUN([OH_DISTCHECK_FLAG], [
  OH_DISTCHECK_FLAGS="$OH_DISTCHECK_FLAGS $1"
  AC_SUBST([OH_DISTCHECK_FLAGS])
])
