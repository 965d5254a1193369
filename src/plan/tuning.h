/* SPDX-License-Identifier: MIT */
/*
 * tuning.h - tables as text: what is measured on a machine, and what onehop brings along
 *
 * The form of the text, and where the user's lies, are in doc/tuning.md. A text is a stranger's: every byte is checked,
 * and what comes out is a valid table (oh_plan_table_valid) or nothing. Pure functions but for the two that write;
 * usable from any thread. Nothing is allocated.
 */
#ifndef OH_PLAN_TUNING_H_
#define OH_PLAN_TUNING_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "plan/plan.h"

#define OH_TUNING_VERSION 3   /* 1 had rows for each kind of words, 2 larger messages of one-shot */
#define OH_TUNING_BYTES 65536 /* no text is longer */
#define OH_TUNING_TEXT 96     /* of a value that names something, with its final zero */

/* What a table is for. In a text a value may end in '*': whatever begins so. */
struct oh_tuning_key {
    char gpu[OH_TUNING_TEXT];
    uint32_t nranks;
    char driver[OH_TUNING_TEXT]; /* "unknown" where it is */
    char nccl[OH_TUNING_TEXT];   /* likewise */
};

/* What is wrong with a text. */
struct oh_tuning_fault {
    unsigned line;
    char what[160]; /* one clause, with what is accepted */
};

enum oh_tuning_result {
    OH_TUNING_FOUND,
    OH_TUNING_FOREIGN, /* a good text without a table for this key */
    OH_TUNING_BAD
};

/*
 * Looks for the key's table; the first that matches counts, the rest of the text must be well-formed all the same.
 * FOUND: *table_p is set (fp8 is off: the caller knows the GPUs), and source_p, unless NULL, is what the table says of
 * itself. FOREIGN and BAD: *fault_p is set, with the line of the last table, or of the fault.
 */
enum oh_tuning_result oh_tuning_parse(const char *text, size_t size, const struct oh_tuning_key *key,
                                      struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT],
                                      struct oh_tuning_fault *fault_p);

/* NCCL's version as it stands in a text: "2.28.9" for 22809. */
void oh_tuning_nccl_name(int version, char name_p[OH_TUNING_TEXT]);

/* src/plan/shipped.tuning, embedded by shipped.S. */
extern const char oh_shipped_tables[] __attribute__((visibility("hidden")));
extern const uint64_t oh_shipped_size __attribute__((visibility("hidden")));

/*
 * The shipped table for a kind of GPU (2..8 ranks); there is one for any. A stand-in ("SIMULATED NVIDIA H200") has that
 * of its model. source_p as above.
 */
void oh_tuning_shipped(const char *gpu, uint32_t nranks, struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT]);

/* Writing: the head of a text once; then for each table its key, its rows, and the end. comment: NULL for none. */
void oh_tuning_write_head(FILE *stream);
void oh_tuning_write_key(FILE *stream, const struct oh_tuning_key *key, const char *source);
void oh_tuning_write_row(FILE *stream, const struct oh_plan_row *row, const char *comment);
void oh_tuning_write_end(FILE *stream);

#endif
