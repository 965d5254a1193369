/* SPDX-License-Identifier: MIT */
#include "comm/board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"
#include "util/log.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct oh_board *board;       /* these four are guarded by mutex */
static struct oh_board_head at_home; /* in its place where there is no board */
static bool tried;
static uint32_t hint; /* no row before it is free */

/* The memory is there before it is used: a page that cannot be had would end the process at the first store. */
static bool reserve(int fd)
{
    int error;
    do {
        error = posix_fallocate(fd, 0, sizeof(struct oh_board));
    } while (error == EINTR);
    errno = error;
    return error == 0;
}

/* The descriptor stays open for readers, and is used no more here: the application may close it. */
static struct oh_board *make_board(void)
{
    int fd = memfd_create(OH_BOARD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        OH_INFO("no board for onehop stat: memfd_create: %m");
        return NULL;
    }
    void *memory = MAP_FAILED;
    if (fchmod(fd, 0600) == 0 && ftruncate(fd, sizeof(struct oh_board)) == 0 && reserve(fd) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        memory = mmap(NULL, sizeof(struct oh_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
        OH_INFO("no board for onehop stat: %m");
        close(fd);
        return NULL;
    }
    struct oh_board *made = memory;
    made->head.version = ONEHOP_VERSION_CODE;
    made->head.row_bytes = sizeof(struct oh_board_row);
    made->head.rows = OH_BOARD_ROWS;
    made->head.pid = (int32_t)getpid();
    memcpy(made->head.magic, OH_BOARD_MAGIC, sizeof made->head.magic); /* last: without it there is no board */
    return made;
}

static struct oh_board_row *free_row(void)
{
    for (uint32_t i = hint; i < OH_BOARD_ROWS; i++) {
        if (!atomic_load_explicit(&board->row[i].used, memory_order_relaxed)) {
            hint = i + 1;
            return &board->row[i];
        }
    }
    hint = OH_BOARD_ROWS;
    return NULL;
}

/* Both with the mutex held; the fences pair with the reader's system calls, which see memory in order. */
static void begin_change(struct oh_board_row *row)
{
    atomic_fetch_add_explicit(&row->generation, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

static void end_change(struct oh_board_row *row)
{
    atomic_fetch_add_explicit(&row->generation, 1, memory_order_release);
}

void oh_board_enter(struct oh_comm *comm)
{
    int saved = errno;
    pthread_mutex_lock(&mutex);
    if (!tried) {
        tried = true;
        board = make_board();
    }
    struct oh_board_row *row = board ? free_row() : NULL;
    if (row) {
        uint32_t number = (uint32_t)(row - board->row);
        begin_change(row);
        row->facts = (struct oh_board_facts){.comm = comm->key.word[0]};
        memset(&row->counters, 0, sizeof row->counters);
        atomic_store_explicit(&row->used, 1, memory_order_relaxed);
        end_change(row);
        if (atomic_load_explicit(&board->head.top, memory_order_relaxed) <= number) {
            atomic_store_explicit(&board->head.top, number + 1, memory_order_release);
        }
    }
    comm->row = row;
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

void oh_board_show(struct oh_comm *comm)
{
    pthread_mutex_lock(&mutex);
    if (comm->row) {
        struct oh_stats_record record;
        oh_comm_facts(comm, &record);
        begin_change(comm->row);
        comm->row->facts = (struct oh_board_facts){
            .comm = record.comm,
            .memory = record.memory,
            .setup_us = record.setup_us,
            .rank = comm->rank,
            .nranks = comm->nranks,
            .state = (uint32_t)record.state,
        };
        memcpy(comm->row->facts.reason, record.reason, sizeof record.reason);
        end_change(comm->row);
    }
    pthread_mutex_unlock(&mutex);
}

static void add_counters(struct oh_counters *sum, const struct oh_counters *more)
{
    struct oh_stats_record record;
    oh_stats_copy(more, &record);
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        oh_count(&sum->calls[a], record.calls[a]);
    }
    for (int b = 0; b < OH_BACKS; b++) {
        oh_count(&sum->back[b], record.back[b]);
    }
    oh_count(&sum->bytes, record.bytes);
    oh_count(&sum->back_bytes, record.back_bytes);
}

void oh_board_leave(struct oh_comm *comm)
{
    pthread_mutex_lock(&mutex);
    struct oh_board_head *head = board ? &board->head : &at_home;
    struct oh_board_row *row = comm->row;
    add_counters(&head->gone, oh_comm_counters(comm));
    atomic_fetch_add_explicit(&head->ended, 1, memory_order_relaxed);
    if (row) {
        add_counters(&comm->counters, &row->counters);
        comm->row = NULL;
        begin_change(row);
        atomic_store_explicit(&row->used, 0, memory_order_relaxed);
        end_change(row);
        uint32_t number = (uint32_t)(row - board->row);
        hint = number < hint ? number : hint;
    }
    pthread_mutex_unlock(&mutex);
}

uint64_t oh_board_gone(struct oh_stats_record *sum_p)
{
    pthread_mutex_lock(&mutex);
    struct oh_board_head *head = board ? &board->head : &at_home;
    *sum_p = (struct oh_stats_record){0};
    oh_stats_copy(&head->gone, sum_p);
    uint64_t ended = atomic_load_explicit(&head->ended, memory_order_relaxed);
    pthread_mutex_unlock(&mutex);
    return ended;
}
