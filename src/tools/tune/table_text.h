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

/* Write the head of a text once, then for each table its key, its rows and the end. comment: NULL for none. */
void oh_tuning_write_head(FILE *stream);
void oh_tuning_write_key(FILE *stream, const struct oh_tuning_key *key, const char *source);
void oh_tuning_write_row(FILE *stream, const struct oh_plan_row *row, const char *comment);
void oh_tuning_write_end(FILE *stream);

#endif
