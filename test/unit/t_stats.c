/* SPDX-License-Identifier: MIT */
/*
 * t_stats.c - records of statistics: written and read back, and whatever else stands in the file is refused
 */
#include "comm/stats.h"

#include <string.h>

#include "test/tap.h"

int main(void)
{
    struct oh_stats_record record = {.pid = 4711,
                                     .rank = 3,
                                     .nranks = 8,
                                     .served = UINT64_MAX,
                                     .bytes = UINT64_MAX,
                                     .back = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 4}};
    struct oh_stats_record got = {0};
    char line[OH_STATS_LINE], part[OH_STATS_LINE];
    memset(record.reason, 'x', sizeof record.reason - 1);
    size_t length = oh_stats_format(&record, line);
    tap_ok(length == strlen(line) && length < OH_STATS_LINE && line[length - 1] == '\n', "the longest record fits: %zu",
           length);
    tap_ok(oh_stats_parse(line, &got) && memcmp(&got, &record, sizeof got) == 0, "and comes back the same");
    record.reason[0] = '\0';
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
    tap_ok(!oh_stats_parse("", &got) && !oh_stats_parse("onehop-stats 2 pid=1\n", &got), "other lines are refused");
    tap_ok(oh_back_words(-1) == NULL && oh_back_words(OH_BACKS) == NULL && oh_back_words(0) != NULL,
           "words for reasons");
    return tap_done();
}
