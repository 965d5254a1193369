/* SPDX-License-Identifier: MIT */
/* case_bits.c - equal inputs give equal bits: onehop's promise, which stock NCCL does not make */
#include <stdlib.h>
#include <string.h>

#include "test/conformance/cases.h"

#define KIB ((size_t)1024)

static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};

static struct cf_spec wide(ncclDataType_t type, size_t count)
{
    return (struct cf_spec){.type = type, .family = CF_WIDE, .count = count, .key = cf_mix(count * 16 + type)};
}

/* The result of call b, and that of call a from member m's part on, if it is `sliced`. */
static void compare_items(struct cf_batch *batch, int a, int b, bool sliced)
{
    struct cf_worker *worker = batch->worker;
    const struct cf_spec *spec = &batch->item[b].spec;
    const size_t bytes = spec->count * cf_types[spec->type].size;
    for (int m = 0; m < worker->members; m++) {
        const unsigned char *whole = cf_batch_result(batch, a, m);
        const size_t from = sliced ? (size_t)batch->set->rank[m] * bytes : 0;
        cf_check(worker, memcmp(whole + from, cf_batch_result(batch, b, m), bytes) == 0,
                 "%s %s count %zu: the bits of call %d and of call %d differ", cf_kind_names[spec->kind],
                 cf_types[spec->type].name, spec->count, a, b);
    }
}

/* An allreduce and, of the same inputs, reduce-scatters out of place and in place; from `first` on. */
static void add_slices(struct cf_batch *batch, ncclDataType_t type, enum cf_op op, size_t count)
{
    struct cf_spec spec = wide(type, count);
    spec.op = op;
    spec.kind = ONEHOP_REDUCESCATTER;
    struct cf_spec whole = spec, in_place = spec;
    whole.kind = ONEHOP_ALLREDUCE;
    whole.count = cf_whole_count(&spec, batch->worker->nranks);
    in_place.in_place = true;
    cf_batch_add(batch, &whole);
    cf_batch_add(batch, &spec);
    cf_batch_add(batch, &in_place);
}

void cf_case_bits_slice(struct cf_worker *worker)
{
    static const enum cf_op ops[] = {CF_SUM, CF_AVG, CF_PREMUL_HOST, CF_PROD};
    static const size_t counts[] = {1, 7, 1031, 23003};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        for (size_t i = 0; i < 8; i++) {
            add_slices(batch, types[t], ops[i % 4], counts[(i + i / 4) % 4]);
        }
        cf_batch_try(batch, CF_SINGLE, 0);
        for (int i = 0; i < batch->items && batch->served; i++) {
            compare_items(batch, i / 3 * 3, i, i % 3 > 0);
        }
        cf_check(worker, batch->served || !worker->expect_served, "not all was served");
        cf_batch_free(batch);
    }
}

/* Each call four times: as it is, again, elsewhere in memory, in place. */
void cf_case_bits_repeat(struct cf_worker *worker)
{
    static const size_t counts[] = {1, 5, 257, 4099, 70001};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (int way = 0; way < 8; way++) {
                struct cf_spec spec = wide(types[t], counts[c]);
                spec.kind = way / 4 ? ONEHOP_REDUCESCATTER : ONEHOP_ALLREDUCE;
                spec.send_shift = way % 4 == 2 ? (unsigned)cf_types[types[t]].size : 0;
                spec.recv_shift = way % 4 == 2 ? 12 : 0;
                spec.in_place = way % 4 == 3;
                cf_batch_add(batch, &spec);
            }
        }
        cf_batch_try(batch, CF_SINGLE, 0);
        for (int i = 0; i < batch->items && batch->served; i++) {
            compare_items(batch, i / 4 * 4, i, false);
        }
        cf_check(worker, batch->served || !worker->expect_served, "not all was served");
        cf_batch_free(batch);
    }
}

/* The first elements of messages of many sizes, with the same inputs. With two ranks one-shot ends at 1 MiB. */
static void compare_sizes(struct cf_worker *worker, ncclDataType_t type, size_t most)
{
    const size_t size = cf_types[type].size, prefix = 1000;
    unsigned char *first[CF_MAX_RANKS] = {NULL};
    for (size_t bytes = prefix * size; bytes <= most; bytes *= 4) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        struct cf_spec spec = wide(type, bytes / size);
        spec.key = cf_mix(type + 5);
        cf_batch_add(batch, &spec);
        cf_batch_try(batch, CF_SINGLE, 0);
        for (int m = 0; m < worker->members && batch->served; m++) {
            const unsigned char *result = cf_batch_result(batch, 0, m);
            if (first[m] == NULL && (first[m] = malloc(prefix * size)) != NULL) {
                memcpy(first[m], result, prefix * size);
            }
            cf_check(worker, first[m] != NULL && memcmp(first[m], result, prefix * size) == 0,
                     "%s: other bits in a message of %zu bytes", cf_types[type].name, bytes);
        }
        cf_batch_free(batch);
    }
    for (int m = 0; m < CF_MAX_RANKS; m++) {
        free(first[m]);
    }
}

void cf_case_bits_sizes(struct cf_worker *worker)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        compare_sizes(worker, types[t], (worker->full ? 16 : 4) * KIB * KIB);
    }
}

/* --- rows ----------------------------------------------------------------------------------------------------------
 */

/*
 * A batch of rows, as a model's layer has it. A row has CF_PERIOD elements, after which inputs repeat: so all rows of
 * all batches have the same inputs, at all alignments, and must have the same bits.
 */
static void add_rows(struct cf_batch *batch, ncclDataType_t type, enum cf_op op, size_t rows)
{
    struct cf_spec spec = wide(type, rows * CF_PERIOD);
    spec.key = cf_mix(type + 7);
    spec.op = op;
    cf_batch_add(batch, &spec);
}

/* The first row of a member. */
struct row {
    unsigned char *bits; /* NULL: there was none yet */
};

static void compare_rows(struct cf_batch *batch, int item, struct row *first)
{
    const struct cf_spec *spec = &batch->item[item].spec;
    const size_t bytes = CF_PERIOD * cf_types[spec->type].size;
    for (int m = 0; m < batch->worker->members; m++) {
        const unsigned char *got = cf_batch_result(batch, item, m);
        if (first[m].bits == NULL) {
            first[m].bits = cf_need(batch->worker, malloc(bytes));
            memcpy(first[m].bits, got, bytes);
        }
        for (size_t r = 0; r < spec->count / CF_PERIOD; r++) {
            cf_check(batch->worker, memcmp(first[m].bits, got + r * bytes, bytes) == 0,
                     "%s %s: row %zu of %zu has other bits than a row alone", cf_types[spec->type].name,
                     cf_op_names[spec->op], r, spec->count / CF_PERIOD);
        }
    }
}

static void try_rows(struct cf_batch *batch, enum cf_style style, struct row *first)
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
        struct row first[CF_MAX_RANKS] = {{0}};
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
            free(first[m].bits);
        }
    }
}
