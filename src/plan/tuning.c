/* SPDX-License-Identifier: MIT */
/*
 * tuning.c - tuning tables as text, and which one is used
 *
 * Does: Parses them and checks every byte. Tries ONEHOP_TUNING_FILE, the user's cache, the shipped tables.
 * Threads: any.
 * Owns: nothing; tables are copied.
 */
#include "plan/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/env.h"
#include "util/log.h"

#define LINE 200 /* with its final zero */

/* The lines of a text, in their order; after the rows `end`, and maybe the next table. */
enum step {
    HEAD,
    TABLE,
    GPU,
    RANKS,
    DRIVER,
    NCCL,
    SOURCE,
    ROWS
};

static const char *const accepted[] = {
    [HEAD] = OH_TUNING_HEAD,
    [TABLE] = "table",
    [GPU] = "gpu and a name of at most 95 characters",
    [RANKS] = "ranks and 2 to 8",
    [DRIVER] = "driver and a version of at most 95 characters",
    [NCCL] = "nccl and a version of at most 95 characters",
    [SOURCE] = "source and a text of at most 95 characters",
    [ROWS] = "BYTES ALGORITHM [BLOCKS THREADS], BYTES nccl, a collective, or end",
};
_Static_assert(OH_TUNING_TEXT == 96 && OH_MAX_RANKS == 8, "the table above has these numbers");

struct reader {
    const struct oh_tuning_key *key;
    enum step step;                    /* of the next line */
    char value[ROWS][OH_TUNING_TEXT];  /* of the last table, */
    struct oh_plan_table table;        /* which this is */
    enum onehop_collective collective; /* of its next rows */
    struct oh_plan_table found;        /* the first for the key; no ranks: none */
    char source[OH_TUNING_TEXT];       /* of that */
    struct oh_tuning_fault *fault;
};

/* Returns false. */
__attribute__((format(printf, 2, 3))) static bool fault(const struct reader *reader, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reader->fault->what, sizeof reader->fault->what, format, args);
    va_end(args);
    return false;
}

/* Copies a line without its comment and the blanks before that. */
static bool copy_line(const struct reader *reader, const char *text, size_t length, char line_p[LINE])
{
    bool good = length < LINE;
    for (size_t i = 0; i < length && good; i++) {
        good = (text[i] >= ' ' && text[i] <= '~') || text[i] == '\t';
    }
    if (!good) {
        return fault(reader, "a line that is none (accepted: at most %d characters, printable ASCII and tabs)",
                     LINE - 1);
    }
    memcpy(line_p, text, length);
    line_p[length] = '\0';
    for (length = strcspn(line_p, "#"); length > 0 && strchr(" \t", line_p[length - 1]); length--) {
    }
    line_p[length] = '\0';
    return true;
}

/* Reads BYTES nccl, or BYTES ALGORITHM and maybe BLOCKS THREADS, else 0 blocks. */
static bool parse_row(const char *text, struct oh_plan_row *row_p)
{
    char size[LINE], name[LINE], rest[2]; /* a line's text fits each */
    struct oh_plan_row row = {0};
    int two = 0; /* so long are the first two words */
    const int words = sscanf(text, "%199s %199s%n %9u %9u %1s", size, name, &two, &row.blocks, &row.threads, rest);
    const bool is_short = words == 2 && !text[two], to_nccl = is_short && strcmp(name, "nccl") == 0;
    const int algorithm = is_short || words == 4 ? oh_algorithm_by_name(name) : -1;
    if ((!to_nccl && algorithm < 0) || (words == 4 && row.blocks == 0) || strchr(text, '+') ||
        !oh_number_parse(size, true, OH_MESSAGE_BYTES, &row.max_bytes)) {
        return false;
    }
    row.algorithm = to_nccl ? OH_PLAN_NCCL : (uint32_t)algorithm;
    *row_p = row;
    return row.max_bytes > 0;
}

static bool add_row(struct reader *reader, const char *line)
{
    struct oh_plan_row row;
    struct oh_plan_rows *rows = &reader->table.rows[reader->collective];
    const uint32_t nranks = reader->table.nranks;
    if (!parse_row(line, &row)) {
        return fault(reader, "'%.32s' (accepted: %s)", line, accepted[ROWS]);
    }
    const enum onehop_algorithm algorithm = (enum onehop_algorithm)row.algorithm;
    const bool has_shape = row.blocks > 0 || row.algorithm == OH_PLAN_NCCL;
    if (!has_shape) {
        oh_plan_shape(reader->collective, algorithm, nranks, row.max_bytes, &row.blocks, &row.threads);
    }
    if (!oh_plan_row_valid(&row, reader->collective, nranks)) {
        return fault(reader,
                     "a row that cannot be served (accepted: up to the size that the algorithm carries, threads in "
                     "32s, at most %u a block and %u in all)",
                     oh_plan_block_threads(reader->collective, nranks),
                     oh_plan_grid_threads(reader->collective, nranks));
    }
    if (rows->count > 0 && row.max_bytes <= rows->row[rows->count - 1].max_bytes) {
        return fault(reader, "rows out of order (accepted: in ascending order of size)");
    }
    if (has_shape ? rows->count == OH_PLAN_ROWS
                  : !oh_plan_table_extend(&reader->table, reader->collective, algorithm, row.max_bytes)) {
        return fault(reader, "too many rows (accepted: %d)", OH_PLAN_ROWS);
    }
    if (has_shape) {
        rows->row[rows->count++] = row;
    }
    return true;
}

/* A pattern is names with '|' between; one that ends in '*' stands for any rest. */
static bool matches(const char *pattern, const char *text)
{
    for (size_t length;; pattern += length + 1) {
        length = strcspn(pattern, "|");
        const bool is_open = length > 0 && pattern[length - 1] == '*';
        if (is_open ? strncmp(pattern, text, length - 1) == 0
                    : strlen(text) == length && strncmp(pattern, text, length) == 0) {
            return true;
        }
        if (!pattern[length]) {
            return false;
        }
    }
}

/* GB/s of the NVLinks of a GPU in one direction; of one that is not in the list, as of A100. */
static unsigned link_gbps(const char *gpu)
{
    static const struct {
        const char *gpu;
        unsigned gbps;
    } known[] = {{"NVIDIA H200*", 450}, {"NVIDIA H100 80GB HBM3*", 450}, {"NVIDIA B200*", 900}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (matches(known[i].gpu, gpu)) {
            return known[i].gbps;
        }
    }
    return 300;
}

static bool is_for(const struct reader *reader)
{
    const struct oh_tuning_key *key = reader->key;
    return reader->table.nranks == key->nranks && matches(reader->value[GPU], key->gpu) &&
           matches(reader->value[DRIVER], key->driver) && matches(reader->value[NCCL], key->nccl);
}

/* Reads "NAME VALUE", of which `form` begins with the name. */
static bool parse_value(const char *line, const char *form, char value_p[OH_TUNING_TEXT])
{
    const size_t name = strcspn(form, " ");
    const size_t blanks = strncmp(line, form, name) == 0 ? strspn(line + name, " \t") : 0;
    return blanks > 0 && snprintf(value_p, OH_TUNING_TEXT, "%s", line + name + blanks) < OH_TUNING_TEXT;
}

static void begin_collective(struct reader *reader, enum onehop_collective collective)
{
    reader->collective = collective;
    reader->table.rows[collective] = (struct oh_plan_rows){0};
}

/* A collective without rows of its own has those of the model. */
static bool begin_rows(struct reader *reader)
{
    uint64_t nranks;
    if (!oh_number_parse(reader->value[RANKS], false, OH_MAX_RANKS, &nranks) || nranks < 2) {
        return false;
    }
    oh_plan_table_model(&reader->table, (uint32_t)nranks, link_gbps(reader->key->gpu));
    begin_collective(reader, ONEHOP_ALLREDUCE);
    return true;
}

static void end_table(struct reader *reader)
{
    for (int c = 0; c < ONEHOP_COLLECTIVE_COUNT; c++) {
        oh_plan_rows_trim(&reader->table.rows[c]);
    }
    if (reader->found.nranks == 0 && is_for(reader)) {
        reader->found = reader->table;
        memcpy(reader->source, reader->value[SOURCE], sizeof reader->source);
    }
    reader->step = TABLE;
}

static bool take_line(struct reader *reader, const char *line)
{
    const enum step step = reader->step;
    const int collective = oh_collective_by_name(line, strlen(line));
    if (step == ROWS && collective > (int)reader->collective) {
        begin_collective(reader, (enum onehop_collective)collective);
        return true;
    }
    if (step == ROWS && strcmp(line, "end") == 0) {
        end_table(reader);
        return true;
    }
    if (step == ROWS) {
        return add_row(reader, line);
    }
    const bool good =
        step <= TABLE ? strcmp(line, accepted[step]) == 0 : parse_value(line, accepted[step], reader->value[step]);
    if (!good || (step == RANKS && !begin_rows(reader))) {
        return fault(reader, "'%.32s' (accepted: %s)", line, accepted[step]);
    }
    reader->step++;
    return true;
}

static bool read_text(struct reader *reader, const char *text, size_t size)
{
    char line[LINE];
    if (size > OH_TUNING_BYTES) {
        return fault(reader, "not a tuning table (accepted: at most %d bytes)", OH_TUNING_BYTES);
    }
    for (const char *at = text, *next; at < text + size; at = next) {
        const char *end = memchr(at, '\n', (size_t)(text + size - at));
        reader->fault->line++;
        if (!end) {
            return fault(reader, "the line does not end (accepted: a newline after each line)");
        }
        next = end + 1;
        if (!copy_line(reader, at, (size_t)(end - at), line)) {
            return false;
        }
        const char *start = line + strspn(line, " \t");
        if (*start && !take_line(reader, start)) {
            return false;
        }
    }
    return reader->step == TABLE || fault(reader, "the text ends too early (accepted: %s)", accepted[reader->step]);
}

enum oh_tuning_result oh_tuning_parse(const char *text, size_t size, const struct oh_tuning_key *key,
                                      struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT],
                                      struct oh_tuning_fault *fault_p)
{
    struct reader reader = {.key = key, .fault = fault_p};
    const uint32_t *nranks = &reader.table.nranks;
    fault_p->line = 0;
    if (!read_text(&reader, text, size)) {
        return OH_TUNING_BAD;
    }
    if (reader.found.nranks == 0) {
        fault(&reader, "a table for %u x %.40s, driver %.20s, NCCL %.12s", *nranks,
              *nranks ? reader.value[GPU] : "no GPU", reader.value[DRIVER], reader.value[NCCL]);
        return OH_TUNING_FOREIGN;
    }
    *table_p = reader.found;
    if (source_p) {
        memcpy(source_p, reader.source, sizeof reader.source);
    }
    return OH_TUNING_FOUND;
}

void oh_tuning_nccl_name(int version, char name_p[OH_TUNING_TEXT])
{
    snprintf(name_p, OH_TUNING_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

void oh_tuning_shipped(const char *gpu, uint32_t nranks, struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT])
{
    static const char simulated[] = "SIMULATED ";
    struct oh_tuning_key key = {.nranks = nranks, .driver = "unknown", .nccl = "unknown"};
    struct oh_tuning_fault fault;
    if (strncmp(gpu, simulated, sizeof simulated - 1) == 0) {
        gpu += sizeof simulated - 1;
    }
    snprintf(key.gpu, sizeof key.gpu, "%s", gpu);
    if (oh_tuning_parse(oh_shipped_tables, strlen(oh_shipped_tables), &key, table_p, source_p, &fault) !=
        OH_TUNING_FOUND) {
        oh_plan_table_model(table_p, nranks, link_gbps(gpu));
        if (source_p) {
            snprintf(source_p, OH_TUNING_TEXT, "modelled, not measured: hops and %u GB/s of NVLink", link_gbps(gpu));
        }
    }
}

/* An absolute path from the environment; in a set-user-ID program there is none. */
static const char *folder_of(const char *variable)
{
    const char *value = secure_getenv(variable);
    return value && value[0] == '/' ? value : NULL;
}

bool oh_store_cache_path(const struct oh_tuning_key *key, char path_p[OH_STORE_PATH])
{
    const char *cache = folder_of("XDG_CACHE_HOME"), *base = cache ? cache : folder_of("HOME");
    const int folder =
        base ? snprintf(path_p, OH_STORE_PATH, "%s%s/onehop/", base, cache ? "" : "/.cache") : OH_STORE_PATH;
    if (folder >= OH_STORE_PATH ||
        snprintf(path_p + folder, (size_t)(OH_STORE_PATH - folder), "%s-n%u-driver-%s-nccl-%s.tuning", key->gpu,
                 key->nranks, key->driver, key->nccl) >= OH_STORE_PATH - folder) {
        return false;
    }
    for (char *c = path_p + folder; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.';
        *c = plain ? *c : '-';
    }
    return true;
}

#define WHY 300 /* bytes of a reason */

/*
 * Reads a file of at most OH_TUNING_BYTES; of one with more, a byte more. Returns NULL and the reason, which is empty
 * if nobody `asked` for a file that is not there. The caller frees the text.
 */
static char *read_file(const char *path, bool asked, size_t *size_p, char why_p[WHY])
{
    struct stat status;
    char *text = NULL;
    ssize_t size = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not block */
    why_p[0] = '\0';
    if (fd < 0) {
        if (asked) {
            snprintf(why_p, WHY, "cannot be opened: %s", strerror(errno));
        }
        return NULL;
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        snprintf(why_p, WHY, "is no regular file");
    } else if (!asked && status.st_uid != geteuid() && status.st_uid != 0) {
        snprintf(why_p, WHY, "belongs to someone else");
    } else {
        text = malloc(OH_TUNING_BYTES + 1);
        size = text ? read(fd, text, OH_TUNING_BYTES + 1) : -1; /* whole: a regular file */
    }
    if (size < 0 && !why_p[0]) {
        snprintf(why_p, WHY, "cannot be read: %s", strerror(errno));
        free(text);
        text = NULL;
    }
    close(fd);
    *size_p = (size_t)size;
    return text;
}

/* Returns false and the reason, empty as above. */
static bool load_file(const char *path, bool asked, const struct oh_tuning_key *key, struct oh_plan_table *table_p,
                      char from_p[OH_STORE_PATH], char why_p[WHY])
{
    struct oh_tuning_fault fault;
    char source[OH_TUNING_TEXT];
    size_t size;
    char *text = read_file(path, asked, &size, why_p);
    if (!text) {
        return false;
    }
    enum oh_tuning_result result = oh_tuning_parse(text, size, key, table_p, source, &fault);
    free(text);
    if (result == OH_TUNING_FOUND) {
        snprintf(from_p, OH_STORE_PATH, "%.400s (%s)", path, source);
    } else if (result == OH_TUNING_FOREIGN) {
        snprintf(why_p, WHY, "line %u: %s (accepted: %u x %.40s, driver %.20s, NCCL %.12s)", fault.line, fault.what,
                 key->nranks, key->gpu, key->driver, key->nccl);
    } else {
        snprintf(why_p, WHY, "line %u: %s", fault.line, fault.what);
    }
    return result == OH_TUNING_FOUND;
}

bool oh_store_load_file(const char *path, const struct oh_tuning_key *key, struct oh_plan_table *table_p)
{
    char from[OH_STORE_PATH], why[WHY];
    if (access(path, F_OK) != 0) {
        return false;
    }
    const bool found = load_file(path, true, key, table_p, from, why);
    if (!found) {
        OH_WARN("tuning table %s %s; nothing of it is kept", path, why);
    }
    return found;
}

void oh_store_load(const struct oh_tuning_key *key, struct oh_plan_table *table_p, char from_p[OH_STORE_PATH])
{
    static atomic_flag warned;
    char cached[OH_STORE_PATH], source[OH_TUNING_TEXT], why[WHY] = "";
    const char *text = oh_env_text(OH_ENV_TUNING_FILE);
    const bool none = text && strcasecmp(text, "none") == 0;
    const char *asked = none ? NULL : oh_env_path(OH_ENV_TUNING_FILE, NULL);
    const char *path = asked || none || !oh_store_cache_path(key, cached) ? asked : cached;
    if (path && load_file(path, asked != NULL, key, table_p, from_p, why)) {
        return;
    }
    if (why[0] && !atomic_flag_test_and_set(&warned)) {
        OH_WARN("tuning table %s %s; using the shipped table", path, why);
    }
    oh_tuning_shipped(key->gpu, key->nranks, table_p, source);
    snprintf(from_p, OH_STORE_PATH, "shipped (%s)", source);
}
