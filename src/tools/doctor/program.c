/* SPDX-License-Identifier: MIT */
/*
 * doctor/program.c - whether onehop serves the calls of a program that the doctor runs
 *
 * Does: runs the program under onehop, counts its calls as `onehop run --stats` does, and looks for libraries with an
 *    all-reduce of their own in its processes meanwhile.
 * Threads: one.
 * Owns: the file of the program's statistics, until the program has ended.
 */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/doctor/doctor.h"
#include "tools/shared/supervise.h"

/* Tells by its environment whether the program has started a process: our file of statistics is there. */
static bool is_of_program(const char *environment, const char *statistics)
{
    char *text = NULL;
    size_t room = 0;
    bool found = false;
    FILE *file = fopen(environment, "re");
    while (file && !found && getdelim(&text, &room, '\0', file) > 0) {
        found = strncmp(text, "ONEHOP_STATS_FILE=", 18) == 0 && strcmp(text + 18, statistics) == 0;
    }
    free(text);
    if (file) {
        fclose(file);
    }
    return found;
}

/* Notes a process of the program that has an all-reduce of its own; the first one will do. */
static void note_own_allreduce(void *user)
{
    struct oh_doctor_report *report = user;
    glob_t found;
    if (report->findings > 0 || glob("/proc/[1-9]*/environ", 0, NULL, &found) != 0) {
        return;
    }
    for (size_t i = 0; i < found.gl_pathc && report->findings == 0; i++) {
        const char *path = found.gl_pathv[i];
        if (is_of_program(path, report->summary.path)) {
            oh_doctor_note_own_allreduce((pid_t)strtol(path + strlen("/proc/"), NULL, 10), report);
        }
    }
    globfree(&found);
}

/* Why no call was served, though some communicators were seen. */
static void explain_none(struct oh_doctor_report *report)
{
    const struct oh_stats_summary *summary = &report->summary;
    const char *reason = json_object_iter_key(json_object_iter(summary->reasons));
    if (summary->total.fallbacks[OH_FALLBACK_COMM] > 0 && reason && reason[0]) {
        oh_doctor_decide(report, OH_ANSWER_NO, reason);
        return;
    }
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        if (summary->total.fallbacks[b] > 0) {
            oh_doctor_decide(report, OH_ANSWER_NO, oh_fallback_text(b));
            return;
        }
    }
    if (summary->unreached > 0) {
        oh_doctor_decide(report, OH_ANSWER_NO, "no collective call came to onehop: " OH_UNREACHED_REASON);
    } else {
        oh_doctor_decide(
            report, OH_ANSWER_UNKNOWN,
            "the program made no call of a collective that onehop serves; for programs with their own all-reduce see "
            "doc/integrations.md");
    }
}

static void judge_program(struct oh_doctor_report *report)
{
    if (report->status == OH_SUPERVISE_NOT_STARTED) {
        oh_doctor_decide(report, OH_ANSWER_UNKNOWN, "the program could not be started");
    } else if (oh_stats_served(&report->summary.total) > 0) {
        oh_doctor_decide(report, OH_ANSWER_YES, "onehop served calls");
    } else if (report->summary.records > 0) {
        explain_none(report);
    } else {
        oh_doctor_decide(report, OH_ANSWER_UNKNOWN,
                         "no process with onehop and NCCL has ended orderly; check a rank by `onehop doctor --pid N`, "
                         "and doc/troubleshooting.md for programs that keep onehop out");
    }
}

void oh_doctor_program(char **argv, enum oh_via via, struct oh_doctor_report *report)
{
    report->mode = "program";
    oh_tool_reach(via);
    oh_stats_summary_open(&report->summary);
    /* stdout is the report's: the program writes to stderr instead. */
    int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    report->status = oh_supervise(argv, note_own_allreduce, report);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        close(out);
    }
    oh_stats_summary_read(&report->summary);
    if (report->status != OH_SUPERVISE_NOT_STARTED) {
        bool killed = WIFSIGNALED(report->status);
        snprintf(report->subject, sizeof report->subject, "the program ended %s %d",
                 killed ? "by signal" : "with exit status",
                 killed ? WTERMSIG(report->status) : WEXITSTATUS(report->status));
    }
    judge_program(report);
}

json_t *oh_doctor_program_json(const struct oh_doctor_report *report)
{
    const struct oh_stats_summary *summary = &report->summary;
    bool started = report->status != OH_SUPERVISE_NOT_STARTED;
    bool ended = started && WIFEXITED(report->status), killed = started && WIFSIGNALED(report->status);
    json_t *fallback = json_object(), *reasons = json_array(), *calls;
    const char *reason;
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        json_object_set_new(fallback, oh_fallback_name(b), json_integer((json_int_t)summary->total.fallbacks[b]));
    }
    json_object_foreach(summary->reasons, reason, calls)
    {
        json_array_append_new(reasons, json_pack("{s:s,s:O}", "text", reason, "calls", calls));
    }
    return json_pack("{s:b,s:o,s:o,s:I,s:I,s:o,s:o,s:I}", "started", started, "exit_status",
                     ended ? json_integer(WEXITSTATUS(report->status)) : json_null(), "signal",
                     killed ? json_integer(WTERMSIG(report->status)) : json_null(), "served",
                     (json_int_t)oh_stats_served(&summary->total), "bytes", (json_int_t)summary->total.bytes,
                     "fallback", fallback, "reasons", reasons, "processes_unreached", (json_int_t)summary->unreached);
}
