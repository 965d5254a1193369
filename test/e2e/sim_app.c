/* SPDX-License-Identifier: MIT */
/* sim_app.c - see sim_app.h: the launcher, the command line, communicators, and the calls on them */
#include "test/e2e/sim_app.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/common/options.h"

#define LINGER_SECONDS 10
#define POLL_MICROSECONDS 2000
#define STOPPED_MICROSECONDS 500000
#define EAGER_EVERY 8 /* replays between two eager rounds */

struct app_options app_options = {.layout = {.nranks = 2, .local = 1},
                                  .timeout = 60,
                                  .comms = 1,
                                  .streams = 1,
                                  .batch = 1,
                                  .iterations = 1,
                                  .rounds = 1,
                                  .descriptors = -1,
                                  .victim = -1,
                                  .seed = 1,
                                  .count = {1000},
                                  .counts = 1,
                                  .kinds = 1,
                                  .root = -1,
                                  .type = {ncclFloat32},
                                  .types = 1,
                                  .offsets = 1};

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char usage[] =
    "usage: sim_app [options]\n"
    "  --nranks N --local K        ranks of the job, ranks per process\n"
    "  --threads                   several ranks of a process: a thread each (otherwise one thread, groups)\n"
    "  --own-gpu                   CUDA_VISIBLE_DEVICES: each process sees only its own GPUs\n"
    "  --rank-env R:NAME=VALUE     environment of the process that holds rank R; NAME alone: unset\n"
    "  --timeout S                 end everything after S seconds\n"
    "  --make rank|config|nonblocking|scalable|all|split|family|shrink|grow\n"
    "  --split-colors a,b,... --split-keys a,b,...  of split; colour -1: excluded by shrink, new to grow;\n"
    "                              key of grow: 1, the rank has the id\n"
    "  --nonblocking               a parent and its children are made without waiting\n"
    "  --pause MS                  wait after the first calls, and after a capture\n"
    "  --jitter US                 ranks wait up to as long before each call and poll\n"
    "  --comms N --streams N       calls go round them\n"
    "  --batch N --group N --nested  calls before waiting; calls per group\n"
    "  --scramble                  communicators of a group in another order on odd ranks\n"
    "  --collectives allreduce,allgather,reducescatter,broadcast --root R\n"
    "  --counts a,b --types f32,f16 --offsets s:r,... --in-place (each both ways)\n"
    "  --iterations N --graph REPLAYS --seed N\n"
    "  --descriptors N             left to a process while it makes its communicators\n"
    "  --linger                    ends when the communicators' memory is back, or after 10 seconds\n"
    "  --scenario NAME --rounds N --victim R --log FILE   see sim_scenario.c\n";

/* An option whose argument is a list: where it counts its parts, and what adds one. */
struct list {
    int *count;
    bool (*add)(void *unused, const char *part);
};

static bool take_list(void *list, const char *text)
{
    const struct list *taken = list;
    *taken->count = 0;
    return cf_for_each(text, taken->add, NULL);
}

static bool add_count(void *unused, const char *text)
{
    char *end;
    (void)unused;
    app_options.count[app_options.counts] = strtoull(text, &end, 0);
    return *text != '\0' && *end == '\0' && app_options.counts++ < APP_MAX_LIST - 1;
}

static bool add_kind(void *unused, const char *text)
{
    static const char *const names[ONEHOP_COLLECTIVE_COUNT] = {"allreduce", "allgather", "reducescatter", "broadcast"};
    int kind = cf_index(names, ONEHOP_COLLECTIVE_COUNT, text);
    (void)unused;
    app_options.kind[app_options.kinds] = (enum onehop_collective)kind;
    return kind >= 0 && app_options.kinds++ < APP_MAX_LIST - 1;
}

static bool add_type(void *unused, const char *text)
{
    static const char *const names[ncclNumTypes] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                                    "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
    int type = cf_index(names, ncclNumTypes, text);
    (void)unused;
    app_options.type[app_options.types] = (ncclDataType_t)type;
    return type >= 0 && app_options.types++ < APP_MAX_LIST - 1;
}

static bool add_offset(void *unused, const char *text)
{
    int *offset = app_options.offset[app_options.offsets];
    (void)unused;
    return sscanf(text, "%d:%d", &offset[0], &offset[1]) == 2 && app_options.offsets++ < APP_MAX_LIST - 1;
}

/* A number for each rank. */
static bool take_ranks(void *value, const char *list)
{
    char *end = (char *)list;
    for (int r = 0; r < CF_MAX_RANKS && *end != '\0'; r++) {
        ((int *)value)[r] = (int)strtol(end, &end, 10);
        end += *end == ',';
    }
    return *end == '\0';
}

static bool take_make(void *value, const char *text)
{
    static const char *const names[APP_MAKES] = {"rank",  "config", "nonblocking", "scalable", "all",
                                                 "split", "family", "shrink",      "grow"};
    *(int *)value = cf_index(names, APP_MAKES, text);
    return *(int *)value >= 0;
}

static bool take_rank_env(void *unused, const char *text)
{
    (void)unused;
    app_options.rank_env[app_options.rank_envs] = text;
    return app_options.rank_envs++ < APP_MAX_LIST - 1;
}

static bool are_good(const struct app_options *options)
{
    const struct cf_layout *layout = &options->layout;
    return layout->nranks % layout->local == 0 && (options->scenario == NULL || app_has_scenario()) &&
           (options->make != CF_INIT_ALL || (layout->local == layout->nranks && !layout->threads));
}

static void parse(int argc, char **argv)
{
    struct app_options *options = &app_options;
    struct list kinds = {&options->kinds, add_kind}, counts = {&options->counts, add_count};
    struct list types = {&options->types, add_type}, offsets = {&options->offsets, add_offset};
    const struct cf_option table[] = {
        CF_INT("nranks", &options->layout.nranks, 1, CF_MAX_RANKS),
        CF_INT("local", &options->layout.local, 1, CF_MAX_RANKS),
        CF_FLAG("threads", &options->layout.threads),
        CF_FLAG("own-gpu", &options->layout.own_gpu),
        CF_TAKES("rank-env", take_rank_env, NULL),
        CF_INT("timeout", &options->timeout, 1, 100000),
        CF_TAKES("make", take_make, &options->make),
        CF_TAKES("split-colors", take_ranks, options->color),
        CF_TAKES("split-keys", take_ranks, options->key),
        CF_FLAG("nonblocking", &options->nonblocking),
        CF_INT("pause", &options->pause, 0, 1000000),
        CF_INT("jitter", &options->jitter, 0, 100000000),
        CF_INT("comms", &options->comms, 1, APP_MAX_COMMS),
        CF_INT("streams", &options->streams, 1, CF_STREAMS),
        CF_INT("batch", &options->batch, 1, 100000),
        CF_INT("group", &options->group, 0, 100000),
        CF_FLAG("nested", &options->nested),
        CF_FLAG("scramble", &options->scramble),
        CF_TAKES("collectives", take_list, &kinds),
        CF_INT("root", &options->root, 0, CF_MAX_RANKS - 1),
        CF_TAKES("counts", take_list, &counts),
        CF_TAKES("types", take_list, &types),
        CF_TAKES("offsets", take_list, &offsets),
        CF_FLAG("in-place", &options->in_place),
        CF_INT("iterations", &options->iterations, 0, 1000000),
        CF_INT("graph", &options->replays, 0, 1000000),
        CF_NUMBER("seed", &options->seed),
        CF_WORD("scenario", &options->scenario),
        CF_INT("rounds", &options->rounds, 0, 1000000),
        CF_INT("victim", &options->victim, 0, CF_MAX_RANKS - 1),
        CF_INT("descriptors", &options->descriptors, 0, 100000),
        CF_FLAG("linger", &options->linger),
        CF_WORD("log", &options->log),
        CF_NO_MORE,
    };
    if (cf_options_read(argc, argv, usage, table) < argc || !are_good(options)) {
        cf_options_refuse(usage);
    }
}

/* --- communicators ------------------------------------------------------------------------------------------------ */

/* The ranks that come later, if any, are the last. */
static int parent_ranks(void)
{
    int nranks = app_options.layout.nranks;
    while (app_options.make == APP_MAKE_GROW && nranks > 0 && app_options.color[nranks - 1] < 0) {
        nranks--;
    }
    return nranks;
}

static void make_child(struct app *app, struct cf_set *set_p)
{
    bool chosen[CF_MAX_RANKS];
    int flags =
        (app_options.nonblocking ? CF_CHILD_NONBLOCKING : 0) | (app_options.seed % 3 == 0 ? CF_CHILD_SHARES : 0);
    for (int r = 0; r < CF_MAX_RANKS; r++) {
        chosen[r] = app_options.make == APP_MAKE_GROW ? app_options.key[r] > 0 : app_options.color[r] < 0;
    }
    if (app_options.make == APP_MAKE_SHRINK) {
        cf_set_shrink(app->worker, &app->parent, chosen, flags, set_p);
    } else if (app_options.make == APP_MAKE_GROW) {
        cf_set_grow(app->worker, &app->parent, chosen, flags, set_p);
    } else {
        cf_set_split(app->worker, &app->parent, app_options.color, app_options.key, flags, set_p);
    }
}

void app_comm_make(struct app *app)
{
    bool has_parent = app_options.make >= APP_MAKE_SPLIT;
    if (has_parent) {
        cf_set_create_first(app->worker, app_options.nonblocking ? CF_INIT_NONBLOCKING : CF_INIT_RANK, parent_ranks(),
                            &app->parent);
    }
    for (int c = 0; c < app_options.comms; c++) {
        if (app_options.make == APP_MAKE_FAMILY && c == 0) {
            app->set[c] = app->parent;
        } else if (has_parent) {
            make_child(app, &app->set[c]);
        } else {
            cf_set_create(app->worker, (enum cf_maker)app_options.make, &app->set[c]);
        }
    }
}

void app_comm_end(struct app *app)
{
    for (int c = app_options.comms - 1; c >= (app_options.make == APP_MAKE_FAMILY ? 1 : 0); c--) {
        if (app_options.seed % 2 == 0) {
            cf_set_finalize(app->worker, &app->set[c]);
        }
        cf_set_destroy(app->worker, &app->set[c]);
    }
    cf_set_destroy(app->worker, &app->parent);
}

/* With only so many descriptors more than are open now, if that is asked for. One worker a process. */
static void make_communicators(struct app *app)
{
    struct rlimit before = {.rlim_cur = 0}, few;
    if (app_options.descriptors < 0) {
        app_comm_make(app);
        return;
    }
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest that is free */
    bool known = next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0;
    few = before;
    few.rlim_cur = (rlim_t)(next + app_options.descriptors);
    cf_check(app->worker, known && setrlimit(RLIMIT_NOFILE, &few) == 0, "no limit can be set");
    app_comm_make(app);
    cf_check(app->worker, setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit cannot be set back");
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static size_t count_cases(void)
{
    return (size_t)(app_options.counts * app_options.types * app_options.offsets * app_options.kinds *
                    (app_options.in_place ? 2 : 1));
}

/* The digit of `number` that comes next, with `base` values. */
static size_t take_digit(size_t *number, int base)
{
    size_t digit = *number % (size_t)base;
    *number /= (size_t)base;
    return digit;
}

struct cf_spec app_case(size_t which)
{
    struct cf_spec spec = {.op = CF_SUM,
                           .root = app_options.root >= 0 ? app_options.root : (int)(which % CF_MAX_RANKS)};
    spec.kind = app_options.kind[take_digit(&which, app_options.kinds)];
    spec.in_place = take_digit(&which, app_options.in_place ? 2 : 1) != 0;
    const int *offset = app_options.offset[take_digit(&which, app_options.offsets)];
    spec.type = app_options.type[take_digit(&which, app_options.types)];
    spec.count = app_options.count[take_digit(&which, app_options.counts)];
    spec.family = cf_types[spec.type].mantissa > 0 ? CF_WIDE : CF_EXACT;
    spec.send_shift = (unsigned)offset[0] * (unsigned)cf_types[spec.type].size;
    spec.recv_shift = (unsigned)offset[1] * (unsigned)cf_types[spec.type].size;
    return spec;
}

/*
 * The calls that the program makes before it waits. Call b goes to communicator b mod --comms, and there is item b /
 * --comms of its batch, and to stream b mod --streams.
 */
struct calls {
    struct app *app;
    struct cf_batch *batch[APP_MAX_COMMS];
};

static void issue_one(struct calls *calls, int m, int b)
{
    struct cf_worker *worker = calls->app->worker;
    struct cf_batch *batch = calls->batch[b % app_options.comms];
    if (batch == NULL) {
        cf_die(worker, "no calls for communicator %d", b % app_options.comms);
    }
    if (batch->set->nranks[m] == 0) { /* not part of this one */
        return;
    }
    cf_jitter(worker);
    if (app_options.nested) {
        CF_NCCL(worker, GroupStart());
    }
    ncclResult_t result =
        cf_batch_call(batch, b / app_options.comms, m, worker->member[m].stream[b % app_options.streams]);
    if (result != ncclSuccess) {
        cf_die(worker, "%s gave %d, expected 0", cf_kind_names[batch->item[b / app_options.comms].spec.kind],
               (int)result);
    }
    if (app_options.nested) {
        CF_NCCL(worker, GroupEnd());
    }
}

/* A member's calls of a group; with --scramble communicator by communicator. */
static void issue_group(struct calls *calls, int m, int first, int end)
{
    int comms = app_options.scramble ? app_options.comms : 1, odd = calls->app->worker->member[m].world_rank % 2;
    for (int c = 0; c < comms; c++) {
        int chosen = odd ? comms - 1 - c : c;
        for (int b = first; b < end; b++) {
            if (b % comms == chosen) {
                issue_one(calls, m, b);
            }
        }
    }
}

/* In groups as the options say. Several members in a thread always need groups. */
static void issue(struct calls *calls)
{
    struct cf_worker *worker = calls->app->worker;
    int step = app_options.group > 0 ? app_options.group : 1;
    bool grouped = app_options.group > 0 || worker->members > 1;
    for (int first = 0; first < app_options.batch; first += step) {
        if (grouped) {
            CF_NCCL(worker, GroupStart());
        }
        for (int m = 0; cf_use(worker, m); m++) {
            issue_group(calls, m, first, first + step < app_options.batch ? first + step : app_options.batch);
        }
        if (grouped) {
            CF_NCCL(worker, GroupEnd());
        }
    }
}

static void load(struct calls *calls)
{
    for (int c = 0; c < app_options.comms && calls->batch[c] != NULL; c++) {
        cf_batch_load(calls->batch[c], 0);
    }
    cf_sync(calls->app->worker);
}

static void judge(struct calls *calls)
{
    cf_sync(calls->app->worker);
    for (int c = 0; c < app_options.comms && calls->batch[c] != NULL; c++) {
        cf_batch_judge(calls->batch[c], 0, true);
    }
}

static void run_eager(struct calls *calls)
{
    load(calls);
    issue(calls);
    judge(calls);
}

static void capture(struct calls *calls, struct cf_graph *graph_p)
{
    struct cf_worker *worker = calls->app->worker;
    cf_capture_begin(worker, 0,
                     app_options.layout.threads ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL,
                     graph_p);
    for (int s = 1; s < app_options.streams; s++) {
        cf_join(worker, 0, s);
    }
    issue(calls);
    for (int s = 1; s < app_options.streams; s++) {
        cf_join(worker, s, 0);
    }
    cf_capture_end(worker, graph_p);
    cf_graph_instantiate(worker, graph_p);
}

static void run_graph(struct calls *calls)
{
    struct cf_worker *worker = calls->app->worker;
    int launches = app_options.in_place ? 1 : 2; /* without waiting: a call that is not in place gives the same again */
    struct cf_graph graph;
    capture(calls, &graph);
    usleep((useconds_t)app_options.pause * 1000);
    for (int replay = 0; replay < app_options.replays; replay++) {
        if (replay % EAGER_EVERY == 0) {
            run_eager(calls);
        }
        load(calls);
        for (int i = 0; i < launches; i++) {
            cf_graph_launch(worker, &graph, 0);
        }
        judge(calls);
    }
    cf_graph_destroy(worker, &graph);
}

/* The cases from `first` on, --batch of them. */
static void run_calls(struct app *app, size_t first, size_t cases)
{
    struct calls calls = {.app = app};
    for (int b = 0; b < app_options.batch; b++) {
        struct cf_batch **batch = &calls.batch[b % app_options.comms];
        struct cf_spec spec = app_case((first + (size_t)b) % cases);
        *batch = *batch != NULL ? *batch : cf_batch_new(app->worker, &app->set[b % app_options.comms]);
        cf_batch_add(*batch, &spec);
    }
    for (int i = 0; i < app_options.iterations; i++) {
        run_eager(&calls);
        usleep((useconds_t)(first == 0 && i == 0 ? app_options.pause : 0) * 1000);
    }
    if (app_options.replays > 0) {
        load(&calls); /* nothing may be allocated in a capture */
        run_graph(&calls);
    }
    for (int c = 0; c < app_options.comms && calls.batch[c] != NULL; c++) {
        cf_batch_free(calls.batch[c]);
    }
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* --linger: until the memory of the communicators is back, which may take as long as other ranks do; with a bound. */
static void linger(struct app *app, long kib_before)
{
    for (double end = cf_now() + LINGER_SECONDS; cf_now() < end && cf_gpu_kib(app->worker) > kib_before;) {
        usleep(POLL_MICROSECONDS);
    }
    usleep(10 * POLL_MICROSECONDS); /* what is freed after the memory */
}

static void run_worker(struct cf_worker *worker)
{
    struct app *app = cf_need(worker, calloc(1, sizeof *app));
    long kib_before = cf_gpu_kib(worker);
    app->worker = worker;
    app->board = (struct app_board *)worker->board;
    worker->result = &app->board->result[worker->index];
    worker->jitter_us = (unsigned)app_options.jitter;
    worker->hashes_compared = app_options.scenario == NULL;
    make_communicators(app);
    if (app_options.scenario != NULL) {
        app_scenario_run(app);
    } else {
        size_t cases = count_cases();
        for (size_t first = 0; first < cases; first += (size_t)app_options.batch) {
            run_calls(app, first, cases);
        }
    }
    app_comm_end(app);
    if (app_options.linger) {
        linger(app, kib_before);
    }
    free(app);
}

/* The --rank-env settings of the ranks of a process. */
static void set_environment(const struct cf_job *job, int process)
{
    int first = process * job->board->layout.local;
    for (int i = 0; i < app_options.rank_envs; i++) {
        char text[4096], *name;
        int rank = (int)strtol(app_options.rank_env[i], &name, 10);
        if (rank < first || rank >= first + job->board->layout.local || *name != ':') {
            continue;
        }
        snprintf(text, sizeof text, "%s", name + 1);
        char *value = strchr(text, '=');
        if (value == NULL) {
            unsetenv(text);
        } else {
            *value = '\0';
            setenv(text, value + 1, 1);
        }
    }
}

/* Processes that a fault has stopped (SIMNODE_STOP) go on when a child of the launcher comes by, which ends with it. */
static void start_continuing(const struct cf_job *job)
{
    if (fork() != 0) {
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        usleep(STOPPED_MICROSECONDS);
        for (int p = 0; p < job->processes; p++) {
            kill(job->pid[p], SIGCONT);
        }
    }
}

static bool is_scenario(const char *beginning)
{
    return app_options.scenario != NULL && strncmp(app_options.scenario, beginning, strlen(beginning)) == 0;
}

/* In scenarios kill* the victim must not come to its end, in scenarios fault-* it may be killed before. */
static bool has_ended_well(const struct cf_job *job, int process, int status)
{
    bool is_victim = app_options.victim >= 0 && app_options.victim / job->board->layout.local == process;
    bool must = is_victim && is_scenario("kill"), may = is_victim && is_scenario("fault-");
    if ((must || may) && WIFSIGNALED(status)) {
        return WTERMSIG(status) == (is_scenario("kill-fault") ? SIGSEGV : SIGKILL);
    }
    return !must && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool hashes_agree(const struct app_board *board)
{
    for (int w = 1; w < cf_workers(&board->board.layout); w++) {
        if (app_options.scenario == NULL && board->result[w].hash != board->result[0].hash) {
            printf("FAIL results of workers 0 and %d differ\n", w);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct cf_job job = {.prepare = set_environment, .ended_well = has_ended_well};
    struct cf_board *board;
    int process;
    parse(argc, argv);
    if (cf_job_join(sizeof(struct app_board), &board, &process)) {
        /* The pages of large buffers are kept: new ones take a third of the system time of tests of large messages. */
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        return cf_job_run(board, process, run_worker, NULL);
    }
    cf_job_open(&job, argv, sizeof(struct app_board));
    job.board->layout = app_options.layout;
    job.board->seed = app_options.seed;
    job.board->stops = true;
    cf_job_start(&job);
    if (is_scenario("fault-")) {
        start_continuing(&job);
    }
    bool good = cf_job_wait(&job, app_options.timeout) && hashes_agree((struct app_board *)job.board);
    cf_job_close(&job);
    printf("%s %d ranks, seed %llu\n", good ? "ok" : "FAIL", app_options.layout.nranks,
           (unsigned long long)app_options.seed);
    return good ? 0 : 1;
}
