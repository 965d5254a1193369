/* SPDX-License-Identifier: MIT */
/*
 * tune/table_text.c - writes tuning tables as text
 *
 * Does: The form is that of src/plan/shipped.tuning.
 * Threads: any.
 * Owns: nothing.
 */
#include "tools/tune/tune.h"

#include <inttypes.h>

static void format_size(uint64_t bytes, char text_p[24])
{
    static const char units[] = "\0KMG";
    int unit = 0;
    while (unit < 3 && bytes % 1024 == 0 && bytes > 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text_p, 24, "%" PRIu64 "%.1s", bytes, &units[unit]);
}

static void write_row(FILE *stream, const struct oh_plan_row *row)
{
    char size[24], shape[24] = "";
    bool served = row->algorithm != OH_PLAN_NCCL;
    format_size(row->max_bytes, size);
    if (served) {
        snprintf(shape, sizeof shape, "%3u %3u", row->blocks, row->threads);
    }
    fprintf(stream, "  %6s  %-7s %7s", size, served ? oh_algorithm_name((int)row->algorithm) : "nccl", shape);
}

void oh_tuning_write(FILE *stream, const struct oh_tuning_key *key, const char *source,
                     const struct oh_plan_table *table, enum onehop_collective commented,
                     const char (*comment)[OH_TUNING_COMMENT])
{
    fprintf(stream, OH_TUNING_HEAD "\n\ntable\n  gpu %s\n  ranks %u\n  driver %s\n  nccl %s\n  source %s\n", key->gpu,
            key->nranks, key->driver, key->nccl, source);
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        const bool has_comments = comment && c == (int)commented;
        if (c != ONEHOP_ALLREDUCE) {
            fprintf(stream, " %s\n", oh_collective_name(c));
        }
        for (uint32_t i = 0; i < table->rows[c].count; i++) {
            write_row(stream, &table->rows[c].row[i]);
            fprintf(stream, "%s%s\n", has_comments ? "  # " : "", has_comments ? comment[i] : "");
        }
    }
    fprintf(stream, "end\n");
}
