# SPDX-License-Identifier: MIT
# scripts/check-gpu loading on the simulated node: an installed onehop, and a folder that holds the test programs alone.
# A package of the name of PyTorch starts a shared object that is linked with NCCL, for each rank.
. "$abs_top_srcdir/test/e2e/lib.sh"

[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "a sanitizer's runtime would have to come first"
command -v python3 >/dev/null || tap_skip_all "no python3"
unset ONEHOP_DEBUG ONEHOP_STATS
export SIMNODE_TOPOLOGY=h200x2 NCCL_LIB=$stand_ins TMPDIR=$scratch ONEHOP_SHM_DIR=$meeting

make -s -C "$abs_top_builddir" install DESTDIR="$scratch/stage" >"$scratch/install.log" 2>&1
prefix=$(cd "$(dirname "$(find "$scratch/stage" -path '*/bin/onehop')")/.." && pwd)
[ -e "$prefix/lib/libonehop.so" ] || tap_skip_all "the libraries are installed elsewhere than in lib"
carried=$scratch/carried
mkdir -p "$carried/test/e2e" "$carried/test/apps" "$scratch/packages/torch/distributed"
cp "$abs_top_builddir/test/e2e/reach_linked" "$carried/test/e2e"
read -ra flags <<<"$OH_CPPFLAGS"
rows=3
if mpicc "${flags[@]}" -o "$carried/test/apps/allreduce_mpi" "$abs_top_srcdir/test/apps/allreduce_mpi.c" -L"$stand_ins" \
    -lnccl -lcuda >"$scratch/mpicc.log" 2>&1 && command -v mpirun >/dev/null; then
    rows=4
fi
touch "$scratch/packages/torch/__init__.py" "$scratch/packages/torch/distributed/__init__.py"
cat >"$scratch/packages/torch/distributed/run.py" <<'END'
import os, subprocess, sys, tempfile
ranks = sys.argv[sys.argv.index("--nproc-per-node") + 1]
with tempfile.TemporaryDirectory() as folder:
    command = [os.environ["REACH"], ranks, folder, "object:" + os.environ["REACH_OBJECT"]]
    workers = [subprocess.Popen([*command[:1], str(rank), *command[1:]]) for rank in range(int(ranks))]
    sys.exit(max(abs(worker.wait()) for worker in workers))
END
export REACH=$abs_top_builddir/test/e2e/reach REACH_OBJECT=$abs_top_builddir/test/e2e/.libs/libreach.so
export PYTHONPATH=$scratch/packages

# check_gpu SETTING...: sets $status, fills $out.
check_gpu() {
    status=0
    timeout -k 5 300 env "$@" "$abs_top_srcdir/scripts/check-gpu" --prefix "$prefix" --build "$carried" --gpus 2 --quick \
        --out "$scratch/logs" loading >"$out" 2>&1 || status=$?
}

check_gpu A=1
expect "the table is as documented" 0 '^ +linked program +yes \(12\) +first \(8\) +yes \(12\)' \
    '^ +Python ctypes +yes \(12\) +no \(0\) +yes \(12\)' '^ +PyTorch, torchrun +yes \(12\) +first \([0-9]+\) +yes \(12\)'
[ "$(count_of '\) +(first|no) \(.*\) +yes \(')" = $rows ] &&
    [ "$(count_of '^ok +loading-linked-(none|none-preload|socket|list) ')" = 4 ]
tap_point $? "$rows callers, and four settings of the plugin way" "$(cat "$out")"
check_gpu ONEHOP_DISABLE=1
expect "where nothing is served, it fails" 1 \
    '^FAIL +loading-linked-preload: served: no \(0 calls, 0 not\), expected yes=12' \
    '^FAIL +loading-ctypes-audit: ' '^FAIL +loading-linked-list: '
[ "$(count_of '^FAIL .*loading-ctypes-plugin')" = 0 ]
tap_point $? "but for what is not expected" "$(cat "$out")"
tap_done
