/* SPDX-License-Identifier: MIT */
#include "test/conformance/cases.h"

#define CF_ENTRY(name_, run_, when_, what_) {name_, cf_case_##run_, when_, what_},
const struct cf_case cf_cases[] = {CF_CASES(CF_ENTRY)};
#undef CF_ENTRY

const int cf_case_count = sizeof cf_cases / sizeof *cf_cases;
_Static_assert(sizeof cf_cases / sizeof *cf_cases <= CF_MAX_CASES, "the board has room for all");

struct cf_spec cf_some_spec(int i)
{
    static const struct cf_spec specs[] = {
        {.type = ncclFloat32, .op = CF_SUM, .family = CF_WIDE, .count = 1000},
        {.type = ncclBfloat16, .op = CF_SUM, .family = CF_WIDE, .count = 5003, .in_place = true},
        {.kind = ONEHOP_ALLGATHER, .type = ncclBfloat16, .family = CF_SPECIAL, .count = 1001, .recv_shift = 2},
        {.kind = ONEHOP_REDUCESCATTER, .type = ncclFloat32, .family = CF_WIDE, .count = 701, .in_place = true},
        {.kind = ONEHOP_BROADCAST, .type = ncclInt8, .count = 3001, .root = 1, .send_shift = 3},
        {.type = ncclInt32, .op = CF_MAX, .family = CF_EXACT, .count = 77},
        {.type = ncclFloat64, .op = CF_PREMUL_HOST, .family = CF_EXACT, .count = 130},
        {.type = ncclFloat16, .op = CF_SUM, .family = CF_EXACT, .count = 1},
        {.type = ncclBfloat16, .op = CF_SUM, .family = CF_EXACT, .count = 17, .in_place = true},
        {.kind = ONEHOP_BROADCAST,
         .type = ncclFloat64,
         .family = CF_SENTINEL,
         .count = 99,
         .root = 2,
         .in_place = true},
        {.kind = ONEHOP_REDUCESCATTER, .type = ncclFloat16, .op = CF_PREMUL_DEVICE, .count = 123},
        {.kind = ONEHOP_ALLGATHER, .type = ncclInt64, .count = 45, .in_place = true},
        {.type = ncclInt32, .op = CF_PREMUL_DEVICE, .family = CF_EXACT, .count = 500},
        {.type = ncclFloat16, .op = CF_SUM, .family = CF_EXACT, .count = 20001, .recv_shift = 6},
        {.type = ncclFloat64, .op = CF_MIN, .family = CF_EXACT, .count = 64, .in_place = true},
        {.type = ncclFloat32, .op = CF_SUM, .family = CF_EXACT, .count = 3001},
        {.type = ncclFloat32, .op = CF_AVG, .family = CF_EXACT, .count = 2900, .in_place = true},
    };
    enum {
        SPECS = sizeof specs / sizeof *specs
    };
    struct cf_spec spec = specs[i % SPECS];
    spec.count += (size_t)(i / SPECS) * 131;
    return spec;
}

struct cf_batch *cf_some_calls(struct cf_worker *worker, const struct cf_set *set, int items)
{
    return cf_some_calls_from(worker, set, 0, items);
}

struct cf_batch *cf_some_calls_from(struct cf_worker *worker, const struct cf_set *set, int first, int items)
{
    struct cf_batch *batch = cf_batch_new(worker, set);
    for (int i = first; i < first + items; i++) {
        struct cf_spec spec = cf_some_spec(i);
        cf_batch_add(batch, &spec);
    }
    return batch;
}
