/* SPDX-License-Identifier: MIT */
/*
 * topo/record.c - writes a node as a recording; topo/fields.h describes the form, topo/parse.c reads it
 */
#include <string.h>

#include "onehop/onehop.h"
#include "tools/topo/fields.h"
#include "tools/topo/node.h"

#define LINE 1024

/* Text to the end of a line, printable ASCII. */
static void put_text(const char *text, FILE *stream)
{
    for (; *text; text++) {
        fputc(*text >= ' ' && *text <= '~' ? *text : '?', stream);
    }
    fputc('\n', stream);
}

static void put_node(const struct oh_node *node, FILE *stream)
{
    if (node->by_hand) {
        fprintf(stream, OH_RECORDING_BY_HAND "\n");
    }
    if (node->driver[0]) {
        fprintf(stream, "driver ");
        put_text(node->driver, stream);
    }
    if (node->cuda > 0) {
        fprintf(stream, "cuda %d\n", node->cuda);
    }
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        if (node->variable[v].set) {
            fprintf(stream, "%s=", oh_node_variable_names[v]);
            put_text(node->variable[v].value, stream);
        }
    }
    if (node->problem[0]) {
        fprintf(stream, "problem ");
        put_text(node->problem, stream);
    }
}

/* Neighbours in a row that are alike share a line. */
static void put_row(const struct oh_node *node, int row, FILE *stream)
{
    char line[LINE] = "", run[LINE] = "";
    int first = -1, last = -1;
    for (int column = 0; column <= node->visible; column++) {
        if (column == row) {
            continue; /* a range goes over it */
        }
        if (column < node->visible) {
            oh_fields_write(&oh_pair_fields, oh_node_pair_at(node, row, column), line, sizeof line);
            if (first >= 0 && strcmp(line, run) == 0) {
                last = column;
                continue;
            }
        }
        if (first >= 0 && first == last) {
            fprintf(stream, "pair %d %d%s\n", row, first, run);
        } else if (first >= 0) {
            fprintf(stream, "pair %d %d-%d%s\n", row, first, last, run);
        }
        memcpy(run, line, sizeof run);
        first = last = column;
    }
}

void oh_node_record(const struct oh_node *node, FILE *stream)
{
    char line[LINE];
    fprintf(stream, "%s%d\n# Written by onehop %d.%d.%d; `onehop topo --load FILE` shows it.\n", OH_RECORDING_HEAD,
            OH_RECORDING_VERSION, ONEHOP_VERSION_MAJOR, ONEHOP_VERSION_MINOR, ONEHOP_VERSION_PATCH);
    put_node(node, stream);
    for (int i = 0; i < node->visible + node->hidden; i++) {
        oh_fields_write(&oh_gpu_fields, &node->gpu[i], line, sizeof line);
        fprintf(stream, "%s %d%s\n", i < node->visible ? "gpu" : "hidden", i, line);
    }
    for (int row = 0; row < node->visible; row++) {
        put_row(node, row, stream);
    }
    if (node->xml) {
        fprintf(stream, "hwloc\n");
        fwrite(node->xml, 1, node->xml_size, stream);
        if (node->xml_size == 0 || node->xml[node->xml_size - 1] != '\n') {
            fputc('\n', stream);
        }
    }
    fprintf(stream, "end\n");
}
