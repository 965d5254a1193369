/* SPDX-License-Identifier: MIT */
/*
 * perf_table.c - the tables of `onehop perf`, in the columns of nccl-tests
 */
#include "tools/perf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tool.h"

const char *oh_perf_mode_name(enum oh_perf_mode mode)
{
    return mode == OH_PERF_GRAPH ? "graph" : "eager";
}

static bool simulated(const struct oh_perf_shared *shared)
{
    return oh_tool_is_simulated(shared->rank[0].name);
}

void oh_perf_print_head(const struct oh_perf_options *options, const struct oh_perf_shared *shared)
{
    char host[64] = "";
    char step[32];
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    int nccl = shared->nccl_version, onehop = shared->onehop_version;

    gethostname(host, sizeof host - 1);
    snprintf(step, sizeof step, options->step_bytes ? "%zu(bytes)" : "%zu(factor)",
             options->step_bytes ? options->step_bytes : options->step_factor);
    printf("# onehop %d.%d.%d, NCCL %d.%d.%d%s\n", onehop / 10000, onehop / 100 % 100, onehop % 100, nccl / 10000,
           nccl / 100 % 100, nccl % 100, nvls && strcmp(nvls, "0") == 0 ? ", NVLS off" : "");
    printf("# ranks %d, bytes %zu to %zu, step %s, iters %d, warmup iters %d, rounds %d, %s\n", options->ranks,
           options->min_bytes, options->max_bytes, step, options->iters, options->warmup, options->rounds,
           options->in_place ? "in-place" : "out-of-place");
    printf("#\n# Using devices\n");
    for (int i = 0; i < options->ranks; i++) {
        printf("#  Rank %2d Pid %6d on %10s device %2d [%s] %s\n", i, (int)shared->rank[i].pid, host, i,
               shared->rank[i].bus_id, shared->rank[i].name);
    }
    if (shared->info.served) {
        printf("#\n# onehop serves this communicator\n");
    } else {
        printf("#\n# onehop hands this communicator back to NCCL: %s\n", shared->info.reason);
    }
    fflush(stdout);
}

static void print_title(const struct oh_perf_options *options, const struct oh_perf_shared *shared,
                        enum oh_perf_mode mode)
{
    printf("#\n# %sall-reduce, ", simulated(shared) ? "SIMULATED (times mean nothing): " : "");
    if (mode == OH_PERF_GRAPH) {
        printf("CUDA graph of %d calls\n", options->iters);
    } else {
        printf("eager, %d calls\n", options->iters);
    }
    printf("#\n# %67s stock NCCL %23s onehop\n", "", "");
    printf("# %10s %12s %8s %6s %6s %9s %7s %7s %6s %9s %7s %7s %6s %8s  %s\n", "size", "count", "type", "redop",
           "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "speedup", "served-by");
    printf("# %10s %12s %8s %6s %6s %9s %7s %7s %6s %9s %7s %7s\n", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
           "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
}

static void print_side(const struct oh_perf_row *row, enum oh_perf_side side, int ranks)
{
    double algbw = (double)(row->count * row->type->size) / row->us[side] / 1000.0;
    double busbw = algbw * 2.0 * (ranks - 1) / ranks;
    printf(" %9.2f %7.2f %7.2f %6llu", row->us[side], algbw, busbw, (unsigned long long)row->wrong[side]);
}

static double speedup(const struct oh_perf_row *row)
{
    return row->us[OH_PERF_STOCK] / row->us[OH_PERF_ONEHOP];
}

/* Over the rows of the mode of row `last`, which is its last one. */
static void print_average(const struct oh_perf_shared *shared, size_t last)
{
    double sum = 0;
    int rows = 0;
    for (size_t i = 0; i <= last; i++) {
        if (shared->row[i].mode == shared->row[last].mode) {
            sum += log(speedup(&shared->row[i]));
            rows++;
        }
    }
    printf("# Avg speedup (geometric mean of %d row%s, %s): %.2f\n", rows, rows == 1 ? "" : "s",
           oh_perf_mode_name(shared->row[last].mode), exp(sum / rows));
}

void oh_perf_print_row(const struct oh_perf_options *options, const struct oh_perf_shared *shared, size_t index)
{
    const struct oh_perf_row *row = &shared->row[index];
    if (index == 0 || row[-1].mode != row->mode) {
        print_title(options, shared, row->mode);
    }
    printf("  %10zu %12zu %8s %6s %6d", row->count * row->type->size, row->count, row->type->name, "sum", -1);
    print_side(row, OH_PERF_STOCK, options->ranks);
    print_side(row, OH_PERF_ONEHOP, options->ranks);
    printf(" %8.2f  %s\n", speedup(row), row->served_by);
    if (index + 1 == shared->rows || row[1].mode != row->mode) {
        print_average(shared, index);
    }
    fflush(stdout);
}

bool oh_perf_print_foot(const struct oh_perf_shared *shared)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < shared->rows; i++) {
        wrong += shared->row[i].wrong[OH_PERF_STOCK] + shared->row[i].wrong[OH_PERF_ONEHOP];
    }
    printf("#\n# Out of bounds values : %llu %s\n", (unsigned long long)wrong, wrong ? "FAILED" : "OK");
    fflush(stdout);
    return wrong == 0;
}
