/* SPDX-License-Identifier: MIT */
/*
 * elf.h - the dynamic section of a loaded object, read in memory
 *
 * For what dlsym cannot say: which object defines a name by itself, and where its symbol and its relocations lie.
 * Nothing is allocated, locked or kept; the object must stay mapped while it is looked at. Thread-safe. oh_elf_read
 * and oh_elf_find run before a sanitizer's runtime is ready, and so call nothing.
 */
#ifndef OH_HOOK_ELF_H_
#define OH_HOOK_ELF_H_

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For code that dlsym reaches: a sanitizer's runtime calls dlsym while it starts. */
#define OH_EARLY __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

struct oh_elf {
    uintptr_t base;
    const ElfW(Dyn) * dynamic;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Half) * versions; /* NULL: no symbol has a version */
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
    const ElfW(Rela) * relocations;
    size_t relocation_count;
    const ElfW(Rela) * plt_relocations;
    size_t plt_relocation_count;
};

/* False: the object has no symbols to look at. */
bool oh_elf_read(uintptr_t base, const ElfW(Dyn) * dynamic, struct oh_elf *elf_p);

/* The symbol of that name which the object itself defines, in its default version; NULL: none. */
const ElfW(Sym) * oh_elf_find(const struct oh_elf *elf, const char *name);

#endif
