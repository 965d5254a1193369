/* SPDX-License-Identifier: MIT */
/*
 * patch.c - symbol tables of NCCL and tables of addresses of its callers
 *
 * Does: See patch.h. The callers are noted in a walk over the loader's list, and opened behind it.
 * Threads: one at a time.
 * Owns: nothing.
 */
#include "interpose/patch.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/loader.h"
#include "interpose/real.h"
#include "util/log.h"

/* A page that is writable for a while. The kernel is asked for its protection: the loader may be writing there, too. */
struct window {
    uintptr_t page; /* 0: none is open */
    int protection; /* to put back */
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the protection of an address; -1: unknown. */
static int protection_of(uintptr_t address)
{
    unsigned long start, end;
    char flags[5], line[512];
    int protection = -1;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && protection < 0 && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3 && address >= start && address < end) {
            protection = (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
                         (flags[2] == 'x' ? PROT_EXEC : 0);
        }
    }
    if (maps) {
        fclose(maps);
    }
    return protection;
}

static void close_window(struct window *window)
{
    if (window->page && !(window->protection & PROT_WRITE)) {
        mprotect((void *)window->page, page_bytes(), window->protection);
    }
    window->page = 0;
}

static bool open_window(struct window *window, uintptr_t address)
{
    uintptr_t page = address & ~(uintptr_t)(page_bytes() - 1);
    if (window->page == page) {
        return true;
    }
    close_window(window);
    int protection = protection_of(page);
    if (protection < 0 ||
        (!(protection & PROT_WRITE) && mprotect((void *)page, page_bytes(), protection | PROT_WRITE) != 0)) {
        return false;
    }
    *window = (struct window){.page = page, .protection = protection};
    return true;
}

static bool write_word(struct window *window, const void *where, uintptr_t value)
{
    if (!open_window(window, (uintptr_t)where)) {
        return false;
    }
    __atomic_store_n((uintptr_t *)where, value, __ATOMIC_RELEASE); /* others read it at any time */
    return true;
}

static bool patch_symbols(const struct oh_real *real, int copy)
{
    struct window window = {0};
    bool done = true;
    for (size_t i = 0; i < OH_EXPORTED_COUNT; i++) {
        const struct oh_function *function = &oh_functions[i];
        for (int p = 0; p < 2 && oh_real_function(real, function); p++) { /* pncclX, ncclX */
            const ElfW(Sym) *symbol = oh_elf_find(&real->elf, function->real_name + p);
            uintptr_t thunk = (uintptr_t)function->thunk[copy] - real->elf.base;
            done = (!symbol || write_word(&window, &symbol->st_value, thunk)) && done;
        }
    }
    close_window(&window);
    return done;
}

void oh_patch_copies(void)
{
    for (int i = 0; i < oh_real_count(); i++) {
        struct oh_real *real = oh_real_at(i);
        if (real->state == OH_REAL_HELD) {
            real->state = patch_symbols(real, i) ? OH_REAL_PATCHED : OH_REAL_UNPATCHED;
            if (real->state == OH_REAL_UNPATCHED) {
                OH_INFO("the symbol table of %s cannot be changed; callers that use dlsym may go to it directly",
                        real->path);
            }
        }
    }
}

static bool is_lacking(const struct oh_function *function)
{
    bool lacking = true;
    for (int i = 0; i < oh_real_count(); i++) {
        lacking = lacking && !oh_real_function(oh_real_at(i), function);
    }
    return lacking;
}

/* onehop, once it is read, and its own pncclX and ncclX, by function. */
static struct oh_elf own;
static struct {
    const ElfW(Sym) * symbol; /* NULL: it has none */
    ElfW(Addr) value;         /* of the symbol, unless it is hidden */
} exported[OH_EXPORTED_COUNT][2];

static void find_exported_functions(void)
{
    const bool is_new = !own.dynamic && oh_elf_read(oh_object_at(_DYNAMIC), &own);
    for (int i = 0; is_new && i < 2 * OH_EXPORTED_COUNT; i++) {
        const ElfW(Sym) *symbol = oh_elf_find(&own, oh_functions[i / 2].real_name + i % 2);
        exported[i / 2][i % 2].symbol = symbol;
        exported[i / 2][i % 2].value = symbol ? symbol->st_value : 0;
    }
}

/* Programs look a function up to find out whether NCCL has it. The loader passes a symbol without value by. */
void oh_patch_own_symbols(void)
{
    struct window window = {0};
    find_exported_functions();
    for (int i = 0; i < 2 * OH_EXPORTED_COUNT; i++) {
        const ElfW(Sym) *symbol = exported[i / 2][i % 2].symbol;
        const ElfW(Addr) value = is_lacking(&oh_functions[i / 2]) ? 0 : exported[i / 2][i % 2].value;
        if (symbol && symbol->st_value != value) {
            write_word(&window, &symbol->st_value, value);
        }
    }
    close_window(&window);
}

/* Returns the function of a public name; NULL: none. */
static const struct oh_function *exported_function(const char *name)
{
    const char *public_name = name + (name[0] == 'p');
    const bool is_nccl = public_name[0] == 'n' && public_name[1] == 'c'; /* few names are */
    for (size_t i = 0; is_nccl && i < OH_EXPORTED_COUNT; i++) {
        if (oh_elf_same_name(public_name, oh_functions[i].real_name + 1)) {
            return &oh_functions[i];
        }
    }
    return NULL;
}

/* Returns the function whose address the word of a relocation holds; NULL: none of NCCL's. */
static const struct oh_function *function_of(const struct oh_elf *elf, const ElfW(Rela) * relocation)
{
    const ElfW(Sym) *symbol = oh_elf_symbol_at(elf, relocation);
    return symbol ? exported_function(elf->strings + symbol->st_name) : NULL;
}

/*
 * A word that holds the address of a copy of NCCL gets that copy's thunk. With several copies, a word that holds the
 * address of onehop's function, or is not bound yet, gets the thunk of the copy that the object would call without
 * onehop.
 */
struct assignment {
    struct window window;
    int copy;       /* -1: there is only one, or none that the object would call */
    bool is_unsure; /* which of two the object would call: what is not bound yet is left to the loader */
};

static void assign_word(const struct oh_elf *elf, const ElfW(Rela) * relocation, struct assignment *assignment)
{
    const struct oh_function *function = function_of(elf, relocation);
    const uintptr_t *where = (const uintptr_t *)(elf->base + relocation->r_offset);
    const uintptr_t address = function ? __atomic_load_n(where, __ATOMIC_RELAXED) : 0;
    const ElfW(Sym) *symbol = oh_elf_symbol_at(elf, relocation);
    if (address == 0 || !symbol) { /* nobody has defined it */
        return;
    }
    const bool is_weak = ELF64_ST_BIND(symbol->st_info) == STB_WEAK;
    const ptrdiff_t index = function - oh_functions;
    const uintptr_t value = address - own.base;
    const bool is_ours = value == exported[index][0].value || value == exported[index][1].value;
    if (is_ours && is_weak && is_lacking(function)) {
        write_word(&assignment->window, where, 0); /* the program asks whether NCCL has it */
        return;
    }
    for (int copy = 0; copy < oh_real_count(); copy++) {
        if (address == (uintptr_t)oh_real_function(oh_real_at(copy), function)) {
            write_word(&assignment->window, where, (uintptr_t)function->thunk[copy]);
            return;
        }
    }
    if (assignment->copy >= 0 && (is_ours || (!assignment->is_unsure && /* not bound yet: the object's own PLT */
                                              oh_object_has(elf->dynamic, (const void *)address)))) {
        write_word(&assignment->window, where, (uintptr_t)function->thunk[assignment->copy]);
    }
}

/* Objects with such words. They are opened after the walk: then no thread loads them and writes their pages. */
struct caller {
    struct caller *next;
    struct oh_elf elf;
    char path[];
};

/* Not this object, which is linked with -Bsymbolic. */
static void note_caller(const struct link_map *object, void *user)
{
    struct caller **callers = user;
    const char *path = object->l_name ? object->l_name : "";
    struct oh_elf elf;
    const ElfW(Rela) *relocation = oh_elf_read(object, &elf) ? oh_elf_relocation(&elf, 0) : NULL;
    for (size_t i = 1; relocation && !function_of(&elf, relocation); i++) {
        relocation = oh_elf_relocation(&elf, i);
    }
    if (!relocation) {
        return;
    }
    const size_t size = oh_elf_copy_name(NULL, path, 0) + 1;
    struct caller *caller = malloc(sizeof *caller + size);
    if (caller) {
        *caller = (struct caller){.next = *callers, .elf = elf};
        oh_elf_copy_name(caller->path, path, size);
        *callers = caller;
    }
}

void oh_patch_callers(uintptr_t after)
{
    struct caller *callers = NULL;
    oh_next_visit(after, note_caller, &callers);
    for (struct caller *caller = callers, *next; caller; caller = next) {
        struct assignment assignment = {.copy = -1};
        if (oh_real_count() > 1) {
            const struct oh_real *real = oh_real_of_object(caller->elf.dynamic, caller->path, &assignment.is_unsure);
            assignment.copy = real && real->state == OH_REAL_PATCHED ? (int)(real - oh_real_at(0)) : -1;
        }
        void *handle = oh_object_open(caller->path, caller->elf.dynamic);
        if (handle) {
            const ElfW(Rela) * relocation;
            for (size_t i = 0; (relocation = oh_elf_relocation(&caller->elf, i)); i++) {
                assign_word(&caller->elf, relocation, &assignment);
            }
            close_window(&assignment.window);
            dlclose(handle);
        }
        next = caller->next;
        free(caller);
    }
}
