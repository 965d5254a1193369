/* SPDX-License-Identifier: MIT */
/*
 * dlsym_wrapper.c - a preloaded object that stands in front of what onehop's dlsym uses, and finds the next by dlsym
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *user)
{
    typedef int (*function)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    return ((function)dlsym(RTLD_NEXT, "dl_iterate_phdr"))(visit, user);
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    typedef int (*function)(pthread_mutex_t *);
    return ((function)dlsym(RTLD_NEXT, "pthread_mutex_trylock"))(mutex);
}
