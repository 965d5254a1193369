/* SPDX-License-Identifier: MIT */
/*
 * t_topo.c - the verdict on a pair over every combination of facts, on a GPU, and on NCCL's own settings
 */
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

#include "test/tap.h"

#define A "0000:19:00.0"
#define B "0000:3b:00.0"

/* The rules as the design states them, written the long way round. */
static bool expected(const struct oh_topo_pair *p)
{
    const enum oh_fact fact[] = {p->nvml_nvlink, p->nvml_read, p->nvml_write, p->cuda_access};
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++) {
        if (fact[i] == OH_NO) {
            return false; /* one definite no is enough, whatever the other source says */
        }
    }
    if (p->cuda_atomics == OH_NO && p->nvml_nvlink != OH_YES) {
        return false; /* no NVLink for CUDA, and NVML does not know better */
    }
    bool nvml_reaches = p->nvml_read == OH_YES && p->nvml_write == OH_YES;
    if (p->nvml_nvlink == OH_YES && nvml_reaches) {
        return true; /* NVML proves it, CUDA agrees or cannot see the peer */
    }
    if (p->cuda_access == OH_YES && p->cuda_atomics == OH_YES) {
        return true; /* CUDA proves it, NVML agrees or does not know */
    }
    /* Each source proves one half. */
    return (p->nvml_nvlink == OH_YES && p->cuda_access == OH_YES) || (p->cuda_atomics == OH_YES && nvml_reaches);
}

static void test_all_pairs(void)
{
    bool verdicts = true, reasons = true;
    for (int code = 0; code < 3 * 3 * 3 * 3 * 3; code++) {
        struct oh_topo_pair pair = {.nvml_nvlink = (enum oh_fact)(code % 3),
                                    .nvml_read = (enum oh_fact)(code / 3 % 3),
                                    .nvml_write = (enum oh_fact)(code / 9 % 3),
                                    .cuda_access = (enum oh_fact)(code / 27 % 3),
                                    .cuda_atomics = (enum oh_fact)(code / 81)};
        char reason[160] = "untouched";
        bool verdict = oh_topo_check_pair(A, B, &pair, reason, sizeof reason);
        if (verdict != expected(&pair)) {
            tap_note("case %d: verdict %d, reason %s", code, verdict, reason);
            verdicts = false;
        }
        bool good = verdict ? strcmp(reason, "untouched") == 0 : strstr(reason, A) && strstr(reason, B);
        if (!good) {
            tap_note("case %d: verdict %d, reason %s", code, verdict, reason);
            reasons = false;
        }
    }
    tap_ok(verdicts, "the verdict of all 243 combinations of facts");
    tap_ok(reasons, "a refusal names both GPUs, an acceptance leaves the reason alone");
}

static void check_reason(struct oh_topo_pair pair, const char *reason, const char *name)
{
    char got[160] = "";
    bool verdict = oh_topo_check_pair(A, B, &pair, got, sizeof got);
    tap_ok(!verdict && strcmp(got, reason) == 0, "%s: %s", name, got);
}

/* Texts; test/fixtures has more of them: of PCIe, of peers that CUDA denies, and where nothing is known. */
static void test_reasons(void)
{
    const enum oh_fact yes = OH_YES, no = OH_NO, unknown = OH_UNKNOWN;
    check_reason((struct oh_topo_pair){unknown, unknown, unknown, yes, no},
                 "GPUs " A " and " B " are not joined by NVLink (CUDA: no native atomics)", "PCIe without NVML");
    check_reason((struct oh_topo_pair){yes, no, no, no, no},
                 "GPUs " A " and " B " cannot read each other's memory (NVML)", "NVLink with peer access switched off");
    check_reason((struct oh_topo_pair){yes, unknown, unknown, unknown, unknown},
                 "GPUs " A " and " B " may lack access to each other's memory: neither NVML nor CUDA can tell",
                 "NVLink known, access unknown");
}

static void test_shared_gpu(void)
{
    const struct oh_topo_pair pair = {OH_YES, OH_YES, OH_YES, OH_YES, OH_YES};
    char reason[160] = "";
    bool verdict = oh_topo_check_pair("0000:3B:00.0", B, &pair, reason, sizeof reason);
    tap_ok(!verdict && strcmp(reason, "two ranks share GPU 0000:3B:00.0") == 0, "two ranks on one GPU");
}

static void test_gpu(void)
{
    struct oh_topo_gpu gpu = {.bus_id = A, .mig = OH_YES};
    char reason[160] = "";
    tap_ok(!oh_topo_check_gpu(&gpu, reason, sizeof reason) && strcmp(reason, "GPU " A " is in MIG mode") == 0,
           "MIG is refused");
    gpu.mig = OH_UNKNOWN;
    tap_ok(oh_topo_check_gpu(&gpu, reason, sizeof reason), "unknown MIG mode is no obstacle");
    gpu.mig = OH_NO;
    tap_ok(oh_topo_check_gpu(&gpu, reason, sizeof reason), "no MIG");
    gpu.compute_major = 7;
    tap_ok(!oh_topo_check_gpu(&gpu, reason, sizeof reason) &&
               strcmp(reason, "GPU " A " has compute capability 7, onehop's kernels need 8 or later") == 0,
           "a GPU older than the kernels is refused");
    gpu.compute_major = 8;
    tap_ok(oh_topo_check_gpu(&gpu, reason, sizeof reason), "Ampere is new enough");
    gpu.bus_id[0] = '\0';
    tap_ok(!oh_topo_check_gpu(&gpu, reason, sizeof reason), "a GPU without a bus id is refused");
}

/* NULL: not set. */
static void check_env(const char *disable, const char *level, const char *policy, bool allowed, const char *name)
{
    char reason[160] = "";
    static const char *const names[] = {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_CTA_POLICY"};
    const char *const values[] = {disable, level, policy};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]);
        if (values[i]) {
            setenv(names[i], values[i], 1);
        }
    }
    bool verdict = oh_topo_allowed_by_env(reason, sizeof reason);
    tap_ok(verdict == allowed && !reason[0] == allowed, "%s", name);
}

static void test_env(void)
{
    check_env(NULL, NULL, NULL, true, "nothing set");
    check_env("1", NULL, NULL, false, "NCCL_P2P_DISABLE=1");
    check_env("0", NULL, NULL, true, "NCCL_P2P_DISABLE=0");
    check_env("2", NULL, NULL, true, "NCCL_P2P_DISABLE=2: for NCCL only 1 counts");
    check_env("1", "NVL", NULL, false, "NCCL_P2P_DISABLE=1 goes before the level");
    check_env("0", "LOC", NULL, false, "NCCL_P2P_LEVEL=LOC");
    check_env(NULL, "0", NULL, false, "NCCL_P2P_LEVEL=0");
    check_env(NULL, "1", NULL, true, "NCCL_P2P_LEVEL=1");
    check_env(NULL, "NVL", NULL, true, "NCCL_P2P_LEVEL=NVL");
    check_env(NULL, "SYS", NULL, true, "NCCL_P2P_LEVEL=SYS");
    check_env(NULL, "", NULL, true, "NCCL_P2P_LEVEL empty");
    check_env(NULL, "loc", NULL, true, "NCCL_P2P_LEVEL=loc: names are upper case in NCCL");
    check_env(NULL, NULL, "2", false, "NCCL_CTA_POLICY=2: zero CTAs");
    check_env("0", "NVL", "3", false, "NCCL_CTA_POLICY=3 has that bit");
    check_env(NULL, NULL, "1", true, "NCCL_CTA_POLICY=1: efficiency");
    check_env(NULL, NULL, "ZERO", false, "NCCL_CTA_POLICY=ZERO");
    check_env(NULL, NULL, "efficiency|zero", false, "NCCL_CTA_POLICY=efficiency|zero");
    check_env(NULL, NULL, "DEFAULT|EFFICIENCY", true, "NCCL_CTA_POLICY=DEFAULT|EFFICIENCY");
    check_env(NULL, NULL, "ZEROES", true, "NCCL_CTA_POLICY=ZEROES: no name");
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    check_env(NULL, NULL, NULL, true, "NCCL_LAUNCH_ORDER_IMPLICIT=0");
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    check_env(NULL, NULL, NULL, false, "NCCL_LAUNCH_ORDER_IMPLICIT=1");
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

int main(void)
{
    test_all_pairs();
    test_reasons();
    test_shared_gpu();
    test_gpu();
    test_env();
    return tap_done();
}
