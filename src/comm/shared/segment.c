/* SPDX-License-Identifier: MIT */
/*
 * segment.c - the shared memory of a communicator's ranks on one host
 *
 * Does: Opens and maps it, counts presence, holds votes and the decision.
 * Threads: one thread at a time per struct oh_segment; the memory is atomic.
 * Owns: the mapping and, until all ranks are counted, the file's name.
 */
#include "comm/shared/segment.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/env.h"
#include "util/log.h"
#include "util/process.h"

/* Part of the file's name, so that builds with different layouts never open one file. */
#define BUILD_FORMAT "%d-%zx-%x-%x-%x-%d"
#define BUILD_VALUES                                                                                                   \
    ONEHOP_VERSION_CODE, sizeof(struct oh_shared), OH_SECTION_WORDS(2), OH_SECTION_WORDS(7), OH_WORDS_OFFSET,          \
        ONEHOP_ALGORITHM_COUNT

#define OFF_COMPLETE (OH_DECISION_OFF + 1) /* in `decision`: off, and the reason is written */
#define POLL_MIN_NS 20000                  /* between polls of the segment */
#define POLL_MAX_NS 300000

static pthread_once_t swept = PTHREAD_ONCE_INIT;

static const char *folder(void)
{
    return oh_env_path(OH_ENV_SHM_DIR, "/dev/shm");
}

static void sweep(void)
{
    char prefix[128];
    snprintf(prefix, sizeof prefix, "onehop-" BUILD_FORMAT "-", BUILD_VALUES);
    oh_locked_files_sweep(folder(), prefix, sizeof(struct oh_shared));
}

ncclResult_t oh_segment_open_uncounted(struct oh_segment *segment, const struct oh_key *key)
{
    struct oh_key name = oh_key_name(key);
    int fd;
    segment->shared = NULL;
    pthread_once(&swept, sweep);
    snprintf(segment->path, sizeof segment->path, "%s/onehop-" BUILD_FORMAT "-%016" PRIx64 "%016" PRIx64, folder(),
             BUILD_VALUES, name.word[0], name.word[1]);
    OH_TRY(oh_locked_file_open(segment->path, sizeof(struct oh_shared), &fd));
    void *memory = mmap(NULL, sizeof(struct oh_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        OH_INFO("%s: mmap: %m", segment->path);
        oh_locked_file_remove(segment->path, fd); /* as all will fall back */
        return ncclSystemError;
    }
    segment->shared = memory;
    atomic_store(&segment->file, fd + 1);
    return ncclSuccess;
}

ncclResult_t oh_segment_open(struct oh_segment *segment, const struct oh_key *key)
{
    OH_TRY(oh_segment_open_uncounted(segment, key));
    atomic_fetch_add(&segment->shared->present, 1);
    return ncclSuccess;
}

/* The end of the process may run beside the background thread: only one of the two gets the descriptor. */
void oh_segment_unlink(struct oh_segment *segment)
{
    int file = atomic_exchange(&segment->file, 0);
    if (file) {
        oh_locked_file_remove(segment->path, file - 1);
    }
}

void oh_segment_discard(struct oh_segment *segment)
{
    oh_segment_unlink(segment);
    if (segment->shared) {
        munmap(segment->shared, sizeof *segment->shared);
        segment->shared = NULL;
    }
}

void oh_segment_vote_no(struct oh_segment *segment, const char *reason)
{
    struct oh_shared *shared = segment->shared;
    uint32_t pending = OH_DECISION_PENDING;
    if (shared && atomic_compare_exchange_strong(&shared->decision, &pending, OH_DECISION_OFF)) {
        snprintf(shared->reason, sizeof shared->reason, "%s", reason);
        atomic_store(&shared->decision, OFF_COMPLETE);
    }
}

void oh_segment_vote_yes(struct oh_segment *segment, uint32_t nranks)
{
    struct oh_shared *shared = segment->shared;
    uint32_t pending = OH_DECISION_PENDING;
    if (atomic_fetch_add(&shared->yes, 1) + 1 == nranks) {
        atomic_compare_exchange_strong(&shared->decision, &pending, OH_DECISION_ON);
    }
}

enum oh_decision oh_segment_decision(const struct oh_segment *segment)
{
    const uint32_t decision = atomic_load(&segment->shared->decision);
    return decision < OH_DECISION_OFF ? (enum oh_decision)decision : OH_DECISION_OFF;
}

void oh_segment_set_peers_closed(struct oh_segment *segment, uint32_t rank)
{
    if (segment->shared) {
        atomic_store(&segment->shared->peer_info[rank].peers_closed, 1);
    }
}

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static uint64_t process_token;
static uint64_t process_pid_namespace;

static void identify_process(void)
{
    struct stat status;
    process_token = oh_key_random().word[0];
    char self[16] = "";
    /* In the /proc of another PID namespace these numbers mean other processes. */
    bool own = readlink("/proc/self", self, sizeof self - 1) > 0 && strtol(self, NULL, 10) == (long)getpid();
    process_pid_namespace = own && stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

void oh_peer_info_identify(struct oh_peer_info *info)
{
    pthread_once(&process_once, identify_process);
    info->pid = (int32_t)getpid();
    info->start_time = oh_process_start_time(info->pid);
    info->pid_namespace = process_pid_namespace;
    info->process = process_token;
    atomic_store(&info->identified, 1);
}

bool oh_peer_info_is_own(const struct oh_peer_info *info)
{
    pthread_once(&process_once, identify_process);
    return info->process == process_token;
}

/* True when the pid means the same process here. */
static bool has_pid(const struct oh_peer_info *info)
{
    pthread_once(&process_once, identify_process);
    return info->pid > 0 && info->pid_namespace != 0 && info->pid_namespace == process_pid_namespace;
}

/* Reads the start time first: a process that ends between the two calls still had one. */
bool oh_peer_info_is_visible(const struct oh_peer_info *info)
{
    return has_pid(info) && info->start_time != 0 &&
           (oh_process_start_time(info->pid) != 0 || oh_process_has_ended(info->pid, info->start_time));
}

static bool is_dead(const struct oh_peer_info *info)
{
    return has_pid(info) && oh_process_has_ended(info->pid, info->start_time);
}

/*
 * A rank publishes its peer info before it opens anything, and opens nothing once the decision is off: a rank that is
 * not ready by then never has anything open.
 */
static bool has_nothing_open(const struct oh_segment *segment, uint32_t rank)
{
    const struct oh_peer_info *info = &segment->shared->peer_info[rank];
    return atomic_load(&info->ready) ? atomic_load(&info->peers_closed) || is_dead(info)
                                     : oh_segment_decision(segment) == OH_DECISION_OFF;
}

bool oh_segment_is_unreferenced(const struct oh_segment *segment, uint32_t rank, uint32_t nranks)
{
    for (uint32_t r = 0; segment->shared && r < nranks; r++) {
        if (r != rank && !has_nothing_open(segment, r)) {
            return false;
        }
    }
    return true;
}

bool oh_segment_has_dead_rank(const struct oh_segment *segment, uint32_t rank, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++) {
        if (r != rank && atomic_load(&segment->shared->peer_info[r].identified) &&
            is_dead(&segment->shared->peer_info[r])) {
            return true;
        }
    }
    return false;
}

void oh_segment_pause(uint64_t waited_ns)
{
    const uint64_t part = waited_ns / 16;
    oh_sleep_ns(part < POLL_MIN_NS ? POLL_MIN_NS : part < POLL_MAX_NS ? part : POLL_MAX_NS);
}

void oh_segment_reason(const struct oh_segment *segment, char *reason_p)
{
    const struct oh_shared *shared = segment->shared;
    const uint64_t until_ns = oh_now_ns() + UINT64_C(100000000);
    while (atomic_load(&shared->decision) == OH_DECISION_OFF && oh_now_ns() < until_ns) {
        oh_segment_pause(0);
    }
    memcpy(reason_p, shared->reason, OH_REASON_BYTES);
    oh_text_clean(reason_p, OH_REASON_BYTES); /* peers may write there at any time */
}
