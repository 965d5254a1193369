/* SPDX-License-Identifier: MIT */
/*
 * doctor/process.c - whether onehop serves the calls of a running process
 *
 * Does: reads /proc/N/maps and /proc/N/environ, and the live page of the process (comm/stats/record.h). Stops nothing
 *    and attaches to nothing.
 * Threads: one.
 * Owns: nothing that lasts.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/doctor/doctor.h"
#include "tools/shared/live_reader.h"
#include "tools/shared/options.h"
#include "util/nccl_conf.h"

static FILE *open_proc(pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

/* Programs whose libraries serve all-reduces before NCCL does, and what makes them call NCCL. */
static const struct own_allreduce {
    const char *part; /* of the path of the library */
    const char *program, *option;
} own_allreduces[] = {
    {"/vllm/_C", "vLLM", "--disable-custom-all-reduce"},
    {"/sgl_kernel/", "SGLang", "--disable-custom-all-reduce"},
    {"/libtensorrt_llm.so", "TensorRT-LLM", "allreduce_strategy: NCCL"},
};

/* What the files are that a process has mapped. */
struct mapped {
    int files;
    char nccl[PATH_MAX];                       /* the path of the latest copy; empty: none */
    char onehop[OH_DOCTOR_TEXT - 64];          /* its path; empty: none */
    const struct own_allreduce *own_allreduce; /* NULL: none */
};

/* libnccl.so.2 and other copies, but no plugin (libnccl-net.so). */
static bool is_nccl(const char *name)
{
    return strncmp(name, "libnccl", 7) == 0 && name[7] != '-' && strstr(name, ".so");
}

static bool is_onehop(const char *name)
{
    return strncmp(name, OH_LIBRARY, strlen(OH_LIBRARY)) == 0 ||
           strncmp(name, OH_NET_PLUGIN, strlen(OH_NET_PLUGIN)) == 0;
}

static void add_file(struct oh_doctor_report *report, const char *path, struct mapped *mapped)
{
    const char *name = strrchr(path, '/') + 1;
    mapped->files++;
    if (is_nccl(name)) {
        if (report && strcmp(mapped->nccl, path) != 0) { /* the mappings of a file follow one another */
            oh_doctor_add(report, "nccl", OH_ANSWER_YES, "%s", path);
        }
        snprintf(mapped->nccl, sizeof mapped->nccl, "%s", path);
    } else if (is_onehop(name)) {
        snprintf(mapped->onehop, sizeof mapped->onehop, "%s", path);
    }
    for (size_t i = 0; i < sizeof own_allreduces / sizeof *own_allreduces; i++) {
        if (strstr(path, own_allreduces[i].part)) {
            mapped->own_allreduce = &own_allreduces[i];
        }
    }
}

/* Adds the copies of NCCL to the report, unless that is NULL. Returns false, with errno, if there is no such file. */
static bool read_maps(pid_t pid, struct oh_doctor_report *report, struct mapped *mapped_p)
{
    struct mapped mapped = {.files = 0};
    FILE *maps = open_proc(pid, "maps");
    char *line = NULL;
    size_t room = 0;
    if (!maps) {
        return false;
    }
    while (getline(&line, &room, maps) > 0) {
        const char *path = strchr(line, '/');
        line[strcspn(line, "\n")] = '\0';
        if (path) {
            add_file(report, path, &mapped);
        }
    }
    free(line);
    fclose(maps);
    *mapped_p = mapped;
    return true;
}

void oh_doctor_note_own_allreduce(pid_t pid, struct oh_doctor_report *report)
{
    struct mapped mapped;
    if (read_maps(pid, NULL, &mapped) && mapped.own_allreduce) {
        oh_doctor_add(report, "own_allreduce", OH_ANSWER_NOTE,
                      "%s in process %d has its own all-reduce: see `%s` and doc/integrations.md",
                      mapped.own_allreduce->program, (int)pid, mapped.own_allreduce->option);
    }
}

/* The variable changes whether calls are served; its name ends at '='. */
static bool variable_matters(const char *name)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES",
                                        "LD_AUDIT",
                                        "LD_PRELOAD",
                                        "NCCL_ALGO",
                                        "NCCL_COMM_BLOCKING",
                                        "NCCL_CONF_FILE",
                                        "NCCL_CTA_POLICY",
                                        "NCCL_LAUNCH_ORDER_IMPLICIT",
                                        "NCCL_NET",
                                        "NCCL_NET_PLUGIN",
                                        "NCCL_NVLS_ENABLE",
                                        "NCCL_P2P_DISABLE",
                                        "NCCL_P2P_LEVEL"};
    const char *word = strndupa(name, strcspn(name, "="));
    return strncmp(name, "ONEHOP_", strlen("ONEHOP_")) == 0 ||
           oh_find_word(word, names, (int)(sizeof names / sizeof *names)) >= 0;
}

/* Adopts the settings of the process, so that the questions about the environment are asked of them. */
static void adopt_environment(pid_t pid, struct oh_doctor_report *report)
{
    char *text = NULL;
    size_t room = 0;
    FILE *file = open_proc(pid, "environ");
    clearenv();
    while (file && getdelim(&text, &room, '\0', file) > 0) {
        char *equals = strchr(text, '=');
        bool matters = equals && variable_matters(text);
        if (matters) {
            oh_doctor_add(report, "variable", OH_ANSWER_NOTE, "%.500s", text);
        }
        if (equals && (matters || strncmp(text, "HOME=", 5) == 0)) { /* where its nccl.conf is */
            *equals = '\0';
            setenv(text, equals + 1, 1);
        }
    }
    free(text);
    if (file) {
        fclose(file);
    }
}

/* Asks the environment that was adopted. */
static const char *loaded_by(const char *path)
{
    const char *preload = getenv("LD_PRELOAD"), *plugin = getenv("NCCL_NET_PLUGIN");
    if (preload && strstr(preload, "libonehop")) {
        return "LD_PRELOAD";
    }
    if (strstr(path, OH_NET_PLUGIN) || (plugin && strstr(plugin, "onehop"))) {
        return "NCCL_NET_PLUGIN";
    }
    return "the program or /etc/ld.so.preload";
}

static void add_calls(pid_t pid, bool by_plugin, struct oh_doctor_report *report)
{
    struct oh_live_view view = {.entry = NULL};
    enum oh_live_answer got = oh_live_read(pid, &view);
    struct oh_stats_record total = view.ended_totals;
    const char *reason = "";
    size_t invariant = 0, variant = 0;
    for (size_t i = 0; i < view.entries; i++) {
        oh_stats_add(&total, &view.entry[i]);
        reason = view.entry[i].reason[0] ? view.entry[i].reason : reason;
        invariant += view.entry[i].invariant != 0;
        variant += strcmp(oh_stats_invariant(&view.entry[i]), "no") == 0;
    }
    for (int b = 0; b < OH_FALLBACK_COUNT && !reason[0]; b++) {
        reason = total.fallbacks[b] > 0 ? oh_fallback_text(b) : reason;
    }
    uint64_t served = oh_stats_served(&total), fallbacks = oh_stats_fallbacks(&total);
    if (got != OH_LIVE_SEEN && got != OH_LIVE_NONE) {
        oh_doctor_add(report, "calls", OH_ANSWER_UNKNOWN, "the process %s", oh_live_words(got));
    } else if (served + fallbacks == 0) {
        oh_doctor_add(report, "calls", OH_ANSWER_UNKNOWN, "no collective call has come to onehop so far%s%s",
                      by_plugin ? ": " : "", by_plugin ? OH_UNREACHED_REASON : "");
    } else {
        oh_doctor_add(report, "calls", served > 0 ? OH_ANSWER_YES : OH_ANSWER_NO,
                      "%" PRIu64 " of %" PRIu64 " collective calls served%s%s", served, served + fallbacks,
                      reason[0] ? "; fallbacks: " : "", reason);
    }
    if (variant > 0) {
        oh_doctor_add(report, "invariant", OH_ANSWER_NO,
                      "invariant: no: %zu of %zu communicators have sums by NCCL%s%s", variant, invariant,
                      reason[0] ? ": " : "", reason);
    } else if (invariant > 0) {
        oh_doctor_add(report, "invariant", OH_ANSWER_YES, "invariant: yes: %zu communicator%s", invariant,
                      invariant == 1 ? "" : "s");
    }
    oh_live_view_free(&view);
}

static void add_onehop(pid_t pid, const char *path, struct oh_doctor_report *report)
{
    char why[OH_DOCTOR_TEXT];
    const char *by = loaded_by(path);
    oh_doctor_add(report, "onehop", OH_ANSWER_YES, "%s, by %s", path, by);
    if (oh_doctor_environment_forbids(why, sizeof why)) {
        oh_doctor_add(report, "environment", OH_ANSWER_NO, "%s", why);
    }
    add_calls(pid, strcmp(by, "NCCL_NET_PLUGIN") == 0, report);
}

/* Whether a path is there for the process, whose root and working folder may be other ones than ours. */
static bool is_there(pid_t pid, const char *path)
{
    char seen[PATH_MAX];
    struct stat status;
    snprintf(seen, sizeof seen, "/proc/%d/%s/%s", (int)pid, path[0] == '/' ? "root" : "cwd", path);
    return stat(seen, &status) == 0 || errno != ENOENT;
}

/* onehop is not mapped: why not, by what the adopted environment names. */
static void add_absence(pid_t pid, enum oh_answer answer, struct oh_doctor_report *report)
{
    static const struct {
        const char *name, *separators, *if_there;
        bool may_come;
    } variables[] = {{"LD_PRELOAD", " :",
                      "which is there, but not for this process: for another architecture, or set too late", false},
                     {"NCCL_NET_PLUGIN", ",", "which NCCL loads with its first communicator", true}};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = oh_nccl_variable(variables[i].name); /* nccl.conf may name a plugin, too */
        char *rest = value ? strdupa(value) : NULL;
        for (const char *word; (word = strsep(&rest, variables[i].separators));) {
            if (strstr(word, "onehop")) {
                const bool there = strchr(word, '/') && is_there(pid, word);
                oh_doctor_add(report, "onehop", there && variables[i].may_come ? OH_ANSWER_UNKNOWN : answer,
                              "onehop is not loaded: %s names %.200s, %s", variables[i].name, word,
                              there               ? variables[i].if_there
                              : strchr(word, '/') ? "which is not there"
                                                  : "which was not found: check that LD_LIBRARY_PATH has its folder");
                return;
            }
        }
    }
    oh_doctor_add(report, "onehop", answer, "onehop is not loaded; start the program by `onehop run`");
}

void oh_doctor_process(pid_t pid, struct oh_doctor_report *report)
{
    char command[32];
    struct mapped mapped;
    report->mode = "process";
    if (!read_maps(pid, report, &mapped)) {
        OH_TOOL_FAIL("--pid %d: %s", (int)pid, errno == ENOENT ? "no such process" : strerror(errno));
    }
    if (mapped.files == 0) {
        OH_TOOL_FAIL("--pid %d: no program is mapped: it has ended, or is a kernel thread", (int)pid);
    }
    oh_live_read_command(pid, command, sizeof command);
    snprintf(report->subject, sizeof report->subject, "process %d (%s)", (int)pid, command);
    if (!mapped.nccl[0]) {
        oh_doctor_add(report, "nccl", OH_ANSWER_UNKNOWN,
                      "no libnccl.so is loaded; expected a rank whose NCCL is not statically linked");
    }
    adopt_environment(pid, report);
    if (mapped.onehop[0]) {
        add_onehop(pid, mapped.onehop, report);
    } else {
        add_absence(pid, mapped.nccl[0] ? OH_ANSWER_NO : OH_ANSWER_UNKNOWN, report);
    }
    oh_doctor_note_own_allreduce(pid, report);
    oh_doctor_judge(report, "onehop serves its calls");
}
