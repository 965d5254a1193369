/* SPDX-License-Identifier: MIT */
/*
 * topo/dot.c - the graph of a node in the language of Graphviz
 *
 * Does: writes GPUs, NVLinks and refused pairs; Graphviz places and draws them.
 * Threads: any.
 * Owns: nothing.
 */
#include "tools/shared/tool.h"
#include "tools/topo/node.h"

static void put_gpu(const struct oh_node *node, int index, FILE *stream)
{
    const struct oh_node_gpu *gpu = &node->gpu[index];
    fprintf(stream, "  gpu%d [label=\"GPU%d\\n", index, index);
    oh_tool_put_escaped(gpu->topo.name, stream);
    fprintf(stream, "\\n");
    oh_tool_put_escaped(gpu->topo.bus_id, stream);
    if (gpu->numa[0]) {
        fprintf(stream, "\\nNUMA node ");
        oh_tool_put_escaped(gpu->numa, stream);
    }
    fprintf(stream, "\"];\n");
    if (oh_node_any_switch(node, index)) {
        fprintf(stream, "  gpu%d -- nvswitch [label=\"%d\"];\n", index, gpu->links);
    }
}

static void put_pair(const struct oh_node *node, int a, int b, FILE *stream)
{
    const struct oh_node_pair *pair = oh_node_pair_at(node, a, b);
    char cell[16];
    oh_node_cell(pair, cell, sizeof cell);
    if (!oh_node_serves_pair(node, a, b)) {
        fprintf(stream, "  gpu%d -- gpu%d [label=\"%s\", style=dashed, color=red];\n", a, b, cell);
    } else if (!pair->via_switch) {
        fprintf(stream, "  gpu%d -- gpu%d [label=\"%s\"];\n", a, b, cell);
    }
}

void oh_node_dot(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    fprintf(stream, "graph onehop {\n  layout=circo;\n  node [shape=box];\n  label=\"%s", oh_node_origin(node));
    oh_tool_put_escaped(verdict->served ? "onehop serves these GPUs" : "falls back to NCCL: ", stream);
    oh_tool_put_escaped(verdict->reason, stream);
    fprintf(stream, "\\nline: NVLinks; dashed red line: refused pair\";\n");
    if (oh_node_any_switch(node, -1)) {
        fprintf(stream, "  nvswitch [label=\"NVSwitch\", shape=ellipse];\n");
    }
    for (int i = 0; i < node->visible; i++) {
        put_gpu(node, i, stream);
    }
    for (int i = 0; i < node->visible * node->visible; i++) {
        if (i / node->visible < i % node->visible) {
            put_pair(node, i / node->visible, i % node->visible, stream);
        }
    }
    fprintf(stream, "}\n");
}
