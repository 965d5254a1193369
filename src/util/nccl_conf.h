/* SPDX-License-Identifier: MIT */
/*
 * nccl_conf.h - NCCL's variables, as NCCL finds them
 *
 * Does: Reads a variable from the environment, else from NCCL's files: that of NCCL_CONF_FILE, or .nccl.conf in the
 *    user's home, then /etc/nccl.conf. NCCL copies these files into the environment when it starts, which may be after
 *    onehop's first question. Reads values as NCCL does: numbers, NCCL_CTA_POLICY, NCCL_ALGO. onehop changes no
 *    variable.
 * Threads: any.
 * Owns: the settings of the files, read once, for the life of the process.
 */
#ifndef OH_UTIL_NCCL_CONF_H_
#define OH_UTIL_NCCL_CONF_H_

#include <stdbool.h>

#define OH_NCCL_CTA_POLICY_ZERO 2 /* a bit of NCCL_CTA_POLICY, since 2.27: copy engines instead of CTAs */

/* Returns the value, or NULL if neither the environment nor a file has the variable. */
const char *oh_nccl_variable(const char *name);

/* Returns the whole number in `text`, decimal, octal or hexadecimal, or `unset` if it is none or `text` is NULL. */
int oh_nccl_number(const char *text, int unset);

/* Returns the policies that a value of NCCL_CTA_POLICY names, or `unset` if it names none or is NULL. */
int oh_nccl_cta_policy(const char *text, int unset);

/*
 * Returns whether the value of NCCL_ALGO leaves at most one algorithm inside a host for an allreduce, or for a
 * reduce-scatter: NCCL's order of sums is pinned. value NULL: not set. A value that NCCL rejects may give either
 * result.
 */
bool oh_nccl_algo_is_pinned(const char *value);

#endif
