/* SPDX-License-Identifier: MIT */
/*
 * key.c - the 128-bit names of communicators
 *
 * Does: Hashes unique ids, and a parent's key with sequence number and colour (SHA-256, truncated).
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "comm/core/key.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/sha256.h"

/*
 * One way: everybody may list the file's name, from which neither the unique id, which admits to NCCL's bootstrap, nor
 * the keys of the communicator's children may follow. Each use has a word of its own, so that no two uses have one
 * value.
 */
static struct oh_key hash(const char *use, const void *data, size_t length)
{
    uint8_t digest[OH_SHA256_BYTES], both[2 * OH_SHA256_BYTES];
    struct oh_key key;
    memset(both, 0, OH_SHA256_BYTES);
    memcpy(both, use, strlen(use)); /* NOLINT(bugprone-not-null-terminated-result): zeros are behind it */
    oh_sha256(data, length, both + OH_SHA256_BYTES);
    oh_sha256(both, sizeof both, digest);
    memcpy(&key, digest, sizeof key);
    return key;
}

struct oh_key oh_key_of_ids(const ncclUniqueId *ids, int count)
{
    return hash("id", ids, (size_t)count * sizeof *ids);
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
            struct oh_key one = hash("rank", &excluded[i], sizeof excluded[i]);
            sum[0] += one.word[0];
            sum[1] += one.word[1];
        }
    }
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence, sum[0], sum[1]};
    return hash("shrink", input, sizeof input);
}

struct oh_key oh_key_of_split(const struct oh_key *parent, uint64_t sequence, int color)
{
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence, (uint64_t)(uint32_t)color};
    return hash("split", input, sizeof input);
}

struct oh_key oh_key_of_grow(const struct oh_key *parent, uint64_t sequence)
{
    const uint64_t input[] = {parent->word[0], parent->word[1], sequence};
    return hash("grow", input, sizeof input);
}

struct oh_key oh_key_random(void)
{
    static atomic_uint_fast64_t serial;
    uint64_t input[5] = {0};
    /* getrandom is enough; the rest keeps keys of one process apart where it fails. */
    if (getrandom(input, 2 * sizeof *input, GRND_NONBLOCK) < 0) {
        input[0] = 0;
    }
    input[2] = (uint64_t)getpid();
    input[3] = oh_now_ns();
    input[4] = atomic_fetch_add(&serial, 1);
    return hash("random", input, sizeof input);
}

struct oh_key oh_key_name(const struct oh_key *key)
{
    return hash("name", key, sizeof *key);
}

int oh_key_compare(const struct oh_key *a, const struct oh_key *b)
{
    return memcmp(a, b, sizeof *a);
}
