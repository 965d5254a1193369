/* SPDX-License-Identifier: MIT */
/*
 * dlsym.c - what happens before libc answers the application's dlsym and dlvsym
 *
 * Does: Before each look-up (dlsym_entry.S) has new objects patched: a caller that opens NCCL and takes an address from
 *    it (ctypes, JAX) gives onehop no other moment. If nothing was loaded since, that is one call of libc.
 *    Before the program's main it calls nothing. A sanitizer's runtime or a profiler in front of this object defines
 *    mutexes, dl_iterate_phdr and others by a table of its own, which it fills by dlsym, in a constructor that may run
 *    after this object's. Only a look-up of an NCCL function is followed from the program's own constructors on.
 * Threads: any, in every program that onehop is preloaded into.
 * Owns: nothing.
 */
#include <stdatomic.h>
#include <stddef.h>

#include "interpose/hooks.h"
#include "interpose/loader.h"
#include "interpose/real.h"

__attribute__((visibility("hidden"))) void oh_dlsym_before(const char *name);

/* How far the process has started. */
enum oh_start {
    OH_START_LOADING, /* constructors of shared objects may be running */
    OH_START_PROGRAM, /* constructors of the program may be running */
    OH_START_MAIN
};
static _Atomic(enum oh_start) start;

OH_EARLY static bool is_nccl(const char *name)
{
    const char *public_name = name && name[0] == 'p' ? name + 1 : name;
    return public_name && public_name[0] == 'n' && public_name[1] == 'c' && public_name[2] == 'c' &&
           public_name[3] == 'l';
}

/* A malloc replacement looks these up, maybe inside of the loader, where no object may be opened. */
OH_EARLY static bool is_allocator(const char *name)
{
    static const char names[][16] = {"malloc",   "calloc",         "realloc",      "free",
                                     "memalign", "posix_memalign", "aligned_alloc"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        if (oh_elf_same_name(name, names[i])) {
            return true;
        }
    }
    return false;
}

OH_EARLY void oh_dlsym_before(const char *name)
{
    const enum oh_start now = atomic_load_explicit(&start, memory_order_relaxed);
    oh_next_dlsym_find();
    oh_dlsym_probes += name == oh_dlsym_probe;
    if (now == OH_START_LOADING) {
        return;
    }
    bool child = oh_hooks_are_forked();
    if (is_nccl(name)) {
        if (!child || oh_real_count() == 0) { /* else the table was patched before the fork */
            oh_hooks_update(OH_HOOKS_WAIT);
        }
    } else if (now == OH_START_MAIN && !is_allocator(name) && !child) {
        oh_hooks_update(OH_HOOKS_TRY); /* for objects that the loader has bound to NCCL itself (RTLD_DEEPBIND) */
    }
}

/* --- the start of the program ------------------------------------------------------------------------------------- */

typedef int (*main_function)(int argc, char **argv, char **envp);

int __libc_start_main(main_function main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*end_loader)(void), void *stack_end);

static main_function program_main; /* NULL: the start has not passed here */
void (*oh_hooks_last_action)(void);

static void act_last(int status, void *unused)
{
    (void)status, (void)unused;
    if (oh_hooks_last_action) {
        oh_hooks_last_action();
    }
}

OH_EARLY static int begin_main(int argc, char **argv, char **envp)
{
    oh_hooks_begin();
    atomic_store_explicit(&start, OH_START_MAIN, memory_order_relaxed); /* publishes nothing else */
    oh_hooks_update(OH_HOOKS_TRY); /* the program may ask for functions that its NCCL lacks */
    return program_main(argc, argv, envp);
}

/*
 * The program's first call, made when the loader has run the constructors of all shared objects. In libc it runs the
 * program's constructors, then main. No other event marks the end of constructors.
 */
__attribute__((visibility("default"))) OH_EARLY int __libc_start_main(main_function main, int argc, char **argv,
                                                                      void (*init)(void), void (*fini)(void),
                                                                      void (*end_loader)(void), void *stack_end)
{
    __typeof__(__libc_start_main) *next = (__typeof__(__libc_start_main) *)oh_next_definition("__libc_start_main");
    program_main = main;
    oh_next_on_exit(act_last); /* before libc lets the loader run destructors at exit: exit() goes backwards */
    atomic_store_explicit(&start, OH_START_PROGRAM, memory_order_relaxed);
    return next(begin_main, argc, argv, init, fini, end_loader, stack_end);
}

bool oh_hooks_acts_last(void)
{
    return program_main != NULL;
}

OH_EARLY bool oh_hooks_start_seen(void)
{
    return oh_program_calls("__libc_start_main", (const void *)__libc_start_main);
}

/*
 * Where the program's start does not pass here, constructors cannot be told from main: this object was opened later,
 * as a plugin; another object's __libc_start_main comes first; or the program starts without libc's, as Go's may.
 */
__attribute__((constructor)) OH_EARLY static void begin_without_start(void)
{
    oh_next_dlsym_find();
    if (!oh_hooks_start_seen()) {
        oh_hooks_begin();
        atomic_store_explicit(&start, OH_START_MAIN, memory_order_relaxed);
    }
}
