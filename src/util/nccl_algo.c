/* SPDX-License-Identifier: MIT */
/*
 * nccl_algo.c - reads NCCL_ALGO
 *
 * Does: Follows parseList of NCCL (src/graph/tuning.cc of 2.28.9). Entries are separated by semicolons. An entry is a
 *    list, or the name of a function, a colon and a list; a later entry of a function replaces an earlier one. A list
 *    has names separated by commas, in any case; after '^' it has the names that are left out.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "util/nccl_algo.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/*
 * In a bit set of algorithms. Inside a host NCCL has no CollNet and no NVLSTree, and uses no PAT (tuning.cc:277 and
 * :466): these names leave nothing. For a reduce-scatter it has no tree, either; but then every list without NVLS would
 * leave one algorithm, as a machine without NVLS does.
 */
enum {
    ALGO_NONE = 0,
    ALGO_TREE = 1,
    ALGO_RING = 2,
    ALGO_NVLS = 4,
    ALGO_ALL = ALGO_TREE | ALGO_RING | ALGO_NVLS,
    ALGO_UNKNOWN = 8 /* of an NCCL newer than this list */
};

static const struct {
    const char *name;
    unsigned bit;
} algorithms[] = {
    {"Tree", ALGO_TREE}, {"Ring", ALGO_RING},     {"CollNetDirect", ALGO_NONE}, {"CollNetChain", ALGO_NONE},
    {"NVLS", ALGO_NVLS}, {"NVLSTree", ALGO_NONE}, {"PAT", ALGO_NONE},
};

static bool is_name(const char *text, size_t length, const char *name)
{
    return strlen(name) == length && strncasecmp(text, name, length) == 0;
}

static unsigned bit_of(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        if (is_name(name, length, algorithms[i].name)) {
            return algorithms[i].bit;
        }
    }
    return ALGO_UNKNOWN;
}

/* The algorithms that a list of `length` characters leaves. */
static unsigned read_list(const char *list, size_t length)
{
    const bool is_inverse = length > 0 && list[0] == '^';
    const char *const end = list + length;
    unsigned named = 0;
    for (const char *at = list + is_inverse; at < end;) {
        size_t word = strcspn(at, ",");
        word = word < (size_t)(end - at) ? word : (size_t)(end - at);
        named |= word > 0 ? bit_of(at, word) : ALGO_NONE;
        at += word + 1;
    }
    return is_inverse ? ALGO_ALL & ~named : named;
}

/* The algorithms that the value leaves for a function. */
static unsigned algorithms_left(const char *value, const char *function)
{
    unsigned left = ALGO_ALL;
    for (const char *entry = value; *entry;) {
        const size_t length = strcspn(entry, ";"), prefix = strcspn(entry, ":;");
        const bool has_prefix = prefix < length;
        const char *const list = has_prefix ? entry + prefix + 1 : entry;
        if (length > 0 && (!has_prefix || is_name(entry, prefix, function))) {
            left = read_list(list, (size_t)(entry + length - list));
        }
        entry += length + (entry[length] == ';');
    }
    return left;
}

bool oh_nccl_algo_is_pinned(const char *value)
{
    static const char *const functions[] = {"AllReduce", "ReduceScatter"}; /* that reduce, and that onehop serves */
    bool pinned = false;
    for (int i = 0; value && i < 2; i++) {
        const unsigned left = algorithms_left(value, functions[i]);
        pinned |= (left & (left - 1)) == 0;
    }
    return pinned;
}
