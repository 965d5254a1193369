/* SPDX-License-Identifier: MIT */
/* sim_data.c - inputs of sim_app, made from a seed so that each rank knows those of all, and the reference. */
#include "sim_app.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/simnode/nccl_floats.h"
#include "test/simnode/nccl_reduce.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* Uneven magnitudes, both signs: sums in another order give other bits. */
static double number(uint64_t bits)
{
    static const double scale[8] = {0x1p-4, 0x1p-3, 0x1p-2, 0x1p-1, 0x1p0, 0x1p1, 0x1p2, 0x1p3};
    return ((double)(bits >> 40) * 0x1p-23 - 1.0) * scale[bits & 7];
}

static void store(ncclDataType_t type, uint64_t bits, size_t i, void *data)
{
    switch (type) {
    case ncclFloat16:
        ((uint16_t *)data)[i] = simnccl_f16_store((float)number(bits));
        break;
    case ncclBfloat16:
        ((uint16_t *)data)[i] = simnccl_bf16_store((float)number(bits));
        break;
    case ncclFloat32:
        ((float *)data)[i] = (float)number(bits);
        break;
    case ncclFloat64:
        ((double *)data)[i] = number(bits);
        break;
    case ncclFloat8e4m3:
        ((uint8_t *)data)[i] = simnccl_e4m3_store((float)number(bits));
        break;
    case ncclFloat8e5m2:
        ((uint8_t *)data)[i] = simnccl_e5m2_store((float)number(bits));
        break;
    default:
        memcpy((char *)data + i * simnccl_type_size(type), &bits, simnccl_type_size(type));
    }
}

/* Elements after which inputs, and so results, repeat: no multiple of what a part, a chunk or a slot holds. */
#define PERIOD 10007

/* Repeats the first `period` bytes until there are `bytes`. */
static void repeat(char *data, size_t period, size_t bytes)
{
    for (size_t done = period; done < bytes; done *= 2) {
        memcpy(data + done, data, done < bytes - done ? done : bytes - done);
    }
}

static size_t first_period(size_t count)
{
    return count < PERIOD ? count : PERIOD;
}

void app_data_fill(const struct app_options *options, int world_rank, uint64_t serial, ncclDataType_t type,
                   size_t count, void *data)
{
    uint64_t key = mix(mix(options->seed + 1) ^ mix(serial * APP_MAX_RANKS + (uint64_t)world_rank + 1));
    size_t period = first_period(count), size = simnccl_type_size(type);
    for (size_t i = 0; i < period; i++) {
        store(type, mix(key + i), i, data);
    }
    if (count > period) {
        repeat(data, period * size, count * size);
    }
}

/* The element as float64; only asked for the types that a sum is checked in. */
static double load(ncclDataType_t type, const void *data, size_t i)
{
    switch (type) {
    case ncclFloat16:
        return simnccl_f16_load(((const uint16_t *)data)[i]);
    case ncclBfloat16:
        return simnccl_bf16_load(((const uint16_t *)data)[i]);
    case ncclFloat32:
        return ((const float *)data)[i];
    default:
        return ((const double *)data)[i];
    }
}

/* Half an ulp of the type, as a part of the value. */
static double rounding(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
        return 0x1p-11;
    case ncclBfloat16:
        return 0x1p-8;
    case ncclFloat32:
        return 0x1p-24;
    default:
        return -1.0; /* not checked this way */
    }
}

/* Independent of the reference's own arithmetic. */
static void verify_float64(const struct app_comm *comm, const struct app_item *item, void *const *input,
                           const void *result)
{
    double half_ulp = rounding(item->type);
    for (size_t i = 0; i < first_period(item->count) && half_ulp > 0; i++) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < comm->nranks; r++) {
            double value = load(item->type, input[r], i);
            sum += value;
            magnitude += fabs(value);
        }
        double error = fabs(load(item->type, result, i) - sum);
        double limit = half_ulp * fabs(sum) + comm->nranks * 0x1p-23 * magnitude + 0x1p-25;
        APP_CHECK(error <= limit, "rank %d call %llu element %zu: off by %g from float64 sum %g, allowed %g",
                  comm->world[comm->rank], (unsigned long long)item->serial, i, error, sum, limit);
    }
}

ncclRedOp_t app_data_op(const struct app_options *options)
{
    static const char *const names[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
    for (int i = 0; i < (int)ncclNumOps; i++) {
        if (strcmp(options->op, names[i]) == 0) {
            return (ncclRedOp_t)i;
        }
    }
    return ncclSum;
}

/* The first period of the result. */
static void reference(const struct app_options *options, const struct app_item *item, int nranks, void *const *input,
                      void *out)
{
    const float scale = APP_PREMUL_SCALE; /* --op premul goes with f32 */
    const void *scalar = strcmp(options->op, "premul") == 0 ? &scale : NULL;
    simnccl_reduce(item->type, app_data_op(options), scalar, (const void *const *)input, nranks,
                   first_period(item->count), out);
}

static void compare(const struct app_comm *comm, const struct app_item *item, const unsigned char *is,
                    const unsigned char *want)
{
    size_t size = simnccl_type_size(item->type), i = 0;
    if (memcmp(is, want, item->count * size) == 0) {
        return;
    }
    while (memcmp(is + i * size, want + i * size, size) == 0) {
        i++;
    }
    uint64_t is_bits = 0, want_bits = 0;
    memcpy(&is_bits, is + i * size, size);
    memcpy(&want_bits, want + i * size, size);
    app_fail(__FILE__, __LINE__,
             "rank %d call %llu count %zu type %d in-place %d offsets %zu:%zu element %zu: %#llx, expected %#llx",
             comm->world[comm->rank], (unsigned long long)item->serial, item->count, (int)item->type, item->in_place,
             item->offset[0], item->offset[1], i, (unsigned long long)is_bits, (unsigned long long)want_bits);
}

void app_data_verify(const struct app_options *options, const struct app_comm *comm, const struct app_item *item,
                     const void *result)
{
    size_t size = simnccl_type_size(item->type), bytes = item->count * size, period = first_period(item->count);
    void *input[APP_MAX_RANKS];
    for (int r = 0; r < comm->nranks; r++) {
        input[r] = malloc(period * size + 1);
        APP_CHECK(input[r] != NULL, "no memory");
        app_data_fill(options, comm->world[r], item->serial, item->type, period, input[r]);
    }
    char *expected = malloc(bytes + 1);
    APP_CHECK(expected != NULL, "no memory");
    reference(options, item, comm->nranks, input, expected);
    if (item->count > period) {
        repeat(expected, period * size, bytes);
    }
    compare(comm, item, result, (const unsigned char *)expected);
    if (strcmp(options->op, "sum") == 0) {
        verify_float64(comm, item, input, result); /* the rest of the result has the same bits */
    }
    for (int r = 0; r < comm->nranks; r++) {
        free(input[r]);
    }
    free(expected);
}

uint64_t app_data_hash(uint64_t hash, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        uint64_t word = 0;
        size_t part = bytes < sizeof word ? bytes : sizeof word;
        memcpy(&word, at, part);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
        at += part;
        bytes -= part;
    }
    return hash;
}
