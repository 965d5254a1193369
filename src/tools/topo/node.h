/* SPDX-License-Identifier: MIT */
/*
 * topo/node.h - a machine's GPUs as `onehop topo` sees them, and the verdict on them
 *
 * Does: holds plain data, gathered on this machine (gather.c, measure.c) or read from a recording (json.c). Page,
 *    graph, recording and verdict depend on a node alone, so a recording gives the page of the machine that it was made
 *    on.
 * Threads: one.
 * Owns: its arrays; oh_node_free() frees them.
 */
#ifndef OH_TOOLS_TOPO_NODE_H_
#define OH_TOOLS_TOPO_NODE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "topo/topo.h"

#define OH_NODE_GPUS 128
#define OH_NODE_VALUE 1024 /* of an environment variable, with the final zero */

struct oh_node_gpu {
    struct oh_topo_gpu topo; /* what the plugin knows; cuda_device is -1 where CUDA does not see it in this process */
    enum oh_fact ipc;        /* CUDA IPC is supported */
    int compute_mode;        /* CUcomputemode; -1 unknown */
    int fabric;              /* nvmlGpuFabricState_t; -1 unknown */
    int fabric_status;       /* nvmlReturn_t, where the state is COMPLETED */
    int clique;
    char cluster[33];         /* of the fabric, hexadecimal; empty: none */
    int links;                /* NVLinks that are up; -1 unknown */
    int links_down;           /* and such as are there and not up */
    char cpus[OH_NODE_VALUE]; /* near it, as a list, "0-31,64-95"; empty: unknown, as the next two */
    char numa[OH_NODE_VALUE]; /* NUMA nodes, as a list, "0" */
    char root[32];            /* bus id of its root port: the bridge below the host bridge */
};

/* An ordered pair of visible GPUs. */
struct oh_node_pair {
    struct oh_topo_pair topo;
    int links;       /* active NVLinks between the two (through switches: of the first GPU); -1 unknown */
    bool via_switch; /* the links end in an NVSwitch */
    char path[8];    /* by PCIe: PIX, PXB, PHB, NODE or SYS, as nvidia-smi has them; empty: unknown */
    int mb_per_s;    /* copied from row to column; 0: not measured */
    int latency_ns;  /* of the smallest exchange; 0: not measured */
};

/* Variables that change what is seen or served. */
enum oh_node_variable {
    OH_NODE_VISIBLE_DEVICES,
    OH_NODE_DEVICE_ORDER,
    OH_NODE_P2P_DISABLE,
    OH_NODE_P2P_LEVEL,
    OH_NODE_CTA_POLICY,
    OH_NODE_LAUNCH_ORDER,
    OH_NODE_ALGO,
    OH_NODE_INVARIANT,
    OH_NODE_PINNED,
    OH_NODE_DISABLE,
    OH_NODE_MAX_BYTES,
    OH_NODE_VARIABLES
};
extern const char *const oh_node_variable_names[OH_NODE_VARIABLES];

struct oh_node {
    bool by_hand;      /* a recording that somebody has written: no machine has been asked */
    char source[32];   /* the program whose file it is, without the facts that decide; empty: onehop */
    char driver[64];   /* version; empty: unknown */
    int cuda;          /* of the driver, 13000 is 13.0; 0: unknown */
    char problem[256]; /* why there are no GPUs to judge; empty: there are */
    struct {
        bool set;
        char value[OH_NODE_VALUE];
    } variable[OH_NODE_VARIABLES];
    int visible;               /* GPUs that CUDA sees, in its order */
    int hidden;                /* GPUs that only NVML sees; they follow in gpu[] */
    struct oh_node_gpu *gpu;   /* [visible + hidden] */
    struct oh_node_pair *pair; /* [row * visible + column] */
};

struct oh_verdict {
    bool served;
    bool unknown;               /* not served, as far as a file of another program tells */
    char reason[160];           /* where not served */
    char pair_reason[160];      /* of the pair, where that is not the reason itself */
    enum oh_topo_cause cause;   /* of the pair; OH_CAUSE_NONE: no pair is to blame */
    int row, column;            /* the pair; -1: none */
    int refused;                /* pairs of GPUs that are refused, of all */
    const char *remedy;         /* what to do; NULL if served. Static storage */
    int group[8], group_size;   /* the largest set of GPUs that would be served, where it is not all; 0: none */
    bool no_group;              /* not even two of several GPUs would be served */
    char select[OH_NODE_VALUE]; /* CUDA_VISIBLE_DEVICES for these; empty: cannot be told */
};

/* All zeros but for what -1 says is unknown. */
void oh_node_gpu_init(struct oh_node_gpu *gpu);

/* Makes the pairs for node->visible GPUs, all facts unknown. */
void oh_node_make_pairs(struct oh_node *node);

/* Counts NVLinks of a GPU that are up: to a switch, and so to all others, or to the GPU of that bus id. */
void oh_node_add_links(struct oh_node *node, int gpu, int count, bool to_switch, const char *remote);
void oh_node_free(struct oh_node *node);

static inline struct oh_node_pair *oh_node_pair_at(const struct oh_node *node, int row, int column)
{
    return &node->pair[row * node->visible + column];
}

/* Reads this machine. A node without GPUs has a problem. */
void oh_node_gather(struct oh_node *node_p);

/* Fills where the GPUs sit, by hwloc, which takes a moment. */
void oh_node_locate(struct oh_node *node);

/* Measures bandwidth and latency of every pair, on this machine. Ends the command if that fails. */
void oh_node_measure(struct oh_node *node);

/* The plugin's questions, in its order, for a communicator over all visible GPUs. Pure. */
void oh_node_assess(const struct oh_node *node, struct oh_verdict *verdict_p);

/* Returns true if the plugin serves the two GPUs, in both directions. Pure. */
bool oh_node_serves_pair(const struct oh_node *node, int a, int b);

/* Write the page, the recording, and the graph for Graphviz. */
void oh_node_print(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream);
void oh_node_json(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream);
void oh_node_dot(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream);

/* Whether NVML does not call the fabric of NVSwitch ready. */
bool oh_node_fabric_is_down(const struct oh_node_gpu *gpu);

/* What joins a pair, as the matrix shows it: NV18, NV, PHB, "-", "?". */
void oh_node_cell(const struct oh_node_pair *pair, char *text_p, size_t size);

/* True when the matrix says that NVLink joins the pair. */
bool oh_node_has_nvlink(const struct oh_topo_pair *pair);

/* "ready", "not started", ...; "-" where the GPU has no fabric, "?" where that is not known. */
const char *oh_node_fabric(const struct oh_node_gpu *gpu);

/* True when it is no real machine: the simulated node, or a recording made by hand. The words begin what is said of it.
 */
bool oh_node_is_simulated(const struct oh_node *node);
const char *oh_node_origin(const struct oh_node *node);
bool oh_node_any_switch(const struct oh_node *node, int gpu); /* of that GPU; -1: of any */

/*
 * Reads a recording, which may hold anything. Returns true with *node_p filled, which oh_node_free() frees; else false
 * with one clause in why_p.
 */
bool oh_node_parse(const char *text, size_t size, struct oh_node *node_p, char *why_p, size_t why_size);

/*
 * Reads a file that another program has made. Returns true with *node_p filled, or false with what the file is: "" if
 * that is not known.
 */
bool oh_node_import(const char *text, struct oh_node *node_p, const char **what_p);

/* Fills a node from XML of hwloc. Returns false, with what the file is, without GPUs or if hwloc cannot read it. */
bool oh_node_read_hwloc(const char *text, struct oh_node *node, const char **what_p);

#endif
