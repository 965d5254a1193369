/* SPDX-License-Identifier: MIT */
/*
 * doctor/report.c - the findings, for people and for programs (the fields are in doc/tools.md)
 */
#include "tools/doctor/doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "onehop/onehop.h"
#include "tools/shared/json.h"
#include "tools/shared/supervise.h"

#define SCHEMA 1

static const char *answer_word(enum oh_answer answer)
{
    static const char *const words[] = {"yes", "no", "unknown"};
    return words[answer];
}

static bool is_nccl(const struct oh_object *object)
{
    return object->elf.exports_pcall || object->is_static;
}

static bool is_caller(const struct oh_process_report *process, const struct oh_object *object)
{
    (void)process;
    return object->elf.slots > 0 && !object->elf.exports_onehop;
}

static bool is_unread(const struct oh_object *object)
{
    return object->has_code && object->status != OH_ELF_OK;
}

/* Calls visit for each variable that matters; name and value are cut apart. */
static void each_variable(const struct oh_process_report *process,
                          void (*visit)(void *user, const char *name, const char *value), void *user)
{
    for (size_t at = 0; at < process->environment_size; at += strlen(process->environment + at) + 1) {
        const char *text = process->environment + at, *equals = strchr(text, '=');
        char name[128];
        if (oh_doctor_variable_matters(text) && equals && (size_t)(equals - text) < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
            visit(user, name, equals + 1);
        }
    }
}

/* --- text */

static void print_machine(const struct oh_machine_report *machine)
{
    printf("this machine\n");
    for (int i = 0; i < machine->checks; i++) {
        printf("  %-8s%-15s%s\n", answer_word(machine->check[i].answer), machine->check[i].name,
               machine->check[i].text);
    }
}

static void print_variable(void *user, const char *name, const char *value)
{
    (void)user;
    printf("  variable  %s=%s\n", name, value);
}

static void print_process(const struct oh_process_report *process)
{
    printf("process %d (%s)\n", (int)process->pid, process->command);
    for (size_t i = 0; i < process->objects; i++) {
        const struct oh_object *object = &process->object[i];
        if (is_nccl(object)) {
            printf("  NCCL      %s%s%s%s\n", object->path, object->version[0] ? ", version " : "", object->version,
                   object->is_static ? ", statically linked: cannot be reached" : "");
        }
    }
    if (process->onehop) {
        printf("  onehop    %s, by %s\n", process->onehop->path, process->came_by);
    } else {
        printf("  onehop    not loaded\n");
    }
    for (size_t i = 0; i < process->objects; i++) {
        const struct oh_object *object = &process->object[i];
        if (is_caller(process, object)) {
            printf("  caller    %s: reaches onehop: %s\n", object->path, answer_word(object->reached));
        }
    }
    if (process->has_nccl) {
        printf("  callers by dlsym: reach onehop: %s\n", answer_word(process->dlsym));
    }
    for (size_t i = 0; i < process->objects; i++) {
        if (is_unread(&process->object[i])) {
            printf("  not read  %s %s\n", process->object[i].path, oh_elf_file_complaint(process->object[i].status));
        }
    }
    each_variable(process, print_variable, NULL);
    printf("  verdict   %s: %s\n", answer_word(process->answer), process->reason);
}

static void print_program(const struct oh_program_report *program)
{
    if (program->status == OH_SUPERVISE_NOT_STARTED) {
        return;
    }
    if (WIFSIGNALED(program->status)) {
        printf("the program was ended by signal %d\n", WTERMSIG(program->status));
    } else {
        printf("the program ended with exit status %d\n", WEXITSTATUS(program->status));
    }
    oh_stats_summary_print(&program->summary, stdout, "  ");
    if (program->others > 0) {
        printf("  %zu process%s without NCCL\n", program->others, program->others == 1 ? "" : "es");
    }
}

void oh_doctor_print(const struct oh_doctor_report *report)
{
    if (report->machine) {
        print_machine(report->machine);
    }
    for (size_t i = 0; i < report->processes; i++) {
        print_process(&report->process[i]);
    }
    if (report->program) {
        print_program(report->program);
    }
    printf("verdict: %s: %s\n", answer_word(report->answer), report->reason);
}

/* --- JSON */

static void write_machine(struct oh_json *json, const struct oh_machine_report *machine)
{
    oh_json_open(json, "machine", '{');
    oh_json_open(json, "checks", '[');
    for (int i = 0; i < machine->checks; i++) {
        oh_json_open(json, NULL, '{');
        oh_json_text(json, "name", machine->check[i].name);
        oh_json_text(json, "answer", answer_word(machine->check[i].answer));
        oh_json_text(json, "text", machine->check[i].text);
        oh_json_close(json, '}');
    }
    oh_json_close(json, ']');
    oh_json_close(json, '}');
}

static void write_variable(void *user, const char *name, const char *value)
{
    oh_json_text(user, name, value);
}

static void write_onehop(struct oh_json *json, const struct oh_process_report *process)
{
    if (!process->onehop) {
        oh_json_null(json, "onehop");
        return;
    }
    oh_json_open(json, "onehop", '{');
    oh_json_text(json, "path", process->onehop->path);
    oh_json_text(json, "came_by", process->came_by);
    oh_json_close(json, '}');
}

/* One array of the objects that `chosen` takes; `write` writes what there is to say of one. */
static void write_objects(struct oh_json *json, const struct oh_process_report *process, const char *key,
                          bool (*chosen)(const struct oh_process_report *, const struct oh_object *),
                          void (*write)(struct oh_json *, const struct oh_object *))
{
    oh_json_open(json, key, '[');
    for (size_t i = 0; i < process->objects; i++) {
        if (chosen(process, &process->object[i])) {
            oh_json_open(json, NULL, '{');
            oh_json_text(json, "path", process->object[i].path);
            write(json, &process->object[i]);
            oh_json_close(json, '}');
        }
    }
    oh_json_close(json, ']');
}

static bool choose_nccl(const struct oh_process_report *process, const struct oh_object *object)
{
    (void)process;
    return is_nccl(object);
}

static void write_nccl(struct oh_json *json, const struct oh_object *object)
{
    oh_json_text(json, "version", object->version[0] ? object->version : NULL);
    oh_json_flag(json, "static", object->is_static);
}

static void write_caller(struct oh_json *json, const struct oh_object *object)
{
    oh_json_text(json, "reached", answer_word(object->reached));
}

static bool choose_unread(const struct oh_process_report *process, const struct oh_object *object)
{
    (void)process;
    return is_unread(object);
}

static void write_unread(struct oh_json *json, const struct oh_object *object)
{
    oh_json_text(json, "why", oh_elf_file_complaint(object->status));
}

static void write_process(struct oh_json *json, const struct oh_process_report *process)
{
    oh_json_open(json, NULL, '{');
    oh_json_number(json, "pid", process->pid);
    oh_json_text(json, "command", process->command);
    oh_json_text(json, "answer", answer_word(process->answer));
    oh_json_text(json, "reason", process->reason);
    write_objects(json, process, "nccl", choose_nccl, write_nccl);
    write_onehop(json, process);
    write_objects(json, process, "callers", is_caller, write_caller);
    oh_json_text(json, "dlsym", answer_word(process->dlsym));
    write_objects(json, process, "not_read", choose_unread, write_unread);
    oh_json_open(json, "environment", '{');
    each_variable(process, write_variable, json);
    oh_json_close(json, '}');
    oh_json_close(json, '}');
}

static void write_end(struct oh_json *json, int status)
{
    bool started = status != OH_SUPERVISE_NOT_STARTED;
    oh_json_flag(json, "started", started);
    if (started && WIFEXITED(status)) {
        oh_json_number(json, "exit_status", WEXITSTATUS(status));
    } else {
        oh_json_null(json, "exit_status");
    }
    if (started && WIFSIGNALED(status)) {
        oh_json_number(json, "signal", WTERMSIG(status));
    } else {
        oh_json_null(json, "signal");
    }
}

static void write_program(struct oh_json *json, const struct oh_program_report *program)
{
    static const char *const keys[OH_FALLBACK_COUNT] = {
#define KEY(identifier_, key_, words_) key_,
        OH_FALLBACK_REASONS(KEY)
#undef KEY
    };
    const struct oh_stats_summary *summary = &program->summary;
    oh_json_open(json, "program", '{');
    write_end(json, program->status);
    oh_json_number(json, "served", (int64_t)summary->served);
    oh_json_number(json, "bytes", (int64_t)summary->bytes);
    oh_json_open(json, "fallback", '{');
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        oh_json_number(json, keys[b], (int64_t)summary->fallbacks[b]);
    }
    oh_json_close(json, '}');
    oh_json_open(json, "reasons", '[');
    for (int i = 0; i < summary->reasons; i++) {
        oh_json_open(json, NULL, '{');
        oh_json_text(json, "text", summary->reason[i].text);
        oh_json_number(json, "calls", (int64_t)summary->reason[i].calls);
        oh_json_close(json, '}');
    }
    oh_json_close(json, ']');
    oh_json_number(json, "processes_unreached", (int64_t)summary->unreached);
    oh_json_number(json, "processes_without_nccl", (int64_t)program->others);
    oh_json_close(json, '}');
}

void oh_doctor_print_json(const struct oh_doctor_report *report)
{
    char version[32];
    struct oh_json json = {.stream = stdout};
    snprintf(version, sizeof version, "%d.%d.%d", ONEHOP_VERSION_MAJOR, ONEHOP_VERSION_MINOR, ONEHOP_VERSION_PATCH);
    oh_json_open(&json, NULL, '{');
    oh_json_number(&json, "schema", SCHEMA);
    oh_json_text(&json, "onehop", version);
    oh_json_text(&json, "mode", report->mode);
    oh_json_text(&json, "answer", answer_word(report->answer));
    oh_json_text(&json, "reason", report->reason);
    if (report->machine) {
        write_machine(&json, report->machine);
    }
    if (report->program) {
        write_program(&json, report->program);
    }
    oh_json_open(&json, "processes", '[');
    for (size_t i = 0; i < report->processes; i++) {
        write_process(&json, &report->process[i]);
    }
    oh_json_close(&json, ']');
    oh_json_close(&json, '}');
}
