/* SPDX-License-Identifier: MIT */
/*
 * fuzz_recording.c - recordings of `onehop topo`: what is understood has a verdict with a reason, and a page; and
 * written again, it is understood again as the same
 *
 * sources: src/tools/shared/message.c src/tools/topo/assess.c src/tools/topo/dot.c src/tools/topo/json.c
 * sources: src/tools/topo/node.c src/tools/topo/print.c src/topo/verdict.c src/util/nccl_conf.c
 * sources: src/util/env.c src/util/log.c src/util/output.c
 * libraries: -ljansson
 * corpus: test/fixtures
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/fuzz/fuzz.h"
#include "tools/topo/node.h"

/* The results of printing do not matter, but that they are there. */
static char *record(const struct oh_node *node, size_t *size_p)
{
    char *text = NULL;
    struct oh_verdict verdict;
    FILE *null = fopen("/dev/null", "w"), *stream = open_memstream(&text, size_p);
    must(null && stream);
    oh_node_assess(node, &verdict);
    must(verdict.served || verdict.reason[0]);
    oh_node_print(node, &verdict, null);
    oh_node_dot(node, &verdict, null);
    oh_node_json(node, &verdict, stream);
    fclose(null);
    fclose(stream);
    return text;
}

static bool parse(const void *data, size_t size, struct oh_node *node_p)
{
    char why[160];
    why[0] = '\0';
    bool good = oh_node_parse(data, size, node_p, why, sizeof why);
    must(good || why[0]);
    return good;
}

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
