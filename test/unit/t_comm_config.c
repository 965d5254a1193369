/* SPDX-License-Identifier: MIT */
/* t_comm_config.c - what is read of ncclConfig_t and of NCCL's variables: every version's size, what is left open,
 * overrides */
#include "entry/entry.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"

/* The fields of NCCL 2.27 and later, with numbers for those that are read; nccl.h may be older. */
struct recent {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy;
    int later[8], launch_order_implicit, latest[4];
};

static const struct recent undefined = {.size = sizeof undefined,
                                        .magic = 0xcafebeef,
                                        .blocking = INT_MIN,
                                        .cluster = INT_MIN,
                                        .min_ctas = INT_MIN,
                                        .max_ctas = INT_MIN,
                                        .cta_policy = INT_MIN,
                                        .launch_order_implicit = INT_MIN};

static bool reads(const struct recent *config, const struct oh_comm_config *inherited, bool blocking, uint32_t max_ctas,
                  bool zero_cta)
{
    const struct oh_comm_config got = oh_config_read((const ncclConfig_t *)config, inherited);
    return got.blocking == blocking && got.max_ctas == max_ctas && got.zero_cta == zero_cta;
}

static void test_fields(void)
{
    struct recent config = undefined;
    tap_ok(reads(NULL, NULL, true, UINT32_MAX, false), "no configuration: NCCL's defaults");
    tap_ok(reads(&config, NULL, true, UINT32_MAX, false), "all left open: the same");
    config.blocking = 0;
    config.max_ctas = 8;
    config.cta_policy = 2;
    tap_ok(reads(&config, NULL, false, 8, true), "not blocking, 8 CTAs, the zero-CTA policy");
    config.cta_policy = 1;
    tap_ok(reads(&config, NULL, false, 8, false), "the efficiency policy is no limit");
    config.max_ctas = 0;
    tap_ok(reads(&config, NULL, false, UINT32_MAX, false), "0 CTAs, which NCCL rejects, are no limit");
    config.max_ctas = 8;
    config.cta_policy = 3;
    config.size = offsetof(struct recent, cta_policy);
    tap_ok(reads(&config, NULL, false, 8, false), "a configuration of NCCL 2.26 has no policy");
    config.magic = 0;
    tap_ok(reads(&config, NULL, true, UINT32_MAX, false), "a configuration that was not initialised has nothing");
    config.magic = undefined.magic;
    config.size = offsetof(struct recent, cluster);
    tap_ok(reads(&config, NULL, false, UINT32_MAX, false), "one of NCCL 2.14 has no CTAs");
}

static void test_inheritance(void)
{
    const struct oh_comm_config parent = {.blocking = false, .max_ctas = 4, .zero_cta = true};
    tap_ok(reads(NULL, &parent, false, 4, true), "without a configuration a child has its parent's");
    tap_ok(reads(&undefined, &parent, true, UINT32_MAX, false), "with one that is left open, NCCL's defaults");
}

static bool orders(const struct recent *config, const struct oh_comm_config *inherited)
{
    return oh_config_read((const ncclConfig_t *)config, inherited).launch_order;
}

static void test_launch_order(void)
{
    const struct oh_comm_config parent = {.launch_order = true};
    struct recent config = undefined;
    tap_ok(!orders(NULL, NULL) && !orders(&config, &parent) && orders(NULL, &parent),
           "an implicit launch order that is left open is none, or without a configuration the parent's");
    config.launch_order_implicit = 1;
    tap_ok(orders(&config, NULL), "an implicit launch order");
    config.size = offsetof(struct recent, launch_order_implicit);
    tap_ok(!orders(&config, NULL), "a configuration of NCCL 2.30 has none");
}

/* A name that ends with the program's memory, that is long, and of a configuration that has none. */
static void test_name(void)
{
    char name[200] = "tensor parallel";
    struct recent config = undefined;
    config.comm_name = name;
    struct oh_comm_config got = oh_config_read((const ncclConfig_t *)&config, NULL);
    name[0] = 'X';
    tap_ok(strcmp(got.name, "tensor parallel") == 0, "the name is copied");
    tap_ok(strcmp(oh_config_read(NULL, &got).name, "tensor parallel") == 0, "a child has its parent's");
    tap_ok(oh_config_read((const ncclConfig_t *)&undefined, &got).name[0] == '\0', "or none, with a configuration");
    memset(name, 'n', sizeof name - 1);
    got = oh_config_read((const ncclConfig_t *)&config, NULL);
    tap_ok(strlen(got.name) == OH_COMM_NAME - 1, "a long name is cut");
    config.size = offsetof(struct recent, comm_name);
    tap_ok(oh_config_read((const ncclConfig_t *)&config, NULL).name[0] == '\0', "a configuration without the field");
}

static void test_variables(void)
{
    const struct oh_comm_config parent = {.blocking = false, .max_ctas = 4, .zero_cta = true};
    struct recent config = undefined;
    config.max_ctas = 8;
    config.cta_policy = 2;
    setenv("NCCL_MAX_CTAS", "16", 1);
    tap_ok(reads(&config, NULL, true, 16, true) && reads(NULL, &parent, false, 16, true),
           "NCCL_MAX_CTAS goes before the configuration and the parent");
    setenv("NCCL_MAX_NCHANNELS", "2", 1);
    tap_ok(reads(&config, NULL, true, 2, true), "NCCL_MAX_NCHANNELS limits further");
    setenv("ONEHOP_INVARIANT", "1", 1);
    tap_ok(reads(&config, NULL, true, 16, true) && oh_config_read(NULL, NULL).invariant,
           "invariant: channels, which programs pin for NCCL's order, are no limit");
    unsetenv("ONEHOP_INVARIANT");
    tap_ok(!oh_config_read(NULL, NULL).invariant, "not invariant");
    setenv("NCCL_MAX_CTAS", "-1", 1);
    setenv("NCCL_MAX_NCHANNELS", "many", 1);
    tap_ok(reads(&config, NULL, true, 8, true), "values that mean nothing change nothing");
    unsetenv("NCCL_MAX_CTAS");
    unsetenv("NCCL_MAX_NCHANNELS");
    setenv("NCCL_CTA_POLICY", "0", 1);
    tap_ok(reads(&config, NULL, true, 8, false) && reads(NULL, &parent, false, 4, false),
           "NCCL_CTA_POLICY goes before both");
    setenv("NCCL_CTA_POLICY", "default|Zero", 1);
    tap_ok(reads(NULL, NULL, true, UINT32_MAX, true), "NCCL_CTA_POLICY by names");
    setenv("NCCL_CTA_POLICY", "unknown", 1);
    tap_ok(reads(&config, NULL, true, 8, true), "names that mean nothing change nothing");
    unsetenv("NCCL_CTA_POLICY");
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    tap_ok(reads(NULL, &parent, true, 4, true), "and NCCL_COMM_BLOCKING");
}

int main(void)
{
    static const char *const variables[] = {"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_CTA_POLICY",
                                            "NCCL_COMM_BLOCKING"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        unsetenv(variables[i]);
    }
    test_fields();
    test_inheritance();
    test_launch_order();
    test_name();
    test_variables();
    return tap_done();
}
