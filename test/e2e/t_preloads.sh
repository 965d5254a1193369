# SPDX-License-Identifier: MIT
# Other preloaded objects that stand for functions of libc by a table of their own, as sanitizers and profilers do. They
# fill the table by dlsym, which onehop exports, so onehop's dlsym must call none of these functions meanwhile.
. "$abs_top_srcdir/test/e2e/lib.sh"

[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "a sanitizer's runtime is linked already"
user=$abs_top_builddir/test/e2e/dlsym_user
export LSAN_OPTIONS=detect_leaks=0 ASAN_OPTIONS=detect_leaks=0

# What runs before main refers to no function but onehop's own. __stack_chk_fail: it only ends the process.
objects=$abs_top_builddir/src/interpose/.libs
tap_empty "$(nm -u "$objects"/{dlsym,next_dlsym,elf}.o | awk 'NF == 2 { print $2 }' |
    grep -vE '^(oh_|_DYNAMIC$|_GLOBAL_OFFSET_TABLE_$|_r_debug$|__stack_chk_)')" "what runs before main calls no function of libc"

# stands_for: the functions of libc that onehop calls. An allocator must work before its constructor, and is left out.
stands_for() {
    local libc
    libc=$(ldd "$plugin" | awk '/libc\.so/ { print $3 }')
    comm -12 <(nm -D --undefined-only "$plugin" | awk '{ sub("@.*", "", $2); print $2 }' | sort -u) \
        <(nm -D --defined-only "$libc" | awk '$2 ~ /[TWi]/ { sub("@.*", "", $3); print $3 }' | sort -u) |
        grep -vxE 'malloc|calloc|realloc|free'
}

# stand_in NAME WHEN: builds $scratch/NAME.so, which stands for these functions and finds the next ones WHEN: `early`, in its
# constructor, or `late`, in the first call of one of them. A call meanwhile crashes.
stand_in() {
    {
        echo 'extern void *dlsym(void *, const char *);'
        echo '#define TYPES long, long, long, long, long, long, long, long, long, long, long, long'
        echo '#define PARAMETERS long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l'
        echo 'static long (*next[1000])(TYPES); static int filled; static void fill(void);'
        names=() number=0
        while read -r name; do
            echo "__attribute__((visibility(\"default\"))) long f$number(TYPES) __asm__(\"$name\");"
            echo "long f$number(PARAMETERS) { if (LATE && !filled) { filled = 1; fill(); }"
            echo "return next[$number](a, b, c, d, e, f, g, h, i, j, k, l); }"
            names+=("\"$name\"") number=$((number + 1))
        done < <(stands_for)
        (IFS=,; echo "static const char *const names[] = {${names[*]}};")
        echo 'static void fill(void) { for (unsigned i = 0; i < sizeof names / sizeof *names; i++)'
        echo '    next[i] = (long (*)(TYPES))dlsym((void *)-1, names[i]); }'
        echo '__attribute__((constructor)) static void early(void) { if (!LATE) fill(); }'
    } >"$scratch/$1.c"
    $CC -w -O1 -fno-builtin -fPIC -shared -DLATE="$([ "$2" = late ] && echo 1 || echo 0)" -o "$scratch/$1.so" "$scratch/$1.c" \
        >"$scratch/cc.log" 2>&1
}

# plain PRELOAD: what programs without NCCL say. Some end by a signal with a sanitizer alone.
plain() {
    LD_PRELOAD=$1 timeout -k 5 $limit "$user" 2>&1 || echo "status $?"
    LD_PRELOAD=$1 timeout -k 5 $limit bash -c 'echo a | cat' 2>/dev/null || echo "status $?"
}

# beside NAME OBJECT FIRST: programs work, and NCCL's are served, with OBJECT in front of onehop, and behind it unless FIRST.
beside() {
    local order orders=("$2 $plugin" "$plugin $2") name
    [ "$3" = any ] || orders=("$2 $plugin")
    plain "$2" >"$scratch/plain" 2>/dev/null
    for order in "${orders[@]}"; do
        name="$1, preloaded: $(printf '%s ' $order | sed 's:[^ ]*/::g')"
        plain "$order" >"$out" 2>/dev/null
        tap_empty "$(diff "$scratch/plain" "$out")" "$name: programs without NCCL"
        expect_served_both_ways "$name: NCCL" "$order"
    done
}

[ "$(stands_for | wc -l)" -gt 60 ]
tap_point $? "the functions that onehop calls are found" "$(stands_for)"
for when in early late; do
    if stand_in "stand-in-$when" $when; then
        beside "all that onehop calls, table filled $when" "$scratch/stand-in-$when.so" any
    else
        tap_skip "a table filled $when" "no compiler: $(tail -n 1 "$scratch/cc.log")"
    fi
done

# Real sanitizers: a runtime that is preloaded, and a program that has one in it.
echo 'int main(void) { return 0; }' >"$scratch/program.c"
for compiler in gcc clang; do
    for sanitizer in address thread memory undefined leak; do
        name="$compiler -fsanitize=$sanitizer"
        if ! $compiler -g -fsanitize=$sanitizer -o "$scratch/program" "$scratch/program.c" 2>/dev/null ||
            ! timeout -k 5 $limit "$scratch/program" >"$out" 2>&1; then
            tap_skip "$name" "it builds no program that runs here"
            continue
        fi
        runtime=$(ldd "$scratch/program" | awk '$1 ~ /^lib[a-z]*san/ { print $3 }')
        LD_PRELOAD="$runtime $plugin" timeout -k 5 $limit "$scratch/program" >"$out" 2>&1
        tap_point $? "a program built by $name" "$(cat "$out")"
        # Some fail without onehop, too, in a program that was not built for them.
        if [ -n "$runtime" ] && LD_PRELOAD=$runtime timeout -k 5 $limit "$user" >"$out" 2>&1; then
            beside "$name" "$runtime" first
        fi
    done
done
# Where a program's start does not pass onehop, and in the program's own constructors, look-ups lead to onehop as well.
cat >"$scratch/early.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#ifndef NAME
#define NAME "ncclAllReduce"
#endif
static void look(void)
{
    Dl_info info;
    void *found = dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), NAME);
    puts(found && dladdr(found, &info) ? info.dli_fname : dlerror());
    fflush(stdout);
}
#if defined(IN_CONSTRUCTOR)
__attribute__((constructor)) static void early(void) { look(); }
int main(void) { return 0; }
#elif defined(OWN_START)
#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
void start(void) { look(); _exit(0); }
#elif defined(OTHER_START)
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void *a, void *b, void *c, void *d)
{
    __typeof__(__libc_start_main) *next = dlsym(RTLD_NEXT, "__libc_start_main");
    return next(main, argc, argv, a, b, c, d);
}
#else
int main(void) { look(); return 0; }
#endif
END
# leads_to_onehop NAME PRELOAD FLAG...: in a program built with the flags.
leads_to_onehop() {
    build_or_skip "$1" "${@:3}" -o "$scratch/early" "$scratch/early.c" || return
    LD_PRELOAD=$2 ONEHOP_DEBUG=WARN timeout -k 5 $limit "$scratch/early" >"$out" 2>&1
    [ "$(cat "$out")" = "$plugin" ]
    tap_point $? "$1: dlsym leads to onehop" "$(cat "$out")"
}
leads_to_onehop "main" "$plugin"
leads_to_onehop "a constructor of the program" "$plugin" -DIN_CONSTRUCTOR
leads_to_onehop "the same, pncclX" "$plugin" -DIN_CONSTRUCTOR -DNAME='"pncclAllReduce"'
leads_to_onehop "a program with a start of its own" "$plugin" -DOWN_START -nostartfiles -Wl,-e,start
if build_or_skip "another object's start" -shared -fPIC -DOTHER_START -o "$scratch/start.so" "$scratch/early.c"; then
    leads_to_onehop "another object's start in front" "$scratch/start.so $plugin"
    leads_to_onehop "another object's start behind" "$plugin $scratch/start.so"
    # Of calls of a communicator that onehop does not follow any more the process has a record, given at its end.
    : >"$scratch/records"
    REACH_SUSPEND=1 run_ranks env LD_PRELOAD="$scratch/start.so $plugin" ONEHOP_STATS_FILE="$scratch/records" "$reach" -- \
        late:libnccl.so.2
    [ "$status" = 0 ] && [ "$(grep -c '"state":"fallback"' "$scratch/records")" = 2 ]
    tap_point $? "another object's start in front: one record of each process" "$(cat "$scratch/records"; diagnosis)"
fi
# Time passes between a file's creation and its lock: no other rank may take the file for one that is left.
cat >"$scratch/slow.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/file.h>
#include <unistd.h>
int flock(int file, int how)
{
    int (*next)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    usleep(how & LOCK_SH ? 200000 : 0);
    return next(file, how);
}
END
if build_or_skip "a slow lock" -shared -fPIC -o "$scratch/slow.so" "$scratch/slow.c"; then
    run_ranks env LD_PRELOAD="$plugin $scratch/slow.so" "$linked" -- linked
    expect_counts "a slow lock: no rank removes a file of the running job" served=12 0:removed 0:WARN
fi
expect_no_files
tap_done
