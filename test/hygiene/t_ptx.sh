# SPDX-License-Identifier: MIT
# The PTX of the kernels: words are relaxed system-scope accesses of 64-bit elements, no path accesses memory before
# griddepcontrol.wait, and a kernel triggers dependents only behind a test of its parameter. A list of broadcasts, which may
# have several roots, triggers late only when all threads of a block have their words (doc/overlap.md). Of each source that reduces
# the sum of bf16 and any op of i32, of the others both kernels, 2 ranks: all other kernels have the same primitives.
. "$abs_top_srcdir/test/hygiene/tap.sh"
nvcc=$(sed -n 's/^NVCC = //p' "$abs_top_builddir/Makefile")
[ -n "$nvcc" ] && "$nvcc" --version >/dev/null 2>&1 || tap_skip_all "no nvcc"
python3 -c '' 2>/dev/null || tap_skip_all "no python3"
tap_scratch

cat >"$scratch/some.cu" <<'END'
#include "kernels/entry_points.cuh"
#undef OH_SUM_KERNELS
#define OH_SUM_KERNELS(collective_, algorithm_, body_, type_) OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 2)
#undef OH_EACH_RANKS
#define OH_EACH_RANKS(x_, ...) x_(__VA_ARGS__, n2, 2, 2)
#undef OH_EACH_SUM_TYPE
#define OH_EACH_SUM_TYPE(x_, ...) x_(__VA_ARGS__, bf16)
#undef OH_EACH_TYPE
#define OH_EACH_TYPE(x_, ...) x_(__VA_ARGS__, i32)
#include "kernels/allgather.cu"
#include "kernels/broadcast.cu"
#include "kernels/oneshot.cu"
#include "kernels/reducescatter.cu"
#include "kernels/twoshot.cu"
END

cat >"$scratch/wrong.py" <<'END'
import re, sys
USER = r"ld\.global\.c[gs]\.v4\.u32|(ld|st)\.global\.u(8|16|32|64)|st\.global\.v4\.u32"
EMPTY = r"st\.global\.cs\.v4\.u32"  # of a word
EPOCH = r"(ld|st)\.volatile\.global\.u(32|64)"
ESCAPE = r"(ld|st)\.relaxed\.sys\.global\.u8"
WORD = r"(ld|st)\.relaxed\.sys\.global\.v2\.b64"

def is_tested(before, text):
    """A branch around the trigger, by a parameter that was kept in a register (oh_warp_keep), or that or another test."""
    other = r"(?:setp\.ne\.s32\s+\S+ %r\d+, 0;or\.pred\s+(%p\d+), (%p\d+), (%p\d+);)?"
    test = re.search(rf"setp\.ne\.s32\s+(%p\d+), (%r\d+), [12];{other}@(%p\d+) bra\s[^;]*;$", before)
    last = test and test[6] == (test[3] or test[1]) and test[1] in (test[4] or test[1], test[5])
    kept = last and re.search(rf"shfl\.sync\.idx\.b32\s+{test[2]}\|%p\d+, (%r\d+), ", text)
    return kept and re.search(rf"ld\.param\.u32\s+{kept[1]}, \[", text)

kernels = re.findall(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n", open(sys.argv[1]).read(), re.S)
if len(kernels) != 10:
    print(f"{len(kernels)} kernels, not 10")
for name, text in kernels:
    lines = [line.strip() for line in re.sub(r"//.*", "", text).split("\n")]
    lines = [line for line in lines if line and not line.startswith(".")]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\$\w+:", line)}
    found, seen, todo, access = set(), set(), [0], r"\b(?:ld|st|atom|red)\.(?!param|local)[a-z0-9_.]+"
    while todo:  # instructions that a thread can reach without a wait
        i = todo.pop()
        while i < len(lines) and i not in seen and "griddepcontrol.wait" not in lines[i]:
            seen.add(i)
            found |= {f"{a} before the wait" for a in re.findall(access, lines[i])}
            jump = re.match(r"(@\S+ +)?bra(?:\.uni)?\s+(\$\w+);", lines[i])
            if jump:
                todo.append(labels[jump[2]])
            if "launch_dependents" in lines[i]:
                found.add("triggers before the wait")
            if jump and not jump[1] or lines[i].startswith("ret"):
                break
            i += 1
    accesses = re.findall(access, " ".join(lines))
    found |= {f"{a} is no access of the protocol" for a in accesses if not re.fullmatch(f"{USER}|{EMPTY}|{EPOCH}|{ESCAPE}|{WORD}", a)}
    found |= {f"no {kind} of a word" for kind in ("ld", "st") if not any(re.fullmatch(WORD, a) and a[:2] == kind for a in accesses)}
    for i, line in enumerate(lines):
        if "launch_dependents" in line and not is_tested("".join(lines[i - 4:i]), text):
            found.add("triggers without a test of its parameter")
    joined = [i for i, line in enumerate(lines) if line.startswith("bar.sync")]
    if "Broadcast_List" in name and not any("launch_dependents" in line for i in joined for line in lines[i:i + 8]):
        found.add("a list does not trigger behind the barrier")
    for what in sorted(found):
        print(f"{name}: {what}")
END

# wrong FOLDER: what is wrong in the kernels below FOLDER, a line each.
wrong() {
    "$nvcc" -ptx -gencode arch=compute_90,code=compute_90 -std=c++17 -O3 -I"$1" \
        -o "$scratch/some.ptx" "$scratch/some.cu" >"$scratch/log" 2>&1 || cat "$scratch/log"
    python3 "$scratch/wrong.py" "$scratch/some.ptx" 2>&1
}

# expect_found NAME FILE EXPRESSION PATTERN: a copy of the kernels that sed has changed has this wrong.
expect_found() {
    local found
    rm -rf "$scratch/copy" && mkdir "$scratch/copy" && cp -r "$abs_top_srcdir/kernels" "$scratch/copy" && chmod -R u+w "$scratch/copy"
    sed -i "$3" "$scratch/copy/$2"
    found=$(wrong "$scratch/copy")
    grep -qE -- "$4" <<<"$found"
    tap_point $? "$1: is found" "$found"
}

tap_empty "$(wrong "$abs_top_srcdir")" "accesses, waits and triggers"
if [ "${OH_PTX_FULL-0}" = 0 ]; then
    tap_skip "mutations are found" "OH_PTX_FULL=1 tries them"
else
    primitives=kernels/primitives.cuh
    expect_found "a weak load" $primitives 's/ld\.relaxed\.sys\.global\.v2/ld.global.v2/' 'ld.global.v2.b64 is no access'
    expect_found "a load of GPU scope" $primitives 's/ld\.relaxed\.sys\.global\.v2/ld.relaxed.gpu.global.v2/' 'gpu.global.v2.b64 is no'
    expect_found "a store of GPU scope" $primitives 's/st\.relaxed\.sys\.global\.v2/st.relaxed.gpu.global.v2/' 'gpu.global.v2.b64 is no'
    expect_found "32-bit elements" $primitives 's/ld\.relaxed\.sys\.global\.v2\.b64 {half0, half1}, \[%4\];.*/ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"/; /mov.b64 {%0, %1}, half0/d' 'v4.u32 is no access'
    expect_found "no wait" $primitives '/griddepcontrol\.wait;/d' 'before the wait'
    for source in allgather broadcast oneshot reducescatter twoshot; do
        expect_found "$source: a load before the wait" "kernels/$source.cu" 's/^    const uint32_t trigger = oh_kernel_begin(args);/    const uint32_t early = oh_word_load(oh_epoch_address(args)); oh_assume(early != 7);\n&/' 'before the wait'
    done
    expect_found "a trigger at the end" kernels/wait.cuh 's/ && trigger == OH_TRIGGER_LATE//' 'without a test'
    expect_found "a list that triggers by one thread" kernels/broadcast.cu 's/Message::has_one_root ? ranks : 0/ranks/' 'behind the barrier'
    expect_found "an early trigger" kernels/wait.cuh 's/if (trigger == OH_TRIGGER_EARLY) {/{/' 'without a test'
fi
tap_done
