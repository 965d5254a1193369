/* SPDX-License-Identifier: MIT */
/*
 * doctor.c - `onehop doctor`: is it in effect, and if not, why?
 */
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/options.h"
#include "tools/shared/supervise.h"
#include "tools/shared/tool.h"

static const char help[] = "usage: onehop doctor [--json]\n"
                           "       onehop doctor [--json] --pid N\n"
                           "       onehop doctor [--json] [--via preload|plugin|audit] [--] PROGRAM [ARGS]\n"
                           "\n"
                           "Without arguments: would onehop serve on this machine, and if not, why not?\n"
                           "With --pid: which NCCL does process N have, and do its calls reach onehop?\n"
                           "With a program: runs it under onehop to its end, looks at all its processes, and\n"
                           "says what was served. What the program writes to stdout goes to stderr.\n"
                           "\n"
                           "  --pid N     look at process N\n"
                           "  --via WAY   how onehop comes into the program; as for onehop run\n"
                           "  --json      the findings as JSON (the fields: doc/tools.md)\n"
                           "  -h, --help  this text\n"
                           "\n"
                           "Exit status: 0 yes (would be served; reaches onehop; was served), 1 no, 2 wrong\n"
                           "usage or it cannot be told.\n"
                           "\n"
                           "Example: onehop doctor -- torchrun --nproc-per-node=4 train.py\n";

static void decide(struct oh_doctor_report *report, enum oh_answer answer, const char *reason)
{
    report->answer = answer;
    snprintf(report->reason, sizeof report->reason, "%s", reason);
}

static int finish(const struct oh_doctor_report *report, bool json)
{
    static const int statuses[] = {OH_EXIT_OK, OH_EXIT_FAILED, OH_EXIT_USAGE};
    if (json) {
        if (!oh_doctor_print_json(report) && !ferror(stdout)) {
            oh_tool_error("doctor: out of memory");
            return OH_EXIT_USAGE;
        }
    } else {
        oh_doctor_print(report);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        oh_tool_error("doctor: stdout: %s", strerror(errno));
        return OH_EXIT_USAGE;
    }
    return statuses[report->answer];
}

/* --- the machine */

/* A definite no decides; else what cannot be told. */
static void judge_machine(const struct oh_machine_report *machine, struct oh_doctor_report *report)
{
    static const enum oh_answer order[] = {OH_ANSWER_NO, OH_ANSWER_UNKNOWN};
    for (size_t o = 0; o < sizeof order / sizeof *order; o++) {
        for (int i = 0; i < machine->checks; i++) {
            if (machine->check[i].answer == order[o]) {
                decide(report, order[o], machine->check[i].text);
                return;
            }
        }
    }
    decide(report, OH_ANSWER_YES, "onehop serves on this machine");
}

static int doctor_machine(bool json)
{
    struct oh_machine_report machine;
    struct oh_doctor_report report = {.mode = "machine", .machine = &machine};
    oh_doctor_machine(&machine);
    judge_machine(&machine, &report);
    return finish(&report, json);
}

/* --- a process */

static int doctor_process(pid_t pid, bool json)
{
    char reason[OH_DOCTOR_TEXT];
    struct oh_process_report process;
    struct oh_doctor_report report = {.mode = "process", .process = &process, .processes = 1};
    if (!oh_doctor_process_read(pid, &process, reason, sizeof reason)) {
        oh_tool_error("doctor: %s", reason);
        return OH_EXIT_USAGE;
    }
    decide(&report, process.answer, process.reason);
    int status = finish(&report, json);
    oh_doctor_process_free(&process);
    return status;
}

/* --- a program */

/* The file that the shell would run; NULL when there is none. */
static char *find_program(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = strdup(path ? path : "/bin:/usr/bin"), *rest = copy, *folder, *found = NULL;
    if (strchr(name, '/')) {
        free(copy);
        return strdup(name);
    }
    while (copy && !found && (folder = strsep(&rest, ":"))) {
        if (asprintf(&found, "%s/%s", folder[0] ? folder : ".", name) < 0) {
            found = NULL;
        } else if (access(found, X_OK) != 0) {
            free(found);
            found = NULL;
        }
    }
    free(copy);
    return found;
}

/* What the file alone tells: why onehop cannot get into it. False when it tells nothing. */
static bool file_forbids(const char *name, char *reason_p, size_t size)
{
    struct oh_elf_file elf;
    struct stat status;
    char *path = find_program(name);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    bool forbids = false;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        enum oh_elf_file_status got = oh_elf_file_read(fd, &elf);
        if (got == OH_ELF_OK && elf.hides_call && !elf.needs_nccl) {
            snprintf(reason_p, size, "NCCL is statically linked, its calls cannot be reached: %.300s", path);
            forbids = true;
        } else if (got == OH_ELF_FOREIGN || got == OH_ELF_DAMAGED) {
            snprintf(reason_p, size, "%.300s %s", path, oh_elf_file_complaint(got));
            forbids = true;
        } else if (got == OH_ELF_OK && (status.st_mode & (S_ISUID | S_ISGID))) {
            snprintf(reason_p, size, "%.300s is a set-user-ID program: the dynamic linker keeps onehop out", path);
            forbids = true;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    return forbids;
}

static const struct oh_process_report *first_process(const struct oh_program_report *program, enum oh_answer answer)
{
    for (size_t i = 0; i < program->processes; i++) {
        if (program->process[i].answer == answer) {
            return &program->process[i];
        }
    }
    return NULL;
}

/* Why no call at all was served, though some were seen. */
static void explain_none(const struct oh_stats_summary *summary, struct oh_doctor_report *report)
{
    if (summary->fallbacks[OH_FALLBACK_COMM] > 0 && summary->reasons > 0 && summary->reason[0].text[0]) {
        decide(report, OH_ANSWER_NO, summary->reason[0].text);
        return;
    }
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        if (summary->fallbacks[b] > 0) {
            decide(report, OH_ANSWER_NO, oh_fallback_text(b));
            return;
        }
    }
    if (summary->unreached > 0) {
        decide(report, OH_ANSWER_NO, "no ncclAllReduce call came to onehop: " OH_UNREACHED_REASON);
    } else {
        decide(report, OH_ANSWER_UNKNOWN, "no ncclAllReduce call was made");
    }
}

static void judge_program(const struct oh_program_report *program, const char *name, struct oh_doctor_report *report)
{
    char why[OH_DOCTOR_TEXT];
    /* What processes say at their end is firmer than an early look at them. */
    bool told = program->summary.served == 0 && program->summary.unreached > 0;
    const struct oh_process_report *process = told ? NULL : first_process(program, OH_ANSWER_NO);
    if (process) {
        snprintf(why, sizeof why, "process %d (%s): %.380s", (int)process->pid, process->command, process->reason);
        decide(report, OH_ANSWER_NO, why);
    } else if (program->summary.served > 0) {
        decide(report, OH_ANSWER_YES, "calls were served");
    } else if (program->summary.records > 0) {
        explain_none(&program->summary, report);
    } else if (file_forbids(name, why, sizeof why)) {
        decide(report, OH_ANSWER_NO, why);
    } else if (program->status == OH_SUPERVISE_NOT_STARTED) {
        decide(report, OH_ANSWER_UNKNOWN, "the program could not be started");
    } else if (program->processes > 0) {
        decide(report, OH_ANSWER_UNKNOWN, "no communicator ended orderly");
    } else {
        decide(report, OH_ANSWER_UNKNOWN, "no process of the program was seen with NCCL");
    }
}

static int doctor_program(char **argv, enum oh_via via, bool json)
{
    struct oh_program_report program;
    struct oh_doctor_report report = {.mode = "program", .program = &program};
    if (!oh_doctor_watch(argv, via, &program)) {
        return OH_EXIT_USAGE;
    }
    report.process = program.process;
    report.processes = program.processes;
    judge_program(&program, argv[0], &report);
    int status = finish(&report, json);
    oh_program_free(&program);
    return status;
}

int oh_tool_doctor(int argc, char **argv)
{
    pid_t pid = 0;
    enum oh_via via = OH_VIA_PRELOAD;
    bool json = false;
    const struct oh_option options[] = {{"pid", 0, oh_option_pid, &pid},
                                        {"via", 0, oh_option_via, &via},
                                        {"json", 0, NULL, &json},
                                        {NULL, 0, NULL, NULL}};
    int status, first = oh_options_read(argc, argv, help, options, &status);
    if (first < 0) {
        return status;
    }
    if (pid && first < argc) {
        oh_tool_error("doctor: a process or a program, not both; see onehop doctor --help");
        return OH_EXIT_USAGE;
    }
    if (pid) {
        return doctor_process(pid, json);
    }
    return first < argc ? doctor_program(argv + first, via, json) : doctor_machine(json);
}
