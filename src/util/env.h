/* SPDX-License-Identifier: MIT */
/*
 * env.h - the environment variables of onehop, in one table
 *
 * Does: Reads a variable with its default. A value that is not accepted counts as not set, and gives one WARN a
 *    process. In a set-user-ID program no variable is read. doc/environment.md has the same list, with the
 *    meanings (t_envdoc.sh compares).
 * Threads: any.
 * Owns: nothing: strings belong to the environment.
 */
#ifndef OH_UTIL_ENV_H_
#define OH_UTIL_ENV_H_

#include <stdbool.h>
#include <stdint.h>

/* X(identifier, name, default, accepted values) */
#define OH_ENV_VARIABLES(X)                                                                                            \
    X(DEBUG, "ONEHOP_DEBUG", "WARN", "NONE, WARN, INFO or TRACE")                                                      \
    X(DEBUG_FILE, "ONEHOP_DEBUG_FILE", "stderr", "an absolute path of at most 200 characters")                         \
    X(DISABLE, "ONEHOP_DISABLE", "0", "0 or 1")                                                                        \
    X(MAX_BYTES, "ONEHOP_MAX_BYTES", "the table's own", "0 to 1G, in bytes or with K, M or G")                         \
    X(ALGO, "ONEHOP_ALGO", "auto", "auto, oneshot or twoshot")                                                         \
    X(COLLECTIVES, "ONEHOP_COLLECTIVES", "all", "all, or a list of allreduce, allgather, reducescatter, broadcast")    \
    X(TUNING_FILE, "ONEHOP_TUNING_FILE", "the user's cache, else the shipped table",                                   \
      "none, or an absolute path of at most 200 characters")                                                           \
    X(STATS, "ONEHOP_STATS", "0", "0, 1, text or json, or text or json with a colon and an absolute path")             \
    X(STATS_FILE, "ONEHOP_STATS_FILE", "none", "an absolute path of at most 200 characters")                           \
    X(NVTX, "ONEHOP_NVTX", "1", "0 or 1")                                                                              \
    X(STALL_SECONDS, "ONEHOP_STALL_SECONDS", "60", "0 to 86400")                                                       \
    X(TIMEOUT_SECONDS, "ONEHOP_TIMEOUT_SECONDS", "0", "0 to 86400")                                                    \
    X(TRAP_AFTER, "ONEHOP_TRAP_AFTER", "0", "0 to 86400")                                                              \
    X(COMMS, "ONEHOP_COMMS", "every communicator",                                                                     \
      "conditions size=, name= or host=, each with a list, separated by semicolons")                                   \
    X(INVARIANT, "ONEHOP_INVARIANT", "0", "0 or 1")                                                                    \
    X(PINNED, "ONEHOP_PINNED", "forward", "forward or serve")                                                          \
    X(CHECK_CALLS, "ONEHOP_CHECK_CALLS", "0", "0 or 1")                                                                \
    X(VERIFY, "ONEHOP_VERIFY", "0", "0 to 1000000000")                                                                 \
    X(VERIFY_FATAL, "ONEHOP_VERIFY_FATAL", "0", "0 or 1")                                                              \
    X(GRAPH_MIXING, "ONEHOP_GRAPH_MIXING", "1, or NCCL_GRAPH_MIXING_SUPPORT", "0 or 1")                                \
    X(LAUNCH_ORDER, "ONEHOP_LAUNCH_ORDER", "1", "0 or 1")                                                              \
    X(TRIGGER, "ONEHOP_TRIGGER", "0", "0 or 1")                                                                        \
    X(SHM_DIR, "ONEHOP_SHM_DIR", "/dev/shm", "an absolute path of at most 200 characters")                             \
    X(INIT_EPOCH, "ONEHOP_INIT_EPOCH", "1", "0 to 4294967295")

enum oh_env_variable {
#define OH_ENV_ENUM(identifier_, name_, default_, accepted_) OH_ENV_##identifier_,
    OH_ENV_VARIABLES(OH_ENV_ENUM)
#undef OH_ENV_ENUM
    OH_ENV_COUNT
};

/* Returns the index of the value in names[0..count-1], compared without case, or `unset`. */
int oh_env_choice(enum oh_env_variable variable, const char *const *names, int count, int unset);

/* Accepts 0 or 1. */
bool oh_env_flag(enum oh_env_variable variable, bool unset);

/* Accepts a whole number from 0 to max, if `units` with K, M or G (powers of 1024). */
uint64_t oh_env_number(enum oh_env_variable variable, bool units, uint64_t max, uint64_t unset);

/* Reads such a number from any text. max: far below UINT64_MAX. Returns false if the text is none. */
bool oh_number_parse(const char *text, bool units, uint64_t max, uint64_t *number_p);

/* Returns any value, or NULL. The caller checks it, and rejects it with a WARN. */
const char *oh_env_text(enum oh_env_variable variable);
void oh_env_reject(enum oh_env_variable variable);

/* Accepts an absolute path of at most 200 characters. */
bool oh_env_is_path(const char *text);
const char *oh_env_path(enum oh_env_variable variable, const char *unset);

#endif
