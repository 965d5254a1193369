# SPDX-License-Identifier: MIT
# `onehop topo` on the simulated node: the verdict, recordings, the graph, measurements, and everything that can go
# wrong with files and arguments. What it says of recorded machines: test/fixtures.
. "${abs_top_srcdir:?}/test/e2e/lib.sh" || exit 1
[ -d "${scratch:?}" ] || exit 1

export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS-}" # libpciaccess, below hwloc, keeps a little memory
unset CUDA_VISIBLE_DEVICES SIMNODE_TOPOLOGY SIMNODE_REPORT ONEHOP_DEBUG ONEHOP_STATS
cd "$scratch" || exit 1 # so that out is $out
err=$scratch/err

# topo ARGUMENT...: fills out and err, sets $status.
topo() {
    run_limited "$onehop" topo "$@"
}

# answers STATUS PATTERN NAME: the last run ended so, and stdout has that line.
answers() {
    run_first "$@"
    [ "$status" = "$1" ] && grep -qE -- "$2" out && [ ! -s err ]
    tap_point $? "$3" "$(diagnosis)"
}

# complains STATUS PATTERN NAME: the last run ended so, with that one line on stderr, and only that.
complains() {
    run_first "$@"
    [ "$status" = "$1" ] && [ "$(wc -l <err)" = 1 ] && grep -qE -- "$2" err
    tap_point $? "$3" "$(diagnosis)"
}

# --- the verdict, which is the plugin's

SIMNODE_TOPOLOGY=h200x8 answers 0 '^verdict: onehop serves these 8 GPUs: NVLink joins every pair$' "h200x8" -- topo
grep -q '^SIMULATED node: 8 GPUs' out && grep -qE '^  GPU0 +X +NV18 ' out && grep -q 'joined by # NVLinks through NVSwitch' out
tap_point $? "a simulated node is called that; its NVLinks" "$(diagnosis)"
SIMNODE_TOPOLOGY=a100x4-direct answers 0 'GPU0 +X +NV4 +NV4 +NV4 ' "a100x4-direct" -- topo
SIMNODE_TOPOLOGY=partial-nvlink topo
answers 1 '^verdict: falls back to NCCL: GPUs 0000:19:00.0 and 0000:4c:00.0 are not joined by NVLink' "partial-nvlink"
grep -q '  onehop serves these GPUs: GPU0 GPU1 (CUDA_VISIBLE_DEVICES=0,1)' out
tap_point $? "partial-nvlink: what would be served" "$(diagnosis)"
SIMNODE_TOPOLOGY=dead-link-pair topo
answers 1 '^  first refused pair: GPU1 and GPU3 \(1 of 6 pairs is refused\)$' "dead-link-pair"
SIMNODE_TOPOLOGY=nvml-disagrees answers 1 "cannot access each other's memory \(CUDA\)" "nvml-disagrees" -- topo
SIMNODE_TOPOLOGY=mig answers 1 'GPU 0000:3b:00.0 is in MIG mode' "mig" -- topo
SIMNODE_TOPOLOGY=vm-hidden answers 0 'onehop serves these 4 GPUs' "vm-hidden" -- topo
NCCL_P2P_LEVEL=LOC answers 1 'falls back to NCCL: NCCL_P2P_LEVEL=LOC is set' "NCCL_P2P_LEVEL=LOC" -- topo
for policy in 2 ZERO 'default|zero'; do
    NCCL_CTA_POLICY=$policy topo
    answers 1 "falls back to NCCL: NCCL_CTA_POLICY=${policy/|/[|]} is set" "NCCL_CTA_POLICY=$policy"
done
ONEHOP_DISABLE=1 answers 1 'falls back to NCCL: ONEHOP_DISABLE=1 is set' "ONEHOP_DISABLE=1" -- topo
ONEHOP_MAX_BYTES=0K answers 1 'falls back to NCCL: ONEHOP_MAX_BYTES=0K is set' "ONEHOP_MAX_BYTES=0K" -- topo
ONEHOP_DISABLE=0 ONEHOP_MAX_BYTES=1K answers 0 '^ONEHOP_MAX_BYTES=1K$' "values that leave onehop on" -- topo
mkdir home
echo NCCL_P2P_LEVEL=LOC | tee home/.nccl.conf >nccl.conf
HOME=$scratch/home answers 1 'falls back to NCCL: NCCL_P2P_LEVEL=LOC is set' "~/.nccl.conf" -- topo
NCCL_CONF_FILE=$scratch/nccl.conf answers 1 '^NCCL_P2P_LEVEL=LOC$' "NCCL_CONF_FILE" -- topo
NCCL_P2P_LEVEL=NVL HOME=$scratch/home answers 0 'onehop serves these 4' "the environment goes before nccl.conf" -- topo
CUDA_VISIBLE_DEVICES=3,1 answers 0 '^not visible to CUDA here: 0000:19:00.0 ' "CUDA_VISIBLE_DEVICES hides GPUs" -- topo
grep -q '^  GPU0  0000:5d' out && grep -q '^  GPU1  0000:3b' out && grep -q '^CUDA_VISIBLE_DEVICES=3,1$' out
tap_point $? "CUDA_VISIBLE_DEVICES chooses and orders them" "$(diagnosis)"
CUDA_VISIBLE_DEVICES=2 answers 1 'falls back to NCCL: 1 GPU is visible, onehop serves 2 to 8' "one GPU" -- topo
CUDA_VISIBLE_DEVICES='' topo
complains 1 'topo: .*CUDA sees no GPU here; NVML sees 4 GPUs that CUDA_VISIBLE_DEVICES= hides; what to do: unset' "no GPU is visible"
mkdir none
LD_LIBRARY_PATH=$scratch/none topo
if grep -q 'libcuda.so.1 cannot be opened' err; then
    complains 1 'no usable CUDA driver: libcuda.so.1 cannot be opened; what to do: install .*--simulated' "no driver"
else
    tap_skip "no driver" "this machine has one"
fi
mkdir without-nvml
ln -s "$stand_ins"/libcuda.so* without-nvml
LD_LIBRARY_PATH=$scratch/without-nvml topo
answers 0 '^direct access \(P2P\) between all: \?\?pa$' "no NVML: CUDA alone proves it"

if unshare -rm mount -t tmpfs none /sys 2>/dev/null; then
    run_limited unshare -rm sh -c 'mount -t tmpfs none /sys; exec "$@"' sh "$onehop" topo
    answers 0 '^  GPU0 .* \?$' "no /sys: hwloc's own words stay away"
else
    tap_skip "no /sys" "tmpfs cannot be mounted here"
fi

# A cause and a remedy of its own for each of cuInit's errors; the number is enough.
remedies='2:free memory 34:stubs 46:holds the GPU 101:nvidia-smi -L 102:licence 214:ECC
    304:/dev/nvidia 802:in a virtual machine it is the host
    803:`compat` folder out 804:image for an older CUDA 805:MPS daemon 807:MPS server is ready 808:higher limit 999:nvidia-uvm'
while IFS=: read -r number words; do
    cat >driver.json <<END
{"schema": 1, "driver": "580.95.05", "gpus": [], "problem": "no usable CUDA driver: cuInit: unknown CUDA error ($number)"}
END
    complains 1 "topo: .* \($number\); what to do: .*$words" "cuInit says $number" -- topo --load driver.json
done < <(sed 's/ *\([0-9][0-9]*:\)/\n\1/g' <<<"$remedies" | sed '/^ *$/d')
SIMNODE_FAIL=cuInit topo
complains 1 'cuInit: CUDA_ERROR_[A-Z_]+ \([0-9]+\).*; what to do: ' "cuInit's error has its number"

# hwloc's facts: of the whole machine, whatever the cpuset; lists of any length; what it does not know is "?".
fixtures=$abs_top_srcdir/test/fixtures
if grep -q '^#define HAVE_HWLOC 1' "$abs_top_builddir/config.h"; then
    export SIMNODE_TOPOLOGY=pcie-only
    HWLOC_XMLFILE=$fixtures/hwloc-cpuset.xml answers 1 '^  GPU1  NODE +X +SYS +SYS +below +0$' \
        "CPUs and nodes outside the cpuset" -- topo
    [ "$(sed -n '/^CPU affinity of GPU2, GPU3: /,/^$/p' out | tr -d ' \n' | sed 's/.*://')" = "$(seq -s , 1 2 63)" ] &&
        grep -qE '^  GPU3 .* 0000:58:00.0$' out
    tap_point $? "a list of CPUs is whole" "$(diagnosis)"
    HWLOC_XMLFILE=$fixtures/hwloc-no-bridges.xml answers 1 '^  GPU1  - +X +- +- +\? +\?$' "GPUs beside no node" -- topo
    sed '/Package" os_index="1"/,/^<\/object>/d; s/cpuset="0xffffffff,0xffffffff"/cpuset="0x55555555,0x55555555"/
        /Machine/s/ nodeset="0x00000003"/ nodeset="0x00000001"/' "$fixtures/hwloc-no-bridges.xml" >hidden.xml
    HWLOC_XMLFILE=$scratch/hidden.xml answers 1 '^  GPU3  - +- +- +X +\? +\?$' "GPUs beside a node that is hidden" -- topo
    HWLOC_XMLFILE=$fixtures/hwloc-several-nodes.xml answers 1 '^  GPU0   X +- +SYS +SYS +0-3 +0-1$' \
        "a package with two nodes, of which any may be nearer" -- topo
    grep -qE '^  GPU2  SYS +SYS +X +NODE +4-7 +2-3$' out
    tap_point $? "a package with two kinds of memory" "$(diagnosis)"
    unset SIMNODE_TOPOLOGY
else
    tap_skip "hwloc's facts" "built without hwloc"
fi

# The verdict is on the machine; a build may lack kernels for it.
for kind in 'h200x4 9.0 any|sm_90|compute_[89]0' 'a100x4-direct 8.0 any|sm_80|compute_80'; do
    read -r topology capability targets <<<"$kind"
    SIMNODE_TOPOLOGY=$topology SIMNODE_NAME="NVIDIA GPU" topo
    if grep -qE "$targets" "$abs_top_builddir/kernels/architectures"; then
        answers 0 '^verdict: onehop serves these 4 GPUs' "kernels for $capability"
    else
        complains 1 "topo: this build has no kernels for NVIDIA GPU, of compute capability $capability" "no kernels for $capability"
    fi
done

# The fabric's state, and what to do about it.
SIMNODE_TOPOLOGY=fabric-down answers 1 '^  GPU0 .* not started ' "the fabric's state" -- topo
grep -q 'what to do: the NVLink fabric is not up' out
tap_point $? "the fabric is not up: that is what to check" "$(diagnosis)"

# --- recordings

for topology in h200x8 partial-nvlink mig vm-hidden-noproof; do
    SIMNODE_TOPOLOGY=$topology topo --save $topology.json
    cp out page
    saved=$status
    LD_LIBRARY_PATH=$scratch/none topo --load $topology.json
    [ "$status" = "$saved" ] && cmp -s page out
    tap_point $? "$topology: recorded, and the same page elsewhere" "$(diff page out; diagnosis)"
done
CUDA_VISIBLE_DEVICES=1,3 NCCL_P2P_LEVEL=SYS topo --measure --save small.json
cp out page
NCCL_P2P_LEVEL=LOC LD_LIBRARY_PATH=$scratch/none topo --load small.json
cmp -s page out && [ "$status" = 0 ]
tap_point $? "environment and measurements are in the recording, this one's environment is not asked" "$(diff page out)"
private=$(grep -iw -e "$(uname -n)" -e uuid -e serial h200x8.json)
tap_empty "$private" "a recording does not tell whose machine it is"
SIMNODE_TOPOLOGY=h200x8 topo --json
cmp -s out h200x8.json
tap_point $? "a recording is what --json prints" "$(diff out h200x8.json | head -n 5)"
LD_LIBRARY_PATH=$scratch/none topo --save none.json
[ "$status" = 1 ] && LD_LIBRARY_PATH=$scratch/none topo --load none.json
complains 1 'no usable CUDA driver|CUDA sees no GPU' "a machine without GPU can be recorded"
CUDA_VISIBLE_DEVICES=$'0,1,\e[31m\xff' topo --save escape.json
answers 0 '^CUDA_VISIBLE_DEVICES=0,1,[?]\[31m[?]$' "what a terminal does not take is recorded as '?'" \
    -- topo --load escape.json
# A fact that speaks against a yes makes a no of it, or has a note.
for change in 's/"ipc": true/"ipc": false/' 's/"compute_mode": 0/"compute_mode": 2/' 's/"mig": false/"mig": true/' \
    's/"compute_major": 9/"compute_major": 7/' 's/"fabric_state": .*/"fabric_state": 1,/' \
    's/"fabric_state": .*/"fabric_state": 2,/' 's/"fabric_state": .*/"fabric_state": 3, "fabric_status": 999,/' \
    's/"nvlinks": [1-9]*/"nvlinks": 0/; s/"nvlinks_down": 0/"nvlinks_down": 18/' \
    's/"nvlinks_down": 0/"nvlinks_down": 1/' 's/"cuda_atomics": true/"cuda_atomics": false/' \
    's/"cuda_access": true/"cuda_access": false/' 's/"nvml_nvlink": true/"nvml_nvlink": false/' \
    's/"nvml_read": true/"nvml_read": false/' 's/"nvml_write": true/"nvml_write": false/'; do
    sed '/"fabric_status"/d' h200x8.json | sed "$change" >changed.json
    topo --load changed.json
    ! cmp -s h200x8.json changed.json && { [ "$status" = 1 ] || { [ "$status" = 0 ] && grep -q '^note: ' out; }; }
    tap_point $? "a no or a note: $change" "$(diagnosis)"
done
head -c 500 h200x8.json >cut.json
complains 2 '^onehop: topo: cut.json: not a recording of onehop topo: line [0-9]+: ' "a recording that is cut off" \
    -- topo --load cut.json
complains 2 '^onehop: topo: /bin/sh: not a recording of onehop topo' "another file" -- topo --load /bin/sh
sed '2s/1,$/2,/' h200x8.json >future.json
complains 2 '^onehop: topo: future.json: schema: expected a number from 1 to 1$' "a recording of the future" \
    -- topo --load future.json
complains 2 '^onehop: topo: missing.json: No such file or directory$' "no recording" -- topo --load missing.json
complains 2 '^onehop: topo: \.: Is a directory$' "a folder" -- topo --load .
complains 2 'not a recording of onehop topo' "a file without end" -- topo --load /dev/zero
complains 2 'but the matrix of nvidia-smi topo -m; record the machine by .onehop topo --save FILE. there$' \
    "a matrix of nvidia-smi" -- topo --load "$fixtures/nvidia-smi-matrix.txt"
while IFS='|' read -r text words; do
    printf "$text" >other
    complains 2 "^onehop: topo: other: not a recording of onehop topo$words.*; record the machine by .onehop topo --save" \
        "another file: ${text:0:20}" -- topo --load other
done <<'END'
<?xml version="1.0"?><nvidia_smi_log></nvidia_smi_log>|, but XML of nvidia-smi -q
<?xml version="1.0"?><a/>|, but other XML
<system version="1"><cpu numaid="0"/></system>|, but a topology file of NCCL without GPUs
<graphs version="1"></graphs>|, but a graph dump of NCCL
<topology version="9.0"></topology>|, but XML of hwloc that is damaged, or of a later
  GPU0 GPU1\nGPU0 X OK\nLegend:\n  OK = Status Ok|, but the matrix of nvidia-smi topo -p2p
=====NVSMI LOG====|, but the text of nvidia-smi -q
+ NVIDIA-SMI 580.95 +|, but the text of nvidia-smi
GPU 0: NVIDIA H100 (UUID: GPU-1)|, but a list of nvidia-smi
n:1:1 [0] NCCL INFO Bootstrap|, but a log of NCCL
graph onehop {|, but a graph of onehop topo
verdict: onehop serves|, but a page of onehop
Machine (1007GB total)\n  Package L#0|, but the text of lstopo, where .lstopo FILE.xml.
\x1f\x8b\x08|, but a compressed file
{"mode": "machine"}|
[1]|
words|: line 1:
|: line 1:
END
{ echo '<system version="1"><gpu '; yes '<pci busid=' | head -c 4000000 | tr -d '\n'; } >long.xml
answers 1 '1 GPU is visible' "tags without an end: a bounded search" -- topo --load long.xml
sed 's/version="2.0"/version="9.0"/' "$fixtures/hwloc-cpuset.xml" >later.xml
complains 2 'but XML of hwloc that is damaged, or of a later version' "XML of a later hwloc" -- topo --load later.xml
chmod 000 future.json
if [ -r future.json ]; then
    tap_skip "a recording that may not be read" "root may read everything"
else
    complains 2 'Permission denied$' "a recording that may not be read" -- topo --load future.json
fi

# --- files that are written: whole, or not at all

umask 022
rm -f h200x8.json
SIMNODE_TOPOLOGY=h200x8 topo --save h200x8.json
[ "$(stat -c %a h200x8.json)" = 644 ]
tap_point $? "a new file has the usual mode" "$(stat -c %a h200x8.json)"
chmod 640 h200x8.json
ln -s h200x8.json link.json
SIMNODE_TOPOLOGY=h200x8 topo --save link.json
[ -L link.json ] && [ "$(stat -c %a h200x8.json)" = 640 ]
tap_point $? "a file that is replaced keeps its mode, a link is followed" "$(ls -l link.json h200x8.json)"
topo --save plain.json
timeout 60 "$onehop" topo --save /dev/stdout 2>err | sed '/^}$/q' >piped
cmp -s piped plain.json
tap_point $? "what is no regular file is written to" "$(diff plain.json piped | head -n 5; cat err)"

mkfifo fifo
run_limited "${interruptible[@]}" timeout -s INT 1 "$onehop" topo --save fifo
[ "$status" = 124 ]
tap_point $? "a pipe without a reader: SIGINT ends the wait" "$(diagnosis)"
timeout 60 cat fifo >piped &
topo --save fifo
wait $!
cmp -s piped plain.json
tap_point $? "a pipe with a reader" "$(diff piped plain.json | head -n 5)"
mkdir folder
echo before >folder/file
# unharmed STATUS PATTERN NAME: as complains (no pattern: stderr does not matter); the file is as it was, and nothing
# stands beside it.
unharmed() {
    local good=1
    run_first "$@"
    if [ "$status" = "$1" ] && { [ -z "$2" ] || { [ "$(wc -l <err)" = 1 ] && grep -qE -- "$2" err; }; } &&
        [ "$(cat folder/file)" = before ] && [ "$(ls -A folder)" = file ]; then
        good=0
    fi
    tap_point $good "$3" "$(diagnosis; ls -lA folder)"
}
fsync=$abs_top_builddir/test/e2e/.libs/libtopofsync.so
run_limited bash -c 'ulimit -f 1; exec "$0" topo --save folder/file' "$onehop"
unharmed 2 '^onehop: topo: folder/file: File too large$' "no room for all of it"
run_limited bash -c 'ulimit -f 8; exec "$0" topo --load "$1" --save folder/file' "$onehop" \
    "$abs_top_srcdir/test/fixtures/nvl72-domain.json"
unharmed 2 '^onehop: topo: folder/file: File too large$' "no room for what follows the first buffer"
LD_PRELOAD=$fsync TOPO_FSYNC=full topo --save folder/file
unharmed 2 '^onehop: topo: folder/file: No space left on device$' "a disk that is full at the end"
LD_PRELOAD=$fsync TOPO_FSYNC=signal run_limited "${interruptible[@]}" "$onehop" topo --save folder/file
unharmed 130 '' "SIGINT while it is written"
(
    trap '' INT
    LD_PRELOAD=$fsync TOPO_FSYNC=signal "$onehop" topo --save ignored >out 2>err
)
[ "$(tail -n 1 ignored)" = "}" ]
tap_point $? "SIGINT that is ignored stays ignored" "$(diagnosis)"
complains 2 '^onehop: topo: /dev/full: No space left on device$' "/dev/full" -- topo --save /dev/full
complains 2 '^onehop: topo: missing/file: No such file or directory$' "a folder that is not there" \
    -- topo --save missing/file
complains 2 '^onehop: topo: folder: Is a directory$' "a folder instead of a file" -- topo --save folder
complains 2 '^onehop: topo: stdout: No space left on device$' "stdout is full" -- run_full "$onehop" topo

# --- the graph

SIMNODE_TOPOLOGY=dead-link-pair answers 1 '^graph onehop \{$' "--dot" -- topo --dot
cp out graph
if command -v dot >/dev/null; then
    timeout 60 dot -Tsvg graph >picture.svg 2>err
    grep -q '</svg>' picture.svg && grep -q '>GPU3<' picture.svg && [ ! -s err ]
    tap_point $? "graphviz draws it" "$(cat err)"
else
    tap_skip "graphviz draws it" "no graphviz"
fi

# --- measurements

SIMNODE_TOPOLOGY=h200x3 topo --measure
[ "$(grep -cE '^  GPU[0-2] +(X|[0-9.]+!?) +(X|[0-9.]+!?) +(X|[0-9.]+!?)$' out)" = 6 ] &&
    grep -q 'SIMULATED: these numbers are not' out
tap_point $? "--measure: bandwidth and latency of every pair" "$(diagnosis)"
SIMNODE_TOPOLOGY=vm-hidden-noproof topo --measure
[ "$status" = 1 ] && grep -q '^bandwidth' out
tap_point $? "--measure where no GPU reaches another: copies only" "$(diagnosis)"
SIMNODE_FAIL=cuMemcpyPeerAsync topo --measure
complains 2 '^onehop: topo: --measure: GPU0 and GPU1: memcpy_peer_async: CUDA_ERROR_' "a copy that fails"
SIMNODE_FAIL=cuGraphLaunch:2 topo --measure
complains 2 '^onehop: topo: --measure: GPU0 and GPU1: graph_launch: CUDA_ERROR_' "a launch that fails: the other one leaves"
SIMNODE_FAIL=cuMemAlloc_v2:2 topo --measure
complains 2 '^onehop: topo: --measure: GPU1: mem_alloc: CUDA_ERROR_' "an allocation that fails"
CUDA_VISIBLE_DEVICES=1 answers 1 '1 GPU is visible' "--measure of one GPU" -- topo --measure

# --- arguments

complains 2 '^onehop: topo: one: unexpected argument' "a word too many" -- topo one two
complains 2 'both write to stdout' "--json and --dot" -- topo --json --dot
complains 2 'a recording cannot be measured' "--load and --measure" -- topo --load small.json --measure
complains 2 'a recording needs no simulated node' "--load and --simulated" -- topo --load small.json --simulated
LD_LIBRARY_PATH= answers 0 '^SIMULATED node: 4 GPUs' "--simulated" -- topo --simulated
tap_done
