/* SPDX-License-Identifier: MIT */
/*
 * nccl_report.c - what tests want to know of the simulated NCCL: how often a function was called
 *
 * simnccl_calls() answers within the process; the report made at exit has lines "nccl_allreduce N". Calls are counted
 * whether they succeed or not.
 */
#include "nccl_internal.h"

#include <ctype.h>
#include <string.h>

static _Atomic unsigned long calls[SIMNCCL_FUNCTION_COUNT];

static const char *const names[SIMNCCL_FUNCTION_COUNT] = {
#define SIMNCCL_STRING(name_) #name_,
    SIMNCCL_FUNCTIONS(SIMNCCL_STRING)
#undef SIMNCCL_STRING
};

/* Exported, for tests that look it up with dlsym. `function` as in nccl.h, "ncclAllReduce". */
SIMNCCL_EXPORT unsigned long simnccl_calls(const char *function);

void simnccl_count(enum simnccl_function function)
{
    atomic_fetch_add_explicit(&calls[function], 1, memory_order_relaxed);
}

unsigned long simnccl_calls(const char *function)
{
    for (int f = 0; f < SIMNCCL_FUNCTION_COUNT; f++) {
        if (strncmp(function, "nccl", 4) == 0 && strcmp(function + 4, names[f]) == 0) {
            return atomic_load(&calls[f]);
        }
    }
    return 0;
}

__attribute__((destructor)) static void report(void)
{
    FILE *file = simnode_report_open();
    if (file == NULL) {
        return;
    }
    for (int f = 0; f < SIMNCCL_FUNCTION_COUNT; f++) {
        fputs("nccl_", file);
        for (const char *c = names[f]; *c != '\0'; c++) {
            fputc(tolower((unsigned char)*c), file);
        }
        fprintf(file, " %lu\n", atomic_load(&calls[f]));
    }
    fclose(file);
}
