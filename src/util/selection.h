/* SPDX-License-Identifier: MIT */
/*
 * selection.h - the communicators that ONEHOP_COMMS leaves to onehop
 *
 * Does: Matches a communicator with the variable's value: conditions that all must hold, separated by semicolons. A
 *    condition is "size=", "name=" or "host=" and a list, separated by commas, of which one item must match; after '^'
 *    none may. An item of size is N or N-M, an item of the others a pattern of the shell.
 * Threads: pure functions.
 * Owns: nothing.
 */
#ifndef OH_UTIL_SELECTION_H_
#define OH_UTIL_SELECTION_H_

#include <stdint.h>

enum oh_selection {
    OH_SELECTION_INVALID, /* the text is no selection, whatever the communicator */
    OH_SELECTION_OUT,
    OH_SELECTION_IN
};

/* name: commName of ncclConfig_t; empty: none. */
enum oh_selection oh_selection_match(const char *text, uint32_t nranks, const char *name, const char *host);

#endif
