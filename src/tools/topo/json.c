/* SPDX-License-Identifier: MIT */
/*
 * topo/json.c - a node and its verdict as JSON, and a node read back from it
 *
 * Does: writes what `onehop topo --json` and `--save` write; reads a node from it. The fields are described in
 *    doc/tools.md. A field that the reader does not use (the verdict, `link`, `fabric`) is derived from the others.
 * Threads: any; constant tables only.
 * Owns: nothing.
 */
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "tools/shared/tool.h"
#include "tools/topo/node.h"

#define SCHEMA 1
#define HOW_TO_RECORD "; record the machine by `onehop topo --save FILE` there"

enum kind {
    FACT,   /* enum oh_fact; null: unknown */
    NUMBER, /* an int from low to high; null: `unset` */
    FLAG,   /* a bool */
    TEXT    /* a char array of printable ASCII; null: empty */
};

struct field {
    const char *key;
    enum kind kind;
    size_t offset, size;
    int low, high, unset;
};

#define FIELD(type_, key_, kind_, member_, low_, high_, unset_)                                                        \
    {                                                                                                                  \
        key_, kind_, offsetof(struct type_, member_), sizeof((struct type_ *)0)->member_, low_, high_, unset_          \
    }
#define NODE(key_, kind_, member_) FIELD(oh_node, key_, kind_, member_, 1, 1000000, 0)
#define GPU(key_, kind_, member_, low_, high_) FIELD(oh_node_gpu, key_, kind_, member_, low_, high_, -1)
#define PAIR(key_, kind_, member_, low_, unset_) FIELD(oh_node_pair, key_, kind_, member_, low_, INT_MAX, unset_)

static const struct field node_fields[] = {
    NODE("made_by_hand", FLAG, by_hand), NODE("source", TEXT, source),   NODE("driver", TEXT, driver),
    NODE("cuda_version", NUMBER, cuda),  NODE("problem", TEXT, problem), {.key = NULL},
};

static const struct field gpu_fields[] = {
    GPU("bus_id", TEXT, topo.bus_id, 0, 0),
    GPU("name", TEXT, topo.name, 0, 0),
    FIELD(oh_node_gpu, "compute_major", NUMBER, topo.compute_major, 1, 99, 0),
    GPU("compute_minor", NUMBER, topo.compute_minor, 0, 99),
    GPU("mig", FACT, topo.mig, 0, 0),
    GPU("ipc", FACT, ipc, 0, 0),
    GPU("compute_mode", NUMBER, compute_mode, 0, 99),
    GPU("nvlinks", NUMBER, links, 0, 999),
    GPU("nvlinks_down", NUMBER, links_down, 0, 999),
    GPU("fabric_state", NUMBER, fabric, 0, 255),
    FIELD(oh_node_gpu, "fabric_status", NUMBER, fabric_status, INT_MIN, INT_MAX, 0),
    GPU("fabric_cluster", TEXT, cluster, 0, 0),
    GPU("fabric_clique", NUMBER, clique, INT_MIN, INT_MAX),
    GPU("cpus", TEXT, cpus, 0, 0),
    GPU("numa", TEXT, numa, 0, 0),
    GPU("root_port", TEXT, root, 0, 0),
    {.key = NULL},
};

static const struct field pair_fields[] = {
    PAIR("nvlinks", NUMBER, links, 0, -1),
    PAIR("nvswitch", FLAG, via_switch, 0, 0),
    PAIR("path", TEXT, path, 0, 0),
    PAIR("nvml_nvlink", FACT, topo.nvml_nvlink, 0, 0),
    PAIR("nvml_read", FACT, topo.nvml_read, 0, 0),
    PAIR("nvml_write", FACT, topo.nvml_write, 0, 0),
    PAIR("cuda_access", FACT, topo.cuda_access, 0, 0),
    PAIR("cuda_atomics", FACT, topo.cuda_atomics, 0, 0),
    PAIR("bandwidth_mb_per_s", NUMBER, mb_per_s, 1, 0),
    PAIR("latency_ns", NUMBER, latency_ns, 1, 0),
    {.key = NULL},
};

_Static_assert(sizeof(enum oh_fact) == sizeof(int), "read and written as int");

/* --- writing */

static json_t *index_or_null(int index)
{
    return index < 0 ? json_null() : json_integer(index);
}

static json_t *make_value(const struct field *field, const void *at)
{
    switch (field->kind) {
    case FACT:
        return *(const int *)at == OH_UNKNOWN ? json_null() : json_boolean(*(const int *)at == OH_YES);
    case NUMBER:
        return *(const int *)at == field->unset ? json_null() : json_integer(*(const int *)at);
    case FLAG:
        return json_boolean(*(const bool *)at);
    default:
        return oh_json_text(at);
    }
}

static void set_fields(json_t *object, const struct field *field, const void *from)
{
    for (; field->key; field++) {
        json_object_set_new(object, field->key, make_value(field, (const char *)from + field->offset));
    }
}

static json_t *make_gpu(const struct oh_node *node, int index)
{
    const bool visible = index < node->visible;
    json_t *object = json_pack("{s:o,s:b}", "index", index_or_null(visible ? index : -1), "visible", visible);
    set_fields(object, gpu_fields, &node->gpu[index]);
    json_object_set_new(object, "fabric", json_string(oh_node_fabric(&node->gpu[index])));
    return object;
}

static json_t *make_pair(const struct oh_node *node, int row, int column)
{
    const struct oh_node_pair *pair = oh_node_pair_at(node, row, column);
    char cell[16];
    oh_node_cell(pair, cell, sizeof cell);
    json_t *object = json_pack("{s:i,s:i,s:s}", "from", row, "to", column, "link", cell);
    set_fields(object, pair_fields, pair);
    return object;
}

static json_t *make_verdict(const struct oh_verdict *verdict)
{
    json_t *group = json_array();
    for (int i = 0; i < verdict->group_size; i++) {
        json_array_append_new(group, json_integer(verdict->group[i]));
    }
    return json_pack("{s:b,s:o,s:o,s:o,s:o,s:i,s:s?,s:o,s:o}", "served", verdict->served, "reason",
                     oh_json_text(verdict->reason), "pair_reason", oh_json_text(verdict->pair_reason), "from",
                     index_or_null(verdict->row), "to", index_or_null(verdict->column), "pairs_refused",
                     verdict->refused, "remedy", verdict->remedy, "served_group", group, "cuda_visible_devices",
                     oh_json_text(verdict->select));
}

void oh_node_json(const struct oh_node *node, const struct oh_verdict *verdict, FILE *stream)
{
    json_t *object = json_pack("{s:i,s:b}", "schema", SCHEMA, "simulated", oh_node_is_simulated(node));
    json_t *environment = json_object(), *gpus = json_array(), *pairs = json_array();
    set_fields(object, node_fields, node);
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        json_object_set_new(environment, oh_node_variable_names[v],
                            node->variable[v].set ? json_string(node->variable[v].value) : json_null());
    }
    for (int i = 0; i < node->visible + node->hidden; i++) {
        json_array_append_new(gpus, make_gpu(node, i));
    }
    for (int i = 0; i < node->visible * node->visible; i++) {
        if (i / node->visible != i % node->visible) {
            json_array_append_new(pairs, make_pair(node, i / node->visible, i % node->visible));
        }
    }
    json_object_set_new(object, "environment", environment);
    json_object_set_new(object, "gpus", gpus);
    json_object_set_new(object, "pairs", pairs);
    json_object_set_new(object, "verdict", make_verdict(verdict));
    oh_json_write(stream, object);
}

/* --- reading */

struct reader {
    struct oh_node node;
    char where[32]; /* "gpus[3]", "pairs[7]"; empty: the outermost object */
    char *why;
    size_t why_size;
};

/* Writes "WHERE.KEY: CLAUSE"; the key may be NULL. Returns false. */
__attribute__((format(printf, 3, 4))) static bool refuse(struct reader *reader, const char *key, const char *format,
                                                         ...)
{
    va_list args;
    int length = snprintf(reader->why, reader->why_size, "%s%s%s%s", reader->where, reader->where[0] && key ? "." : "",
                          key ? key : "", reader->where[0] || key ? ": " : "");
    va_start(args, format);
    vsnprintf(reader->why + length, reader->why_size - (size_t)length, format, args);
    va_end(args);
    return false;
}

/* Copies a text that a terminal can show as it is. */
static bool read_text(struct reader *reader, const char *key, const json_t *value, char *text_p, size_t size)
{
    const char *text = json_string_value(value);
    bool good = text && strlen(text) < size;
    for (const char *at = text; good && *at; at++) {
        good = *at >= ' ' && *at <= '~';
    }
    if (!good) {
        return refuse(reader, key, "expected null or at most %zu printable ASCII characters", size - 1);
    }
    strcpy(text_p, text); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): its length is checked above */
    return true;
}

static bool read_number(struct reader *reader, const char *key, const json_t *value, int low, int high, int *number_p)
{
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < low || number > high) {
        return refuse(reader, key, "expected a number from %d to %d", low, high);
    }
    *number_p = (int)number;
    return true;
}

/* A member that is missing or null leaves what is there. */
static bool read_fields(struct reader *reader, const struct field *field, const json_t *object, void *to)
{
    bool good = json_is_object(object) || refuse(reader, NULL, "expected an object");
    for (; good && field->key; field++) {
        const json_t *value = json_object_get(object, field->key);
        char *at = (char *)to + field->offset;
        if (!value || json_is_null(value)) {
            continue;
        }
        if (field->kind == TEXT) {
            good = read_text(reader, field->key, value, at, field->size);
        } else if (field->kind == NUMBER) {
            good = read_number(reader, field->key, value, field->low, field->high, (int *)at);
        } else if (!json_is_boolean(value)) {
            good = refuse(reader, field->key, "expected true or false");
        } else if (field->kind == FACT) {
            *(int *)at = json_is_true(value) ? OH_YES : OH_NO;
        } else {
            *(bool *)at = json_is_true(value);
        }
    }
    return good;
}

static bool read_gpus(struct reader *reader, const json_t *gpus)
{
    struct oh_node *node = &reader->node;
    size_t count = json_array_size(gpus);
    if (!json_is_array(gpus)) {
        return refuse(reader, "gpus", "expected an array");
    }
    if (count > OH_NODE_GPUS) {
        return refuse(reader, "gpus", "%zu of them; expected at most %d", count, OH_NODE_GPUS);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *object = json_array_get(gpus, i), *seen = json_object_get(object, "visible");
        bool visible = !json_is_false(seen);
        snprintf(reader->where, sizeof reader->where, "gpus[%zu]", i);
        oh_node_gpu_init(&node->gpu[i]);
        if (seen && !json_is_boolean(seen)) {
            return refuse(reader, "visible", "expected true or false");
        }
        if (visible && node->hidden > 0) {
            return refuse(reader, "visible", "expected false after a GPU that is not visible");
        }
        if (!read_fields(reader, gpu_fields, object, &node->gpu[i])) {
            return false;
        }
        node->gpu[i].topo.cuda_device = visible ? (int)i : -1;
        node->visible += visible;
        node->hidden += !visible;
    }
    return true;
}

/* `to` may be a range [FIRST, LAST] in a file that is written by hand; `from` in it is skipped. */
static bool read_pairs(struct reader *reader, const json_t *pairs)
{
    struct oh_node *node = &reader->node;
    if (pairs && !json_is_array(pairs)) {
        return refuse(reader, "pairs", "expected an array");
    }
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *object = json_array_get(pairs, i), *to = json_object_get(object, "to");
        const json_t *first_to = json_is_array(to) ? json_array_get(to, 0) : to;
        const json_t *last_to = json_is_array(to) ? json_array_get(to, 1) : to;
        struct oh_node_pair pair = {.links = -1};
        int row = 0, first = 0, last = 0, most = node->visible - 1;
        snprintf(reader->where, sizeof reader->where, "pairs[%zu]", i);
        if (!read_fields(reader, pair_fields, object, &pair) ||
            !read_number(reader, "from", json_object_get(object, "from"), 0, most, &row) ||
            !read_number(reader, "to", first_to, 0, most, &first) ||
            !read_number(reader, "to", last_to, first, most, &last)) {
            return false;
        }
        if (json_array_size(to) > 2) {
            return refuse(reader, "to", "expected a number, or the first and the last of several");
        }
        for (int column = first; column <= last; column++) {
            if (column != row) {
                *oh_node_pair_at(node, row, column) = pair;
            }
        }
    }
    return true;
}

static bool read_environment(struct reader *reader, const json_t *environment)
{
    if (environment && !json_is_object(environment)) {
        return refuse(reader, "environment", "expected an object");
    }
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        const char *name = oh_node_variable_names[v];
        const json_t *value = json_object_get(environment, name);
        reader->node.variable[v].set = value && !json_is_null(value);
        if (reader->node.variable[v].set &&
            !read_text(reader, name, value, reader->node.variable[v].value, OH_NODE_VALUE)) {
            return false;
        }
    }
    return true;
}

static bool read_node(struct reader *reader, const json_t *root)
{
    struct oh_node *node = &reader->node;
    int schema;
    if (!json_object_get(root, "schema") || !json_object_get(root, "gpus")) {
        return refuse(reader, NULL, "not a recording of onehop topo" HOW_TO_RECORD);
    }
    if (!read_number(reader, "schema", json_object_get(root, "schema"), SCHEMA, SCHEMA, &schema) ||
        !read_fields(reader, node_fields, root, node) ||
        !read_environment(reader, json_object_get(root, "environment")) ||
        !read_gpus(reader, json_object_get(root, "gpus"))) {
        return false;
    }
    reader->where[0] = '\0';
    if ((node->problem[0] != '\0') == (node->visible > 0)) {
        return refuse(reader, "problem", "expected a text if no GPU is visible, else null");
    }
    oh_node_make_pairs(node);
    return read_pairs(reader, json_object_get(root, "pairs"));
}

bool oh_node_parse(const char *text, size_t size, struct oh_node *node_p, char *why_p, size_t why_size)
{
    json_error_t error;
    struct reader reader = {.why = why_p, .why_size = why_size};
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    bool good = root || refuse(&reader, NULL, "not a recording of onehop topo: line %d: %.60s" HOW_TO_RECORD,
                               error.line, error.text);
    reader.node.gpu = oh_tool_allocate(OH_NODE_GPUS * sizeof *reader.node.gpu);
    good = good && read_node(&reader, root);
    json_decref(root);
    if (!good) {
        oh_text_clean(why_p, why_size); /* jansson quotes the file */
        oh_node_free(&reader.node);
        return false;
    }
    *node_p = reader.node;
    return true;
}
