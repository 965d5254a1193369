/* SPDX-License-Identifier: MIT */
/*
 * t_segment.c - where ranks meet: what may stand under the name already, what is left by the killed, what a name tells
 *
 * Whatever lies there, opening must end soon, without harm to it, and either with a shared or with a refusal.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/shared/segment.h"
#include "kernels/abi.h"
#include "test/unit/unit.h"
#include "util/clock.h"
#include "util/process.h"

#define NOBODY 65534
#define SOON_NS (UINT64_C(10) * 1000 * 1000 * 1000) /* far below a lease's 45 seconds, far above a busy machine's */

static const char *folder;

static void skip(const char *name, const char *reason)
{
    tap_ok(true, "%s # SKIP %s", name, reason);
}

/* The path that a key's shared has. */
static const char *path_of(const struct oh_key *key)
{
    static char path[384];
    struct oh_segment segment;
    if (oh_segment_open_uncounted(&segment, key) != ncclSuccess) {
        return "";
    }
    snprintf(path, sizeof path, "%s", segment.path);
    oh_segment_discard(&segment);
    return path;
}

static int count_files(void)
{
    int count = 0;
    DIR *listing = opendir(folder);
    for (const struct dirent *entry; listing && (entry = readdir(listing));) {
        count += entry->d_name[0] != '.';
    }
    if (listing) {
        closedir(listing);
    }
    return count;
}

/* --- what stands there already ------------------------------------------------------------------------------------ */

/* A function that puts something at the path; true: it is there. */
#define PUT(name_, done_)                                                                                              \
    static bool name_(const char *path)                                                                                \
    {                                                                                                                  \
        return done_;                                                                                                  \
    }
PUT(put_nothing, unlink(path) != 0)
PUT(put_folder, mkdir(path, 0700) == 0)
PUT(put_fifo, mkfifo(path, 0600) == 0)
PUT(put_link, symlink("/etc/passwd", path) == 0)
PUT(put_dangling_link, symlink("made-through-a-link", path) == 0)

static bool put_file(const char *path, mode_t mode, off_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool done = fd >= 0 && fchmod(fd, mode) == 0 && ftruncate(fd, size) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

/* Another file of the user's, which must not be written to. */
static bool put_hard_link(const char *path)
{
    char other[512];
    snprintf(other, sizeof other, "%s/precious", folder);
    return put_file(other, 0600, 0) && link(other, path) == 0;
}

PUT(put_other_users, put_file(path, 0666, sizeof(struct oh_shared)) && chown(path, NOBODY, NOBODY) == 0)

/* Whoever has a file of the right kind may hold up those who open it, by a lease, or a lock. */
static bool put_leased(const char *path)
{
    int fd = put_file(path, 0600, 0) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    signal(SIGIO, SIG_IGN);
    return fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0; /* stays open */
}

static bool put_locked(const char *path)
{
    int fd = put_file(path, 0600, 0) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    return fd >= 0 && flock(fd, LOCK_EX) == 0; /* stays open */
}

static const struct {
    const char *name;
    bool (*put)(const char *path);
    bool enters;
    bool needs_root;
    mode_t mode; /* without `put`: a file of this mode and size */
    size_t size;
} obstacles[] = {
    {"nothing", .put = put_nothing, .enters = true},
    {"a folder", .put = put_folder},
    {"a FIFO", .put = put_fifo},
    {"a symbolic link", .put = put_link},
    {"a symbolic link to nothing", .put = put_dangling_link},
    {"a file that others may read", .mode = 0644},
    {"a file that is too short", .mode = 0600, .size = 100},
    {"a file that is too long", .mode = 0600, .size = sizeof(struct oh_shared) + 1},
    {"a file that has another name as well", .put = put_hard_link},
    {"another user's file", .put = put_other_users, .needs_root = true},
    {"a file under a lease", .put = put_leased},
    {"a file that is locked for good", .put = put_locked},
};

static void test_obstacles(void)
{
    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++) {
        struct oh_key key = oh_key_random();
        struct oh_segment segment = {0};
        struct stat before = {0}, after = {0};
        const char *path = path_of(&key);
        if (obstacles[i].needs_root && geteuid() != 0) {
            skip(obstacles[i].name, "not root");
            continue;
        }
        if (!(obstacles[i].put ? obstacles[i].put(path)
                               : put_file(path, obstacles[i].mode, (off_t)obstacles[i].size))) {
            skip(obstacles[i].name, strerror(errno));
            continue;
        }
        lstat(path, &before);
        uint64_t start = oh_now_ns();
        bool entered = oh_segment_open(&segment, &key) == ncclSuccess;
        bool soon = oh_now_ns() - start < SOON_NS;
        lstat(path, &after);
        bool right = entered ? (after.st_mode & 0777) == 0600 /* for its user only */
                             : !segment.shared && before.st_ino == after.st_ino && before.st_size == after.st_size;
        tap_ok(entered == obstacles[i].enters && soon && right, "%s in the place: %s, at once, left as it was",
               obstacles[i].name, entered ? "entered" : "not entered");
        oh_segment_discard(&segment);
        remove(path);
    }
    char target[512];
    snprintf(target, sizeof target, "%s/made-through-a-link", folder);
    tap_ok(access(target, F_OK) != 0, "nothing is made through a link");
    snprintf(target, sizeof target, "%s/precious", folder);
    unlink(target);
    struct oh_segment segment = {0};
    const struct oh_key key = oh_key_random();
    setenv("ONEHOP_SHM_DIR", "/dev/null/onehop", 1); /* below what is no folder */
    tap_ok(oh_segment_open(&segment, &key) != ncclSuccess && !segment.shared, "no place to meet");
    setenv("ONEHOP_SHM_DIR", folder, 1);
}

/* --- what the killed leave ---------------------------------------------------------------------------------------- */

static struct oh_key child_key;

/* A rank that is gone, as if by SIGKILL, after it has been counted. */
static int die_there(void)
{
    struct oh_segment segment;
    return oh_segment_open(&segment, &child_key) == ncclSuccess ? 0 : 1;
}

/* The next process of the user: a program's first shared takes away what is left. */
static int meet_elsewhere(void)
{
    setenv("T_SEGMENT_VISIT", "1", 1);
    execl("/proc/self/exe", "t_segment", (char *)NULL);
    return 2;
}

static void visit_as_told(void)
{
    struct oh_segment segment;
    struct oh_key key = oh_key_random();
    bool met = oh_segment_open(&segment, &key) == ncclSuccess;
    oh_segment_discard(&segment);
    exit(met ? 0 : 1);
}

/* Slots of other sizes may fill as much memory: such builds would write to each other's wrong places. */
static void test_layout(void)
{
    struct oh_key key = oh_key_random();
    char slots[96];
    snprintf(slots, sizeof slots, "-%x-%x-%x-", OH_SECTION_WORDS(2), OH_SECTION_WORDS(7), OH_WORDS_OFFSET);
    tap_ok(strstr(path_of(&key), slots) != NULL, "builds with other slots in staging memory do not meet");
}

static void test_leftovers(void)
{
    struct oh_segment segment;
    struct oh_key key = oh_key_random();
    char other[512];
    oh_segment_open(&segment, &key);
    snprintf(other, sizeof other, "%s/onehop-of-another-version", folder);
    put_file(other, 0600, sizeof(struct oh_shared));
    child_key = oh_key_random();
    tap_ok(unit_child(die_there) == 0 && count_files() == 3, "a rank that is killed in the shared leaves the file");
    tap_ok(unit_child(meet_elsewhere) == 0 && count_files() == 2 && access(segment.path, F_OK) == 0 &&
               access(other, F_OK) == 0,
           "the next process removes it, and leaves alone what is in use or not known");
    unlink(other);

    /* Its name goes while others hold it, and comes again: whoever is late must not take the new one away. */
    struct oh_segment late, next;
    oh_segment_open(&late, &key);
    oh_segment_unlink(&segment);
    bool made = oh_segment_open(&next, &key) == ncclSuccess && atomic_load(&next.shared->present) == 1;
    oh_segment_unlink(&late);
    tap_ok(made && access(next.path, F_OK) == 0, "a rank that is late does not remove the next shared of that name");
    oh_segment_discard(&segment);
    oh_segment_discard(&late);
    oh_segment_discard(&next);
    tap_ok(count_files() == 0, "nothing is left");
}

/* Makers and sweepers at once: a name is taken away under its maker, who notices. */
static int sweep_again_and_again(void)
{
    for (int i = 0; i < 20; i++) {
        if (unit_child(meet_elsewhere) != 0) {
            return 1;
        }
    }
    return 0;
}

static void test_sweepers_and_makers(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(sweep_again_and_again());
    }
    int alone = 0, rounds = 0, status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        struct oh_segment first, second;
        struct oh_key key = oh_key_random();
        bool both = oh_segment_open(&first, &key) == ncclSuccess && oh_segment_open(&second, &key) == ncclSuccess;
        alone += !both || atomic_load(&second.shared->present) != 2;
        oh_segment_discard(&first);
        oh_segment_discard(&second);
        rounds++;
    }
    tap_ok(alone == 0 && rounds > 0 && status == 0, "%d segments made while others swept: everyone met (%d did not)",
           rounds, alone);
}

/* --- what a name tells -------------------------------------------------------------------------------------------- */

static void test_names(void)
{
    /* By `openssl mac -macopt size:16 SipHash`: key and message are bytes 0, 1, 2 and so on. */
    static const struct {
        size_t words;
        struct oh_key hash;
    } known[] = {{0, {{0xe6a825ba047f81a3, 0x930255c71472f66d}}},  {1, {{0x61f55862baa9623b, 0xb49714f364e2830f}}},
                 {2, {{0xbb54b067caa4e26e, 0x77052385bf1533fd}}},  {3, {{0xd850bd78ae79b42d, 0xad32618a178a2a88}}},
                 {16, {{0x3d08550239bdb4d1, 0x66f07a6e3d48beda}}}, {32, {{0x464c83d30403a067, 0xcb9a575f7beeea12}}}};
    const struct oh_key secret = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    uint8_t bytes[256];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct oh_key found = oh_key_hash(&secret, bytes, known[i].words);
        tap_ok(oh_key_compare(&found, &known[i].hash) == 0, "SipHash-2-4-128 of %zu words", known[i].words);
    }

    struct oh_key key = oh_key_random();
    struct oh_key name = oh_key_name(&key), child = oh_key_of_split(&key, 0, 0), fake = oh_key_of_split(&name, 0, 0);
    char text[64];
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)key.word[0], (unsigned long long)key.word[1]);
    tap_ok(!strstr(path_of(&key), text) && oh_key_compare(&key, &name) != 0, "a file's name does not show the key");
    tap_ok(oh_key_compare(&child, &fake) != 0, "and does not lead to the keys of a communicator's children");
}

/* --- peers that have ended ---------------------------------------------------------------------------------------- */

/* Fills rank 1's slot as a child that runs would. */
static pid_t put_peer(struct oh_shared *shared)
{
    const pid_t child = unit_idle_child();
    oh_peer_info_identify(&shared->peer_info[1]);
    shared->peer_info[1].pid = (int32_t)child;
    shared->peer_info[1].start_time = oh_process_start_time((int32_t)child);
    shared->peer_info[1].process++; /* another process than this one */
    atomic_store(&shared->peer_info[1].ready, 1);
    return child;
}

/* A peer that was killed has nothing open any more, whether its parent has waited for it or not. */
static void test_ended_peer(void)
{
    static struct oh_shared shared;
    struct oh_segment segment = {.shared = &shared};
    struct oh_peer_info *slot = &shared.peer_info[1];
    pid_t child = put_peer(&shared);
    tap_ok(!oh_segment_is_unreferenced(&segment, 0, 2) && oh_peer_info_is_visible(slot),
           "a peer that runs has its memory open");
    slot->start_time++;
    tap_ok(oh_segment_is_unreferenced(&segment, 0, 2) && oh_peer_info_is_visible(slot),
           "another process of its number has not");
    slot->start_time--;
    slot->pid_namespace++;
    tap_ok(!oh_segment_is_unreferenced(&segment, 0, 2) && !oh_peer_info_is_visible(slot),
           "nothing is known of a process in another PID namespace");
    slot->pid_namespace--;
    unit_kill(child);
    tap_ok(oh_segment_is_unreferenced(&segment, 0, 2) && oh_segment_has_dead_rank(&segment, 0, 2) &&
               oh_peer_info_is_visible(slot),
           "a peer that was killed has ended before its parent has waited for it");
    waitpid(child, NULL, 0);
}

static int meet_with_small_files(void)
{
    struct rlimit limit = {4096, 4096};
    struct oh_segment segment;
    const struct oh_key key = oh_key_random();
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 && oh_segment_open(&segment, &key) != ncclSuccess ? 0 : 1;
}

static void test_file_size_limit(void)
{
    tap_ok(unit_child(meet_with_small_files) == 0 && count_files() == 0,
           "a limit on the size of files: refused, without a signal, nothing left");
}

int main(void)
{
    setenv("ONEHOP_DEBUG", "NONE", 1);
    if (getenv("T_SEGMENT_VISIT")) {
        visit_as_told();
    }
    folder = unit_folder();
    test_obstacles();
    test_layout();
    test_leftovers();
    test_sweepers_and_makers();
    test_names();
    test_ended_peer();
    test_file_size_limit();
    rmdir(folder);
    return tap_done();
}
