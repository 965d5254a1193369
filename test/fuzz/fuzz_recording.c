/* SPDX-License-Identifier: MIT */
/*
 * fuzz_recording.c - recordings of `onehop topo`: what is understood, and written again, is understood again as the
 * same
 *
 * sources: src/tools/topo/fields.c src/tools/topo/node.c src/tools/topo/parse.c src/tools/topo/record.c
 * corpus: test/fixtures
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/node.h"

/* Of library.c, which would bring in all of the library. */
bool oh_tool_is_simulated(const char *name)
{
    return name && strncmp(name, "SIMULATED", 9) == 0;
}

static char *record(const struct oh_node *node, size_t *size_p)
{
    char *text = NULL;
    FILE *stream = open_memstream(&text, size_p);
    if (!stream) {
        abort();
    }
    oh_node_record(node, stream);
    fclose(stream);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oh_node node, again;
    char why[160], *first, *second;
    size_t first_size, second_size;
    if (!oh_node_parse((const char *)data, size, &node, why, sizeof why)) {
        return 0;
    }
    first = record(&node, &first_size);
    if (!oh_node_parse(first, first_size, &again, why, sizeof why)) {
        fprintf(stderr, "%s\n%s", why, first);
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
