/* SPDX-License-Identifier: MIT */
/*
 * difference.c - reports which results differ from NCCL's (ONEHOP_VERIFY)
 *
 * Does: Reads what the kernel that compares has stored in the control block.
 * Threads: any: the monitor, and the thread that ends the communicator.
 * Owns: nothing.
 */
#include "comm/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "util/log.h"
#include "util/scope.h"

/*
 * Reads the last difference. Returns how many results differ; 0: none, or the kernel is writing. Acquire: pairs with
 * oh_word_publish in verify_report().
 */
static uint32_t read_difference(const struct oh_control *control, struct oh_difference *difference_p)
{
    const struct oh_difference *difference = &control->difference;
    uint32_t calls;
    do {
        calls = __atomic_load_n(&difference->calls, __ATOMIC_ACQUIRE);
        difference_p->call_number = __atomic_load_n(&difference->call_number, __ATOMIC_ACQUIRE);
        difference_p->signature = __atomic_load_n(&difference->signature, __ATOMIC_ACQUIRE);
        difference_p->report_count = __atomic_load_n(&difference->report_count, __ATOMIC_ACQUIRE);
        difference_p->element = __atomic_load_n(&difference->element, __ATOMIC_ACQUIRE);
        difference_p->onehop = __atomic_load_n(&difference->onehop, __ATOMIC_ACQUIRE);
        difference_p->nccl = __atomic_load_n(&difference->nccl, __ATOMIC_ACQUIRE);
    } while (calls != __atomic_load_n(&difference->calls, __ATOMIC_RELAXED));
    return calls;
}

#define VALUE_TEXT 32

static void format_value(uint32_t signature, uint64_t bits, char text_p[VALUE_TEXT])
{
    const ncclDataType_t type = (ncclDataType_t)(signature >> 8 & 0xff);
    const int kernel_type = oh_type_kernel(type);
    if (kernel_type < OH_TYPE_I8) {
        double value;
        memcpy(&value, &bits, sizeof value);
        snprintf(text_p, VALUE_TEXT, "%.17g", value);
    } else if (type == ncclInt8 || type == ncclInt32 || type == ncclInt64) {
        const unsigned unused = 64 - 8 * (unsigned)oh_type_size(type);
        snprintf(text_p, VALUE_TEXT, "%" PRId64, (int64_t)(bits << unused) >> unused);
    } else {
        snprintf(text_p, VALUE_TEXT, "%" PRIu64, bits);
    }
}

static void publish(struct oh_comm *comm)
{
    OH_LOCK(&comm->attach.mutex);
    oh_comm_publish_facts(comm);
}

bool oh_difference_report(struct oh_comm *comm, char *line_p, size_t size)
{
    struct oh_difference difference;
    char what[OH_SIGNATURE_TEXT], ours[VALUE_TEXT], theirs[VALUE_TEXT];
    unsigned reported = atomic_load(&comm->verify.reported);
    if (!oh_comm_has_agreed(comm) || comm->verify.interval == 0) {
        return false;
    }
    const uint32_t calls = read_difference(comm->staging.control, &difference);
    if (calls == 0 || calls == reported || !atomic_compare_exchange_strong(&comm->verify.reported, &reported, calls)) {
        return false; /* or another thread reports it */
    }
    publish(comm);
    oh_signature_format(difference.signature, difference.report_count, what);
    format_value(difference.signature, difference.onehop, ours);
    format_value(difference.signature, difference.nccl, theirs);
    const bool fails = comm->verify.is_fatal && oh_comm_fail(comm, ncclInternalError, OH_MAX_RANKS);
    snprintf(line_p, size,
             "comm %p rank %u of %u: call %u, %s, differs from NCCL's: element %" PRIu64
             " is %s, and %s with NCCL; results that differ so far: %u%s",
             OH_COMM_VALUES(comm), difference.call_number, what, difference.element, ours, theirs, calls,
             fails ? ": calls now return ncclInternalError" : "");
    return true;
}

ncclResult_t oh_difference_log(struct oh_comm *comm)
{
    char line[OH_DIFFERENCE_TEXT];
    if (oh_difference_report(comm, line, sizeof line)) {
        OH_WARN("%s", line);
    }
    /* Or the monitor has reported it. Before the ranks agree, the set-up may be writing is_fatal. */
    const bool fails = atomic_load(&comm->verify.reported) > 0 && comm->verify.is_fatal;
    return fails ? ncclInternalError : ncclSuccess;
}
