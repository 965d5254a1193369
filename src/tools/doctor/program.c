/* SPDX-License-Identifier: MIT */
/*
 * doctor/program.c - runs a program under onehop, and whether calls were served
 *
 * Does: counts calls as `onehop run --stats` does.
 * Threads: one.
 * Owns: the file of the statistics, until the program has ended.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/doctor/doctor.h"
#include "tools/shared/supervise.h"

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
        oh_doctor_decide(report, OH_ANSWER_NO, "no ncclAllReduce call came to onehop: " OH_UNREACHED_REASON);
    } else {
        oh_doctor_decide(report, OH_ANSWER_UNKNOWN,
                         "the program made no ncclAllReduce call; for programs with their own all-reduce see "
                         "doc/integrations.md");
    }
}

static void judge(struct oh_doctor_report *report)
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
    report->status = oh_supervise(argv);
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
    judge(report);
}
