/* SPDX-License-Identifier: MIT */
/*
 * topo/assess.c - the verdict on a node, the pair that causes a refusal, and the remedy
 *
 * Does: asks the plugin's questions (src/topo/verdict.c) for a whole node, in the plugin's order.
 * Threads: any.
 * Owns: nothing.
 */
#include <string.h>
#include <strings.h>

#include "kernels/abi.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"
#include "topo/nvml.h"
#include "util/env.h"

#define SEARCH_STEPS 100000 /* a recording may have any pairs: the search for a group that is served ends here */

_Static_assert(sizeof((struct oh_verdict *)0)->group / sizeof(int) >= OH_MAX_RANKS, "a group fits");

/* One direction; the reason only where it is refused. */
static bool judge_pair(const struct oh_node *node, int row, int column, char *reason_p, size_t size)
{
    return oh_topo_check_pair(node->gpu[row].topo.bus_id, node->gpu[column].topo.bus_id,
                              &oh_node_pair_at(node, row, column)->topo, reason_p, size);
}

bool oh_node_serves_pair(const struct oh_node *node, int a, int b)
{
    char unused[160];
    return judge_pair(node, a, b, unused, sizeof unused) && judge_pair(node, b, a, unused, sizeof unused);
}

static const char old_gpu[] = "nothing on such GPUs; NCCL serves programs there, as without onehop";

/* NULL: nothing speaks against the GPU. Else what to do, with one clause in reason_p. */
static const char *gpu_remedy(const struct oh_node_gpu *gpu, char *reason_p, size_t size)
{
    const char *bus_id = gpu->topo.bus_id;
    if (!oh_topo_check_gpu(&gpu->topo, reason_p, size)) {
        return gpu->topo.mig == OH_YES ? "disable MIG mode (as root, with the GPU idle): `nvidia-smi -i BUS_ID -mig 0`"
               : !bus_id[0] ? "check `nvidia-smi -q`; onehop cannot identify a virtual GPU without a PCI bus id"
                            : old_gpu;
    }
    if (gpu->compute_mode == CU_COMPUTEMODE_PROHIBITED) {
        snprintf(reason_p, size, "no program may use GPU %s: its compute mode is prohibited", bus_id);
        return "allow programs on it (as root): `nvidia-smi -i BUS_ID -c 0`";
    }
    if (gpu->ipc == OH_NO) {
        snprintf(reason_p, size, "CUDA IPC does not work with GPU %s", bus_id);
        return "check the settings of the container or virtual machine: ranks reach each other's memory by CUDA IPC";
    }
    return NULL;
}

/* --- the largest set of GPUs that would be served */

struct search {
    const struct oh_node *node;
    int chosen[OH_MAX_RANKS];
    int steps;
    struct oh_verdict *best;
};

static void extend(struct search *search, int size, int next)
{
    struct oh_verdict *best = search->best;
    if (size > best->group_size) {
        memcpy(best->group, search->chosen, sizeof best->group);
        best->group_size = size;
    }
    for (int i = next; i < search->node->visible && best->group_size < OH_MAX_RANKS; i++) {
        char unused[160];
        bool fits = !gpu_remedy(&search->node->gpu[i], unused, sizeof unused);
        for (int j = 0; j < size && fits; j++) {
            fits = oh_node_serves_pair(search->node, search->chosen[j], i);
        }
        if (fits && search->steps-- > 0) {
            search->chosen[size] = i;
            extend(search, size + 1, i + 1);
        }
    }
}

/* Sets CUDA_VISIBLE_DEVICES for the group: those words of it that made its GPUs visible, or ordinals if it is not set.
 */
static void select_group(const struct oh_node *node, struct oh_verdict *verdict)
{
    const bool set = node->variable[OH_NODE_VISIBLE_DEVICES].set;
    char value[OH_NODE_VALUE], ordinal[16], *rest = value;
    memcpy(value, node->variable[OH_NODE_VISIBLE_DEVICES].value, sizeof value);
    for (int gpu = 0, member = 0; member < verdict->group_size; gpu++) {
        snprintf(ordinal, sizeof ordinal, "%d", gpu);
        const char *word = set ? strsep(&rest, ",") : ordinal;
        if (!word || !word[0]) {
            verdict->select[0] = '\0'; /* fewer words than GPUs */
            return;
        }
        if (gpu == verdict->group[member]) {
            oh_text_append(verdict->select, sizeof verdict->select, "%s%s", member ? "," : "", word);
            member++;
        }
    }
}

static void find_group(const struct oh_node *node, struct oh_verdict *verdict)
{
    struct search search = {.node = node, .steps = SEARCH_STEPS, .best = verdict};
    extend(&search, 0, 0);
    verdict->no_group = verdict->group_size < 2 && node->visible > 1;
    if (verdict->group_size < 2 || verdict->group_size == node->visible) {
        verdict->group_size = 0;
    }
    select_group(node, verdict);
}

/* --- what to do */

bool oh_node_fabric_is_down(const struct oh_node_gpu *gpu)
{
    return gpu->fabric == OH_NVML_FABRIC_NOT_STARTED || gpu->fabric == OH_NVML_FABRIC_IN_PROGRESS ||
           (gpu->fabric == OH_NVML_FABRIC_COMPLETED && gpu->fabric_status != OH_NVML_SUCCESS);
}

static bool has_no_link_up(const struct oh_node_gpu *gpu)
{
    return gpu->links == 0 && gpu->links_down > 0;
}

static const char *remedy_for_nvlink(const struct oh_node *node, const struct oh_verdict *verdict)
{
    bool joined = false;
    for (int i = 0; i < node->visible * node->visible; i++) {
        joined = joined || oh_node_has_nvlink(&node->pair[i].topo);
    }
    const struct oh_node_gpu *a = &node->gpu[verdict->row], *b = &node->gpu[verdict->column];
    if (oh_node_fabric_is_down(a) || oh_node_fabric_is_down(b)) {
        return "the NVLink fabric is not up; check `systemctl status nvidia-fabricmanager` and its log";
    }
    if (joined && (has_no_link_up(a) || has_no_link_up(b))) {
        return "all NVLinks of a GPU are down; check `nvidia-smi nvlink -s` and dmesg (Xid), and reset the GPU or the "
               "host";
    }
    if (!joined && a->links > 0) {
        return "NVLinks are up but join no two of these GPUs; check whether a VM or a fabric partition hides the peers";
    }
    if (!joined) {
        return "no two of these GPUs have NVLink; if the machine has NVLink, check `nvidia-smi nvlink -s`";
    }
    if (oh_node_any_switch(node, -1)) {
        return "this path of NVSwitch has failed; check `nvidia-smi nvlink -s`, dmesg (Xid, SXid), "
               "nvidia-fabricmanager";
    }
    return "NVLink joins only some pairs; if the machine has NVLink for this pair, check `nvidia-smi nvlink -s`";
}

static const char *remedy_for_pair(const struct oh_node *node, const struct oh_verdict *verdict)
{
    const struct oh_topo_pair *pair = &oh_node_pair_at(node, verdict->row, verdict->column)->topo;
    switch (verdict->cause) {
    case OH_CAUSE_NVML_NVLINK:
    case OH_CAUSE_CUDA_ATOMICS:
        return remedy_for_nvlink(node, verdict);
    case OH_CAUSE_CUDA_ACCESS:
        if (pair->nvml_read == OH_YES && pair->nvml_write == OH_YES) {
            return "NVML allows direct access and CUDA denies it; check the settings of the container or virtual "
                   "machine";
        }
        __attribute__((fallthrough));
    case OH_CAUSE_NVML_READ:
    case OH_CAUSE_NVML_WRITE:
        return "direct access is off; check `nvidia-smi topo -p2p r` and `w`, VM, confidential computing, driver "
               "settings";
    case OH_CAUSE_UNPROVEN_NVLINK:
    case OH_CAUSE_UNPROVEN_ACCESS:
        return "give the container the driver capability `utility` for NVML, or make all GPUs visible in every process";
    default:
        return "give each rank its own GPU";
    }
}

/* Words of a problem, which a recording has, too, or the number of cuInit's error. */
static const struct {
    const char *name;
    int number; /* 0: none */
    const char *remedy;
} problems[] = {
    {"libcuda.so.1", 0,
     "install NVIDIA's driver for CUDA 12 or later, or start the container with its GPUs (docker run --gpus all); "
     "without a GPU, add --simulated"},
    {"CUDA driver lacks", 0, "install a driver for CUDA 12 or later (525 or later)"},
    {"CUDA_ERROR_OUT_OF_MEMORY", 2,
     "free memory: `nvidia-smi` shows who uses the GPUs; check `ulimit -v` and the memory limit of the container, too"},
    {"CUDA_ERROR_STUB_LIBRARY", 34,
     "take the toolkit's folder `stubs` out of LD_LIBRARY_PATH: its libcuda is for linking only"},
    {"CUDA_ERROR_DEVICE_UNAVAILABLE", 46,
     "end the program that holds the GPU, or allow several (as root): `nvidia-smi -c 0`; `nvidia-smi -q -d COMPUTE`"},
    {"CUDA_ERROR_INVALID_DEVICE", 101, "check CUDA_VISIBLE_DEVICES and the MIG instances: `nvidia-smi -L` lists both"},
    {"CUDA_ERROR_DEVICE_NOT_LICENSED", 102, "get a licence for the virtual GPU: `nvidia-smi -q` shows its state"},
    {"CUDA_ERROR_ECC_UNCORRECTABLE", 214, "reset the GPU or the host; check `nvidia-smi -q -d ECC` and dmesg (Xid)"},
    {"CUDA_ERROR_OPERATING_SYSTEM", 304,
     "check whether this user may open /dev/nvidia* (permissions, cgroup, seccomp), `ulimit -a`, and dmesg"},
    {"CUDA_ERROR_SYSTEM_NOT_READY", 802,
     "start the service nvidia-fabricmanager, which GPUs behind NVSwitch need, and check its log; in a virtual machine "
     "it is the host's"},
    {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 803,
     "let libcuda and the kernel module have one version: take a `compat` folder out of LD_LIBRARY_PATH, or reload the "
     "module after an upgrade"},
    {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", 804,
     "take the `compat` folder out of LD_LIBRARY_PATH, or use an image for an older CUDA: these GPUs or this driver "
     "take no newer libcuda"},
    {"CUDA_ERROR_MPS_CONNECTION_FAILED", 805,
     "start the MPS daemon (nvidia-cuda-mps-control -d), whose pipe folder a container must share, or unset "
     "CUDA_MPS_PIPE_DIRECTORY"},
    {"CUDA_ERROR_MPS_MAX", 808, "end programs that use the GPUs, or restart the MPS daemon with a higher limit"},
    {"CUDA_ERROR_MPS", 807, "wait until the MPS server is ready, or restart it: `echo quit | nvidia-cuda-mps-control`"},
    {"CUDA_ERROR_UNKNOWN", 999,
     "load the module nvidia-uvm (`nvidia-modprobe -u`) and let this user open /dev/nvidia-uvm (devices of the cgroup "
     "or container); check dmesg (Xid)"},
    {"no usable CUDA driver", 0,
     "check `nvidia-smi` and dmesg: kernel module and libraries must have one version, 525 or later"},
};

/* No GPU is visible. */
static const char *remedy_for_problem(const struct oh_node *node)
{
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        char number[16];
        snprintf(number, sizeof number, "(%d)", problems[i].number);
        if (strstr(node->problem, problems[i].name) || (problems[i].number && strstr(node->problem, number))) {
            return problems[i].remedy;
        }
    }
    bool all_mig = node->hidden > 0;
    for (int i = 0; i < node->hidden; i++) {
        all_mig = all_mig && node->gpu[i].topo.mig == OH_YES;
    }
    if (all_mig) {
        return "these GPUs are in MIG mode and show no instance; onehop serves whole GPUs: disable MIG mode (as root, "
               "with the GPU idle) by `nvidia-smi -i BUS_ID -mig 0`";
    }
    if (node->hidden > 0 && node->variable[OH_NODE_VISIBLE_DEVICES].set) {
        return "unset CUDA_VISIBLE_DEVICES, or name GPUs in it that `nvidia-smi -L` lists";
    }
    if (node->hidden > 0) {
        return "check dmesg (Xid), `nvidia-smi -q`, and whether this user may open /dev/nvidia0 and /dev/nvidia-uvm";
    }
    return "check whether `nvidia-smi -L` and lspci list GPUs; start a container with them (docker run --gpus all); "
           "without a GPU, add --simulated";
}

/* --- the questions */

static bool allowed(const struct oh_node *node, struct oh_verdict *verdict)
{
    static const enum oh_node_variable ours[] = {OH_NODE_DISABLE, OH_NODE_MAX_BYTES};
    const bool invariant = strcmp(node->variable[OH_NODE_INVARIANT].value, "1") == 0;
    uint64_t number;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) { /* the values 1 and 0 of these turn onehop off */
        const char *value = node->variable[ours[i]].value;
        const bool has_effect = ours[i] == OH_NODE_DISABLE || !invariant; /* one order of sums has no cap */
        if (has_effect && oh_number_parse(value, true, UINT64_C(1) << 30, &number) &&
            number == (ours[i] == OH_NODE_DISABLE)) {
            snprintf(verdict->reason, sizeof verdict->reason, "%s=%.40s is set", oh_node_variable_names[ours[i]],
                     value);
            verdict->remedy = "unset that variable";
            return false;
        }
    }
    bool good = oh_topo_allowed(node->variable[OH_NODE_P2P_DISABLE].value, node->variable[OH_NODE_P2P_LEVEL].value,
                                node->variable[OH_NODE_CTA_POLICY].value, node->variable[OH_NODE_LAUNCH_ORDER].value,
                                verdict->reason, sizeof verdict->reason);
    verdict->remedy = good ? NULL : "unset that variable, in the environment or in nccl.conf; NCCL obeys it, too";
    if (good && !invariant && strcasecmp(node->variable[OH_NODE_PINNED].value, "serve") != 0 &&
        !oh_topo_allowed_by_algo(node->variable[OH_NODE_ALGO].value, verdict->reason, sizeof verdict->reason)) {
        verdict->remedy = "or set ONEHOP_PINNED=serve, if NCCL_ALGO is set for another reason than the order of sums";
        return false;
    }
    return good;
}

static bool count_fits(const struct oh_node *node, struct oh_verdict *verdict)
{
    if (node->visible >= 2 && node->visible <= OH_MAX_RANKS) {
        return true;
    }
    snprintf(verdict->reason, sizeof verdict->reason, "%d GPU%s visible, onehop serves 2 to %d", node->visible,
             node->visible == 1 ? " is" : "s are", OH_MAX_RANKS);
    verdict->remedy = node->visible > 1  ? "create smaller communicators; onehop decides for each communicator"
                      : node->hidden > 0 ? "make more of the machine's GPUs visible to this process"
                                         : "nothing; an allreduce of one GPU needs no communication";
    return false;
}

static bool gpus_fit(const struct oh_node *node, struct oh_verdict *verdict)
{
    for (int i = 0; i < node->visible; i++) {
        verdict->remedy = gpu_remedy(&node->gpu[i], verdict->reason, sizeof verdict->reason);
        if (verdict->remedy) {
            return false;
        }
    }
    return true;
}

/* Finds the first pair that is refused, and how many are. */
static void blame_pairs(const struct oh_node *node, struct oh_verdict *verdict)
{
    for (int i = 0; i < node->visible * node->visible; i++) {
        int row = i / node->visible, column = i % node->visible;
        if (row == column) {
            continue;
        }
        /* Where much is unknown, a pair that is denied tells more than one that is not proven. */
        const enum oh_topo_cause cause = oh_topo_pair_cause(&node->pair[i].topo);
        const bool denied = cause != OH_CAUSE_NONE && cause < OH_CAUSE_UNPROVEN_NVLINK;
        const bool tells_more = node->source[0] && denied && verdict->cause >= OH_CAUSE_UNPROVEN_NVLINK;
        verdict->refused += row < column && (node->source[0] ? denied : !oh_node_serves_pair(node, row, column));
        if ((verdict->row < 0 || tells_more) &&
            !judge_pair(node, row, column, verdict->pair_reason, sizeof verdict->pair_reason)) {
            verdict->row = row;
            verdict->column = column;
            verdict->cause = cause;
        }
    }
}

void oh_node_assess(const struct oh_node *node, struct oh_verdict *verdict_p)
{
    struct oh_verdict verdict = {.row = -1, .column = -1};
    if (node->problem[0]) {
        snprintf(verdict.reason, sizeof verdict.reason, "%.150s", node->problem);
        verdict.remedy = remedy_for_problem(node);
        *verdict_p = verdict;
        return;
    }
    bool access = allowed(node, &verdict);
    verdict.served = access && count_fits(node, &verdict) && gpus_fit(node, &verdict);
    blame_pairs(node, &verdict);
    if (verdict.served && verdict.row >= 0) {
        verdict.served = false;
        memcpy(verdict.reason, verdict.pair_reason, sizeof verdict.reason);
        verdict.pair_reason[0] = '\0';
        verdict.remedy = remedy_for_pair(node, &verdict);
    }
    verdict.unknown = node->source[0] && (verdict.served || verdict.cause >= OH_CAUSE_UNPROVEN_NVLINK) && access;
    if (verdict.unknown) {
        snprintf(verdict.reason, sizeof verdict.reason, "%s lacks facts of NVML and CUDA that decide", node->source);
        verdict.remedy = "record the machine by `onehop topo --save FILE` there";
        verdict.served = false;
    } else if (access && !verdict.served && !node->source[0]) {
        find_group(node, &verdict);
    }
    if (verdict.remedy == old_gpu && verdict.group_size > 0) {
        verdict.remedy = "hide such GPUs from the program by CUDA_VISIBLE_DEVICES";
    } else if (verdict.no_group && node->visible > OH_MAX_RANKS) { /* fewer GPUs would not help */
        struct oh_verdict fewer = {.row = -1};
        verdict.remedy = gpus_fit(node, &fewer) ? remedy_for_pair(node, &verdict) : fewer.remedy;
        memcpy(verdict.pair_reason, fewer.reason[0] ? fewer.reason : verdict.pair_reason, sizeof fewer.reason);
    }
    *verdict_p = verdict;
}
