/* SPDX-License-Identifier: MIT */
/*
 * tune/table_text.h - writes tuning tables as text, which src/plan/tuning.c reads
 *
 * Does: See below.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_TOOLS_TUNE_TABLE_TEXT_H_
#define OH_TOOLS_TUNE_TABLE_TEXT_H_

#include <stdio.h>

#include "plan/tuning.h"

#define OH_TUNING_COMMENT 128

/* Writes the first line of a text. */
void oh_tuning_write_head(FILE *stream);

/* Writes a table. comment: of each row, or NULL. */
void oh_tuning_write_table(FILE *stream, const struct oh_tuning_key *key, const char *source,
                           const struct oh_plan_rows *rows, const char (*comment)[OH_TUNING_COMMENT]);

#endif
