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

# answers NAME STATUS PATTERN...: as expect, and nothing is on stderr.
answers() {
    run_first "$@"
    expect "${asked[@]}" silent
}

# --- the verdict, which is the plugin's

SIMNODE_TOPOLOGY=h200x8 answers "h200x8" 0 '^verdict: onehop serves these 8 GPUs: NVLink joins every pair$' \
    '^SIMULATED node: 8 GPUs' '^  GPU0 +X +NV18 ' 'joined by # NVLinks through NVSwitch' -- topo
SIMNODE_TOPOLOGY=a100x4-direct answers "a100x4-direct" 0 'GPU0 +X +NV4 +NV4 +NV4 ' -- topo
SIMNODE_TOPOLOGY=partial-nvlink answers "partial-nvlink: what would be served" 1 \
    '^verdict: falls back to NCCL: GPUs 0000:19:00.0 and 0000:4c:00.0 are not joined by NVLink' \
    '  onehop serves these GPUs: GPU0 GPU1 \(CUDA_VISIBLE_DEVICES=0,1\)' -- topo
SIMNODE_TOPOLOGY=dead-link-pair answers "dead-link-pair" 1 \
    '^  first refused pair: GPU1 and GPU3 \(1 of 6 pairs is refused\)$' -- topo
SIMNODE_TOPOLOGY=nvml-disagrees answers "nvml-disagrees" 1 "cannot access each other's memory \(CUDA\)" -- topo
SIMNODE_TOPOLOGY=mig answers "mig" 1 'GPU 0000:3b:00.0 is in MIG mode' -- topo
SIMNODE_TOPOLOGY=vm-hidden answers "vm-hidden" 0 'onehop serves these 4 GPUs' -- topo
for setting in NCCL_P2P_LEVEL=LOC NCCL_CTA_POLICY=2 NCCL_CTA_POLICY=ZERO NCCL_LAUNCH_ORDER_IMPLICIT=1 'NCCL_CTA_POLICY=default|zero' ONEHOP_DISABLE=1 \
    ONEHOP_MAX_BYTES=0K; do
    answers "$setting" 1 "falls back to NCCL: ${setting/|/[|]} is set" -- run_limited env "$setting" "$onehop" topo
done
ONEHOP_DISABLE=0 ONEHOP_MAX_BYTES=1K answers "values that leave onehop on" 0 '^ONEHOP_MAX_BYTES=1K$' -- topo
ONEHOP_INVARIANT=1 ONEHOP_MAX_BYTES=0 answers "no cap for invariant sums" 0 '^ONEHOP_MAX_BYTES=0$' -- topo
mkdir home
echo NCCL_P2P_LEVEL=LOC | tee home/.nccl.conf >nccl.conf
HOME=$scratch/home answers "~/.nccl.conf" 1 'falls back to NCCL: NCCL_P2P_LEVEL=LOC is set' -- topo
NCCL_CONF_FILE=$scratch/nccl.conf answers "NCCL_CONF_FILE" 1 '^NCCL_P2P_LEVEL=LOC$' -- topo
NCCL_P2P_LEVEL=NVL HOME=$scratch/home answers "the environment goes before nccl.conf" 0 'onehop serves these 4' -- topo
CUDA_VISIBLE_DEVICES=3,1 answers "CUDA_VISIBLE_DEVICES hides, chooses and orders GPUs" 0 \
    '^not visible to CUDA here: 0000:19:00.0 ' '^  GPU0  0000:5d' '^  GPU1  0000:3b' '^CUDA_VISIBLE_DEVICES=3,1$' -- topo
CUDA_VISIBLE_DEVICES=2 answers "one GPU" 1 'falls back to NCCL: 1 GPU is visible, onehop serves 2 to 8' -- topo
CUDA_VISIBLE_DEVICES='' expect_sentence "no GPU is visible" 1 \
    'topo: .*CUDA sees no GPU here; NVML sees 4 GPUs that CUDA_VISIBLE_DEVICES= hides; what to do: unset' -- topo
mkdir none
LD_LIBRARY_PATH=$scratch/none topo
if grep -q 'libcuda.so.1 cannot be opened' err; then
    expect_sentence "no driver" 1 \
        'no usable CUDA driver: libcuda.so.1 cannot be opened; what to do: install .*--simulated'
else
    tap_skip "no driver" "this machine has one"
fi
mkdir without-nvml
ln -s "$stand_ins"/libcuda.so* without-nvml
LD_LIBRARY_PATH=$scratch/without-nvml answers "no NVML: CUDA alone proves it" 0 \
    '^direct access \(P2P\) between all: \?\?pa$' -- topo

if unshare -rm mount -t tmpfs none /sys 2>/dev/null; then
    answers "no /sys: hwloc's own words stay away" 0 '^  GPU0 .* \?$' \
        -- run_limited unshare -rm sh -c 'mount -t tmpfs none /sys; exec "$@"' sh "$onehop" topo
else
    tap_skip "no /sys" "tmpfs cannot be mounted here"
fi

# A cause and a remedy of its own for each of cuInit's errors; the number is enough.
for remedy in '2:free memory' 34:stubs '46:holds the GPU' '101:nvidia-smi -L' 102:licence 214:ECC 304:/dev/nvidia \
    '802:in a virtual machine it is the host' '803:`compat` folder out' '804:image for an older CUDA' '805:MPS daemon' \
    '807:MPS server is ready' '808:higher limit' 999:nvidia-uvm; do
    number=${remedy%%:*}
    cat >driver.json <<END
{"schema": 1, "driver": "580.95.05", "gpus": [], "problem": "no usable CUDA driver: cuInit: unknown CUDA error ($number)"}
END
    expect_sentence "cuInit says $number" 1 "topo: .* \($number\); what to do: .*${remedy#*:}" -- topo --load driver.json
done
SIMNODE_FAIL=cuInit expect_sentence "cuInit's error has its number" 1 \
    'cuInit: CUDA_ERROR_[A-Z_]+ \([0-9]+\).*; what to do: ' -- topo

# hwloc's facts: of the whole machine, whatever the cpuset; lists of any length; what it does not know is "?".
fixtures=$abs_top_srcdir/test/fixtures
if grep -q '^#define HAVE_HWLOC 1' "$abs_top_builddir/config.h"; then
    export SIMNODE_TOPOLOGY=pcie-only
    HWLOC_XMLFILE=$fixtures/hwloc-cpuset.xml answers "CPUs and nodes outside the cpuset" 1 \
        '^  GPU1  NODE +X +SYS +SYS +below +0$' '^  GPU3 .* 0000:58:00.0$' -- topo
    [ "$(sed -n '/^CPU affinity of GPU2, GPU3: /,/^$/p' out | tr -d ' \n' | sed 's/.*://')" = "$(seq -s , 1 2 63)" ]
    tap_point $? "a list of CPUs is whole" "$(diagnosis)"
    HWLOC_XMLFILE=$fixtures/hwloc-no-bridges.xml answers "GPUs beside no node" 1 '^  GPU1  - +X +- +- +\? +\?$' -- topo
    sed '/Package" os_index="1"/,/^<\/object>/d; s/cpuset="0xffffffff,0xffffffff"/cpuset="0x55555555,0x55555555"/
        /Machine/s/ nodeset="0x00000003"/ nodeset="0x00000001"/' "$fixtures/hwloc-no-bridges.xml" >hidden.xml
    HWLOC_XMLFILE=$scratch/hidden.xml answers "GPUs beside a node that is hidden" 1 '^  GPU3  - +- +- +X +\? +\?$' -- topo
    HWLOC_XMLFILE=$fixtures/hwloc-several-nodes.xml answers \
        "a package with two nodes, of which any may be nearer, and one with two kinds of memory" 1 \
        '^  GPU0   X +- +SYS +SYS +0-3 +0-1$' '^  GPU2  SYS +SYS +X +NODE +4-7 +2-3$' -- topo
    unset SIMNODE_TOPOLOGY
else
    tap_skip "hwloc's facts" "built without hwloc"
fi

# The verdict is on the machine; a build may lack kernels for it.
for kind in 'h200x4 9.0 any|sm_90|compute_[89]0' 'a100x4-direct 8.0 any|sm_80|compute_80'; do
    read -r topology capability targets <<<"$kind"
    SIMNODE_TOPOLOGY=$topology SIMNODE_NAME="NVIDIA GPU" topo
    if grep -qE "$targets" "$abs_top_builddir/kernels/architectures"; then
        answers "kernels for $capability" 0 '^verdict: onehop serves these 4 GPUs'
    else
        expect "no kernels for $capability" 1 "topo: this build has no kernels for NVIDIA GPU, of compute capability $capability"
        tap_empty "$(tail -n +2 err)" "no kernels for $capability: one sentence"
    fi
done
SIMNODE_TOPOLOGY=fabric-down answers "the fabric is not up: that is what to check" 1 '^  GPU0 .* not started ' \
    'what to do: the NVLink fabric is not up' -- topo

# --- recordings

# same_page NAME FILE: the page of the last run, which made the recording FILE, is that of the recording elsewhere.
same_page() {
    local saved=$status
    cp out page
    LD_LIBRARY_PATH=$scratch/none topo --load "$2"
    [ "$status" = "$saved" ] && cmp -s page out
    tap_point $? "$1: recorded, and the same page elsewhere" "$(diff page out; diagnosis)"
}
for topology in h200x8 partial-nvlink mig vm-hidden-noproof; do
    SIMNODE_TOPOLOGY=$topology topo --save $topology.json
    same_page $topology $topology.json
done
CUDA_VISIBLE_DEVICES=1,3 NCCL_P2P_LEVEL=SYS topo --measure --save small.json
NCCL_P2P_LEVEL=LOC same_page "environment and measurements; this one's environment is not asked" small.json
tap_empty "$(grep -iw -e "$(uname -n)" -e uuid -e serial h200x8.json)" "a recording does not tell whose machine it is"
SIMNODE_TOPOLOGY=h200x8 topo --json
cmp -s out h200x8.json
tap_point $? "a recording is what --json prints" "$(diff out h200x8.json | head -n 5)"
LD_LIBRARY_PATH=$scratch/none topo --save none.json
[ "$status" = 1 ] && LD_LIBRARY_PATH=$scratch/none topo --load none.json
expect_sentence "a machine without GPU can be recorded" 1 'no usable CUDA driver|CUDA sees no GPU'
CUDA_VISIBLE_DEVICES=$'0,1,\e[31m\xff' topo --save escape.json
answers "what a terminal does not take is recorded as '?'" 0 '^CUDA_VISIBLE_DEVICES=0,1,[?]\[31m[?]$' \
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
expect_sentence "a recording that is cut off" 2 '^onehop: topo: cut.json: not a recording of onehop topo: line [0-9]+: ' \
    -- topo --load cut.json
expect_sentence "another file" 2 '^onehop: topo: /bin/sh: not a recording of onehop topo' -- topo --load /bin/sh
sed '2s/1,$/2,/' h200x8.json >future.json
expect_sentence "a recording of the future" 2 '^onehop: topo: future.json: schema: expected a number from 1 to 1$' \
    -- topo --load future.json
expect_sentence "no recording" 2 '^onehop: topo: missing.json: No such file or directory$' -- topo --load missing.json
expect_sentence "a folder" 2 '^onehop: topo: \.: Is a directory$' -- topo --load .
expect_sentence "a file without end" 2 'not a recording of onehop topo' -- topo --load /dev/zero
expect_sentence "a matrix of nvidia-smi" 2 \
    'but the matrix of nvidia-smi topo -m; record the machine by .onehop topo --save FILE. there$' \
    -- topo --load "$fixtures/nvidia-smi-matrix.txt"
while IFS='|' read -r text words; do
    printf "$text" >other
    expect_sentence "another file: ${text:0:20}" 2 \
        "^onehop: topo: other: not a recording of onehop topo$words.*; record the machine by .onehop topo --save" \
        -- topo --load other
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
awk '/<gpu dev="[1-9]"/ { others = 1 } !(others && /<nvlink/)' "$fixtures/nccl-dump-nvswitch.xml" >one-linked.xml
answers "a dump in which one GPU alone has NVLinks: they join no two" 1 '^  what to do: NVLinks are up but join no two' \
    -- topo --load one-linked.xml
{ echo '<system version="1"><gpu '; yes '<pci busid=' | head -c 4000000 | tr -d '\n'; } >long.xml
answers "tags without an end: a bounded search" 1 '1 GPU is visible' -- topo --load long.xml
sed 's/version="2.0"/version="9.0"/' "$fixtures/hwloc-cpuset.xml" >later.xml
expect_sentence "XML of a later hwloc" 2 'but XML of hwloc that is damaged, or of a later version' -- topo --load later.xml
chmod 000 future.json
if [ -r future.json ]; then
    tap_skip "a recording that may not be read" "root may read everything"
else
    expect_sentence "a recording that may not be read" 2 'Permission denied$' -- topo --load future.json
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
expect "a pipe without a reader: SIGINT ends the wait" 124 \
    -- run_limited "${interruptible[@]}" timeout -s INT 1 "$onehop" topo --save fifo
timeout 60 cat fifo >piped &
topo --save fifo
wait $!
cmp -s piped plain.json
tap_point $? "a pipe with a reader" "$(diff piped plain.json | head -n 5)"
mkdir folder
echo before >folder/file
# unharmed NAME STATUS PATTERN: the last run ended so, and says so; the file is as it was, and nothing stands beside it.
unharmed() {
    expect "$@"
    [ "$2" != 2 ] || tap_empty "$(tail -n +2 err)" "$1: one sentence"
    tap_empty "$(diff <(echo before) folder/file; ls -A folder | grep -vx file)" "$1: the file is as it was, alone"
}
fsync=$objects/libtopofsync.so
unharmed "no room for all of it" 2 '^onehop: topo: folder/file: File too large$' \
    -- run_limited bash -c 'ulimit -f 1; exec "$0" topo --save folder/file' "$onehop"
unharmed "no room for what follows the first buffer" 2 '^onehop: topo: folder/file: File too large$' -- run_limited \
    bash -c 'ulimit -f 8; exec "$0" topo --load "$1" --save folder/file' "$onehop" "$fixtures/nvl72-domain.json"
LD_PRELOAD=$fsync TOPO_FSYNC=full unharmed "a disk that is full at the end" 2 \
    '^onehop: topo: folder/file: No space left on device$' -- topo --save folder/file
LD_PRELOAD=$fsync TOPO_FSYNC=signal unharmed "SIGINT while it is written" 130 \
    -- run_limited "${interruptible[@]}" "$onehop" topo --save folder/file
(
    trap '' INT
    LD_PRELOAD=$fsync TOPO_FSYNC=signal "$onehop" topo --save ignored >out 2>err
)
[ "$(tail -n 1 ignored)" = "}" ]
tap_point $? "SIGINT that is ignored stays ignored" "$(diagnosis)"
expect_sentence "/dev/full" 2 '^onehop: topo: /dev/full: No space left on device$' -- topo --save /dev/full
expect_sentence "a folder that is not there" 2 '^onehop: topo: missing/file: No such file or directory$' \
    -- topo --save missing/file
expect_sentence "a folder instead of a file" 2 '^onehop: topo: folder: Is a directory$' -- topo --save folder
expect_sentence "stdout is full" 2 '^onehop: topo: stdout: No space left on device$' -- run_full "$onehop" topo

# --- the graph

SIMNODE_TOPOLOGY=dead-link-pair answers "--dot" 1 '^graph onehop \{$' -- topo --dot
cp out graph
if command -v dot >/dev/null; then
    timeout 60 dot -Tsvg graph >picture.svg 2>err
    grep -q '</svg>' picture.svg && grep -q '>GPU3<' picture.svg && [ ! -s err ]
    tap_point $? "graphviz draws it" "$(cat err)"
else
    tap_skip "graphviz draws it" "no graphviz"
fi

# --- measurements

SIMNODE_TOPOLOGY=h200x3 expect "--measure: bandwidth and latency of every pair" 0 'SIMULATED: these numbers are not' \
    '6:^  GPU[0-2] +(X|[0-9.]+!?) +(X|[0-9.]+!?) +(X|[0-9.]+!?)$' -- topo --measure
SIMNODE_TOPOLOGY=vm-hidden-noproof expect "--measure where no GPU reaches another: copies only" 1 '^bandwidth' \
    -- topo --measure
SIMNODE_FAIL=cuMemcpyPeerAsync expect_sentence "a copy that fails" 2 \
    '^onehop: topo: --measure: GPU0 and GPU1: memcpy_peer_async: CUDA_ERROR_' -- topo --measure
SIMNODE_FAIL=cuGraphLaunch:2 expect_sentence "a launch that fails: the other one leaves" 2 \
    '^onehop: topo: --measure: GPU0 and GPU1: graph_launch: CUDA_ERROR_' -- topo --measure
SIMNODE_FAIL=cuMemAlloc_v2:2 expect_sentence "an allocation that fails" 2 \
    '^onehop: topo: --measure: GPU1: mem_alloc: CUDA_ERROR_' -- topo --measure
CUDA_VISIBLE_DEVICES=1 answers "--measure of one GPU" 1 '1 GPU is visible' -- topo --measure

# --- arguments

expect_sentence "a word too many" 2 '^onehop: topo: one: unexpected argument' -- topo one two
expect_sentence "--json and --dot" 2 'both write to stdout' -- topo --json --dot
expect_sentence "--load and --measure" 2 'a recording cannot be measured' -- topo --load small.json --measure
expect_sentence "--load and --simulated" 2 'a recording needs no simulated node' -- topo --load small.json --simulated
LD_LIBRARY_PATH= answers "--simulated" 0 '^SIMULATED node: 4 GPUs' -- topo --simulated
tap_done
