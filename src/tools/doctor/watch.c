/* SPDX-License-Identifier: MIT */
/*
 * doctor/watch.c - looks at all processes of a program while it runs
 *
 * /proc is looked through again and again, often at first; a process is read anew when what it has mapped has changed.
 * A process that lives for a few milliseconds may be missed; what its communicators did comes by the statistics.
 */
#include "tools/doctor/doctor.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/shared/supervise.h"
#include "tools/shared/tool.h"

struct member {
    pid_t pid;
    pid_t parent;
};

struct watch {
    struct oh_program_report report;
    struct timespec began;
};

static bool read_parent(pid_t pid, pid_t *parent_p)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[length > 0 ? length : 0] = '\0';
    const char *behind = strrchr(text, ')'); /* a name may have anything in it */
    int parent;
    if (!behind || sscanf(behind + 1, " %*c %d", &parent) != 1) {
        return false;
    }
    *parent_p = parent;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    const struct member *first = a, *second = b;
    return (first->pid > second->pid) - (first->pid < second->pid);
}

/* All processes of the system, in the order of their ids. */
static struct member *list_processes(size_t *count_p)
{
    struct member *member = NULL;
    size_t count = 0;
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        struct member next = {.pid = (pid_t)strtol(entry->d_name, NULL, 10)};
        if (!isdigit((unsigned char)entry->d_name[0]) || !read_parent(next.pid, &next.parent)) {
            continue;
        }
        struct member *larger = realloc(member, (count + 1) * sizeof *larger);
        if (!larger) {
            break;
        }
        member = larger;
        member[count++] = next;
    }
    if (proc) {
        closedir(proc);
    }
    if (count > 0) {
        qsort(member, count, sizeof *member, by_pid);
    }
    *count_p = count;
    return member;
}

/* Does it descend from this process? The list is no snapshot, so a chain may be broken; it is bounded by its length. */
static bool is_ours(const struct member *member, size_t count, struct member of)
{
    for (size_t steps = 0; steps < count && of.parent > 0; steps++) {
        if (of.parent == getpid()) {
            return true;
        }
        const struct member *parent =
            bsearch(&(struct member){.pid = of.parent}, member, count, sizeof *member, by_pid);
        if (!parent) {
            return false;
        }
        of = *parent;
    }
    return false;
}

static struct oh_process_report *find_report(struct oh_program_report *program, pid_t pid)
{
    for (size_t i = 0; i < program->processes; i++) {
        if (program->process[i].pid == pid) {
            return &program->process[i];
        }
    }
    return NULL;
}

/* Reads a process, unless nothing has changed. A process that is ending loses what it had: that is not taken. */
static void look_at(struct oh_program_report *program, pid_t pid)
{
    char unused[OH_DOCTOR_TEXT];
    struct oh_process_report report, *before = find_report(program, pid);
    if (before && before->fingerprint == oh_doctor_process_fingerprint(pid)) {
        return;
    }
    if (!oh_doctor_process_read(pid, &report, unused, sizeof unused)) {
        return;
    }
    if (before && before->has_nccl && !report.has_nccl) {
        oh_doctor_process_free(&report);
        return;
    }
    if (before) {
        oh_doctor_process_free(before);
        *before = report;
        return;
    }
    struct oh_process_report *larger = realloc(program->process, (program->processes + 1) * sizeof *larger);
    if (!larger) {
        oh_doctor_process_free(&report);
        return;
    }
    program->process = larger;
    program->process[program->processes++] = report;
}

static int tick(pid_t pid, void *user)
{
    struct watch *watch = user;
    size_t count;
    struct member *member = list_processes(&count);
    (void)pid;
    for (size_t i = 0; i < count; i++) {
        if (is_ours(member, count, member[i])) {
            look_at(&watch->report, member[i].pid);
        }
    }
    free(member);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long age = (long)(now.tv_sec - watch->began.tv_sec); /* seconds */
    return age < 2 ? 10 : age < 20 ? 100 : 1000;
}

/* Keeps the processes that have to do with NCCL. */
static void drop_others(struct oh_program_report *program)
{
    size_t kept = 0;
    for (size_t i = 0; i < program->processes; i++) {
        if (program->process[i].has_nccl) {
            program->process[kept++] = program->process[i];
        } else {
            oh_doctor_process_free(&program->process[i]);
            program->others++;
        }
    }
    program->processes = kept;
}

bool oh_doctor_watch(char **argv, enum oh_via via, struct oh_program_report *report_p)
{
    struct watch watch = {.began = {0}};
    clock_gettime(CLOCK_MONOTONIC, &watch.began);
    if (!oh_tool_reach(via) || !oh_stats_summary_open(&watch.report.summary)) {
        return false;
    }
    /* stdout is the report's: what the program says goes where its errors go. */
    int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* processes whose parent has ended stay among ours */
    watch.report.status = oh_supervise(argv, tick, &watch);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        close(out);
    }
    oh_stats_summary_read(&watch.report.summary);
    oh_stats_summary_close(&watch.report.summary);
    drop_others(&watch.report);
    *report_p = watch.report;
    return true;
}

void oh_program_free(struct oh_program_report *report)
{
    for (size_t i = 0; i < report->processes; i++) {
        oh_doctor_process_free(&report->process[i]);
    }
    free(report->process);
}
