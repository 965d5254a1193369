/* SPDX-License-Identifier: MIT */
/*
 * shrinks.c - the calls of ncclCommShrink on a communicator
 *
 * Does: Counts this rank's calls by the ranks that they exclude: those ranks make no such call, so that the number of
 *    all calls differs between ranks.
 * Threads: the one that uses the communicator.
 * Owns: the list.
 */
#include "comm/comm_internal.h"

#include <stdlib.h>

struct oh_shrinks {
    struct oh_key of; /* the ranks that are excluded */
    uint64_t count;
    struct oh_shrinks *next;
};

uint64_t *oh_comm_shrinks(struct oh_comm *comm, const int *excluded, int count)
{
    const struct oh_key of = oh_key_of_shrink(&comm->id.key, 0, excluded, count);
    struct oh_shrinks *shrinks = comm->id.shrinks;
    while (shrinks && oh_key_compare(&shrinks->of, &of) != 0) {
        shrinks = shrinks->next;
    }
    if (!shrinks && (shrinks = malloc(sizeof *shrinks))) {
        *shrinks = (struct oh_shrinks){.of = of, .next = comm->id.shrinks};
        comm->id.shrinks = shrinks;
    }
    return shrinks ? &shrinks->count : NULL;
}

void oh_comm_shrinks_free(struct oh_comm *comm)
{
    for (struct oh_shrinks *shrinks = comm->id.shrinks, *next; shrinks; shrinks = next) {
        next = shrinks->next;
        free(shrinks);
    }
}
