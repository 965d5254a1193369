/* SPDX-License-Identifier: MIT */
/*
 * sha256.c - SHA-256
 *
 * Does: FIPS 180-4.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "util/sha256.h"

#include <string.h>

#define BLOCK_BYTES 64
#define LENGTH_BYTES 8 /* of the message in bits, at the end of the last block */

static uint32_t rotate(uint32_t x, unsigned by)
{
    return x >> by | x << (32 - by);
}

/* Fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static void add_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *from = block + 4 * (size_t)i;
        w[i] = (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 =
            v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) + choice + round_constant[i] + w[i];
        uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) + majority;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void oh_sha256(const void *data, size_t length, uint8_t digest_p[OH_SHA256_BYTES])
{
    /* Fractional parts of the square roots of the first eight primes. */
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const size_t padded = (length + 1 + LENGTH_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    for (size_t at = 0; at < padded; at += BLOCK_BYTES) {
        uint8_t block[BLOCK_BYTES] = {0};
        if (at < length) {
            memcpy(block, (const uint8_t *)data + at, length - at < BLOCK_BYTES ? length - at : BLOCK_BYTES);
        }
        if (at <= length && length < at + BLOCK_BYTES) {
            block[length - at] = 0x80;
        }
        for (unsigned i = 0; at + BLOCK_BYTES == padded && i < LENGTH_BYTES; i++) {
            block[BLOCK_BYTES - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
        }
        add_block(state, block);
    }
    for (size_t i = 0; i < OH_SHA256_BYTES; i++) {
        digest_p[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
