/* SPDX-License-Identifier: MIT */
/*
 * cuda_object.c - the simulated driver's lists of living objects, and the report made of them at exit
 */
#include "test/simnode/cuda_internal.h"

#include <unistd.h>

/* Who is woken under the lock gets it soon: the mutex spins a little. */
struct simcuda_state simcuda = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, .progress = PTHREAD_COND_INITIALIZER};

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

static void report_kinds(FILE *file)
{
    static const struct {
        enum simcuda_kind kind;
        const char *name;
    } lines[] = {
        {SIMCUDA_HOST_MEMORY, "host_live"},  {SIMCUDA_IPC_MEMORY, "ipc_open"}, {SIMCUDA_STREAM, "streams_live"},
        {SIMCUDA_EVENT, "events_live"},      {SIMCUDA_GRAPH, "graphs_live"},   {SIMCUDA_EXEC, "graph_execs_live"},
        {SIMCUDA_USER, "user_objects_live"},
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
    bool is_forked = simcuda.owner != 0 && simcuda.owner != getpid(); /* and has no state of its own */
    FILE *file = is_forked ? NULL : simnode_report_open();
    if (!file) {
        return;
    }
    pthread_mutex_lock(&simcuda.lock);
    size_t live_bytes = 0;
    for (int i = 0; i < simcuda.devices; i++) {
        live_bytes += simcuda.context[i].live_bytes;
    }
    fprintf(file, "mem_live_bytes %zu\nkernels_launched %lu\n", live_bytes, simcuda.kernels_launched);
    report_kinds(file);
    pthread_mutex_unlock(&simcuda.lock);
    fclose(file);
}
