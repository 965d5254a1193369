/* SPDX-License-Identifier: MIT */
/*
 * symbols.h - the functions of a library that is opened at run time
 *
 * Does: Fills a structure of function pointers by dlsym, from a table of their names.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_UTIL_SYMBOLS_H_
#define OH_UTIL_SYMBOLS_H_

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct oh_symbol {
    const char *name;
    size_t offset; /* of the pointer in the structure */
    bool needed;   /* else the pointer is NULL where the library has no such function */
};

/* Sets the pointers. Returns the first needed name that the library lacks, as dlerror then says; NULL: none. */
static inline const char *oh_symbols_load(void *library, const struct oh_symbol *symbols, size_t count, void *table_p)
{
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address && symbols[i].needed) {
            return symbols[i].name;
        }
        memcpy((char *)table_p + symbols[i].offset, &address, sizeof address);
    }
    return NULL;
}

#endif
