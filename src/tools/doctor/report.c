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

static json_t *make_machine(const struct oh_machine_report *machine)
{
    json_t *object = json_object(), *checks = json_array();
    for (int i = 0; i < machine->checks; i++) {
        json_t *check = json_object();
        oh_json_set(&check, "name", oh_json_text(machine->check[i].name));
        oh_json_set(&check, "answer", oh_json_text(answer_word(machine->check[i].answer)));
        oh_json_set(&check, "text", oh_json_text(machine->check[i].text));
        oh_json_append(&checks, check);
    }
    oh_json_set(&object, "checks", checks);
    return object;
}

static void set_variable(void *user, const char *name, const char *value)
{
    oh_json_set(user, name, oh_json_text(value));
}

static json_t *make_onehop(const struct oh_process_report *process)
{
    if (!process->onehop) {
        return json_null();
    }
    json_t *object = json_object();
    oh_json_set(&object, "path", oh_json_text(process->onehop->path));
    oh_json_set(&object, "came_by", oh_json_text(process->came_by));
    return object;
}

/* One array of the objects that `chosen` takes; `tell` sets what there is to say of one. */
static json_t *make_objects(const struct oh_process_report *process,
                            bool (*chosen)(const struct oh_process_report *, const struct oh_object *),
                            void (*tell)(json_t **, const struct oh_object *))
{
    json_t *array = json_array();
    for (size_t i = 0; i < process->objects; i++) {
        if (chosen(process, &process->object[i])) {
            json_t *object = json_object();
            oh_json_set(&object, "path", oh_json_text(process->object[i].path));
            tell(&object, &process->object[i]);
            oh_json_append(&array, object);
        }
    }
    return array;
}

static bool choose_nccl(const struct oh_process_report *process, const struct oh_object *object)
{
    (void)process;
    return is_nccl(object);
}

static void tell_nccl(json_t **json, const struct oh_object *object)
{
    oh_json_set(json, "version", oh_json_text(object->version[0] ? object->version : NULL));
    oh_json_set(json, "static", json_boolean(object->is_static));
}

static void tell_caller(json_t **json, const struct oh_object *object)
{
    oh_json_set(json, "reached", oh_json_text(answer_word(object->reached)));
}

static bool choose_unread(const struct oh_process_report *process, const struct oh_object *object)
{
    (void)process;
    return is_unread(object);
}

static void tell_unread(json_t **json, const struct oh_object *object)
{
    oh_json_set(json, "why", oh_json_text(oh_elf_file_complaint(object->status)));
}

static json_t *make_process(const struct oh_process_report *process)
{
    json_t *object = json_object(), *environment = json_object();
    oh_json_set(&object, "pid", json_integer(process->pid));
    oh_json_set(&object, "command", oh_json_text(process->command));
    oh_json_set(&object, "answer", oh_json_text(answer_word(process->answer)));
    oh_json_set(&object, "reason", oh_json_text(process->reason));
    oh_json_set(&object, "nccl", make_objects(process, choose_nccl, tell_nccl));
    oh_json_set(&object, "onehop", make_onehop(process));
    oh_json_set(&object, "callers", make_objects(process, is_caller, tell_caller));
    oh_json_set(&object, "dlsym", oh_json_text(answer_word(process->dlsym)));
    oh_json_set(&object, "not_read", make_objects(process, choose_unread, tell_unread));
    each_variable(process, set_variable, &environment);
    oh_json_set(&object, "environment", environment);
    return object;
}

static json_t *make_program(const struct oh_program_report *program)
{
    static const char *const keys[OH_FALLBACK_COUNT] = {
#define KEY(identifier_, key_, words_) key_,
        OH_FALLBACK_REASONS(KEY)
#undef KEY
    };
    const struct oh_stats_summary *summary = &program->summary;
    bool started = program->status != OH_SUPERVISE_NOT_STARTED;
    bool ended = started && WIFEXITED(program->status), killed = started && WIFSIGNALED(program->status);
    json_t *object = json_object(), *fallback = json_object(), *reasons = json_array();
    oh_json_set(&object, "started", json_boolean(started));
    oh_json_set(&object, "exit_status", ended ? json_integer(WEXITSTATUS(program->status)) : json_null());
    oh_json_set(&object, "signal", killed ? json_integer(WTERMSIG(program->status)) : json_null());
    oh_json_set(&object, "served", json_integer((json_int_t)summary->served));
    oh_json_set(&object, "bytes", json_integer((json_int_t)summary->bytes));
    for (int b = 0; b < OH_FALLBACK_COUNT; b++) {
        oh_json_set(&fallback, keys[b], json_integer((json_int_t)summary->fallbacks[b]));
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
    oh_json_set(&object, "processes_without_nccl", json_integer((json_int_t)program->others));
    return object;
}

bool oh_doctor_print_json(const struct oh_doctor_report *report)
{
    char version[32];
    json_t *object = json_object(), *processes = json_array();
    snprintf(version, sizeof version, "%d.%d.%d", ONEHOP_VERSION_MAJOR, ONEHOP_VERSION_MINOR, ONEHOP_VERSION_PATCH);
    oh_json_set(&object, "schema", json_integer(SCHEMA));
    oh_json_set(&object, "onehop", oh_json_text(version));
    oh_json_set(&object, "mode", oh_json_text(report->mode));
    oh_json_set(&object, "answer", oh_json_text(answer_word(report->answer)));
    oh_json_set(&object, "reason", oh_json_text(report->reason));
    if (report->machine) {
        oh_json_set(&object, "machine", make_machine(report->machine));
    }
    if (report->program) {
        oh_json_set(&object, "program", make_program(report->program));
    }
    for (size_t i = 0; i < report->processes; i++) {
        oh_json_append(&processes, make_process(&report->process[i]));
    }
    oh_json_set(&object, "processes", processes);
    return oh_json_write(stdout, object);
}
