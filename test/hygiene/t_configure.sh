# SPDX-License-Identifier: MIT
# configure takes the commands that it is told, refuses what leads to no plugin, and makes no static library.
. "$abs_top_srcdir/test/hygiene/tap.sh"
tap_scratch
eval "as_here=($("$abs_top_builddir/config.status" --config))"

# configured ARGUMENT...: as this build, but for the arguments; what configure says is in log.
configured() {
    rm -rf "$scratch/build"
    mkdir "$scratch/build"
    (cd "$scratch/build" && PATH=$scratch:$PATH "$abs_top_srcdir/configure" "${as_here[@]}" "$@") >"$scratch/log" 2>&1
}
made() {
    grep -E "^$1 = " "$scratch/build/Makefile"
}

printf '#!/bin/sh\ncase $1 in --list-gpu-code) echo sm_90 ;; --version) echo "release 12.8, V12.8.93" ;; esac\n' >"$scratch/an-nvcc"
printf '#!/bin/sh\ncase $1 in --cflags) echo -DBY_A_PKG_CONFIG ;; --libs) echo -ljansson ;; esac\n' >"$scratch/a-pkg-config"
chmod +x "$scratch"/a*
mkdir -p "$scratch/nccl/include"
cat >"$scratch/nccl/include/nccl.h" <<'END'
#define NCCL_VERSION_CODE 21903
#ifdef __CUDA_BF16_TYPES_EXIST__
enum { ncclBfloat16 = 9 };
#endif
END
hwloc=--without-hwloc
[ ! -r /usr/include/hwloc.h ] || hwloc=--with-hwloc=/usr
configured $hwloc --enable-kernels --enable-static --with-nccl="$scratch/nccl" JANSSON_LIBS= JANSSON_CPPFLAGS= NVCC_GENCODE= \
    NVCC='env X=1 an-nvcc' PKG_CONFIG=a-pkg-config
tap_point $? "configure, with other commands" "$(tail -n 20 "$scratch/log")"
[[ $(made NVCC) = *' env X=1 an-nvcc' && $(made NVCC_GENCODE) = *' -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90' ]]
tap_point $? "NVCC may be a name, and have arguments" "$(made 'NVCC(_GENCODE)?')"
[[ $(made JANSSON_CPPFLAGS) = *' -DBY_A_PKG_CONFIG' ]]
tap_point $? "PKG_CONFIG may be a name" "$(made '(PKG_CONFIG|JANSSON_.*)')"
[[ $(made NCCL_CPPFLAGS) = *" $scratch/nccl/include -D__CUDA_BF16_TYPES_EXIST__=" ]]
tap_point $? "bfloat16 of an nccl.h that has it for C++ alone" "$(made NCCL_CPPFLAGS)"
[[ $(made HWLOC_LIBS) != *rpath* && $(made HWLOC_CPPFLAGS) != *-isystem* ]]
tap_point $? "no run path to hwloc of the system" "$(made 'HWLOC_(LIBS|CPPFLAGS)')"
grep -qx build_old_libs=no "$scratch/build/libtool"
tap_point $? "--enable-static makes no static library"

! configured --disable-shared && grep -q 'error: --disable-shared' "$scratch/log"
tap_point $? "--disable-shared is refused" "$(tail -n 20 "$scratch/log")"
! configured --prefix=/usr --libdir='/opt/one hop/lib' && grep -q "error: .*'/opt/one hop/lib'" "$scratch/log"
tap_point $? "a folder that libtool cannot install to is refused" "$(tail -n 20 "$scratch/log")"
tap_done
