/* SPDX-License-Identifier: MIT */
/*
 * elf.c - the dynamic section of a loaded ELF object
 *
 * Does: Reads symbol, relocation and hash tables in memory.
 * Threads: any.
 * Owns: nothing.
 */
#include "interpose/elf.h"

#define HIDDEN_VERSION 0x8000 /* of two versions of a name, not the default one */

OH_EARLY const ElfW(Dyn) * oh_elf_entry(const ElfW(Dyn) * dynamic, ElfW(Sxword) tag)
{
    while (dynamic->d_tag != DT_NULL && dynamic->d_tag != tag) {
        dynamic++;
    }
    return dynamic->d_tag == tag ? dynamic : NULL;
}

/*
 * The loader has relocated these addresses, except in the vdso. The base of an object that was linked for an address
 * above its place wraps; gVisor's vdso is one.
 */
OH_EARLY static const void *address_of(const struct oh_elf *elf, ElfW(Sxword) tag)
{
    const ElfW(Dyn) *entry = oh_elf_entry(elf->dynamic, tag);
    if (!entry) {
        return NULL;
    }
    uintptr_t given = (uintptr_t)entry->d_un.d_ptr, here = (uintptr_t)elf->dynamic;
    uintptr_t apart = given > here ? given - here : here - given;
    bool as_linked = elf->base <= here ? given < elf->base : apart >> 32;
    return (const void *)(as_linked ? elf->base + given : given);
}

OH_EARLY static size_t count_of(const struct oh_elf *elf, ElfW(Sxword) tag)
{
    const ElfW(Dyn) *entry = oh_elf_entry(elf->dynamic, tag);
    return entry ? entry->d_un.d_val / sizeof(ElfW(Rela)) : 0;
}

OH_EARLY bool oh_elf_read(const struct link_map *object, struct oh_elf *elf_p)
{
    if (!object || !object->l_ld) {
        return false;
    }
    struct oh_elf elf = {.base = object->l_addr, .dynamic = object->l_ld};
    elf.symbols = address_of(&elf, DT_SYMTAB);
    elf.strings = address_of(&elf, DT_STRTAB);
    elf.versions = address_of(&elf, DT_VERSYM);
    elf.gnu_hash = address_of(&elf, DT_GNU_HASH);
    elf.sysv_hash = address_of(&elf, DT_HASH);
    elf.relocations = address_of(&elf, DT_RELA);
    elf.relocation_count = count_of(&elf, DT_RELASZ);
    elf.plt_relocations = address_of(&elf, DT_JMPREL); /* of the same form, on both architectures */
    elf.plt_relocation_count = count_of(&elf, DT_PLTRELSZ);
    *elf_p = elf;
    return elf.symbols && elf.strings;
}

OH_EARLY bool oh_elf_same_name(const char *a, const char *b)
{
    for (; *a && *a == *b; a++, b++) {
    }
    return *a == *b;
}

OH_EARLY size_t oh_elf_copy_name(char *to, const char *from, size_t size)
{
    size_t length = 0;
    for (; from[length]; length++) {
        if (length + 1 < size) {
            to[length] = from[length];
        }
    }
    if (size > 0) {
        to[length < size ? length : size - 1] = '\0';
    }
    return length;
}

OH_EARLY static bool is_wanted(const struct oh_elf *elf, size_t index, const char *name)
{
    const ElfW(Sym) *symbol = &elf->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
           oh_elf_same_name(elf->strings + symbol->st_name, name) &&
           !(elf->versions && (elf->versions[index] & HIDDEN_VERSION));
}

/* The older hash table: counts of buckets and symbols, buckets, for each symbol the next of its chain; 0 ends it. */
OH_EARLY static const ElfW(Sym) * find_by_sysv_hash(const struct oh_elf *elf, const char *name)
{
    const uint32_t *table = elf->sysv_hash;
    uint32_t hash = 0;
    if (!table || table[0] == 0) {
        return NULL;
    }
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    const uint32_t *bucket = &table[2], *chain = &table[2 + table[0]];
    for (uint32_t i = bucket[hash % table[0]]; i != 0; i = chain[i]) {
        if (is_wanted(elf, i, name)) {
            return &elf->symbols[i];
        }
    }
    return NULL;
}

/* The GNU hash table: header, Bloom filter, buckets, and for each symbol its hash, whose lowest bit ends a chain. */
OH_EARLY const ElfW(Sym) * oh_elf_find(const struct oh_elf *elf, const char *name)
{
    const uint32_t *table = elf->gnu_hash;
    if (!table) {
        return find_by_sysv_hash(elf, name);
    }
    uint32_t buckets = table[0], first = table[1], words = table[2], shift = table[3];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(const void *)&table[4];
    const uint32_t *bucket = (const uint32_t *)(const void *)&bloom[words];
    const uint32_t *chain = bucket + buckets;
    const uint32_t bits = 8 * sizeof *bloom;
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = hash * 33 + *c;
    }
    ElfW(Addr) word = buckets && words ? bloom[hash / bits % words] : 0;
    if (!(word >> hash % bits & word >> (hash >> shift) % bits & 1)) {
        return NULL;
    }
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        if ((chain[i - first] | 1) == (hash | 1) && is_wanted(elf, i, name)) {
            return &elf->symbols[i];
        }
        if (chain[i - first] & 1) {
            break;
        }
    }
    return NULL;
}

OH_EARLY bool oh_elf_refers(const struct oh_elf *elf, const char *name)
{
    const ElfW(Rela) * relocation;
    for (size_t i = 0; (relocation = oh_elf_relocation(elf, i)); i++) {
        const size_t symbol = ELF64_R_SYM(relocation->r_info); /* 0: a relative one, most of them */
        if (symbol != 0 && oh_elf_same_name(elf->strings + elf->symbols[symbol].st_name, name)) {
            return true;
        }
    }
    return false;
}
