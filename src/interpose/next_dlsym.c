/* SPDX-License-Identifier: MIT */
/*
 * next_dlsym.c - the definitions behind onehop's of the libc functions that onehop exports
 *
 * Does: Finds them in the loader's list of objects. Runs before the program's main, and so calls nothing.
 * Threads: any. Objects from the start of the process are first in the list, and never unloaded.
 * Owns: nothing.
 */
#include "interpose/loader.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>

_Atomic(oh_dlsym_function) oh_next_dlsym, oh_next_dlvsym;
const char oh_dlsym_probe[] = "onehopVersion";
atomic_uint oh_dlsym_probes;

/* A namespace of the loader; the next (dlmopen) follows since glibc 2.35, where r_version is 2. */
struct namespace
{
    struct r_debug debug;
    const struct namespace *next;
};

/* Hidden: its address is known before the loader has relocated this object. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* Zero until the loader has relocated this object: resolvers of indirect functions may call dlsym before. */
static const void *const volatile namespaces = &_r_debug;

OH_EARLY static long call_kernel(long number, long first, long second, long third)
{
#if defined(__x86_64__)
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

/* Where the kernel has mapped the loader; 0: unknown. As a command the loader is the program. */
OH_EARLY static uintptr_t base_of_loader(void)
{
    static ElfW(auxv_t) table[64]; /* there is one thread; no array on the stack, for which compilers name a canary */
    const long file = call_kernel(SYS_openat, AT_FDCWD, (long)"/proc/self/auxv", O_RDONLY | O_CLOEXEC);
    const long bytes = file >= 0 ? call_kernel(SYS_read, file, (long)table, sizeof table) : 0;
    uintptr_t base = 0, headers = 0;
    if (file >= 0) {
        call_kernel(SYS_close, file, 0, 0);
    }
    for (long i = 0; (i + 1) * (long)sizeof *table <= bytes; i++) {
        base = table[i].a_type == AT_BASE ? table[i].a_un.a_val : base;
        headers = table[i].a_type == AT_PHDR ? table[i].a_un.a_val : headers;
    }
    return base || !headers ? base : headers - sizeof(ElfW(Ehdr));
}

OH_EARLY static const struct namespace *first_namespace(void)
{
    if (namespaces) {
        return namespaces;
    }
    const ElfW(Ehdr) *loader = (const ElfW(Ehdr) *)base_of_loader();
    const ElfW(Phdr) *header = loader ? (const ElfW(Phdr) *)((uintptr_t)loader + loader->e_phoff) : NULL;
    const ElfW(Sym) *found = NULL;
    struct oh_elf elf;
    for (int i = 0; loader && i < loader->e_phnum && !found; i++) {
        const uintptr_t base = (uintptr_t)loader;
        const struct link_map object = {.l_addr = base, .l_ld = (ElfW(Dyn) *)(base + header[i].p_vaddr)};
        if (header[i].p_type == PT_DYNAMIC && oh_elf_read(&object, &elf)) {
            found = oh_elf_find(&elf, "_r_debug");
        }
    }
    return found ? (const struct namespace *)(elf.base + found->st_value) : NULL;
}

/* This object in the loader's list. dladdr1, which also tells, may belong to another preloaded object. */
OH_EARLY static const struct link_map *own_object(void)
{
    const struct link_map *object = NULL;
    for (const struct namespace *list = first_namespace(); list && !object;
         list = list->debug.r_version > 1 ? list->next : NULL) {
        object = list->debug.r_map;
        while (object && object->l_ld != _DYNAMIC) {
            object = object->l_next;
        }
    }
    return object;
}

OH_EARLY static const struct link_map *first_object(void)
{
    const struct link_map *object = own_object();
    while (object && object->l_prev) {
        object = object->l_prev;
    }
    return object;
}

OH_EARLY static void *definition_in(const struct link_map *object, const char *name)
{
    struct oh_elf elf;
    const ElfW(Sym) *symbol = oh_elf_read(object, &elf) ? oh_elf_find(&elf, name) : NULL;
    return symbol ? (void *)(elf.base + symbol->st_value) : NULL;
}

/* Defined by libc, and by nothing that stands in front of it. */
#define LIBC_MARK "gnu_get_libc_version"

/* Before glibc 2.34: defined by libdl, whose dlsym is libc's own. Others that define dlsym may stand in front of it. */
#define DLSYM_MARK "dlinfo"

/* The first definition of a name, in an object that defines `mark`, too. */
OH_EARLY static void *definition_beside(const char *mark, const char *name)
{
    void *found = NULL;
    for (const struct link_map *object = first_object(); object && !found; object = object->l_next) {
        found = definition_in(object, mark) ? definition_in(object, name) : NULL;
    }
    return found;
}

OH_EARLY void oh_next_on_exit(void (*function)(int status, void *argument))
{
    int (*on_exit)(void (*)(int, void *), void *) =
        (int (*)(void (*)(int, void *), void *))definition_beside(LIBC_MARK, "on_exit");
    if (on_exit) {
        on_exit(function, NULL);
    }
}

OH_EARLY void *oh_next_definition(const char *name)
{
    const struct link_map *own = own_object(), *first = first_object(), *object = own;
    void *found = NULL;
    if (!own || !first) {
        return NULL;
    }
    do { /* behind the last object the first: this one may be opened after libc, not preloaded */
        object = object->l_next ? object->l_next : first;
        found = object != own ? definition_in(object, name) : NULL;
    } while (object != own && !found);
    return found;
}

OH_EARLY bool oh_program_calls(const char *name, const void *definition)
{
    struct oh_elf program;
    return oh_elf_read(first_object(), &program) && oh_elf_refers(&program, name) &&
           definition_beside(name, name) == definition;
}

/* What this thread does with each object, while it looks at them. */
static __thread struct {
    oh_object_visitor *visit; /* NULL: nothing */
    void *user;
    uintptr_t after; /* only with those behind the objects of this value; 0: with all */
    bool done;
    bool found; /* these objects */
} look;

/*
 * libc calls the resolver of an indirect function within dlsym, with the lock that keeps other threads from changing
 * the loader's list. So dlsym answers with a hash of that list (of its memory, and where its objects are), never 0.
 * dl_iterate_phdr has a lock of its own, which dlsym does not take: a thread in there may wait for what the caller of
 * dlsym holds, as Python's GIL (threadpoolctl; ctypes.util.dllist).
 */
__attribute__((used)) OH_EARLY static void (*hash_objects(void))(void)
{
    uintptr_t hash = 0;
    look.found = look.after == 0;
    for (const struct link_map *object = first_object(); object; object = object->l_next) {
        hash = (hash ^ (uintptr_t)object ^ (uintptr_t)object->l_ld << 1) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
        if (look.visit && look.found) {
            look.visit(object, look.user);
        }
        look.found |= (hash | 1) == look.after;
    }
    look.done = true;
    return (void (*)(void))(hash | 1);
}

#define OBJECTS onehop_loaded_objects
#define TEXT_OF(name_) #name_
#define TEXT(name_) TEXT_OF(name_)
void OBJECTS(void);
__attribute__((visibility("default"), ifunc("hash_objects"))) void OBJECTS(void);

OH_EARLY uintptr_t oh_next_objects(void)
{
    static _Atomic(oh_dlsym_function) known;
    oh_dlsym_function look_up = atomic_load_explicit(&known, memory_order_relaxed);
    /* Once: this walk has no lock. Objects from the start of the process, or those in front of a plugin being opened.
     */
    look_up = look_up ? look_up : (oh_dlsym_function)definition_beside(LIBC_MARK, "dlsym");
    look_up = look_up ? look_up : (oh_dlsym_function)definition_beside(DLSYM_MARK, "dlsym");
    atomic_store_explicit(&known, look_up, memory_order_relaxed); /* publishes nothing else */
    return look_up ? (uintptr_t)look_up(RTLD_DEFAULT, TEXT(OBJECTS)) : 0;
}

OH_EARLY uintptr_t oh_next_visit(uintptr_t after, oh_object_visitor *visit, void *user)
{
    look.visit = visit;
    look.user = user;
    look.after = after;
    look.done = false;
    uintptr_t objects = oh_next_objects();
    if (!look.done) { /* another onehop in front has answered, or nobody: without the lock */
        objects = (uintptr_t)hash_objects();
    }
    look.visit = NULL;
    return look.found ? objects : oh_next_visit(0, visit, user);
}

/* A program linked for a fixed address may have a copy of _r_debug, whose r_state stays as it was at the start. */
OH_EARLY bool oh_next_is_changing(void)
{
    struct oh_elf program;
    const bool is_read = oh_elf_read(first_object(), &program);
    const ElfW(Dyn) *entry = is_read ? oh_elf_entry(program.dynamic, DT_DEBUG) : NULL;
    const struct r_debug *debug = entry ? (const struct r_debug *)entry->d_un.d_ptr : NULL;
    return debug && *(const volatile __typeof__(debug->r_state) *)&debug->r_state != RT_CONSISTENT;
}

OH_EARLY static void *not_found(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

OH_EARLY static void find_next(_Atomic(oh_dlsym_function) *next_p, const char *name)
{
    oh_dlsym_function known = atomic_load_explicit(next_p, memory_order_relaxed);
    if (!known || known == not_found) {
        oh_dlsym_function next = (oh_dlsym_function)oh_next_definition(name);
        atomic_store_explicit(next_p, next ? next : not_found, memory_order_relaxed); /* publishes nothing else */
    }
}

OH_EARLY void oh_next_dlsym_find(void)
{
    find_next(&oh_next_dlvsym, "dlvsym");
    find_next(&oh_next_dlsym, "dlsym");
}
