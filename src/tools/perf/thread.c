/* SPDX-License-Identifier: MIT */
/*
 * perf/thread.c - the life of a rank of `onehop perf`
 *
 * Does: Opens the device, libraries, communicator and buffers of a rank, measures all rows, and closes them. All sides
 *    use one communicator and one stream: stock and windows are the functions of the real library, onehop is
 *    libonehop.so. Kernels of a program between the calls are launched as programs launch theirs,
 *    without programmatic stream serialization.
 * Threads: a rank's. Memory of the GPU is freed at the end of the process.
 * Owns: the thread's host memory and its communicator.
 */
#include "tools/perf/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/floor.h"
#include "tools/shared/tool.h"
#include "util/symbols.h"

#define WINDOW_SYMMETRIC 0x01 /* NCCL_WIN_COLL_SYMMETRIC */
#define BLOCK_THREADS 256
#define THREAD_WORDS 4 /* that a thread of the copy has under way */

void oh_perf_barrier(struct oh_perf_thread *thread)
{
    oh_workers_barrier(&thread->shared->workers, thread->options->ranks);
}

void oh_perf_check(const struct oh_perf_thread *thread, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        OH_PERF_FAIL(thread, "%s: %s", call, oh_driver_error_name(result));
    }
}

void oh_perf_check_nccl(const struct oh_perf_thread *thread, const char *call, ncclResult_t result)
{
    if (result != ncclSuccess) {
        OH_PERF_FAIL(thread, "%s: %s", call, thread->error_string(result));
    }
}

/* --- opening ---------------------------------------------------------------------------------------------------- */

static void open_device(struct oh_perf_thread *thread)
{
    struct oh_perf_rank_info *self = &thread->shared->rank[thread->rank];
    if (oh_driver_open() != ncclSuccess) {
        OH_PERF_FAIL(thread, "no usable CUDA driver: %s", oh_driver_error());
    }
    OH_PERF_CU(thread, device_get(&thread->device, thread->rank));
    OH_PERF_CU(thread, device_get_name(self->name, sizeof self->name, thread->device));
    oh_text_clean(self->name, sizeof self->name);
    OH_PERF_CU(thread, device_get_pci_bus_id(self->bus_id, sizeof self->bus_id, thread->device));
    OH_PERF_CU(thread, primary_ctx_retain(&thread->context, thread->device));
    OH_PERF_CU(thread, ctx_set_current(thread->context));
    OH_PERF_CU(thread, stream_create(&thread->stream, CU_STREAM_NON_BLOCKING));
    OH_PERF_CU(thread, event_create(&thread->begin, CU_EVENT_DEFAULT));
    OH_PERF_CU(thread, event_create(&thread->end, CU_EVENT_DEFAULT));
    self->pid = getpid();
}

/* A row of a table of functions; nccl.h and the library may be older than one that is not needed. */
#define FUNCTION(name_, member_, needed_)                                                                              \
    {                                                                                                                  \
        name_, offsetof(struct oh_perf_thread, member_), needed_                                                       \
    }

/* Opens a library and sets the pointers of a table to its functions. */
static void open_library(struct oh_perf_thread *thread, const char *path, const struct oh_symbol *symbols, size_t count,
                         void *table_p)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        OH_PERF_FAIL(thread, "cannot load %s", dlerror());
    }
    if (oh_symbols_load(library, symbols, count, table_p)) {
        OH_PERF_FAIL(thread, "%s", dlerror());
    }
}

/* Fails if NCCL is too old for what `option` asks for. */
static void need(struct oh_perf_thread *thread, bool there, const char *option, const char *needed, const char *lacking)
{
    int version = 0;
    thread->get_version(&version);
    if (!there) {
        OH_PERF_FAIL(thread, "%s needs NCCL %s or later; %s is %d.%d.%d and has no %s", option, needed,
                     thread->options->nccl, version / 10000, version / 100 % 100, version % 100, lacking);
    }
}

/* The functions of NCCL that onehop exports. Of the optional ones it hides those that this NCCL does not have. */
#define REQUIRED(name_, ...) {"nccl" #name_, offsetof(struct oh_nccl, name_), true},
#define OPTIONAL(name_, ...) {"nccl" #name_, offsetof(struct oh_nccl, name_), false},
static const struct oh_symbol exported[] = {OH_NCCL_REQUIRED(REQUIRED) OH_NCCL_OPTIONAL(OPTIONAL)};

/* NCCL's own functions, where those of the real library's names are onehop's. */
static void open_stock(struct oh_perf_thread *thread)
{
    if (!thread->stock_function("ncclAllReduce")) {
        OH_PERF_FAIL(thread, "%s is not NCCL 2.19 or later", thread->options->nccl);
    }
    for (size_t i = 0; i < sizeof exported / sizeof *exported; i++) {
        void *function = thread->stock_function(exported[i].name);
        memcpy((char *)&thread->nccl[OH_PERF_STOCK] + exported[i].offset, &function, sizeof function);
    }
}

static void open_libraries(struct oh_perf_thread *thread)
{
    static const struct oh_symbol stock[] = {FUNCTION("ncclGetVersion", get_version, true),
                                             FUNCTION("ncclGetUniqueId", get_unique_id, true),
                                             FUNCTION("ncclGetErrorString", error_string, true),
                                             FUNCTION("ncclMemAlloc", mem_alloc, false),
                                             FUNCTION("ncclCommWindowRegister", window_register, false),
                                             FUNCTION("ncclCommWindowDeregister", window_deregister, false)};
    static const struct oh_symbol ours[] = {
        FUNCTION("onehopVersion", onehop_version, true), FUNCTION("onehopCommInfo", onehop_info, true),
        FUNCTION("onehopAlgorithmName", algorithm_name, true), FUNCTION("onehopStockFunction", stock_function, true)};
    const struct oh_perf_options *options = thread->options;
    const size_t count = sizeof exported / sizeof *exported;
    open_library(thread, options->nccl, stock, sizeof stock / sizeof *stock, thread);
    open_library(thread, options->onehop, exported, count, &thread->nccl[OH_PERF_ONEHOP]);
    open_library(thread, options->onehop, ours, sizeof ours / sizeof *ours, thread);
    if (options->side[OH_PERF_STOCK] || options->side[OH_PERF_WINDOWS]) {
        open_stock(thread);
    }
    thread->nccl[OH_PERF_WINDOWS] = thread->nccl[OH_PERF_STOCK];
    need(thread, !options->side[OH_PERF_WINDOWS] || (thread->mem_alloc && thread->window_register), "--compare windows",
         "2.27", "windows");
    need(thread, !options->nccl_memory || thread->mem_alloc, "--memory nccl", "2.19", "ncclMemAlloc");
}

static void open_communicator(struct oh_perf_thread *thread)
{
    struct oh_perf_shared *shared = thread->shared;
    if (thread->rank == 0) {
        oh_perf_check_nccl(thread, "ncclGetUniqueId", thread->get_unique_id(&shared->id));
        oh_perf_check_nccl(thread, "ncclGetVersion", thread->get_version(&shared->nccl_version));
        shared->onehop_version = thread->onehop_version();
    }
    oh_perf_barrier(thread);
    oh_perf_check_nccl(
        thread, "ncclCommInitRank",
        thread->nccl[OH_PERF_ONEHOP].CommInitRank(&thread->comm, thread->options->ranks, shared->id, thread->rank));
    oh_perf_barrier(thread);
}

static CUdeviceptr new_buffer(struct oh_perf_thread *thread, bool nccl, size_t bytes)
{
    CUdeviceptr address = 0;
    void *buffer = NULL;
    if (!nccl) {
        OH_PERF_CU(thread, mem_alloc(&address, bytes));
        return address;
    }
    oh_perf_check_nccl(thread, "ncclMemAlloc", thread->mem_alloc(&buffer, bytes));
    return (CUdeviceptr)(uintptr_t)buffer;
}

/* Registers memory that NCCL may map on all ranks, on all ranks together. */
static void open_window(struct oh_perf_thread *thread, CUdeviceptr memory, size_t bytes, void **window_p)
{
    oh_perf_check_nccl(
        thread, "ncclCommWindowRegister",
        thread->window_register(thread->comm, (void *)(uintptr_t)memory, bytes, window_p, WINDOW_SYMMETRIC));
    if (!*window_p) {
        OH_PERF_FAIL(thread, "NCCL makes no windows here: they need P2P between all GPUs and CUDA's virtual memory "
                             "(NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE)");
    }
}

static void open_buffers(struct oh_perf_thread *thread)
{
    const size_t least = (size_t)thread->options->ranks, most = thread->options->max_bytes;
    const size_t bytes = most > least ? most : least, slack = OH_PERF_SLACK * sizeof(uint64_t);
    for (int side = 0; side < OH_PERF_SIDES; side++) {
        if (side == OH_PERF_ONEHOP) {
            thread->send[side] = thread->send[OH_PERF_STOCK];
            thread->recv[side] = thread->recv[OH_PERF_STOCK];
        } else if (side == OH_PERF_STOCK || thread->options->side[side]) {
            const bool nccl = side != OH_PERF_STOCK || thread->options->nccl_memory;
            thread->send[side] = new_buffer(thread, nccl, bytes + OH_PERF_GUARD);
            thread->recv[side] = new_buffer(thread, nccl, bytes + OH_PERF_GUARD);
        }
    }
    if (thread->options->side[OH_PERF_WINDOWS]) {
        open_window(thread, thread->send[OH_PERF_WINDOWS], bytes + OH_PERF_GUARD, &thread->window[0]);
        open_window(thread, thread->recv[OH_PERF_WINDOWS], bytes + OH_PERF_GUARD, &thread->window[1]);
    }
    thread->input = oh_tool_allocate(bytes + slack);
    thread->expected = oh_tool_allocate(bytes + slack);
    thread->got = oh_tool_allocate(bytes + OH_PERF_GUARD);
}

static void close_all(struct oh_perf_thread *thread)
{
    OH_PERF_CU(thread, stream_synchronize(thread->stream));
    for (int i = 0; i < 2 && thread->window[i]; i++) {
        oh_perf_check_nccl(thread, "ncclCommWindowDeregister",
                           thread->window_deregister(thread->comm, thread->window[i]));
    }
    oh_perf_check_nccl(thread, "ncclCommDestroy", thread->nccl[OH_PERF_ONEHOP].CommDestroy(thread->comm));
    free(thread->input);
    free(thread->expected);
    free(thread->got);
}

/* --- the kernels of a program ----------------------------------------------------------------------------------- */

struct oh_tool_kernel oh_perf_kernel(const struct oh_perf_thread *thread, const char *name)
{
    struct oh_tool_kernel kernel = {NULL, false};
    oh_perf_check(thread, name, oh_tool_kernel_load(thread->device, name, &kernel));
    return kernel;
}

static void open_program(struct oh_perf_thread *thread)
{
    if (thread->options->pattern == OH_PERF_LAYER) {
        thread->program = oh_perf_kernel(thread, "oh_program_copy").function;
    }
}

void oh_perf_run_program(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    /* As many threads as there are accesses to have under way, up to OH_FLOOR_BLOCKS blocks. */
    const size_t block_bytes = (size_t)BLOCK_THREADS * THREAD_WORDS * OH_WORD_BYTES;
    const size_t blocks = (workload->bytes + block_bytes - 1) / block_bytes;
    const bool most = blocks > OH_FLOOR_BLOCKS;
    const struct oh_kernel_args args = {
        .sendbuff = (const void *)(uintptr_t)thread->recv[workload->side],
        .recvbuff = (void *)(uintptr_t)thread->send[workload->side],
        .count = workload->bytes,
    };
    oh_perf_check(thread, "launch",
                  oh_driver_launch(thread->program, most ? OH_FLOOR_BLOCKS : (unsigned)blocks,
                                   most ? 2 * BLOCK_THREADS : BLOCK_THREADS, thread->stream, false,
                                   &args)); /* as most programs launch theirs */
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static void *live(void *user)
{
    struct oh_perf_thread *thread = user;
    struct oh_perf_shared *shared = thread->shared;
    open_device(thread);
    open_libraries(thread);
    open_communicator(thread);
    open_buffers(thread);
    open_program(thread);
    oh_perf_call_first(thread);
    if (thread->options->floor) {
        oh_perf_measure_floor(thread);
    }
    oh_perf_barrier(thread);
    if (thread->rank == 0) {
        atomic_store(&shared->ready, true);
    }
    for (size_t i = 0; i < shared->rows; i++) {
        oh_perf_measure(thread, &shared->row[i]);
    }
    oh_perf_barrier(thread);
    close_all(thread);
    return NULL;
}

/* In a process: the rank `member`, or a thread for each rank. */
static int work(void *user, int member)
{
    static struct oh_perf_thread thread[OH_PERF_RANKS];
    struct oh_perf_shared *shared = user;
    pthread_t handle[OH_PERF_RANKS];
    for (int rank = 0; rank < shared->options->ranks; rank++) {
        thread[rank] = (struct oh_perf_thread){.options = shared->options, .shared = shared, .rank = rank, .type = -1};
    }
    if (!shared->options->threads) {
        live(&thread[member]);
        return EXIT_SUCCESS;
    }
    for (int rank = 0; rank < shared->options->ranks; rank++) {
        int error = pthread_create(&handle[rank], NULL, live, &thread[rank]);
        if (error) {
            oh_workers_fail(&shared->workers, rank, "no thread: %s", strerror(error));
        }
    }
    for (int rank = 0; rank < shared->options->ranks; rank++) {
        pthread_join(handle[rank], NULL);
    }
    return EXIT_SUCCESS;
}

void oh_perf_run(struct oh_perf_shared *shared, void (*tick)(void *), void *user)
{
    const struct oh_workers workers = {.shared = &shared->workers,
                                       .members = shared->options->threads ? 1 : shared->options->ranks,
                                       .timeout_s = shared->options->timeout_s,
                                       .timeout_option = shared->options->timeout_option,
                                       .work = work,
                                       .work_user = shared,
                                       .tick = tick,
                                       .tick_user = user};
    oh_workers_run(&workers);
}
