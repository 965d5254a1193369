# SPDX-License-Identifier: MIT
# virtual_ranks, which is for real GPUs, on the simulated node: that it finds nothing here, so that what it finds there
# is of the GPU. A few short programs, on one GPU and on two.
export LD_LIBRARY_PATH=$abs_top_builddir/test/simnode/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SIMNODE_TOPOLOGY=h200x2
. "$abs_top_srcdir/test/hygiene/tap.sh"
limit=60
[ -z "${OH_SANITIZERS-}" ] || limit=300

# virtual NAME ARGUMENT...
virtual() {
    local name=$1 out status=0
    shift
    out=$(timeout -k 5 $((3 * limit)) "$abs_top_builddir/test/gpu/virtual_ranks" -l $limit "$@" 2>&1) || status=$?
    tap_point $status "$name" "$out"
}

virtual "2, 3 and 5 ranks on one GPU" -n 2,3,5 -p 1 -c 40
virtual "7 ranks on two GPUs" -n 7 -g 2 -p 1 -c 12
tap_done
