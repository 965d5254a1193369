/* SPDX-License-Identifier: MIT */
/*
 * doctor/elf_file.c - a reader of ELF files that trusts nothing in them
 *
 * What the dynamic linker sees is read by way of the program headers, as it does; the section headers serve only to
 * find symbols that the linker does not see, and where constants lie.
 */
#include "tools/doctor/elf_file.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CALL "ncclAllReduce"
#define PCALL "pncclAllReduce"
#define CHAIN_MAX (1 << 20) /* longest chain of a hash table that is believed */
#define PAGE 4096u
#define VERSION_TEXT "NCCL version "
#define SEARCH_MAX (UINT64_C(1) << 30)
#define SEARCH_BLOCK (1 << 20)

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#else
#define OWN_MACHINE EM_NONE
#endif

struct file {
    int fd;
    uint64_t size;
    bool unreadable; /* a read failed that should not have */
};

/* The tables of a file; each is loaded whole. */
struct image {
    struct file file;
    Elf64_Ehdr header;
    Elf64_Phdr *segment;
    size_t segments;
    Elf64_Dyn *dynamic;
    size_t dynamics;
    char *names; /* of dynamic symbols, with a zero behind */
    uint64_t names_size;
};

static bool read_at(struct file *file, uint64_t offset, void *buffer_p, uint64_t size)
{
    char *at = buffer_p;
    if (offset > file->size || size > file->size - offset) {
        return false;
    }
    while (size > 0) {
        ssize_t got = pread(file->fd, at, size < SEARCH_BLOCK ? size : SEARCH_BLOCK, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            file->unreadable = got < 0; /* 0: it has become shorter meanwhile */
            return false;
        }
        at += got;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return true;
}

/* A part of the file in memory of its own, with a zero behind; NULL when it is not all there. */
static void *load(struct file *file, uint64_t offset, uint64_t size)
{
    if (offset > file->size || size > file->size - offset) {
        return NULL;
    }
    char *memory = calloc(1, size + 1);
    if (memory && !read_at(file, offset, memory, size)) {
        free(memory);
        memory = NULL;
    }
    return memory;
}

/* Where in the file `size` bytes lie that the program sees at `address`. */
static bool offset_of(const struct image *image, uint64_t address, uint64_t size, uint64_t *offset_p)
{
    for (size_t i = 0; i < image->segments; i++) {
        const Elf64_Phdr *segment = &image->segment[i];
        uint64_t within = address - segment->p_vaddr;
        if (segment->p_type == PT_LOAD && address >= segment->p_vaddr && within <= segment->p_filesz &&
            size <= segment->p_filesz - within && segment->p_offset <= image->file.size) {
            *offset_p = segment->p_offset + within;
            return true;
        }
    }
    return false;
}

static void *load_address(struct image *image, uint64_t address, uint64_t size)
{
    uint64_t offset;
    return offset_of(image, address, size, &offset) ? load(&image->file, offset, size) : NULL;
}

static bool dynamic_value(const struct image *image, int64_t tag, uint64_t *value_p)
{
    for (size_t i = 0; i < image->dynamics && image->dynamic[i].d_tag != DT_NULL; i++) {
        if (image->dynamic[i].d_tag == tag) {
            *value_p = image->dynamic[i].d_un.d_val;
            return true;
        }
    }
    return false;
}

static bool count_by_hash(struct image *image, uint64_t table, uint64_t *count_p)
{
    uint32_t head[2];
    uint64_t offset;
    if (!offset_of(image, table, sizeof head, &offset) || !read_at(&image->file, offset, head, sizeof head)) {
        return false;
    }
    *count_p = head[1];
    return true;
}

/* The GNU table has no count: the last symbol is at the end of the chain that begins last. */
static bool count_by_gnu_hash(struct image *image, uint64_t table, uint64_t *count_p)
{
    uint32_t head[4]; /* buckets, first symbol, words of the filter, shift */
    uint64_t offset, last = 0;
    if (!offset_of(image, table, sizeof head, &offset) || !read_at(&image->file, offset, head, sizeof head)) {
        return false;
    }
    uint64_t buckets = offset + sizeof head + UINT64_C(8) * head[2];
    uint32_t *bucket = load(&image->file, buckets, UINT64_C(4) * head[0]);
    if (!bucket) {
        return false;
    }
    for (uint32_t i = 0; i < head[0]; i++) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    free(bucket);
    if (last < head[1]) {
        *count_p = head[1];
        return true;
    }
    uint64_t chains = buckets + UINT64_C(4) * head[0];
    for (int i = 0; i < CHAIN_MAX; i++, last++) {
        uint32_t word;
        if (!read_at(&image->file, chains + 4 * (last - head[1]), &word, sizeof word)) {
            return false;
        }
        if (word & 1) {
            *count_p = last + 1;
            return true;
        }
    }
    return false;
}

static bool count_symbols(struct image *image, uint64_t *count_p)
{
    uint64_t table;
    if (dynamic_value(image, DT_HASH, &table)) {
        return count_by_hash(image, table, count_p);
    }
    return dynamic_value(image, DT_GNU_HASH, &table) && count_by_gnu_hash(image, table, count_p);
}

static const char *name_at(const char *names, uint64_t size, uint64_t at)
{
    return at < size ? names + at : "";
}

/* Does a table of names have this one? Far faster than to look at each symbol of the objects that do not. */
static bool has_name(const char *names, uint64_t size, const char *name)
{
    return names && memmem(names, size, name, strlen(name) + 1) != NULL;
}

/* Notes the words that relocations of the symbols marked in `wanted` fill in. */
static bool read_relocations(struct image *image, int64_t table_tag, int64_t size_tag, const bool *wanted,
                             uint64_t symbols, struct oh_elf_file *elf)
{
    uint64_t table, size;
    if (!dynamic_value(image, table_tag, &table) || !dynamic_value(image, size_tag, &size) || size == 0) {
        return true;
    }
    Elf64_Rela *relocation = load_address(image, table, size);
    if (!relocation) {
        return false;
    }
    for (uint64_t i = 0; i < size / sizeof *relocation; i++) {
        uint64_t symbol = ELF64_R_SYM(relocation[i].r_info);
        if (symbol < symbols && wanted[symbol] && elf->slots < OH_ELF_SLOTS) {
            elf->slot[elf->slots++] = relocation[i].r_offset;
        }
    }
    free(relocation);
    return true;
}

static void note_symbol(const char *name, bool defined, uint64_t field, struct oh_elf_file *elf)
{
    if (!defined) {
        return;
    }
    if (strcmp(name, CALL) == 0) {
        elf->exports_call = true;
        elf->call_field = field;
    }
    elf->exports_pcall |= strcmp(name, PCALL) == 0;
    elf->exports_onehop |= strcmp(name, "onehopVersion") == 0;
    elf->exports_dlsym |= strcmp(name, "dlsym") == 0;
}

static bool read_symbols(struct image *image, struct oh_elf_file *elf)
{
    uint64_t table, count;
    if (!has_name(image->names, image->names_size, CALL)) { /* a suffix of the other name: covers both */
        return true;
    }
    if (!dynamic_value(image, DT_SYMTAB, &table) || !count_symbols(image, &count) ||
        count > image->file.size / sizeof(Elf64_Sym)) {
        return false;
    }
    Elf64_Sym *symbol = load_address(image, table, count * sizeof *symbol);
    bool *wanted = calloc(count + 1, sizeof *wanted);
    bool good = symbol && wanted;
    for (uint64_t i = 0; good && i < count; i++) {
        const char *name = name_at(image->names, image->names_size, symbol[i].st_name);
        wanted[i] = strcmp(name, CALL) == 0;
        note_symbol(name, symbol[i].st_shndx != SHN_UNDEF, table + i * sizeof *symbol + offsetof(Elf64_Sym, st_value),
                    elf);
    }
    good = good && read_relocations(image, DT_JMPREL, DT_PLTRELSZ, wanted, count, elf) &&
           read_relocations(image, DT_RELA, DT_RELASZ, wanted, count, elf);
    free(wanted);
    free(symbol);
    return good;
}

static bool read_dynamic(struct image *image, struct oh_elf_file *elf)
{
    const Elf64_Phdr *found = NULL;
    uint64_t names;
    for (size_t i = 0; i < image->segments; i++) {
        found = image->segment[i].p_type == PT_DYNAMIC ? &image->segment[i] : found;
    }
    if (!found) {
        return true; /* a statically linked program */
    }
    image->dynamics = found->p_filesz / sizeof(Elf64_Dyn);
    image->dynamic = load(&image->file, found->p_offset, found->p_filesz);
    if (!image->dynamic || !dynamic_value(image, DT_STRTAB, &names) ||
        !dynamic_value(image, DT_STRSZ, &image->names_size)) {
        return false;
    }
    image->names = load_address(image, names, image->names_size);
    if (!image->names) {
        return false;
    }
    for (size_t i = 0; i < image->dynamics && image->dynamic[i].d_tag != DT_NULL; i++) {
        if (image->dynamic[i].d_tag == DT_NEEDED) {
            const char *name = name_at(image->names, image->names_size, image->dynamic[i].d_un.d_val);
            elf->needs_nccl |= strncmp(name, "libnccl.so", strlen("libnccl.so")) == 0;
            elf->needs_onehop |= strcmp(name, "libonehop.so") == 0;
        }
    }
    return read_symbols(image, elf);
}

/* The section headers; NULL when there are none, or they are not all there. */
static Elf64_Shdr *load_sections(struct image *image, size_t *count_p)
{
    if (image->header.e_shentsize != sizeof(Elf64_Shdr) || image->header.e_shoff == 0) {
        return NULL;
    }
    *count_p = image->header.e_shnum;
    return load(&image->file, image->header.e_shoff, image->header.e_shnum * sizeof(Elf64_Shdr));
}

/* Is ncclAllReduce defined in a table of symbols that the dynamic linker does not see? */
static bool hides_call(struct image *image, const Elf64_Shdr *table, const Elf64_Shdr *names_section)
{
    char *names = load(&image->file, names_section->sh_offset, names_section->sh_size);
    Elf64_Sym *symbol = NULL;
    bool found = false;
    if (has_name(names, names_section->sh_size, CALL)) {
        symbol = load(&image->file, table->sh_offset, table->sh_size);
    }
    for (uint64_t i = 0; symbol && !found && i < table->sh_size / sizeof *symbol; i++) {
        found = symbol[i].st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC &&
                strcmp(name_at(names, names_section->sh_size, symbol[i].st_name), CALL) == 0;
    }
    free(symbol);
    free(names);
    return found;
}

/* Sections are for tools: damage here is no reason to refuse the file. */
static void read_sections(struct image *image, struct oh_elf_file *elf)
{
    size_t count = 0;
    Elf64_Shdr *section = load_sections(image, &count);
    elf->stripped = true;
    for (size_t i = 0; section && i < count; i++) {
        if (section[i].sh_type == SHT_SYMTAB && section[i].sh_link < count) {
            elf->stripped = false;
            elf->hides_call = !elf->exports_call && hides_call(image, &section[i], &section[section[i].sh_link]);
            break; /* there is one at most; a hostile file may have thousands */
        }
    }
    free(section);
}

static enum oh_elf_file_status open_image(int fd, struct image *image)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return OH_ELF_UNREADABLE;
    }
    *image = (struct image){.file = {.fd = fd, .size = status.st_size > 0 ? (uint64_t)status.st_size : 0}};
    Elf64_Ehdr *header = &image->header;
    if (!read_at(&image->file, 0, header->e_ident, EI_NIDENT) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) {
        return image->file.unreadable ? OH_ELF_UNREADABLE : OH_ELF_NOT_ELF;
    }
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) {
        return OH_ELF_FOREIGN;
    }
    if (!read_at(&image->file, 0, header, sizeof *header)) {
        return OH_ELF_DAMAGED;
    }
    if (header->e_machine != OWN_MACHINE) {
        return OH_ELF_FOREIGN;
    }
    if (header->e_phentsize != sizeof(Elf64_Phdr)) {
        return OH_ELF_DAMAGED;
    }
    image->segments = header->e_phnum;
    image->segment = load(&image->file, header->e_phoff, image->segments * sizeof(Elf64_Phdr));
    return image->segment ? OH_ELF_OK : OH_ELF_DAMAGED;
}

static void close_image(struct image *image)
{
    free(image->names);
    free(image->dynamic);
    free(image->segment);
}

enum oh_elf_file_status oh_elf_file_read(int fd, struct oh_elf_file *elf_p)
{
    struct image image;
    struct oh_elf_file elf = {.base = UINT64_MAX};
    enum oh_elf_file_status status = open_image(fd, &image);
    if (status != OH_ELF_OK) {
        return status;
    }
    for (size_t i = 0; i < image.segments; i++) {
        const Elf64_Phdr *segment = &image.segment[i];
        if (segment->p_type == PT_LOAD && segment->p_vaddr < elf.base) {
            elf.base = segment->p_vaddr;
        }
    }
    elf.base &= ~(uint64_t)(PAGE - 1);
    if (!read_dynamic(&image, &elf)) {
        status = image.file.unreadable ? OH_ELF_UNREADABLE : OH_ELF_DAMAGED;
    } else {
        read_sections(&image, &elf);
        *elf_p = elf;
    }
    close_image(&image);
    return status;
}

const char *oh_elf_file_complaint(enum oh_elf_file_status status)
{
    switch (status) {
    case OH_ELF_OK:
        return "is well";
    case OH_ELF_NOT_ELF:
        return "is not an ELF file";
    case OH_ELF_FOREIGN:
        return "is an ELF file of 32 bits or of another processor";
    case OH_ELF_DAMAGED:
        return "is a damaged ELF file";
    case OH_ELF_UNREADABLE:
        break;
    }
    return "cannot be read";
}

/* The text behind "NCCL version " when it begins with a number and is not longer than a version is. */
static bool take_version(const char *text, const char *end, char version_p[OH_ELF_VERSION])
{
    size_t length = 0;
    while (text + length < end && length < OH_ELF_VERSION - 1 && text[length] > ' ' && text[length] < 0x7f) {
        length++;
    }
    if (length < 3 || text[0] < '0' || text[0] > '9' || !memchr(text, '.', length)) {
        return false;
    }
    memcpy(version_p, text, length);
    version_p[length] = '\0';
    return true;
}

static bool search_version(struct file *file, uint64_t offset, uint64_t size, char version_p[OH_ELF_VERSION])
{
    const uint64_t overlap = sizeof VERSION_TEXT + OH_ELF_VERSION;
    char *block = malloc(SEARCH_BLOCK);
    bool found = false;
    for (uint64_t at = 0; block && !found && at < size; at += SEARCH_BLOCK - overlap) {
        uint64_t length = size - at < SEARCH_BLOCK ? size - at : SEARCH_BLOCK;
        if (!read_at(file, offset + at, block, length)) {
            break;
        }
        const char *from = block, *end = block + length;
        while (!found && (from = memmem(from, (size_t)(end - from), VERSION_TEXT, strlen(VERSION_TEXT)))) {
            from += strlen(VERSION_TEXT);
            found = take_version(from, end, version_p);
        }
    }
    free(block);
    return found;
}

/* Where constants lie; the whole file, up to a bound, when the sections do not tell. */
static void find_constants(struct image *image, uint64_t *offset_p, uint64_t *size_p)
{
    size_t count = 0;
    Elf64_Shdr *section = load_sections(image, &count);
    char *names = NULL;
    *offset_p = 0;
    *size_p = image->file.size < SEARCH_MAX ? image->file.size : SEARCH_MAX;
    size_t at = image->header.e_shstrndx;
    if (section && at < count) {
        names = load(&image->file, section[at].sh_offset, section[at].sh_size);
    }
    for (size_t i = 0; names && i < count; i++) {
        if (section[i].sh_type == SHT_PROGBITS && section[i].sh_offset <= image->file.size &&
            section[i].sh_size <= image->file.size - section[i].sh_offset &&
            strcmp(name_at(names, section[at].sh_size, section[i].sh_name), ".rodata") == 0) {
            *offset_p = section[i].sh_offset;
            *size_p = section[i].sh_size;
        }
    }
    free(names);
    free(section);
}

bool oh_elf_file_nccl_version(int fd, char version_p[OH_ELF_VERSION])
{
    struct image image;
    uint64_t offset, size;
    if (open_image(fd, &image) != OH_ELF_OK) {
        return false;
    }
    find_constants(&image, &offset, &size);
    bool found = search_version(&image.file, offset, size, version_p);
    close_image(&image);
    return found;
}
