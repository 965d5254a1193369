/* SPDX-License-Identifier: MIT */
/* case_values.c - every type with every op, over every family of inputs */
#include "test/conformance/cases.h"

static void add_type(struct cf_batch *batch, enum onehop_collective kind, ncclDataType_t type, enum cf_op op, bool full)
{
    static const size_t counts[] = {1, 37, 256, 4099, 70001};
    bool is_float = cf_types[type].mantissa > 0;
    for (int f = 0; f < CF_FAMILIES; f++) {
        if (!is_float && (f == CF_WIDE || f == CF_SPECIAL)) {
            continue;
        }
        for (int c = full ? 0 : 1; c < (full ? 5 : 3); c++) {
            cf_batch_add(batch, &(struct cf_spec){.kind = kind,
                                                  .type = type,
                                                  .op = op,
                                                  .root = c + f,
                                                  .family = (enum cf_family)f,
                                                  .count = counts[c],
                                                  .in_place = (c + f) % 2 == 1});
        }
    }
}

static void run_op(struct cf_worker *worker, enum cf_op op, enum onehop_collective kind, enum onehop_collective other)
{
    for (int t = 0; t < (int)ncclNumTypes; t++) {
        if (!cf_type_wanted((ncclDataType_t)t)) {
            continue;
        }
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        add_type(batch, kind, (ncclDataType_t)t, op, worker->full);
        add_type(batch, other, (ncclDataType_t)t, op, worker->full);
        if (cf_refused(worker, &worker->world, &batch->item[0].spec)) {
            cf_batch_expect_refusal(batch);
        } else {
            cf_batch_run(batch, CF_SINGLE);
        }
    }
}

#define OP_CASE(name_, op_)                                                                                            \
    void cf_case_##name_(struct cf_worker *worker)                                                                     \
    {                                                                                                                  \
        run_op(worker, op_, ONEHOP_ALLREDUCE, ONEHOP_REDUCESCATTER);                                                   \
    }
OP_CASE(sum, CF_SUM)
OP_CASE(prod, CF_PROD)
OP_CASE(min, CF_MIN)
OP_CASE(max, CF_MAX)
OP_CASE(avg, CF_AVG)
OP_CASE(premul_host, CF_PREMUL_HOST)
OP_CASE(premul_device, CF_PREMUL_DEVICE)

void cf_case_moved(struct cf_worker *worker)
{
    run_op(worker, CF_SUM, ONEHOP_ALLGATHER, ONEHOP_BROADCAST);
}
