/* SPDX-License-Identifier: MIT */
/*
 * loader.h - the loaded objects, and the definitions in them
 *
 * Does: Finds the definitions behind onehop's of the functions of libc that onehop exports, and the objects in the
 *    loader's list. Asks the loader about an object.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_INTERPOSE_LOADER_H_
#define OH_INTERPOSE_LOADER_H_

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose/elf.h"

/* --- loader.c ----------------------------------------------------------------------------------------------------- */

/*
 * Looks a name up from a loaded object; path "": in the global scope. Calls the next definition of dlsym, behind
 * onehop's, which looks at no new objects. Leaves no dlerror.
 */
void *oh_dlsym_in(const char *path, const char *name);

/* Returns the object that has the address, of its code or data; NULL: none. */
const struct link_map *oh_object_at(const void *address);

/* Returns whether the object with this dynamic section has the address. */
bool oh_object_has(const void *dynamic, const void *address);

/* Opens a loaded object again. Returns NULL if it was unloaded, or another is at its path. Leaves no dlerror. */
void *oh_object_open(const char *path, const void *dynamic);

/* Returns whether this object is in the global scope: preloaded, not opened as NCCL opens plugins. */
bool oh_onehop_is_preloaded(void);

/* --- next_dlsym.c: runs before the program's main, and calls nothing ---------------------------------------------- */

/* dlvsym has a parameter more, which only its caller sees. */
typedef void *(*oh_dlsym_function)(void *handle, const char *name);

/*
 * The definitions of dlsym and dlvsym behind onehop's: another preloaded object's, or libc's. dlsym_entry.S jumps to
 * them. NULL: not searched for. oh_next_dlsym_find sets them, unless they are known.
 */
extern _Atomic(oh_dlsym_function) oh_next_dlsym, oh_next_dlvsym;
void oh_next_dlsym_find(void);

/*
 * Returns a value that changes with the loader's list of objects; 0: unknown. Takes only the lock that dlsym takes in
 * any case. An object that takes another's place in all respects does not change it.
 */
uintptr_t oh_next_objects(void);

/*
 * The same, and calls visit for each object, with that lock held: for those that were appended since the list had the
 * value `after`, or for all if its begin is not as it was then. The visitor opens no object, and calls no function of
 * another object but malloc, as the loader does: an object that stands for a function may look up the next one while
 * another thread waits for that, and dlsym waits for the lock.
 */
typedef void oh_object_visitor(const struct link_map *object, void *user);
uintptr_t oh_next_visit(uintptr_t after, oh_object_visitor *visit, void *user);

/* Returns whether the loader changes the list, maybe in this thread: no object may be opened. */
bool oh_next_is_changing(void);

/* Calls libc's own on_exit. */
void oh_next_on_exit(void (*function)(int status, void *argument));

/* A name that nobody else looks up, by its address, and the number of its look-ups that have passed onehop. */
extern const char oh_dlsym_probe[];
extern atomic_uint oh_dlsym_probes;

/* Returns the definition of a function behind onehop's, in the order of loading; NULL: none. */
void *oh_next_definition(const char *name);

/* Returns whether the program refers to a function, and its definition is the first in the order of loading. */
bool oh_program_calls(const char *name, const void *definition);

#endif
