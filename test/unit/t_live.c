/* SPDX-License-Identifier: MIT */
/*
 * t_live.c - what a process shows: rows are given and taken back, counts outlive their row, no sum goes back while
 * communicators end; and what the reader makes of a page that somebody has tampered with
 */
#include "comm/stats/record.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/comm_internal.h"
#include "test/unit/unit.h"
#include "tools/shared/live_reader.h"

#define MANY (OH_MAX_LIVE_ENTRIES + 3)

static struct oh_comm comms[MANY];

/* What the last look has seen. */
static struct oh_live_view view;

static bool look(void)
{
    oh_live_view_free(&view);
    return oh_live_read(getpid(), &view) == OH_LIVE_SEEN;
}

static enum oh_live_answer look_at_file(int fd)
{
    oh_live_view_free(&view);
    view = (struct oh_live_view){.pid = 1};
    return oh_live_read_file(fd, getpid(), &view);
}

static int add_with_small_files(void)
{
    const struct rlimit limit = {4096, 4096};
    struct oh_live_ref ref = {.entry = NULL};
    setrlimit(RLIMIT_FSIZE, &limit);
    oh_live_add(&ref, 1);
    return ref.entry != NULL;
}

/* In a child, which has no page yet. */
static void test_file_size_limit(void)
{
    const int status = unit_child(add_with_small_files);
    tap_ok(status == 0, "a limit on the size of files: no page, and no signal: wait status %d", status);
}

static void test_life(void)
{
    struct oh_stats_record gone;
    tap_ok(oh_live_read(getpid(), &view) == OH_LIVE_NONE, "no page before the first communicator");
    for (int i = 0; i < 3; i++) {
        comms[i].id.key.word[0] = (uint64_t)i + 100;
        comms[i].id.rank = (uint32_t)i;
        comms[i].id.nranks = 8;
        oh_live_add(&comms[i].live, comms[i].id.key.word[0]);
        oh_comm_publish_facts(&comms[i]);
        oh_counter_add(&oh_comm_counters(&comms[i])->calls[1], 10);
        oh_counter_add(&oh_comm_counters(&comms[i])->bytes, 1000);
    }
    tap_ok(look() && view.entries == 3 && view.ended == 0 && view.torn == 0, "three communicators");
    tap_ok(view.entries == 3 && view.entry[1].comm == 101 && view.entry[1].rank == 1 && view.entry[1].nranks == 8 &&
               view.entry[1].state == OH_STATE_IDLE && view.entry[1].calls[1] == 10 && view.entry[1].bytes == 1000 &&
               view.entry[1].pid == (uint64_t)getpid() && view.entry[1].reason[0],
           "a row has what the communicator has");

    atomic_store(&comms[1].state, OH_COMM_FALLBACK);
    snprintf(comms[1].attach.reason, sizeof comms[1].attach.reason, "a reason\twith\033[2J");
    oh_comm_publish_facts(&comms[1]);
    tap_ok(look() && view.entry[1].state == OH_STATE_FALLBACK && strcmp(view.entry[1].reason, "a reason?with?[2J") == 0,
           "how it stands now, in printable text");

    oh_live_remove(&comms[1].live);
    tap_ok(comms[1].live.entry == NULL && atomic_load(&comms[1].live.counters.calls[1]) == 10,
           "it takes its counts along");
    tap_ok(look() && view.entries == 2 && view.ended == 1 && view.ended_totals.calls[1] == 10 &&
               view.ended_totals.bytes == 1000,
           "and the sum of those that have ended has them");
    tap_ok(oh_live_ended_totals(&gone) == 1 && gone.bytes == 1000, "inside the process too");
    struct oh_live_entry *left = comms[2].live.entry - 1;
    oh_live_add(&comms[3].live, comms[3].id.key.word[0]);
    tap_ok(comms[3].live.entry == left + 2, "a row is not used again while a call may count there");
    oh_live_remove(&comms[3].live);
    oh_live_free(&comms[3].live);
    oh_live_free(&comms[1].live);
    memset(&comms[1].live.counters, 0, sizeof comms[1].live.counters);
    oh_live_add(&comms[1].live, comms[1].id.key.word[0]);
    tap_ok(comms[1].live.entry == left && atomic_load(&left->counters.calls[1]) == 0, "a row is used again, from zero");
}

/* --- communicators that come and go while they are read ----------------------------------------------------------- */

static atomic_uint_fast64_t counted;
static atomic_bool enough;

static void *come_and_go(void *argument)
{
    struct oh_comm *comm = argument;
    comm->id.nccl = argument;
    while (!atomic_load(&enough)) {
        memset(&comm->live.counters, 0, sizeof comm->live.counters);
        oh_live_add(&comm->live, comm->id.key.word[0]);
        oh_registry_add(comm);
        oh_comm_publish_facts(comm);
        for (int i = 0; i < 2000; i++) {
            oh_counter_add(&oh_comm_counters(comm)->collectives[0], 1);
            atomic_fetch_add(&counted, 1);
        }
        oh_registry_remove(comm);
        oh_comm_release(comm);
        oh_registry_free_slot(comm); /* as oh_comm_free does */
        oh_live_free(&comm->live);
    }
    return NULL;
}

static uint64_t sum_of_page(void)
{
    if (!look() || view.torn > 0) {
        return UINT64_MAX;
    }
    uint64_t sum = view.ended_totals.collectives[0];
    for (size_t i = 0; i < view.entries; i++) {
        sum += view.entry[i].collectives[0];
    }
    return sum;
}

static uint64_t sum_inside(void)
{
    onehop_process_info_t info;
    oh_comms_describe(&info);
    return info.calls_by_collective[0];
}

/* A counter may be one ahead of what is counted here. */
static void test_changes(uint64_t (*sum)(void), const char *where)
{
    const uint64_t before = sum();
    pthread_t thread;
    int low = 0, high = 0;
    atomic_store(&counted, before);
    atomic_store(&enough, false);
    pthread_create(&thread, NULL, come_and_go, &comms[3]);
    for (int i = 0; i < 5000; i++) {
        const uint64_t least = atomic_load(&counted), seen = sum(), most = atomic_load(&counted) + 1;
        low += seen < least;
        high += seen > most;
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    tap_ok(low == 0 && high == 0, "%s: communicators end meanwhile: %d sums have too few calls, %d too many", where,
           low, high);
    tap_ok(sum() == atomic_load(&counted), "%s: in the end there are all", where);
}

static void test_full(void)
{
    for (int i = 3; i < MANY; i++) {
        oh_live_add(&comms[i].live, comms[i].id.key.word[0]);
    }
    tap_ok(comms[OH_MAX_LIVE_ENTRIES - 1].live.entry && !comms[OH_MAX_LIVE_ENTRIES].live.entry &&
               !comms[MANY - 1].live.entry,
           "more communicators than rows: the last have none");
    oh_counter_add(&oh_comm_counters(&comms[MANY - 1])->calls[0], 5);
    tap_ok(atomic_load(&comms[MANY - 1].live.counters.calls[0]) == 5, "and count for themselves");
    tap_ok(look() && view.entries == OH_MAX_LIVE_ENTRIES, "%d rows are read", OH_MAX_LIVE_ENTRIES);
    oh_live_remove(&comms[MANY - 1].live);
    for (int i = 3; i < OH_MAX_LIVE_ENTRIES; i++) {
        oh_live_remove(&comms[i].live);
    }
    tap_ok(look() && view.entries == 3 && view.ended_totals.calls[0] == 5, "their counts are not lost");
}

/* A copy of a good page, to be spoiled. Returns its descriptor. */
static int copy_page(struct oh_live **page_p)
{
    int fd = memfd_create("copy", MFD_CLOEXEC);
    struct oh_live *page = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *page) == 0) {
        page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (page == MAP_FAILED) {
        exit(1);
    }
    memcpy(&page->head, (char *)comms[0].live.entry - offsetof(struct oh_live, entry), sizeof page->head);
    memcpy(page->entry, comms[0].live.entry, 3 * sizeof page->entry[0]);
    *page_p = page;
    return fd;
}

static void expect(int fd, enum oh_live_answer wanted, const char *what)
{
    enum oh_live_answer got = look_at_file(fd);
    tap_ok(got == wanted, "%s: %s", what, oh_live_words(got));
}

/* The same while a field of the page has another value. */
#define EXPECT_SPOILED(field_, value_, wanted_, what_)                                                                 \
    do {                                                                                                               \
        const __typeof__(field_) good_ = field_;                                                                       \
        field_ = value_;                                                                                               \
        expect(fd, wanted_, what_);                                                                                    \
        field_ = good_;                                                                                                \
    } while (0)

static void test_tampering(void)
{
    struct oh_live *page;
    int fd = copy_page(&page);
    expect(fd, OH_LIVE_SEEN, "a copy is as good");
    EXPECT_SPOILED(page->head.pid, page->head.pid + 1, OH_LIVE_NONE, "another process's");
    EXPECT_SPOILED(page->head.version, page->head.version + 1, OH_LIVE_OTHER, "another version");
    EXPECT_SPOILED(page->head.entry_bytes, 8, OH_LIVE_OTHER, "rows of another size");
    EXPECT_SPOILED(page->head.entries, UINT32_MAX, OH_LIVE_OTHER, "another number of rows");
    EXPECT_SPOILED(page->head.top, UINT32_MAX, OH_LIVE_DAMAGED, "more rows used than there are");
    page->entry[1].sequence = 7;
    tap_ok(look_at_file(fd) == OH_LIVE_SEEN && view.torn == 1 && view.entries == 2,
           "a row that is being changed for ever is left out");
    memset(page->entry, 0xfe, 3 * sizeof page->entry[0]);
    tap_ok(look_at_file(fd) == OH_LIVE_SEEN && view.entries == 3 && oh_state_key(view.entry[0].state) == NULL &&
               strlen(view.entry[0].reason) == OH_REASON_BYTES - 1 && view.entry[0].reason[0] == '?',
           "rubbish in rows is read as numbers and question marks");
    EXPECT_SPOILED(page->head.magic[0], 'O', OH_LIVE_DAMAGED, "another magic");
    munmap(page, sizeof *page);
    tap_ok(ftruncate(fd, sizeof *page - 1) == 0 && look_at_file(fd) == OH_LIVE_DAMAGED, "cut short by a byte");
    tap_ok(ftruncate(fd, 5) == 0 && look_at_file(fd) == OH_LIVE_DAMAGED, "cut to five bytes");
    close(fd);
    int ends[2];
    tap_ok(pipe(ends) == 0 && look_at_file(ends[0]) == OH_LIVE_DAMAGED, "a pipe: not waited for");
}

int main(void)
{
    test_file_size_limit();
    test_life();
    test_changes(sum_of_page, "on the page");
    test_changes(sum_inside, "inside the process");
    test_full();
    test_tampering();
    return tap_done();
}
