/* SPDX-License-Identifier: MIT */
/*
 * topo/fields.h - the recording's words for what a node holds: one table, for writer and reader alike
 *
 * A recording is text, line by line:
 *
 *   onehop topology 1            the first line: what it is, and its version
 *   # ...                        anywhere before `hwloc`: a comment
 *   made by hand                 no machine has been asked: every page of it says SIMULATED
 *   driver TEXT, cuda N, problem TEXT, NAME=VALUE of a variable that was set
 *   gpu N KEY=VALUE... name=TEXT GPUs that CUDA sees, in its order
 *   hidden N KEY=VALUE...        after them: GPUs that only NVML sees
 *   pair A B KEY=VALUE...        an ordered pair, or A B-C: of A with B, B+1, ... C (A itself is skipped)
 *   hwloc                        hwloc's XML follows, up to the line </topology>
 *   end                          the last line: nothing has been cut off
 *
 * Keys that are left out stand for what is not known. Constant data, no state.
 */
#ifndef OH_TOOLS_TOPO_FIELDS_H_
#define OH_TOOLS_TOPO_FIELDS_H_

#include <stdbool.h>
#include <stddef.h>

#define OH_RECORDING_HEAD "onehop topology "
#define OH_RECORDING_VERSION 1
#define OH_RECORDING_BY_HAND "made by hand"
#define OH_RECORDING_XML_END "</topology>"

enum oh_field_kind {
    OH_FIELD_FACT,   /* enum oh_fact: yes or no; not known is left out */
    OH_FIELD_NUMBER, /* an int from low to high; `unset` is left out */
    OH_FIELD_FLAG,   /* a bool: 1; false is left out */
    OH_FIELD_WORD,   /* a char array, without blanks; empty is left out */
    OH_FIELD_REST    /* a char array that takes the rest of the line; last */
};

struct oh_field {
    const char *key;
    enum oh_field_kind kind;
    size_t offset;
    size_t size; /* of a char array */
    int low, high, unset;
};

struct oh_fields {
    const struct oh_field *field;
    size_t count;
};

extern const struct oh_fields oh_gpu_fields;  /* of struct oh_node_gpu */
extern const struct oh_fields oh_pair_fields; /* of struct oh_node_pair */

/* Writes " KEY=VALUE" of every field that is set. What no line can hold becomes '?'. Returns the length, cut to size.
 */
size_t oh_fields_write(const struct oh_fields *fields, const void *object, char *text_p, size_t size);

/* Reads what oh_fields_write writes, a text without control characters, which is changed. False: damaged. */
bool oh_fields_read(const struct oh_fields *fields, char *text, void *object);

/* A decimal number from low to high, and nothing else. */
bool oh_fields_number(const char *text, int low, int high, int *number_p);

#endif
