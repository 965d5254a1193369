/* SPDX-License-Identifier: MIT */
/*
 * worker.c - a process of a job: its workers, each a thread, go through the cases in step
 *
 * Cases with a reason to be skipped are so on all ranks: the reasons depend on what is the same everywhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/conformance/conformance.h"

#define FP8_CAPABILITY 90
#define POLL_MICROSECONDS 50

struct cf_board *cf_board_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct cf_board)) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    struct cf_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (board == MAP_FAILED) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    return board;
}

static void note_failure(struct cf_worker *worker, const char *format, va_list arguments)
{
    struct cf_result *result = worker->result;
    if (result->failures++ == 0) {
        vsnprintf(result->failure, sizeof result->failure, format, arguments);
    }
}

void cf_fail(struct cf_worker *worker, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note_failure(worker, format, arguments);
    va_end(arguments);
}

void cf_die(struct cf_worker *worker, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    worker->result->failures = 0; /* this one is told */
    note_failure(worker, format, arguments);
    va_end(arguments);
    _exit(1); /* other threads may wait for ever */
}

bool cf_check(struct cf_worker *worker, bool good, const char *format, ...)
{
    va_list arguments;
    worker->result->checks++;
    if (!good) {
        va_start(arguments, format);
        note_failure(worker, format, arguments);
        va_end(arguments);
    }
    return good;
}

void cf_skip(struct cf_worker *worker, const char *reason)
{
    snprintf(worker->result->skipped, sizeof worker->result->skipped, "%s", reason);
}

bool cf_use(struct cf_worker *worker, int member)
{
    if (member < worker->members) {
        CF_CU(worker, CtxSetCurrent(worker->member[member].context));
    }
    return member < worker->members;
}

void cf_sync(struct cf_worker *worker)
{
    for (int m = 0; cf_use(worker, m); m++) {
        for (int s = 0; s < CF_STREAMS; s++) {
            CF_CU(worker, StreamSynchronize(worker->member[m].stream[s]));
        }
    }
}

void cf_barrier(struct cf_worker *worker)
{
    struct cf_board *board = worker->board;
    uint32_t generation = atomic_load(&board->generation);
    if (atomic_fetch_add(&board->arrived, 1) + 1 == (uint32_t)board->workers) {
        atomic_store(&board->arrived, 0);
        atomic_store(&board->generation, generation + 1);
        return;
    }
    while (atomic_load(&board->generation) == generation) {
        usleep(POLL_MICROSECONDS);
    }
}

bool cf_agree(struct cf_worker *worker, uint64_t value)
{
    struct cf_board *board = worker->board;
    bool same = true;
    cf_barrier(worker);
    board->value[worker->index] = value;
    cf_barrier(worker);
    for (int w = 0; w < board->workers; w++) {
        same &= board->value[w] == value;
    }
    cf_barrier(worker);
    return same;
}

uint64_t cf_share(struct cf_worker *worker, uint64_t value)
{
    struct cf_board *board = worker->board;
    cf_barrier(worker);
    if (worker->index == 0) {
        board->value[0] = value;
    }
    cf_barrier(worker);
    value = board->value[0];
    cf_barrier(worker);
    return value;
}

void cf_alive(struct cf_worker *worker)
{
    atomic_store(&worker->board->worker[worker->index].since_ms, cf_now_ms());
}

static void open_member(struct cf_worker *worker, int m)
{
    struct cf_member *member = &worker->member[m];
    int major, minor;
    CF_CU(worker, DeviceGet(&member->device, member->world_rank));
    CF_CU(worker, DevicePrimaryCtxRetain(&member->context, member->device));
    cf_use(worker, m);
    for (int s = 0; s < CF_STREAMS; s++) {
        CF_CU(worker, StreamCreate(&member->stream[s], CU_STREAM_NON_BLOCKING));
    }
    member->stream[CF_LEGACY_STREAM] = NULL;
    member->stream[CF_PER_THREAD_STREAM] = CU_STREAM_PER_THREAD;
    CF_CU(worker, DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, member->device));
    CF_CU(worker, DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, member->device));
    worker->fp8 = major * 10 + minor >= FP8_CAPABILITY;
}

static void close_member(struct cf_worker *worker, int m)
{
    cf_use(worker, m);
    for (int s = 0; s < CF_STREAMS; s++) {
        CF_CU(worker, StreamDestroy(worker->member[m].stream[s]));
    }
    CF_CU(worker, DevicePrimaryCtxRelease(worker->member[m].device));
}

static void run_case(struct cf_worker *worker, int which)
{
    const struct cf_case *tested = &cf_cases[which];
    struct cf_worker_state *state = &worker->board->worker[worker->index];
    worker->case_name = tested->name;
    worker->result = &state->result[which];
    cf_barrier(worker);
    uint64_t start_ms = cf_now_ms();
    atomic_store(&state->since_ms, start_ms);
    atomic_store(&state->at_case, which);
    worker->serial = (uint64_t)which << 32; /* the same data when the case runs alone */
    if (tested->when == CF_ONEHOP && !worker->onehop) {
        cf_skip(worker, "stock NCCL does not promise this");
    } else if (tested->when == CF_APART && !worker->onehop && worker->options->child_mode != CF_PROCESSES) {
        cf_skip(worker, "stock NCCL (2.28.3 on GPUs) gives an internal error here");
    } else {
        tested->run(worker);
        cf_sync(worker);
    }
    worker->result->milliseconds = cf_now_ms() - start_ms;
}

static void *run_worker(void *argument)
{
    struct cf_worker *worker = argument;
    struct cf_worker_state *state = &worker->board->worker[worker->index];
    const struct cf_options *options = worker->options;
    int start = options->first_case;
    worker->result = &state->result[start]; /* failures of the beginning belong to the first case */
    worker->onehop = nccl.onehop_version != NULL && nccl.onehop_comm_info != NULL;
    for (int m = 0; m < worker->members; m++) {
        open_member(worker, m);
    }
    cf_set_create(worker, CF_INIT_RANK, &worker->world);
    for (int c = start; c < cf_case_count; c++) {
        if (cf_wanted(options, c)) {
            run_case(worker, c);
        }
    }
    cf_barrier(worker);
    cf_set_destroy(worker, &worker->world);
    for (int m = 0; m < worker->members; m++) {
        close_member(worker, m);
    }
    atomic_store(&state->done, 1);
    return NULL;
}

static struct cf_worker *new_worker(const struct cf_options *options, struct cf_board *board, int index, int members)
{
    struct cf_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        exit(2);
    }
    worker->options = options;
    worker->board = board;
    worker->index = index;
    worker->nranks = options->nranks;
    worker->members = members;
    for (int m = 0; m < members; m++) {
        worker->member[m].world_rank = index * members + m; /* one member each, or one worker */
    }
    return worker;
}

int cf_child(const struct cf_options *options)
{
    struct cf_board *board = cf_board_open(options->board);
    struct cf_worker *worker[CF_MAX_RANKS] = {NULL};
    pthread_t thread[CF_MAX_RANKS];
    int workers = options->child_mode == CF_THREADS ? options->nranks : 1;
    int members = options->child_mode == CF_GROUP ? options->nranks : 1;
    const char *lack = cf_api_open();
    if (lack != NULL || cu.Init(0) != CUDA_SUCCESS) {
        fprintf(stderr, "onehop-conformance: %s\n", lack != NULL ? lack : "cuInit failed");
        return 2;
    }
    if (options->rank == 0) {
        nccl.GetVersion(&board->nccl_version);
        board->onehop = nccl.onehop_version != NULL ? nccl.onehop_version() : 0;
    }
    for (int w = 1; w < workers; w++) {
        worker[w] = new_worker(options, board, options->rank + w, members);
        if (pthread_create(&thread[w], NULL, run_worker, worker[w]) != 0) {
            return 2;
        }
    }
    worker[0] = new_worker(options, board, options->rank, members);
    run_worker(worker[0]);
    free(worker[0]);
    for (int w = 1; w < workers; w++) {
        pthread_join(thread[w], NULL);
        free(worker[w]);
    }
    return 0;
}
