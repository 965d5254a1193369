/* SPDX-License-Identifier: MIT */
/* fuzz.h - what every fuzzing target has */
#ifndef TEST_FUZZ_FUZZ_H_
#define TEST_FUZZ_FUZZ_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void must(int condition)
{
    if (!condition) {
        abort();
    }
}

#endif
