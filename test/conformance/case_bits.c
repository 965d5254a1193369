/* SPDX-License-Identifier: MIT */
/*
 * case_bits.c - each row of a batch of rows has the same bits in a batch of any size: onehop's promise, which stock
 * NCCL does not make
 *
 * That equal inputs give equal bits, in messages of all sizes and places, in graphs, and in a reduce-scatter as in an
 * allreduce, needs no case: where onehop serves, cf_judge accepts only the bits of the documented order.
 */
#include <stdlib.h>
#include <string.h>

#include "test/conformance/cases.h"

static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};

/*
 * A batch of rows, as a model's layer has it. A row has CF_PERIOD elements, after which inputs repeat: so all rows of
 * all batches have the same inputs, at all alignments, and must have the same bits.
 */
static void add_rows(struct cf_batch *batch, ncclDataType_t type, enum cf_op op, size_t rows)
{
    cf_batch_add(batch,
                 &(struct cf_spec){
                     .type = type, .op = op, .family = CF_WIDE, .count = rows * CF_PERIOD, .key = cf_mix(type + 7)});
}

/* first: by member, the first row that there was; NULL: none yet. */
static void compare_rows(struct cf_batch *batch, int item, unsigned char **first)
{
    const struct cf_spec *spec = &batch->item[item].spec;
    const size_t bytes = CF_PERIOD * cf_types[spec->type].size;
    for (int m = 0; m < batch->worker->members; m++) {
        const unsigned char *got = cf_batch_result(batch, item, m);
        if (first[m] == NULL) {
            first[m] = cf_need(batch->worker, malloc(bytes));
            memcpy(first[m], got, bytes);
        }
        for (size_t r = 0; r < spec->count / CF_PERIOD; r++) {
            cf_check(batch->worker, memcmp(first[m], got + r * bytes, bytes) == 0,
                     "%s %s: row %zu of %zu has other bits than a row alone", cf_types[spec->type].name,
                     cf_op_names[spec->op], r, spec->count / CF_PERIOD);
        }
    }
}

static void try_rows(struct cf_batch *batch, enum cf_style style, unsigned char **first)
{
    struct cf_worker *worker = batch->worker;
    const char *invariant = getenv("ONEHOP_INVARIANT");
    cf_batch_try(batch, style, 0);
    for (int i = 0; i < batch->items && batch->served; i++) {
        compare_rows(batch, i, first);
    }
    cf_check(worker, batch->served || !invariant || strcmp(invariant, "1") != 0,
             "invariant, and not all was served: up to %zu elements", batch->item[batch->items - 1].spec.count);
    cf_batch_free(batch);
}

void cf_case_bits_rows(struct cf_worker *worker)
{
    static const size_t batches[] = {1, 2, 3, 5, 8, 17, 64, 100, 256, 1024, 4096}; /* of rows */
    static const enum cf_op ops[] = {CF_SUM, CF_AVG, CF_PROD};
    const size_t most = worker->full ? 4096 : 256;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const enum cf_op op = ops[t];
        unsigned char *first[CF_MAX_RANKS] = {NULL};
        struct cf_batch *group = cf_batch_new(worker, &worker->world);
        for (size_t b = 0; b < sizeof batches / sizeof *batches && batches[b] <= most; b++) {
            struct cf_batch *alone = cf_batch_new(worker, &worker->world);
            add_rows(alone, types[t], op, batches[b]);
            try_rows(alone, CF_SINGLE, first);
            if (batches[b] <= 64) { /* small calls share a launch, as far as the table allows */
                add_rows(group, types[t], op, batches[b]);
            }
        }
        try_rows(group, CF_GROUPED, first);
        for (int m = 0; m < CF_MAX_RANKS; m++) {
            free(first[m]);
        }
    }
}
