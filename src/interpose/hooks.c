/* SPDX-License-Identifier: MIT */
/*
 * hooks.c - the looks at newly loaded objects
 *
 * Does: Walks the loader's list in three steps, since no object may be opened during a walk: finds copies of NCCL;
 *    holds them and patches their symbol tables; corrects the addresses that new objects already have. The loader
 *    appends to its list: if what was seen is still at its begin, only those behind it are new. An object that another
 *    thread loads meanwhile was bound before the first step, and is corrected in the third, or finds the patched table.
 *    Until a copy of NCCL is found or asked for, calls nothing that another preloaded object can define: it may call
 *    dlsym while it looks up the functions that it stands for.
 * Threads: any; `locked` lets one thread at a time walk.
 * Owns: nothing.
 */
#include "interpose/hooks.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <time.h>

#include "interpose/loader.h"
#include "interpose/patch.h"
#include "interpose/real.h"
#include "util/env.h"
#include "util/log.h"
#include "util/scope.h"

#define WAIT_MS 1000

/*
 * Not a pthread mutex: dlsym leads here from inside of objects that have mutexes of their own, and are not ready. Not
 * recursive: opening an object runs foreign code, which may call dlsym.
 */
static atomic_bool locked;
static atomic_bool asked;            /* the program asked for functions of NCCL before a copy was found */
static atomic_uintptr_t seen_list;   /* when last looked at (oh_next_objects) */
static uint32_t looks;               /* at the list, the one in progress included. Guarded by `locked` */
static _Atomic uint32_t single_look; /* the last after which one copy was held, and no other was loaded */

/*
 * The objects that were seen, by hash: the hash's upper half and the number of the first look that saw the object. A
 * place is taken by the object that was seen last.
 */
static _Atomic uint64_t seen[1024];

/* glibc's struct dl_find_object, and its function (since 2.35), which takes no lock; NULL: older, or not looked up. */
struct object_at {
    unsigned long long flags;
    const void *begin, *end;
    const struct link_map *object;
    void *unwind;
    unsigned long long reserved[7];
};
typedef int (*object_finder)(const void *address, struct object_at *found_p);
static _Atomic(object_finder) find_object;

/* Of all by which the object differs from one that takes its place: a file that is opened again is the same object. */
static uint64_t hash_of_object(const struct link_map *object)
{
    uint64_t hash = (uintptr_t)object ^ (uintptr_t)object->l_ld << 1;
    for (const char *c = object->l_name; c && *c; c++) {
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash * UINT64_C(0x9e3779b97f4a7c15);
}

static _Atomic uint64_t *seen_place(uint64_t hash)
{
    return &seen[(hash >> 16) % (sizeof seen / sizeof *seen)];
}

static void note_object(const struct link_map *object)
{
    const uint64_t hash = hash_of_object(object);
    if (atomic_load_explicit(seen_place(hash), memory_order_relaxed) >> 32 != hash >> 32) {
        /* relaxed: counts once single_look has its number */
        atomic_store_explicit(seen_place(hash), hash >> 32 << 32 | looks, memory_order_relaxed);
    }
}

static void find_copy(const struct link_map *object, void *unused)
{
    (void)unused;
    oh_real_add(object);
    note_object(object);
}

/* Returns the value of the list. */
static uintptr_t find_copies(uintptr_t after)
{
    looks++;
    return oh_next_visit(after, find_copy, NULL);
}

static bool may_patch(void)
{
    static int answer = -1; /* guarded by `locked` */
    if (answer < 0) {
        answer = !oh_env_flag(OH_ENV_DISABLE, false) && !getauxval(AT_SECURE);
        if (!oh_onehop_is_preloaded() && oh_dlsym_in("", "onehopVersion")) {
            OH_INFO("another libonehop.so is loaded in front of this one, which stays out of its way");
            answer = 0;
        }
    }
    return answer;
}

/* Patches the copies of NCCL, and the objects behind those of the value `after`. `before`: the number of copies at the
 * last update. */
static void update_copies(int before, uintptr_t after)
{
    int cancel;
    OH_KEEP_ERRNO();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* files are read here, with `locked`; dlsym is no point */
    find_object = find_object ? find_object : (object_finder)oh_dlsym_in("", "_dl_find_object");
    const bool may = may_patch();
    if (may) {
        oh_patch_own_symbols(); /* before tools are looked for: onehop's functions are there again */
    }
    oh_real_hold();
    /* Objects that were loaded since got thunks from the loader. */
    const bool settled = before == 1 && oh_real_count() == 1 && oh_real_at(0)->state == OH_REAL_PATCHED;
    if (may && !settled) {
        oh_patch_copies();
        /* With a second copy, every object must have the thunks of its copy. */
        oh_patch_callers(before < 2 && oh_real_count() > 1 ? 0 : after);
    }
    pthread_setcancelstate(cancel, NULL);
}

static void update_objects(bool all)
{
    const int before = oh_real_count();
    const uintptr_t after = all ? 0 : atomic_load_explicit(&seen_list, memory_order_relaxed);
    const uintptr_t list = find_copies(after);
    if (oh_real_count() > 0 || atomic_load_explicit(&asked, memory_order_relaxed)) {
        update_copies(before, after);
    }
    if (oh_real_count() == 1 && oh_real_at(0)->state != OH_REAL_FOUND) {
        /* release: publishes the copy. Pairs with the acquire load in has_seen(). */
        atomic_store_explicit(&single_look, looks, memory_order_release);
    }
    /* release: publishes what was patched. Pairs with the acquire load in oh_hooks_update(). */
    atomic_store_explicit(&seen_list, list, memory_order_release);
}

static bool lock(enum oh_hooks_urgency urgency)
{
    bool is_locked = false;
    for (int ms = 0; ms < WAIT_MS; ms++) {
        /* acquire: what the last holder noted. Pairs with the release store in unlock(). */
        is_locked = !atomic_exchange_explicit(&locked, true, memory_order_acquire);
        if (is_locked || urgency == OH_HOOKS_TRY) {
            break;
        }
        OH_KEEP_ERRNO();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return is_locked;
}

static void unlock(void)
{
    atomic_store_explicit(&locked, false, memory_order_release); /* pairs with the exchange in lock() */
}

/* Once the program uses them: launchers may be linked with NCCL, too. */
static void announce_copies(void)
{
    for (int i = 0; i < oh_real_count(); i++) {
        struct oh_real *real = oh_real_at(i);
        if (real->state > OH_REAL_HELD && !atomic_exchange_explicit(&real->announced, true, memory_order_relaxed)) {
            OH_INFO("NCCL found: %s", real->path[0] ? real->path : "in the program itself");
        }
    }
}

void oh_hooks_update(enum oh_hooks_urgency urgency)
{
    static __thread bool looking; /* other preloaded objects may interpose what is called here, and call dlsym */
    if (looking) {
        return;
    }
    looking = true;
    const uintptr_t objects = oh_next_objects();
    const bool asks = urgency == OH_HOOKS_WAIT && oh_real_count() == 0 && !atomic_exchange(&asked, true);
    /* acquire: what was patched for the list. Pairs with the release store in update_objects(). */
    if ((asks || objects == 0 || objects != atomic_load_explicit(&seen_list, memory_order_acquire)) &&
        !(urgency == OH_HOOKS_TRY && oh_next_is_changing()) && lock(urgency)) {
        update_objects(asks);
        unlock();
    }
    if (urgency == OH_HOOKS_WAIT) {
        announce_copies();
    }
    looking = false;
}

/* Returns whether a complete look saw the object of the address, and the one copy of NCCL. */
static bool has_seen(const void *caller)
{
    const object_finder find = find_object;
    struct object_at found;
    if (!find || find(caller, &found) != 0) {
        return false;
    }
    const uint64_t hash = hash_of_object(found.object);
    const uint64_t entry = atomic_load_explicit(seen_place(hash), memory_order_relaxed);
    return entry >> 32 == hash >> 32 && /* acquire: the copy. Pairs with the release store in update_objects(). */
           (uint32_t)entry <= atomic_load_explicit(&single_look, memory_order_acquire) && oh_real_count() == 1;
}

void oh_hooks_update_for(const void *caller)
{
    if (has_seen(caller)) {
        announce_copies();
    } else {
        oh_hooks_update(OH_HOOKS_WAIT);
    }
}

static atomic_bool forked;

bool oh_hooks_are_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

/* The thread that held the lock is not in the child. */
static void after_fork_in_child(void)
{
    unlock();
    atomic_store_explicit(&forked, true, memory_order_relaxed);
}

void oh_hooks_begin(void)
{
    static bool begun; /* one thread runs constructors, and then starts the program */
    if (!begun) {
        begun = true;
        pthread_atfork(NULL, NULL, after_fork_in_child);
    }
}

/* The object whose dlsym the program calls, if its look-ups pass onehop by; NULL: they do not. */
static const char *find_dlsym_in_front(void)
{
    Dl_info info;
    void *front = oh_dlsym_in("", "dlsym");
    const unsigned before = oh_dlsym_probes;
    if (front && !oh_object_has(_DYNAMIC, front)) {
        ((oh_dlsym_function)front)(RTLD_DEFAULT, oh_dlsym_probe);
    }
    return !front || oh_object_has(_DYNAMIC, front) || oh_dlsym_probes != before ? NULL
           : dladdr(front, &info) && info.dli_fname                              ? info.dli_fname
                                                                                 : "another object";
}

void oh_hooks_end(void)
{
    if (!lock(OH_HOOKS_TRY)) {
        return;
    }
    find_copies(0);
    const char *front = oh_real_count() > 0 && oh_onehop_is_preloaded() ? find_dlsym_in_front() : NULL;
    if (front) {
        OH_INFO(
            "no call of %s has come to onehop: dlsym of %s keeps look-ups from it; put libonehop.so in front of that "
            "in LD_PRELOAD",
            oh_real_at(0)->path, front);
    }
    unlock();
}
