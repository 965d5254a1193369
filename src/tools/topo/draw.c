/* SPDX-License-Identifier: MIT */
/*
 * topo/draw.c - the picture: a graph for graphviz, and graphviz called to make it SVG
 *
 * The GPUs stand on a circle at places of their own, so the picture of a machine is always the same; more than
 * CIRCLE_GPUS stand in a grid without lines, a box for each NUMA node. What tells apart does so without colour too:
 * NVLinks are solid lines, thicker for more links; pairs that are refused are dashed; the NUMA node is written in the
 * box.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/shared/save.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"

#define WIDTHS 3           /* of lines, for the most links of a pair, fewer, and the fewest */
#define REFUSED_LINES 100  /* more are not drawn */
#define PICTURE_LIMIT_S 60 /* for graphviz */
#define PICTURE_BYTES (64u << 20)
#define PI 3.14159265358979323846

#define CIRCLE_GPUS 16 /* more would make a picture that no page holds */
#define LEGEND 256

/* By NUMA node, as far as they reach; in grey from white downwards, each as far from the next. */
static const char *const fills[] = {"#ffffff", "#d9e8f6", "#f3bf8f", "#9fb0d8"};
#define FILLS (sizeof fills / sizeof *fills)

/* Text within the quotes of dot. */
static void put_quoted(const char *text, FILE *stream)
{
    for (; *text; text++) {
        if (*text == '\n') {
            fputs("\\n", stream);
            continue;
        }
        if (*text == '"' || *text == '\\') {
            fputc('\\', stream);
        }
        fputc(*text, stream);
    }
}

/* White for all where there are more NUMA nodes than colours, or it is not known. */
static const char *fill_of(const struct oh_node *node, int index)
{
    const char *seen[FILLS];
    size_t nodes = 0, own = 0;
    for (int i = 0; i < node->visible; i++) {
        const char *numa = node->gpu[i].place.numa;
        size_t at = 0;
        while (at < nodes && strcmp(seen[at], numa) != 0) {
            at++;
        }
        if (at == FILLS) {
            return fills[0];
        }
        seen[at] = numa;
        nodes += at == nodes;
        own = i == index ? at : own;
    }
    return fills[own];
}

static void put_gpu(const struct oh_node *node, int index, double radius, FILE *stream)
{
    const struct oh_node_gpu *gpu = &node->gpu[index];
    double angle = PI * (0.5 + (2.0 * index + 1.0) / node->visible);
    int switched = 0;
    for (int column = 0; column < node->visible; column++) {
        const struct oh_topo_links *links = &oh_node_pair_at(node, index, column)->links;
        switched = index != column && links->via_switch && links->active > switched ? links->active : switched;
    }
    fprintf(stream, "  gpu%d [pos=\"%.2f,%.2f!\", fillcolor=\"%s\", label=\"GPU%d\\n", index, radius * cos(angle),
            radius * sin(angle), fill_of(node, index), index);
    put_quoted(gpu->topo.name, stream);
    fprintf(stream, "\\n");
    put_quoted(gpu->topo.bus_id, stream);
    if (gpu->place.numa[0]) {
        fprintf(stream, "\\nNUMA node ");
        put_quoted(gpu->place.numa, stream);
    }
    if (switched > 0) {
        fprintf(stream, "\\n%d NVLinks", switched);
    }
    fprintf(stream, "%s\"];\n", gpu->topo.mig == OH_YES ? "\\nMIG" : "");
}

/* The width for that many links: 0 the thickest. */
static int width_of(const struct oh_node *node, int links)
{
    bool more[OH_NODE_VALUE] = {false};
    int width = 0;
    for (int i = 0; i < node->visible * node->visible; i++) {
        int active = node->pair[i].links.active;
        if (active > links && active < OH_NODE_VALUE && oh_node_has_nvlink(&node->pair[i].topo) && !more[active]) {
            more[active] = true;
            width++;
        }
    }
    return width < WIDTHS ? width : WIDTHS - 1;
}

static bool is_refused(const struct oh_node *node, int a, int b)
{
    return oh_topo_pair_cause(&oh_node_pair_at(node, a, b)->topo) != OH_CAUSE_NONE ||
           oh_topo_pair_cause(&oh_node_pair_at(node, b, a)->topo) != OH_CAUSE_NONE;
}

/* What the lines of a picture mean. */
struct lines {
    int links[WIDTHS]; /* of a pair with a line of this width; 0: there is none */
    bool uncounted, switched, refused;
};

static void put_pair(const struct oh_node *node, int a, int b, bool draw_refused, struct lines *lines, FILE *stream)
{
    static const char *const widths[WIDTHS] = {"6", "3", "1.2"};
    const struct oh_node_pair *pair = oh_node_pair_at(node, a, b);
    if (is_refused(node, a, b)) {
        lines->refused = true;
        if (draw_refused) {
            fprintf(stream, "  gpu%d -- gpu%d [style=dashed, color=\"#c00000\", penwidth=1.8];\n", a, b);
        }
    }
    if (!oh_node_has_nvlink(&pair->topo) || pair->links.via_switch) {
        return;
    }
    int width = pair->links.active > 0 ? width_of(node, pair->links.active) : 0;
    if (pair->links.active > 0) {
        lines->links[width] = pair->links.active;
    } else {
        lines->uncounted = true;
    }
    fprintf(stream, "  gpu%d -- gpu%d [color=\"#1f4e79\", penwidth=%s];\n", a, b, widths[width]);
}

static void put_switch(const struct oh_node *node, FILE *stream)
{
    fprintf(stream, "  switch [pos=\"0,0!\", shape=ellipse, fillcolor=\"#e6e6e6\", label=\"NVSwitch\"];\n");
    for (int i = 0; i < node->visible; i++) {
        bool joined = false;
        for (int j = 0; j < node->visible; j++) {
            joined = joined || (i != j && oh_node_pair_at(node, i, j)->links.via_switch);
        }
        if (joined) {
            fprintf(stream, "  gpu%d -- switch [color=\"#1f4e79\", penwidth=4];\n", i);
        }
    }
}

/* What the lines of the circle mean. */
static void explain_lines(const struct lines *lines, bool drawn, char text_p[LEGEND])
{
    static const char *const words[WIDTHS] = {"thick", "middle", "thin"};
    int classes = (lines->links[0] > 0) + (lines->links[1] > 0) + (lines->links[2] > 0);
    bool plain = lines->switched || lines->uncounted;
    size_t used = (size_t)snprintf(text_p, LEGEND, "%s", plain ? "solid line: NVLink" : "");
    const char *separator = plain ? "; " : "solid line: ";
    for (int w = 0; w < WIDTHS; w++) {
        if (lines->links[w] > 0) {
            used += (size_t)snprintf(text_p + used, LEGEND - used, "%sNV%d", separator, lines->links[w]);
            if (classes > 1) {
                used +=
                    (size_t)snprintf(text_p + used, LEGEND - used, " (%s)", words[w + 1 == classes ? WIDTHS - 1 : w]);
            }
            separator = ", ";
        }
    }
    if (lines->refused) {
        snprintf(text_p + used, LEGEND - used, "%s%s", used > 0 ? ";  " : "",
                 drawn ? "dashed line: a pair that is refused" : "refused pairs are too many to be drawn");
    }
}

static void put_caption(const struct oh_node *node, const struct oh_verdict *verdict, const char *legend, FILE *stream)
{
    fprintf(stream, "  graph [  label=\"\\n%s",
            node->by_hand                ? "SIMULATED node, made by hand\\n"
            : oh_node_is_simulated(node) ? "SIMULATED node\\n"
                                         : "");
    put_quoted(legend, stream);
    fprintf(stream, "\\n");
    if (verdict->served) {
        fprintf(stream, "full NVLink between %d GPUs: onehop serves", node->visible);
    } else {
        char reason[2 * sizeof verdict->reason];
        oh_node_wrap(verdict->reason, 78, "\n", reason, sizeof reason);
        fprintf(stream, "falls back to NCCL:\\n");
        put_quoted(reason, stream);
    }
    fprintf(stream, "\"];\n}\n");
}

/* In inches: neighbours on the circle, and what may stand in its middle, must not overlap. */
static double radius_for(const struct oh_node *node)
{
    size_t widest = 12;
    for (int i = 0; i < node->visible; i++) {
        size_t length = strlen(node->gpu[i].topo.name);
        widest = length > widest ? length : widest;
    }
    double width = 0.3 + 0.095 * (double)widest; /* of a box: letters of 12 points */
    double between = node->visible > 1 ? (width + 0.6) / (2.0 * sin(PI / node->visible)) : 0.0;
    double beside = width / 2.0 + 1.2;
    double radius = between > beside ? between : beside;
    return radius > 2.0 ? radius : 2.0;
}

static void put_circle(const struct oh_node *node, char legend_p[LEGEND], FILE *stream)
{
    double radius = radius_for(node);
    struct lines lines = {.switched = oh_node_any_switch(node)};
    int refused = 0;
    for (int i = 0; i < node->visible; i++) {
        put_gpu(node, i, radius, stream);
        for (int j = 0; j < i; j++) {
            refused += is_refused(node, i, j);
        }
    }
    if (lines.switched) {
        put_switch(node, stream);
    }
    for (int i = 0; i < node->visible; i++) {
        for (int j = i + 1; j < node->visible; j++) {
            put_pair(node, i, j, refused <= REFUSED_LINES, &lines, stream);
        }
    }
    explain_lines(&lines, refused <= REFUSED_LINES, legend_p);
}

/* --- many GPUs: a grid, a box for neighbours of one NUMA node */

/* The last of the GPUs that share a box with the first. */
static int box_end(const struct oh_node *node, int first)
{
    int last = first;
    while (last + 1 < node->visible && last - first < 7 &&
           strcmp(node->gpu[last + 1].place.numa, node->gpu[first].place.numa) == 0) {
        last++;
    }
    return last;
}

/* The least of NVLinks that its GPUs have to any other GPU, through a switch; 0: some pair has none, or is refused. */
static int least_links(const struct oh_node *node, int first, int last, int *refused_p)
{
    int least = -1;
    *refused_p = 0;
    for (int i = first; i <= last; i++) {
        for (int j = 0; j < node->visible; j++) {
            if (i != j) {
                const struct oh_topo_links *links = &oh_node_pair_at(node, i, j)->links;
                int active = links->via_switch && links->active > 0 ? links->active : 0;
                least = least < 0 || active < least ? active : least;
                *refused_p += (j < first || j > i) && is_refused(node, i, j);
            }
        }
    }
    return *refused_p > 0 ? 0 : least;
}

static void put_box(const struct oh_node *node, int first, int last, double x, double y, FILE *stream)
{
    int refused, links = least_links(node, first, last, &refused);
    fprintf(stream, "  box%d [pos=\"%.2f,%.2f!\", width=1.6, height=0.8, fillcolor=\"#ffffff\"%s, label=\"GPU%d", first,
            x, y, refused ? ", style=\"rounded,dashed\", color=\"#c00000\", penwidth=1.8" : "", first);
    if (last > first) {
        fprintf(stream, " %s GPU%d", last == first + 1 ? "and" : "to", last);
    }
    if (node->gpu[first].place.numa[0]) {
        fprintf(stream, "\\nNUMA node ");
        put_quoted(node->gpu[first].place.numa, stream);
    }
    if (refused) {
        fprintf(stream, "\\n%d pair%s refused", refused, refused == 1 ? "" : "s");
    } else if (links > 0) {
        fprintf(stream, "\\n%d NVLinks each", links);
    }
    fprintf(stream, "\"];\n");
}

static void put_grid(const struct oh_node *node, char legend_p[LEGEND], FILE *stream)
{
    int boxes = 0, refused = 0, switched = 0;
    bool alike = true;
    for (int first = 0; first < node->visible; first = box_end(node, first) + 1) {
        int of_box;
        switched += least_links(node, first, box_end(node, first), &of_box) > 0;
        refused += of_box;
        boxes++;
    }
    int columns = (int)ceil(sqrt(boxes)), rows = (boxes + columns - 1) / columns;
    for (int first = 0, box = 0; first < node->visible; first = box_end(node, first) + 1, box++) {
        int row = rows - 1 - box / columns;
        put_box(node, first, box_end(node, first), 2.0 * (box % columns), 1.0 * row, stream);
        alike = alike && strcmp(node->gpu[first].topo.name, node->gpu[0].topo.name) == 0;
    }
    if (oh_node_any_switch(node)) {
        fprintf(stream,
                "  switch [pos=\"%.2f,%.2f!\", width=%.2f, height=0.5, fillcolor=\"#e6e6e6\", label=\"NVSwitch\"];\n",
                1.0 * (columns - 1), 1.0 * rows - 0.1, 2.0 * columns - 0.2);
    }
    snprintf(legend_p, LEGEND, "%d x %.60s%s\n%s%s", node->visible, node->gpu[0].topo.name, alike ? "" : " and others",
             switched == boxes ? "all joined with each other through NVSwitch"
                               : "lines are not drawn for so many GPUs: the matrix has them",
             refused > 0 ? ";  dashed: pairs with these GPUs are refused" : "");
}

void oh_node_dot(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    char legend[LEGEND] = "";
    fprintf(stream, "graph onehop {\n  graph [layout=neato, overlap=true, splines=true, esep=\"+14\", "
                    "fontname=\"Helvetica\", fontsize=14, "
                    "pad=0.3];\n"
                    "  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\", fontsize=12, "
                    "margin=\"0.12,0.08\"];\n");
    if (node->visible > CIRCLE_GPUS) {
        put_grid(node, legend, stream);
    } else {
        put_circle(node, legend, stream);
    }
    put_caption(node, verdict, legend, stream);
}

/* --- SVG */

/* graphviz between two files. The exit status, 127 when it is not there, -1 when it ended otherwise. */
static int run_graphviz(int in, int out)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(nothing, STDERR_FILENO) < 0) {
            _exit(126);
        }
        alarm(PICTURE_LIMIT_S); /* this and the next outlive exec */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("dot", "dot", "-Tsvg", (char *)NULL);
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (child < 0) {
        return -1;
    }
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool save_picture(int picture, const char *path)
{
    struct stat status;
    if (fstat(picture, &status) != 0 || status.st_size == 0 || status.st_size > PICTURE_BYTES) {
        oh_tool_error("topo: graphviz's dot made no picture");
        return false;
    }
    size_t size = (size_t)status.st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, picture, 0);
    if (bytes == MAP_FAILED) {
        oh_tool_error("topo: out of memory");
        return false;
    }
    bool good = oh_save_file("topo", path, bytes, size);
    munmap(bytes, size);
    return good;
}

static bool draw(const struct oh_node *node, const struct oh_verdict *verdict, int graph, int picture, const char *path)
{
    FILE *stream = fdopen(dup(graph), "w");
    if (!stream) {
        oh_tool_error("topo: out of memory");
        return false;
    }
    oh_node_dot(node, verdict, stream);
    bool written = !ferror(stream);
    written = fclose(stream) == 0 && written && lseek(graph, 0, SEEK_SET) == 0;
    int status = written ? run_graphviz(graph, picture) : -1;
    if (status == 127) {
        oh_tool_error(
            "topo: --svg needs graphviz's `dot`, which is not here (Debian: graphviz); --dot prints its input");
        return false;
    }
    if (status != 0) {
        oh_tool_error("topo: graphviz's dot failed (%d); --dot prints its input", status);
        return false;
    }
    return save_picture(picture, path);
}

bool oh_node_svg(const struct oh_node *node, const struct oh_verdict *verdict, const char *path)
{
    bool good = false;
    int graph = memfd_create("onehop-graph", MFD_CLOEXEC);
    int picture = memfd_create("onehop-picture", MFD_CLOEXEC);
    if (graph < 0 || picture < 0) {
        oh_tool_error("topo: %s", strerror(errno));
    } else {
        good = draw(node, verdict, graph, picture, path);
    }
    if (graph >= 0) {
        close(graph);
    }
    if (picture >= 0) {
        close(picture);
    }
    return good;
}
