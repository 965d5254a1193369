/* SPDX-License-Identifier: MIT */
/*
 * topo/import.c - a node from a file that another program has made
 *
 * Does: reads XML of hwloc (lstopo) and NCCL's topology dump (NCCL_TOPO_DUMP_FILE), which may hold anything. Names
 *    other files that people have. No such file holds all facts that decide.
 * Threads: one.
 * Owns: nothing; the node owns what is read.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/tool.h"
#include "tools/topo/node.h"

/* --- NCCL's dump: <cpu> with <pci> in it, in these <gpu>, and in each its <nvlink>s ----------------------------------
 */

#define TAG_MOST 4096 /* of a tag: what is longer is cut, so that the time of a search is bounded */

/* Copies the attribute of a tag, as printable text; "" if there is none. */
static void attribute(const char *tag, const char *name, char *value_p, size_t size)
{
    char text[TAG_MOST], key[32];
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, tag);
    text[strcspn(text, ">")] = '\0';
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(text, key);
    at = at ? at + strlen(key) : "";
    snprintf(value_p, size, "%.*s", (int)strcspn(at, "\""), at);
    oh_text_clean(value_p, size);
}

static int number(const char *tag, const char *name, int least, int most, int unset)
{
    char text[16], *end;
    attribute(tag, name, text, sizeof text);
    const long value = strtol(text, &end, 0);
    return text[0] && !*end && value >= least && value <= most ? (int)value : unset;
}

static bool is_tag(const char *at, const char *name)
{
    return strncmp(at + 1, name, strlen(name)) == 0 && isspace((unsigned char)at[1 + strlen(name)]);
}

static void add_gpu(struct oh_node *node, const char *tag, const char *bus_id, const char *numa)
{
    struct oh_node_gpu *gpu = &node->gpu[node->visible];
    const int sm = number(tag, "sm", 10, 999, 0);
    oh_node_gpu_init(gpu);
    snprintf(gpu->topo.bus_id, sizeof gpu->topo.bus_id, "%.31s", bus_id);
    snprintf(gpu->topo.name, sizeof gpu->topo.name, sm ? "NVIDIA GPU, sm_%d" : "NVIDIA GPU", sm);
    snprintf(gpu->numa, sizeof gpu->numa, "%s", numa);
    gpu->topo.compute_major = sm / 10;
    gpu->topo.compute_minor = sm ? sm % 10 : -1;
    gpu->topo.cuda_device = number(tag, "dev", 0, OH_NODE_GPUS - 1, node->visible);
    node->visible++;
}

/* Links to a bridge end in NVSwitch. */
static void add_link(struct oh_node *node, const char *tag, int gpu)
{
    char target[OH_TOPO_BUS_ID];
    attribute(tag, "target", target, sizeof target);
    oh_node_add_links(node, gpu, number(tag, "count", 0, 99, 0), number(tag, "tclass", 0, 0xffffff, 0) == 0x068000,
                      target);
}

static bool read_dump(const char *text, struct oh_node *node)
{
    char bus_id[OH_TOPO_BUS_ID] = "", numa[16] = "";
    int gpu = -1;
    snprintf(node->source, sizeof node->source, "NCCL's topology dump");
    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        if (is_tag(at, "cpu")) {
            attribute(at, "numaid", numa, sizeof numa);
        } else if (is_tag(at, "pci")) {
            attribute(at, "busid", bus_id, sizeof bus_id);
        } else if (is_tag(at, "gpu") && node->visible < OH_NODE_GPUS) {
            add_gpu(node, at, bus_id, numa);
        }
    }
    oh_node_make_pairs(node);
    for (int i = 0; i < node->visible * node->visible; i++) {
        node->pair[i].links = 0;
    }
    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        gpu += is_tag(at, "gpu");
        if (is_tag(at, "nvlink") && gpu >= 0 && gpu < node->visible) {
            add_link(node, at, gpu);
        }
    }
    for (int i = 0; i < node->visible * node->visible; i++) {
        const struct oh_node_pair *back = oh_node_pair_at(node, i % node->visible, i / node->visible);
        node->pair[i].topo.nvml_nvlink = node->pair[i].links > 0 && back->links > 0 ? OH_YES : OH_NO;
    }
    return node->visible > 0;
}

/* --- which file it is --------------------------------------------------------------------------------------------- */

/* By what it holds. The first that fits counts. */
static const struct {
    const char *mark, *what;
} files[] = {
    {"<system", "a topology file of NCCL without GPUs"},
    {"<graphs", "a graph dump of NCCL"},
    {"nvidia_smi_log", "XML of nvidia-smi -q"},
    {"<?xml", "other XML"},
    {"CPU Affinity", "the matrix of nvidia-smi topo -m"},
    {"Status Ok", "the matrix of nvidia-smi topo -p2p"},
    {"NVSMI LOG", "the text of nvidia-smi -q"},
    {"NVIDIA-SMI", "the text of nvidia-smi"},
    {"(UUID: GPU-", "a list of nvidia-smi"},
    {"NCCL INFO", "a log of NCCL"},
    {"graph onehop {", "a graph of onehop topo --dot"},
    {"verdict: ", "a page of onehop, which shows a part of the facts"},
    {"Machine (", "the text of lstopo, where `lstopo FILE.xml` makes a file to load"},
    {"\x1f\x8b", "a compressed file"},
};

bool oh_node_import(const char *text, struct oh_node *node_p, const char **what_p)
{
    struct oh_node node = {.gpu = oh_tool_allocate(OH_NODE_GPUS * sizeof *node.gpu)};
    const char first = text[strspn(text, " \t\r\n\xef\xbb\xbf")]; /* a mark of UTF-8 may be there */
    bool good = false;
    *what_p = "";
    if (first == '<' && strstr(text, "<system") && strstr(text, "<gpu ")) {
        good = read_dump(text, &node);
    } else if (first == '<' && strstr(text, "<topology")) {
        good = oh_node_read_hwloc(text, &node, what_p);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files && !good && first != '{' && !*what_p[0]; i++) {
        *what_p = strstr(text, files[i].mark) ? files[i].what : "";
    }
    if (!good) {
        oh_node_free(&node);
        return false;
    }
    *node_p = node;
    return true;
}
