/* SPDX-License-Identifier: MIT */
/*
 * topo/print.c - the page that `onehop topo` prints
 */
#include <string.h>

#include "tools/topo/node.h"

#define SLOW_PERCENT 80 /* of the best pair: slower ones are marked */

/* Text, or "-" for none. */
static const char *or_dash(const char *text)
{
    return text[0] ? text : "-";
}

static const char *fact_word(enum oh_fact fact)
{
    return fact == OH_YES ? "yes" : fact == OH_NO ? "no" : "?";
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static int widest_name(const struct oh_node *node)
{
    int width = 4;
    for (int i = 0; i < node->visible; i++) {
        int length = (int)strlen(node->gpu[i].topo.name);
        width = length > width ? length : width;
    }
    return width;
}

static void print_head(const struct oh_node *node, FILE *stream)
{
    fprintf(stream, "%s%d GPU%s", oh_node_origin(node), node->visible, plural(node->visible));
    if (node->driver[0]) {
        fprintf(stream, ", driver %s", node->driver);
    }
    if (node->cuda > 0) {
        fprintf(stream, ", CUDA %d.%d", node->cuda / 1000, node->cuda % 1000 / 10);
    }
    fprintf(stream, "\n\n");
}

/* Whole matrix rows begin with this. */
static void print_label(int gpu, FILE *stream)
{
    char label[16];
    snprintf(label, sizeof label, "GPU%d", gpu);
    fprintf(stream, "%-6s", label);
}

static void print_gpus(const struct oh_node *node, FILE *stream)
{
    static const char *const modes[] = {"shared", "?", "prohibited", "exclusive"};
    int width = widest_name(node);
    fprintf(stream, "%-8s%-14s%-*s  %-6s%-5s%-5s%-11s%-8s%-13s%s\n", "", "bus id", width, "name", "CC", "MIG", "IPC",
            "mode", "NVLink", "fabric", "root port");
    for (int i = 0; i < node->visible; i++) {
        const struct oh_node_gpu *gpu = &node->gpu[i];
        char capability[32] = "?", links[32] = "-";
        if (gpu->topo.compute_major > 0) {
            snprintf(capability, sizeof capability, "%d.%d", gpu->topo.compute_major, gpu->compute_minor);
        }
        if (gpu->links > 0) {
            snprintf(links, sizeof links, gpu->links_down > 0 ? "%d/%d" : "%d", gpu->links,
                     gpu->links + gpu->links_down);
        }
        fprintf(stream, "  ");
        print_label(i, stream);
        fprintf(stream, "%-14s%-*s  %-6s%-5s%-5s%-11s%-8s%-13s%s\n", or_dash(gpu->topo.bus_id), width, gpu->topo.name,
                capability, fact_word(gpu->topo.mig), fact_word(gpu->ipc),
                gpu->compute_mode >= 0 && gpu->compute_mode < 4 ? modes[gpu->compute_mode] : "?", links,
                oh_node_fabric(gpu), or_dash(gpu->place.root));
    }
    fprintf(stream, "\n");
}

/* "GPU0", "GPU1", ... as heads of columns; nothing behind the last one. */
static void print_columns(const struct oh_node *node, int width, FILE *stream)
{
    fprintf(stream, "%-6s", "");
    for (int column = 0; column < node->visible; column++) {
        char name[16];
        snprintf(name, sizeof name, "GPU%d", column);
        fprintf(stream, "  %-*s", column + 1 < node->visible ? width - 2 : 0, name);
    }
}

static void print_matrix(const struct oh_node *node, FILE *stream)
{
    int cpus = 12;
    for (int i = 0; i < node->visible; i++) {
        int length = (int)strlen(node->gpu[i].place.cpus);
        cpus = length > cpus ? length : cpus;
    }
    print_columns(node, 6, stream);
    fprintf(stream, "  %-*s  %s\n", cpus, "CPU affinity", "NUMA node");
    for (int row = 0; row < node->visible; row++) {
        fprintf(stream, "  ");
        print_label(row, stream);
        for (int column = 0; column < node->visible; column++) {
            char text[16] = " X";
            if (row != column) {
                oh_node_cell(oh_node_pair_at(node, row, column), text, sizeof text);
            }
            fprintf(stream, "%-6s", text);
        }
        fprintf(stream, "%-*s  %s\n", cpus, or_dash(node->gpu[row].place.cpus), or_dash(node->gpu[row].place.numa));
    }
    fprintf(stream, "\n");
}

/* Only the marks that the matrix has. */
static void print_legend(const struct oh_node *node, FILE *stream)
{
    static const char *const paths[OH_PATHS] = {
        [OH_PATH_PIX] = "no NVLink; PCIe, at most one bridge or switch between",
        [OH_PATH_PXB] = "no NVLink; PCIe, several bridges",
        [OH_PATH_PHB] = "no NVLink; PCIe, through the host bridge",
        [OH_PATH_NODE] = "no NVLink; PCIe, through host bridges of one NUMA node",
        [OH_PATH_SYS] = "no NVLink; PCIe, from NUMA node to NUMA node",
    };
    bool nvlink = false, uncounted = false, none = false, unknown = false, path[OH_PATHS] = {false};
    for (int i = 0; i < node->visible * node->visible; i++) {
        const struct oh_node_pair *pair = &node->pair[i];
        char text[16];
        oh_node_cell(pair, text, sizeof text);
        if (i / node->visible == i % node->visible) {
            continue;
        }
        nvlink = nvlink || (strncmp(text, "NV", 2) == 0 && text[2]);
        uncounted = uncounted || strcmp(text, "NV") == 0;
        none = none || text[0] == '-';
        unknown = unknown || text[0] == '?';
        path[pair->path] = path[pair->path] || (pair->path && strcmp(text, oh_path_name(pair->path)) == 0);
    }
    fprintf(stream, "  X     the GPU itself\n");
    if (nvlink) {
        fprintf(stream, "  NV#   joined by # NVLinks%s\n",
                oh_node_any_switch(node) ? " through NVSwitch (NVS)" : " directly");
    }
    if (uncounted) {
        fprintf(stream, "  NV    joined by NVLink; how many links is not known\n");
    }
    for (int p = 0; p < OH_PATHS; p++) {
        if (path[p]) {
            fprintf(stream, "  %-4s  %s\n", oh_path_name((enum oh_path)p), paths[p]);
        }
    }
    if (none) {
        fprintf(stream, "  -     not joined by NVLink\n");
    }
    if (unknown) {
        fprintf(stream, "  ?     neither NVML nor CUDA can tell\n");
    }
    fprintf(stream, "\n");
}

/* Direct access of a pair: read, write by NVML; access, atomics by CUDA. */
static void access_cell(const struct oh_topo_pair *pair, char text_p[5])
{
    const enum oh_fact fact[] = {pair->nvml_read, pair->nvml_write, pair->cuda_access, pair->cuda_atomics};
    for (int i = 0; i < 4; i++) {
        text_p[i] = fact[i] == OH_YES ? "rwpa"[i] : fact[i] == OH_NO ? '-' : '?';
    }
    text_p[4] = '\0';
}

/* One line when all pairs are alike, else a matrix. */
static void print_access(const struct oh_node *node, FILE *stream)
{
    char first[5], text[5];
    bool alike = true;
    if (node->visible < 2) {
        return;
    }
    access_cell(&oh_node_pair_at(node, 0, 1)->topo, first);
    for (int i = 0; i < node->visible * node->visible; i++) {
        access_cell(&node->pair[i].topo, text);
        alike = alike && (i / node->visible == i % node->visible || strcmp(first, text) == 0);
    }
    if (alike) {
        fprintf(stream, "direct access (P2P) between all: %s\n", first);
    } else {
        fprintf(stream, "direct access (P2P):\n");
    }
    for (int row = 0; row < node->visible && !alike; row++) {
        fprintf(stream, "  ");
        print_label(row, stream);
        for (int column = 0; column < node->visible; column++) {
            access_cell(&oh_node_pair_at(node, row, column)->topo, text);
            fprintf(stream, "%-*s", column + 1 < node->visible ? 6 : 0, row == column ? " X" : text);
        }
        fprintf(stream, "\n");
    }
    fprintf(stream, "  r read, w write (NVML); p peer access, a native atomics (CUDA); - denied; ? not known\n\n");
}

static void print_environment(const struct oh_node *node, FILE *stream)
{
    bool any = false;
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        if (node->variable[v].set) {
            fprintf(stream, "%s=%s\n", oh_node_variable_names[v], node->variable[v].value);
            any = true;
        }
    }
    for (int i = node->visible; i < node->visible + node->hidden; i++) {
        fprintf(stream, "not visible to CUDA here: %s  %s\n", or_dash(node->gpu[i].topo.bus_id),
                node->gpu[i].topo.name);
        any = true;
    }
    if (any) {
        fprintf(stream, "\n");
    }
}

static void print_notes(const struct oh_node *node, FILE *stream)
{
    bool any = false, domain = false;
    for (int i = 0; i < node->visible; i++) {
        const struct oh_node_gpu *gpu = &node->gpu[i];
        domain = domain || gpu->cluster[0];
        if (gpu->links > 0 && gpu->links_down > 0) {
            fprintf(stream, "note: GPU%d: %d of %d NVLinks %s down\n", i, gpu->links_down, gpu->links + gpu->links_down,
                    gpu->links_down == 1 ? "is" : "are");
            any = true;
        }
    }
    if (domain) {
        fprintf(stream,
                "note: these GPUs belong to NVLink domain %s, clique %d, which may reach beyond this host;\n"
                "      onehop serves within a host, communicators that leave it are NCCL's\n",
                node->gpu[0].cluster, node->gpu[0].clique);
        any = true;
    }
    if (any) {
        fprintf(stream, "\n");
    }
}

/* --- measured: shades on a terminal, a mark anywhere */

static const int shades[] = {52, 94, 58, 22, 28}; /* of 256 colours, from slow to fast; dark, below white letters */
#define SHADES ((int)(sizeof shades / sizeof *shades))

/* Returns the width that it has taken. */
static int print_heat(int value, int best, bool more_is_better, bool colours, FILE *stream)
{
    /* How good, in percent of the best. */
    int percent = more_is_better ? (int)(100LL * value / best) : (int)(100LL * best / value);
    int shade = percent >= 100 ? SHADES - 1 : percent * SHADES / 100;
    char text[32];
    snprintf(text, sizeof text, "%7.*f%s", more_is_better ? 1 : 2, value / 1000.0,
             percent < SLOW_PERCENT ? "!"
             : colours              ? " "
                                    : "");
    if (colours) {
        fprintf(stream, "\033[97;48;5;%dm%s\033[0m", shades[shade], text);
    } else {
        fprintf(stream, "%s", text);
    }
    return (int)strlen(text);
}

static void print_measure(const struct oh_node *node, bool bandwidth, bool colours, FILE *stream)
{
    int best = 0;
    for (int i = 0; i < node->visible * node->visible; i++) {
        int value = bandwidth ? node->pair[i].mb_per_s : node->pair[i].latency_ns;
        if (value > 0 && (best == 0 || (bandwidth ? value > best : value < best))) {
            best = value;
        }
    }
    fprintf(stream, "%s\n",
            bandwidth ? "bandwidth, GB/s: copies from row to column, one pair at a time"
                      : "latency, us: an exchange of 8 bytes between the two, in a kernel of onehop");
    print_columns(node, 9, stream);
    fprintf(stream, "\n");
    for (int row = 0; row < node->visible; row++) {
        fprintf(stream, "  ");
        print_label(row, stream);
        for (int column = 0; column < node->visible; column++) {
            const struct oh_node_pair *pair = oh_node_pair_at(node, row, column);
            int value = bandwidth ? pair->mb_per_s : pair->latency_ns, width;
            if (row == column || value <= 0) {
                width = fprintf(stream, "%7s", row == column ? "X" : "-");
            } else {
                width = print_heat(value, best, bandwidth, colours, stream);
            }
            fprintf(stream, "%*s", column + 1 < node->visible ? 9 - width : 0, "");
        }
        fprintf(stream, "\n");
    }
}

static void print_measured(const struct oh_node *node, bool colours, FILE *stream)
{
    if (oh_node_any_measured(node)) {
        print_measure(node, true, colours, stream);
        fprintf(stream, "\n");
        print_measure(node, false, colours, stream);
        fprintf(stream, "  ! worse than %d %% of the best pair%s\n\n", SLOW_PERCENT,
                oh_node_is_simulated(node) ? "; SIMULATED: these numbers say nothing of a GPU" : "");
    }
}

/* --- the verdict */

static void print_group(const struct oh_verdict *verdict, FILE *stream)
{
    fprintf(stream, "  would be served:");
    for (int i = 0; i < verdict->group_size; i++) {
        fprintf(stream, " GPU%d", verdict->group[i]);
    }
    if (verdict->select[0]) {
        fprintf(stream, " (CUDA_VISIBLE_DEVICES=%s)", verdict->select);
    }
    fprintf(stream, "\n");
}

static void print_verdict(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    if (verdict->served) {
        fprintf(stream, "verdict: full NVLink between %d GPUs: onehop serves\n", node->visible);
        return;
    }
    fprintf(stream, "verdict: falls back to NCCL: %s\n", verdict->reason);
    if (verdict->pair_reason[0]) {
        fprintf(stream, "  and: %s\n", verdict->pair_reason);
    }
    if (verdict->row >= 0) {
        int pairs = node->visible * (node->visible - 1) / 2;
        fprintf(stream, "  the pair: GPU%d and GPU%d; %d of %d pairs %s refused\n", verdict->row, verdict->column,
                verdict->refused, pairs, verdict->refused == 1 ? "is" : "are");
    }
    if (verdict->remedy[0]) {
        char remedy[2 * sizeof verdict->remedy];
        oh_node_wrap(verdict->remedy, 104, "\n    ", remedy, sizeof remedy);
        fprintf(stream, "  what to do: %s\n", remedy);
    }
    if (verdict->group_size > 0) {
        print_group(verdict, stream);
    } else if (verdict->no_group) {
        fprintf(stream, "  would be served: no two of these GPUs\n");
    }
}

void oh_node_print(const struct oh_node *node, const struct oh_verdict *verdict, bool colours, FILE *stream)
{
    print_head(node, stream);
    print_gpus(node, stream);
    print_matrix(node, stream);
    print_legend(node, stream);
    print_access(node, stream);
    print_environment(node, stream);
    print_notes(node, stream);
    print_measured(node, colours, stream);
    print_verdict(node, verdict, stream);
}
