# SPDX-License-Identifier: MIT
# OH_NVTX: ranges for profilers. The NVTX headers come with the CUDA Toolkit (include/nvtx3), or by CPPFLAGS; nothing is
# linked. Without them, or without those of payloads (before NVTX 3.1), the ranges are left out. After OH_CUDA.
# Takes --disable-nvtx. Defines HAVE_NVTX, conditional ENABLE_NVTX.
AC_DEFUN([OH_NVTX], [
  AC_ARG_ENABLE([nvtx],
    [AS_HELP_STRING([--disable-nvtx], [no NVTX ranges for profilers])], [], [enable_nvtx=yes])
  oh_summary_nvtx="none (--disable-nvtx)"
  AS_IF([test "x$enable_nvtx" != xyes], [OH_DISTCHECK_FLAG([--disable-nvtx])], [
    AC_MSG_CHECKING([for nvtx3/nvToolsExtPayload.h])
    oh_saved_CPPFLAGS="$CPPFLAGS"
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nvtx3/nvToolsExt.h>
      #include <nvtx3/nvToolsExtPayload.h>]],
      [[nvtxDomainHandle_t domain = nvtxDomainCreateA("x");
        nvtxPayloadSchemaAttr_t schema = {0};
        return nvtxPayloadSchemaRegister(domain, &schema) == 1;]])],
      [oh_nvtx=yes], [oh_nvtx=no])
    CPPFLAGS="$oh_saved_CPPFLAGS"
    AC_MSG_RESULT([$oh_nvtx])
    AS_IF([test "x$oh_nvtx" = xyes],
      [AC_DEFINE([HAVE_NVTX], [1], [there are the NVTX headers, those of payloads too])
       oh_summary_nvtx="yes"],
      [oh_summary_nvtx="none: no nvtx3/nvToolsExtPayload.h (it comes with the CUDA Toolkit)"])])
  AM_CONDITIONAL([ENABLE_NVTX], [test "x$oh_nvtx" = xyes])
])
