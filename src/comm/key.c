/* SPDX-License-Identifier: MIT */
#include "comm/key.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* Finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static struct oh_key hash(const void *data, size_t length)
{
    struct oh_key key = {{UINT64_C(0x6f6e65686f703031), UINT64_C(0x9e3779b97f4a7c15) ^ length}};
    const char *at = data;
    while (length > 0) {
        uint64_t word = 0;
        size_t part = length < sizeof word ? length : sizeof word;
        memcpy(&word, at, part);
        key.word[0] = mix(key.word[0] ^ word);
        key.word[1] = mix(key.word[1] + word + key.word[0]);
        at += part;
        length -= part;
    }
    return key;
}

struct oh_key oh_key_of_id(const ncclUniqueId *id)
{
    return hash(id, sizeof *id);
}

struct oh_key oh_key_of_ids(const ncclUniqueId *ids, int count)
{
    return hash(ids, (size_t)count * sizeof *ids);
}

/* The excluded ranks as a set: the sum of their hashes, each once. Quadratic, but NCCL's own work is far more. */
struct oh_key oh_key_of_shrink(const struct oh_key *parent, uint64_t sequence, const int *excluded, int count)
{
    uint64_t sum[2] = {0};
    for (int i = 0; i < count; i++) {
        int before = 0;
        while (before < i && excluded[before] != excluded[i]) {
            before++;
        }
        if (before == i) {
            struct oh_key one = hash(&excluded[i], sizeof excluded[i]);
            sum[0] += one.word[0];
            sum[1] += one.word[1];
        }
    }
    /* Of another length than the input of a split, so never equal to one. */
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence, sum[0], sum[1]};
    return hash(input, sizeof input);
}

struct oh_key oh_key_of_split(const struct oh_key *parent, uint64_t sequence, int color)
{
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence, (uint64_t)(uint32_t)color};
    return hash(input, sizeof input);
}

struct oh_key oh_key_of_grow(const struct oh_key *parent, uint64_t sequence)
{
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence};
    return hash(input, sizeof input);
}

struct oh_key oh_key_random(void)
{
    static atomic_uint_fast64_t serial;
    struct timespec now;
    uint64_t input[6] = {0};
    /* The kernel's generator is enough; the rest keeps keys of one process apart where it is refused. */
    if (getrandom(input, 2 * sizeof *input, GRND_NONBLOCK) < 0) {
        input[0] = 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    input[2] = (uint64_t)getpid();
    input[3] = (uint64_t)now.tv_sec;
    input[4] = (uint64_t)now.tv_nsec;
    input[5] = atomic_fetch_add(&serial, 1);
    return hash(input, sizeof input);
}

int oh_key_compare(const struct oh_key *a, const struct oh_key *b)
{
    return memcmp(a, b, sizeof *a);
}
