/* SPDX-License-Identifier: MIT */
#include "tools/board_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINK_START "/memfd:" OH_BOARD_NAME " "
#define LOOKS 50 /* at a row that is being changed; the writer needs a microsecond */

const char *oh_board_words(enum oh_board_answer answer)
{
    static const char *const words[] = {
        [OH_BOARD_SEEN] = "",
        [OH_BOARD_NONE] = "shows no communicator: it has made none with onehop in front of NCCL",
        [OH_BOARD_FORBIDDEN] = "may not be looked at: it belongs to another user",
        [OH_BOARD_GONE] = "is not there",
        [OH_BOARD_OTHER] = "has another version of onehop: use the command of that version",
        [OH_BOARD_DAMAGED] = "shows something that onehop did not make",
    };
    return words[answer];
}

/* --- a file ----------------------------------------------------------------------------------------------------- */

static bool read_at(int fd, size_t offset, void *memory_p, size_t size)
{
    ssize_t got;
    do {
        got = pread(fd, memory_p, size, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
}

static bool read_generation(int fd, size_t row, uint32_t *generation_p)
{
    return read_at(fd, row + offsetof(struct oh_board_row, generation), generation_p, sizeof *generation_p);
}

/* One state of the facts: the same even generation before and after. */
static bool read_row(int fd, size_t offset, struct oh_board_row *row_p, bool *torn_p)
{
    const struct timespec moment = {0, 20000};
    *torn_p = false;
    for (int look = 0; look < LOOKS; look++) {
        uint32_t before, after;
        if (!read_generation(fd, offset, &before) || !read_at(fd, offset, row_p, sizeof *row_p) ||
            !read_generation(fd, offset, &after)) {
            return false;
        }
        if (before == after && before % 2 == 0) {
            return true;
        }
        nanosleep(&moment, NULL);
    }
    *torn_p = true;
    return true;
}

static void take_facts(const struct oh_board_facts *facts, struct oh_stats_record *record_p)
{
    record_p->comm = facts->comm;
    record_p->rank = facts->rank;
    record_p->nranks = facts->nranks;
    record_p->state = facts->state;
    record_p->memory = facts->memory;
    record_p->setup_us = facts->setup_us;
    memcpy(record_p->reason, facts->reason, sizeof record_p->reason);
    oh_stats_clean(record_p->reason, sizeof record_p->reason);
}

static bool read_rows(int fd, uint32_t top, struct oh_board_view *view)
{
    for (uint32_t i = 0; i < top; i++) {
        struct oh_board_row row;
        bool torn;
        if (!read_row(fd, offsetof(struct oh_board, row) + i * sizeof row, &row, &torn)) {
            return false;
        }
        view->torn += torn;
        if (!torn && row.used) {
            struct oh_stats_record *record = &view->row[view->rows++];
            *record = (struct oh_stats_record){.pid = (uint64_t)view->pid};
            take_facts(&row.facts, record);
            oh_stats_copy(&row.counters, record);
        }
    }
    return true;
}

enum oh_board_answer oh_board_read_file(int fd, pid_t own_pid, struct oh_board_view *view_p)
{
    struct oh_board_head head;
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || !read_at(fd, 0, &head, sizeof head) ||
        memcmp(head.magic, OH_BOARD_MAGIC, sizeof head.magic) != 0) {
        return OH_BOARD_DAMAGED;
    }
    if (head.version != ONEHOP_VERSION_CODE || head.row_bytes != sizeof(struct oh_board_row) ||
        head.rows != OH_BOARD_ROWS) {
        return OH_BOARD_OTHER;
    }
    if (status.st_size != (off_t)sizeof(struct oh_board) || head.top > OH_BOARD_ROWS) {
        return OH_BOARD_DAMAGED;
    }
    if (head.pid != (int32_t)own_pid) {
        return OH_BOARD_NONE; /* a fork of the process that made it */
    }
    struct oh_board_view view = {.pid = view_p->pid, .ended = head.ended};
    memcpy(view.command, view_p->command, sizeof view.command);
    oh_stats_copy(&head.gone, &view.gone);
    view.row = calloc(head.top > 0 ? head.top : 1, sizeof *view.row);
    if (!view.row || !read_rows(fd, head.top, &view)) {
        free(view.row);
        return OH_BOARD_DAMAGED;
    }
    *view_p = view;
    return OH_BOARD_SEEN;
}

void oh_board_view_free(struct oh_board_view *view)
{
    free(view->row);
    view->row = NULL;
}

/* --- a process -------------------------------------------------------------------------------------------------- */

static void read_command(pid_t pid, char *command_p, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    command_p[0] = '\0';
    if (file) {
        if (!fgets(command_p, (int)size, file)) {
            command_p[0] = '\0';
        }
        fclose(file);
    }
    command_p[strcspn(command_p, "\n")] = '\0';
    oh_stats_clean(command_p, size);
}

/* What the process itself takes for its id: the last number of NSpid, which is another one in a container. */
static pid_t own_pid_of(pid_t pid)
{
    char path[64], line[256];
    long own = pid;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:", 6) == 0) {
            char *last = strrchr(line, '\t');
            own = last ? strtol(last, NULL, 10) : own;
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return (pid_t)own;
}

/*
 * Opens a file that another process has open. It is looked at before it is opened for reading: what the link says
 * could be the name of a pipe or a device as well.
 */
static int open_board(int folder, const char *name)
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

static enum oh_board_answer search(DIR *folder, pid_t own_pid, struct oh_board_view *view_p)
{
    enum oh_board_answer answer = OH_BOARD_NONE;
    const struct dirent *entry;
    while (answer != OH_BOARD_SEEN && (entry = readdir(folder))) {
        char link[sizeof LINK_START];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link);
        if (length < (ssize_t)strlen(LINK_START) || memcmp(link, LINK_START, strlen(LINK_START)) != 0) {
            continue;
        }
        int fd = open_board(dirfd(folder), entry->d_name);
        if (fd >= 0) {
            enum oh_board_answer got = oh_board_read_file(fd, own_pid, view_p);
            answer = got == OH_BOARD_NONE ? answer : got;
            close(fd);
        }
    }
    return answer;
}

enum oh_board_answer oh_board_read(pid_t pid, struct oh_board_view *view_p)
{
    char path[64];
    struct oh_board_view view = {.pid = pid};
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    if (!folder) {
        return errno == EACCES || errno == EPERM ? OH_BOARD_FORBIDDEN : OH_BOARD_GONE;
    }
    read_command(pid, view.command, sizeof view.command);
    enum oh_board_answer answer = search(folder, own_pid_of(pid), &view);
    closedir(folder);
    if (answer == OH_BOARD_SEEN) {
        *view_p = view;
    }
    return answer;
}
