/* SPDX-License-Identifier: MIT */
/*
 * live_reader.c - reads the live page of another process
 *
 * Does: Finds the memfd in /proc/PID/fd, copies its entries, and takes nothing in it for granted.
 * Threads: one.
 * Owns: the view, until oh_live_view_free.
 */
#include "tools/shared/live_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/tool.h"
#include "util/clock.h"

#define LINK_START "/memfd:" OH_LIVE_NAME " "
#define MOST_NS 300000000u /* for a page that is being changed; a writer that is not preempted needs a microsecond */

const char *oh_live_words(enum oh_live_answer answer)
{
    static const char *const words[] = {
        [OH_LIVE_SEEN] = "",
        [OH_LIVE_NONE] = "shows no communicator: it has made none with onehop in front of NCCL",
        [OH_LIVE_FORBIDDEN] = "may not be looked at: it belongs to another user",
        [OH_LIVE_GONE] = "is not there",
        [OH_LIVE_OTHER] = "has another version of onehop: use the command of that version",
        [OH_LIVE_DAMAGED] = "shows something that onehop did not make",
    };
    return words[answer];
}

/* --- a file ----------------------------------------------------------------------------------------------------- */

static bool read_at(int fd, size_t offset, void *memory_p, size_t size)
{
    return TEMP_FAILURE_RETRY(pread(fd, memory_p, size, (off_t)offset)) == (ssize_t)size;
}

static bool read_sequence(int fd, size_t entry, uint32_t *generation_p)
{
    return read_at(fd, entry + offsetof(struct oh_live_entry, sequence), generation_p, sizeof *generation_p);
}

/* One state of the facts: the same even sequence before and after. */
static bool read_entry(int fd, size_t offset, struct oh_live_entry *entry_p, bool *torn_p)
{
    uint32_t before, after;
    if (!read_sequence(fd, offset, &before) || !read_at(fd, offset, entry_p, sizeof *entry_p) ||
        !read_sequence(fd, offset, &after)) {
        return false;
    }
    *torn_p = before != after || before % 2 != 0;
    return true;
}

static bool read_entries(int fd, uint32_t top, struct oh_live_view *view)
{
    for (uint32_t i = 0; i < top; i++) {
        struct oh_live_entry entry;
        bool torn;
        if (!read_entry(fd, offsetof(struct oh_live, entry) + i * sizeof entry, &entry, &torn)) {
            return false;
        }
        view->torn += torn;
        if (!torn && entry.used) {
            struct oh_stats_record *record = &view->entry[view->entries++];
            *record = entry.facts;
            record->pid = (uint64_t)view->pid;
            oh_text_clean(record->reason, sizeof record->reason);
            oh_stats_copy(&entry.counters, record);
        }
    }
    return true;
}

/* Sets *torn_p if a communicator has ended meanwhile, whose counters would be in both sums, or in neither. */
static bool read_once(int fd, uint32_t top, struct oh_live_view *view, bool *torn_p)
{
    struct oh_live_head before, after;
    view->entries = view->torn = 0;
    if (!read_at(fd, 0, &before, sizeof before) || !read_entries(fd, top, view) ||
        !read_at(fd, 0, &after, sizeof after)) {
        return false;
    }
    view->ended = before.ended;
    oh_stats_copy(&before.ended_totals, &view->ended_totals);
    *torn_p = before.sequence != after.sequence || before.sequence % 2 != 0 || view->torn > 0;
    return true;
}

/* One state of the page, unless it is being changed all the time. */
static bool read_page(int fd, uint32_t top, struct oh_live_view *view)
{
    const uint64_t start_ns = oh_now_ns();
    bool torn;
    while (read_once(fd, top, view, &torn)) {
        if (!torn || oh_now_ns() - start_ns > MOST_NS) {
            return true;
        }
        oh_sleep_ns(20000);
    }
    return false;
}

enum oh_live_answer oh_live_read_file(int fd, pid_t own_pid, struct oh_live_view *view_p)
{
    struct oh_live_head head;
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || !read_at(fd, 0, &head, sizeof head) ||
        memcmp(head.magic, OH_LIVE_MAGIC, sizeof head.magic) != 0) {
        return OH_LIVE_DAMAGED;
    }
    if (head.version != ONEHOP_VERSION_CODE || head.entry_bytes != sizeof(struct oh_live_entry) ||
        head.entries != OH_MAX_LIVE_ENTRIES) {
        return OH_LIVE_OTHER;
    }
    if (status.st_size != (off_t)sizeof(struct oh_live) || head.top > OH_MAX_LIVE_ENTRIES) {
        return OH_LIVE_DAMAGED;
    }
    if (head.pid != (int32_t)own_pid) {
        return OH_LIVE_NONE; /* a fork of the process that made it */
    }
    struct oh_live_view view = {.pid = view_p->pid};
    memcpy(view.command, view_p->command, sizeof view.command);
    view.entry = oh_tool_allocate(head.top * sizeof *view.entry);
    if (!read_page(fd, head.top, &view)) {
        free(view.entry);
        return OH_LIVE_DAMAGED;
    }
    *view_p = view;
    return OH_LIVE_SEEN;
}

void oh_live_view_free(struct oh_live_view *view)
{
    free(view->entry);
    view->entry = NULL;
}

/* --- a process -------------------------------------------------------------------------------------------------- */

/* Reads the beginning of a file of the process; empty: there is none. */
static void read_proc(pid_t pid, const char *name, char *text_p, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text_p, 1, size - 1, file) : 0;
    text_p[length] = '\0';
    if (file) {
        fclose(file);
    }
}

void oh_live_read_command(pid_t pid, char *command_p, size_t size)
{
    read_proc(pid, "comm", command_p, size);
    command_p[strcspn(command_p, "\n")] = '\0';
    oh_text_clean(command_p, size);
}

/* What the process itself takes for its id: the last number of NSpid, which is another one in a container. */
static pid_t own_pid_of(pid_t pid)
{
    char status[16384];
    read_proc(pid, "status", status, sizeof status);
    char *line = strstr(status, "\nNSpid:");
    if (!line) {
        return pid;
    }
    line[1 + strcspn(line + 1, "\n")] = '\0';
    return (pid_t)strtol(strrchr(line, '\t'), NULL, 10);
}

/*
 * Opens a file that another process has open. It is looked at before it is opened for reading: what the link says
 * could be the name of a pipe or a device as well.
 */
static int open_page(int folder, const char *name)
{
    char path[64];
    struct stat status;
    int fd = -1, look = openat(folder, name, O_PATH | O_CLOEXEC);
    if (look >= 0 && fstat(look, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 077) == 0) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", look);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    }
    if (look >= 0) {
        close(look);
    }
    return fd;
}

static enum oh_live_answer search(DIR *folder, pid_t own_pid, struct oh_live_view *view_p)
{
    enum oh_live_answer answer = OH_LIVE_NONE;
    const struct dirent *entry;
    while (answer != OH_LIVE_SEEN && (entry = readdir(folder))) {
        char link[sizeof LINK_START];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link);
        if (length < (ssize_t)strlen(LINK_START) || memcmp(link, LINK_START, strlen(LINK_START)) != 0) {
            continue;
        }
        int fd = open_page(dirfd(folder), entry->d_name);
        if (fd >= 0) {
            enum oh_live_answer got = oh_live_read_file(fd, own_pid, view_p);
            answer = got == OH_LIVE_NONE ? answer : got;
            close(fd);
        }
    }
    return answer;
}

enum oh_live_answer oh_live_read(pid_t pid, struct oh_live_view *view_p)
{
    char path[64];
    struct oh_live_view view = {.pid = pid};
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    if (!folder) {
        return errno == EACCES || errno == EPERM ? OH_LIVE_FORBIDDEN : OH_LIVE_GONE;
    }
    oh_live_read_command(pid, view.command, sizeof view.command);
    enum oh_live_answer answer = search(folder, own_pid_of(pid), &view);
    closedir(folder);
    if (answer == OH_LIVE_SEEN) {
        *view_p = view;
    }
    return answer;
}
