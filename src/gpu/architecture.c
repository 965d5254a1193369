/* SPDX-License-Identifier: MIT */
/*
 * architecture.c - compares targets of nvcc with compute capabilities
 *
 * Does: See architecture.h. src/gpu/built_for.S has the list.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "gpu/architecture.h"

#include <stdlib.h>
#include <string.h>

bool oh_architectures_include(const char *architectures, int major, int minor)
{
    const int capability = 10 * major + minor;
    for (const char *word = architectures; *word; word += strcspn(word, " ")) {
        word += strspn(word, " \n");
        const bool real = strncmp(word, "sm_", 3) == 0, virtual = strncmp(word, "compute_", 8) == 0;
        char *end = NULL;
        const long target = real || virtual ? strtol(word + (real ? 3 : 8), &end, 10) : 0;
        const bool own = end && *end && !strchr(" \n", *end);
        if (strncmp(word, "any", 3) == 0 || target == capability ||
            (!own && target > 0 && target < capability && (virtual || target / 10 == major))) {
            return true;
        }
    }
    return false;
}
