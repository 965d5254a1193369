/* SPDX-License-Identifier: MIT */
/*
 * draw.c - random calls, some of whose properties are the same on all ranks
 *
 * Two sources of random numbers: what is common is drawn from the seed, what is a rank's own from seed and rank. (In
 * mode "group" all ranks have the same layout.)
 */
#include "test/common/batch.h"

uint64_t cf_draw(struct cf_source *source, uint64_t below)
{
    source->state = cf_mix(source->state);
    return source->state % below;
}

struct cf_source cf_common_source(const struct cf_worker *worker, uint64_t about)
{
    return (struct cf_source){cf_mix(worker->board->seed + 77 * about)};
}

struct cf_source cf_own_source(const struct cf_worker *worker, uint64_t about)
{
    return (struct cf_source){cf_mix(worker->board->seed + 77 * about + 1000 + (uint64_t)worker->index)};
}

static size_t random_count(struct cf_source *common, bool full)
{
    switch (cf_draw(common, 8)) {
    case 0:
        return cf_draw(common, 10);
    case 1:
        return cf_draw(common, full ? 1 << 20 : 1 << 16);
    default:
        return cf_draw(common, 4000);
    }
}

/* What is refused on some communicators of the set only is drawn on all ranks, so that their sources stay in step. */
struct cf_spec cf_random_spec(struct cf_worker *worker, const struct cf_set *set, struct cf_source *common,
                              struct cf_source *own, bool plain)
{
    static const ncclDataType_t plain_types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
    struct cf_spec spec = {.family = CF_EXACT};
    spec.kind =
        cf_draw(common, 2) ? ONEHOP_ALLREDUCE : (enum onehop_collective)cf_draw(common, ONEHOP_COLLECTIVE_COUNT);
    spec.root = (int)cf_draw(common, CF_MAX_RANKS);
    do {
        spec.type = plain ? plain_types[cf_draw(common, 3)] : (ncclDataType_t)cf_draw(common, ncclNumTypes);
    } while (cf_refused(worker, set, &spec));
    const bool moves = spec.kind == ONEHOP_ALLGATHER || spec.kind == ONEHOP_BROADCAST;
    spec.op = plain || moves || cf_draw(common, 2) ? CF_SUM : (enum cf_op)cf_draw(common, CF_OPS);
    spec.op = cf_refused(worker, set, &spec) ? CF_SUM : spec.op;
    if (cf_types[spec.type].mantissa > 0 && cf_draw(common, 2)) {
        spec.family = CF_WIDE;
    }
    spec.count = random_count(common, worker->full);
    if (cf_whole_count(&spec, 2) > spec.count) { /* as much in all */
        spec.count = (spec.count + 3) / 4;
    }
    unsigned size = (unsigned)cf_types[spec.type].size;
    spec.in_place = cf_draw(own, 2);
    spec.send_shift = (unsigned)cf_draw(own, 16 / size) * size;
    spec.recv_shift = (unsigned)cf_draw(own, 16 / size) * size;
    return spec;
}
