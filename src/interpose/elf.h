/* SPDX-License-Identifier: MIT */
/*
 * elf.h - the dynamic section of a loaded object
 *
 * Does: Finds what dlsym cannot tell: which object itself defines a name, its symbol and its relocations. Runs before a
 *    sanitizer's runtime is ready, and so calls nothing.
 * Threads: any. The object must stay mapped.
 * Owns: nothing.
 */
#ifndef OH_INTERPOSE_ELF_H_
#define OH_INTERPOSE_ELF_H_

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A sanitizer's runtime calls dlsym while it starts. */
#define OH_EARLY __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

struct oh_elf {
    uintptr_t base;
    const ElfW(Dyn) * dynamic;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Half) * versions; /* NULL: no symbol has a version */
    const uint32_t *gnu_hash;    /* NULL: none */
    const uint32_t *sysv_hash;   /* likewise; a linker writes the one or the other, or both */
    const ElfW(Rela) * relocations;
    size_t relocation_count;
    const ElfW(Rela) * plt_relocations;
    size_t plt_relocation_count;
};

/* Finds the first entry of a dynamic section with this tag; NULL: none. */
const ElfW(Dyn) * oh_elf_entry(const ElfW(Dyn) * dynamic, ElfW(Sxword) tag);

/* Returns false if there is no object (NULL), or it has no symbols. */
bool oh_elf_read(const struct link_map *object, struct oh_elf *elf_p);

/* Finds the symbol that the object itself defines, in its default version, by a hash table; NULL: none. */
const ElfW(Sym) * oh_elf_find(const struct oh_elf *elf, const char *name);

/* Returns a relocation by its number, first those of data, then those of calls; NULL: there are no more. */
OH_EARLY static inline const ElfW(Rela) * oh_elf_relocation(const struct oh_elf *elf, size_t number)
{
    if (number < elf->relocation_count) {
        return &elf->relocations[number];
    }
    number -= elf->relocation_count;
    return number < elf->plt_relocation_count ? &elf->plt_relocations[number] : NULL;
}

#if defined(__x86_64__)
#define OH_RELOCATION_SLOT R_X86_64_JUMP_SLOT
#define OH_RELOCATION_DATA R_X86_64_GLOB_DAT
#define OH_RELOCATION_WORD R_X86_64_64
#else
#define OH_RELOCATION_SLOT R_AARCH64_JUMP_SLOT
#define OH_RELOCATION_DATA R_AARCH64_GLOB_DAT
#define OH_RELOCATION_WORD R_AARCH64_ABS64
#endif

/* Returns the symbol whose address the loader stores in the word of a relocation; NULL: it stores something else. */
OH_EARLY static inline const ElfW(Sym) * oh_elf_symbol_at(const struct oh_elf *elf, const ElfW(Rela) * relocation)
{
    const unsigned long type = ELF64_R_TYPE(relocation->r_info);
    const bool is_address = type == OH_RELOCATION_SLOT || type == OH_RELOCATION_DATA || type == OH_RELOCATION_WORD;
    const bool is_aligned = (elf->base + relocation->r_offset) % sizeof(uintptr_t) == 0;
    return is_address && is_aligned && relocation->r_addend == 0 ? &elf->symbols[ELF64_R_SYM(relocation->r_info)]
                                                                 : NULL;
}

/* Returns whether a relocation that the loader binds refers to the name. */
bool oh_elf_refers(const struct oh_elf *elf, const char *name);

/* strcmp(a, b) == 0, where strcmp cannot be called. */
bool oh_elf_same_name(const char *a, const char *b);

/* Likewise strlcpy: copies as much of a text as fits. Returns its length. */
size_t oh_elf_copy_name(char *to, const char *from, size_t size);

#endif
