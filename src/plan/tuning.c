/* SPDX-License-Identifier: MIT */
/*
 * tuning.c - tuning tables as text
 *
 * Does: Parses and formats them; every byte is checked.
 * Threads: pure functions.
 * Owns: nothing.
 */
#include "plan/tuning.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define MARK "onehop-tuning"
#define LINE 200 /* with its final zero */
#define WORDS 5

/* --- reading lines ---------------------------------------------------------------------------------------------- */

struct reader {
    const char *at;
    const char *end;
    unsigned line; /* the number of the line in `text` */
    char text[LINE];
    struct oh_tuning_fault *fault;
    bool bad;
};

/* The first fault stays. Returns false. */
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

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Cuts comment and blanks off the end. */
static void trim(char *text)
{
    char *comment = strchr(text, '#');
    size_t length = comment ? (size_t)(comment - text) : strlen(text);
    while (length > 0 && is_blank(text[length - 1])) {
        length--;
    }
    text[length] = '\0';
}

/* The next line as it stands, into reader->text. False: there is none, or it is bad. */
static bool take_line(struct reader *reader)
{
    size_t length = 0;
    if (reader->at == reader->end) {
        return false;
    }
    reader->line++;
    for (; reader->at < reader->end && *reader->at != '\n'; reader->at++) {
        if ((*reader->at < ' ' || *reader->at > '~') && *reader->at != '\t') {
            return fault(reader, "a byte that is not text (accepted: printable ASCII and tabs)");
        }
        if (length + 1 == sizeof reader->text) {
            return fault(reader, "a line that is too long (accepted: at most %d characters)", LINE - 1);
        }
        reader->text[length++] = *reader->at;
    }
    if (reader->at == reader->end) {
        return fault(reader, "the line does not end (accepted: a newline after each line)");
    }
    reader->at++;
    reader->text[length] = '\0';
    trim(reader->text);
    return true;
}

/* The next line that says something. */
static bool next_line(struct reader *reader)
{
    while (take_line(reader)) {
        if (reader->text[strspn(reader->text, " \t")] != '\0') {
            return true;
        }
    }
    return false;
}

/* Splits a line that says something where it is blank. Returns the number of words, WORDS for as many or more. */
static int split(struct reader *reader, char *word[WORDS])
{
    int count = 0;
    char *rest = reader->text;
    for (int i = 0; i < WORDS; i++) {
        word[i] = rest; /* none stays without a value */
    }
    for (char *part; count < WORDS && (part = strsep(&rest, " \t")) != NULL;) {
        if (*part) {
            word[count++] = part;
        }
    }
    return count;
}

static bool parse_number(const char *text, uint64_t max, uint64_t *number_p)
{
    uint64_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) { /* NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult): text ends */
        if (number > max / 10) {             /* far from an overflow: max is small */
            return false;
        }
        number = number * 10 + (uint64_t)(*at - '0');
    }
    if (at == text || *at || number > max) {
        return false;
    }
    *number_p = number;
    return true;
}

/* The same with K, M or G behind it. */
static bool parse_size(char *text, uint64_t *bytes_p)
{
    static const char units[] = "KMG";
    size_t length = strlen(text);
    const char *unit = length > 1 ? strchr(units, text[length - 1]) : NULL;
    unsigned shift = unit ? 10 * (1 + (unsigned)(unit - units)) : 0;
    uint64_t number;
    if (unit) {
        text[length - 1] = '\0';
    }
    if (!parse_number(text, OH_MESSAGE_BYTES >> shift, &number) || number == 0) {
        return false;
    }
    *bytes_p = number << shift;
    return true;
}

/* --- tables ----------------------------------------------------------------------------------------------------- */

/* A line "NAME TEXT": the text goes to value_p. */
static bool parse_value(struct reader *reader, const char *name, char value_p[OH_TUNING_TEXT])
{
    size_t length = strlen(name);
    if (!next_line(reader)) {
        return fault(reader, "the text ends within a table (accepted: %s)", name);
    }
    const char *at = reader->text + strspn(reader->text, " \t");
    if (strncmp(at, name, length) != 0 || !is_blank(at[length])) {
        return fault(reader, "'%.32s' (accepted: %s and a value)", at, name);
    }
    at += length + strspn(at + length, " \t");
    if (strlen(at) >= OH_TUNING_TEXT) {
        return fault(reader, "%s is too long (accepted: at most %d characters)", name, OH_TUNING_TEXT - 1);
    }
    memcpy(value_p, at, strlen(at) + 1); /* not empty: the line's end is trimmed */
    return true;
}

static bool parse_key(struct reader *reader, struct oh_tuning_key *key_p, char source_p[OH_TUNING_TEXT])
{
    char ranks[OH_TUNING_TEXT];
    uint64_t number;
    if (!parse_value(reader, "gpu", key_p->gpu) || !parse_value(reader, "ranks", ranks)) {
        return false;
    }
    if (!parse_number(ranks, OH_MAX_RANKS, &number) || number < 2) {
        return fault(reader, "ranks %.32s (accepted: 2 to %d)", ranks, OH_MAX_RANKS);
    }
    key_p->nranks = (uint32_t)number;
    return parse_value(reader, "driver", key_p->driver) && parse_value(reader, "nccl", key_p->nccl) &&
           parse_value(reader, "source", source_p);
}

/* BYTES nccl, or BYTES ALGORITHM BLOCKS THREADS. False: not so. */
static bool parse_choice(char *word[WORDS], int words, struct oh_plan_row *row_p)
{
    uint64_t blocks, threads;
    if (!parse_size(word[0], &row_p->max_bytes)) {
        return false;
    }
    if (words == 2 && strcmp(word[1], "nccl") == 0) {
        row_p->algorithm = OH_PLAN_NCCL;
        return true;
    }
    int algorithm = words == 4 ? oh_algorithm_by_name(word[1]) : -1;
    if (algorithm < 0 || !parse_number(word[2], OH_MAX_BLOCKS, &blocks) ||
        !parse_number(word[3], OH_MAX_THREADS, &threads)) {
        return false;
    }
    row_p->algorithm = (uint32_t)algorithm;
    row_p->blocks = (uint32_t)blocks;
    row_p->threads = (uint32_t)threads;
    return true;
}

static bool add_row(struct reader *reader, struct oh_plan_table *table, char *word[WORDS], int words)
{
    struct oh_plan_row row = {0};
    struct oh_plan_rows *rows = &table->rows;
    if (!parse_choice(word, words, &row)) {
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

/* What lies behind the last served row falls back anyway. */
static void drop_idle_rows(struct oh_plan_rows *rows)
{
    while (rows->count > 0 && rows->row[rows->count - 1].algorithm == OH_PLAN_NCCL) {
        rows->row[--rows->count] = (struct oh_plan_row){0};
    }
}

/* From behind "table" to "end". */
static bool parse_table(struct reader *reader, struct oh_tuning_key *key_p, struct oh_plan_table *table_p,
                        char source_p[OH_TUNING_TEXT])
{
    struct oh_plan_table table = {0};
    if (!parse_key(reader, key_p, source_p)) {
        return false;
    }
    table.nranks = key_p->nranks;
    while (next_line(reader)) {
        char *word[WORDS];
        int words = split(reader, word);
        if (words == 1 && strcmp(word[0], "end") == 0) {
            drop_idle_rows(&table.rows);
            *table_p = table;
            return true;
        }
        if (!add_row(reader, &table, word, words)) {
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
    char *word[WORDS];
    uint64_t version;
    if (!next_line(reader)) {
        return fault(reader, "no text (accepted: " MARK " %d)", OH_TUNING_VERSION);
    }
    int words = split(reader, word);
    if (words != 2 || strcmp(word[0], MARK) != 0 || !parse_number(word[1], 1000000, &version) || version == 0) {
        return fault(reader, "not a tuning table (accepted: " MARK " %d)", OH_TUNING_VERSION);
    }
    if (version != OH_TUNING_VERSION) {
        return fault(reader, "version %" PRIu64 ", of another onehop (accepted: " MARK " %d)", version,
                     OH_TUNING_VERSION);
    }
    return true;
}

enum oh_tuning_result oh_tuning_parse(const char *text, size_t size, const struct oh_tuning_key *key,
                                      struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT],
                                      struct oh_tuning_fault *fault_p)
{
    struct reader reader = {.at = text, .end = text + size, .fault = fault_p};
    struct oh_tuning_key pattern = {0};
    struct oh_plan_table table, found;
    char source[OH_TUNING_TEXT], found_source[OH_TUNING_TEXT] = "";
    bool is_found = false;
    if (size > OH_TUNING_BYTES) {
        fault(&reader, "%zu bytes (accepted: at most %d)", size, OH_TUNING_BYTES);
        return OH_TUNING_BAD;
    }
    for (bool more = parse_head(&reader) && next_line(&reader); more; more = next_line(&reader)) {
        char *word[WORDS];
        if (split(&reader, word) != 1 || strcmp(word[0], "table") != 0) {
            fault(&reader, "'%.32s' (accepted: table)", word[0]);
        } else if (parse_table(&reader, &pattern, &table, source) && !is_found && is_for(&pattern, key)) {
            found = table;
            memcpy(found_source, source, sizeof source);
            is_found = true;
        }
        if (reader.bad) {
            break;
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

/* --- what onehop brings along ----------------------------------------------------------------------------------- */

/* src/plan/shipped.tuning, by shipped.S. */
extern const char oh_shipped_tables[] __attribute__((visibility("hidden")));
extern const uint64_t oh_shipped_size __attribute__((visibility("hidden")));

void oh_tuning_shipped_text(const char **text_p, size_t *size_p)
{
    *text_p = oh_shipped_tables;
    *size_p = oh_shipped_size;
}

void oh_tuning_shipped(const char *gpu, uint32_t nranks, struct oh_plan_table *table_p, char source_p[OH_TUNING_TEXT])
{
    static const char simulated[] = "SIMULATED ";
    struct oh_tuning_key key = {.nranks = nranks, .driver = "unknown", .nccl = "unknown"};
    struct oh_tuning_fault fault;
    const char *text;
    size_t size;
    if (strncmp(gpu, simulated, sizeof simulated - 1) == 0) {
        gpu += sizeof simulated - 1;
    }
    snprintf(key.gpu, sizeof key.gpu, "%s", gpu);
    oh_tuning_shipped_text(&text, &size);
    if (oh_tuning_parse(text, size, &key, table_p, source_p, &fault) != OH_TUNING_FOUND) {
        *table_p = (struct oh_plan_table){.nranks = nranks}; /* nothing is served; a test shows that it is never so */
    }
}

void oh_plan_table_default(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p)
{
    oh_tuning_shipped("", nranks, table_p, NULL);
    oh_plan_table_apply_limits(table_p, max_bytes, forced);
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

void oh_tuning_write_head(FILE *stream)
{
    fprintf(stream, MARK " %d\n", OH_TUNING_VERSION);
}

void oh_tuning_write_key(FILE *stream, const struct oh_tuning_key *key, const char *source)
{
    fprintf(stream, "\ntable\n  gpu %s\n  ranks %u\n  driver %s\n  nccl %s\n  source %s\n", key->gpu, key->nranks,
            key->driver, key->nccl, source);
}

static void format_size(uint64_t bytes, char text_p[24])
{
    static const char units[] = "\0KMG";
    int unit = 0;
    while (unit < 3 && bytes % 1024 == 0 && bytes > 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text_p, 24, "%" PRIu64 "%.1s", bytes, &units[unit]);
}

void oh_tuning_write_row(FILE *stream, const struct oh_plan_row *row, const char *comment)
{
    char size[24], shape[24] = "";
    bool served = row->algorithm != OH_PLAN_NCCL;
    format_size(row->max_bytes, size);
    if (served) {
        snprintf(shape, sizeof shape, "%3u %3u", row->blocks, row->threads);
    }
    fprintf(stream, "  %6s  %-7s %7s", size, served ? oh_algorithm_name((int)row->algorithm) : "nccl", shape);
    fprintf(stream, comment ? "  # %s\n" : "\n", comment);
}

void oh_tuning_write_end(FILE *stream)
{
    fprintf(stream, "end\n");
}
