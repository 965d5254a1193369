/* SPDX-License-Identifier: MIT */
/*
 * doctor.c - `onehop doctor`: whether onehop is in effect, and if not, why
 *
 * Does: reads the command line, collects findings, prints the report, and turns the verdict into the exit status.
 * Threads: one.
 * Owns: nothing.
 */
#include "config.h"

#include "tools/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/options.h"

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

void oh_doctor_decide(struct oh_doctor_report *report, enum oh_answer answer, const char *reason)
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
                oh_doctor_decide(report, order[o], report->finding[i].text);
                return;
            }
        }
    }
    oh_doctor_decide(report, OH_ANSWER_YES, yes);
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
        json_object_set_new(object, "program", oh_doctor_program_json(report));
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
        oh_doctor_program(argv + first, via < 0 ? OH_VIA_PRELOAD : (enum oh_via)via, &report);
    } else {
        oh_doctor_machine(&report);
    }
    (json ? print_json : print_report)(&report);
    oh_tool_finish_stdout();
    return statuses[report.answer];
}
