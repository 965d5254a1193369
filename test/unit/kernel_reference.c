/* SPDX-License-Identifier: MIT */
/*
 * kernel_reference.c - inputs of calls, and what must come out, by test/common/number.c
 */
#include <stdlib.h>
#include <string.h>

#include "test/unit/kernel_node.h"
#include "test/unit/unit.h"

/* The reduction of element i of all inputs. */
static bool is_reduced(const struct call *call, uint64_t i, const char *result)
{
    const struct cf_data *data = &call->data;
    struct cf_element element;
    char why[256];
    for (unsigned r = 0; r < node.ranks; r++) {
        element.bits[r] = cf_load(data->type, call->input[r] + i * data->type->size);
        element.scalar[r] = cf_scalar(data, (int)r);
    }
    return cf_judge_element(data, &element, cf_load(data->type, result), true, why, sizeof why);
}

/* Elements of a span of the result, from `result` on, are those of one rank's input. */
static bool are_moved(const struct call *call, unsigned source, struct span span, const char *result)
{
    const size_t size = cf_types[call->type].size;
    return memcmp(result, call->input[source] + span.first * size, span.count * size) == 0;
}

/* One call of a list, on a rank. */
static bool is_right(const struct call *call, unsigned rank, unsigned item)
{
    const size_t size = cf_types[call->type].size;
    const struct span span = span_of(call, item);
    const char *result = recvbuff(call, rank) + span.first * size * (call->algorithm == ALLGATHER ? node.ranks : 1);
    const uint64_t first = call->algorithm == REDUCESCATTER ? node.ranks * span.first + rank * span.count : span.first;
    bool right = true;
    if (call->algorithm == BROADCAST) {
        return are_moved(call, root_of(call, item), span, result);
    }
    for (unsigned r = 0; r < node.ranks && call->algorithm == ALLGATHER; r++) {
        right &= are_moved(call, r, span, result + r * span.count * size);
    }
    for (uint64_t i = 0; i < span.count && call->algorithm != ALLGATHER; i++) {
        right &= is_reduced(call, first + i, result + i * size);
    }
    return right;
}

void prepare_call(struct call *call, unsigned *seed)
{
    /* CF_SENTINEL: integers that come out as the marker, or as the escape, when they are sent. */
    const bool hard = !is_float(call->type) && rand_r(seed) % 2 == 0;
    call->data = (struct cf_data){.type = &cf_types[call->type],
                                  .op = (enum cf_op)call->op, /* in the same order */
                                  .family = call->family ? call->family
                                            : hard       ? CF_SENTINEL
                                                         : CF_WIDE,
                                  .key = (uint64_t)rand_r(seed) << 32 ^ (uint64_t)rand_r(seed),
                                  .nranks = (int)node.ranks};
    const size_t size = cf_types[call->type].size, bytes = send_bytes(call);
    const size_t room = call->count * size * node.ranks + 2 * GUARD + 16 * size;
    for (unsigned r = 0; r < node.ranks; r++) {
        call->send[r] = unit_need(malloc(room));
        call->recv[r] = unit_need(malloc(room));
        call->input[r] = unit_need(malloc(bytes));
        memset(call->send[r], 0xA5, room);
        memset(call->recv[r], 0xA5, room);
        for (uint64_t i = 0; i < bytes / size; i++) {
            cf_store(call->data.type, sendbuff(call, r) + i * size, cf_input(&call->data, (int)r, i));
        }
        memcpy(call->input[r], sendbuff(call, r), bytes);
    }
}

void release_call(struct call *call)
{
    for (unsigned r = 0; r < node.ranks; r++) {
        free(call->send[r]);
        free(call->recv[r]);
        free(call->input[r]);
    }
}

static bool guards_hold(const char *start, size_t bytes)
{
    for (size_t i = 1; i <= GUARD; i++) {
        if ((unsigned char)start[-(ptrdiff_t)i] != 0xA5 || (unsigned char)start[bytes + i - 1] != 0xA5) {
            return false;
        }
    }
    return true;
}

/* A reduce-scatter in place leaves the other parts as they are. */
static bool others_hold(const struct call *call, unsigned rank)
{
    const size_t part = recv_bytes(call), own = rank * part;
    return call->algorithm != REDUCESCATTER || !call->in_place ||
           (memcmp(sendbuff(call, rank), call->input[rank], own) == 0 &&
            memcmp(sendbuff(call, rank) + own + part, call->input[rank] + own + part, send_bytes(call) - own - part) ==
                0);
}

/* NULL: right on all ranks; else what is wrong. */
static const char *check_call(const struct call *call)
{
    const bool is_part = call->algorithm == REDUCESCATTER && call->in_place;
    for (unsigned r = 0; r < node.ranks; r++) {
        for (unsigned item = 0; item < span_count(call); item++) {
            if (!is_right(call, r, item)) {
                return "a wrong value";
            }
        }
        if (!others_hold(call, r) || !(is_part ? guards_hold(sendbuff(call, r), send_bytes(call))
                                               : guards_hold(recvbuff(call, r), recv_bytes(call)))) {
            return "a write outside the message";
        }
    }
    return NULL;
}

bool run_and_check(unsigned ranks, uint32_t epoch, struct call *calls, int count, unsigned *seed)
{
    bool right = true;
    start_node(ranks, epoch);
    for (int i = 0; i < count; i++) {
        prepare_call(&calls[i], seed);
    }
    run_calls(calls, count);
    for (int i = 0; i < count; i++) {
        const char *wrong = check_call(&calls[i]);
        if (wrong && right) {
            right = false;
            tap_note("call %d: %s %s %s any %d items %u count %llu blocks %u in_place %d: %s", i,
                     algorithm_names[calls[i].algorithm], cf_op_names[calls[i].op], cf_types[calls[i].type].name,
                     calls[i].any, calls[i].items, (unsigned long long)calls[i].count, calls[i].blocks,
                     calls[i].in_place, wrong);
        }
        release_call(&calls[i]);
    }
    for (unsigned r = 0; r < ranks; r++) {
        if (right && !is_emptied(r)) {
            right = false;
            tap_note("rank %u: words that are not empty behind the last kernel", r);
        }
    }
    stop_node();
    return right;
}
