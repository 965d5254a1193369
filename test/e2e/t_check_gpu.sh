# SPDX-License-Identifier: MIT
# scripts/check-gpu on the simulated node: an installed onehop, and a folder that holds the test programs alone. The step
# loading with the real ones; what creation and soak make of figures, with programs that say what they are told.
# A package of the name of PyTorch starts a shared object that is linked with NCCL, for each rank.
. "$abs_top_srcdir/test/e2e/lib.sh"

[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "a sanitizer's runtime would have to come first"
command -v python3 >/dev/null || tap_skip_all "no python3"
unset ONEHOP_DEBUG ONEHOP_STATS
limit=300
export SIMNODE_NCCL_LAZY=1 SIMNODE_TOPOLOGY=h200x2 NCCL_LIB=$stand_ins TMPDIR=$scratch

make -s -C "$abs_top_builddir" install DESTDIR="$scratch/stage" >"$scratch/install.log" 2>&1
prefix=$(cd "$(dirname "$(find "$scratch/stage" -path '*/bin/onehop')")/.." && pwd)
[ -e "$prefix/lib/libonehop.so" ] || tap_skip_all "the libraries are installed elsewhere than in lib"
carried=$scratch/carried
mkdir -p "$carried/test/e2e" "$carried/test/apps" "$scratch/packages/torch/distributed"
cp "$abs_top_builddir/test/e2e/reach_linked" "$carried/test/e2e"
rows=3
! mpi_program "$carried/test/apps" || rows=4
touch "$scratch/packages/torch/__init__.py" "$scratch/packages/torch/distributed/__init__.py"
cat >"$scratch/packages/torch/distributed/run.py" <<'END'
import os, subprocess, sys, tempfile
ranks = sys.argv[sys.argv.index("--nproc-per-node") + 1]
with tempfile.TemporaryDirectory() as folder:
    command = [os.environ["REACH"], ranks, folder, "object:" + os.environ["REACH_OBJECT"]]
    workers = [subprocess.Popen([*command[:1], str(rank), *command[1:]]) for rank in range(int(ranks))]
    sys.exit(max(abs(worker.wait()) for worker in workers))
END
export REACH=$reach REACH_OBJECT=$objects/libreach.so
export PYTHONPATH=$scratch/packages

# fake PATH: the program PATH of the folder is what stands on stdin, a shell script.
fake() {
    rm -f "$carried/test/$1" # a busy one stays whole
    { echo '#!/bin/sh' && cat; } >"$carried/test/$1"
    chmod +x "$carried/test/$1"
}

# check_gpu SETTING... -- ARGUMENT...: sets $status, fills $out.
check_gpu() {
    local settings=()
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    run_limited env "${settings[@]}" "$abs_top_srcdir/scripts/check-gpu" --prefix "$prefix" --build "$carried" --gpus 2 \
        --quick --out "$scratch/logs" "${@:2}"
}

expect "the table is as documented: $rows callers, and four settings of the plugin way" 0 \
    '^ +linked program +yes \(12\) +first \(10\) +yes \(12\)' '^ +Python ctypes +yes \(12\) +no \(0\) +yes \(12\)' \
    '^ +PyTorch, torchrun +yes \(12\) +first \([0-9]+\) +yes \(12\)' "$rows:\) +(first|no) \(.*\) +yes \(" \
    '4:^ok +loading-linked-(none|none-preload|socket|list) ' -- check_gpu -- loading
expect "where nothing is served, it fails, but for what is not expected" 1 \
    '^FAIL +loading-linked-preload: served: no \(0 calls, 0 not\), expected yes=12' \
    '^FAIL +loading-ctypes-audit: ' '^FAIL +loading-linked-list: ' '!^FAIL .*loading-ctypes-plugin' \
    -- check_gpu ONEHOP_DISABLE=1 -- loading

# creation: the medians, the limit, and the real program.
mkdir -p "$carried/test/gpu" "$carried/test/conformance"
fake gpu/stress_comms <<'END'
more=0
[ -z "${LD_PRELOAD-}" ] || { more=${MORE-20}; echo "served by onehop"; }
LD_PRELOAD=
for ms in 100 300 ${ODD-110}; do echo "later communicator by rank $ms.50 ms"; done
echo "called communicator by rank $((50 + more)).75 ms"
echo "first communicator by rank $((900 + 3 * more)).25 ms"
END
check_gpu -- creation
expect "creation: medians, the first communicator by itself" 0 \
    '^ +creation +first: 960\.2 ms, with stock NCCL 900\.2 ms, 60\.0 ms more \(medians of 3\)$' \
    '^ +creation +later: 110\.5 ms, with stock NCCL 110\.5 ms, 0\.0 ms more \(medians of 9\)$' '^ok +creation-stock-3 ' \
    '^ +creation +called: 70\.8 ms, with stock NCCL 50\.8 ms, 20\.0 ms more \(medians of 3\)$'
expect "creation: 31 ms more are too much" 1 '^FAIL +creation: not 30 ms more than stock NCCL at most' \
    -- check_gpu MORE=31 -- creation
expect "creation: what is no time is none" 1 '^FAIL +creation: ' -- check_gpu ONEHOP_DISABLE=1 MORE=-1000 -- creation
cp "$abs_top_builddir/test/gpu/stress_comms" "$carried/test/gpu"
check_gpu -- creation
expect "creation on the simulated node" "$status" '^ok +creation-1 ' '^ +creation +first: [0-9.]+ ms, with .*\(medians of 3\)' \
    '^ +creation +later: [0-9.]+ ms, with stock NCCL [0-9.]+ ms, [0-9.-]+ ms more \(medians of 21\)'
expect_file "and the log has the time of each attach" "$scratch/logs/creation-1.log" '16:attached in [0-9.]* ms'
check_gpu -- communicators communicators-live
expect "communicators on the simulated node" 0 '^ok +comms-stock ' '^ok +comms ' '^ +comms +30 rounds, with stock NCCL 30$' \
    '^ +comms +made by split in [0-9.]+ ms, with stock NCCL in [0-9.]+ ms' '^ok +comms-16 '

# communicators: what stock NCCL leaves behind is allowed, host memory half as much again; of GPU memory where many live at once.
# Rounds are held to what stress_comms allows by itself.
fake gpu/stress_comms <<'END'
echo "# arguments: $*"
echo "rank 1: host 1000 -> 5000 KiB, GPU 900000 -> 900000 KiB, descriptors 62 -> 64, threads 7 -> 9, mappings 5 -> 8, files 0 -> 0"
echo "rank 1: host 5000 -> 5100 KiB, GPU 900000 -> 969632 KiB, descriptors 64 -> 64, threads 9 -> 9, mappings 8 -> 95, files 0 -> 0"
END
expect "communicators that live" 0 '^ +comms-16 +host memory grew by 4000 KiB, .* GPU memory by 69632 and 69632 KiB$' \
    -- check_gpu -- communicators-live
expect_file "communicators that live: what stock NCCL keeps is allowed" "$scratch/logs/comms-16.log" \
    '--served --host-kib 14192 --live-gpu-kib 75776 --handles 87$'

# soak: what it allows onehop, by figures of stock NCCL of this run and of another, and without.
fake conformance/onehop-conformance <<'END'
echo "# arguments: $*"
echo "# soak: 5 rounds, 50 calls, 12 communicators, 3 graphs, 4 replays, 0 failures; in 10 communicators grown by 4000 KiB of \
host memory, 600 KiB of GPU memory, 0 descriptors, 0 threads, 0 mappings, 0 files"
END
rm -rf "${scratch:?}/logs"
expect "soak alone" 0 '^ok +soak-stock ' '^ok +soak ' -- check_gpu -- --soak-seconds 70 soak
grep -q -- '--soak 70 ' "$scratch/logs/soak-stock.log" && grep -q -- '--soak 70 .*--expect-served --allow 8192,601,2948,8$' "$scratch/logs/soak.log"
tap_point $? "soak alone: stock NCCL first, as long" "$(cat "$scratch"/logs/soak*.log)"
rm -rf "${scratch:?}/logs"
check_gpu -- soak-stock
expect "soak behind soak-stock, in another run" 0 '^ok +soak ' -- check_gpu -- soak
grep -q -- '--soak 60 ' "$scratch/logs/soak-stock.log" && grep -q -- '--soak 60 .*--allow 8192,601,2948,8$' "$scratch/logs/soak.log"
tap_point $? "soak: what stock NCCL keeps is allowed" "$(cat "$scratch"/logs/soak*.log)"
mv "$carried/test/conformance/onehop-conformance" "$scratch/kept"
fake conformance/onehop-conformance <<<'exit 1'
rm -rf "${scratch:?}/logs"
expect "soak where stock NCCL fails" 1 'FAIL  soak: stock NCCL has left no figures$' -- check_gpu -- soak
mv "$scratch/kept" "$carried/test/conformance/onehop-conformance"

# Ended in the middle: what was found by then is told, and nothing is left in shared memory.
fake e2e/sim_app <<'END'
echo "$ONEHOP_SHM_DIR" >"$PLACE.new"
mv "$PLACE.new" "$PLACE"
exec sleep 100
END
has_place() {
    [ -e "$scratch/place" ]
}
PLACE=$scratch/place err=$out.err signalled INT has_place bash "$abs_top_srcdir/scripts/check-gpu" --prefix "$prefix" \
    --build "$carried" --gpus 2 --quick --out "$scratch/logs" soak faults
cat "$out.err" >>"$out"
expect "SIGINT: what was found by then is told" 130 '^ok +soak ' '^ENDED before all steps were done: soak faults$'
place=$(cat "$scratch/place")
[ -n "$place" ] && [ ! -e "$place" ]
tap_point $? "SIGINT: nothing is left in shared memory" "$place: $(ls -A "$place" 2>&1)"

fake e2e/sim_app <<<'echo served by onehop'
expect "some rows of peer-failure, and no other" 0 '^ok +peer-failure-kill-init ' '^ok +peer-failure-stop-silent ' \
    '2:^(ok|FAIL) +peer-failure-' -- check_gpu -- --rows kill-init,stop-silent peer-failure
expect "a row that is not there" 1 '^FAIL +peer-failure: no row nonsense$' \
    -- check_gpu -- --rows kill-init,nonsense peer-failure

# peer-failure: how long an abort or a revocation may take, and whose time it is.
fake e2e/sim_app <<'END'
[ -z "$LD_PRELOAD" ] || echo served by onehop
[ -z "$NCCL_TOOK" ] || echo "onehop: vm:1 INFO comm 0x1: $HOW in $TOOK ms, of which NCCL took $NCCL_TOOK"
echo "rank 0: $HOW within $TOOK ms"
END
while read -r row how took nccl wanted text; do
    expect "$how in $took ms: $text" "$wanted" "^ok +peer-failure-$row " \
        -- check_gpu HOW="$how" TOOK="$took" NCCL_TOOK="${nccl#-}" -- --rows $row peer-failure
done <<'END'
abort-idle aborted 1000 - 0 within the limit
abort-idle aborted 1001 - 1 nobody says that it was NCCL
abort-idle aborted 1400 1390 0 NCCL's
abort-idle aborted 1400 1290 1 not all of it NCCL's
abort-idle aborted 300 190 1 more than 0.1 s of it onehop's
revoke-call revoked 1001 - 1 nobody says that it was NCCL
revoke-call revoked 1001 991 0 NCCL's
revoke-call revoked 300 190 1 more than 0.1 s of it onehop's
END
expect "what NCCL took is told" 0 '^ +peer-failure-abort-idle +aborted at most 990 ms +\(NCCL itself 980\)$' \
    -- check_gpu HOW=aborted TOOK=990 NCCL_TOOK=980 -- --rows abort-idle peer-failure
check_gpu HOW=aborted TOOK=512 NCCL_TOOK= -- --rows stock-abort-idle peer-failure
expect "stock NCCL alone" 0 '^ok +peer-failure-stock-abort-idle ' '^ +peer-failure-stock-abort-idle +aborted at most 512 ms'
expect_file "stock NCCL is alone" "$scratch/logs/peer-failure-stock-abort-idle.log" '!served by onehop'

# What cannot be is refused before anything runs.
for arguments in 'soak nonsense' '--gpus 1 soak' '--gpus' '--soak-seconds 1h soak'; do
    expect "refused, in one sentence: $arguments" 2 '^check-gpu: ' '1:^' -- check_gpu -- $arguments
done
expect "two GPUs asked for, and one visible" 2 '^check-gpu: --gpus 2: 1 are visible$' \
    -- check_gpu CUDA_VISIBLE_DEVICES=3 -- soak
expect "onehop in the environment" 2 '^check-gpu: LD_PRELOAD is .*: nothing here would run with stock NCCL alone' \
    -- check_gpu LD_PRELOAD="$prefix/lib/libonehop.so" -- soak
tap_done
