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

struct reader {
    const char *at, *end; /* the text that is left */
    unsigned line;        /* number of the line in `text` */
    char text[LINE];      /* without comment and trailing blanks */
    const char *start;    /* of `text` without leading blanks */
    struct oh_tuning_fault *fault;
    bool bad;
};

/* Keeps the first fault. Returns false. */
__attribute__((format(printf, 2, 3))) static bool fault(struct reader *reader, const char *format, ...)
{
    if (!reader->bad) {
        va_list args;
        va_start(args, format);
        vsnprintf(reader->fault->what, sizeof reader->fault->what, format, args);
        va_end(args);
        reader->fault->line = reader->line;
        reader->bad = true;
    }
    return false;
}

static bool take_line(struct reader *reader)
{
    const size_t left = (size_t)(reader->end - reader->at);
    const char *end = left > 0 ? memchr(reader->at, '\n', left) : NULL;
    reader->line += left > 0;
    if (!end) {
        return left > 0 && fault(reader, "the line does not end (accepted: a newline after each line)");
    }
    size_t length = (size_t)(end - reader->at);
    if (length >= LINE) {
        return fault(reader, "a line that is too long (accepted: at most %d characters)", LINE - 1);
    }
    for (size_t i = 0; i < length; i++) {
        if ((reader->at[i] < ' ' || reader->at[i] > '~') && reader->at[i] != '\t') {
            return fault(reader, "a byte that is not text (accepted: printable ASCII and tabs)");
        }
    }
    memcpy(reader->text, reader->at, length);
    reader->text[length] = '\0';
    reader->at = end + 1;
    for (length = strcspn(reader->text, "#"); length > 0 && strchr(" \t", reader->text[length - 1]); length--) {
    }
    reader->text[length] = '\0';
    reader->start = reader->text + strspn(reader->text, " \t");
    return true;
}

/* Reads up to the next line that is not empty. Returns false at the end of the text and after a fault. */
static bool next_line(struct reader *reader)
{
    bool taken = take_line(reader);
    while (taken && *reader->start == '\0') {
        taken = take_line(reader);
    }
    return taken;
}

/* Copies the value of a line "NAME VALUE". */
static bool parse_value(struct reader *reader, const char *name, char value_p[OH_TUNING_TEXT])
{
    const size_t length = strlen(name);
    if (!next_line(reader)) {
        return fault(reader, "the text ends within a table (accepted: %s)", name);
    }
    const bool named = strncmp(reader->start, name, length) == 0;
    const char *blanks = reader->start + (named ? length : 0), *value = blanks + strspn(blanks, " \t");
    if (!named || value == blanks) {
        return fault(reader, "'%.32s' (accepted: %s and a value)", reader->start, name);
    }
    if (strlen(value) >= OH_TUNING_TEXT) {
        return fault(reader, "%s is too long (accepted: at most %d characters)", name, OH_TUNING_TEXT - 1);
    }
    memcpy(value_p, value, strlen(value) + 1);
    return true;
}

static bool parse_key(struct reader *reader, struct oh_tuning_key *key_p, char source_p[OH_TUNING_TEXT])
{
    char ranks[OH_TUNING_TEXT];
    uint64_t number;
    if (!parse_value(reader, "gpu", key_p->gpu) || !parse_value(reader, "ranks", ranks)) {
        return false;
    }
    if (!oh_number_parse(ranks, false, OH_MAX_RANKS, &number) || number < 2) {
        return fault(reader, "ranks %.32s (accepted: 2 to %d)", ranks, OH_MAX_RANKS);
    }
    key_p->nranks = (uint32_t)number;
    return parse_value(reader, "driver", key_p->driver) && parse_value(reader, "nccl", key_p->nccl) &&
           parse_value(reader, "source", source_p);
}

/* Reads BYTES nccl, or BYTES ALGORITHM BLOCKS THREADS. */
static bool parse_row(const char *text, struct oh_plan_row *row_p)
{
    char size[LINE], name[LINE], blocks[LINE], threads[LINE], rest[2]; /* a line's text fits each */
    uint64_t bytes, grid = 0, block = 0;
    const int words = sscanf(text, "%199s %199s %199s %199s %1s", size, name, blocks, threads, rest);
    if (words < 2 || !oh_number_parse(size, true, OH_MESSAGE_BYTES, &bytes) || bytes == 0) {
        return false;
    }
    const bool to_nccl = words == 2 && strcmp(name, "nccl") == 0;
    const int algorithm = words == 4 ? oh_algorithm_by_name(name) : -1;
    if (!to_nccl && (algorithm < 0 || !oh_number_parse(blocks, false, OH_MAX_BLOCKS, &grid) ||
                     !oh_number_parse(threads, false, OH_MAX_THREADS, &block))) {
        return false;
    }
    *row_p = (struct oh_plan_row){.max_bytes = bytes,
                                  .algorithm = to_nccl ? OH_PLAN_NCCL : (uint32_t)algorithm,
                                  .blocks = (uint32_t)grid,
                                  .threads = (uint32_t)block};
    return true;
}

static bool add_row(struct reader *reader, struct oh_plan_table *table)
{
    struct oh_plan_row row;
    struct oh_plan_rows *rows = &table->rows;
    if (!parse_row(reader->start, &row)) {
        return fault(reader, "a row that is none (accepted: BYTES ALGORITHM BLOCKS THREADS, BYTES nccl, or end)");
    }
    if (!oh_plan_row_valid(&row, table->nranks)) {
        return fault(reader,
                     "a row that cannot be served (accepted: up to the size that the algorithm carries, threads in "
                     "32s, at most %u in all)",
                     oh_plan_grid_threads(table->nranks));
    }
    if (rows->count > 0 && row.max_bytes <= rows->row[rows->count - 1].max_bytes) {
        return fault(reader, "rows out of order (accepted: in ascending order of size)");
    }
    if (rows->count == OH_PLAN_ROWS) {
        return fault(reader, "too many rows (accepted: %d)", OH_PLAN_ROWS);
    }
    rows->row[rows->count++] = row;
    return true;
}

/* Reads from behind "table" to "end". */
static bool parse_table(struct reader *reader, struct oh_tuning_key *key_p, struct oh_plan_table *table_p,
                        char source_p[OH_TUNING_TEXT])
{
    *table_p = (struct oh_plan_table){0};
    if (!parse_key(reader, key_p, source_p)) {
        return false;
    }
    table_p->nranks = key_p->nranks;
    while (next_line(reader)) {
        if (strcmp(reader->start, "end") == 0) {
            oh_plan_rows_trim(&table_p->rows);
            return true;
        }
        if (!add_row(reader, table_p)) {
            return false;
        }
    }
    return fault(reader, "the text ends within a table (accepted: end)");
}

static bool matches(const char *pattern, const char *text)
{
    size_t length = strlen(pattern);
    if (length > 0 && pattern[length - 1] == '*') {
        return strncmp(pattern, text, length - 1) == 0;
    }
    return strcmp(pattern, text) == 0;
}

static bool is_for(const struct oh_tuning_key *pattern, const struct oh_tuning_key *key)
{
    return pattern->nranks == key->nranks && matches(pattern->gpu, key->gpu) && matches(pattern->driver, key->driver) &&
           matches(pattern->nccl, key->nccl);
}

static bool parse_head(struct reader *reader)
{
    static const char mark[] = OH_TUNING_MARK;
    const bool named = next_line(reader) && strncmp(reader->start, mark, sizeof mark - 1) == 0;
    const size_t blanks = named ? strspn(reader->start + sizeof mark - 1, " \t") : 0;
    if (blanks == 0) {
        return fault(reader, "not a tuning table (accepted: " OH_TUNING_MARK " %d)", OH_TUNING_VERSION);
    }
    const char *version = reader->start + sizeof mark - 1 + blanks;
    uint64_t number;
    return (oh_number_parse(version, false, OH_TUNING_VERSION, &number) && number == OH_TUNING_VERSION) ||
           fault(reader, "version %.20s, of another onehop (accepted: " OH_TUNING_MARK " %d)", version,
                 OH_TUNING_VERSION);
}

enum oh_tuning_result oh_tuning_parse(const char *text, size_t size, const struct oh_tuning_key *key,
                                      struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT],
                                      struct oh_tuning_fault *fault_p)
{
    struct reader reader = {.at = text, .end = text + size, .fault = fault_p};
    struct oh_tuning_key pattern = {0};
    struct oh_plan_table table, found;
    char source[OH_TUNING_TEXT], found_source[OH_TUNING_TEXT];
    bool is_found = false;
    if (size > OH_TUNING_BYTES) {
        fault(&reader, "not a tuning table (accepted: at most %d bytes)", OH_TUNING_BYTES);
        return OH_TUNING_BAD;
    }
    for (bool more = parse_head(&reader); more && next_line(&reader);) {
        more = strcmp(reader.start, "table") == 0 || fault(&reader, "'%.32s' (accepted: table)", reader.start);
        more = more && parse_table(&reader, &pattern, &table, source);
        if (more && !is_found && is_for(&pattern, key)) {
            found = table;
            memcpy(found_source, source, sizeof source);
            is_found = true;
        }
    }
    if (reader.bad) {
        return OH_TUNING_BAD;
    }
    if (!is_found) {
        fault(&reader, "a table for %u x %.40s, driver %.20s, NCCL %.12s", pattern.nranks,
              pattern.nranks ? pattern.gpu : "no GPU", pattern.driver, pattern.nccl);
        return OH_TUNING_FOREIGN;
    }
    *table_p = found;
    if (source_p) {
        memcpy(source_p, found_source, sizeof found_source);
    }
    return OH_TUNING_FOUND;
}

void oh_tuning_nccl_name(int version, char name_p[OH_TUNING_TEXT])
{
    snprintf(name_p, OH_TUNING_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
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

void oh_tuning_shipped(const char *gpu, uint32_t nranks, struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT])
{
    static const char simulated[] = "SIMULATED ";
    struct oh_tuning_key key = {.nranks = nranks, .driver = "unknown", .nccl = "unknown"};
    struct oh_tuning_fault fault;
    if (strncmp(gpu, simulated, sizeof simulated - 1) == 0) {
        gpu += sizeof simulated - 1;
    }
    snprintf(key.gpu, sizeof key.gpu, "%s", gpu);
    if (oh_tuning_parse(oh_shipped_tables, oh_shipped_size, &key, table_p, source_p, &fault) != OH_TUNING_FOUND) {
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
    const char *cache = folder_of("XDG_CACHE_HOME"), *home = folder_of("HOME");
    int folder = -1, all = -1;
    if (cache) {
        folder = snprintf(path_p, OH_STORE_PATH, "%s/onehop/", cache);
    } else if (home) {
        folder = snprintf(path_p, OH_STORE_PATH, "%s/.cache/onehop/", home);
    }
    if (folder > 0 && folder < OH_STORE_PATH) {
        all = folder + snprintf(path_p + folder, (size_t)(OH_STORE_PATH - folder), "%s-n%u-driver-%s-nccl-%s.tuning",
                                key->gpu, key->nranks, key->driver, key->nccl);
    }
    if (all < 0 || all >= OH_STORE_PATH) {
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
