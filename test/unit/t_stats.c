/* SPDX-License-Identifier: MIT */
/*
 * t_stats.c - why calls fall back; records of statistics: written and read back, and other lines rejected
 */
#include "comm/call/internal.h"

#include <stdio.h>
#include <string.h>

#include "test/unit/default_table.h"
#include "test/tap.h"
#include "tools/shared/stats_summary.h"
#include "util/log.h"

static void expect_reason(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op, enum oh_fallback wanted,
                          const char *what)
{
    int got = -1;
    memset(&comm->live.counters, 0, sizeof comm->live.counters);
    struct oh_call call = {.comm = comm, .count = 1000, .type = type, .redop = op};
    oh_call_route(&call);
    oh_call_note_executed(&call);
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        got = atomic_load(&comm->live.counters.fallbacks[b]) == 1 ? b : got;
    }
    tap_ok(got == (int)wanted, "%s: %s", what, got < 0 ? "not counted" : oh_fallback_text(got));
}

static void test_reasons(void)
{
    static struct oh_comm comm;
    default_table(2, 1024, -1, &comm.serve.table);
    expect_reason(&comm, ncclFloat32, ncclSum, OH_FALLBACK_COMM, "a communicator that is not served");
    atomic_store(&comm.state, OH_COMM_SERVED);
    expect_reason(&comm, ncclFloat32, ncclSum, OH_FALLBACK_SIZE,
                  "a call that is declined though a small one would not be");
    expect_reason(&comm, ncclFloat32, (ncclRedOp_t)77, OH_FALLBACK_OP, "an op that nobody made");
    expect_reason(&comm, (ncclDataType_t)77, ncclSum, OH_FALLBACK_TYPE, "a type that there is not");
    expect_reason(&comm, (ncclDataType_t)10, ncclSum, OH_FALLBACK_TYPE, "fp8 where it is off");
    expect_reason(&comm, ncclFloat64, (ncclRedOp_t)77, OH_FALLBACK_OP, "eight bytes an element");
    comm.serve.table.rows[ONEHOP_ALLREDUCE].count = 0;
    expect_reason(&comm, ncclFloat32, ncclSum, OH_FALLBACK_KIND, "a collective without rows");
    tap_ok(atomic_load(&comm.live.counters.fallback_bytes) == 4000, "bytes that fall back");
}

/* Lines as the plugin writes them, cut lines, and others. */
static void test_summary(const char *longest, const struct oh_stats_record *longest_record)
{
    struct oh_stats_summary summary;
    struct oh_stats_record record = {
        .pid = 7, .state = OH_STATE_SERVED, .calls = {3, 4}, .bytes = 99, .fallbacks = {[3] = 5}};
    char line[OH_STATS_LINE];
    oh_stats_summary_open(&summary);
    FILE *file = fopen(summary.path, "w");
    size_t length = oh_stats_json(&record, line);
    if (!file) {
        tap_ok(false, "%s can be written", summary.path);
        return;
    }
    for (size_t i = 1; i < length; i++) {
        fprintf(file, "%.*s\n", (int)i, line);
    }
    fprintf(file, "%s\n%s\n\nonehop-stats 1 pid=1\n[]\n", line, longest);
    fclose(file);
    oh_stats_summary_read(&summary);
    tap_ok(summary.records == 2 && summary.processes == 2,
           "of %zu cut lines and others, two records are read: %llu of %llu processes", length,
           (unsigned long long)summary.records, (unsigned long long)summary.processes);
    tap_ok(summary.total.fallbacks[3] == longest_record->fallbacks[3] + 5 &&
               summary.total.bytes == longest_record->bytes + 99,
           "with their numbers");
    oh_stats_summary_free(&summary);
}

static void expect_invariant(struct oh_stats_record record, const char *expected, const char *what)
{
    char line[OH_STATS_LINE], wanted[40];
    const bool is_asked = record.invariant != 0;
    snprintf(wanted, sizeof wanted, "\"invariant\":\"%s\"", expected);
    oh_stats_json(&record, line);
    const bool in_json = strstr(line, wanted) != NULL;
    snprintf(wanted, sizeof wanted, " invariant=%s", expected);
    oh_stats_text(&record, line);
    tap_ok(in_json && (strstr(line, wanted) != NULL) == is_asked, "invariant: %s: %s", what, expected);
}

static void test_invariant(void)
{
    expect_invariant((struct oh_stats_record){.nranks = 2, .nccl_allreduces = 1}, "off", "not asked for");
    expect_invariant((struct oh_stats_record){.nranks = 2, .invariant = 1, .calls = {3}}, "yes", "all served");
    expect_invariant((struct oh_stats_record){.nranks = 2, .invariant = 1, .fallbacks = {0, 0, 0, 2}}, "yes",
                     "empty calls are NCCL's");
    expect_invariant((struct oh_stats_record){.nranks = 2, .invariant = 1, .fallbacks = {1}, .nccl_allreduces = 1},
                     "no", "one call is NCCL's");
    expect_invariant((struct oh_stats_record){.nranks = 1, .invariant = 1, .fallbacks = {1}, .nccl_allreduces = 1},
                     "yes", "a single rank");
    expect_invariant((struct oh_stats_record){.invariant = 1, .fallbacks = {1}}, "no", "unknown communicators");
}

int main(void)
{
    struct oh_stats_record record;
    char line[OH_STATS_LINE];
    memset(&record, 0x0f, sizeof record); /* every number as long as it gets */
    memset(record.reason, '"', sizeof record.reason - 1);
    record.reason[sizeof record.reason - 1] = '\0';
    size_t length = oh_stats_text(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE - 20 && strchr(line, '\n') == NULL, "as text: %zu", length);
    length = oh_stats_json(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE - 20 && strcmp(line + length - 4, "\\\"\"}") == 0,
           "as JSON: %zu", length);
    test_summary(line, &record);
    char dirty[] = "a\033[2Jb\xff\n";
    oh_text_clean(dirty, sizeof dirty);
    tap_ok(strcmp(dirty, "a?[2Jb??") == 0, "text from elsewhere is made printable: %s", dirty);
    tap_ok(oh_fallback_text(-1) == NULL && oh_fallback_text(OH_FALLBACK_COUNT) == NULL && oh_fallback_text(0) != NULL,
           "words for reasons");
    test_reasons();
    test_invariant();
    return tap_done();
}
