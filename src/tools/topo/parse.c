/* SPDX-License-Identifier: MIT */
/*
 * topo/parse.c - reads a recording (topo/fields.h describes the form)
 *
 * The buffer may hold anything: nothing is believed but what has been looked at. Bounds: OH_NODE_GPUS GPUs, one line
 * of LINE characters, and the texts' own sizes. hwloc's XML is carried along and not looked into, except that it must
 * be text and have an end. One pass, no recursion.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/fields.h"
#include "tools/topo/node.h"

#define LINE 4096

struct parser {
    const char *at, *end;
    int number; /* of the line */
    char line[LINE];
    struct oh_node node;
    bool ended;
    char *why;
    size_t why_size;
};

static bool complain(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool complain(struct parser *parser, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(parser->why, parser->why_size, format, args);
    va_end(args);
    return false;
}

static bool damaged(struct parser *parser)
{
    return complain(parser, "the recording is damaged at line %d", parser->number);
}

/* The next line without its end, as raw bytes; false: there is none. */
static bool next_raw(struct parser *parser, const char **text_p, size_t *length_p)
{
    if (parser->at == parser->end) {
        return false;
    }
    const char *stop = memchr(parser->at, '\n', (size_t)(parser->end - parser->at));
    *text_p = parser->at;
    *length_p = (size_t)((stop ? stop : parser->end) - parser->at);
    parser->at = stop ? stop + 1 : parser->end;
    parser->number++;
    if (*length_p > 0 && (*text_p)[*length_p - 1] == '\r') {
        --*length_p;
    }
    return true;
}

/* Copies the next line to parser->line if it is printable ASCII. *more_p: there was one. False: damaged. */
static bool next_line(struct parser *parser, bool *more_p)
{
    const char *text;
    size_t length;
    *more_p = next_raw(parser, &text, &length);
    if (!*more_p) {
        return true;
    }
    if (length >= sizeof parser->line) {
        return damaged(parser);
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] > '~') {
            return damaged(parser);
        }
    }
    memcpy(parser->line, text, length);
    parser->line[length] = '\0';
    return true;
}

/* The rest of the line when it begins with that, else NULL. */
static char *after(struct parser *parser, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(parser->line, beginning, length) == 0 ? parser->line + length : NULL;
}

static bool copy_text(struct parser *parser, const char *text, char *text_p, size_t size)
{
    if (strlen(text) >= size) {
        return damaged(parser);
    }
    strcpy(text_p, text);
    return true; /* NOLINT(clang-analyzer-unix.Malloc): oh_node_parse frees what it has begun, or gives it to its caller
                  */
}

static bool parse_gpu(struct parser *parser, char *words, bool visible)
{
    struct oh_node *node = &parser->node;
    char *rest = words + strcspn(words, " ");
    int index, expected = node->visible + node->hidden;
    if (*rest) {
        *rest++ = '\0';
    }
    if (expected == OH_NODE_GPUS) {
        return complain(parser, "the recording has more than %d GPUs", OH_NODE_GPUS);
    }
    if (!oh_fields_number(words, 0, OH_NODE_GPUS, &index) || index != expected || node->pair ||
        (visible && node->hidden > 0)) {
        return damaged(parser);
    }
    struct oh_node_gpu *gpu = &node->gpu[index];
    oh_node_gpu_init(gpu);
    if (!oh_fields_read(&oh_gpu_fields, rest, gpu)) {
        return damaged(parser);
    }
    node->visible += visible;
    node->hidden += !visible;
    return true;
}

/* "A B" or "A B-C", and where the fields begin. */
static bool parse_range(const struct oh_node *node, char *words, int *row_p, int *first_p, int *last_p, char **rest_p)
{
    char *columns = words + strcspn(words, " ");
    if (!*columns) {
        return false;
    }
    *columns++ = '\0';
    char *rest = columns + strcspn(columns, " ");
    if (*rest) {
        *rest++ = '\0';
    }
    char *last = strchr(columns, '-');
    if (last) {
        *last++ = '\0';
    }
    int most = node->visible - 1;
    *rest_p = rest;
    return oh_fields_number(words, 0, most, row_p) && oh_fields_number(columns, 0, most, first_p) &&
           oh_fields_number(last ? last : columns, *first_p, most, last_p);
}

static bool parse_pair(struct parser *parser, char *words)
{
    struct oh_node *node = &parser->node;
    struct oh_node_pair pair = {.links = {.active = -1}};
    int row, first, last;
    char *rest;
    if (!node->pair && !oh_node_make_pairs(node)) {
        return complain(parser, "out of memory");
    }
    if (!parse_range(node, words, &row, &first, &last, &rest) || !oh_fields_read(&oh_pair_fields, rest, &pair)) {
        return damaged(parser);
    }
    for (int column = first; column <= last; column++) {
        if (column != row) {
            *oh_node_pair_at(node, row, column) = pair;
        }
    }
    return true;
}

/* Everything up to the line that ends the XML. */
static bool parse_xml(struct parser *parser)
{
    const char *begin = parser->at, *text;
    size_t length;
    if (parser->node.xml) {
        return damaged(parser);
    }
    while (next_raw(parser, &text, &length)) {
        for (size_t i = 0; i < length; i++) {
            if ((unsigned char)text[i] < ' ' && text[i] != '\t') {
                return damaged(parser);
            }
        }
        if (length == strlen(OH_RECORDING_XML_END) && memcmp(text, OH_RECORDING_XML_END, length) == 0) {
            parser->node.xml_size = (size_t)(parser->at - begin);
            parser->node.xml = malloc(parser->node.xml_size + 1);
            if (!parser->node.xml) {
                return complain(parser, "out of memory");
            }
            memcpy(parser->node.xml, begin, parser->node.xml_size);
            parser->node.xml[parser->node.xml_size] = '\0';
            return true;
        }
    }
    return complain(parser, "the recording is cut off");
}

/* NAME=VALUE of a variable. *known_p: it is one. */
static bool parse_variable(struct parser *parser, bool *known_p)
{
    *known_p = false;
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        char *value = after(parser, oh_node_variable_names[v]);
        if (value && *value == '=') {
            *known_p = true;
            parser->node.variable[v].set = true;
            return copy_text(parser, value + 1, parser->node.variable[v].value, OH_NODE_VALUE);
        }
    }
    return true;
}

static bool parse_line(struct parser *parser)
{
    struct oh_node *node = &parser->node;
    char *rest;
    bool known;
    if (parser->line[0] == '\0' || parser->line[0] == '#') {
        return true;
    }
    if ((rest = after(parser, "gpu "))) {
        return parse_gpu(parser, rest, true);
    }
    if ((rest = after(parser, "hidden "))) {
        return parse_gpu(parser, rest, false);
    }
    if ((rest = after(parser, "pair "))) {
        return parse_pair(parser, rest);
    }
    if ((rest = after(parser, "driver "))) {
        return copy_text(parser, rest, node->driver, sizeof node->driver);
    }
    if ((rest = after(parser, "problem "))) {
        return copy_text(parser, rest, node->problem, sizeof node->problem);
    }
    if ((rest = after(parser, "cuda "))) {
        return oh_fields_number(rest, 1, 1000000, &node->cuda) || damaged(parser);
    }
    if (strcmp(parser->line, OH_RECORDING_BY_HAND) == 0) {
        node->by_hand = true;
        return true;
    }
    if (strcmp(parser->line, "hwloc") == 0) {
        return parse_xml(parser);
    }
    if (strcmp(parser->line, "end") == 0) {
        parser->ended = true;
        return true;
    }
    return parse_variable(parser, &known) && (known || damaged(parser));
}

static bool parse_head(struct parser *parser)
{
    const char *text;
    size_t length, head = strlen(OH_RECORDING_HEAD);
    char number[16] = "";
    int version;
    if (!next_raw(parser, &text, &length) || length < head || memcmp(text, OH_RECORDING_HEAD, head) != 0) {
        return complain(parser, "this is no recording of onehop topo");
    }
    if (length - head < sizeof number) {
        memcpy(number, text + head, length - head);
    }
    if (!oh_fields_number(number, 1, 999999, &version)) {
        return damaged(parser);
    }
    if (version != OH_RECORDING_VERSION) {
        return complain(parser, "the recording has version %d, and this onehop reads version %d", version,
                        OH_RECORDING_VERSION);
    }
    return true;
}

/* What no line by itself can tell. */
static bool check_whole(struct parser *parser)
{
    struct oh_node *node = &parser->node;
    if (!parser->ended) {
        return complain(parser, "the recording is cut off");
    }
    if (parser->at != parser->end) {
        return complain(parser, "the recording is damaged: something follows its end");
    }
    if (!node->problem[0] && node->visible == 0) {
        return complain(parser, "the recording is damaged: it has no GPU and does not say why");
    }
    if (node->problem[0] && node->visible > 0) {
        return complain(parser, "the recording is damaged: it has GPUs and says that there are none");
    }
    if (!node->pair && !oh_node_make_pairs(node)) {
        return complain(parser, "out of memory");
    }
    return true;
}

bool oh_node_parse(const char *data, size_t size, struct oh_node *node_p, char *why_p, size_t why_size)
{
    struct parser parser = {.at = data, .end = data + size, .why = why_p, .why_size = why_size};
    bool good = parse_head(&parser), more = true;
    parser.node.gpu = calloc(OH_NODE_GPUS, sizeof *parser.node.gpu);
    if (good && !parser.node.gpu) {
        good = complain(&parser, "out of memory");
    }
    while (good && !parser.ended && more) {
        good = next_line(&parser, &more) && (!more || parse_line(&parser));
    }
    if (!good || !check_whole(&parser)) {
        oh_node_free(&parser.node);
        return false;
    }
    *node_p = parser.node;
    return true;
}
