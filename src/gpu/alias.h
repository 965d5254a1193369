/* SPDX-License-Identifier: MIT */
/*
 * alias.h - whether two ranges of addresses are surely not the same memory
 *
 * Memory that is mapped (cuMemMap: ncclMemAlloc, expandable segments) may have several addresses, so addresses
 * that differ are not enough.
 */
#ifndef OH_GPU_ALIAS_H_
#define OH_GPU_ALIAS_H_

#include <stdbool.h>
#include <stdint.h>

#include "gpu/driver.h"

/*
 * True when no byte of the two ranges can be the same memory, as it is mapped now; false also where that is not known:
 * host memory, managed memory, memory of pools; and memory of another process or of a handle that cannot be shared,
 * unless both ranges lie in one mapping. Needs no context; may be called during a capture, in global mode, too (driver
 * 580.159). Thread-safe. Takes about a microsecond where one of them is mapped, 0.1 else.
 */
bool oh_alias_never(const struct oh_driver *driver, const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes);

#endif
