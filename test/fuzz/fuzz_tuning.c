/* SPDX-License-Identifier: MIT */
/*
 * fuzz_tuning.c - tuning tables, as text and as the user's file: what is understood is a valid table, and written again
 * it is understood as the same; a file that is not, gives the shipped table
 *
 * sources: src/tools/tune/table_text.c src/plan/tuning.c src/plan/plan.c src/plan/shape.c src/plan/op.c
 * sources: src/util/env.c src/util/log.c src/util/output.c
 * corpus: src/plan
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/fuzz/fuzz.h"
#include "tools/tune/tune.h"

/* Of shipped.S, which takes its text from a folder of the build. */
#define SHIPPED                                                                                                        \
    "onehop-tuning 3\ntable\n gpu *\n ranks 2\n driver *\n nccl *\n source a\n 64K oneshot 64 64\nend\n"               \
    "table\n gpu *\n ranks 4\n driver *\n nccl *\n source a\n 64K oneshot 64 64\nend\n"                                \
    "table\n gpu *\n ranks 8\n driver *\n nccl *\n source a\n 64K oneshot 64 64\nend\n"
const char oh_shipped_tables[] = SHIPPED;

static const struct oh_tuning_key keys[] = {
    {"NVIDIA H200", 2, "580.95.05", "2.28.9"}, {"NVIDIA H200", 4, "unknown", "unknown"}, {"", 8, "1", "2.28.3"}};

/* A table with a source that a text can hold; the comparison leaves out fp8, of which texts do not speak. */
static void write_and_read(const struct oh_tuning_key *key, const struct oh_plan_table *table, const char *source)
{
    struct oh_plan_table again;
    struct oh_tuning_fault fault;
    char *text = NULL, source_again[OH_TUNING_TEXT];
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    must(stream != NULL);
    oh_tuning_write(stream, key, source, table, ONEHOP_ALLREDUCE, NULL);
    fclose(stream);
    if (oh_tuning_parse(text, size, key, &again, source_again, &fault) != OH_TUNING_FOUND) {
        fprintf(stderr, "line %u: %s\n%s", fault.line, fault.what, text);
        abort();
    }
    must(memcmp(again.rows, table->rows, sizeof again.rows) == 0 && strcmp(source_again, source) == 0);
    free(text);
}

static void parse(const uint8_t *data, size_t size, const struct oh_tuning_key *key)
{
    struct oh_plan_table table;
    struct oh_tuning_fault fault = {0};
    char source[OH_TUNING_TEXT];
    if (oh_tuning_parse((const char *)data, size, key, &table, source, &fault) == OH_TUNING_FOUND) {
        must(oh_plan_table_valid(&table, key->nranks));
        if (key->gpu[0] != '\0') {
            write_and_read(key, &table, source);
        }
    } else {
        must(memchr(fault.what, '\0', sizeof fault.what) != NULL && fault.what[0] != '\0');
    }
}

static void load(const uint8_t *data, size_t size, const struct oh_tuning_key *key)
{
    struct oh_plan_table table;
    char path[64], from[OH_STORE_PATH];
    int fd = memfd_create("table", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    setenv("ONEHOP_TUNING_FILE", path, 1);
    oh_store_load(key, &table, from);
    must(oh_plan_table_valid(&table, key->nranks) && memchr(from, '\0', sizeof from) != NULL);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        parse(data, size, &keys[k]);
    }
    load(data, size, &keys[size % (sizeof keys / sizeof *keys)]);
    return 0;
}
