/* SPDX-License-Identifier: MIT */
/*
 * sparse_collectives.c - the collectives of sparse gradient reduction in C: what test/apps/sparse.py does in Python
 *
 *   cc -I/usr/local/cuda/include -o sparse_collectives test/apps/sparse_collectives.c -lnccl -lcuda -lpthread
 *   ./sparse_collectives [elements [entries [rounds]]]
 *
 * One process, a thread for each GPU, two communicators and a stream for each: all schemes run on the first, on the
 * second, and on both in turn. Their dense allreduces are what onehop may serve; the rest goes to NCCL.
 *
 *   dense    one allreduce
 *   topk     each rank's largest entries, allgathered and added (the Gaussian schemes of sparse.py gather likewise)
 *   gtopk    the largest of two ranks, merged along a tree of sends and receives; a broadcast of the last (Shi et al.,
 *            ICDCS 2019)
 *   oktopk   the index space cut into regions of equal load (allreduce of boundaries); sizes by an all-to-all, then
 *            entries, by grouped sends and receives with two peers at a time; a common threshold (allreduce); a gather
 *            of what lies above it (Li and Hoefler, PPoPP 2022)
 *   overlap  an allreduce on one stream, in one group with an exchange on the other
 *
 * Gradients are small whole numbers, so that every sum is exact. All is compared with what the rank computes by itself;
 * the hashes printed are the same with any NCCL.
 */
#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 8
#define THROTTLE 2 /* peers that are sent to and received from at a time */

static int ranks;
static size_t length, picked; /* elements of a gradient, entries that a rank picks */
static pthread_barrier_t barrier;

#define CHECK(condition_)                                                                                              \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "sparse_collectives: line %d: %s\n", __LINE__, #condition_);                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CU(call_) CHECK((call_) == CUDA_SUCCESS)
#define NCCL(call_) CHECK((call_) == ncclSuccess)

/* nccl.h gives these without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* Entries of a gradient, ascending by index: what is not among them is zero. */
struct entries {
    size_t count;
    int32_t *index;
    float *value;
};

struct lane {
    int rank;
    ncclComm_t comm;
    CUstream stream;
    CUdeviceptr out, in; /* room for an array of each rank */
};

struct worker {
    int rank;
    CUcontext context;
    struct lane lane[2];
    float *gradient;
    uint64_t hash;
};

/* Zeroed memory; never NULL. */
static void *array(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    CHECK(memory != NULL);
    return memory;
}

/* Memory of the GPU as NCCL takes it. */
static void *pointer(CUdeviceptr memory)
{
    return (void *)(uintptr_t)memory;
}

static struct entries entries_new(size_t room)
{
    return (struct entries){0, array(room, sizeof(int32_t)), array(room, sizeof(float))};
}

static void entries_free(struct entries *entries)
{
    free(entries->index);
    free(entries->value);
}

static void add_to(float *sum, const struct entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        sum[entries->index[i]] += entries->value[i];
    }
}

/* --- collectives on arrays of 4-byte words of the host, which are copied to the GPU and back ---------------------- */

static void upload(const struct lane *lane, const void *from, size_t words)
{
    CU(cuMemcpyHtoDAsync(lane->out, from, words * 4, lane->stream));
}

static void download(const struct lane *lane, void *to_p, CUdeviceptr from, size_t words)
{
    CU(cuMemcpyDtoHAsync(to_p, from, words * 4, lane->stream));
    CU(cuStreamSynchronize(lane->stream));
}

static void all_reduce(const struct lane *lane, void *data, size_t count, ncclDataType_t type)
{
    upload(lane, data, count);
    NCCL(ncclAllReduce(pointer(lane->out), pointer(lane->in), count, type, ncclSum, lane->comm,
                       (cudaStream_t)lane->stream));
    download(lane, data, lane->in, count);
}

static void all_gather(const struct lane *lane, const void *mine, size_t count, void *all_p)
{
    upload(lane, mine, count);
    NCCL(
        ncclAllGather(pointer(lane->out), pointer(lane->in), count, ncclInt32, lane->comm, (cudaStream_t)lane->stream));
    download(lane, all_p, lane->in, count * (size_t)ranks);
}

/* Of rank 0. */
static void broadcast(const struct lane *lane, void *data, size_t count)
{
    upload(lane, data, count);
    NCCL(ncclBroadcast(pointer(lane->out), pointer(lane->in), count, ncclInt32, 0, lane->comm,
                       (cudaStream_t)lane->stream));
    download(lane, data, lane->in, count);
}

/* Words at a place in `out` and `in`; in a group, where there are several. */
static void send_words(const struct lane *lane, size_t at, size_t count, int peer)
{
    NCCL(ncclSend(pointer(lane->out + at * 4), count, ncclInt32, peer, lane->comm, (cudaStream_t)lane->stream));
}

static void receive_words(const struct lane *lane, size_t at, size_t count, int peer)
{
    NCCL(ncclRecv(pointer(lane->in + at * 4), count, ncclInt32, peer, lane->comm, (cudaStream_t)lane->stream));
}

/* A word for and from each rank. */
static void all_to_all(const struct lane *lane, const int32_t *mine, int32_t *theirs_p)
{
    upload(lane, mine, (size_t)ranks);
    NCCL(ncclGroupStart());
    for (int r = 0; r < ranks; r++) {
        send_words(lane, (size_t)r, 1, r);
        receive_words(lane, (size_t)r, 1, r);
    }
    NCCL(ncclGroupEnd());
    download(lane, theirs_p, lane->in, (size_t)ranks);
}

/* Adds up everyone's entries, of any number. */
static void gather_entries(const struct lane *lane, const struct entries *mine, float *sum_p)
{
    int32_t count = (int32_t)mine->count, counts[RANKS_MAX], most = 1;
    all_gather(lane, &count, 1, counts);
    for (int r = 0; r < ranks; r++) {
        most = counts[r] > most ? counts[r] : most;
    }
    int32_t *padded = array((size_t)most, sizeof *padded), *index = array((size_t)(most * ranks), sizeof *index);
    float *value = array((size_t)(most * ranks), sizeof *value);
    memcpy(padded, mine->index, mine->count * 4);
    all_gather(lane, padded, (size_t)most, index);
    memcpy(padded, mine->value, mine->count * 4);
    all_gather(lane, padded, (size_t)most, value);
    for (int r = 0; r < ranks; r++) {
        add_to(sum_p, &(struct entries){(size_t)counts[r], index + most * r, value + most * r});
    }
    free(padded);
    free(index);
    free(value);
}

/* --- gradients and their largest entries ------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* Most entries are small, few are large. */
static void fill_gradient(int rank, int round, float *gradient_p)
{
    for (size_t i = 0; i < length; i++) {
        int64_t x = (int64_t)(mix(mix((uint64_t)round * 64 + (uint64_t)rank + 1) + i) % 201) - 100;
        gradient_p[i] = (float)(x * x * x / 1000);
    }
}

static float magnitude(float x)
{
    return x < 0 ? -x : x;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The magnitude that the k-th largest of them has. */
static float kth_magnitude(const float *values, size_t count, size_t k)
{
    float *sorted = array(count, sizeof *sorted);
    for (size_t i = 0; i < count; i++) {
        sorted[i] = magnitude(values[i]);
    }
    qsort(sorted, count, sizeof *sorted, descending);
    float result = sorted[k - 1];
    free(sorted);
    return result;
}

/* The k largest, among equals those of the lowest index. */
static struct entries largest(const float *values, size_t k)
{
    struct entries entries = entries_new(k);
    float threshold = kth_magnitude(values, length, k);
    size_t above = 0;
    for (size_t i = 0; i < length; i++) {
        above += magnitude(values[i]) > threshold;
    }
    for (size_t i = 0, equal = k - above; i < length && entries.count < k; i++) {
        if (magnitude(values[i]) > threshold || (magnitude(values[i]) == threshold && equal > 0)) {
            equal -= magnitude(values[i]) == threshold;
            entries.index[entries.count] = (int32_t)i;
            entries.value[entries.count++] = values[i];
        }
    }
    return entries;
}

/* --- the schemes ------------------------------------------------------------------------------------------------- */

static void dense(const struct lane *lane, const float *gradient, float *sum_p)
{
    memcpy(sum_p, gradient, length * sizeof *sum_p);
    all_reduce(lane, sum_p, length, ncclFloat);
}

static void topk(const struct lane *lane, const float *gradient, float *sum_p)
{
    struct entries mine = largest(gradient, picked);
    gather_entries(lane, &mine, sum_p);
    entries_free(&mine);
}

/* The largest of what two ranks hold, in place of the first's. */
static void merge(struct entries *mine, const struct entries *theirs)
{
    float *both = array(length, sizeof *both);
    add_to(both, mine);
    add_to(both, theirs);
    entries_free(mine);
    *mine = largest(both, picked);
    free(both);
}

static void send_entries(const struct lane *lane, const struct entries *mine, int peer)
{
    CU(cuMemcpyHtoDAsync(lane->out, mine->index, picked * 4, lane->stream));
    CU(cuMemcpyHtoDAsync(lane->out + picked * 4, mine->value, picked * 4, lane->stream));
    send_words(lane, 0, 2 * picked, peer);
    CU(cuStreamSynchronize(lane->stream));
}

static void receive_entries(const struct lane *lane, struct entries *theirs_p, int peer)
{
    theirs_p->count = picked;
    receive_words(lane, 0, 2 * picked, peer);
    download(lane, theirs_p->index, lane->in, picked);
    download(lane, theirs_p->value, lane->in + picked * 4, picked);
}

static void gtopk(const struct lane *lane, const float *gradient, float *sum_p)
{
    struct entries mine = largest(gradient, picked), theirs = entries_new(picked);
    for (int step = 1; step < ranks && lane->rank % step == 0; step *= 2) {
        if (lane->rank % (2 * step) == step) {
            send_entries(lane, &mine, lane->rank - step);
        } else if (lane->rank + step < ranks) {
            receive_entries(lane, &theirs, lane->rank + step);
            merge(&mine, &theirs);
        }
    }
    broadcast(lane, mine.index, picked);
    broadcast(lane, mine.value, picked);
    mine.count = picked;
    add_to(sum_p, &mine);
    entries_free(&mine);
    entries_free(&theirs);
}

/* The ranks' cuts into equal loads, averaged: region r is from edge r to edge r + 1. */
static void find_regions(const struct lane *lane, const struct entries *mine, int32_t *edge_p)
{
    int32_t cut[RANKS_MAX];
    for (int r = 1; r < ranks; r++) {
        cut[r - 1] = mine->index[(size_t)r * mine->count / (size_t)ranks];
    }
    all_reduce(lane, cut, (size_t)(ranks - 1), ncclInt32);
    edge_p[0] = 0;
    for (int r = 1; r < ranks; r++) {
        edge_p[r] = cut[r - 1] / ranks;
    }
    edge_p[ranks] = (int32_t)length;
}

/* Sends each region's entries to its rank, and adds up those of this one. The values lie `picked` words behind. */
static void exchange_entries(const struct lane *lane, const struct entries *mine, const int32_t *edge, float *sum_p)
{
    int32_t start[RANKS_MAX + 1] = {0}, sizes[RANKS_MAX], theirs[RANKS_MAX];
    for (int r = 0; r < ranks; r++) {
        start[r + 1] = start[r];
        while (start[r + 1] < (int32_t)mine->count && mine->index[start[r + 1]] < edge[r + 1]) {
            start[r + 1]++;
        }
        sizes[r] = start[r + 1] - start[r];
    }
    all_to_all(lane, sizes, theirs);
    CU(cuMemcpyHtoDAsync(lane->out, mine->index, mine->count * 4, lane->stream));
    CU(cuMemcpyHtoDAsync(lane->out + picked * 4, mine->value, mine->count * 4, lane->stream));
    for (int first = 0; first < ranks; first += THROTTLE) {
        NCCL(ncclGroupStart());
        for (int d = first; d < first + THROTTLE && d < ranks; d++) {
            int to = (lane->rank + d) % ranks, from = (lane->rank - d + ranks) % ranks;
            size_t place = 2 * picked * (size_t)from;
            send_words(lane, (size_t)start[to], (size_t)sizes[to], to);
            send_words(lane, picked + (size_t)start[to], (size_t)sizes[to], to);
            receive_words(lane, place, (size_t)theirs[from], from);
            receive_words(lane, place + picked, (size_t)theirs[from], from);
        }
        NCCL(ncclGroupEnd());
    }
    struct entries part = entries_new(picked);
    for (int r = 0; r < ranks; r++) {
        part.count = (size_t)theirs[r];
        download(lane, part.index, lane->in + 8 * picked * (size_t)r, part.count);
        download(lane, part.value, lane->in + 8 * picked * (size_t)r + 4 * picked, part.count);
        add_to(sum_p, &part);
    }
    entries_free(&part);
}

static void oktopk(const struct lane *lane, const float *gradient, float *sum_p)
{
    struct entries mine = largest(gradient, picked), kept = entries_new(length);
    float *region = array(length, sizeof *region), threshold;
    int32_t edge[RANKS_MAX + 1];
    find_regions(lane, &mine, edge);
    exchange_entries(lane, &mine, edge, region);
    size_t share = picked / (size_t)ranks > 0 ? picked / (size_t)ranks : 1;
    threshold = kth_magnitude(region, length, share); /* of this region; the mean is everyone's */
    all_reduce(lane, &threshold, 1, ncclFloat);
    threshold /= (float)ranks;
    for (size_t i = 0; i < length; i++) {
        if (region[i] != 0 && magnitude(region[i]) >= threshold) {
            kept.index[kept.count] = (int32_t)i;
            kept.value[kept.count++] = region[i];
        }
    }
    gather_entries(lane, &kept, sum_p);
    free(region);
    entries_free(&kept);
    entries_free(&mine);
}

/* --- what must come out ------------------------------------------------------------------------------------------- */

typedef void (*scheme)(const struct lane *lane, const float *gradient, float *sum_p);

static const struct {
    const char *name;
    scheme run;
    const size_t *entries; /* of the largest, which a rank contributes */
} schemes[] = {
    {"dense", dense, &length}, {"topk", topk, &picked}, {"gtopk", gtopk, &picked}, {"oktopk", oktopk, &picked}};

#define SCHEMES (sizeof schemes / sizeof *schemes)

/* The tree of gtopk, by one rank alone. */
static void expect_gtopk(struct entries *of_rank, float *sum_p)
{
    for (int step = 1; step < ranks; step *= 2) {
        for (int r = 0; r + step < ranks; r += 2 * step) {
            merge(&of_rank[r], &of_rank[r + step]);
        }
    }
    add_to(sum_p, &of_rank[0]);
}

/* Of oktopk what is there must be right; which entries, the ranks' hashes compare. */
static void verify(size_t which, int round, const float *got)
{
    float *gradient = array(length, sizeof *gradient), *sum = array(length, sizeof *sum);
    struct entries of_rank[RANKS_MAX];
    bool tree = schemes[which].run == gtopk, part = schemes[which].run == oktopk;
    size_t entries = 0;
    for (int r = 0; r < ranks; r++) {
        fill_gradient(r, round, gradient);
        of_rank[r] = largest(gradient, *schemes[which].entries);
        if (!tree) {
            add_to(sum, &of_rank[r]);
        }
    }
    if (tree) {
        expect_gtopk(of_rank, sum);
    }
    for (size_t i = 0; i < length; i++) {
        CHECK(got[i] == sum[i] || (part && got[i] == 0));
        entries += got[i] != 0;
    }
    CHECK(entries > 0);
    for (int r = 0; r < ranks; r++) {
        entries_free(&of_rank[r]);
    }
    free(gradient);
    free(sum);
}

static void note(struct worker *worker, const float *result)
{
    for (size_t i = 0; i < length; i++) {
        worker->hash = mix(worker->hash ^ (uint64_t)(int64_t)result[i]) + i;
    }
}

static void run_scheme(struct worker *worker, size_t which, int lane, int round)
{
    float *sum = array(length, sizeof *sum);
    fill_gradient(worker->rank, round, worker->gradient);
    schemes[which].run(&worker->lane[lane], worker->gradient, sum);
    verify(which, round, sum);
    note(worker, sum);
    free(sum);
}

/*
 * On the first communicator, in one group: an allreduce on the first stream, a ring on the second. NCCL joins them: the
 * allreduce waits for the copies on the second stream, and what is on that waits for it.
 */
static void overlap(struct worker *worker, int round)
{
    const struct lane *lane = &worker->lane[0];
    struct lane ring = worker->lane[1];
    ring.comm = lane->comm;
    float *sum = array(length, sizeof *sum), *other = array(length, sizeof *other);
    int next = (worker->rank + 1) % ranks, previous = (worker->rank + ranks - 1) % ranks;
    fill_gradient(worker->rank, round, worker->gradient);
    CU(cuMemcpyHtoDAsync(lane->out, worker->gradient, length * 4, ring.stream));
    upload(&ring, worker->gradient, length);
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(pointer(lane->out), pointer(lane->in), length, ncclFloat, ncclSum, lane->comm,
                       (cudaStream_t)lane->stream));
    send_words(&ring, 0, length, next);
    receive_words(&ring, 0, length, previous);
    NCCL(ncclGroupEnd());
    download(&ring, sum, lane->in, length);
    download(&ring, other, ring.in, length);
    verify(0, round, sum);
    fill_gradient(previous, round, worker->gradient);
    CHECK(memcmp(other, worker->gradient, length * sizeof *other) == 0);
    note(worker, sum);
    free(sum);
    free(other);
}

/* --- the ranks ---------------------------------------------------------------------------------------------------- */

static ncclUniqueId ids[2];
static struct worker workers[RANKS_MAX];
static int rounds;

static void tell(const char *name)
{
    pthread_barrier_wait(&barrier);
    for (int r = 1; r < ranks; r++) {
        CHECK(workers[r].hash == workers[0].hash);
    }
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        printf("%-8s %d ranks, %zu of %zu entries: %016llx\n", name, ranks, picked, length,
               (unsigned long long)workers[0].hash);
    }
    pthread_barrier_wait(&barrier);
}

static void open_worker(struct worker *worker)
{
    CUdevice device;
    size_t words = length > 2 * picked ? length : 2 * picked;
    CU(cuDeviceGet(&device, worker->rank));
    CU(cuDevicePrimaryCtxRetain(&worker->context, device));
    CU(cuCtxSetCurrent(worker->context));
    worker->gradient = array(length, sizeof *worker->gradient);
    for (int l = 0; l < 2; l++) {
        struct lane *lane = &worker->lane[l];
        lane->rank = worker->rank;
        CU(cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING));
        CU(cuMemAlloc(&lane->out, words * (size_t)ranks * 4));
        CU(cuMemAlloc(&lane->in, words * (size_t)ranks * 4));
        NCCL(ncclCommInitRank(&lane->comm, ranks, ids[l], worker->rank));
    }
}

static void close_worker(struct worker *worker)
{
    for (int l = 0; l < 2; l++) {
        NCCL(ncclCommDestroy(worker->lane[l].comm));
        CU(cuMemFree(worker->lane[l].out));
        CU(cuMemFree(worker->lane[l].in));
    }
    free(worker->gradient);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    open_worker(worker);
    for (size_t s = 0; s < SCHEMES; s++) {
        for (int round = 0; round < 2 * rounds; round++) {
            run_scheme(worker, s, round % 2, round);
        }
        tell(schemes[s].name);
    }
    for (int round = 0; round < rounds; round++) {
        overlap(worker, round);
    }
    tell("overlap");
    pthread_barrier_wait(&barrier); /* a call that is under way elsewhere needs this rank */
    close_worker(worker);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread[RANKS_MAX];
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&ranks) == CUDA_SUCCESS && ranks > 1);
    ranks = ranks < RANKS_MAX ? ranks : RANKS_MAX;
    length = argc > 1 ? strtoull(argv[1], NULL, 10) : 5000;
    picked = argc > 2 ? strtoull(argv[2], NULL, 10) : length / 50;
    rounds = argc > 3 ? atoi(argv[3]) : 4;
    CHECK(picked >= (size_t)ranks && picked <= length && length < INT32_MAX / RANKS_MAX);
    CHECK(pthread_barrier_init(&barrier, NULL, (unsigned)ranks) == 0);
    NCCL(ncclGetUniqueId(&ids[0]));
    NCCL(ncclGetUniqueId(&ids[1]));
    for (int r = 0; r < ranks; r++) {
        workers[r].rank = r;
        CHECK(pthread_create(&thread[r], NULL, work, &workers[r]) == 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(thread[r], NULL);
    }
    return 0;
}
