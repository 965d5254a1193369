/* SPDX-License-Identifier: MIT */
/*
 * topo/print.c - the page that `onehop topo` prints
 *
 * Does: prints tables of at most 120 columns, notes and the verdict.
 * Threads: any.
 * Owns: nothing.
 */
#include <limits.h>
#include <string.h>

#include "tools/topo/node.h"

#define SLOW_PERCENT 80 /* of the best pair: slower ones are marked */
#define BLOCK 12        /* columns of a matrix that are printed side by side */
#define NAME 32         /* longer names are cut */
#define CELL 16
#define LIST 24   /* longer lists stand below the matrix */
#define WIDTH 118 /* of a line that is broken */

/* Text, or "?" where it is not known. */
static const char *or_unknown(const char *text)
{
    return text[0] ? text : "?";
}

/* A list that is too long for a column stands below the matrix. */
static const char *list_cell(const char *list)
{
    return strlen(list) > LIST ? "below" : or_unknown(list);
}

static const char *fact_word(enum oh_fact fact)
{
    return fact == OH_YES ? "yes" : fact == OH_NO ? "no" : "?";
}

static int widest_name(const struct oh_node *node)
{
    int width = 4;
    for (int i = 0; i < node->visible; i++) {
        int length = (int)strlen(node->gpu[i].topo.name);
        width = length > width ? length : width;
    }
    return width < NAME ? width : NAME;
}

static void print_head(const struct oh_node *node, FILE *stream)
{
    fprintf(stream, "%s%d GPU%s", oh_node_origin(node), node->visible, node->visible == 1 ? "" : "s");
    if (node->source[0]) {
        fprintf(stream, ", by %s", node->source);
    }
    if (node->driver[0]) {
        fprintf(stream, ", driver %s", node->driver);
    }
    if (node->cuda > 0) {
        fprintf(stream, ", CUDA %d.%d", node->cuda / 1000, node->cuda % 1000 / 10);
    }
    fprintf(stream, "\n\n");
}

static void print_gpus(const struct oh_node *node, FILE *stream)
{
    static const char *const modes[] = {"shared", "?", "prohibited", "exclusive"};
    int width = widest_name(node);
    fprintf(stream, "%-8s%-14s%-*s  %-6s%-5s%-5s%-11s%-8s%-13s%s\n", "", "bus id", width, "name", "CC", "MIG", "IPC",
            "mode", "NVLink", "fabric", "root port");
    for (int i = 0; i < node->visible; i++) {
        const struct oh_node_gpu *gpu = &node->gpu[i];
        char label[16], capability[32] = "?", links[32] = "?";
        if (gpu->topo.compute_major > 0 && gpu->topo.compute_minor >= 0) {
            snprintf(capability, sizeof capability, "%d.%d", gpu->topo.compute_major, gpu->topo.compute_minor);
        }
        if (gpu->links >= 0) {
            const int all = gpu->links + (gpu->links_down > 0 ? gpu->links_down : 0);
            snprintf(links, sizeof links, all == 0 ? "-" : all > gpu->links ? "%d/%d" : "%d", gpu->links, all);
        }
        snprintf(label, sizeof label, "GPU%d", i);
        fprintf(stream, "  %-6s%-14s%-*.*s  %-6s%-5s%-5s%-11s%-8s%-13s%s\n", label, or_unknown(gpu->topo.bus_id), width,
                width, gpu->topo.name, capability, fact_word(gpu->topo.mig), fact_word(gpu->ipc),
                gpu->compute_mode >= 0 && gpu->compute_mode < 4 ? modes[gpu->compute_mode] : "?", links,
                oh_node_fabric(gpu), or_unknown(gpu->root));
    }
    fprintf(stream, "\n");
}

/* --- what is said of several GPUs at once */

/* Writes the text of one GPU. Returns false if there is nothing to say. */
typedef bool (*about_function)(const struct oh_node *node, int gpu, char *text_p, size_t size);

/* Prints HEAD, the GPUs of one text, and the text, broken behind blanks and commas. Returns whether there was any. */
static bool print_about(const struct oh_node *node, const char *head, about_function about, FILE *stream)
{
    char text[OH_NODE_VALUE + 64], other[sizeof text];
    bool any = false, said[OH_NODE_GPUS] = {false};
    for (int i = 0; i < node->visible; i++) {
        if (said[i] || !about(node, i, text, sizeof text)) {
            continue;
        }
        int column = fprintf(stream, "%s", head);
        for (int k = i; k < node->visible; k++) {
            if (about(node, k, other, sizeof other) && strcmp(text, other) == 0) {
                said[k] = true;
                column += fprintf(stream, "%sGPU%d", k > i ? ", " : "", k);
            }
        }
        column += fprintf(stream, ":");
        for (const char *at = text; *at;) {
            const int length = (int)strcspn(at, " ,") + (at[strcspn(at, " ,")] == ',');
            if (column + length >= WIDTH) {
                column = fprintf(stream, "\n     ") - 1;
            }
            column += fprintf(stream, "%s%.*s", at == text || at[-1] == ' ' || column < 6 ? " " : "", length, at);
            at += length + (at[length] == ' ');
        }
        fprintf(stream, "\n");
        any = true;
    }
    return any;
}

/* A list that has no room in its column. */
static bool about_cpus(const struct oh_node *node, int gpu, char *text_p, size_t size)
{
    return snprintf(text_p, size, "%s", node->gpu[gpu].cpus) > LIST;
}

static bool about_numa(const struct oh_node *node, int gpu, char *text_p, size_t size)
{
    return snprintf(text_p, size, "%s", node->gpu[gpu].numa) > LIST;
}

/* Of what speaks against a GPU that is served. A pair that is refused has it in its remedy. */
#define YET_SERVED                                                                                                     \
    ", but NVML or CUDA report NVLink and direct access to peers, which is all that onehop needs; if programs fail "   \
    "there, check "

static bool serves_any(const struct oh_node *node, int gpu)
{
    bool served = false;
    for (int i = 0; i < node->visible; i++) {
        served = served || (i != gpu && oh_node_serves_pair(node, gpu, i));
    }
    return served;
}

static bool about_links(const struct oh_node *node, int gpu, char *text_p, size_t size)
{
    const int up = node->gpu[gpu].links, down = node->gpu[gpu].links_down;
    snprintf(text_p, size, "%d of %d NVLinks %s down%s", down, up + down, down == 1 ? "is" : "are",
             up == 0 && serves_any(node, gpu) ? YET_SERVED "`nvidia-smi nvlink -s`" : "");
    return up >= 0 && down > 0;
}

static bool about_fabric(const struct oh_node *node, int gpu, char *text_p, size_t size)
{
    snprintf(text_p, size,
             "the fabric is \"%s\" (NVML: state %d, status %d)" YET_SERVED "the service nvidia-fabricmanager",
             oh_node_fabric(&node->gpu[gpu]), node->gpu[gpu].fabric, node->gpu[gpu].fabric_status);
    return oh_node_fabric_is_down(&node->gpu[gpu]) && serves_any(node, gpu);
}

static bool about_atomics(const struct oh_node *node, int gpu, char *text_p, size_t size)
{
    bool any = false;
    for (int i = 0; i < node->visible; i++) {
        const bool lacks = oh_node_pair_at(node, gpu, i)->topo.cuda_atomics == OH_NO;
        any = any || (i != gpu && lacks && oh_node_serves_pair(node, gpu, i));
    }
    snprintf(text_p, size,
             "CUDA reports no native atomics to some peers, but NVML reports NVLink; onehop's kernels use no "
             "atomics between GPUs");
    return any;
}

/* --- matrices */

/* Writes the text of one pair, of CELL characters. best: of all pairs, where something was measured. */
typedef void (*cell_function)(const struct oh_node_pair *pair, int best, char *text_p);

static void link_cell(const struct oh_node_pair *pair, int best, char *text_p)
{
    (void)best;
    oh_node_cell(pair, text_p, CELL);
}

/* Direct access: read, write by NVML; access, atomics by CUDA. */
static void access_cell(const struct oh_node_pair *pair, int best, char *text_p)
{
    const enum oh_fact fact[] = {pair->topo.nvml_read, pair->topo.nvml_write, pair->topo.cuda_access,
                                 pair->topo.cuda_atomics};
    (void)best;
    for (int i = 0; i < 4; i++) {
        text_p[i] = fact[i] == OH_YES ? "rwpa"[i] : fact[i] == OH_NO ? '-' : '?';
    }
    text_p[4] = '\0';
}

static void bandwidth_cell(const struct oh_node_pair *pair, int best, char *text_p)
{
    bool slow = 100LL * pair->mb_per_s < (long long)SLOW_PERCENT * best;
    snprintf(text_p, CELL, pair->mb_per_s > 0 ? "%5.1f%s" : "-", pair->mb_per_s / 1000.0, slow ? "!" : "");
}

static void latency_cell(const struct oh_node_pair *pair, int best, char *text_p)
{
    bool slow = 100LL * best < (long long)SLOW_PERCENT * pair->latency_ns;
    snprintf(text_p, CELL, pair->latency_ns > 0 ? "%5.2f%s" : "-", pair->latency_ns / 1000.0, slow ? "!" : "");
}

/* Writes what stands in a row and column; row -1: the head. */
static void make_text(const struct oh_node *node, cell_function cell, int best, int row, int column, char text_p[CELL])
{
    if (row < 0) {
        snprintf(text_p, CELL, "GPU%d", column);
    } else if (row == column) {
        snprintf(text_p, CELL, " X");
    } else {
        cell(oh_node_pair_at(node, row, column), best, text_p);
    }
}

/* Prints BLOCK columns of all rows, then the next; with the links: and where each GPU sits. */
static void print_matrix(const struct oh_node *node, cell_function cell, int width, int best, FILE *stream)
{
    const bool with_places = cell == link_cell;
    int cpus = 12;
    char text[CELL];
    for (int i = 0; i < node->visible; i++) {
        int length = (int)strlen(list_cell(node->gpu[i].cpus));
        cpus = length > cpus ? length : cpus;
    }
    for (int first = 0; first < node->visible; first += BLOCK) {
        const int end = first + BLOCK < node->visible ? first + BLOCK : node->visible;
        fprintf(stream, "%s%8s", first > 0 ? "\n" : "", "");
        for (int row = -1; row < node->visible; row++) {
            if (row >= 0) {
                fprintf(stream, "  GPU%-3d", row);
            }
            for (int column = first; column < end; column++) {
                make_text(node, cell, best, row, column, text);
                fprintf(stream, "%-*s", column + 1 < end || with_places ? width : 0, text);
            }
            if (with_places) {
                fprintf(stream, "%-*s  %s", cpus, row < 0 ? "CPU affinity" : list_cell(node->gpu[row].cpus),
                        row < 0 ? "NUMA node" : list_cell(node->gpu[row].numa));
            }
            fprintf(stream, "\n");
        }
    }
}

static void print_links(const struct oh_node *node, FILE *stream)
{
    print_matrix(node, link_cell, 6, 0, stream);
    fprintf(stream,
            "  X the GPU itself; NV# joined by # NVLinks%s; NV by an unknown number; ? unknown\n"
            "  without NVLink the PCIe path: PIX one switch, PXB several switches, PHB the host bridge,\n"
            "  NODE host bridges of one NUMA node, SYS between NUMA nodes, - unknown\n\n",
            oh_node_any_switch(node, -1) ? " through NVSwitch" : "");
    const bool any_cpus = print_about(node, "CPU affinity of ", about_cpus, stream);
    const bool any_numa = print_about(node, "NUMA nodes of ", about_numa, stream);
    if (any_cpus || any_numa) {
        fprintf(stream, "\n");
    }
}

/* One line if all pairs are alike, else a matrix. */
static void print_access(const struct oh_node *node, FILE *stream)
{
    char first[CELL], text[CELL];
    bool alike = true;
    if (node->visible < 2) {
        return;
    }
    access_cell(oh_node_pair_at(node, 0, 1), 0, first);
    for (int i = 0; i < node->visible * node->visible; i++) {
        access_cell(&node->pair[i], 0, text);
        alike = alike && (i / node->visible == i % node->visible || strcmp(first, text) == 0);
    }
    if (alike) {
        fprintf(stream, "direct access (P2P) between all: %s\n", first);
    } else {
        fprintf(stream, "direct access (P2P) from row to column\n");
        print_matrix(node, access_cell, 6, 0, stream);
    }
    fprintf(stream, "  r read, w write (NVML); p peer access, a native atomics (CUDA); - denied; ? unknown\n\n");
}

static void print_measured(const struct oh_node *node, FILE *stream)
{
    int most = 0, least = INT_MAX;
    for (int i = 0; i < node->visible * node->visible; i++) {
        const int mb_per_s = node->pair[i].mb_per_s, ns = node->pair[i].latency_ns;
        most = mb_per_s > most ? mb_per_s : most;
        least = ns > 0 && ns < least ? ns : least;
    }
    if (most > 0 || least < INT_MAX) {
        fprintf(stream, "bandwidth, GB/s: copies from row to column, one pair at a time\n");
        print_matrix(node, bandwidth_cell, 9, most, stream);
        fprintf(stream,
                "\nlatency, us: one exchange of 8 bytes between two GPUs by onehop's kernel, in a CUDA graph\n");
        print_matrix(node, latency_cell, 9, least, stream);
        fprintf(stream, "  ! worse than %d %% of the best pair%s\n\n", SLOW_PERCENT,
                oh_node_is_simulated(node) ? "; SIMULATED: these numbers are not those of a GPU" : "");
    }
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
        fprintf(stream, "not visible to CUDA here: %s  %s\n", or_unknown(node->gpu[i].topo.bus_id),
                node->gpu[i].topo.name);
        any = true;
    }
    if (any) {
        fprintf(stream, "\n");
    }
}

static void print_notes(const struct oh_node *node, FILE *stream)
{
    static const about_function abouts[] = {about_links, about_fabric, about_atomics};
    bool any = false, domain = false, differ = false;
    for (int i = 0; i < node->visible; i++) {
        domain = domain || node->gpu[i].cluster[0];
        differ = differ || strcmp(node->gpu[i].topo.name, node->gpu[0].topo.name) != 0;
    }
    for (size_t i = 0; i < sizeof abouts / sizeof *abouts; i++) {
        any |= print_about(node, "note: ", abouts[i], stream);
    }
    if (differ && !node->variable[OH_NODE_DEVICE_ORDER].set) {
        fprintf(stream,
                "note: these GPUs differ: CUDA numbers the fastest first, and nvidia-smi by bus id.\n"
                "      CUDA_DEVICE_ORDER=PCI_BUS_ID makes CUDA's numbers those of nvidia-smi, also on this page.\n");
        any = true;
    }
    if (domain) {
        fprintf(stream,
                "note: these GPUs belong to NVLink domain %s, clique %d, which may contain other hosts.\n"
                "      onehop serves communicators within one host; NCCL serves all others.\n",
                node->gpu[0].cluster, node->gpu[0].clique);
        any = true;
    }
    if (any) {
        fprintf(stream, "\n");
    }
}

static void print_group(const struct oh_verdict *verdict, FILE *stream)
{
    fprintf(stream, "  onehop serves these GPUs:");
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
        fprintf(stream, "verdict: onehop serves these %d GPUs: NVLink joins every pair\n", node->visible);
        return;
    }
    fprintf(stream, "verdict: %s: %s\n", verdict->unknown ? "unknown" : "falls back to NCCL", verdict->reason);
    if (verdict->unknown) {
        fprintf(stream, "  what to do: %s\n", verdict->remedy);
        return;
    }
    if (verdict->pair_reason[0]) {
        fprintf(stream, "  and: %s\n", verdict->pair_reason);
    }
    if (verdict->row >= 0) {
        int pairs = node->visible * (node->visible - 1) / 2;
        fprintf(stream, "  first refused pair: GPU%d and GPU%d (%d of %d pairs %s refused)\n", verdict->row,
                verdict->column, verdict->refused, pairs, verdict->refused == 1 ? "is" : "are");
    }
    fprintf(stream, "  what to do: %s\n", verdict->remedy);
    if (verdict->group_size > 0) {
        print_group(verdict, stream);
    } else if (verdict->no_group) {
        fprintf(stream, "  onehop serves no two of these GPUs\n");
    }
}

void oh_node_print(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    print_head(node, stream);
    print_gpus(node, stream);
    print_links(node, stream);
    print_access(node, stream);
    print_environment(node, stream);
    print_notes(node, stream);
    print_measured(node, stream);
    print_verdict(node, verdict, stream);
}
