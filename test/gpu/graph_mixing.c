/* SPDX-License-Identifier: MIT */
/*
 * graph_mixing.c - graphs and eager calls of one communicator on streams that nothing orders
 *
 *   graph_mixing [--ranks N] [--threads] [--rounds N] [--delay US] [--seed N] [--floats N] [--timeout S] [--structure]
 *                [SCENARIO...]
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
#define CHECK_WHO "graph_mixing.c, "
#include "test/gpu/graph_mixing.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct options options = {.ranks = 0, .rounds = 1000, .delay_us = 200, .seed = 1, .floats = 12000, .timeout = 300};

static bool is_wanted(const char *name)
{
    bool wanted = options.scenarios == 0 && (options.structure || strcmp(name, "outlive") != 0);
    for (int i = 0; i < options.scenarios; i++) {
        wanted |= strcmp(options.scenario[i], name) == 0;
    }
    return wanted;
}

/* --- ranks ------------------------------------------------------------------------------------------------------ */

/* The second graph lives on the per-thread default stream. */
static void open_lanes(struct rank *rank)
{
    for (int l = 0; l < LANES; l++) {
        CUstream stream = CU_STREAM_PER_THREAD;
        if (l != 1) {
            CU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
        }
        lane_open(&rank->lane[l], stream);
    }
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    rank->common = options.seed;
    rank->own = options.seed * 7919u + (uint32_t)rank->rank;
    CU(retain(&rank->context, rank->rank));
    CU(set_context(rank->context));
    open_lanes(rank);
    make_comm(rank);
    for (const struct scenario *scenario = scenarios; scenario->name; scenario++) {
        if (is_wanted(scenario->name)) {
            scenario->run(rank);
            if (rank->rank == 0) {
                printf("ok %s\n", scenario->name);
                fflush(stdout);
            }
        }
    }
    NCCL(destroy(rank->comm));
    for (int l = 0; l < LANES; l++) {
        lane_close(&rank->lane[l]);
    }
    return NULL;
}

static int run_threads(struct rank *ranks)
{
    pthread_t thread[MAX_RANKS];
    alarm(options.timeout);
    open_libraries();
    CU(init(0));
    for (int r = 1; r < options.ranks; r++) {
        CHECK(pthread_create(&thread[r], NULL, run_rank, &ranks[r]) == 0, "no thread");
    }
    run_rank(&ranks[0]);
    for (int r = 1; r < options.ranks; r++) {
        pthread_join(thread[r], NULL);
    }
    return 0;
}

/* Runs `part` in a process of its own: nothing of CUDA survives a fork. */
static pid_t start_process(int (*part)(struct rank *), struct rank *rank)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(options.timeout);
        exit(part(rank));
    }
    return child;
}

static int run_process(struct rank *rank)
{
    open_libraries();
    CU(init(0));
    run_rank(rank);
    return 0;
}

static int run_processes(struct rank *ranks)
{
    pid_t child[MAX_RANKS];
    int status, left = options.ranks, failed = 0;
    for (int r = 0; r < options.ranks; r++) {
        child[r] = start_process(run_process, &ranks[r]);
    }
    while (left > 0) {
        pid_t ended = wait(&status);
        left--;
        if (!failed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            failed = 1;
            for (int r = 0; r < options.ranks; r++) { /* the others wait for it */
                if (child[r] != ended) {
                    kill(child[r], SIGKILL);
                }
            }
        }
    }
    return failed;
}

static int count_devices(struct rank *unused)
{
    int devices;
    (void)unused;
    open_libraries();
    return cu.init(0) == CUDA_SUCCESS && cu.device_count(&devices) == CUDA_SUCCESS ? devices : 0;
}

static void parse(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--threads") == 0) {
            options.threads = true;
        } else if (strcmp(argv[i], "--structure") == 0) {
            options.structure = true;
        } else {
            unsigned number = (unsigned)strtoul(value, NULL, 10);
            if (strcmp(argv[i], "--ranks") == 0) {
                options.ranks = (int)number;
            } else if (strcmp(argv[i], "--rounds") == 0) {
                options.rounds = (int)number;
            } else if (strcmp(argv[i], "--delay") == 0) {
                options.delay_us = number;
            } else if (strcmp(argv[i], "--seed") == 0) {
                options.seed = number;
            } else if (strcmp(argv[i], "--floats") == 0) {
                options.floats = number;
            } else if (strcmp(argv[i], "--timeout") == 0) {
                options.timeout = number;
            } else {
                check_failed(CHECK_WHO, __LINE__, "no option %s", argv[i]);
            }
            i++;
        }
    }
    options.scenario = (const char *const *)&argv[i];
    options.scenarios = argc - i;
}

int main(int argc, char **argv)
{
    static struct rank ranks[MAX_RANKS];
    int status = 0;
    parse(argc, argv);
    waitpid(start_process(count_devices, NULL), &status, 0);
    int devices = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (options.ranks == 0) {
        options.ranks = devices < MAX_RANKS ? devices : MAX_RANKS;
    }
    if (options.ranks < 2 || options.ranks > devices || options.ranks > MAX_RANKS) {
        printf("SKIP %d GPUs\n", devices);
        return 77;
    }
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED, "no memory");
    for (int r = 0; r < options.ranks; r++) {
        ranks[r] = (struct rank){.rank = r, .board = board};
    }
    status = options.threads ? run_threads(ranks) : run_processes(ranks);
    printf("%s %d ranks, seed %u\n", status == 0 ? "ok" : "FAIL", options.ranks, options.seed);
    return status;
}
