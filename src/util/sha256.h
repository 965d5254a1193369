/* SPDX-License-Identifier: MIT */
/*
 * sha256.h - SHA-256 (FIPS 180-4), for names that do not reveal what they are made of
 *
 * Does: Computes a digest.
 * Threads: pure function.
 * Owns: nothing.
 */
#ifndef OH_UTIL_SHA256_H_
#define OH_UTIL_SHA256_H_

#include <stddef.h>
#include <stdint.h>

#define OH_SHA256_BYTES 32

void oh_sha256(const void *data, size_t length, uint8_t digest_p[OH_SHA256_BYTES]);

#endif
