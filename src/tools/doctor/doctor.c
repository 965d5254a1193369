/* SPDX-License-Identifier: MIT */
/*
 * doctor.c - `onehop doctor`: whether onehop is in effect, and if not, why
 *
 * Does: reads the command line, collects findings, and turns the verdict into the exit status.
 * Threads: one.
 * Owns: nothing.
 */
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/shared/options.h"

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
    if (report->findings == OH_DOCTOR_FINDINGS) {
        return;
    }
    struct oh_finding *finding = &report->finding[report->findings++];
    finding->name = name;
    finding->answer = answer;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    oh_stats_clean(finding->text, sizeof finding->text); /* paths and variables are another process's choice */
}

void oh_doctor_decide(struct oh_doctor_report *report, enum oh_answer answer, const char *reason)
{
    report->answer = answer;
    snprintf(report->reason, sizeof report->reason, "%s", reason);
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

static int finish(const struct oh_doctor_report *report, bool json)
{
    static const int statuses[] = {OH_EXIT_OK, OH_EXIT_FAILED, OH_EXIT_USAGE};
    if (!json) {
        oh_doctor_print(report);
    } else if (!oh_doctor_print_json(report) && !ferror(stdout)) {
        oh_tool_error("doctor: out of memory");
        return OH_EXIT_USAGE;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        oh_tool_error("doctor: stdout: %s", strerror(errno));
        return OH_EXIT_USAGE;
    }
    return statuses[report->answer];
}

int oh_tool_doctor(int argc, char **argv)
{
    pid_t pid = 0;
    enum oh_via via = OH_VIA_PRELOAD;
    bool json = false, simulated = false;
    const struct oh_option options[] = {{"pid", 0, oh_option_pid, &pid},
                                        {"via", 0, oh_option_via, &via},
                                        {"json", 0, NULL, &json},
                                        {"simulated", 0, NULL, &simulated},
                                        {NULL, 0, NULL, NULL}};
    static struct oh_doctor_report report;
    int status, first = oh_options_read(argc, argv, help, options, &status);
    if (first < 0) {
        return status;
    }
    if (pid && (first < argc || simulated)) {
        oh_tool_error("doctor: --pid %d: expected neither a program nor --simulated; see onehop doctor --help",
                      (int)pid);
        return OH_EXIT_USAGE;
    }
    if (simulated) {
        status = oh_tool_simulate("doctor", argv - 1); /* this subcommand's argv is main's from the second word on */
        if (status != OH_EXIT_OK) {
            return status;
        }
    }
    if (first == argc && !pid) {
        oh_doctor_machine(&report);
    } else if (!(pid ? oh_doctor_process(pid, &report) : oh_doctor_program(argv + first, via, &report))) {
        return OH_EXIT_USAGE;
    }
    return finish(&report, json);
}
