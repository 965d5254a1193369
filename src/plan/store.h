/* SPDX-License-Identifier: MIT */
/*
 * store.h - where a communicator's table comes from: the user's file, or what onehop brings along
 *
 * Reads the environment and files; says at WARN, once a process, why the user's file is not taken. Thread-safe.
 */
#ifndef OH_PLAN_STORE_H_
#define OH_PLAN_STORE_H_

#include <stdbool.h>
#include <stddef.h>

#include "plan/tuning.h"

#define OH_STORE_PATH 512

/*
 * The table for the key (2..8 ranks): of ONEHOP_TUNING_FILE's file, else of the user's cache, else the shipped one.
 * Never fails. from_p: where it comes from, for the log.
 */
void oh_store_load(const struct oh_tuning_key *key, struct oh_plan_table *table_p, char from_p[OH_STORE_PATH]);

/*
 * Where `onehop tune` leaves the key's table, and oh_store_load looks for it: a file of its own for each key in
 * $XDG_CACHE_HOME/onehop or ~/.cache/onehop. False: the environment names no such folder.
 */
bool oh_store_cache_path(const struct oh_tuning_key *key, char path_p[OH_STORE_PATH]);

#endif
