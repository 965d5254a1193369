/* SPDX-License-Identifier: MIT */
/*
 * sha256.h - SHA-256 (FIPS 180-4), for names that tell nothing of what they are made of
 *
 * No state, nothing allocated; usable from any thread.
 */
#ifndef OH_UTIL_SHA256_H_
#define OH_UTIL_SHA256_H_

#include <stddef.h>
#include <stdint.h>

#define OH_SHA256_BYTES 32

void oh_sha256(const void *data, size_t length, uint8_t digest_p[OH_SHA256_BYTES]);

#endif
