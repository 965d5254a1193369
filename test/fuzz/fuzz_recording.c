/* SPDX-License-Identifier: MIT */
/*
 * fuzz_recording.c - recordings of `onehop topo`: what is understood, and written again, is understood again as the
 * same
 *
 * sources: src/tools/shared/message.c src/tools/topo/json.c src/tools/topo/node.c
 * libraries: -ljansson
 * corpus: test/fixtures
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/node.h"

static char *record(const struct oh_node *node, size_t *size_p)
{
    char *text = NULL;
    FILE *stream = open_memstream(&text, size_p);
    if (!stream) {
        abort();
    }
    const struct oh_verdict verdict = {.row = -1, .column = -1};
    oh_node_json(node, &verdict, stream);
    fclose(stream);
    return text;
}

static bool parse(const void *data, size_t size, struct oh_node *node_p)
{
    char why[160];
    FILE *stream = fmemopen((void *)(uintptr_t)data, size, "r");
    bool good = stream && oh_node_parse(stream, node_p, why, sizeof why);
    if (stream) {
        fclose(stream);
    }
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oh_node node, again;
    char *first, *second;
    size_t first_size, second_size;
    if (!parse(data, size, &node)) {
        return 0;
    }
    first = record(&node, &first_size);
    if (!parse(first, first_size, &again)) {
        fprintf(stderr, "not read again: %s", first);
        abort();
    }
    second = record(&again, &second_size);
    if (first_size != second_size || memcmp(first, second, first_size) != 0) {
        fprintf(stderr, "%s---\n%s", first, second);
        abort();
    }
    free(first);
    free(second);
    oh_node_free(&node);
    oh_node_free(&again);
    return 0;
}
