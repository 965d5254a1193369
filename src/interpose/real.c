/* SPDX-License-Identifier: MIT */
/*
 * real.c - the loaded copies of NCCL
 *
 * Does: Looks up their pncclX functions. Defines the thunks, from the lists in comm/nccl.h.
 * Threads: any; a thunk sets oh_real_of_thunk, which is thread-local, for the time of a call.
 * Owns: the tables, and references to the copies.
 */
#include "interpose/real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "interpose/loader.h"
#include "util/log.h"

/* The function by which an NCCL is known: exported by every NCCL, and by no tool and no onehop. */
#define MARK "pncclGetVersion"

__thread const struct oh_real *oh_real_of_thunk;

static struct oh_real copies[OH_REAL_MAX];
static atomic_int copy_count;         /* the copies below it are complete */
static char left_alone[OH_REAL_PATH]; /* a copy too many, until it is reported */

int oh_real_count(void)
{
    return atomic_load_explicit(&copy_count, memory_order_acquire); /* pairs with the release store in oh_real_add() */
}

struct oh_real *oh_real_at(int index)
{
    return &copies[index];
}

/* The copy with this dynamic section: NCCL itself, or what it is linked into. */
static struct oh_real *copy_with(const void *dynamic)
{
    for (int i = 0; i < oh_real_count(); i++) {
        if (copies[i].elf.dynamic == dynamic) {
            return &copies[i];
        }
    }
    return NULL;
}

/* Restores the outer copy: a call may come from within another copy's. */
#define THUNK(slot_, name_, parameters_, arguments_)                                                                   \
    static ncclResult_t name_##_##slot_ parameters_                                                                    \
    {                                                                                                                  \
        const struct oh_real *outer = oh_real_of_thunk;                                                                \
        oh_real_of_thunk = oh_real_at(slot_);                                                                          \
        ncclResult_t res = nccl##name_ arguments_;                                                                     \
        oh_real_of_thunk = outer;                                                                                      \
        return res;                                                                                                    \
    }

#define THUNKS(name_, parameters_, arguments_, ...)                                                                    \
    THUNK(0, name_, parameters_, arguments_)                                                                           \
    THUNK(1, name_, parameters_, arguments_)                                                                           \
    THUNK(2, name_, parameters_, arguments_)                                                                           \
    THUNK(3, name_, parameters_, arguments_)

OH_NCCL_REQUIRED(THUNKS)
OH_NCCL_OPTIONAL(THUNKS)

#define ADDRESS(function_) (void (*)(void)) function_
#define QUERY(name_, parameters_) {"pnccl" #name_, offsetof(struct oh_nccl, name_), true, {NULL}},
#define ROW(name_, required_)                                                                                          \
    {"pnccl" #name_,                                                                                                   \
     offsetof(struct oh_nccl, name_),                                                                                  \
     required_,                                                                                                        \
     {ADDRESS(name_##_0), ADDRESS(name_##_1), ADDRESS(name_##_2), ADDRESS(name_##_3)}},
#define REQUIRED(name_, ...) ROW(name_, true)
#define OPTIONAL(name_, ...) ROW(name_, false)

const struct oh_function oh_functions[OH_FUNCTION_COUNT] = {OH_NCCL_REQUIRED(REQUIRED) OH_NCCL_OPTIONAL(OPTIONAL)
                                                                OH_NCCL_QUERIES(QUERY)};

_Static_assert(OH_REAL_MAX == 4, "THUNKS and ROW list the copies");

/* A copy that lacks a required function must be called all the same: onehop's functions stand in front of it. */
static void fill_table(struct oh_real *real)
{
    const char *lacking = NULL;
    for (size_t i = 0; i < OH_FUNCTION_COUNT; i++) {
        const ElfW(Sym) *symbol = oh_elf_find(&real->elf, oh_functions[i].real_name);
        lacking = !symbol && oh_functions[i].required ? oh_functions[i].real_name + 1 : lacking;
        void *address = symbol ? (void *)(real->elf.base + symbol->st_value) : NULL;
        memcpy((char *)&real->own + oh_functions[i].offset, &address, sizeof address);
    }
    real->lacking = lacking;
    real->own.only_forwards = lacking != NULL;
    real->seen = real->own;
    real->own.own = real->seen.own = &real->own;
    real->own.seen = real->seen.seen = &real->seen;
}

void oh_real_add(const struct link_map *object)
{
    const char *path = object->l_name ? object->l_name : "";
    int count = oh_real_count();
    struct oh_elf elf;
    if (!oh_elf_read(object, &elf) || !oh_elf_find(&elf, MARK) || copy_with(elf.dynamic)) {
        return;
    }
    if (count == OH_REAL_MAX) {
        oh_elf_copy_name(left_alone, path, sizeof left_alone);
        return;
    }
    struct oh_real *real = &copies[count];
    *real = (struct oh_real){.elf = elf};
    if (oh_elf_copy_name(real->path, path, sizeof real->path) < sizeof real->path) {
        fill_table(real);
        /* release: publishes the copy. Pairs with the acquire load in oh_real_count(). */
        atomic_store_explicit(&copy_count, count + 1, memory_order_release);
    }
}

/* A tool defines functions of NCCL, and is neither NCCL nor onehop. */
static bool is_tool(const void *function, const char **path_p)
{
    struct oh_elf elf;
    const struct link_map *object = function ? oh_object_at(function) : NULL;
    if (!object || !oh_elf_read(object, &elf)) {
        return false;
    }
    *path_p = object->l_name[0] ? object->l_name : "the program";
    return !oh_elf_find(&elf, MARK) && !oh_elf_find(&elf, "onehopVersion");
}

/* Finds tools, which define ncclX and call pncclX, before this copy is patched. */
static void find_tools(struct oh_real *real)
{
    const char *path, *in_front = NULL, *behind = NULL;
    if (!oh_onehop_is_preloaded()) {
        return;
    }
    for (size_t i = 0; i < OH_EXPORTED_COUNT; i++) {
        const char *name = oh_functions[i].real_name + 1;
        in_front = is_tool(oh_dlsym_in("", name), &path) ? path : in_front;
        void *next = atomic_load_explicit(&oh_next_dlsym, memory_order_relaxed)(RTLD_NEXT, name);
        if (is_tool(next, &path)) {
            /* Another thread may call through the table. */
            __atomic_store_n((void **)(void *)((char *)&real->seen + oh_functions[i].offset), next, __ATOMIC_RELAXED);
            behind = path;
        }
    }
    dlerror();
    if (in_front) {
        OH_INFO("%s defines functions of NCCL in front of onehop, which gets the calls that it passes on", in_front);
    }
    if (behind) {
        OH_INFO("%s defines functions of NCCL behind onehop, and gets the calls that onehop does not serve", behind);
    }
}

static void report_copies(void)
{
    for (int i = 0; i < oh_real_count(); i++) {
        if (copies[i].lacking) {
            OH_INFO("%s has no %s: older than NCCL 2.19, all calls go to it", copies[i].path, copies[i].lacking);
            copies[i].lacking = NULL;
        }
    }
    if (left_alone[0]) {
        OH_WARN("more than %d copies of NCCL in this process; %s is left alone", OH_REAL_MAX, left_alone);
        left_alone[0] = '\0';
    }
}

void oh_real_hold(void)
{
    for (int i = oh_real_count() - 1; i >= 0; i--) {
        struct oh_real *real = &copies[i];
        if (real->state == OH_REAL_FOUND && oh_object_open(real->path, real->elf.dynamic)) {
            real->state = OH_REAL_HELD;
            find_tools(real);
        }
        if (real->state == OH_REAL_FOUND && !oh_object_has(real->elf.dynamic, real->elf.dynamic)) {
            OH_INFO("%s cannot be held: it has been unloaded", real->path);
            if (i == oh_real_count() - 1) {
                atomic_store_explicit(&copy_count, i, memory_order_release);
            }
        }
    }
    report_copies();
}

/* The copy that a look-up from an object finds; "": the program's, in the global scope. */
static const struct oh_real *copy_in_scope_of(const char *path)
{
    const void *found = oh_dlsym_in(path, MARK);
    for (int i = 0; found && i < oh_real_count(); i++) {
        if ((const void *)copies[i].own.GetVersion == found) {
            return &copies[i];
        }
    }
    return NULL;
}

const struct oh_real *oh_real_of_object(const void *dynamic, const char *path, bool *is_unsure_p)
{
    const struct oh_real *real = copy_with(dynamic);
    *is_unsure_p = false;
    if (!real) {
        const struct oh_real *global = copy_in_scope_of(""), *own = path[0] ? copy_in_scope_of(path) : NULL;
        *is_unsure_p = global && own && own != global;
        real = global ? global : own;
    }
    return real;
}
