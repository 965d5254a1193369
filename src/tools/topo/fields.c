/* SPDX-License-Identifier: MIT */
/*
 * topo/fields.c - the fields of GPUs and pairs in a recording (topo/fields.h)
 */
#include "tools/topo/fields.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/node.h"

#define GPU(key_, kind_, member_, low_, high_, unset_)                                                                 \
    {                                                                                                                  \
        key_, kind_, offsetof(struct oh_node_gpu, member_), sizeof((struct oh_node_gpu *)0)->member_, low_, high_,     \
            unset_                                                                                                     \
    }
#define PAIR(key_, kind_, member_, low_, high_, unset_)                                                                \
    {                                                                                                                  \
        key_, kind_, offsetof(struct oh_node_pair, member_), sizeof((struct oh_node_pair *)0)->member_, low_, high_,   \
            unset_                                                                                                     \
    }

static const struct oh_field gpu_fields[] = {
    GPU("bus", OH_FIELD_WORD, topo.bus_id, 0, 0, 0),
    GPU("cuda", OH_FIELD_NUMBER, topo.cuda_device, 0, OH_NODE_GPUS, -1),
    GPU("major", OH_FIELD_NUMBER, topo.compute_major, 1, 99, 0),
    GPU("minor", OH_FIELD_NUMBER, compute_minor, 1, 99, 0),
    GPU("mig", OH_FIELD_FACT, topo.mig, 0, 0, 0),
    GPU("ipc", OH_FIELD_FACT, ipc, 0, 0, 0),
    GPU("mode", OH_FIELD_NUMBER, compute_mode, 0, 99, -1),
    GPU("links", OH_FIELD_NUMBER, links, 0, 999, -1),
    GPU("down", OH_FIELD_NUMBER, links_down, 1, 999, 0),
    GPU("fabric", OH_FIELD_NUMBER, fabric, 0, 255, -1),
    GPU("status", OH_FIELD_NUMBER, fabric_status, INT_MIN, INT_MAX, 0),
    GPU("clique", OH_FIELD_NUMBER, clique, INT_MIN, INT_MAX, 0),
    GPU("cluster", OH_FIELD_WORD, cluster, 0, 0, 0),
    GPU("cpus", OH_FIELD_WORD, place.cpus, 0, 0, 0),
    GPU("numa", OH_FIELD_WORD, place.numa, 0, 0, 0),
    GPU("root", OH_FIELD_WORD, place.root, 0, 0, 0),
    GPU("name", OH_FIELD_REST, topo.name, 0, 0, 0),
};
const struct oh_fields oh_gpu_fields = {gpu_fields, sizeof gpu_fields / sizeof *gpu_fields};

static const struct oh_field pair_fields[] = {
    PAIR("nvlink", OH_FIELD_FACT, topo.nvml_nvlink, 0, 0, 0),
    PAIR("read", OH_FIELD_FACT, topo.nvml_read, 0, 0, 0),
    PAIR("write", OH_FIELD_FACT, topo.nvml_write, 0, 0, 0),
    PAIR("access", OH_FIELD_FACT, topo.cuda_access, 0, 0, 0),
    PAIR("atomics", OH_FIELD_FACT, topo.cuda_atomics, 0, 0, 0),
    PAIR("links", OH_FIELD_NUMBER, links.active, 0, 999, -1),
    PAIR("switch", OH_FIELD_FLAG, links.via_switch, 0, 1, 0),
    PAIR("path", OH_FIELD_NUMBER, path, OH_PATH_PIX, OH_PATHS - 1, OH_PATH_UNKNOWN),
    PAIR("mbps", OH_FIELD_NUMBER, mb_per_s, 1, INT_MAX, 0),
    PAIR("ns", OH_FIELD_NUMBER, latency_ns, 1, INT_MAX, 0),
};
const struct oh_fields oh_pair_fields = {pair_fields, sizeof pair_fields / sizeof *pair_fields};

_Static_assert(sizeof(enum oh_fact) == sizeof(int) && sizeof(enum oh_path) == sizeof(int), "read and written as int");

/* Printable characters of ASCII only; in a word no blank either. */
static void write_text(const char *value, bool word, char *text_p, size_t size)
{
    size_t i = 0;
    for (; value[i] && i + 1 < size; i++) {
        bool fits = value[i] >= (word ? '!' : ' ') && value[i] <= '~';
        text_p[i] = fits ? value[i] : '?';
    }
    text_p[i] = '\0';
}

/* The value as text; empty: it is left out. */
static void value_text(const struct oh_field *field, const void *object, char *text_p, size_t size)
{
    const void *at = (const char *)object + field->offset;
    text_p[0] = '\0';
    switch (field->kind) {
    case OH_FIELD_FACT:
        if (*(const int *)at != OH_UNKNOWN) {
            snprintf(text_p, size, "%s", *(const int *)at == OH_YES ? "yes" : "no");
        }
        break;
    case OH_FIELD_NUMBER:
        if (*(const int *)at != field->unset) {
            snprintf(text_p, size, "%d", *(const int *)at);
        }
        break;
    case OH_FIELD_FLAG:
        if (*(const bool *)at) {
            snprintf(text_p, size, "1");
        }
        break;
    case OH_FIELD_WORD:
    case OH_FIELD_REST:
        write_text(at, field->kind == OH_FIELD_WORD, text_p, size);
        break;
    }
}

size_t oh_fields_write(const struct oh_fields *fields, const void *object, char *text_p, size_t size)
{
    size_t used = 0;
    text_p[0] = '\0';
    for (size_t i = 0; i < fields->count; i++) {
        char value[128];
        value_text(&fields->field[i], object, value, sizeof value);
        if (value[0] && used < size) {
            used += (size_t)snprintf(text_p + used, size - used, " %s=%s", fields->field[i].key, value);
        }
    }
    return used < size ? used : size - 1;
}

bool oh_fields_number(const char *text, int low, int high, int *number_p)
{
    char *end;
    if ((text[0] < '0' || text[0] > '9') && (text[0] != '-' || text[1] < '0' || text[1] > '9')) {
        return false;
    }
    errno = 0;
    long number = strtol(text, &end, 10);
    if (*end || errno || number < low || number > high) {
        return false;
    }
    *number_p = (int)number;
    return true;
}

static bool read_value(const struct oh_field *field, const char *value, void *object)
{
    void *at = (char *)object + field->offset;
    int number;
    switch (field->kind) {
    case OH_FIELD_FACT:
        *(int *)at = strcmp(value, "yes") == 0 ? OH_YES : OH_NO;
        return *(int *)at == OH_YES || strcmp(value, "no") == 0;
    case OH_FIELD_NUMBER:
        return oh_fields_number(value, field->low, field->high, (int *)at);
    case OH_FIELD_FLAG:
        *(bool *)at = true;
        return oh_fields_number(value, 1, 1, &number);
    default:
        if (strlen(value) >= field->size) {
            return false;
        }
        strcpy(at, value);
        return true;
    }
}

static const struct oh_field *find_field(const struct oh_fields *fields, const char *key)
{
    for (size_t i = 0; i < fields->count; i++) {
        if (strcmp(fields->field[i].key, key) == 0) {
            return &fields->field[i];
        }
    }
    return NULL;
}

bool oh_fields_read(const struct oh_fields *fields, char *text, void *object)
{
    while (*(text += strspn(text, " "))) {
        char *equals = strchr(text, '=');
        if (!equals) {
            return false;
        }
        *equals = '\0';
        const struct oh_field *field = find_field(fields, text);
        char *value = equals + 1, *end = value + strlen(value);
        if (field && field->kind != OH_FIELD_REST) {
            end = value + strcspn(value, " ");
        }
        text = *end ? end + 1 : end;
        *end = '\0';
        if (!field || !read_value(field, value, object)) {
            return false;
        }
    }
    return true;
}
