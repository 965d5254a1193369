/* SPDX-License-Identifier: MIT */
/*
 * live.c - the live page of this process
 *
 * Does: Creates the memfd with the first communicator, and gives each communicator an entry.
 * Threads: any; `mutex` guards the page and its entries, counters apart.
 * Owns: the page, for the life of the process.
 */
#include "comm/stats/record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/log.h"
#include "util/reserve.h"
#include "util/scope.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct oh_live_head local_head; /* where there is no page */
static struct oh_live *page;           /* this and what follows is guarded by mutex */
static struct oh_live_head *head = &local_head;
static bool tried;
/* Entries of communicators that are not freed. Not `used`, which is what readers see, and ends before. */
static bool taken[OH_MAX_LIVE_ENTRIES];

/* Returns false, with errno set, where the page cannot be had. */
static bool reserve(int fd)
{
    const int error = oh_file_reserve(fd, sizeof(struct oh_live));
    errno = error;
    return error == 0;
}

/* The descriptor stays open for readers, and is used no more here: the application may close it. */
static struct oh_live *make_page(void)
{
    int fd = memfd_create(OH_LIVE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        OH_INFO("no page for onehop stat: memfd_create: %m");
        return NULL;
    }
    void *memory = MAP_FAILED;
    if (fchmod(fd, 0600) == 0 && reserve(fd) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        memory = mmap(NULL, sizeof(struct oh_live), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
        OH_INFO("no page for onehop stat: %m");
        close(fd);
        return NULL;
    }
    struct oh_live *made = memory;
    made->head.version = ONEHOP_VERSION_CODE;
    made->head.entry_bytes = sizeof(struct oh_live_entry);
    made->head.entries = OH_MAX_LIVE_ENTRIES;
    made->head.pid = (int32_t)getpid();
    memcpy(made->head.magic, OH_LIVE_MAGIC, sizeof made->head.magic); /* last: without it there is no page */
    return made;
}

static struct oh_live_entry *free_entry(void)
{
    for (uint32_t i = 0; i < OH_MAX_LIVE_ENTRIES; i++) {
        if (!taken[i]) {
            return &page->entry[i];
        }
    }
    return NULL;
}

/* With the mutex held; the fences pair with the reader's system calls, which see memory in order. */
static void change(struct oh_live_entry *entry, const struct oh_stats_record *facts, bool used)
{
    atomic_fetch_add_explicit(&entry->sequence, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    entry->facts = *facts;
    atomic_store_explicit(&entry->used, used, memory_order_relaxed);
    atomic_fetch_add_explicit(&entry->sequence, 1, memory_order_release);
}

void oh_live_add(struct oh_live_ref *ref, uint64_t comm)
{
    OH_KEEP_ERRNO();
    OH_LOCK(&mutex);
    if (!tried) {
        tried = true;
        page = make_page();
        head = page ? &page->head : head;
    }
    struct oh_live_entry *entry = page ? free_entry() : NULL;
    if (entry) {
        uint32_t number = (uint32_t)(entry - page->entry);
        taken[number] = true;
        memset(&entry->counters, 0, sizeof entry->counters);
        change(entry, &(struct oh_stats_record){.comm = comm}, true);
        if (atomic_load_explicit(&head->top, memory_order_relaxed) <= number) {
            atomic_store_explicit(&head->top, number + 1, memory_order_release);
        }
    }
    ref->entry = entry;
    ref->taken = entry;
}

void oh_live_update(struct oh_live_ref *ref, const struct oh_stats_record *record)
{
    OH_LOCK(&mutex);
    if (ref->entry && OH_IS_LOCKED()) {
        change(ref->entry, record, true);
    }
}

static void add_counters(struct oh_counters *sum, const struct oh_counters *more)
{
    for (int i = 0; i < OH_COUNTS; i++) {
        oh_counter_add(&sum->counts[i], atomic_load_explicit(&more->counts[i], memory_order_relaxed));
    }
}

void oh_live_remove(struct oh_live_ref *ref)
{
    OH_LOCK(&mutex);
    struct oh_live_entry *entry = ref->entry;
    atomic_fetch_add_explicit(&head->sequence, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* as in change() */
    add_counters(&head->ended_totals, oh_live_counters(ref));
    atomic_fetch_add_explicit(&head->ended, 1, memory_order_relaxed);
    if (entry) {
        add_counters(&ref->counters, &entry->counters);
        ref->entry = NULL;
        change(entry, &(struct oh_stats_record){0}, false);
    }
    atomic_fetch_add_explicit(&head->sequence, 1, memory_order_release);
}

void oh_live_free(struct oh_live_ref *ref)
{
    if (ref->taken) {
        OH_LOCK(&mutex);
        taken[ref->taken - page->entry] = false;
        ref->taken = NULL;
    }
}

uint64_t oh_live_ended_totals(struct oh_stats_record *sum_p)
{
    OH_LOCK(&mutex);
    *sum_p = (struct oh_stats_record){0};
    oh_stats_copy(&head->ended_totals, sum_p);
    return atomic_load_explicit(&head->ended, memory_order_relaxed);
}
