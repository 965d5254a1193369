/* SPDX-License-Identifier: MIT */
/*
 * topo.c - `onehop topo`: how the GPUs are joined, and whether onehop serves them
 *
 * Does: asks what the plugin asks for a communicator over all visible GPUs. Creates a CUDA context for --measure only.
 * Threads: one.
 * Owns: nothing that lasts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
                           "  --load FILE  show the machine whose JSON is in FILE; needs no GPU\n"
                           "  --simulated  show the simulated node of the build tree; needs no GPU\n"
                           "  -h, --help   this text\n"
                           "\n"
                           "Exit status: 0 if onehop serves, 1 if it does not, 2 for wrong usage or if a\n"
                           "file or a measurement fails.\n"
                           "\n"
                           "Examples:\n"
                           "  onehop topo --save node.json          on the machine in question\n"
                           "  onehop topo --load node.json          anywhere\n"
                           "  onehop topo --dot | dot -Tsvg >node.svg\n";

struct request {
    bool measure, json, dot, simulated;
    const char *save, *load;
};

static bool load(const char *path, struct oh_node *node_p)
{
    char why[160];
    FILE *file = fopen(path, "re");
    bool good = file && oh_node_parse(file, node_p, why, sizeof why);
    if (!file || (!good && ferror(file))) {
        oh_tool_error("topo: %s: %s", path, strerror(errno));
    } else if (!good) {
        oh_tool_error("topo: %s: %s", path, why);
    }
    if (file) {
        fclose(file);
    }
    return good;
}

static bool save(const struct oh_node *node, const struct oh_verdict *verdict, const char *path)
{
    static struct oh_outfile file; /* static: gcc 12's -fanalyzer loses track of a local one */
    bool open = oh_outfile_open("topo", path, &file);
    if (open) {
        oh_node_json(node, verdict, file.stream);
    }
    return open && oh_outfile_commit(&file);
}

/* --- the command */

/* Files first: what is printed last is the verdict. */
static int answer(const struct request *request, const struct oh_node *node)
{
    struct oh_verdict verdict;
    oh_node_assess(node, &verdict);
    if (request->save && !save(node, &verdict, request->save)) {
        return OH_EXIT_USAGE;
    }
    if (request->json) {
        oh_node_json(node, &verdict, stdout);
    } else if (request->dot) {
        oh_node_dot(node, &verdict, stdout);
    } else if (!node->problem[0]) {
        oh_node_print(node, &verdict, stdout);
    }
    if (oh_tool_finish_stdout("topo") != OH_EXIT_OK) {
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
    oh_node_gather(&node);
    oh_node_assess(&node, &verdict);
    snprintf(reason_p, size, "%s", verdict.reason);
    oh_node_free(&node);
    return verdict.served;
}

/* What does not go together; NULL: all is well. */
static const char *contradiction(const struct request *request)
{
    if (request->json && request->dot) {
        return "--json, --dot: both write to stdout; expected one of them";
    }
    if (request->load && request->simulated) {
        return "--load, --simulated: a recording needs no simulated node; expected one of them";
    }
    if (request->load && request->measure) {
        return "--measure, --load: a recording cannot be measured; expected one of them";
    }
    return NULL;
}

int oh_tool_topo(int argc, char **argv)
{
    struct request request = {0};
    const struct oh_option options[] = {{"measure", 0, NULL, &request.measure},
                                        {"json", 0, NULL, &request.json},
                                        {"dot", 0, NULL, &request.dot},
                                        {"simulated", 0, NULL, &request.simulated},
                                        {"save", 0, oh_option_text, &request.save},
                                        {"load", 0, oh_option_text, &request.load},
                                        {NULL, 0, NULL, NULL}};
    struct oh_node node;
    int status;
    if (!oh_options_only(argc, argv, help, options, &status)) {
        return status;
    }
    const char *wrong = contradiction(&request);
    if (wrong) {
        oh_tool_error("topo: %s; see onehop topo --help", wrong);
        return OH_EXIT_USAGE;
    }
    if (request.simulated) {
        oh_tool_simulate(argv);
    }
    if (request.load && !load(request.load, &node)) {
        return OH_EXIT_USAGE;
    }
    if (!request.load) {
        oh_node_gather(&node);
        oh_node_locate(&node);
    }
    if (request.measure && !node.problem[0]) {
        oh_node_measure(&node);
    }
    status = answer(&request, &node);
    oh_node_free(&node);
    return status;
}
