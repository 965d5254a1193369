# SPDX-License-Identifier: MIT
# onehop exports dlsym and dlvsym: no other user of them may notice, and other preloaded objects work on.
. "$abs_top_srcdir/test/e2e/lib.sh"

user=$abs_top_builddir/test/e2e/dlsym_user
other=$objects/libinterpose.so

# unchanged NAME LIBRARIES COMMAND...: the same output with the libraries preloaded, and with onehop before or behind.
unchanged() {
    local name=$1 others=$2 plain order
    shift 2
    plain=$(LD_PRELOAD=$others timeout -k 5 $limit "$@" 2>&1 || echo "status $?")
    for order in "$plugin $others" "$others $plugin"; do
        [ "$(LD_PRELOAD=$order timeout -k 5 $limit "$@" 2>&1 || echo "status $?")" = "$plain" ]
        tap_point $? "$name, preloaded: $(printf '%s ' $order | sed 's:[^ ]*/::g')" \
            "$(diff <(echo "$plain") <(LD_PRELOAD=$order timeout -k 5 $limit "$@" 2>&1 || echo "status $?"))"
        [ -n "$others" ] || break
    done
}

# served_beside NAME LIBRARIES: an NCCL program, linked and by dlsym, is served with other libraries preloaded, too.
served_beside() {
    local order
    for order in "$plugin $2" "$2 $plugin"; do
        expect_served_both_ways "$1, preloaded: $(printf '%s ' $order | sed 's:[^ ]*/::g')" "$order"
    done
}

[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "a sanitizer's runtime has a dlsym of its own kind"

[[ $("$user") == *done ]]
tap_point $? "the program works by itself" "$("$user" 2>&1)"
unchanged "fine points of dlsym" "" "$user"
unchanged "fine points of dlsym, from an object" "" "$user" "$other"
unchanged "beside another interposer of dlsym" "$other" "$user"
unchanged "from an object linked for a high address" "" "$user" "$objects/libhigh.so"
unchanged "beside an interposer of what onehop's dlsym uses" "$objects/libdlsym_wrapper.so" "$user"
served_beside "another interposer of ncclAllReduce and dlsym" "$other"
# In front it sees every call, and its RTLD_NEXT leads to onehop; behind onehop it sees none of those that are served.
INTERPOSE_SAY=1 run_ranks env LD_PRELOAD="$other $plugin" "$linked" -- linked
expect_counts "an interposer in front of onehop sees all calls" '2:interposed: .*ncclAllReduce 6' served=12

# A thread within dl_iterate_phdr waits for what the caller of dlsym holds: in Python the GIL (threadpoolctl, dllist).
cat >"$scratch/walker.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static volatile int within;
static int wait_within(struct dl_phdr_info *object, size_t size, void *user)
{
    within = 1;
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return 1;
}
static void *walk(void *unused)
{
    dl_iterate_phdr(wait_within, NULL);
    return NULL;
}
int main(void)
{
    pthread_t thread;
    void *self = dlopen(NULL, RTLD_NOW), *late = dlopen("libresolv.so.2", RTLD_NOW); /* not looked at yet */
    alarm(10);
    pthread_mutex_lock(&held);
    pthread_create(&thread, NULL, walk, NULL);
    while (!within) {
        usleep(1000);
    }
    const int found = late && dlsym(self, "getpid") && !dlsym(self, "ncclNoSuchFunction");
    pthread_mutex_unlock(&held);
    pthread_join(thread, NULL);
    return !found;
}
END
if build_or_skip "a thread within dl_iterate_phdr" -o "$scratch/walker" "$scratch/walker.c" -lpthread; then
    run_limited env LD_PRELOAD="$plugin" "$scratch/walker"
    expect_right "dlsym does not wait for a thread within dl_iterate_phdr"
fi

# A constructor, with the loader's lock, waits for a thread that makes the first call from an object that was there
# before. libc tells that object's address without a lock since glibc 2.35.
cat >"$scratch/first.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
int ncclGroupStart(void);
int ncclGroupEnd(void);
void *make_calls(void *good);
#ifdef OBJECT
__attribute__((constructor)) static void wait_for_thread(void)
{
    pthread_t thread;
    int good = 0;
    pthread_create(&thread, NULL, make_calls, &good);
    pthread_join(thread, NULL);
    puts(good ? "right" : "wrong");
}
#else
void *make_calls(void *good)
{
    *(int *)good = ncclGroupStart() == 0 && ncclGroupEnd() == 0;
    return NULL;
}
int main(int count, char **words)
{
    alarm(10);
    return count < 2 || !dlopen(words[1], RTLD_NOW);
}
#endif
END
if [ "$(printf '%s\n' 2.35 "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" | sort -V | head -n 1)" != 2.35 ]; then
    tap_skip "a first call beside a constructor" "glibc before 2.35"
elif build_or_skip "a first call beside a constructor" -shared -fPIC -DOBJECT -o "$scratch/first.so" "$scratch/first.c" &&
    build_or_skip "the same" -rdynamic -o "$scratch/first" "$scratch/first.c" "$stand_ins/libnccl.so.2" -lpthread; then
    for loaded in "" "$plugin"; do
        run_limited env LD_PRELOAD="$loaded" "$scratch/first" "$scratch/first.so"
        [ "$status" = 0 ] && grep -qx right "$out"
        tap_point $? "a first call does not wait for a constructor, preloaded: ${loaded##*/}" "$(cat "$out")"
    done
fi

# At exit onehop calls nothing of an object in front whose destructors have run.
cat >"$scratch/ended.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static int ended;
void *dlopen(const char *path, int flags)
{
    if (ended) {
        _exit(3);
    }
    return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(path, flags);
}
__attribute__((destructor)) static void end(void) { ended = 1; }
END
if build_or_skip "an object that has ended" -shared -fPIC -o "$scratch/ended.so" "$scratch/ended.c"; then
    unchanged "an object with a dlopen of its own" "$scratch/ended.so" "$user"
fi

# An object whose dynamic section is more than 4 GiB behind its tables.
cat >"$scratch/far.c" <<'END'
#include <dlfcn.h>
#ifdef OBJECT
int far(void);
int far(void) { return 7; }
#else
int main(int count, char **words)
{
    void *object = count > 1 ? dlopen(words[1], RTLD_NOW) : 0;
    int (*far)(void) = object ? (int (*)(void))dlsym(object, "far") : 0;
    return !far || far() != 7;
}
#endif
END
if build_or_skip "a large object" -DOBJECT -shared -fPIC -nostdlib -Wl,--section-start=.dynamic=0x200000000 \
    -o "$scratch/far.so" "$scratch/far.c" && build_or_skip "the same" -o "$scratch/far" "$scratch/far.c"; then
    unchanged "an object of more than 4 GiB" "" "$scratch/far" "$scratch/far.so"
fi

# A program that asks for NCCL before it opens NCCL.
cat >"$scratch/asks.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int ncclGroupEnd(void) __attribute__((weak));
int main(int count, char **words)
{
    static const char *const names[] = {"ncclAllReduce", "pncclAllReduce"};
    Dl_info info;
    for (int i = 0; i < 4; i++) {
        void *handle = i < 2 ? RTLD_DEFAULT : dlopen(words[1], RTLD_NOW), *found = dlsym(handle, names[i % 2]);
        fprintf(stderr, "%s: %s\n", names[i % 2], found ? "there" : dlerror());
        puts(found && dladdr(found, &info) ? info.dli_fname : "-");
        int (*volatile reference)(void) = ncclGroupEnd;
        fprintf(stderr, "weak: %s\n", reference ? "there" : "-");
    }
    return 0;
}
END
if build_or_skip "a program that asks for NCCL" -o "$scratch/asks" "$scratch/asks.c"; then
    err=$scratch/asked run_limited "$scratch/asks" "$stand_ins/libnccl.so.2"
    err=$scratch/asked-too run_limited env LD_PRELOAD="$plugin" ONEHOP_DEBUG=WARN "$scratch/asks" "$stand_ins/libnccl.so.2"
    tap_empty "$(diff "$scratch/asked" "$scratch/asked-too")" "NCCL that is not loaded is not there"
    [ "$(cat "$out")" = "$(printf '%s\n' - - "$plugin" "$plugin")" ]
    tap_point $? "functions of NCCL that is opened later lead to onehop" "$(cat "$out")"
fi

# An object that finds the functions behind its own once, by pthread_once. A thread does so while onehop, in another, looks at
# objects and patches NCCL: dlsym waits for the loader's lock, with which onehop may wait for nothing of that object.
cat >"$scratch/once.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
volatile int within, looking;
void *find_once(void *unused);
#ifdef OBJECT
static pthread_once_t once = PTHREAD_ONCE_INIT;
static FILE *(*next)(const char *, const char *);
static void find(void)
{
    within = 1;
    while (!looking) {
        usleep(1000);
    }
    usleep(300000);
    next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
}
void *find_once(void *unused)
{
    pthread_once(&once, find);
    return unused;
}
static void wait_for_it(void)
{
    if (within) {
        find_once(NULL);
    }
}
FILE *fopen(const char *path, const char *mode)
{
    find_once(NULL);
    return next(path, mode);
}
int snprintf(char *to, size_t size, const char *format, ...)
{
    va_list list;
    wait_for_it();
    va_start(list, format);
    int length = vsnprintf(to, size, format, list);
    va_end(list);
    return length;
}
int strcmp(const char *a, const char *b)
{
    wait_for_it();
    for (; *a && *a == *b; a++, b++) {
    }
    return (unsigned char)*a - (unsigned char)*b;
}
size_t strlen(const char *text)
{
    size_t length = 0;
    wait_for_it();
    for (; text[length]; length++) {
        __asm__("");
    }
    return length;
}
#else
int main(int count, char **words)
{
    pthread_t thread;
    alarm(10);
    void *nccl = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    pthread_create(&thread, NULL, find_once, NULL);
    while (!within) {
        usleep(1000);
    }
    looking = 1;
    const int found = nccl && dlsym(nccl, "ncclGroupEnd");
    pthread_join(thread, NULL);
    return !found;
}
#endif
END
if build_or_skip "functions that are found once" -fno-builtin -DOBJECT -shared -fPIC -o "$scratch/once.so" \
    "$scratch/once.c" -lpthread && build_or_skip "the same" -o "$scratch/once" "$scratch/once.c" "$scratch/once.so" -lpthread; then
    for loaded in "" "$scratch/once.so $plugin" "$plugin $scratch/once.so"; do
        run_limited env LD_PRELOAD="$loaded" "$scratch/once" "$stand_ins/libnccl.so.2"
        expect_right "functions that are found once, preloaded: $(printf '%s ' $loaded | sed 's:[^ ]*/::g')"
    done
fi

# A resolver of an indirect function calls dlsym while the program starts, before onehop is relocated.
cat >"$scratch/resolver.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
int indirect(void), call(void);
#ifdef OBJECT
static int found(void) { return 0; }
static int missed(void) { return 1; }
static int (*resolve(void))(void)
{
    return dlsym(RTLD_DEFAULT, "getpid") && !dlsym(RTLD_DEFAULT, "ncclNoSuchFunction") ? found : missed;
}
int indirect(void) __attribute__((ifunc("resolve")));
int call(void) { return indirect(); }
#else
int main(void) { return call(); }
#endif
END
if build_or_skip "a resolver" -DOBJECT -fno-plt -shared -fPIC -o "$scratch/resolver.so" "$scratch/resolver.c" &&
    build_or_skip "the same" -o "$scratch/resolver" "$scratch/resolver.c" "$scratch/resolver.so"; then
    unchanged "dlsym in a resolver" "" "$scratch/resolver"
    loader=$(readelf -lW "$scratch/resolver" | sed -n 's/.*interpreter: \(.*\)]/\1/p')
    unchanged "the same, started by the loader" "" "$loader" "$scratch/resolver"
fi

# A dlsym of its own in front of onehop, which finds the next one in some way. It is served, or onehop says why not.
cat >"$scratch/hook.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
typedef void *function(void *, const char *);
static void *find(void)
{
    static const char *const versions[] = {FIRST, "GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"};
    void *scope = PRIVATE ? dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD) : RTLD_NEXT, *found = NULL;
    for (int i = 0; i < 4 && !found; i++) {
        found = dlvsym(scope, "dlsym", versions[i]);
    }
    return found;
}
static function *next;
__attribute__((constructor)) static void early(void) { next = next ? next : (function *)find(); }
void *dlsym(void *handle, const char *name) { early(); return next(handle, name); }
END
hooked_by() { # NAME FLAG...
    build_or_skip "$1" -shared -fPIC "${@:2}" -o "$scratch/hook.so" "$scratch/hook.c"
}
for first in GLIBC_2.2.5 GLIBC_2.34; do
    hooked_by "dlsym by version $first" -DFIRST="\"$first\"" -DPRIVATE=0 &&
        served_beside "another dlsym, which asks for version $first" "$scratch/hook.so"
done
if hooked_by "dlsym of libc's handle" -DFIRST='"GLIBC_2.34"' -DPRIVATE=1; then
    run_ranks env LD_PRELOAD="$scratch/hook.so $plugin" "$reach" -- dlsym:libnccl.so.2
    expect_counts "another dlsym, which passes onehop by: a line says so" nccl_allreduce=12 \
        "2:INFO no call of .*libnccl.so.2 has come to onehop: dlsym of $scratch/hook.so keeps look-ups"
    run_ranks env LD_PRELOAD="$scratch/hook.so $plugin" "$linked" -- linked
    expect_counts "the same, linked: served" served=12 0:WARN
    run_ranks env LD_PRELOAD="$plugin $scratch/hook.so" "$reach" -- late:libnccl.so.2
    expect_counts "the same, behind onehop: served" served=12 0:WARN
fi

# Real ones of the distribution.
# library FILE PACKAGE: sets $found to the path of an installed library, or empty.
library() {
    found=$(ls /usr/lib/*/"$1" /usr/lib/*/*/"$1" "${OH_TEST_LIBRARIES:-/nowhere}/$1" 2>/dev/null | head -n 1)
    [ -n "$found" ] || tap_skip "$1" "not installed (Debian: $2)"
}
for kind in libjemalloc.so.2:libjemalloc2 libtcmalloc_minimal.so.4:libtcmalloc-minimal4; do
    library "${kind%:*}" "${kind#*:}"
    if [ -n "$found" ]; then
        unchanged "${kind#*:}" "$found" "$user"
        served_beside "${kind#*:}" "$found"
    fi
done
library libfaketime.so.1 libfaketime
if [ -n "$found" ]; then
    export FAKETIME="@2001-02-03 04:05:06"
    unchanged "faketime" "$found" date -u +%F
    [ "$(LD_PRELOAD="$plugin $found" date -u +%F)" = 2001-02-03 ]
    tap_point $? "faketime behind onehop works" "$(LD_PRELOAD="$plugin $found" date -u +%F)"
    unset FAKETIME
    served_beside "faketime" "$found"
fi
# A program with a copy of _r_debug (-no-pie), in which the loader's state does not change.
cat >"$scratch/bound.c" <<'END'
int ncclGroupEnd(void);
void *bound(void);
void *bound(void) { return (void *)ncclGroupEnd; }
END
cat >"$scratch/copied.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>
extern struct r_debug _r_debug;
int main(int count, char **words)
{
    Dl_info info;
    void *nccl = count > 2 ? dlopen(words[1], RTLD_NOW) : NULL, *opened = dlopen(words[2], RTLD_NOW | RTLD_DEEPBIND);
    void *(*bound)(void) = opened ? (void *(*)(void))dlsym(opened, "bound") : NULL;
    return !_r_debug.r_version || !nccl || !bound || !dladdr(bound(), &info) ||
           !strstr(info.dli_fname, "/libonehop.so");
}
END
if build_or_skip "a program with a copy of _r_debug" -shared -fPIC -o "$scratch/bound.so" "$scratch/bound.c" \
    "$stand_ins/libnccl.so.2" && build_or_skip "the same" -no-pie -fno-pie -o "$scratch/copied" "$scratch/copied.c"; then
    run_limited env LD_PRELOAD="$plugin" "$scratch/copied" "$stand_ins/libnccl.so.2" "$scratch/bound.so"
    [ "$status" = 0 ]
    tap_point $? "an object that is bound to NCCL leads to onehop, also where the program has a copy of _r_debug" \
        "$(cat "$out")"
fi

expect_no_files
tap_done
