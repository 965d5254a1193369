/* SPDX-License-Identifier: MIT */
/*
 * cuda_object.c - the simulated driver's lists of living objects, and the report made of them at exit
 *
 * With SIMNODE_REPORT=prefix, lines "name value" are appended to <prefix>.<pid> when the process exits.
 */
#include "test/simnode/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct simcuda_state simcuda = {.lock = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};

void simcuda_add(enum simcuda_kind kind, struct simcuda_object *object)
{
    object->kind = kind;
    object->next = simcuda.objects[kind];
    simcuda.objects[kind] = object;
}

void simcuda_remove(struct simcuda_object *object)
{
    struct simcuda_object **link = &simcuda.objects[object->kind];
    while (*link != object) {
        link = &(*link)->next;
    }
    *link = object->next;
}

bool simcuda_has(enum simcuda_kind kind, const void *handle)
{
    const struct simcuda_object *object = simcuda.objects[kind];
    while (object && object != handle) {
        object = object->next;
    }
    return object;
}

struct simcuda_launch_count *simcuda_count_get(const char *name)
{
    struct simcuda_launch_count *count = simcuda.launches;
    while (count && strcmp(count->name, name) != 0) {
        count = count->next;
    }
    if (!count) {
        size_t length = strlen(name) + 1;
        count = simnode_new(sizeof *count);
        count->name = simnode_new(length);
        memcpy(count->name, name, length);
        count->next = simcuda.launches;
        simcuda.launches = count;
    }
    return count;
}

static void report_kinds(FILE *file)
{
    static const struct {
        enum simcuda_kind kind;
        const char *name;
    } lines[] = {
        {SIMCUDA_HOST_MEMORY, "host_live"},  {SIMCUDA_IPC_MEMORY, "ipc_open"},    {SIMCUDA_STREAM, "streams_live"},
        {SIMCUDA_EVENT, "events_live"},      {SIMCUDA_GRAPH, "graphs_live"},      {SIMCUDA_EXEC, "graph_execs_live"},
        {SIMCUDA_USER, "user_objects_live"}, {SIMCUDA_LIBRARY, "libraries_live"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int live = 0;
        for (const struct simcuda_object *object = simcuda.objects[lines[i].kind]; object; object = object->next) {
            live++;
        }
        fprintf(file, "%s %d\n", lines[i].name, live);
    }
}

__attribute__((destructor)) static void report(void)
{
    const char *prefix = getenv("SIMNODE_REPORT");
    char path[4096];
    if (!prefix || prefix[0] == '\0' || (simcuda.owner != 0 && simcuda.owner != getpid())) {
        return; /* a forked child has no state of its own */
    }
    snprintf(path, sizeof path, "%s.%ld", prefix, (long)getpid());
    FILE *file = fopen(path, "ae");
    if (!file) {
        return;
    }
    pthread_mutex_lock(&simcuda.lock);
    fprintf(file, "context_created %lu\n", simcuda.contexts_created);
    fprintf(file, "mem_live_bytes %zu\nmem_peak_bytes %zu\n", simcuda.mem_live, simcuda.mem_peak);
    fprintf(file, "mem_allocs %lu\n", simcuda.mem_allocs);
    report_kinds(file);
    for (const struct simcuda_launch_count *count = simcuda.launches; count; count = count->next) {
        fprintf(file, "kernels_launched %s %lu\n", count->name, count->launches);
    }
    pthread_mutex_unlock(&simcuda.lock);
    fclose(file);
}
