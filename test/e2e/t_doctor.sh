# SPDX-License-Identifier: MIT
# onehop doctor: what it says of machines, of running processes and of programs, and its exit status.
. "$abs_top_srcdir/test/e2e/lib.sh"

static=$abs_top_builddir/test/e2e/sim_static
export TMPDIR=$scratch SIMNODE_TOPOLOGY=h200x4 HOME=$scratch/home
unset ONEHOP_STATS ONEHOP_DEBUG LD_PRELOAD CUDA_VISIBLE_DEVICES
mkdir "$HOME"
held=() # processes that wait, to be looked at
mkfifo "$scratch/wait"
exec 9<>"$scratch/wait"
trap 'kill "${held[@]}" 2>/dev/null; rm -rf "$scratch" "$shm"' EXIT

# doctor ARGUMENT...: sets $status, fills $out.
doctor() {
    run_limited "$onehop" doctor "$@"
}

# --- this machine

expect "a machine that is served" 0 'yes +gpus +4 x SIMULATED .*NVLink joins every pair' '^verdict: yes: onehop serves' \
    -- doctor
size=$(sed -n 's/.* a communicator needs \([0-9]* KiB\).*/\1/p' "$out")
for page in tools containers; do
    grep -q "a communicator needs ${size:-?}\$\|: a file of ${size:-?} for each communicator" "$abs_top_srcdir/doc/$page.md"
    tap_point $? "doc/$page.md has what a communicator needs" "$size"
done
SIMNODE_TOPOLOGY=pcie-only expect "no NVLink" 1 'no +gpus .*not joined by NVLink' '^verdict: no: .*NVLink' -- doctor
SIMNODE_TOPOLOGY=mig expect "MIG" 1 '^verdict: no: .*MIG mode' -- doctor
for variable in NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=LOC NCCL_CTA_POLICY=2 NCCL_CTA_POLICY=ZERO NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL_ALGO=Tree ONEHOP_DISABLE=1 \
    ONEHOP_MAX_BYTES=0; do
    expect "$variable" 1 "^verdict: no: $variable" -- run_limited env "$variable" "$onehop" doctor
done
NCCL_COMM_BLOCKING=0 expect "non-blocking communicators are served" 0 '^verdict: yes: onehop serves' -- doctor
echo NCCL_P2P_DISABLE=1 >"$HOME/.nccl.conf"
expect "~/.nccl.conf" 1 '^verdict: no: NCCL_P2P_DISABLE=1' -- doctor
echo NCCL_P2P_DISABLE=0 >"$scratch/other.conf"
NCCL_CONF_FILE=$scratch/other.conf expect "NCCL_CONF_FILE goes before it" 0 -- doctor
NCCL_P2P_DISABLE=0 expect "the environment goes before nccl.conf" 0 -- doctor
echo NCCL_ALGO=allreduce:tree >"$HOME/.nccl.conf"
expect "one algorithm in nccl.conf" 1 '^verdict: no: NCCL_ALGO=allreduce:tree pins .*ONEHOP_INVARIANT=1' -- doctor
ONEHOP_PINNED=serve expect "ONEHOP_PINNED=serve" 0 '^verdict: yes' -- doctor
ONEHOP_INVARIANT=1 expect "ONEHOP_INVARIANT=1" 0 'yes +invariant +invariant: yes' '^verdict: yes' -- doctor
ONEHOP_INVARIANT=1 NCCL_P2P_DISABLE=1 expect "invariant, and why not" 1 'no +invariant +invariant: no: NCCL_P2P_DISABLE=1' \
    -- doctor
NCCL_ALGO=^NVLS expect "NCCL_ALGO=^NVLS pins nothing" 0 '^verdict: yes' -- doctor
rm "$HOME/.nccl.conf"
CUDA_VISIBLE_DEVICES=2 expect "one GPU visible: cannot be told" 2 'CUDA_VISIBLE_DEVICES=2 shows one GPU' -- doctor
for kind in 'h200x4 9.0 any|sm_90|compute_[89]0' 'a100x4-direct 8.0 any|sm_80|compute_80'; do
    read -r topology capability targets <<<"$kind"
    SIMNODE_TOPOLOGY=$topology SIMNODE_NAME="NVIDIA GPU" doctor
    if grep -qE "$targets" "$abs_top_builddir/kernels/architectures"; then
        expect "kernels for $capability" 0 '^verdict: yes'
    else
        expect "no kernels for $capability" 1 \
            "^verdict: no: this build has no kernels for NVIDIA GPU, of compute capability $capability \(it has: "
    fi
done
ONEHOP_SHM_DIR=/nowhere/at/all expect "no folder to meet in" 1 'no +shared_memory +/nowhere/at/all: No such file' \
    -- doctor
ONEHOP_LIBRARY=/nowhere/x.so expect "no library" 1 'no +library +ONEHOP_LIBRARY=/nowhere/x.so: No such file' -- doctor
ONEHOP_LIBRARY=$abs_top_srcdir/README.md expect "a library that is none" 1 'no +library .*README.md: ' -- doctor
ONEHOP_LIBRARY=$stand_ins/libnccl.so.2 expect "a library that is another" 1 "no +library .*libnccl.so.* is not onehop's" \
    -- doctor
expect "a file that another doctor has left" 0 'yes +shared_memory' \
    -- run_limited bash -c 'touch "$ONEHOP_SHM_DIR/onehop-doctor.$$"; exec "$0" doctor' "$onehop"
[ "$(ls -A "$shm" | wc -l)" = 1 ]
tap_point $? "and none of this one" "$(ls -A "$shm")"
SIMNODE_NCCL_VERSION=21805 expect "an NCCL that is too old" 1 'no +nccl .*version 2\.18\.5' -- doctor
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    tap_skip "no driver" "there is one"
else
    LD_LIBRARY_PATH= expect "no driver" 1 '^verdict: no: libcuda' \
        'no +driver +libcuda.so.1 cannot be opened; see .onehop topo., or add --simulated' -- doctor
    LD_LIBRARY_PATH= expect "no driver, --simulated" 0 '^verdict: yes: onehop serves' -- doctor --simulated
fi
rm "$shm"/onehop-doctor.*
expect_no_files

# --- a process

jobs=0
# hold COMMAND...: starts it and waits until it says something; the loader, whose words on LD_PRELOAD come first, does not
# count. Sets $pid.
hold() {
    jobs=$((jobs + 1))
    "$@" <"$scratch/wait" >"$scratch/held.$jobs" 2>&1 9>&- &
    pid=$!
    held+=("$pid")
    await 10 grep -qv '^ERROR: ld\.so: ' "$scratch/held.$jobs" || echo "# $* does not start"
}

# expect_held NAME STATUS PATTERN... -- hold COMMAND...: what doctor says of the process.
expect_held() {
    run_first "$@"
    expect "${asked[@]}" -- doctor --pid "$pid"
}

# Two ranks that are served; the process that is checked is rank 0.
id=$(new_id)
LD_PRELOAD=$plugin "$live" 1 2 "$id" hold <"$scratch/wait" >/dev/null 2>&1 9>&- &
held+=($!)
expect_held "preloaded: served" 0 "yes +nccl +$stand_ins/libnccl.so.2" "yes +onehop +$plugin, by LD_PRELOAD" \
    'yes +calls +3 of 3 collective calls served$' '^verdict: yes: onehop serves its calls' \
    -- hold env LD_PRELOAD="$plugin" "$live" 0 2 "$id" hold
expect "preloaded: served, as JSON" 0 '"schema": 2' '"mode": "process"' '"text": ".*, by LD_PRELOAD"' '3 of 3 collective calls' \
    -- doctor --json --pid "$pid"
if command -v python3 >/dev/null; then
    tap_empty "$(python3 -m json.tool "$out" 2>&1 >/dev/null)" "the JSON is well-formed"
else
    tap_skip "the JSON is well-formed" "no python3"
fi
ONEHOP_DISABLE=1 expect "disabled here only" 0 -- doctor --pid "$pid"
lone=("$live" 0 1 "$(new_id)" hold)
expect_held "not preloaded" 1 'no +onehop +onehop is not loaded' '^verdict: no: onehop is not loaded; start' -- hold "${lone[@]}"
mkdir "$scratch/"$'nccl\303\251'
cp "$stand_ins/libnccl.so.2" "$scratch/"$'nccl\303\251'
expect_held "NCCL in a folder whose name is not ASCII" 1 'yes +nccl .*/nccl\?\?/libnccl.so.2' \
    -- hold env LD_LIBRARY_PATH="$scratch/"$'nccl\303\251'":$LD_LIBRARY_PATH" "${lone[@]}"
[ "$(grep -c '/libnccl.so.2' "$out")" = 1 ]
tap_point $? "and it is named once" "$(cat "$out")"
expect_held "a preload that is not there" 1 '^verdict: no: .*LD_PRELOAD names /nowhere/libonehop.so, which is not there' \
    -- hold env LD_PRELOAD=/nowhere/libonehop.so "${lone[@]}"
expect_held "a plugin that is not there" 1 'NCCL_NET_PLUGIN names ./libnccl-net-onehop.so, which is not there' \
    -- hold env NCCL_NET_PLUGIN=none,./libnccl-net-onehop.so "${lone[@]}"
echo NCCL_NET_PLUGIN=/nowhere/libnccl-net-onehop.so >"$HOME/.nccl.conf"
expect_held "a plugin of nccl.conf that is not there" 1 \
    'NCCL_NET_PLUGIN names /nowhere/libnccl-net-onehop.so, which is not there' -- hold "${lone[@]}"
rm "$HOME/.nccl.conf"
cp "$abs_top_srcdir/README.md" "$scratch/libonehop.so"
expect_held "a preload that the loader refuses" 1 'LD_PRELOAD names .*/libonehop.so, which is there, but not for this' \
    -- hold env LD_PRELOAD="$scratch/libonehop.so" "${lone[@]}"
rm "$scratch/libonehop.so"
expect_held "a plugin by its short name" 1 'NCCL_NET_PLUGIN names onehop, which was not found: check that LD_LIBRARY_PATH' \
    -- hold env NCCL_NET_PLUGIN=onehop "${lone[@]}"
expect_held "a plugin before the first communicator" 2 \
    'NCCL_NET_PLUGIN names .*, which NCCL loads with its first communicator' \
    -- hold env NCCL_NET_PLUGIN="$libs/libnccl-net-onehop.so" "$static" hold
expect_held "a single rank: its calls come, and are not served" 1 '0 of 3 collective calls served; fallbacks: ' \
    '^verdict: no: 0 of 3' -- hold env LD_PRELOAD="$plugin" "${lone[@]}"
expect_held "disabled there" 1 'note +variable +ONEHOP_DISABLE=1' '^verdict: no: ONEHOP_DISABLE=1 is set' \
    -- hold env LD_PRELOAD="$plugin" ONEHOP_DISABLE=1 "${lone[@]}"
many=()
for number in {1..99}; do
    many+=("ONEHOP_OTHER_$number=1")
done
expect_held "more variables than a report shows: what decides is there" 1 'note +variable +ONEHOP_OTHER_' 'yes +onehop +' \
    '^verdict: no: 0 of 3' -- hold env "${many[@]}" LD_PRELOAD="$plugin" "${lone[@]}"
expect_held "NCCL stands in front of onehop: its calls come" 1 'by LD_PRELOAD' '^verdict: no: 0 of 3' \
    -- hold env LD_PRELOAD="$stand_ins/libnccl.so.2 $plugin" "${lone[@]}"
expect_held "statically linked" 2 'by LD_PRELOAD' '^verdict: unknown: no libnccl.so is loaded; .*statically linked' \
    -- hold env LD_PRELOAD="$plugin" "$static" hold
shell=(bash -c 'echo ready; read -r unused')
expect_held "a shell with the preload" 2 'by LD_PRELOAD' '^verdict: unknown: no libnccl.so is loaded' \
    -- hold env LD_PRELOAD="$plugin" "${shell[@]}"
expect_held "a shell" 2 'onehop is not loaded' '^verdict: unknown: no libnccl.so is loaded' -- hold "${shell[@]}"
mkdir "$scratch/copy"
cp -L "$stand_ins"/libnccl.so.2 "$scratch/copy"
hold env LD_LIBRARY_PATH="$scratch/copy:$LD_LIBRARY_PATH" LD_PRELOAD="$plugin" "${lone[@]}"
rm "$scratch/copy/libnccl.so.2"
expect "its NCCL was removed since" 1 "yes +nccl +$scratch/copy/libnccl.so.2 \(deleted\)" '^verdict: no: 0 of 3' \
    -- doctor --pid "$pid"

# Programs that have an all-reduce of their own: any library of that name.
own_allreduce() { # own_allreduce FOLDER FILE PATTERN
    mkdir -p "$scratch/$1"
    cp -L "$stand_ins"/libnvidia-ml.so.1 "$scratch/$1/$2"
    expect_held "$1 is loaded: the switch" 1 "note +own_allreduce +$3" '^verdict: no: 0 of 3' \
        -- hold env LD_PRELOAD="$plugin $scratch/$1/$2" "${lone[@]}"
}
own_allreduce vllm _C.abi3.so 'vLLM in process [0-9]+ .*--disable-custom-all-reduce'
own_allreduce sgl_kernel common_ops.abi3.so 'SGLang .*--disable-custom-all-reduce'
own_allreduce libs libtensorrt_llm.so 'TensorRT-LLM .*allreduce_strategy: NCCL'

# By the other ways of loading.
export REACH_HOLD=1
object=$objects/libreach.so
net=$libs/libnccl-net-onehop.so
# By NCCL_NET_PLUGIN: calls come if the program is linked or looks late, and not if it looked before.
for way in object:"$object" late:libnccl.so.2; do
    expect_held "plugin, ${way%%:*}: calls come" 1 'onehop +.*, by NCCL_NET_PLUGIN' \
        '^verdict: no: 0 of [1-9][0-9]* collective calls' \
        -- hold env NCCL_NET_PLUGIN="$net" "$reach" 0 1 "$(new_folder)" "$way"
done
expect_held "plugin, dlsym before the first communicator" 2 \
    '^verdict: unknown: no collective call has come to onehop.* before the first communicator' \
    -- hold env NCCL_NET_PLUGIN="$net" "$reach" 0 1 "$(new_folder)" dlsym:libnccl.so.2
expect_held "two copies of NCCL" 1 "nccl +$stand_ins/libnccl.so.2" "nccl +$stand_ins/libncclcopy.so.2" \
    '^verdict: no: 0 of' \
    -- hold env LD_PRELOAD="$plugin" "$reach" 0 1 "$(new_folder)" both:object:"$object",late:libncclcopy.so.2
unset REACH_HOLD
hold bash -c 'echo ready'
wait "$pid"
expect "a process that has gone" 2 "^onehop: doctor: --pid $pid: no such process\$" -- doctor --pid "$pid"
for word in 0 -1 12x '' 99999999999; do
    expect "--pid '$word'" 2 'expected a whole number from 1' -- doctor --pid "$word"
done
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups "$onehop" --version >/dev/null 2>&1; then
    expect "another user's process" 2 "^onehop: doctor: --pid $$: Permission denied\$" \
        -- run_limited setpriv --reuid=65534 --clear-groups "$onehop" doctor --pid $$
else
    tap_skip "another user's process" "not root, or no setpriv"
fi
if [ "$(cat /proc/2/comm 2>/dev/null)" = kthreadd ]; then
    expect "a thread of the kernel" 2 '--pid 2: no program is mapped' -- doctor --pid 2
else
    tap_skip "a thread of the kernel" "none to be seen here"
fi

# --- a program

expect "a program that is served" 0 'the program ended with exit status 0' '80 of 80 collective calls served' \
    '^verdict: yes: onehop served calls' -- doctor -- "$app" --nranks 2 --counts 5,500 --iterations 20
ONEHOP_MAX_BYTES=64 expect "sizes that are not" 1 '4 fallbacks: a size' '^verdict: no: a size that is not served' \
    -- doctor "$app" --nranks 2 --counts 300,500
ONEHOP_MAX_BYTES=1 expect "no room for an element: the size, not the type" 1 '^verdict: no: a size that is not served' \
    -- doctor "$app" --nranks 2 --counts 5
SIMNODE_TOPOLOGY=pcie-only expect "a machine that is not" 1 '^verdict: no: .*NVLink' \
    -- doctor "$app" --nranks 2 --counts 5
err=$scratch/err doctor --json -- "$app" --nranks 2 --counts 5
[ "$status" = 0 ] && grep -q '^ok 2 ranks' "$scratch/err" && [ "$(head -c 1 "$out")" = '{' ] && grep -q '"served": 2,' "$out"
tap_point $? "what the program says goes to stderr, and only JSON to stdout" "$(cat "$scratch/err" "$out")"
expect "the environment is cleared on the way" 2 '^verdict: unknown: no process with onehop and NCCL has ended orderly; check' \
    -- doctor env -i SIMNODE_TOPOLOGY=h200x4 "$live" 0 1 "$(new_id)"
LD_PRELOAD=$scratch/vllm/_C.abi3.so expect "a program with vLLM's library: the option" 1 \
    'note +own_allreduce +vLLM in process [0-9]+ .*--disable-custom-all-reduce' \
    -- doctor bash -c '"$0" 0 1 "$1"; sleep 1' "$live" "$(new_id)"
expect "a statically linked program" 2 '^verdict: unknown: no process with onehop and NCCL has ended orderly' \
    -- doctor "$static"
for version in 22809 22705; do # the latter tells plugins no hash
    SIMNODE_NCCL_VERSION=$version expect "plugin, NCCL $version, dlsym before the first communicator: all calls go to NCCL" 1 \
        'in 2 processes no collective call came to onehop' '^verdict: no: .*before the first communicator' \
        -- doctor --via plugin bash -c "$pair" "$reach" "$(new_folder)" dlsym:libnccl.so.2
done
expect "the same as JSON" 1 '"processes_unreached": 2' \
    -- doctor --json --via plugin bash -c "$pair" "$reach" "$(new_folder)" dlsym:libnccl.so.2
expect "plugin, dlsym for each communicator: served" 0 '^verdict: yes: onehop served calls' \
    -- doctor --via plugin bash -c "$pair" "$reach" "$(new_folder)" late:libnccl.so.2
expect "plugin, linked: served" 0 '^verdict: yes: onehop served calls' \
    -- doctor --via plugin bash -c "$pair" "$linked" "$(new_folder)" linked
REACH_IDLE=1 expect "a program that makes no call: cannot be told, and where programs have their own all-reduce" 2 \
    '^verdict: unknown: the program made no call of a collective that onehop serves; .* own all-reduce see doc/integrations.md$' \
    -- doctor bash -c "$pair" "$linked" "$(new_folder)" linked
expect "a program without NCCL" 2 '^verdict: unknown: no process with onehop and NCCL has ended orderly' -- doctor true
LD_LIBRARY_PATH= expect "--simulated: a program has the signals that it would have" 2 "^$(timeout 10 grep SigIgn /proc/self/status)\$" \
    -- doctor --simulated grep SigIgn /proc/self/status
expect "a program that is not there" 2 'nothing: No such file' '^verdict: unknown: the program could not be started' \
    -- doctor "$scratch/nothing"
expect "a program that is killed" 2 'ended by signal 15' -- doctor bash -c 'kill -TERM $$'
tap_empty "$(find "$scratch" -name 'onehop-stats.*')" "no file of statistics is left"

# --- usage

expect "a process and a program" 2 'expected neither a program nor --simulated' -- doctor --pid $$ true
expect "nowhere to write to" 2 'stdout: No space left' -- run_full "$onehop" doctor
tap_done
