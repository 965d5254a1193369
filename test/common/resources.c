/* SPDX-License-Identifier: MIT */
/* resources.c - see resources.h */
#include "test/common/resources.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTLE_SECONDS 5
#define POLL_MICROSECONDS 20000

static void *need(void *opened, const char *path)
{
    if (!opened) {
        printf("FAIL %s cannot be read\n", path);
        fflush(stdout);
        _exit(1);
    }
    return opened;
}

static long count_entries(const char *path, const char *prefix)
{
    long number = 0;
    struct dirent *entry;
    DIR *directory = need(opendir(path), path);
    while ((entry = readdir(directory))) {
        number += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(directory);
    return number;
}

#define LARGEST 3

struct mapping {
    char name[32];
    long kib;
};

/* Into a list with the largest first. */
static void insert(struct mapping largest[LARGEST], struct mapping mapping)
{
    for (int i = 0; i < LARGEST; i++) {
        if (mapping.kib > largest[i].kib) {
            struct mapping moved = largest[i];
            largest[i] = mapping;
            mapping = moved;
        }
    }
}

/* Anonymous memory in KiB, the number of mappings, and which of them hold most of it. */
static void read_memory(struct resources *resources)
{
    struct mapping largest[LARGEST] = {0}, mapping = {0};
    char line[1024], path[256];
    unsigned long start, end;
    int length = 0;
    FILE *file = need(fopen("/proc/self/smaps", "r"), "/proc/self/smaps");
    while (fgets(line, sizeof line, file)) {
        path[0] = '\0';
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %255[^\n]", &start, &end, path) >= 2) {
            const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
            snprintf(mapping.name, sizeof mapping.name, "%lx %.11s", start >> 20, *name ? name : "unnamed");
            resources->mappings++;
        } else if (sscanf(line, "Anonymous: %ld", &mapping.kib) == 1) {
            resources->host_kib += mapping.kib;
            insert(largest, mapping);
        }
    }
    fclose(file);
    for (int i = 0; i < LARGEST; i++) {
        length += snprintf(resources->largest + length, sizeof resources->largest - (size_t)length, "%s%s: %ld",
                           i == 0 ? "" : ", ", largest[i].name, largest[i].kib);
    }
}

struct resources resources_measure(struct cf_worker *worker)
{
    const char *folder = getenv("ONEHOP_SHM_DIR");
    struct resources now = {.gpu_kib = cf_gpu_kib(worker)};
    /*
     * What malloc keeps for later is not held by anyone. One thread at a time: the first call of a process in which
     * AddressSanitizer serves malloc initializes glibc's, and a second call beside it finds that half done (2.36).
     */
    static pthread_mutex_t trimming = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&trimming);
    malloc_trim(0);
    pthread_mutex_unlock(&trimming);
    now.descriptors = count_entries("/proc/self/fd", "");
    now.threads = count_entries("/proc/self/task", "");
    now.files = count_entries(folder ? folder : "/dev/shm", "onehop-");
    read_memory(&now);
    return now;
}

static bool have_grown(const struct resources_bounds *bounds, const struct resources *from, const struct resources *to)
{
    return to->host_kib > from->host_kib + bounds->host_kib || to->gpu_kib > from->gpu_kib + bounds->gpu_kib ||
           to->descriptors > from->descriptors + 2 + bounds->handles || to->threads > from->threads + bounds->handles ||
           to->mappings > from->mappings + 16 + bounds->handles || to->files > from->files;
}

void resources_describe(const struct resources *from, const struct resources *to, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "host %ld -> %ld KiB, GPU %ld -> %ld KiB, descriptors %ld -> %ld, threads %ld -> %ld, mappings %ld -> "
             "%ld, files %ld -> %ld",
             from->host_kib, to->host_kib, from->gpu_kib, to->gpu_kib, from->descriptors, to->descriptors,
             from->threads, to->threads, from->mappings, to->mappings, from->files, to->files);
}

struct resources resources_compare(struct cf_worker *worker, const struct resources_bounds *bounds,
                                   const struct resources *from)
{
    char text[CF_TEXT - 64];
    struct resources to = resources_measure(worker);
    long looks = SETTLE_SECONDS * 1000000L / POLL_MICROSECONDS;
    for (; have_grown(bounds, from, &to) && looks > 0; looks--) {
        usleep(POLL_MICROSECONDS);
        to = resources_measure(worker);
    }
    resources_describe(from, &to, text, sizeof text);
    cf_check(worker, !have_grown(bounds, from, &to), "it has grown: %s", text);
    return to;
}
