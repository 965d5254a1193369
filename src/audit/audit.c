/* SPDX-License-Identifier: MIT */
/*
 * audit.c - libonehop-audit.so, for LD_AUDIT, beside a preloaded libonehop.so
 *
 * Does: Answers the dynamic linker, which asks about each binding to NCCL, with onehop's function: also while an object
 *    opened with RTLD_DEEPBIND runs its constructors, when onehop has no other moment. Thunks in NCCL's symbol table
 *    stay. Before glibc 2.35 the linker does not ask about objects that are bound at load (-z now).
 * Threads: any, with the loader's locks held, in a link namespace with its own libc. So it calls nothing, and only
 *    reads what the loader has mapped.
 * Owns: nothing.
 */
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "interpose/elf.h"

#define EXPORT __attribute__((visibility("default")))
#define NAME_BYTES 64

/* libonehop.so, which is never unloaded; published by onehop_known. */
static struct oh_elf onehop;
static atomic_bool onehop_known;

EXPORT unsigned int la_version(unsigned int version)
{
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    struct oh_elf elf;
    *cookie = (uintptr_t)map;
    if (space != LM_ID_BASE || !oh_elf_read(map->l_addr, map->l_ld, &elf)) {
        return 0;
    }
    if (oh_elf_find(&elf, "onehopVersion") && !atomic_load_explicit(&onehop_known, memory_order_relaxed)) {
        onehop = elf;
        atomic_store_explicit(&onehop_known, true, memory_order_release); /* pairs with the load in la_symbind64() */
        return 0; /* what it finds in NCCL is meant for itself */
    }
    return LA_FLG_BINDFROM | (oh_elf_find(&elf, "pncclAllReduce") ? LA_FLG_BINDTO : 0);
}

/* The address of NCCL's own function behind the public name: that of the name with a p before it. */
static uintptr_t own_address(const struct link_map *nccl, const char *name)
{
    char own[NAME_BYTES] = "p";
    struct oh_elf elf;
    size_t i = 0;
    for (; i < sizeof own - 2 && name[i]; i++) {
        own[i + 1] = name[i];
    }
    const ElfW(Sym) *symbol = name[i] || !oh_elf_read(nccl->l_addr, nccl->l_ld, &elf) ? NULL : oh_elf_find(&elf, own);
    return symbol ? elf.base + symbol->st_value : 0;
}

EXPORT uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from, uintptr_t *to,
                              unsigned int *flags, const char *name)
{
    (void)index, (void)from, (void)flags;
    if (name[0] == 'n' && atomic_load_explicit(&onehop_known, memory_order_acquire)) {
        const ElfW(Sym) *ours = oh_elf_find(&onehop, name);
        if (ours && symbol->st_value == own_address((const struct link_map *)*to, name)) {
            return onehop.base + ours->st_value;
        }
    }
    return symbol->st_value;
}
