/* SPDX-License-Identifier: MIT */
/*
 * t_stats.c - why calls fall back; records of statistics: written and read back, and whatever else stands in the
 * file is refused
 */
#include "comm/comm_internal.h"

#include <string.h>

#include "test/unit/default_table.h"
#include "test/tap.h"

static void expect_reason(struct oh_comm *comm, ncclDataType_t type, ncclRedOp_t op, enum oh_fallback wanted,
                          const char *what)
{
    int got = -1;
    memset(&comm->live.counters, 0, sizeof comm->live.counters);
    oh_comm_count_fallback(comm, 100, type, op);
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
    tap_ok(atomic_load(&comm.live.counters.fallback_bytes) == 800, "bytes that fall back");
}

int main(void)
{
    struct oh_stats_record record;
    struct oh_stats_record got = {0};
    char line[OH_STATS_LINE], part[OH_STATS_LINE];
    memset(&record, 0xff, sizeof record); /* every number as long as it gets */
    memset(record.reason, '"', sizeof record.reason - 1);
    record.reason[sizeof record.reason - 1] = '\0';
    size_t length = oh_stats_format(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE && line[length - 1] == '\n', "the longest record fits: %zu",
           length);
    tap_ok(oh_stats_parse(line, &got) && memcmp(&got, &record, sizeof got) == 0, "and comes back the same");
    length = oh_stats_text(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE - 20 && strchr(line, '\n') == NULL, "as text: %zu", length);
    length = oh_stats_json(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE - 20 && strcmp(line + length - 4, "\\\"\"}") == 0,
           "as JSON: %zu", length);
    memset(record.reason, 0, sizeof record.reason);
    length = oh_stats_format(&record, line);
    tap_ok(oh_stats_parse(line, &got) && memcmp(&got, &record, sizeof got) == 0, "a record without a reason");

    /* A record that was cut short: refused, as long as a number may be missing. */
    size_t head = (size_t)(strstr(line, "reason=") - line);
    int accepted = 0;
    for (size_t i = 0; i < head; i++) {
        memcpy(part, line, i);
        part[i] = '\0';
        accepted += oh_stats_parse(part, &got);
    }
    tap_ok(accepted == 0, "none of %zu cut records is taken, %d were", head, accepted);
    tap_ok(!oh_stats_parse("", &got) && !oh_stats_parse("onehop-stats 1 pid=1\n", &got), "other lines are refused");
    char dirty[] = "a\033[2Jb\xff\n";
    oh_stats_clean(dirty, sizeof dirty);
    tap_ok(strcmp(dirty, "a?[2Jb??") == 0, "text from elsewhere is made printable: %s", dirty);
    tap_ok(oh_fallback_text(-1) == NULL && oh_fallback_text(OH_FALLBACK_COUNT) == NULL && oh_fallback_text(0) != NULL,
           "words for reasons");
    test_reasons();
    return tap_done();
}
