/* SPDX-License-Identifier: MIT */
/*
 * onehop-conformance - see conformance.h; the command line, and a process of a job: its workers go through the cases
 *
 * A soak is in place of the cases, with as many ranks as there are GPUs where none are named; its seconds are shared
 * out among the modes. --allow: growth that is no fault, of host memory in all and for each communicator made, of
 * GPU memory, and of descriptors, threads and mappings.
 *
 * Speaks TAP, a point for each case of each job. Exit status 0: nothing failed; 1: something did; 2: it could not run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "test/conformance/conformance.h"

static const char usage[] = "usage: onehop-conformance [--ranks N,...] [--modes processes,threads,group]\n"
                            "  [--cases NAME,...] [--types NAME,...] [--seed N] [--full] [--expect-served]\n"
                            "  [--patience FACTOR] [--list]\n"
                            "  [--soak SECONDS [--allow HOST_KIB,HOST_KIB_EACH,GPU_KIB,HANDLES]]\n";

const char *const cf_mode_names[CF_MODES] = {"processes", "threads", "group"};

struct cf_options cf_options = {.mode = {true, true, true}, .patience = 1, .allowance = {8192, 0, 2048, 0}};

/* --- options ------------------------------------------------------------------------------------------------------ */

/* Is the name, or with `prefix` its beginning, in the list? */
static bool is_named(const char *list, const char *name, bool prefix)
{
    for (const char *at = list; *at != '\0';) {
        size_t length = strcspn(at, ",");
        if (length > 0 && strncmp(at, name, length) == 0 && (prefix || name[length] == '\0')) {
            return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

bool cf_wanted(int which)
{
    const struct cf_case *tested = &cf_cases[which];
    if (tested->when == CF_SOAK || cf_options.soak > 0) {
        return tested->when == CF_SOAK && cf_options.soak > 0;
    }
    return cf_options.cases == NULL || is_named(cf_options.cases, tested->name, true);
}

bool cf_type_wanted(ncclDataType_t type)
{
    return cf_options.types == NULL || is_named(cf_options.types, cf_types[type].name, false);
}

static bool take_modes(void *unused, const char *text)
{
    (void)unused;
    for (int m = 0; m < CF_MODES; m++) {
        cf_options.mode[m] = is_named(text, cf_mode_names[m], false);
    }
    return true;
}

static bool take_allowance(void *unused, const char *text)
{
    struct cf_allowance *allowance = &cf_options.allowance;
    (void)unused;
    return sscanf(text, "%ld,%ld,%ld,%ld", &allowance->host_kib, &allowance->host_kib_each, &allowance->gpu_kib,
                  &allowance->handles) == 4;
}

static void parse(int argc, char **argv)
{
    const struct cf_option table[] = {
        CF_TAKES("ranks", cf_take_ranks, &cf_options.ranks),
        CF_TAKES("modes", take_modes, NULL),
        CF_WORD("cases", &cf_options.cases),
        CF_WORD("types", &cf_options.types),
        CF_NUMBER("seed", &cf_options.seed),
        CF_FLAG("full", &cf_options.full),
        CF_FLAG("expect-served", &cf_options.expect_served),
        CF_INT("patience", &cf_options.patience, 1, 1000),
        CF_FLAG("list", &cf_options.list),
        CF_INT("soak", &cf_options.soak, 0, 10000000),
        CF_TAKES("allow", take_allowance, NULL),
        CF_NO_MORE,
    };
    if (cf_options_read(argc, argv, usage, table) < argc) {
        cf_options_refuse(usage);
    }
}

static void list_cases(void)
{
    for (int c = 0; c < cf_case_count; c++) {
        static const char *const when[] = {"", " [onehop only]", " [NCCL alone: not in threads]", " [--soak]"};
        printf("%-24s %s%s\n", cf_cases[c].name, cf_cases[c].what, when[cf_cases[c].when]);
    }
}

/* --- a process of a job ------------------------------------------------------------------------------------------- */

/* Cases with a reason to be skipped are so on all ranks: the reasons depend on what is the same everywhere. */
static void run_case(struct cf_worker *worker, int which)
{
    const struct cf_case *tested = &cf_cases[which];
    struct cf_state *state = cf_state(worker);
    worker->result = &state->result[which];
    cf_barrier(worker);
    uint64_t start_ms = cf_now_ms();
    atomic_store(&state->since_ms, start_ms);
    atomic_store(&state->at_case, which);
    worker->serial = (uint64_t)which << 32;                          /* the same data when the case runs alone */
    const bool by_nccl = !worker->onehop || getenv("ONEHOP_VERIFY"); /* NCCL makes the calls, too */
    if (tested->when == CF_ONEHOP && by_nccl) {
        cf_skip(worker, "stock NCCL does not promise this");
    } else if (tested->when == CF_APART && by_nccl && cf_case_board(worker)->mode != CF_PROCESSES) {
        cf_skip(worker, "stock NCCL (2.28.3 on GPUs) gives an internal error here");
    } else {
        tested->run(worker);
        cf_sync(worker);
    }
    worker->result->milliseconds = cf_now_ms() - start_ms;
}

static void run_worker(struct cf_worker *worker)
{
    struct cf_case_board *board = cf_case_board(worker);
    worker->result = &cf_state(worker)->result[board->first_case]; /* failures of the beginning are the first case's */
    worker->full = cf_options.full;
    worker->expect_served = cf_options.expect_served;
    worker->hashes_compared = true;
    if (worker->index == 0) {
        board->nccl_version = worker->nccl_version;
        board->onehop = nccl.onehop_version != NULL ? nccl.onehop_version() : 0;
    }
    cf_set_create(worker, CF_INIT_RANK, &worker->world);
    for (int c = board->first_case; c < cf_case_count; c++) {
        if (cf_wanted(c)) {
            run_case(worker, c);
        }
    }
    cf_barrier(worker);
    cf_set_destroy(worker, &worker->world);
    atomic_store(&cf_state(worker)->done, 1);
}

int main(int argc, char **argv)
{
    struct cf_board *board;
    int process;
    if (getrandom(&cf_options.seed, sizeof cf_options.seed, 0) != sizeof cf_options.seed) {
        cf_options.seed = (uint64_t)time(NULL);
    }
    cf_options.seed &= UINT32_MAX;
    parse(argc, argv);
    if (cf_options.list) {
        list_cases();
        return 0;
    }
    return cf_job_join(sizeof(struct cf_case_board), &board, &process) ? cf_job_run(board, process, run_worker, NULL)
                                                                       : cf_launch(argv);
}
