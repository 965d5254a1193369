/* SPDX-License-Identifier: MIT */
/*
 * t_together.c - kernels of two communicators on one GPU: one of the two always finds room
 *
 * A communicator has a kernel on the GPU that waits for its peers, and maybe the next one, which has begun early. Two
 * ranks have begun in other orders: the GPU of one has the kernels of communicator 0, the GPU of the other those of
 * communicator 1. If neither has room for the other communicator's kernel, both wait forever. Blocks are laid on
 * multiprocessors here, at random or as close together as they go.
 */
#include <stdlib.h>

#include "plan/plan.h"
#include "test/unit/default_table.h"
#include "test/unit/unit.h"

#define ROUNDS 20000
#define MOST_SMS 140
#define SMALL 1e-6 /* shares are sums of fractions */

static unsigned seed;

struct grid {
    enum onehop_collective collective;
    uint32_t blocks, threads;
    double share; /* of a multiprocessor, that a block takes */
};

static uint32_t below(uint32_t limit)
{
    return (uint32_t)rand_r(&seed) % limit;
}

static struct oh_plan_room random_room(void)
{
    static const uint32_t threads[] = {256, 512, 768, 1024, 1536, 2048};
    struct oh_plan_room room = {.sms = 2 + below(MOST_SMS - 1), .max_blocks = below(2) ? UINT32_MAX : 1 + below(200)};
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        room.sm_threads[c] = threads[below(sizeof threads / sizeof *threads)];
    }
    return room;
}

/* A row of the table, which has been cut to the room. */
static struct grid random_grid(const struct oh_plan_table *table, const struct oh_plan_room *room)
{
    const struct oh_plan_rows *rows;
    uint32_t c;
    do {
        c = below(ONEHOP_COLLECTIVE_COUNT);
        rows = &table->rows[c];
    } while (rows->count == 0);
    const struct oh_plan_row *row = &rows->row[below(rows->count)];
    return (struct grid){(enum onehop_collective)c, row->blocks, row->threads,
                         (double)row->threads / room->sm_threads[c]};
}

/* Draws two kernels of a communicator. Returns how many are on a GPU at a time. */
static int random_grids(const struct oh_plan_table *table, const struct oh_plan_room *room, struct grid *grid_p)
{
    uint32_t together = 0;
    bool early = true;
    for (int k = 0; k < 2; k++) {
        grid_p[k] = random_grid(table, room);
        together += grid_p[k].blocks;
    }
    for (int k = 0; k < 2; k++) {
        early &= together <= oh_plan_pair_blocks(room, grid_p[k].collective, grid_p[k].threads);
    }
    return early ? 2 : 1;
}

/* Whether a GPU on which `count` grids lie has room for one more. */
static bool has_room(const struct oh_plan_room *room, const struct grid *lying, int count, const struct grid *grid)
{
    const bool close = below(2);
    double left[MOST_SMS];
    uint32_t spots = 0;
    for (uint32_t sm = 0; sm < room->sms; sm++) {
        left[sm] = 1 + SMALL;
    }
    for (int k = 0; k < count; k++) {
        for (uint32_t b = 0; b < lying[k].blocks; b++) {
            uint32_t sm = close ? 0 : below(room->sms), tried = 0;
            while (left[sm] < lying[k].share) {
                sm = (sm + 1) % room->sms;
                if (++tried == room->sms) {
                    return false; /* not even these fit */
                }
            }
            left[sm] -= lying[k].share;
        }
    }
    for (uint32_t sm = 0; sm < room->sms; sm++) {
        spots += (uint32_t)(left[sm] / grid->share);
    }
    return spots >= grid->blocks;
}

static void test_ranks(uint32_t n)
{
    uint32_t wrong = 0, pairs = 0;
    for (int round = 0; round < ROUNDS && wrong == 0; round++) {
        const struct oh_plan_room room = random_room();
        struct oh_plan_table table;
        struct grid grid[2][2]; /* of each communicator */
        int count[2];
        default_table(n, UINT64_MAX, -1, &table);
        if (!oh_plan_table_fit(&table, &room, below(2))) {
            continue;
        }
        for (int c = 0; c < 2; c++) {
            count[c] = random_grids(&table, &room, grid[c]);
            pairs += count[c] == 2;
        }
        wrong += !has_room(&room, grid[0], count[0], grid[1]) && !has_room(&room, grid[1], count[1], grid[0]);
        if (wrong) {
            printf("# %u multiprocessors, seed of the next round %u\n", room.sms, seed);
            for (int i = 0; i < 4; i++) {
                const struct grid *g = &grid[i / 2][i % 2];
                printf("# communicator %d, %d at a time: collective %d, %u x %u, a share of %g\n", i / 2, count[i / 2],
                       g->collective, g->blocks, g->threads, g->share);
            }
        }
    }
    tap_ok(wrong == 0 && pairs > 1000, "n=%u: one of two communicators has room (%u times with two kernels)", n, pairs);
}

int main(int argc, char **argv)
{
    seed = unit_seed(argc, argv);
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        test_ranks(n);
    }
    return tap_done();
}
