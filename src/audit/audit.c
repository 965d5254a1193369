/* SPDX-License-Identifier: MIT */
/*
 * audit.c - libonehop-audit.so, for LD_AUDIT, beside a preloaded libonehop.so
 *
 * Does: Answers the dynamic linker, which asks about each binding to NCCL, with onehop's function: also while an object
 *    opened with RTLD_DEEPBIND runs its constructors, when onehop has no other moment. Thunks in NCCL's symbol table
 *    stay. Before glibc 2.35 the linker does not ask about objects that are bound at load (-z now). With a second copy
 *    of NCCL the answer is the copy's own function, from which onehop later tells whose it is.
 * Threads: any, with the loader's locks held, in a link namespace with its own libc. So it calls nothing, and only
 *    reads what the loader has mapped.
 * Owns: nothing.
 */
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>

#include "interpose/elf.h"

#define EXPORT __attribute__((visibility("default")))

/* libonehop.so, which is never unloaded; published by onehop_known. */
static struct oh_elf onehop;
static atomic_bool onehop_known;

static atomic_int copies; /* of NCCL that are open; the cookie of each is IS_NCCL */
#define IS_NCCL 1

EXPORT unsigned int la_version(unsigned int version)
{
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    struct oh_elf elf;
    *cookie = (uintptr_t)map;
    if (space != LM_ID_BASE || !oh_elf_read(map, &elf)) {
        return 0;
    }
    if (oh_elf_find(&elf, "onehopVersion") && !atomic_load_explicit(&onehop_known, memory_order_relaxed)) {
        onehop = elf;
        atomic_store_explicit(&onehop_known, true, memory_order_release); /* pairs with the load in la_symbind64() */
        return 0; /* what it finds in NCCL is meant for itself */
    }
    const bool is_nccl = oh_elf_find(&elf, "pncclGetVersion") != NULL;
    if (is_nccl) {
        *cookie = IS_NCCL;
        atomic_fetch_add_explicit(&copies, 1, memory_order_relaxed);
    }
    return LA_FLG_BINDFROM | (is_nccl ? LA_FLG_BINDTO : 0);
}

EXPORT unsigned int la_objclose(uintptr_t *cookie)
{
    if (*cookie == IS_NCCL) {
        atomic_fetch_sub_explicit(&copies, 1, memory_order_relaxed);
    }
    return 0;
}

/* Thunks are in onehop's code, which is in front of its dynamic section. */
static bool is_thunk(uintptr_t address)
{
    return address >= onehop.base && address < (uintptr_t)onehop.dynamic;
}

EXPORT uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                              unsigned int *flags, const char *name)
{
    (void)index, (void)from, (void)to, (void)flags;
    if ((name[0] == 'n' || name[0] == 'p') && atomic_load_explicit(&onehop_known, memory_order_acquire) &&
        atomic_load_explicit(&copies, memory_order_relaxed) == 1) {
        const ElfW(Sym) *ours = oh_elf_find(&onehop, name);
        if (ours && !is_thunk(symbol->st_value)) {
            return onehop.base + ours->st_value;
        }
    }
    return symbol->st_value;
}
