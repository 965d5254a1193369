# SPDX-License-Identifier: MIT
# OH_CUDA: the CUDA Toolkit, 12.0 or later. Its headers are needed always, nvcc unless --disable-kernels.
# Nothing of it is linked: the driver is opened at run time.
#
# Takes --with-cuda=DIR, --disable-kernels, NVCC, NVCC_GENCODE, NVCCFLAGS.
# Substitutes CUDA_CPPFLAGS, NVCC, NVCC_GENCODE, NVCC_COMPRESS. Conditional ENABLE_KERNELS.
AC_DEFUN([OH_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=DIR], [CUDA Toolkit (default: where nvcc in PATH lives, else /usr/local/cuda)])],
    [AS_CASE(["$withval"], [yes|no|''], [AC_MSG_ERROR([--with-cuda needs a directory])])
     AS_IF([test ! -r "$withval/include/cuda.h"], [AC_MSG_ERROR([--with-cuda: there is no $withval/include/cuda.h])])
     OH_DISTCHECK_FLAG([--with-cuda=$withval])], [with_cuda=])
  AC_ARG_ENABLE([kernels],
    [AS_HELP_STRING([--disable-kernels], [embed empty device images: for builds without nvcc, which serve no GPU])],
    [], [enable_kernels=yes])
  AC_ARG_VAR([NVCC], [nvcc command])
  AC_ARG_VAR([NVCC_GENCODE], [list of -gencode flags (default: sm_80, sm_90, sm_100 as nvcc has them, PTX of the last)])
  AC_ARG_VAR([NVCCFLAGS], [more flags for nvcc])

  oh_cuda_path="$PATH$PATH_SEPARATOR/usr/local/cuda/bin"
  AS_IF([test -n "$with_cuda"], [oh_cuda_path="$with_cuda/bin"])
  AS_IF([test -z "$NVCC"], [AC_PATH_PROG([NVCC], [nvcc], [], [$oh_cuda_path])])
  oh_cuda_dir="$with_cuda"
  oh_cuda_nvcc=$(command -v "${NVCC##* }") # "ccache nvcc"
  for oh_cuda_nvcc in "$oh_cuda_nvcc" "$(readlink -f "$oh_cuda_nvcc")" /usr/local/cuda/bin/nvcc; do
    AS_IF([test -z "$oh_cuda_dir" && test -r "${oh_cuda_nvcc%/bin/nvcc}/include/cuda.h"],
      [oh_cuda_dir=${oh_cuda_nvcc%/bin/nvcc}])
  done
  AS_IF([test -z "$oh_cuda_dir"], [oh_cuda_dir=/usr/local/cuda])

  # A system directory named with -isystem would hide the compiler's own order of directories.
  CUDA_CPPFLAGS=
  AS_IF([test "$oh_cuda_dir" != /usr && test -r "$oh_cuda_dir/include/cuda.h"],
    [CUDA_CPPFLAGS="-isystem $oh_cuda_dir/include"])
  # CUDA 13 has nv/target, which cuda_fp16.h includes, in a folder that only nvcc knows.
  AS_IF([test -r "$oh_cuda_dir/include/cccl/nv/target"],
    [CUDA_CPPFLAGS="$CUDA_CPPFLAGS -isystem $oh_cuda_dir/include/cccl"])
  AC_SUBST([CUDA_CPPFLAGS])

  AC_MSG_CHECKING([for cuda.h of CUDA 12.0 or later])
  oh_saved_CPPFLAGS="$CPPFLAGS"
  CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
  AC_COMPUTE_INT([oh_cuda_version], [CUDA_VERSION], [@%:@include <cuda.h>], [oh_cuda_version=0])
  CPPFLAGS="$oh_saved_CPPFLAGS"
  oh_summary_cuda="$((oh_cuda_version / 1000)).$((oh_cuda_version % 1000 / 10)) in $oh_cuda_dir"
  AS_IF([test "$oh_cuda_version" -ge 12000], [AC_MSG_RESULT([$oh_summary_cuda])],
    [test "$oh_cuda_version" -gt 0], [
      AC_MSG_RESULT([$oh_summary_cuda, too old])
      OH_MISSING([CUDA Toolkit 12.0 or later, $oh_summary_cuda is too old
        (NVIDIA's packages: cuda-toolkit-12-8 or later; or --with-cuda=DIR)])],
    [ AC_MSG_RESULT([no])
      OH_MISSING([headers of the CUDA Toolkit 12.0 or later
        (NVIDIA's packages: cuda-toolkit-12-8 or later, https://developer.nvidia.com/cuda-downloads;
        or --with-cuda=DIR)])])

  oh_summary_kernels="none (--disable-kernels): empty images, no GPU will be served"
  AS_IF([test "x$enable_kernels" != xyes], [OH_DISTCHECK_FLAG([--disable-kernels])],
    [test -z "$NVCC"], [
      OH_MISSING([nvcc (NVIDIA's packages: cuda-nvcc-12-8 or later; or --with-cuda=DIR, or NVCC=;
        --disable-kernels builds without it, but cannot serve GPUs)])],
    [ AC_MSG_CHECKING([for the GPU architectures to compile for])
      AS_IF([test -z "$NVCC_GENCODE"], [
        oh_cuda_codes=$($NVCC --list-gpu-code 2>/dev/null)
        oh_cuda_last=
        for oh_cuda_arch in 80 90 100; do
          AS_IF([echo "$oh_cuda_codes" | grep -qx "sm_$oh_cuda_arch"], [
            # The PTX for 9.0 holds all that the kernels use: sm_100 is made of it too, since PTX takes most of the time.
            test "$oh_cuda_last/$oh_cuda_arch" = 90/100 || oh_cuda_last=$oh_cuda_arch
            NVCC_GENCODE="$NVCC_GENCODE -gencode=arch=compute_$oh_cuda_last,code=sm_$oh_cuda_arch"])
        done
        AS_IF([test -z "$oh_cuda_last"], [AC_MSG_ERROR([$NVCC knows none of sm_80, sm_90, sm_100; set NVCC_GENCODE])])
        NVCC_GENCODE="${NVCC_GENCODE# } -gencode=arch=compute_$oh_cuda_last,code=compute_$oh_cuda_last"])
      # Device code is most of the library: a fifth of its size. By zstd, which drivers before CUDA 12.4 do not know: so
      # only by compilers for CUDA 13, whose code needs a later driver anyway.
      NVCC_COMPRESS=
      AS_IF([$NVCC --version 2>/dev/null | grep -Eq 'release (1@<:@3-9@:>@|@<:@2-9@:>@@<:@0-9@:>@)\.'],
        [NVCC_COMPRESS=--compress-mode=size])
      AC_SUBST([NVCC_COMPRESS])
      oh_summary_kernels=$(echo "$NVCC_GENCODE" | sed 's/-gencode=arch=@<:@^ ,@:>@*,code=//g')
      AC_MSG_RESULT([$oh_summary_kernels])
      oh_summary_kernels="$oh_summary_kernels, by $NVCC"])
  AM_CONDITIONAL([ENABLE_KERNELS], [test "x$enable_kernels" = xyes])
])
