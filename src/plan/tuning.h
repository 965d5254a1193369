/* SPDX-License-Identifier: MIT */
/*
 * tuning.h - tuning tables as text: what is measured on a machine, and what onehop brings along
 *
 * Does: Finds the table for a machine. doc/tuning.md has the form of the text. A text is untrusted: the result is a
 *    table for which oh_plan_table_valid holds, or none.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_PLAN_TUNING_H_
#define OH_PLAN_TUNING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/plan.h"

/* Version 1 had rows for each kind of words, 2 larger messages of one-shot. */
#define OH_TUNING_HEAD "onehop-tuning 3"
#define OH_TUNING_BYTES 65536 /* no text is longer */
#define OH_TUNING_TEXT 96     /* of a value that names something, with its final zero */

/* The machine that a table is for. In a text a value may end in '*', which stands for any rest. */
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
 * Finds the first table for the key; the rest of the text must be well-formed, too. FOUND sets *table_p (fp8 is off:
 * the caller knows the GPUs) and source_p, unless NULL. FOREIGN and BAD set *fault_p, with the line of the last table,
 * or of the fault.
 */
enum oh_tuning_result oh_tuning_parse(const char *text, size_t size, const struct oh_tuning_key *key,
                                      struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT],
                                      struct oh_tuning_fault *fault_p);

/* Formats NCCL's version as a text has it: "2.28.9" for 22809. */
void oh_tuning_nccl_name(int version, char name_p[OH_TUNING_TEXT]);

/* src/plan/shipped.tuning, embedded by shipped.S. */
extern const char oh_shipped_tables[] __attribute__((visibility("hidden")));

/* Gets the shipped table for any GPU and 2 to 8 ranks: for "SIMULATED NVIDIA H200" its model's. source_p: or NULL. */
void oh_tuning_shipped(const char *gpu, uint32_t nranks, struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT]);

#define OH_STORE_PATH 512

/*
 * Loads the table for the key from ONEHOP_TUNING_FILE, the user's cache or the shipped tables, the first that has one.
 * A WARN, once a process, says why a file is not used. from_p: the origin, for the log.
 */
void oh_store_load(const struct oh_tuning_key *key, struct oh_plan_table *table_p, char from_p[OH_STORE_PATH]);

/* Loads the table for the key from a file. False: there is no file, or a WARN says why it is not used. */
bool oh_store_load_file(const char *path, const struct oh_tuning_key *key, struct oh_plan_table *table_p);

/*
 * Gets the file of the user's cache for the key, in $XDG_CACHE_HOME/onehop or ~/.cache/onehop. Returns false if the
 * environment names no such folder.
 */
bool oh_store_cache_path(const struct oh_tuning_key *key, char path_p[OH_STORE_PATH]);

#endif
