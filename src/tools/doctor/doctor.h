/* SPDX-License-Identifier: MIT */
/*
 * doctor.h - the parts of `onehop doctor`
 *
 *   doctor.c          the command: what was asked, the verdict, the exit status
 *   doctor/machine.c  would this machine be served?
 *   doctor/process.c  which calls of a running process reach onehop?
 *   doctor/watch.c    the same for all processes of a program, while it runs
 *   doctor/elf_file.c      what a file has to do with NCCL
 *   doctor/report.c   text and JSON
 *
 * A single thread. Reports own their memory.
 */
#ifndef OH_TOOLS_DOCTOR_DOCTOR_H_
#define OH_TOOLS_DOCTOR_DOCTOR_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/doctor/elf_file.h"
#include "tools/shared/stats_summary.h"
#include "tools/shared/tool.h"

#define OH_DOCTOR_TEXT 512
#define OH_DOCTOR_CHECKS 8

enum oh_answer {
    OH_ANSWER_YES,
    OH_ANSWER_NO,
    OH_ANSWER_UNKNOWN
};

/* --- the machine */

struct oh_check {
    const char *name;
    enum oh_answer answer;
    char text[OH_DOCTOR_TEXT];
};

struct oh_machine_report {
    struct oh_check check[OH_DOCTOR_CHECKS];
    int checks;
};

void oh_doctor_machine(struct oh_machine_report *report_p);

/*
 * Does this process's environment keep calls from onehop? True with one clause in reason_p; else it is untouched.
 */
bool oh_doctor_environment_forbids(char *reason_p, size_t size);

/* True for a variable that has a say in whether calls are served; name ends at '='. */
bool oh_doctor_variable_matters(const char *name);

/* --- a process */

/* A file that is mapped as code. */
struct oh_object {
    const char *path; /* in the report's list of mappings */
    bool has_code;
    enum oh_elf_file_status status; /* OH_ELF_NOT_ELF where it has no code: it is not opened */
    struct oh_elf_file elf;
    bool is_static;               /* NCCL is linked into it */
    char version[OH_ELF_VERSION]; /* of the NCCL in it; "" when not known */
    uint64_t start;               /* where its first byte is mapped */
    enum oh_answer reached;       /* it has slots: do its calls reach onehop? */
};

struct oh_mapping {
    uint64_t start, end;
    size_t object;
};

struct oh_process_report {
    pid_t pid;
    char command[64];
    enum oh_answer answer; /* do its calls reach onehop? */
    char reason[OH_DOCTOR_TEXT];
    struct oh_object *object;
    size_t objects;
    struct oh_mapping *mapping;
    size_t mappings;
    char *environment; /* as it was started with: strings, each ended by a zero; NULL: not readable */
    size_t environment_size;
    const struct oh_object *onehop; /* NULL: not loaded */
    const char *came_by;
    bool has_calls;          /* calls have come to onehop; asked only where it came late */
    enum oh_answer look_ups; /* would functions that are taken by dlsym from now on reach onehop? */
    enum oh_answer dlsym;    /* do functions taken by dlsym reach onehop? */
    bool has_nccl;
    char *maps;           /* its list of mappings, cut into strings */
    uint64_t fingerprint; /* of that list as it was */
};

/* False when the process cannot be looked at: one clause in reason_p. */
bool oh_doctor_process_read(pid_t pid, struct oh_process_report *report_p, char *reason_p, size_t size);
void oh_doctor_process_free(struct oh_process_report *report);

/* A number that changes when what the process has mapped changes; 0 when it cannot be read. */
uint64_t oh_doctor_process_fingerprint(pid_t pid);

/* --- a program */

struct oh_program_report {
    struct oh_stats_summary summary;
    int status; /* of waitpid, or OH_SUPERVISE_NOT_STARTED */
    struct oh_process_report *process;
    size_t processes;
    size_t others; /* looked at, without NCCL */
};

/* Runs the program under onehop, and looks at all its processes. False when it could not even be tried. */
bool oh_doctor_watch(char **argv, enum oh_via via, struct oh_program_report *report_p);
void oh_program_free(struct oh_program_report *report);

/* --- the whole */

struct oh_doctor_report {
    const char *mode; /* "machine", "process", "program" */
    enum oh_answer answer;
    char reason[OH_DOCTOR_TEXT];
    const struct oh_machine_report *machine;
    const struct oh_program_report *program;
    const struct oh_process_report *process;
    size_t processes;
};

void oh_doctor_print(const struct oh_doctor_report *report);
bool oh_doctor_print_json(const struct oh_doctor_report *report);

#endif
