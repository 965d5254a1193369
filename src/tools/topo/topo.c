/* SPDX-License-Identifier: MIT */
/*
 * topo.c - `onehop topo`: how the GPUs are joined, and whether onehop serves them
 *
 * Asks exactly what the plugin asks when a communicator over all visible GPUs is made. Creates no CUDA context, but for
 * --measure.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/options.h"
#include "tools/shared/save.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"

#define RECORDING_BYTES (16u << 20) /* hwloc's XML of the largest machines has one */

static const char help[] = "usage: onehop topo [--measure] [--json | --dot] [--svg FILE] [--save FILE]\n"
                           "                   [--load FILE]\n"
                           "\n"
                           "Shows the GPUs that CUDA sees here (CUDA_VISIBLE_DEVICES applies), where they\n"
                           "sit, how each pair is joined, and whether onehop serves a communicator over all\n"
                           "of them; if not, which pair is the cause and what could be done.\n"
                           "\n"
                           "  --measure    also bandwidth and latency of every pair; takes seconds, and\n"
                           "               disturbs what runs on these GPUs\n"
                           "  --json       as JSON (the fields: doc/tools.md)\n"
                           "  --dot        as a graph for graphviz\n"
                           "  --svg FILE   draw it to FILE as well (calls graphviz)\n"
                           "  --save FILE  record everything in FILE as well: text, to be sent or kept\n"
                           "  --load FILE  show what was recorded there, not this machine; needs no GPU\n"
                           "  -h, --help   this text\n"
                           "\n"
                           "Exit status: 0 when onehop serves, 1 when it does not, 2 for wrong usage or when\n"
                           "something asked for cannot be done (a file, a measurement).\n"
                           "\n"
                           "For example, on the machine in question, then anywhere:\n"
                           "  onehop topo --save node.topo\n"
                           "  onehop topo --load node.topo --svg node.svg\n";

struct request {
    bool measure, json, dot;
    const char *svg, *save, *load;
};

/* --- a recording's file */

/* The whole file, to be freed; NULL: said on stderr. */
static char *read_file(const char *path, size_t *size_p)
{
    FILE *file = fopen(path, "re");
    char *data = malloc(RECORDING_BYTES + 1);
    size_t size = file && data ? fread(data, 1, RECORDING_BYTES + 1, file) : 0;
    bool good = false;
    if (!file || (data && ferror(file))) {
        oh_tool_error("%s: %s", path, strerror(errno));
    } else if (!data) {
        oh_tool_error("topo: out of memory");
    } else if (size > RECORDING_BYTES) {
        oh_tool_error("%s: this is no recording of onehop topo: it is too large", path);
    } else {
        good = true;
    }
    if (file) {
        fclose(file);
    }
    if (!good) {
        free(data);
        return NULL;
    }
    *size_p = size;
    return data;
}

static bool load(const char *path, struct oh_node *node_p)
{
    char why[160];
    size_t size;
    char *data = read_file(path, &size);
    if (!data) {
        return false;
    }
    bool good = oh_node_parse(data, size, node_p, why, sizeof why);
    if (!good) {
        oh_tool_error("%s: %s", path, why);
    }
    free(data);
    return good;
}

static bool save(const struct oh_node *node, const char *path)
{
    char *data;
    size_t size;
    FILE *stream = open_memstream(&data, &size);
    if (!stream) {
        oh_tool_error("topo: out of memory");
        return false;
    }
    oh_node_record(node, stream);
    if (fclose(stream) != 0) {
        oh_tool_error("topo: out of memory");
        return false;
    }
    bool good = oh_save_file("topo", path, data, size);
    free(data);
    return good;
}

/* --- the command */

/* On a terminal that shows colours, for someone who has not asked for none (no-color.org). */
static bool wants_colours(void)
{
    const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && (!no || !no[0]) && terminal && strcmp(terminal, "dumb") != 0;
}

static bool show(const struct request *request, const struct oh_node *node, const struct oh_verdict *verdict)
{
    if (request->json) {
        return oh_node_json(node, verdict, stdout);
    }
    if (request->dot) {
        oh_node_dot(node, verdict, stdout);
    } else if (!node->problem[0]) {
        oh_node_print(node, verdict, wants_colours(), stdout);
    }
    return true;
}

/* Files first: what is printed last is the verdict. */
static int answer(const struct request *request, const struct oh_node *node)
{
    struct oh_verdict verdict;
    oh_node_assess(node, &verdict);
    if ((request->save && !save(node, request->save)) || (request->svg && !oh_node_svg(node, &verdict, request->svg))) {
        return OH_EXIT_USAGE;
    }
    if (!show(request, node, &verdict) && !ferror(stdout)) {
        oh_tool_error("topo: out of memory");
        return OH_EXIT_USAGE;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        oh_tool_error("topo: stdout: %s", strerror(errno));
        return OH_EXIT_USAGE;
    }
    if (node->problem[0]) {
        oh_tool_error("topo: %s%s; what to do: %s", oh_node_origin(node), node->problem, verdict.remedy);
    }
    return verdict.served ? OH_EXIT_OK : OH_EXIT_FAILED;
}

bool oh_tool_assess_gpus(char *reason_p, size_t size)
{
    struct oh_node node;
    struct oh_verdict verdict;
    if (!oh_node_gather(false, &node)) {
        snprintf(reason_p, size, "out of memory");
        return false;
    }
    oh_node_assess(&node, &verdict);
    snprintf(reason_p, size, "%s", verdict.reason);
    oh_node_free(&node);
    return verdict.served;
}

/* What does not go together; NULL: all is well. */
static const char *contradiction(const struct request *request)
{
    if (request->json && request->dot) {
        return "--json and --dot both want stdout";
    }
    if (request->load && request->measure) {
        return "--measure is for the GPUs of this machine, not for those of a recording";
    }
    return NULL;
}

int oh_tool_topo(int argc, char **argv)
{
    struct request request = {0};
    const struct oh_option options[] = {{"measure", 0, NULL, &request.measure},
                                        {"json", 0, NULL, &request.json},
                                        {"dot", 0, NULL, &request.dot},
                                        {"svg", 0, oh_option_text, &request.svg},
                                        {"save", 0, oh_option_text, &request.save},
                                        {"load", 0, oh_option_text, &request.load},
                                        {NULL, 0, NULL, NULL}};
    struct oh_node node;
    int status, first = oh_options_read(argc, argv, help, options, &status);
    if (first < 0) {
        return status;
    }
    const char *wrong = contradiction(&request);
    if (first < argc) {
        oh_tool_error("topo: '%s' is one argument too many; see onehop topo --help", argv[first]);
        return OH_EXIT_USAGE;
    }
    if (wrong) {
        oh_tool_error("topo: %s; see onehop topo --help", wrong);
        return OH_EXIT_USAGE;
    }
    if (!(request.load ? load(request.load, &node) : oh_node_gather(true, &node))) {
        return OH_EXIT_USAGE;
    }
    if (request.measure && !node.problem[0] && !oh_node_measure(&node)) {
        status = OH_EXIT_USAGE;
    } else {
        status = answer(&request, &node);
    }
    oh_node_free(&node);
    return status;
}
