/* SPDX-License-Identifier: MIT */
/*
 * topo.c - `onehop topo`: how the GPUs are joined, and whether onehop serves them
 *
 * Does: asks what the plugin asks for a communicator over all visible GPUs. Creates a CUDA context for --measure only.
 * Threads: one.
 * Owns: nothing that lasts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/shared/options.h"
#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"
#include "tools/topo/node.h"

static const char help[] = "usage: onehop topo [--measure] [--json | --dot] [--save FILE] [--load FILE]\n"
                           "                   [--simulated]\n"
                           "\n"
                           "Shows the GPUs that CUDA sees (CUDA_VISIBLE_DEVICES applies), how each pair is\n"
                           "joined, and whether onehop serves a communicator over all of them. If not, it\n"
                           "names the cause and what to do.\n"
                           "\n"
                           "  --measure    also measure bandwidth and latency of every pair; takes seconds\n"
                           "               and disturbs programs that run on these GPUs\n"
                           "  --json       print JSON (the fields: doc/tools.md)\n"
                           "  --dot        print a graph for Graphviz\n"
                           "  --save FILE  also write the JSON to FILE\n"
                           "  --load FILE  show the machine of a recording, of XML of hwloc, or of NCCL's\n"
                           "               topology dump; needs no GPU\n"
                           "  --simulated  show the simulated node of the build tree; needs no GPU\n"
                           "  -h, --help   this text\n"
                           "\n"
                           "Exit status: 0 if onehop serves, 1 if not, 2 if a file does not tell, for wrong\n"
                           "usage, or if a file or a measurement fails.\n"
                           "\n"
                           "Examples:\n"
                           "  onehop topo --save node.json          on the machine in question\n"
                           "  onehop topo --load node.json          anywhere\n"
                           "  onehop topo --dot | dot -Tsvg >node.svg\n";

#define MOST_BYTES ((size_t)16 << 20) /* of a file to load */

struct request {
    bool measure, json, dot, simulated;
    const char *save, *load;
};

static void load(const char *path, struct oh_node *node_p)
{
    char why[160];
    const char *what;
    char *text = oh_tool_allocate(MOST_BYTES + 1);
    FILE *file = fopen(path, "re");
    const size_t size = file ? fread(text, 1, MOST_BYTES, file) : 0;
    if (!file || ferror(file)) {
        OH_TOOL_FAIL("%s: %m", path);
    }
    fclose(file);
    if (!oh_node_import(text, node_p, &what)) {
        if (what[0]) {
            OH_TOOL_FAIL(
                "%s: not a recording of onehop topo, but %s; record the machine by `onehop topo --save FILE` there",
                path, what);
        }
        if (!oh_node_parse(text, size, node_p, why, sizeof why)) {
            OH_TOOL_FAIL("%s: %s", path, why);
        }
    }
    free(text);
}

static void save(const struct oh_node *node, const struct oh_verdict *verdict, const char *path)
{
    static struct oh_outfile file; /* static: gcc 12's -fanalyzer loses track of a local one */
    oh_outfile_open(path, &file);
    oh_node_json(node, verdict, file.stream);
    oh_outfile_commit(&file);
}

/* Files first: what is printed last is the verdict. */
static int answer(const struct request *request, const struct oh_node *node)
{
    struct oh_verdict verdict;
    oh_node_assess(node, &verdict);
    if (request->save) {
        save(node, &verdict, request->save);
    }
    if (request->json) {
        oh_node_json(node, &verdict, stdout);
    } else if (request->dot) {
        oh_node_dot(node, &verdict, stdout);
    } else if (!node->problem[0]) {
        oh_node_print(node, &verdict, stdout);
    }
    oh_tool_finish_stdout();
    if (node->problem[0]) {
        oh_tool_error("%s%s; what to do: %s", oh_node_origin(node), node->problem, verdict.remedy);
    }
    return verdict.served ? OH_EXIT_OK : verdict.unknown ? OH_EXIT_USAGE : OH_EXIT_FAILED;
}

int oh_tool_assess_gpus(bool *served_p, char *text_p, size_t size)
{
    struct oh_node node;
    struct oh_verdict verdict;
    oh_node_gather(&node);
    oh_node_assess(&node, &verdict);
    const int gpus = node.visible;
    if (gpus > 0) {
        snprintf(text_p, size, "%d x %s: %s", gpus, node.gpu[0].topo.name,
                 verdict.served ? "NVLink joins every pair" : verdict.reason);
    } else {
        snprintf(text_p, size, "%s", node.problem);
    }
    *served_p = verdict.served;
    oh_node_free(&node);
    return gpus;
}

/* Ends the command if two options do not go together. */
static void check_request(const struct request *request)
{
    const char *clash = NULL;
    if (request->json && request->dot) {
        clash = "--json, --dot: both write to stdout";
    } else if (request->load && request->simulated) {
        clash = "--load, --simulated: a recording needs no simulated node";
    } else if (request->load && request->measure) {
        clash = "--measure, --load: a recording cannot be measured";
    }
    if (clash) {
        OH_TOOL_REFUSE("%s; expected one of them; see onehop topo --help", clash);
    }
}

int oh_tool_topo(int argc, char **argv)
{
    struct request request = {0};
    const struct oh_option options[] = {{"measure", 0, NULL, &request.measure},
                                        {"json", 0, NULL, &request.json},
                                        {"dot", 0, NULL, &request.dot},
                                        {"simulated", 0, NULL, &request.simulated},
                                        {"save", 0, oh_option_path, &request.save},
                                        {"load", 0, oh_option_path, &request.load},
                                        {NULL, 0, NULL, NULL}};
    struct oh_node node;
    char why[512];
    oh_options_only(argc, argv, help, options);
    check_request(&request);
    if (request.simulated) {
        oh_tool_simulate(argv);
    }
    if (request.load) {
        load(request.load, &node);
    } else {
        oh_node_gather(&node);
        oh_node_locate(&node);
    }
    if (request.measure && !node.problem[0]) {
        oh_node_measure(&node);
    }
    int status = answer(&request, &node);
    if (!request.load && status == OH_EXIT_OK && oh_tool_lacks_kernels(why, sizeof why)) {
        oh_tool_error("%s", why);
        status = OH_EXIT_FAILED;
    }
    oh_node_free(&node);
    return status;
}
