/* SPDX-License-Identifier: MIT */
/*
 * doctor.c - `onehop doctor`: whether onehop is in effect, and if not, why
 *
 * Does: reads the command line, collects findings, prints the report, and turns the verdict into the exit status. Runs
 *    a program under onehop.
 * Threads: one.
 * Owns: the file of a program's statistics, until the program has ended.
 */
#include "config.h"

#include "tools/doctor/doctor.h"

#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/shared/options.h"
#include "tools/shared/supervise.h"

#define SCHEMA 2

static const char help[] = "usage: onehop doctor [--json] [--simulated]\n"
                           "       onehop doctor [--json] --pid N\n"
                           "       onehop doctor [--json] [--via preload|plugin|audit] [--] PROGRAM [ARGS]\n"
                           "\n"
                           "Without arguments: does onehop serve on this machine, and if not, why not?\n"
                           "With --pid: does onehop serve the calls of process N?\n"
                           "With a program: runs it under onehop to its end and reports whether its calls\n"
                           "were served. The program's stdout goes to stderr.\n"
                           "\n"
                           "  --pid N      check process N\n"
                           "  --via WAY    how onehop is loaded into the program; as for onehop run\n"
                           "  --json       print JSON (the fields: doc/tools.md)\n"
                           "  --simulated  use the simulated node of the build tree; needs no GPU\n"
                           "  -h, --help   this text\n"
                           "\n"
                           "Exit status: 0 yes, 1 no, 2 unknown or wrong usage.\n"
                           "\n"
                           "Example: onehop doctor -- torchrun --nproc-per-node=4 train.py\n";

void oh_doctor_add(struct oh_doctor_report *report, const char *name, enum oh_answer answer, const char *format, ...)
{
    va_list args;
    if (report->findings >= (answer == OH_ANSWER_NOTE ? OH_DOCTOR_NOTES : OH_DOCTOR_FINDINGS)) {
        return;
    }
    struct oh_finding *finding = &report->finding[report->findings++];
    finding->name = name;
    finding->answer = answer;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    oh_text_clean(finding->text, sizeof finding->text); /* paths and variables are another process's choice */
}

static void decide(struct oh_doctor_report *report, enum oh_answer answer, const char *reason)
{
    report->answer = answer;
    snprintf(report->reason, sizeof report->reason, "%s", reason);
    oh_text_clean(report->reason, sizeof report->reason);
}

void oh_doctor_judge(struct oh_doctor_report *report, const char *yes)
{
    static const enum oh_answer order[] = {OH_ANSWER_NO, OH_ANSWER_UNKNOWN};
    for (size_t o = 0; o < sizeof order / sizeof *order; o++) {
        for (int i = 0; i < report->findings; i++) {
            if (report->finding[i].answer == order[o]) {
                decide(report, order[o], report->finding[i].text);
                return;
            }
        }
    }
    decide(report, OH_ANSWER_YES, yes);
}

/* --- a program */

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
        decide(report, OH_ANSWER_NO, reason);
        return;
    }
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        if (summary->total.fallbacks[b] > 0) {
            decide(report, OH_ANSWER_NO, oh_fallback_text(b));
            return;
        }
    }
    if (summary->unreached > 0) {
        decide(report, OH_ANSWER_NO, "no collective call came to onehop: " OH_UNREACHED_REASON);
    } else {
        decide(
            report, OH_ANSWER_UNKNOWN,
            "the program made no call of a collective that onehop serves; for programs with their own all-reduce see "
            "doc/integrations.md");
    }
}

static void judge_program(struct oh_doctor_report *report)
{
    if (report->status == OH_SUPERVISE_NOT_STARTED) {
        decide(report, OH_ANSWER_UNKNOWN, "the program could not be started");
    } else if (oh_stats_served(&report->summary.total) > 0) {
        decide(report, OH_ANSWER_YES, "onehop served calls");
    } else if (report->summary.records > 0) {
        explain_none(report);
    } else {
        decide(report, OH_ANSWER_UNKNOWN,
               "no process with onehop and NCCL has ended orderly; check a rank by `onehop doctor --pid N`, "
               "and doc/troubleshooting.md for programs that keep onehop out");
    }
}

/* Runs a program to its end, and counts its calls as `onehop run --stats` does. */
static void check_program(char **argv, enum oh_via via, struct oh_doctor_report *report)
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

/* --- the report: as text, and as JSON (the fields: doc/tools.md) */

static const char *const words[] = {"yes", "no", "unknown", "note"};

static void print_report(const struct oh_doctor_report *report)
{
    if (report->subject[0]) {
        printf("%s\n", report->subject);
    }
    if (report->summary.records > 0) {
        oh_stats_summary_print(&report->summary, stdout, "  ");
    }
    for (int i = 0; i < report->findings; i++) {
        const struct oh_finding *finding = &report->finding[i];
        printf("  %-8s%-15s%s\n", words[finding->answer], finding->name, finding->text);
    }
    printf("verdict: %s: %s\n", words[report->answer], report->reason);
}

static json_t *make_program(const struct oh_doctor_report *report)
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

static void print_json(const struct oh_doctor_report *report)
{
    json_t *findings = json_array();
    for (int i = 0; i < report->findings; i++) {
        const struct oh_finding *finding = &report->finding[i];
        json_array_append_new(findings, json_pack("{s:s,s:s,s:s}", "name", finding->name, "answer",
                                                  words[finding->answer], "text", finding->text));
    }
    json_t *object =
        json_pack("{s:i,s:s,s:s,s:s,s:s,s:o}", "schema", SCHEMA, "onehop", PACKAGE_VERSION, "mode", report->mode,
                  "answer", words[report->answer], "reason", report->reason, "findings", findings);
    if (strcmp(report->mode, "program") == 0) {
        json_object_set_new(object, "program", make_program(report));
    }
    oh_json_write(stdout, object);
}

int oh_tool_doctor(int argc, char **argv)
{
    static const int statuses[] = {OH_EXIT_OK, OH_EXIT_FAILED, OH_EXIT_USAGE};
    static struct oh_doctor_report report;
    pid_t pid = 0;
    int via = -1; /* not named: preload */
    bool json = false, simulated = false;
    const struct oh_option options[] = {{"pid", 0, oh_option_int, OH_RANGE(&pid, 1, INT_MAX)},
                                        {"via", 0, oh_option_word, OH_WORDS(&via, oh_via_names)},
                                        {"json", 0, NULL, &json},
                                        {"simulated", 0, NULL, &simulated},
                                        {NULL, 0, NULL, NULL}};
    int first = oh_options_read(argc, argv, help, options);
    if (pid && (first < argc || simulated)) {
        OH_TOOL_REFUSE("--pid %d: expected neither a program nor --simulated; see onehop doctor --help", (int)pid);
    }
    if (via >= 0 && first == argc) {
        OH_TOOL_REFUSE("--via %s: expected a program; see onehop doctor --help", oh_via_names[via]);
    }
    if (simulated) {
        oh_tool_simulate(argv);
    }
    if (pid) {
        oh_doctor_process(pid, &report);
    } else if (first < argc) {
        check_program(argv + first, via < 0 ? OH_VIA_PRELOAD : (enum oh_via)via, &report);
    } else {
        oh_doctor_machine(&report);
    }
    (json ? print_json : print_report)(&report);
    oh_tool_finish_stdout();
    return statuses[report.answer];
}
