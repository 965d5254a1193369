/* SPDX-License-Identifier: MIT */
/*
 * lacking.c - a program that asks which functions its NCCL has
 *
 *   lacking OBJECT     prints a line for each function that not every NCCL has, and each way to ask; OBJECT asks, too
 */
#include <dlfcn.h>
#include <stdio.h>

#include "comm/nccl.h"

#define EXPORT __attribute__((visibility("default")))

#define WEAK(name_, parameters_, ...)                                                                                  \
    extern __typeof__(nccl##name_) nccl##name_ __attribute__((weak));                                                  \
    extern __typeof__(nccl##name_) pnccl##name_ __attribute__((weak));
OH_NCCL_OPTIONAL(WEAK)

/* Volatile: the compiler knows that a function has an address. */
#define ADDRESS(name_, ...) {"nccl" #name_, (void *)nccl##name_}, {"pnccl" #name_, (void *)pnccl##name_},
static struct {
    const char *name;
    void *volatile weak;
} functions[] = {OH_NCCL_OPTIONAL(ADDRESS)};

static const char *word(const void *found)
{
    return found ? "there" : "-";
}

EXPORT void ask(const char *who);
EXPORT void ask(const char *who)
{
    int version = 0;
    ncclGetVersion(&version); /* so that this object is linked with NCCL */
    void *handle = dlopen("libnccl.so.2", RTLD_NOW);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const char *name = functions[i].name;
        void *weak = functions[i].weak;
        printf("%s: %s: weak %s", who, name, word(weak));
        printf(", default %s", word(dlsym(RTLD_DEFAULT, name)));
        printf(", error %s", dlerror() ? "yes" : "no");
        printf(", handle %s\n", word(handle ? dlsym(handle, name) : NULL));
    }
}

#ifndef OBJECT
int main(int argc, char **argv)
{
    ask("before");
    void *object = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void (*other)(const char *) = object ? (void (*)(const char *))dlsym(object, "ask") : NULL;
    if (other) {
        other("object");
    }
    ask("after");
    return argc > 1 && !other;
}
#endif
