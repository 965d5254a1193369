/* SPDX-License-Identifier: MIT */
/*
 * t_tuning.c - tables as text: good ones, every kind of damage, limits, and what onehop brings along
 */
#include "tools/tune/tune.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/abi.h"
#include "test/unit/unit.h"

static const struct oh_tuning_key key = {"NVIDIA H200", 4, "580.95.05", "2.28.9"};

#define HEAD "onehop-tuning 3\n"
#define TABLE(gpu_, ranks_, driver_, nccl_)                                                                            \
    "table\n gpu " gpu_ "\n ranks " ranks_ "\n driver " driver_ "\n nccl " nccl_ "\n source by hand\n"
#define KEY TABLE("NVIDIA H200", "4", "580.95.05", "2.28.9")
#define FIVE TABLE("NVIDIA H200", "5", "580.95.05", "2.28.9")
#define ROW "64K oneshot 64 64\n"

static struct oh_tuning_fault fault; /* of the last text */

static enum oh_tuning_result parse(const char *text, struct oh_plan_table *table_p)
{
    /* A copy of just that size, so that a sanitizer sees a byte read too far. */
    size_t size = strlen(text);
    char *copy = memcpy(unit_need(malloc(size ? size : 1)), text, size);
    fault = (struct oh_tuning_fault){0};
    enum oh_tuning_result result = oh_tuning_parse(copy, size, &key, table_p, NULL, &fault);
    free(copy);
    return result;
}

static void test_good(void)
{
    struct oh_plan_table table;
    struct oh_plan plan;
    char source[OH_TUNING_TEXT];
    static const char text[] = "# a comment\n\n" HEAD "  " KEY "# more\n\t1000 oneshot\t2 64 # us\n"
                               "1M nccl\n2M TWOSHOT 32 96\n8M twoshot 64 512\n16M nccl\nend\n\n#\n";
    enum oh_tuning_result result = oh_tuning_parse(text, sizeof text - 1, &key, &table, source, &fault);
    tap_ok(result == OH_TUNING_FOUND && strcmp(source, "by hand") == 0 && oh_plan_table_valid(&table, 4) &&
               table.fp8 == 0,
           "comments, blanks, units and names in any case");
    const struct oh_plan_rows *rows = &table.rows[ONEHOP_ALLREDUCE];
    tap_ok(rows->count == 4 && rows->row[0].max_bytes == 1000 && rows->row[0].blocks == 2 &&
               rows->row[1].algorithm == OH_PLAN_NCCL && rows->row[2].threads == 96 &&
               rows->row[3].max_bytes == 8 << 20,
           "the rows are as written; what falls back at the end goes without saying");
    tap_ok(oh_plan_choose(&table, ONEHOP_ALLREDUCE, 250, ncclFloat32, &plan) && plan.algorithm == ONEHOP_ONESHOT &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 251, ncclFloat32, &plan) &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 262144, ncclFloat32, &plan) &&
               oh_plan_choose(&table, ONEHOP_ALLREDUCE, 262145, ncclFloat32, &plan) &&
               plan.algorithm == ONEHOP_TWOSHOT && !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 251, ncclInt32, &plan) &&
               oh_plan_choose(&table, ONEHOP_ALLREDUCE, 262145, ncclInt32, &plan),
           "look-up: a fallback between two sizes that are served");
    tap_ok(oh_plan_has_type(&table, ONEHOP_ALLREDUCE, ncclFloat64) &&
               oh_plan_has_type(&table, ONEHOP_ALLREDUCE, ncclInt8) &&
               !oh_plan_has_type(&table, ONEHOP_ALLREDUCE, OH_NCCL_FP8_E4M3) &&
               !oh_plan_has_type(&table, ONEHOP_ALLREDUCE, (ncclDataType_t)99),
           "types that are served");
    tap_ok(parse(HEAD KEY "1K nccl\n64K oneshot 1 64\nend\n", &table) == OH_TUNING_FOUND &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 256, ncclInt32, &plan) &&
               oh_plan_choose(&table, ONEHOP_ALLREDUCE, 257, ncclInt32, &plan) &&
               oh_plan_has_type(&table, ONEHOP_ALLREDUCE, ncclInt64),
           "the smallest fall back");
    struct oh_plan_table model = {.nranks = 4};
    oh_plan_table_extend(&model, ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, 100 << 10);
    oh_plan_table_extend(&model, ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT, 8 << 20);
    tap_ok(parse(HEAD KEY "100K oneshot\n8M twoshot\nend\n", &table) == OH_TUNING_FOUND &&
               memcmp(&table.rows[ONEHOP_ALLREDUCE], &model.rows[ONEHOP_ALLREDUCE], sizeof *rows) == 0 &&
               table.rows[ONEHOP_ALLREDUCE].count > 5,
           "rows without a shape: computed shapes up to their ends");
    tap_ok(parse(HEAD KEY "1K nccl\n2K oneshot 7 96\n1M oneshot\nend\n", &table) == OH_TUNING_FOUND &&
               rows->row[0].algorithm == OH_PLAN_NCCL && rows->row[1].blocks == 7 && rows->row[2].max_bytes > 2048 &&
               oh_plan_rows_end(rows) == 1 << 20 && oh_plan_table_valid(&table, 4),
           "behind rows with shapes, too");
    tap_ok(parse(HEAD KEY "end\n", &table) == OH_TUNING_FOUND && oh_plan_table_valid(&table, 4) &&
               oh_plan_rows_end(&table.rows[ONEHOP_ALLREDUCE]) == 0 &&
               !oh_plan_choose(&table, ONEHOP_ALLREDUCE, 1, ncclFloat32, &plan),
           "with a table without rows everything falls back");
}

/* The wishes of the environment on a table that falls back in between. */
static void test_wishes(void)
{
    struct oh_plan_table table, copy;
    parse(HEAD KEY ROW "1M nccl\n8M twoshot 64 512\nend\n", &table);
    copy = table;
    oh_plan_table_apply_limits(&copy, 512 << 10, -1);
    tap_ok(oh_plan_table_valid(&copy, 4) && copy.rows[ONEHOP_ALLREDUCE].count == 1 &&
               oh_plan_rows_end(&copy.rows[ONEHOP_ALLREDUCE]) == 64 << 10,
           "a cap within what falls back ends before it");
    copy = table;
    oh_plan_table_apply_limits(&copy, 2 << 20, -1);
    tap_ok(oh_plan_table_valid(&copy, 4) && copy.rows[ONEHOP_ALLREDUCE].count == 3 &&
               oh_plan_rows_end(&copy.rows[ONEHOP_ALLREDUCE]) == 2 << 20,
           "a cap behind it leaves it");
    parse(HEAD KEY ROW "end\n", &table);
    oh_plan_table_apply_limits(&table, 1 << 30, -1);
    tap_ok(oh_plan_table_valid(&table, 4) &&
               oh_plan_table_end(&table) == oh_plan_capacity(ONEHOP_ALLREDUCE, ONEHOP_ONESHOT, 4),
           "a cap above the end: the last algorithm goes on as far as it can");
}

static void test_foreign(void)
{
    static const struct {
        const char *text;
        const char *what;
    } foreign[] = {
        {HEAD, "no table at all"},
        {HEAD TABLE("NVIDIA H100", "4", "*", "*") ROW "end\n", "another GPU"},
        {HEAD TABLE("NVIDIA H200 NVL", "4", "*", "*") ROW "end\n", "a longer name"},
        {HEAD TABLE("SIMULATED NVIDIA H200", "4", "*", "*") ROW "end\n", "simulated GPUs"},
        {HEAD TABLE("NVIDIA H20|NVIDIA H200 *|NVIDIA A*", "4", "*", "*") ROW "end\n", "several other GPUs"},
        {HEAD TABLE("*", "2", "*", "*") ROW "end\n", "another number of ranks"},
        {HEAD TABLE("*", "4", "570.*", "*") ROW "end\n", "another driver"},
        {HEAD TABLE("*", "4", "*", "2.28.3") ROW "end\n", "another NCCL"},
    };
    struct oh_plan_table table = {.nranks = 77};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        tap_ok(parse(foreign[i].text, &table) == OH_TUNING_FOREIGN && table.nranks == 77 && fault.what[0] &&
                   fault.line > 0,
               "foreign: %s", foreign[i].what);
    }
    const char *names = HEAD TABLE("NVIDIA H100*|NVIDIA H200|x", "4", "*", "*") ROW "end\n";
    tap_ok(parse(names, &table) == OH_TUNING_FOUND, "one of several names");
    table.nranks = 77;
    const char *several = HEAD TABLE("A*", "4", "*", "*") "end\n" TABLE("NVIDIA*", "4", "580.*", "*") ROW
        "end\n" KEY "1K oneshot 1 64\nend\n";
    tap_ok(parse(several, &table) == OH_TUNING_FOUND && table.rows[ONEHOP_ALLREDUCE].row[0].max_bytes == 65536,
           "of several tables the first that fits; '*' stands for the rest of a value");
}

/* Each is refused at that line, and says what is accepted. */
static void test_damage(void)
{
    static const struct {
        const char *text;
        unsigned line;
        const char *what;
    } damaged[] = {
        {"", 0, "nothing"},
        {"# only a comment\n", 1, "nothing but a comment"},
        {"onehop-tuning\n", 1, "no version"},
        {"onehop-tuning 0\n", 1, "version 0"},
        {"onehop-tuning 4\nwhatever\n", 1, "a later version"},
        {"onehop-tuning 2\n" KEY "64K oneshot 64 64\nend\n", 1, "the version before"},
        {"onehop-tuning 1\n" KEY "marker 64K oneshot_marker 64 64\nend\n", 1, "the first version"},
        {"onehop-tuning 99999999999999999999\n", 1, "a version beyond all bounds"},
        {"something-else 2\n", 1, "another kind of file"},
        {HEAD "row\n", 2, "a word that is none"},
        {HEAD KEY ROW, 8, "no end"},
        {HEAD KEY ROW "en", 9, "cut off in the last line"},
        {HEAD KEY ROW "end", 9, "the last newline is missing"},
        {HEAD "table\n gpu NVIDIA H200\n", 3, "cut off within the key"},
        {HEAD "table\n ranks 4\n gpu X\n", 3, "the key in another order"},
        {HEAD "table\n gpu\n ranks 4\n", 3, "a key without a value"},
        {HEAD "table\n gpu X\n ranks 1\n driver *\n", 4, "one rank"},
        {HEAD "table\n gpu X\n ranks 9\n driver *\n", 4, "nine ranks"},
        {HEAD "table\n gpu X\n ranks 4x\n driver *\n", 4, "ranks that are no number"},
        {HEAD "table\n gpu X\n ranks -4\n driver *\n", 4, "a negative number"},
        {HEAD KEY "marker 64K oneshot 64 64\nend\n", 8, "a row of the first version"},
        {HEAD KEY "64K oneshot 64\nend\n", 8, "a row without threads"},
        {HEAD KEY "64K oneshot auto 512\nend\n", 8, "blocks that are no number"},
        {HEAD KEY "64K oneshot ,\nend\n", 8, "a third word that is no number"},
        {HEAD KEY "64K nccl auto\nend\n", 8, "a word after NCCL's"},
        {HEAD KEY "64K oneshot 64 64 64\nend\n", 8, "a row with too much"},
        {HEAD KEY "00000001024nccl\nend\n", 8, "a row without a blank"},
        {HEAD KEY "8K oneshot 0000008256\nend\n", 8, "a row whose numbers run together"},
        {HEAD KEY "64K ring 64 64\nend\n", 8, "an algorithm that is none"},
        {HEAD KEY "64K nccl 64 64\nend\n", 8, "a shape for NCCL"},
        {HEAD KEY "64K\nend\n", 8, "a size alone"},
        {HEAD KEY "0 oneshot 1 64\nend\n", 8, "size 0"},
        {HEAD KEY "K oneshot 1 64\nend\n", 8, "a unit alone"},
        {HEAD KEY "2G twoshot 1 64\nend\n", 8, "more than any message"},
        {HEAD KEY "18446744073709551617 twoshot 1 64\nend\n", 8, "a size that overflows"},
        {HEAD KEY "1.5M twoshot 1 64\nend\n", 8, "a fraction"},
        {HEAD KEY "64K oneshot_ll 64 64\nend\n", 8, "an algorithm that is no more"},
        {HEAD FIVE "900M oneshot 64 64\nend\n", 8, "more parts than a call may have"},
        {HEAD KEY "64K oneshot 0 64\nend\n", 8, "no blocks"},
        {HEAD KEY "64K oneshot 0 0\nend\n", 8, "no blocks and no threads"},
        {HEAD FIVE "900M oneshot\nend\n", 8, "more parts than a call may have, without a shape"},
        {HEAD KEY "64K oneshot\n64K twoshot\nend\n", 9, "the same size twice, without a shape"},
        {HEAD KEY "64K oneshot +64 64\nend\n", 8, "a number with a sign"},
        {HEAD KEY "64K oneshot 257 64\nend\n", 8, "too many blocks"},
        {HEAD KEY "64K oneshot 1 48\nend\n", 8, "part of a warp"},
        {HEAD KEY "64K oneshot 1 1024\nend\n", 8, "too many threads in a block"},
        {HEAD FIVE "64K oneshot 64 512\nend\n", 8, "a grid that would fill the GPU"},
        {HEAD KEY ROW "64K oneshot 64 64\nend\n", 9, "the same size twice"},
        {HEAD KEY ROW "1K oneshot 64 64\nend\n", 9, "sizes that go down"},
        {HEAD KEY ROW "end\nend\n", 10, "one end too many"},
        {HEAD KEY ROW "end\ntable\n", 10, "a second table that is cut off"},
        {HEAD KEY ROW "\x01\nend\n", 9, "a control character"},
        {HEAD KEY ROW "end\r\n", 9, "line ends of another system"},
        {HEAD "table\n gpu X\xc3\x9c\n", 3, "a letter that is not ASCII"},
    };
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct oh_plan_table table = {.nranks = 77};
        enum oh_tuning_result result = parse(damaged[i].text, &table);
        bool right = result == OH_TUNING_BAD && fault.line == damaged[i].line && strstr(fault.what, "(accepted: ") &&
                     table.nranks == 77;
        tap_ok(right, "damaged: %s", damaged[i].what);
        if (!right) {
            printf("# result %d, line %u: %s\n", (int)result, fault.line, fault.what);
        }
    }
}

static void test_limits(void)
{
    static char text[OH_TUNING_BYTES + 2];
    struct oh_plan_table table;
    size_t used = (size_t)snprintf(text, sizeof text, HEAD KEY);
    for (int i = 1; i <= OH_PLAN_ROWS; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%d oneshot 1 64\n", i);
    }
    snprintf(text + used, sizeof text - used, "end\n");
    tap_ok(parse(text, &table) == OH_TUNING_FOUND && table.rows[ONEHOP_ALLREDUCE].count == OH_PLAN_ROWS,
           "as many rows as there may be");
    snprintf(text + used, sizeof text - used, "1M twoshot 1 64\nend\n");
    tap_ok(parse(text, &table) == OH_TUNING_BAD && fault.line == 7 + OH_PLAN_ROWS + 1, "one more");
    snprintf(text + used, sizeof text - used, "1M oneshot\nend\n");
    tap_ok(parse(text, &table) == OH_TUNING_BAD && fault.line == 7 + OH_PLAN_ROWS + 1, "one more, without a shape");

    memset(text, '\n', sizeof text);
    memcpy(text, HEAD KEY ROW "end\n", sizeof HEAD KEY ROW "end\n" - 1);
    tap_ok(oh_tuning_parse(text, OH_TUNING_BYTES, &key, &table, NULL, &fault) == OH_TUNING_FOUND, "as long as may be");
    tap_ok(oh_tuning_parse(text, OH_TUNING_BYTES + 1, &key, &table, NULL, &fault) == OH_TUNING_BAD, "a byte longer");

    char line[400];
    for (int length = 199; length <= 200; length++) {
        snprintf(line, sizeof line, HEAD KEY ROW "#%0*d\nend\n", length - 1, 0);
        tap_ok((parse(line, &table) == OH_TUNING_FOUND) == (length == 199), "a line of %d characters", length);
    }
    for (int length = OH_TUNING_TEXT - 1; length <= OH_TUNING_TEXT; length++) {
        snprintf(line, sizeof line, HEAD TABLE("%0*d", "4", "*", "*") "end\n", length, 0);
        enum oh_tuning_result result = parse(line, &table);
        tap_ok(result == (length < OH_TUNING_TEXT ? OH_TUNING_FOREIGN : OH_TUNING_BAD), "a name of %d characters",
               length);
    }
}

/* What was written is read as it was. */
static void test_writing(void)
{
    struct oh_plan_table table, again;
    static const char comments[OH_PLAN_ROWS][OH_TUNING_COMMENT] = {"2.1 us"};
    bool right = true;
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        struct oh_tuning_key one = {"SIMULATED NVIDIA H200", n, "unknown", "2.28.9"};
        char source[OH_TUNING_TEXT], *text = NULL;
        size_t size = 0;
        FILE *stream = open_memstream(&text, &size);
        oh_tuning_shipped("NVIDIA H200", n, &table, source);
        oh_tuning_write(stream, &one, source, &table, (enum onehop_collective)(n % ONEHOP_COLLECTIVE_COUNT),
                        n % 2 ? comments : NULL);
        fclose(stream);
        right &= oh_tuning_parse(text, size, &one, &again, NULL, &fault) == OH_TUNING_FOUND &&
                 memcmp(&table, &again, sizeof table) == 0;
        free(text);
    }
    tap_ok(right, "written and read again: the same table");
    char name[OH_TUNING_TEXT];
    oh_tuning_nccl_name(22809, name);
    tap_ok(strcmp(name, "2.28.9") == 0, "NCCL's version");
}

static void test_shipped(void)
{
    static const struct {
        const char *gpu;
        const char *measured; /* ranks */
    } gpus[] = {
        {"NVIDIA H200", "234"},   {"SIMULATED NVIDIA H200", "234"}, {"NVIDIA H100 80GB HBM3", "234"},
        {"NVIDIA B200", ""},      {"NVIDIA A100-SXM4-80GB", ""},    {"NVIDIA A100-SXM4-40GB", ""},
        {"some GPU to come", ""},
    };
    struct oh_plan_table table;
    const struct oh_tuning_key nobody = {.nranks = 1};
    tap_ok(oh_tuning_parse(oh_shipped_tables, strlen(oh_shipped_tables), &nobody, &table, NULL, &fault) ==
               OH_TUNING_FOREIGN,
           "the shipped text is well-formed to its end");
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        bool right = true;
        for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
            char source[OH_TUNING_TEXT];
            oh_tuning_shipped(gpus[i].gpu, n, &table, source);
            bool measured = strchr(gpus[i].measured, (int)('0' + n)) != NULL;
            right &= oh_plan_table_valid(&table, n) && table.rows[ONEHOP_ALLREDUCE].count > 2 &&
                     strncmp(source, measured ? "measured" : "modelled", 8) == 0;
        }
        tap_ok(right, "%s: a shipped table for each number of ranks, which says whether it was measured", gpus[i].gpu);
    }
}

/* Rows of the model, as the log names it: where the algorithm changes, and where a message is too large. */
static void test_modelled(void)
{
    static const struct {
        const char *gpu;
        uint32_t nranks;
        const char *links; /* GB/s */
        unsigned oneshot_kib, twoshot_kib, broadcast_kib;
        uint32_t rows, last_blocks, last_threads;
    } tables[] = {
        {"NVIDIA H200", 8, "450", 64, 4096, 64, 9, 64, 256},
        {"NVIDIA H100 80GB HBM3", 8, "450", 64, 4096, 64, 9, 64, 256},
        {"NVIDIA H100 PCIe", 5, "300", 64, 4096, 256, 8, 64, 256},
        {"NVIDIA A100-SXM4-80GB", 2, "300", 2048, 8192, 8192, 10, 256, 512},
        {"NVIDIA A100-SXM4-80GB", 8, "300", 32, 4096, 64, 9, 64, 256},
        {"NVIDIA B200", 2, "900", 2048, 16384, 16384, 10, 256, 512},
        {"NVIDIA B200", 3, "900", 512, 4096, 1024, 10, 128, 512},
        {"NVIDIA B200", 4, "900", 256, 4096, 256, 11, 128, 512},
        {"some GPU to come", 7, "300", 32, 4096, 64, 8, 64, 256},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct oh_plan_table table;
        char source[OH_TUNING_TEXT], expected[OH_TUNING_TEXT];
        uint64_t oneshot = 0;
        oh_tuning_shipped(tables[i].gpu, tables[i].nranks, &table, source);
        for (uint32_t row = 0; row < table.rows[ONEHOP_ALLREDUCE].count; row++) {
            oneshot = table.rows[ONEHOP_ALLREDUCE].row[row].algorithm == ONEHOP_ONESHOT
                          ? table.rows[ONEHOP_ALLREDUCE].row[row].max_bytes
                          : oneshot;
        }
        const struct oh_plan_row *last = &table.rows[ONEHOP_ALLREDUCE].row[table.rows[ONEHOP_ALLREDUCE].count - 1];
        snprintf(expected, sizeof expected, "modelled, not measured: hops and %s GB/s of NVLink", tables[i].links);
        tap_ok(oneshot == tables[i].oneshot_kib << 10 && oh_plan_table_end(&table) == tables[i].twoshot_kib << 10 &&
                   oh_plan_rows_end(&table.rows[ONEHOP_BROADCAST]) == tables[i].broadcast_kib << 10 &&
                   table.rows[ONEHOP_ALLREDUCE].count == tables[i].rows && last->blocks == tables[i].last_blocks &&
                   last->threads == tables[i].last_threads && strcmp(source, expected) == 0,
               "the model of %u x %s", tables[i].nranks, tables[i].gpu);
    }
}

int main(void)
{
    test_good();
    test_wishes();
    test_foreign();
    test_damage();
    test_limits();
    test_writing();
    test_shipped();
    test_modelled();
    return tap_done();
}
