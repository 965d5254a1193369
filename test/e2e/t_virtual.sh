# SPDX-License-Identifier: MIT
# virtual_ranks, which is for real GPUs, on the simulated node: that it finds nothing here, so that what it finds there
# is of the GPU. A few short programs, on one GPU and on two.
. "$abs_top_srcdir/test/e2e/lib.sh"
export SIMNODE_TOPOLOGY=h200x2

# virtual NAME ARGUMENT...
virtual() {
    limit=$((3 * limit)) run_limited "$abs_top_builddir/test/gpu/virtual_ranks" -l $limit "${@:2}"
    tap_point "$status" "$1" "$(cat "$out")"
}

# Five to seven ranks have the same kernels.
virtual "2 and 3 ranks on one GPU" -n 2,3 -p 1 -c 24
virtual "5 ranks on two GPUs" -n 5 -g 2 -p 1 -c 24
tap_done
