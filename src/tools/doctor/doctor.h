/* SPDX-License-Identifier: MIT */
/*
 * doctor.h - the parts of `onehop doctor`
 *
 * Does: doctor.c has the command, the verdict and its page; machine.c, process.c and program.c fill a report.
 * Threads: one.
 * Owns: nothing; a report is plain data.
 */
#ifndef OH_TOOLS_DOCTOR_DOCTOR_H_
#define OH_TOOLS_DOCTOR_DOCTOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tools/shared/stats_summary.h"
#include "tools/shared/tool.h"

#define OH_DOCTOR_TEXT 512
#define OH_DOCTOR_FINDINGS 64
#define OH_DOCTOR_NOTES 48 /* findings from which on there is no note: what decides has room */

enum oh_answer {
    OH_ANSWER_YES,
    OH_ANSWER_NO,
    OH_ANSWER_UNKNOWN,
    OH_ANSWER_NOTE /* has no part in the verdict */
};

struct oh_finding {
    const char *name;
    enum oh_answer answer;
    char text[OH_DOCTOR_TEXT];
};

struct oh_doctor_report {
    const char *mode;  /* "machine", "process", "program" */
    char subject[128]; /* the headline */
    struct oh_finding finding[OH_DOCTOR_FINDINGS];
    int findings;
    enum oh_answer answer; /* the verdict */
    char reason[OH_DOCTOR_TEXT];
    struct oh_stats_summary summary; /* mode "program" */
    int status;                      /* mode "program": of waitpid, or OH_SUPERVISE_NOT_STARTED */
};

/* Adds a finding; drops it if the report is full. */
void oh_doctor_add(struct oh_doctor_report *report, const char *name, enum oh_answer answer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets the verdict: the first finding that says no, else the first that is unknown, else yes with this reason. */
void oh_doctor_judge(struct oh_doctor_report *report, const char *yes);

/* Sets the verdict. */
void oh_doctor_decide(struct oh_doctor_report *report, enum oh_answer answer, const char *reason);

/* Whether this machine serves. Creates no CUDA context. */
void oh_doctor_machine(struct oh_doctor_report *report);

/* Whether onehop serves the calls of a process. Ends the command if it cannot be read. */
void oh_doctor_process(pid_t pid, struct oh_doctor_report *report);

/* Whether onehop serves the calls of a program, which is run to its end. The second function: what JSON has of it. */
void oh_doctor_program(char **argv, enum oh_via via, struct oh_doctor_report *report);
json_t *oh_doctor_program_json(const struct oh_doctor_report *report);

/* Adds a note if a library of the process serves all-reduces before NCCL does: the option. */
void oh_doctor_note_own_allreduce(pid_t pid, struct oh_doctor_report *report);

/* Returns true, with one clause in reason_p, if the environment of this process keeps calls from onehop. */
bool oh_doctor_environment_forbids(char *reason_p, size_t size);

#endif
