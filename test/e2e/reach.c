/* SPDX-License-Identifier: MIT */
/*
 * reach.c - one rank of an NCCL job that reaches NCCL in the way that its arguments say
 *
 *   reach RANK NRANKS FOLDER WAY...
 *
 * Each WAY, KIND:PATH, is a set of functions of NCCL, got in a way of the table below; "linked": this program's own
 * calls; "both:WAY,WAY": two sets, a communicator of each at the same time. The ranks make two communicators in turn
 * with each, three allreduces on each communicator (the last two in a group), and check the results. Unique ids go from
 * rank 0 to the others through files in FOLDER. Not linked with NCCL (but reach_linked is).
 *
 * REACH_SUSPEND: a communicator is suspended and resumed after its calls, and used again. REACH_IDLE: communicators are
 * made and ended only. REACH_KEEP: they are never ended. Prints a line for each WAY; with the simulated NCCL "stock N"
 * is in it, the allreduces that the library behind it has been called for. REACH_HOLD: waits for the end of its input
 * then. Runs on real GPUs, too (scripts/check-gpu).
 */
#include "reach.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "id_file.h"

#define COUNT 1000
#define COMMUNICATORS 2

static int rank, nranks;
static const char *folder;

static const struct kind {
    const char *name;
    int flags;         /* of dlopen */
    const char *table; /* that of an object that is linked with NCCL, the path; NULL: dlsym on the library, the path */
} kinds[] = {
    {"object", RTLD_NOW, "reach_calls"},
    {"deepbind", RTLD_NOW | RTLD_DEEPBIND, "reach_calls"},
    {"lazy", RTLD_LAZY | RTLD_DEEPBIND, "reach_calls"},            /* bound at the first call */
    {"table", RTLD_NOW, "reach_addresses"},                        /* its table of addresses */
    {"direct", RTLD_NOW, "reach_direct"},                          /* by pncclX */
    {"turns", RTLD_NOW, "reach_calls"},                            /* rank 0: every second allreduce by pncclX */
    {"newer", RTLD_NOW, "reach_newer"},                            /* ncclAllReduceConfig */
    {"early", RTLD_NOW | RTLD_DEEPBIND, "reach_early"},            /* addresses that its constructor has kept */
    {"earlydlsym", RTLD_NOW | RTLD_DEEPBIND, "reach_early_dlsym"}, /* and has got by dlsym */
    {"dlsym", RTLD_NOW, NULL},                                     /* all before the first communicator */
    {"directdlsym", RTLD_NOW, NULL},                               /* by pncclX */
    {"late", RTLD_NOW, NULL},                                      /* anew before each communicator */
    {"mixed", RTLD_NOW, NULL},                                     /* ncclAllReduce alone anew */
    {"newerdlsym", RTLD_NOW, NULL},                                /* as late, ncclAllReduceConfig */
    {"dlvsym", RTLD_NOW, NULL},                                    /* by dlvsym */
    {"default", RTLD_NOW | RTLD_GLOBAL, NULL},                     /* dlsym(RTLD_DEFAULT) */
    {"close", RTLD_NOW, NULL},                                     /* then the library is closed: does it stay? */
    {"linked", RTLD_NOW, NULL},
};

struct way {
    const char *text;
    const struct kind *kind;
    const char *path;
    void *handle;
    struct reach_api api;
    unsigned long (*calls)(const char *function); /* NULL: not a simulated library */
};

#define MUST(condition_)                                                                                               \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "reach: rank %d: line %d: %s\n", rank, __LINE__, #condition_);                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* --- ways ------------------------------------------------------------------------------------------------------- */

static bool is(const struct way *way, const char *kind)
{
    return strcmp(way->kind->name, kind) == 0;
}

static void *look_up(struct way *way, const char *name)
{
    if (is(way, "dlvsym")) {
        return dlvsym(way->handle, name, "NCCL_COPY_2");
    }
    return dlsym(is(way, "default") ? RTLD_DEFAULT : way->handle, name);
}

static reach_config config_function;

static ncclResult_t all_reduce_config(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream)
{
    return reach_configured(config_function, send, recv, count, type, op, comm, stream);
}

static void look_up_all(struct way *way)
{
#define LOOK_UP(name_, parameters_, arguments_)                                                                        \
    way->api.name_ = (__typeof__(way->api.name_))look_up(way, &"pnccl" #name_[!is(way, "directdlsym")]);               \
    MUST(way->api.name_);
    REACH_FUNCTIONS(LOOK_UP)
    if (is(way, "newerdlsym")) {
        config_function = (reach_config)look_up(way, "ncclAllReduceConfig");
        MUST(config_function);
        way->api.AllReduce = all_reduce_config;
    }
}

/* The calls of a tool that is used by rank 0 alone, for some calls. */
static const struct reach_api *turns_of[2];

static ncclResult_t all_reduce_in_turns(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                        ncclComm_t comm, cudaStream_t stream)
{
    static unsigned calls;
    return turns_of[rank == 0 && calls++ % 2]->AllReduce(send, recv, count, type, op, comm, stream);
}

extern const struct reach_api reach_calls __attribute__((weak));

static const struct kind *find(const char *text, size_t length)
{
    size_t k = 0;
    while (strncmp(text, kinds[k].name, length) != 0 || kinds[k].name[length] != '\0') {
        MUST(++k < sizeof kinds / sizeof *kinds);
    }
    return &kinds[k];
}

static void open_way(struct way *way, const char *text)
{
    const char *colon = strchr(text, ':');
    *way = (struct way){.text = text, .path = colon ? colon + 1 : NULL};
    way->kind = find(text, colon ? (size_t)(colon - text) : strlen(text));
    way->handle = dlopen(way->path, way->kind->flags);
    if (!way->handle) {
        fprintf(stderr, "reach: %s\n", dlerror());
        exit(1);
    }
    if (is(way, "linked")) {
        MUST(&reach_calls);
        way->api = reach_calls;
    } else if (way->kind->table) {
        const struct reach_api *api = dlsym(way->handle, way->kind->table);
        MUST(api);
        way->api = *api;
        if (is(way, "turns")) {
            turns_of[0] = api;
            turns_of[1] = dlsym(way->handle, "reach_direct");
            way->api.AllReduce = all_reduce_in_turns;
        }
    } else {
        look_up_all(way);
    }
    way->calls = (unsigned long (*)(const char *))dlsym(way->handle, "simnccl_calls");
}

/* A way may see other addresses now than before the first communicator. */
static void refresh(struct way *way)
{
    if (is(way, "late") || is(way, "newerdlsym")) {
        look_up_all(way);
    } else if (is(way, "mixed")) {
        way->api.AllReduce = (__typeof__(way->api.AllReduce))look_up(way, "ncclAllReduce");
    } else if (is(way, "table")) {
        way->api = *(const struct reach_api *)dlsym(way->handle, way->kind->table);
    }
}

/* --- the job ---------------------------------------------------------------------------------------------------- */

static ncclComm_t make_comm(const struct reach_api *api)
{
    static int serial;
    char path[4096];
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    snprintf(path, sizeof path, "%s/id.%d", folder, serial++);
    if (rank == 0) {
        MUST(api->GetUniqueId(&id) == ncclSuccess && id_publish(path, &id));
    } else {
        MUST(id_fetch(path, &id));
    }
    MUST(api->CommInitRank(&comm, nranks, id, rank) == ncclSuccess && comm);
    return comm;
}

/* Waits, since the stream of the calls does not wait for the copy. */
static void fill(CUdeviceptr buffer, int call)
{
    static float host[COUNT];
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)(i % 97 + call + rank);
    }
    MUST(cuMemcpyHtoD(buffer, host, sizeof host) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS);
}

static void check(CUdeviceptr buffer, int call)
{
    static float host[COUNT];
    MUST(cuMemcpyDtoH(host, buffer, sizeof host) == CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++) {
        MUST(host[i] == (float)(nranks * (i % 97 + call) + nranks * (nranks - 1) / 2));
    }
}

static void work(const struct reach_api *api, ncclComm_t comm, CUstream stream, CUdeviceptr *buffer)
{
    cudaStream_t nccl_stream = (cudaStream_t)stream;
    if (getenv("REACH_IDLE")) {
        return;
    }
    if (getenv("REACH_BROKEN")) {
        void *at = (void *)(uintptr_t)buffer[0];
        MUST(api->GroupStart() == ncclSuccess);
        api->AllReduce(at, at, COUNT, ncclFloat, ncclSum, comm, nccl_stream);
        MUST(api->GroupEnd() == ncclInvalidArgument);
        return;
    }
    for (int call = 0; call < 3; call++) {
        fill(buffer[call], call);
    }
    for (int call = 0; call < 3; call++) {
        void *at = (void *)(uintptr_t)buffer[call];
        MUST(call != 1 || api->GroupStart() == ncclSuccess);
        MUST(api->AllReduce(at, at, COUNT, ncclFloat, ncclSum, comm, nccl_stream) == ncclSuccess);
    }
    MUST(api->GroupEnd() == ncclSuccess);
    MUST(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    for (int call = 0; call < 3; call++) {
        check(buffer[call], call);
    }
}

/* NCCL rejects calls of a suspended communicator. */
static void suspend_once(const struct way *way, ncclComm_t comm, CUstream stream, CUdeviceptr *buffer)
{
    ncclResult_t (*suspend)(ncclComm_t, int) = (ncclResult_t(*)(ncclComm_t, int))dlsym(way->handle, "ncclCommSuspend");
    ncclResult_t (*resume)(ncclComm_t) = (ncclResult_t(*)(ncclComm_t))dlsym(way->handle, "ncclCommResume");
    void *at = (void *)(uintptr_t)buffer[0];
    MUST(suspend && resume && suspend(comm, 1) == ncclSuccess);
    MUST(way->api.AllReduce(at, at, COUNT, ncclFloat, ncclSum, comm, (cudaStream_t)stream) == ncclInvalidUsage);
    MUST(resume(comm) == ncclSuccess);
    work(&way->api, comm, stream, buffer);
}

static void report(const struct way *way)
{
    if (way->calls) {
        printf("reach: %s: stock %lu, made %lu, ended %lu, groups %lu\n", way->text, way->calls("ncclAllReduce"),
               way->calls("ncclCommInitRank"), way->calls("ncclCommDestroy"), way->calls("ncclGroupEnd"));
    } else {
        printf("reach: %s: right\n", way->text);
    }
}

static void close_library(const struct way *way)
{
    MUST(dlclose(way->handle) == 0);
    void *left = dlopen(way->path, RTLD_NOW | RTLD_NOLOAD);
    printf("reach: the library %s\n", left ? "stays" : "is gone");
    MUST(!left || dlclose(left) == 0);
}

/* One or two ways at once; a communicator of each, in turn. */
static void run(char *text)
{
    struct way way[2];
    CUstream stream;
    CUdeviceptr buffer[3];
    char *second = strncmp(text, "both:", 5) == 0 ? strchr(text, ',') : NULL;
    int ways = second ? 2 : 1;
    if (second) {
        *second = '\0';
        open_way(&way[1], second + 1);
        text += 5;
    }
    open_way(&way[0], text);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    for (int b = 0; b < 3; b++) {
        MUST(cuMemAlloc(&buffer[b], COUNT * sizeof(float)) == CUDA_SUCCESS);
    }
    for (int c = 0; c < COMMUNICATORS; c++) {
        ncclComm_t comm[2];
        for (int w = 0; w < ways; w++) {
            refresh(&way[w]);
            comm[w] = make_comm(&way[w].api);
        }
        for (int w = 0; w < ways; w++) {
            refresh(&way[w]);
            work(&way[w].api, comm[w], stream, buffer);
            if (getenv("REACH_SUSPEND")) {
                suspend_once(&way[w], comm[w], stream, buffer);
            }
        }
        for (int w = 0; w < ways; w++) {
            MUST(getenv("REACH_KEEP") || way[w].api.CommDestroy(comm[w]) == ncclSuccess);
        }
    }
    for (int w = 0; w < ways; w++) {
        report(&way[w]);
    }
    if (is(&way[0], "close")) {
        close_library(&way[0]);
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    if (argc < 5) {
        fprintf(stderr, "usage: reach RANK NRANKS FOLDER WAY...\n");
        return 2;
    }
    rank = atoi(argv[1]);
    nranks = atoi(argv[2]);
    folder = argv[3];
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, rank) == CUDA_SUCCESS &&
         cuCtxSetCurrent(context) == CUDA_SUCCESS);
    for (int i = 4; i < argc; i++) {
        run(argv[i]);
    }
    while (getenv("REACH_HOLD") && getchar() != EOF) {
    }
    return 0;
}
