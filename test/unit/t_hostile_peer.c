/* SPDX-License-Identifier: MIT */
/*
 * t_hostile_peer.c - one rank sets up a communicator with a peer that lies
 *
 * The peer is this program: it counts itself in, fills its slot with what the case says, and votes yes, all before the
 * rank under test looks. An honest peer is served; every other must be refused, for the reason given, without a crash.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_internal.h"
#include "gpu/context.h"
#include "test/unit/default_table.h"
#include "test/unit/first_call.h"
#include "test/unit/unit.h"

#define RANKS 2
#define RANDOM_PEERS 12

/* What the cases start from: an honest peer's memory, by rank; that of another communicator, and of no rank of this
 * one. */
static struct oh_staging honest[RANKS], foreign, surplus;
static unsigned seed;

struct stage {
    struct oh_shared *shared;
    uint32_t rank; /* the peer's */
};

/* --- the lies ----------------------------------------------------------------------------------------------------- */

static void fill_random(void *memory, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((unsigned char *)memory)[i] = (unsigned char)rand_r(&seed);
    }
}

/* A function that changes what an honest peer has put there. */
#define LIE(name_, change_)                                                                                            \
    static void name_(struct stage *stage)                                                                             \
    {                                                                                                                  \
        struct oh_peer_info *slot = &stage->shared->peer_info[stage->rank];                                            \
        struct oh_plan_rows *rows = stage->shared->table.rows;                                                         \
        (void)slot, (void)rows;                                                                                        \
        change_;                                                                                                       \
    }
#define RANDOM(what_) fill_random(&(what_), sizeof(what_))

LIE(no_lie, )
LIE(wrong_pointer, slot->staging += 4096)
LIE(foreign_memory, slot->staging = foreign.base; slot->context = (uintptr_t)foreign.context.handle)
LIE(memory_of_another_rank, slot->staging = surplus.base; slot->context = (uintptr_t)surplus.context.handle)
LIE(wrong_context, slot->context = 0x1234560)
LIE(random_pointers, RANDOM(slot->staging); RANDOM(slot->context))
LIE(random_handle, slot->process++ /* of another process, then */; RANDOM(slot->handle))
LIE(endless_bus_id, memset(slot->bus_id, '0', sizeof slot->bus_id))
LIE(no_bus_id, slot->bus_id[0] = '\0')
LIE(unprintable_bus_id, snprintf(slot->bus_id, sizeof slot->bus_id, "0000:3b\nonehop: all is well"))
LIE(random_slot, fill_random(&slot->pid, sizeof *slot - offsetof(struct oh_peer_info, pid)))
LIE(many_rows, rows->count = 1000000)
LIE(high_cap, rows->row[rows->count - 1].max_bytes = UINT64_MAX)
LIE(many_blocks, rows->row[0].blocks = OH_MAX_BLOCKS + 1)
LIE(many_blocks_of_the_last, rows[ONEHOP_COLLECTIVE_COUNT - 1].row[0].blocks = OH_MAX_BLOCKS + 1)
LIE(no_such_algorithm, rows->row[0].algorithm = 0x7fffffff)
LIE(random_table, RANDOM(stage->shared->table))

static const struct {
    const char *name;
    void (*lie)(struct stage *stage);
    uint32_t rank;      /* of the liar; rank 0's table is everybody's */
    const char *reason; /* NULL: served */
} cases[] = {
    {"an honest peer", no_lie, 1, NULL},
    {"an honest peer, rank 0", no_lie, 0, NULL},
    {"a pointer beside the memory", wrong_pointer, 1, "cannot be opened"},
    {"the memory of another communicator", foreign_memory, 1, "cannot be opened"},
    {"the memory of another rank", memory_of_another_rank, 1, "cannot be opened"},
    {"a context that is none", wrong_context, 1, "cannot be opened"},
    {"random pointers", random_pointers, 1, "cannot be opened"},
    {"a random handle", random_handle, 1, "cannot be opened"},
    {"a bus id without an end", endless_bus_id, 1, "GPU"},
    {"no bus id", no_bus_id, 1, "no bus id"},
    {"a bus id of two lines", unprintable_bus_id, 1, "no bus id"},
    {"more rows than there are", many_rows, 0, "table is not valid"},
    {"messages larger than the memory", high_cap, 0, "table is not valid"},
    {"more blocks than there are", many_blocks, 0, "table is not valid"},
    {"more blocks than there are, in a broadcast", many_blocks_of_the_last, 0, "table is not valid"},
    {"an algorithm that is none", no_such_algorithm, 0, "table is not valid"},
    {"a random table", random_table, 0, "table is not valid"},
};

/* --- the stage ---------------------------------------------------------------------------------------------------- */

/* The peer's part, to its vote. */
static void play_peer(struct oh_segment *segment, uint32_t rank, void (*lie)(struct stage *stage))
{
    struct stage stage = {.shared = segment->shared, .rank = rank};
    struct oh_peer_info *slot = &segment->shared->peer_info[rank];
    oh_staging_describe(&honest[rank], slot);
    oh_peer_info_identify(slot);
    snprintf(slot->bus_id, sizeof slot->bus_id, "%s", rank == 0 ? "0000:19:00.0" : "0000:3b:00.0");
    if (rank == 0) {
        default_table(RANKS, UINT64_MAX, -1, &stage.shared->table);
        stage.shared->init_epoch = 1;
    }
    lie(&stage);
    atomic_store(&slot->begun, 1);
    atomic_store(&slot->ready, 1);
    oh_segment_vote_yes(segment, RANKS);
}

static bool make_memory(struct oh_staging *staging_p, uint32_t device, const struct oh_key *key, uint32_t rank)
{
    return oh_staging_bind((CUdevice)device, NULL, staging_p) == CUDA_SUCCESS &&
           oh_staging_create(staging_p, key, rank, RANKS) == CUDA_SUCCESS;
}

/* True when the rank under test, on the other GPU, was served. */
static bool meet(uint32_t rank, void (*lie)(struct stage *stage), char *reason_p)
{
    static char handle[64];
    struct oh_key key = oh_key_random();
    struct oh_segment segment;
    ncclComm_t nccl = (ncclComm_t)(void *)handle;
    struct oh_comm *comm = oh_creation_begin(&key, &(struct oh_comm_config)OH_COMM_CONFIG_DEFAULT, NULL, &nccl, false);
    if (oh_segment_open(&segment, &key) != ncclSuccess || !make_memory(&honest[rank], rank, &key, rank) ||
        !make_memory(&surplus, rank, &key, RANKS)) {
        return false;
    }
    play_peer(&segment, rank, lie);
    comm = create_comm(comm, nccl, 1 - rank, RANKS);
    bool served = comm && !oh_comm_is_settled(comm) && make_first_call(comm);
    snprintf(reason_p, OH_REASON_BYTES, "%s", comm ? comm->attach.reason : "no communicator");
    atomic_store(&segment.shared->peer_info[rank].peers_closed, 1);
    if (comm) {
        oh_registry_remove(comm);
        oh_comm_retire(comm);
    }
    oh_comms_reclaim();
    oh_segment_discard(&segment);
    oh_staging_destroy(&honest[rank]);
    oh_staging_destroy(&surplus);
    return served;
}

/* Whatever stands in the slot: refused, or served if by chance nothing that counts was hit; never a crash. */
static void test_random_peers(void)
{
    char reason[OH_REASON_BYTES];
    int served = 0;
    for (int i = 0; i < RANDOM_PEERS; i++) {
        served += meet((uint32_t)i % RANKS, random_slot, reason);
    }
    tap_ok(served == 0, "%d peers whose slots are random: all refused", RANDOM_PEERS);
}

int main(int argc, char **argv)
{
    const char *folder = unit_folder();
    seed = unit_seed(argc, argv);
    setenv("ONEHOP_DEBUG", "NONE", 0);
    const struct oh_key another = oh_key_random();
    tap_ok(oh_driver_open() == ncclSuccess && make_memory(&foreign, 1, &another, 1), "another communicator has memory");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char reason[OH_REASON_BYTES];
        bool served = meet(cases[i].rank, cases[i].lie, reason);
        bool clean = !strchr(reason, '\n');
        tap_ok(cases[i].reason ? !served && clean && strstr(reason, cases[i].reason) : served, "%s: %s", cases[i].name,
               served ? "served" : reason);
    }
    test_random_peers();
    oh_staging_destroy(&foreign);
    tap_ok(rmdir(folder) == 0, "nothing is left in shared memory");
    return tap_done();
}
