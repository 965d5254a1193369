/* SPDX-License-Identifier: MIT */
/*
 * key.c - the 128-bit names of communicators
 *
 * Does: Hashes unique ids, and a parent's key with sequence number and colour (SipHash-2-4-128).
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "comm/shared/key.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "util/clock.h"

static uint64_t rotate(uint64_t word, unsigned by)
{
    return word << by | word >> (64 - by);
}

static void mix(uint64_t *a, uint64_t *b, unsigned by)
{
    *a += *b;
    *b = rotate(*b, by) ^ *a;
}

/* Returns the sum of the state after so many rounds. */
static uint64_t run_rounds(uint64_t state[4], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        mix(&state[0], &state[1], 13);
        mix(&state[2], &state[3], 16);
        state[0] = rotate(state[0], 32);
        mix(&state[0], &state[3], 21);
        mix(&state[2], &state[1], 17);
        state[2] = rotate(state[2], 32);
    }
    return state[0] ^ state[1] ^ state[2] ^ state[3];
}

struct oh_key oh_key_hash(const struct oh_key *secret, const void *words, size_t count)
{
    const uint64_t low = secret->word[0], high = secret->word[1];
    uint64_t state[] = {low ^ 0x736f6d6570736575, high ^ 0x646f72616e646f6d ^ 0xee, low ^ 0x6c7967656e657261,
                        high ^ 0x7465646279746573};
    struct oh_key hash;
    for (size_t i = 0; i <= count; i++) {
        uint64_t word = (uint64_t)(count * sizeof word) << 56; /* the last: the length */
        if (i < count) {
            memcpy(&word, (const char *)words + i * sizeof word, sizeof word);
        }
        state[3] ^= word;
        run_rounds(state, 2);
        state[0] ^= word;
    }
    state[2] ^= 0xee;
    hash.word[0] = run_rounds(state, 4);
    state[1] ^= 0xdd;
    hash.word[1] = run_rounds(state, 4);
    return hash;
}

/* What a key is derived for: no two uses have one value. */
enum use {
    USE_NAME,
    USE_SPLIT,
    USE_GROW,
    USE_SHRINK,
    USE_RANK
};

/*
 * One way: everybody may list the file's name, from which neither the key, nor the unique id, which admits to NCCL's
 * bootstrap, nor the keys of the communicator's children may follow.
 */
static struct oh_key derive(const struct oh_key *key, enum use use, uint64_t sequence, uint64_t a, uint64_t b)
{
    const uint64_t words[] = {use, sequence, a, b};
    return oh_key_hash(key, words, sizeof words / sizeof *words);
}

struct oh_key oh_key_of_ids(const ncclUniqueId *ids, int count)
{
    const struct oh_key none = {{0}};
    _Static_assert(sizeof *ids % sizeof *none.word == 0, "an id is whole words");
    return oh_key_hash(&none, ids, (size_t)count * sizeof *ids / sizeof *none.word);
}

/* The excluded ranks as a set: the sum of their hashes, each once. */
struct oh_key oh_key_of_shrink(const struct oh_key *parent, uint64_t sequence, const int *excluded, int count)
{
    uint64_t sum[2] = {0};
    for (int i = 0; i < count; i++) {
        int before = 0;
        while (before < i && excluded[before] != excluded[i]) {
            before++;
        }
        if (before == i) {
            struct oh_key one = derive(parent, USE_RANK, sequence, (uint32_t)excluded[i], 0);
            sum[0] += one.word[0];
            sum[1] += one.word[1];
        }
    }
    return derive(parent, USE_SHRINK, sequence, sum[0], sum[1]);
}

struct oh_key oh_key_of_split(const struct oh_key *parent, uint64_t sequence, int color)
{
    return derive(parent, USE_SPLIT, sequence, (uint32_t)color, 0);
}

struct oh_key oh_key_of_grow(const struct oh_key *parent, uint64_t sequence)
{
    return derive(parent, USE_GROW, sequence, 0, 0);
}

struct oh_key oh_key_random(void)
{
    static atomic_uint_fast64_t serial;
    /* The random secret is enough; the words keep keys of one process apart where getrandom fails. */
    const uint64_t words[] = {(uint64_t)getpid(), oh_now_ns(), atomic_fetch_add(&serial, 1)};
    struct oh_key secret = {{0}};
    if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) < 0) {
        secret = (struct oh_key){{0}};
    }
    return oh_key_hash(&secret, words, sizeof words / sizeof *words);
}

struct oh_key oh_key_name(const struct oh_key *key)
{
    return derive(key, USE_NAME, 0, 0, 0);
}

int oh_key_compare(const struct oh_key *a, const struct oh_key *b)
{
    return memcmp(a, b, sizeof *a);
}
