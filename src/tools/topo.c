/* SPDX-License-Identifier: MIT */
/*
 * topo.c - `onehop topo`: how the GPUs are joined, and whether onehop serves them
 *
 * Asks exactly what the plugin asks when a communicator over all visible GPUs is made. Creates no CUDA context.
 */
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/abi.h"
#include "tools/place.h"
#include "topo/topo.h"

static const char help[] =
    "usage: onehop topo\n"
    "\n"
    "Shows the GPUs that CUDA sees here (CUDA_VISIBLE_DEVICES applies), how each pair is joined, and whether onehop\n"
    "serves a communicator over all of them, with the reason if not.\n"
    "\n"
    "Exit status: 0 when it serves, 1 when it does not, 2 for wrong usage.\n";

struct node {
    int count;
    struct oh_topo_gpu *gpu;
    struct oh_topo_pair *pair;   /* [row * count + column] */
    struct oh_topo_links *links; /* the same */
};

static void node_free(struct node *node)
{
    free(node->gpu);
    free(node->pair);
    free(node->links);
}

static bool node_gather(const struct oh_driver *driver, int count, struct node *node_p)
{
    size_t n = (size_t)count;
    struct node node = {count, calloc(n, sizeof *node.gpu), calloc(n * n, sizeof *node.pair),
                        calloc(n * n, sizeof *node.links)};
    if (!node.gpu || !node.pair || !node.links) {
        oh_tool_error("topo: out of memory");
        node_free(&node);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        CUdevice device;
        if (driver->device_get(&device, (int)i) != CUDA_SUCCESS) {
            device = (int)i;
        }
        oh_topo_gpu_gather(driver, device, &node.gpu[i]);
    }
    for (size_t i = 0; i < n * n; i++) {
        const char *row = node.gpu[i / n].bus_id, *column = node.gpu[i % n].bus_id;
        if (i / n != i % n) {
            oh_topo_pair_gather(driver, row, column, &node.pair[i]);
            oh_topo_links_gather(row, column, &node.links[i]);
        }
    }
    *node_p = node;
    return true;
}

/* The plugin's questions, in its order. */
static bool judge(const struct node *node, char *reason_p, size_t size)
{
    if (!oh_topo_allowed_by_env(reason_p, size)) {
        return false;
    }
    if (node->count < 2 || node->count > OH_MAX_RANKS) {
        snprintf(reason_p, size, "%d GPU%s visible, onehop serves 2 to %d", node->count,
                 node->count == 1 ? " is" : "s are", OH_MAX_RANKS);
        return false;
    }
    for (int i = 0; i < node->count; i++) {
        if (!oh_topo_judge_gpu(&node->gpu[i], reason_p, size)) {
            return false;
        }
    }
    for (int i = 0; i < node->count * node->count; i++) {
        int row = i / node->count, column = i % node->count;
        if (row != column &&
            !oh_topo_judge_pair(node->gpu[row].bus_id, node->gpu[column].bus_id, &node->pair[i], reason_p, size)) {
            return false;
        }
    }
    return true;
}

/* What joins a pair, as far as known; access rights are the verdict's business. */
static void cell(const struct oh_topo_pair *pair, const struct oh_topo_links *links, char *text_p, size_t size)
{
    if (pair->nvml_nvlink == OH_NO || (pair->nvml_nvlink == OH_UNKNOWN && pair->cuda_atomics == OH_NO)) {
        snprintf(text_p, size, "-");
    } else if (pair->nvml_nvlink == OH_UNKNOWN && pair->cuda_atomics == OH_UNKNOWN) {
        snprintf(text_p, size, "?");
    } else if (links->active > 0) {
        snprintf(text_p, size, "NV%d", links->active);
    } else {
        snprintf(text_p, size, "NV");
    }
}

static void print_matrix(const struct node *node)
{
    struct oh_machine *machine = oh_machine_open();
    printf("%-6s", "");
    for (int column = 0; column < node->count; column++) {
        char name[16];
        snprintf(name, sizeof name, "GPU%d", column);
        printf("%-6s", name);
    }
    printf("%-20s %s\n", "CPU affinity", "NUMA node");
    for (int row = 0; row < node->count; row++) {
        char text[16];
        struct oh_place place;
        snprintf(text, sizeof text, "GPU%d", row);
        printf("%-6s", text);
        for (int column = 0; column < node->count; column++) {
            int i = row * node->count + column;
            snprintf(text, sizeof text, " X");
            if (row != column) {
                cell(&node->pair[i], &node->links[i], text, sizeof text);
            }
            printf("%-6s", text);
        }
        oh_machine_place(machine, node->gpu[row].bus_id, &place);
        printf("%-20s %s\n", place.cpus, place.numa);
    }
    oh_machine_close(machine);
}

static bool any_switch(const struct node *node)
{
    bool any = false;
    for (int i = 0; i < node->count * node->count; i++) {
        any = any || node->links[i].via_switch;
    }
    return any;
}

static void print_node(const struct node *node)
{
    printf("%s%d GPU%s\n\n", oh_tool_is_simulated(node->gpu[0].name) ? "SIMULATED node: " : "", node->count,
           node->count == 1 ? "" : "s");
    for (int i = 0; i < node->count; i++) {
        printf("  GPU%-2d %s  %s%s\n", i, node->gpu[i].bus_id, node->gpu[i].name,
               node->gpu[i].mig == OH_YES ? "  (MIG)" : "");
    }
    printf("\n");
    print_matrix(node);
    printf("\n  X    the GPU itself\n  NV#  joined by # NVLinks%s\n  -    not joined by NVLink\n"
           "  ?    neither NVML nor CUDA can tell\n\n",
           any_switch(node) ? " through NVSwitch (NVS)" : " directly");
}

/* Number of GPUs that CUDA sees; 0, with one sentence on stderr, when there are none. */
static int visible_gpus(const struct oh_driver **driver_p)
{
    int count = 0;
    if (oh_driver_get(driver_p) != ncclSuccess) {
        oh_tool_error("topo: no usable CUDA driver: %s", oh_driver_error());
    } else if ((*driver_p)->device_get_count(&count) != CUDA_SUCCESS || count < 1) {
        oh_tool_error("topo: CUDA sees no GPU here");
        count = 0;
    }
    return count;
}

bool oh_tool_judge_gpus(const struct oh_driver *driver, int count, char *reason_p, size_t size)
{
    struct node node;
    if (!node_gather(driver, count, &node)) {
        snprintf(reason_p, size, "out of memory");
        return false;
    }
    bool served = judge(&node, reason_p, size);
    node_free(&node);
    return served;
}

int oh_tool_topo(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option != 'h') {
            return OH_EXIT_USAGE;
        }
        fputs(help, stdout);
        return OH_EXIT_OK;
    }
    if (optind != argc) {
        oh_tool_error("topo: '%s' is one argument too many; see onehop topo --help", argv[optind]);
        return OH_EXIT_USAGE;
    }

    const struct oh_driver *driver;
    struct node node;
    int count = visible_gpus(&driver);
    if (count == 0 || !node_gather(driver, count, &node)) {
        return OH_EXIT_FAILED;
    }
    char reason[160];
    bool served = judge(&node, reason, sizeof reason);
    print_node(&node);
    if (served) {
        printf("verdict: full NVLink between %d GPUs: onehop serves\n", count);
    } else {
        printf("verdict: handed back to NCCL: %s\n", reason);
    }
    node_free(&node);
    return served ? OH_EXIT_OK : OH_EXIT_FAILED;
}
