/* SPDX-License-Identifier: MIT */
/*
 * topology.c - finds and reads the topology file
 *
 * A line is `gpu BUS-ID KEY=VALUE...` or `pair default|A B KEY=VALUE...`; keys not given keep what an earlier line
 * (or the default of all pairs) said. No state of its own.
 */
#include "test/simnode/topology.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_answer(const char *value, enum simnode_answer *answer_p)
{
    static const struct {
        const char *word;
        enum simnode_answer answer;
    } words[] = {
        {"no", SIMNODE_NO},  {"off", SIMNODE_NO},          {"ok", SIMNODE_YES},
        {"on", SIMNODE_YES}, {"unknown", SIMNODE_UNKNOWN}, {"hidden", SIMNODE_HIDDEN},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, value) == 0) {
            *answer_p = words[i].answer;
            return true;
        }
    }
    return false;
}

static bool parse_number(const char *value, int least, int most, int *number_p)
{
    char *end;
    long number = strtol(value, &end, 10);
    if (end == value || *end != '\0' || number < least || number > most) {
        return false;
    }
    *number_p = (int)number;
    return true;
}

static bool parse_flag(const char *value, bool *flag_p)
{
    int number;
    if (!parse_number(value, 0, 1, &number)) {
        return false;
    }
    *flag_p = number;
    return true;
}

static bool set_gpu(void *object, const char *key, const char *value)
{
    struct simnode_gpu *gpu = object;
    int gigabytes;
    if (strcmp(key, "cc") == 0) {
        return sscanf(value, "%d.%d", &gpu->cc_major, &gpu->cc_minor) == 2;
    }
    if (strcmp(key, "sms") == 0) {
        return parse_number(value, 1, 1000, &gpu->sms);
    }
    if (strcmp(key, "memory") == 0) {
        if (!parse_number(value, 1, 1024, &gigabytes)) {
            return false;
        }
        gpu->memory = (uint64_t)gigabytes << 30;
        return true;
    }
    if (strcmp(key, "fabric") == 0) {
        return parse_number(value, 0, 3, &gpu->fabric);
    }
    return strcmp(key, "mig") == 0 && parse_answer(value, &gpu->mig);
}

static bool set_pair(void *object, const char *key, const char *value)
{
    struct simnode_pair *pair = object;
    if (strcmp(key, "nvlinks") == 0) {
        return parse_number(value, 0, 18, &pair->nvlinks);
    }
    if (strcmp(key, "link") == 0) {
        pair->via_switch = strcmp(value, "switch") == 0;
        return pair->via_switch || strcmp(value, "direct") == 0;
    }
    if (strcmp(key, "nvlink") == 0) {
        return parse_answer(value, &pair->nvlink);
    }
    if (strcmp(key, "read") == 0) {
        return parse_answer(value, &pair->read);
    }
    if (strcmp(key, "write") == 0) {
        return parse_answer(value, &pair->write);
    }
    if (strcmp(key, "access") == 0) {
        return parse_flag(value, &pair->access);
    }
    return strcmp(key, "atomics") == 0 && parse_flag(value, &pair->atomics);
}

/* Hands each KEY=VALUE of `words` to `set`. */
static bool parse_settings(char *words, bool (*set)(void *, const char *, const char *), void *object)
{
    char *rest;
    for (char *word = strtok_r(words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        char *value = strchr(word, '=');
        if (!value) {
            return false;
        }
        *value = '\0';
        if (!set(object, word, value + 1)) {
            return false;
        }
    }
    return true;
}

/* `name=` comes last and takes the rest of the line. */
static bool parse_gpu(struct simnode_topology *topology, char *words)
{
    int used = 0; /* stays so where the bus id does not end in .0 */
    char *name = strstr(words, " name=SIMULATED ");
    if (!name || topology->gpus == SIMNODE_MAX_GPUS) {
        return false;
    }
    struct simnode_gpu *gpu = &topology->gpu[topology->gpus];
    if (sscanf(words, "%x:%x:%x.0%n", &gpu->domain, &gpu->bus, &gpu->device, &used) != 3 || used == 0) {
        return false;
    }
    snprintf(gpu->name, sizeof gpu->name, "%s", name + strlen(" name="));
    *name = '\0';
    topology->gpus++;
    return parse_settings(words + used, set_gpu, gpu);
}

static bool parse_pair(struct simnode_topology *topology, char *words)
{
    int a, b, used;
    if (strncmp(words, "default ", 8) == 0) {
        struct simnode_pair pair = {0};
        if (!parse_settings(words + 8, set_pair, &pair)) {
            return false;
        }
        for (int i = 0; i < SIMNODE_MAX_GPUS * SIMNODE_MAX_GPUS; i++) {
            topology->pair[i / SIMNODE_MAX_GPUS][i % SIMNODE_MAX_GPUS] = pair;
        }
        return true;
    }
    if (sscanf(words, "%d %d%n", &a, &b, &used) != 2 || a < 0 || b < 0 || a >= topology->gpus || b >= topology->gpus ||
        a == b || !parse_settings(words + used, set_pair, &topology->pair[a][b])) {
        return false;
    }
    topology->pair[b][a] = topology->pair[a][b];
    return true;
}

static bool parse_line(struct simnode_topology *topology, char *line)
{
    line[strcspn(line, "#\r\n")] = '\0';
    line += strspn(line, " \t");
    if (line[0] == '\0') {
        return true;
    }
    if (strncmp(line, "gpu ", 4) == 0) {
        return parse_gpu(topology, line + 4);
    }
    return strncmp(line, "pair ", 5) == 0 && parse_pair(topology, line + 5);
}

static bool parse_file(FILE *file, const char *path, struct simnode_topology *topology)
{
    char line[512];
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        if (!parse_line(topology, line)) {
            fprintf(stderr, "simnode: %s:%d: cannot be understood\n", path, number);
            return false;
        }
    }
    return true;
}

/* Opens the file of that name in the first folder that has it. */
static FILE *open_named(const char *name, char *path, size_t size)
{
    const char *folder = getenv("SIMNODE_TOPOLOGY_DIR");
    FILE *file = NULL;
    Dl_info here;
    if (folder && folder[0] != '\0') {
        snprintf(path, size, "%s/%s.topo", folder, name);
        file = fopen(path, "re");
    }
    if (!file && dladdr((void *)simnode_topology_load, &here) && strrchr(here.dli_fname, '/')) {
        int length = (int)(strrchr(here.dli_fname, '/') - here.dli_fname);
        snprintf(path, size, "%.*s/topologies/%s.topo", length, here.dli_fname, name);
        file = fopen(path, "re");
        if (!file) {
            snprintf(path, size, "%.*s/../topologies/%s.topo", length, here.dli_fname, name);
            file = fopen(path, "re");
        }
    }
    return file;
}

bool simnode_topology_load(struct simnode_topology *topology_p)
{
    char path[4096];
    const char *name = getenv("SIMNODE_TOPOLOGY");
    FILE *file;
    if (!name || name[0] == '\0') {
        name = "h200x4";
    }
    if (strchr(name, '/')) {
        snprintf(path, sizeof path, "%s", name);
        file = fopen(path, "re");
    } else {
        file = open_named(name, path, sizeof path);
    }
    if (!file) {
        fprintf(stderr, "simnode: no topology '%s' (SIMNODE_TOPOLOGY, SIMNODE_TOPOLOGY_DIR)\n", name);
        return false;
    }
    *topology_p = (struct simnode_topology){0};
    bool understood = parse_file(file, path, topology_p);
    fclose(file);
    return understood;
}

int simnode_topology_find(const struct simnode_topology *topology, const char *bus_id)
{
    unsigned domain, bus, device;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) {
        return -1;
    }
    for (int i = 0; i < topology->gpus; i++) {
        const struct simnode_gpu *gpu = &topology->gpu[i];
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == device) {
            return i;
        }
    }
    return -1;
}

void simnode_gpu_bus_id(const struct simnode_gpu *gpu, int domain_digits, char *text_p, size_t size)
{
    snprintf(text_p, size, "%0*X:%02X:%02X.0", domain_digits, gpu->domain, gpu->bus, gpu->device);
}
