/* SPDX-License-Identifier: MIT */
/*
 * config.c - what a program asks of a communicator: ncclConfig_t, and NCCL's variables that override it
 *
 * Does: Reads both.
 * Threads: any.
 * Owns: nothing.
 */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>

#include "entry/entry.h"
#include "util/env.h"
#include "util/nccl_conf.h"

#define UNDEFINED INT_MIN /* NCCL_CONFIG_UNDEF_INT */

/*
 * The public fields of ncclConfig_t, in the order of NCCL 2.32; nccl.h may be older, with fewer. The last is the one
 * behind those of 2.30.7 in the list of nccl4py's NCCLConfig (documentation of 2.32.3), which has nccl.h's order.
 */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
    const char *comm_name;
    int collnet_enable;
    int cta_policy;
    /*
     * From shrinkShare to graphStreamOrdering. With graphUsageMode 0 or 1 NCCL may leave out what orders graphs with
     * other calls. onehop orders them whatever its value, since a missing order could make a result wrong.
     */
    int later[8];
    int launch_order_implicit;
};

static bool has_bytes(const struct nccl_config *config, size_t bytes)
{
    return config && config->magic == OH_NCCL_CONFIG_MAGIC && bytes <= config->size;
}

/* The value of a field; `unset` where the configuration, by its size, has no such field. */
#define FIELD(config_, name_, unset_)                                                                                  \
    (has_bytes((config_), offsetof(struct nccl_config, name_) + sizeof(config_)->name_) ? (config_)->name_ : (unset_))

/* A whole number; UNDEFINED: there is none. */
static int variable(const char *name)
{
    return oh_nccl_number(oh_nccl_variable(name), UNDEFINED);
}

/* Of a configuration: what is left open is NCCL's default, 1. */
static void read_blocking(const struct nccl_config *config, const struct oh_comm_config *inherited,
                          struct oh_comm_config *read)
{
    const int value = variable("NCCL_COMM_BLOCKING");
    const bool overrides = value == 0 || value == 1;
    read->blocking = overrides ? value == 1 : config ? FIELD(config, blocking, UNDEFINED) != 0 : inherited->blocking;
    read->is_assumed = inherited->is_assumed && !overrides;
}

static uint32_t least(uint32_t limit, int value)
{
    return value > 0 && (uint32_t)value < limit ? (uint32_t)value : limit;
}

static uint32_t max_ctas(const struct nccl_config *config, uint32_t inherited)
{
    const int override = variable("NCCL_MAX_CTAS");
    uint32_t limit = config ? least(UINT32_MAX, FIELD(config, max_ctas, UNDEFINED)) : inherited;
    limit = override > 0 ? (uint32_t) override : limit;
    /* Programs pin NCCL's channels for NCCL's order, which the variable for onehop's order replaces. */
    return oh_env_flag(OH_ENV_INVARIANT, false) ? limit : least(limit, variable("NCCL_MAX_NCHANNELS"));
}

static bool has_zero_cta(const struct nccl_config *config, bool inherited)
{
    const int override = oh_nccl_cta_policy(oh_nccl_variable("NCCL_CTA_POLICY"), UNDEFINED);
    const int policy = override != UNDEFINED ? override : FIELD(config, cta_policy, UNDEFINED);
    if (!config && override == UNDEFINED) {
        return inherited;
    }
    return policy > 0 && (policy & OH_NCCL_CTA_POLICY_ZERO);
}

struct oh_comm_config oh_config_read(const ncclConfig_t *config, const struct oh_comm_config *inherited)
{
    const struct nccl_config *known = (const struct nccl_config *)config;
    const struct oh_comm_config defaults = OH_COMM_CONFIG_DEFAULT;
    inherited = inherited ? inherited : &defaults;
    struct oh_comm_config read = {
        .max_ctas = max_ctas(known, inherited->max_ctas),
        .zero_cta = has_zero_cta(known, inherited->zero_cta),
        .launch_order = config ? FIELD(known, launch_order_implicit, UNDEFINED) > 0 : inherited->launch_order,
        .invariant = oh_env_flag(OH_ENV_INVARIANT, false),
    };
    read_blocking(known, inherited, &read);
    const char *name = config ? FIELD(known, comm_name, NULL) : inherited->name;
    snprintf(read.name, sizeof read.name, "%s", name ? name : "");
    return read;
}
