/* SPDX-License-Identifier: MIT */
/*
 * number.h - the data types and ops of NCCL as numbers: inputs, what must come out, and how far off it may be
 *
 * Written apart from the kernels and from the simulated NCCL. An element is its bits in a uint64_t. Pure functions.
 */
#ifndef TEST_COMMON_NUMBER_H_
#define TEST_COMMON_NUMBER_H_

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CF_MAX_RANKS 8

enum cf_op {
    CF_SUM,
    CF_PROD,
    CF_MIN,
    CF_MAX,
    CF_AVG,
    CF_PREMUL_HOST,
    CF_PREMUL_DEVICE,
    CF_OPS
};

/* What the inputs are. */
enum cf_family {
    CF_EXACT,    /* every partial result in every order is exact in the type; integers: any */
    CF_WIDE,     /* floats of many magnitudes, within a bound that excludes overflow */
    CF_SPECIAL,  /* NaN, infinities, zeros of both signs, subnormals, overflow */
    CF_SENTINEL, /* bit patterns that onehop's kernels give a meaning of their own */
    CF_FAMILIES
};

struct cf_type {
    const char *name;
    ncclDataType_t nccl;
    size_t size;
    bool is_signed;      /* integers */
    int mantissa;        /* explicit bits, 0: an integer */
    bool fp8;            /* saturates; e4m3 has no infinity */
    uint64_t sign, ones; /* bits of floats: of the sign, of the exponent */
};

extern const struct cf_type cf_types[ncclNumTypes]; /* by ncclDataType_t */
extern const char *const cf_op_names[CF_OPS];
extern const char *const cf_family_names[CF_FAMILIES];

/* What one call reduces. */
struct cf_data {
    const struct cf_type *type;
    enum cf_op op;
    enum cf_family family;
    uint64_t key;        /* the random data */
    uint64_t factor_key; /* the factors of a PreMulSum op that several calls share; 0: key */
    int nranks;          /* of the communicator */
};

/* A well mixed function of its argument. */
uint64_t cf_mix(uint64_t value);

/* Element i as rank `world` sends it. */
uint64_t cf_input(const struct cf_data *data, int world, size_t i);

/* The factor that rank `world` gives with its PreMulSum op. */
uint64_t cf_scalar(const struct cf_data *data, int world);

uint64_t cf_load(const struct cf_type *type, const void *at);
void cf_store(const struct cf_type *type, void *at, uint64_t bits);

/*
 * Is `got` right for element i of the ranks world[0] .. world[nranks - 1]? tight: onehop served the call, and its
 * documented order and rounding must be seen. Returns false and a sentence about it when it is not.
 */
bool cf_judge(const struct cf_data *data, const int *world, size_t i, uint64_t got, bool tight, char *why_p,
              size_t why_bytes);

/* Is `got` element i of rank `world`, as it was sent? Else as above. */
bool cf_judge_moved(const struct cf_data *data, int world, size_t i, uint64_t got, char *why_p, size_t why_bytes);

/* One element of all ranks, in their order: what each sends, and its factor where the op is a PreMulSum. */
struct cf_element {
    uint64_t bits[CF_MAX_RANKS], scalar[CF_MAX_RANKS];
};

/* The same for inputs of the caller's choice; the family says what is known of them. */
bool cf_judge_element(const struct cf_data *data, const struct cf_element *element, uint64_t got, bool tight,
                      char *why_p, size_t why_bytes);

#endif
