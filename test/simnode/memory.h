/* SPDX-License-Identifier: MIT */
/*
 * memory.h - memory of the simulated libraries: a process that gets none ends
 */
#ifndef TEST_SIMNODE_MEMORY_H_
#define TEST_SIMNODE_MEMORY_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Zeros. */
static inline void *simnode_new(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory) {
        fprintf(stderr, "simnode: out of memory\n");
        abort();
    }
    return memory;
}

/* Room for one more behind `count` elements: doubles an array at each power of two. */
static inline void *simnode_grown(void *array, size_t count, size_t size)
{
    if (count & (count - 1)) {
        return array;
    }
    void *bigger = simnode_new((count ? 2 * count : 1) * size);
    if (count) {
        memcpy(bigger, array, count * size);
    }
    free(array);
    return bigger;
}

#endif
