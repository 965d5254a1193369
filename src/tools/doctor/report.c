/* SPDX-License-Identifier: MIT */
/*
 * doctor/report.c - a report as text and as JSON (the fields: doc/tools.md)
 *
 * Does: prints.
 * Threads: one.
 * Owns: nothing.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "onehop/onehop.h"
#include "tools/doctor/doctor.h"
#include "tools/shared/json.h"
#include "tools/shared/supervise.h"

#define SCHEMA 2

static const char *const words[] = {"yes", "no", "unknown", "note"};

void oh_doctor_print(const struct oh_doctor_report *report)
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
    json_t *object = json_object(), *fallback = json_object(), *reasons = json_array();
    oh_json_set(&object, "started", json_boolean(started));
    oh_json_set(&object, "exit_status", ended ? json_integer(WEXITSTATUS(report->status)) : json_null());
    oh_json_set(&object, "signal", killed ? json_integer(WTERMSIG(report->status)) : json_null());
    oh_json_set(&object, "served", json_integer((json_int_t)oh_stats_served(&summary->total)));
    oh_json_set(&object, "bytes", json_integer((json_int_t)summary->total.bytes));
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        oh_json_set(&fallback, oh_fallback_name(b), json_integer((json_int_t)summary->total.fallbacks[b]));
    }
    oh_json_set(&object, "fallback", fallback);
    for (int i = 0; i < summary->reasons; i++) {
        json_t *reason = json_object();
        oh_json_set(&reason, "text", oh_json_text(summary->reason[i].text));
        oh_json_set(&reason, "calls", json_integer((json_int_t)summary->reason[i].calls));
        oh_json_append(&reasons, reason);
    }
    oh_json_set(&object, "reasons", reasons);
    oh_json_set(&object, "processes_unreached", json_integer((json_int_t)summary->unreached));
    return object;
}

bool oh_doctor_print_json(const struct oh_doctor_report *report)
{
    char version[32];
    json_t *object = json_object(), *findings = json_array();
    snprintf(version, sizeof version, "%d.%d.%d", ONEHOP_VERSION_MAJOR, ONEHOP_VERSION_MINOR, ONEHOP_VERSION_PATCH);
    oh_json_set(&object, "schema", json_integer(SCHEMA));
    oh_json_set(&object, "onehop", oh_json_text(version));
    oh_json_set(&object, "mode", oh_json_text(report->mode));
    oh_json_set(&object, "answer", oh_json_text(words[report->answer]));
    oh_json_set(&object, "reason", oh_json_text(report->reason));
    for (int i = 0; i < report->findings; i++) {
        json_t *finding = json_object();
        oh_json_set(&finding, "name", oh_json_text(report->finding[i].name));
        oh_json_set(&finding, "answer", oh_json_text(words[report->finding[i].answer]));
        oh_json_set(&finding, "text", oh_json_text(report->finding[i].text));
        oh_json_append(&findings, finding);
    }
    oh_json_set(&object, "findings", findings);
    if (strcmp(report->mode, "program") == 0) {
        oh_json_set(&object, "program", make_program(report));
    }
    return oh_json_write(stdout, object);
}
