# SPDX-License-Identifier: MIT
# OH_NCCL: the header of NCCL 2.19 or later. The library is the application's own, found at run time.
# After OH_CUDA (nccl.h includes the toolkit's headers). Takes --with-nccl=DIR. Substitutes NCCL_CPPFLAGS.
AC_DEFUN([OH_NCCL], [
  AC_REQUIRE([OH_CUDA])
  AC_ARG_WITH([nccl],
    [AS_HELP_STRING([--with-nccl=DIR], [where NCCL's include/nccl.h is (default: the CUDA Toolkit, the system)])],
    [AS_CASE(["$withval"], [yes|no|''], [AC_MSG_ERROR([--with-nccl needs a directory])])
     AS_IF([test ! -r "$withval/include/nccl.h"], [AC_MSG_ERROR([--with-nccl: there is no $withval/include/nccl.h])])
     OH_DISTCHECK_FLAG([--with-nccl=$withval])], [with_nccl=])

  NCCL_CPPFLAGS=
  AS_IF([test -n "$with_nccl" && test "$with_nccl" != /usr], [NCCL_CPPFLAGS="-isystem $with_nccl/include"])
  AC_SUBST([NCCL_CPPFLAGS])

  AC_MSG_CHECKING([for nccl.h of NCCL 2.19 or later])
  oh_saved_CPPFLAGS="$CPPFLAGS"
  CPPFLAGS="$CPPFLAGS $NCCL_CPPFLAGS $CUDA_CPPFLAGS"
  AC_COMPUTE_INT([oh_nccl_version], [NCCL_VERSION_CODE], [@%:@include <nccl.h>], [oh_nccl_version=0])
  # That of 2.19 has ncclBfloat16 only where cuda_bf16.h has types, which are for C++.
  AS_IF([test "$oh_nccl_version" -gt 0], [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]], [[return ncclBfloat16;]])], [],
    [NCCL_CPPFLAGS="$NCCL_CPPFLAGS -D__CUDA_BF16_TYPES_EXIST__="])])
  CPPFLAGS="$oh_saved_CPPFLAGS"
  oh_summary_nccl="$((oh_nccl_version / 10000)).$((oh_nccl_version % 10000 / 100)).$((oh_nccl_version % 100))"
  AS_IF([test "$oh_nccl_version" -ge 21900], [AC_MSG_RESULT([$oh_summary_nccl])],
    [test "$oh_nccl_version" -gt 0], [
      AC_MSG_RESULT([$oh_summary_nccl, too old])
      OH_MISSING([nccl.h of NCCL 2.19 or later, $oh_summary_nccl is too old
        (NVIDIA's packages: libnccl-dev; or --with-nccl=DIR)])],
    [ AC_MSG_RESULT([no])
      OH_MISSING([nccl.h of NCCL 2.19 or later (NVIDIA's packages: libnccl-dev; or --with-nccl=DIR)])])
])
