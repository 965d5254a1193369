/* SPDX-License-Identifier: MIT */
/*
 * graph_mixing.c - graphs and eager calls of one communicator on streams that nothing orders
 *
 * NCCL puts all launches of a communicator, replays of graphs among them, into the order in which the host makes them.
 * This program relies on that: it launches in an order that is random but the same on all ranks, with random pauses
 * that differ from rank to rank, and compares every result. It knows nothing of onehop, but for --structure, opens
 * libcuda.so.1 and libnccl.so.2 itself, and so runs on GPUs and on the simulated node, with a preloaded library or
 * without.
 *
 * A rank is a process, or with --threads a thread. Every result is exact: sums of small whole numbers in fp32.
 * --structure checks what onehop has served: one wait and one record node in a graph, programmatic edges between all
 * its kernels, and which of them let the next in early. Exit status 0 when all was right, 77 without two GPUs.
 */
#include "test/gpu/graph_mixing.h"

#include <stdio.h>
#include <string.h>

#include "test/common/options.h"

struct mixing_options options = {.rounds = 1000, .delay_us = 200, .seed = 1, .floats = 12000, .timeout = 300};

CUstream stream_of(const struct rank *rank, int stream)
{
    return rank->worker->member[0].stream[stream];
}

void reduce(const struct rank *rank, CUdeviceptr from, CUdeviceptr to, size_t count, int stream)
{
    CF_NCCL(rank->worker, AllReduce((const void *)from, (void *)to, count, ncclFloat, ncclSum, rank->set.comm[0],
                                    stream_of(rank, stream)));
}

CUstreamCaptureMode usual_mode(void)
{
    return options.threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void begin_capture(const struct rank *rank, int stream, CUstreamCaptureMode mode)
{
    CF_CU(rank->worker, StreamBeginCapture(stream_of(rank, stream), mode));
}

CUgraph end_capture(const struct rank *rank, int stream)
{
    CUgraph graph;
    CF_CU(rank->worker, StreamEndCapture(stream_of(rank, stream), &graph));
    return graph;
}

CUgraphExec instantiate(const struct rank *rank, CUgraph graph)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraphExec exec;
    CF_CU(rank->worker, ThreadExchangeStreamCaptureMode(&mode));
    CF_CU(rank->worker, GraphInstantiate(&exec, graph, 0));
    CF_CU(rank->worker, ThreadExchangeStreamCaptureMode(&mode));
    CF_CU(rank->worker, GraphDestroy(graph));
    return exec;
}

/* The last with --structure only, unless asked for. */
static bool is_wanted(const char *name)
{
    bool wanted = options.scenarios == 0 && (options.structure || strcmp(name, "outlive") != 0);
    for (int i = 0; i < options.scenarios; i++) {
        wanted |= strcmp(options.scenario[i], name) == 0;
    }
    return wanted;
}

static void run_rank(struct cf_worker *worker)
{
    struct rank rank = {.worker = worker};
    rank.common = cf_common_source(worker, 0);
    rank.own = cf_own_source(worker, 0);
    cf_use(worker, 0);
    open_lanes(&rank);
    cf_set_create(worker, CF_INIT_RANK, &rank.set);
    for (const struct scenario *scenario = scenarios; scenario->name != NULL; scenario++) {
        if (is_wanted(scenario->name)) {
            scenario->run(&rank);
            if (worker->index == 0) {
                printf("ok %s\n", scenario->name);
                fflush(stdout);
            }
        }
    }
    cf_set_destroy(worker, &rank.set);
    close_lanes(&rank);
}

static void parse(int argc, char **argv)
{
    static const char usage[] = "usage: graph_mixing [--ranks N] [--threads] [--rounds N] [--delay US] [--seed N]\n"
                                "  [--floats N] [--timeout S] [--structure] [SCENARIO...]\n";
    const struct cf_option table[] = {
        CF_INT("ranks", &options.ranks, 0, CF_MAX_RANKS),
        CF_FLAG("threads", &options.threads),
        CF_INT("rounds", &options.rounds, 0, 100000000),
        CF_INT("delay", &options.delay_us, 0, 1000000),
        CF_NUMBER("seed", &options.seed),
        CF_INT("floats", &options.floats, 1000, 100000000),
        CF_INT("timeout", &options.timeout, 1, 1000000),
        CF_FLAG("structure", &options.structure),
        CF_NO_MORE,
    };
    int first = cf_options_read(argc, argv, usage, table);
    options.scenario = (const char *const *)&argv[first];
    options.scenarios = argc - first;
}

int main(int argc, char **argv)
{
    struct cf_job job = {.argv = argv};
    struct cf_board *board;
    int process;
    parse(argc, argv);
    if (cf_job_join(sizeof *board, &board, &process)) {
        options.ranks = board->layout.nranks;
        return cf_job_run(board, process, run_rank, NULL);
    }
    int devices = cf_count_gpus();
    if (options.ranks == 0) {
        options.ranks = devices < CF_MAX_RANKS ? devices : CF_MAX_RANKS;
    }
    if (options.ranks < 2 || options.ranks > devices) {
        printf("SKIP %d GPUs\n", devices);
        return 77;
    }
    cf_job_open(&job, argv, sizeof *board);
    job.board->layout = (struct cf_layout){
        .nranks = options.ranks, .local = options.threads ? options.ranks : 1, .threads = options.threads};
    job.board->seed = options.seed;
    job.board->stops = true;
    cf_job_start(&job);
    bool good = cf_job_wait(&job, options.timeout);
    cf_job_close(&job);
    printf("%s %d ranks, seed %llu\n", good ? "ok" : "FAIL", options.ranks, (unsigned long long)options.seed);
    return good ? 0 : 1;
}
