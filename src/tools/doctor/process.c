/* SPDX-License-Identifier: MIT */
/*
 * doctor/process.c - whether onehop serves the calls of a running process
 *
 * Does: reads /proc/N/maps and /proc/N/environ, and the live page of the process (comm/stats/live.h). Stops nothing and
 *    attaches to nothing.
 * Threads: one.
 * Owns: nothing that lasts.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/doctor/doctor.h"
#include "tools/shared/live_reader.h"

static FILE *open_proc(pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

/* Reads the next path of /proc/N/maps. Returns false at the end; *line_p is the caller's to free. */
static bool next_path(FILE *maps, char **line_p, size_t *room_p, const char **path_p)
{
    while (getline(line_p, room_p, maps) > 0) {
        *path_p = strchr(*line_p, '/');
        if (*path_p) {
            (*line_p)[strcspn(*line_p, "\n")] = '\0';
            return true;
        }
    }
    return false;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* libnccl.so.2 and other copies, but no plugin (libnccl-net.so). */
static bool is_nccl(const char *path)
{
    const char *name = base_name(path);
    return strncmp(name, "libnccl", 7) == 0 && name[7] != '-' && strstr(name, ".so");
}

static bool is_onehop(const char *path)
{
    const char *name = base_name(path);
    return strncmp(name, OH_LIBRARY, strlen(OH_LIBRARY)) == 0 ||
           strncmp(name, OH_NET_PLUGIN, strlen(OH_NET_PLUGIN)) == 0;
}

/* Adds a finding for a path unless the same path is the latest one: the mappings of a file follow one another. */
static void add_path(struct oh_doctor_report *report, const char *name, const char *path)
{
    const struct oh_finding *latest = report->findings > 0 ? &report->finding[report->findings - 1] : NULL;
    if (!latest || latest->name != name || strncmp(latest->text, path, sizeof latest->text - 1) != 0) {
        oh_doctor_add(report, name, OH_ANSWER_YES, "%.400s", path);
    }
}

bool oh_doctor_note_own_allreduce(pid_t pid, struct oh_doctor_report *report)
{
    static const struct {
        const char *part, *program, *option;
    } known[] = {
        {"/vllm/_C", "vLLM", "--disable-custom-all-reduce"},
        {"/sgl_kernel/", "SGLang", "--disable-custom-all-reduce"},
        {"/libtensorrt_llm.so", "TensorRT-LLM", "allreduce_strategy: NCCL"},
    };
    FILE *maps = open_proc(pid, "maps");
    char *line = NULL;
    const char *path;
    size_t room = 0, found = sizeof known / sizeof *known;
    while (maps && found == sizeof known / sizeof *known && next_path(maps, &line, &room, &path)) {
        for (found = 0; found < sizeof known / sizeof *known && !strstr(path, known[found].part);) {
            found++;
        }
    }
    bool any = found < sizeof known / sizeof *known;
    if (any) {
        oh_doctor_add(report, "own_allreduce", OH_ANSWER_NOTE,
                      "%s in process %d has its own all-reduce: see `%s` and doc/integrations.md", known[found].program,
                      (int)pid, known[found].option);
    }
    free(line);
    if (maps) {
        fclose(maps);
    }
    return any;
}

/* --- the environment of the process */

/* Adopts the settings of the process, so that the questions about the environment are asked of them. */
static void adopt_environment(pid_t pid, struct oh_doctor_report *report)
{
    extern char **environ;
    char *text = NULL;
    size_t room = 0;
    for (char **at = environ; at && *at;) {
        char name[256];
        int length = snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        bool gone = oh_doctor_variable_matters(*at) && (size_t)length < sizeof name && unsetenv(name) == 0;
        at = gone ? environ : at + 1;
    }
    FILE *file = open_proc(pid, "environ");
    while (file && getdelim(&text, &room, '\0', file) > 0) {
        char *equals = strchr(text, '=');
        if (equals && oh_doctor_variable_matters(text)) {
            oh_doctor_add(report, "variable", OH_ANSWER_NOTE, "%.500s", text);
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

/* --- its calls */

static void add_calls(pid_t pid, bool by_plugin, struct oh_doctor_report *report)
{
    struct oh_live_view view = {.entry = NULL};
    enum oh_live_answer got = oh_live_read(pid, &view);
    struct oh_stats_record total = view.ended_totals;
    const char *reason = "";
    for (size_t i = 0; i < view.entries; i++) {
        oh_stats_add(&total, &view.entry[i]);
        reason = view.entry[i].reason[0] ? view.entry[i].reason : reason;
    }
    for (int b = 0; b < OH_FALLBACK_COUNT && !reason[0]; b++) {
        reason = total.fallbacks[b] > 0 ? oh_fallback_text(b) : reason;
    }
    uint64_t served = oh_stats_served(&total), fallbacks = oh_stats_fallbacks(&total);
    if (got != OH_LIVE_SEEN && got != OH_LIVE_NONE) {
        oh_doctor_add(report, "calls", OH_ANSWER_UNKNOWN, "the process %s", oh_live_words(got));
    } else if (served + fallbacks == 0) {
        oh_doctor_add(report, "calls", OH_ANSWER_UNKNOWN, "no ncclAllReduce call has come to onehop so far%s%s",
                      by_plugin ? ": " : "", by_plugin ? OH_UNREACHED_REASON : "");
    } else {
        oh_doctor_add(report, "calls", served > 0 ? OH_ANSWER_YES : OH_ANSWER_NO,
                      "%" PRIu64 " of %" PRIu64 " ncclAllReduce calls served%s%s", served, served + fallbacks,
                      reason[0] ? "; fallbacks: " : "", reason);
    }
    oh_live_view_free(&view);
}

/* --- all of it */

/* Returns the number of mapped files; adds those of NCCL and copies the path of onehop. -1: maps cannot be read. */
static int add_libraries(pid_t pid, char *onehop_p, size_t size, bool *nccl_p, struct oh_doctor_report *report)
{
    FILE *maps = open_proc(pid, "maps");
    char *line = NULL;
    const char *path;
    size_t room = 0;
    int files = 0;
    if (!maps) {
        return -1;
    }
    for (; next_path(maps, &line, &room, &path); files++) {
        if (is_nccl(path)) {
            add_path(report, "nccl", path);
            *nccl_p = true;
        } else if (is_onehop(path)) {
            snprintf(onehop_p, size, "%s", path);
        }
    }
    if (files == 0 && ferror(maps)) {
        files = -1;
    }
    free(line);
    fclose(maps);
    return files;
}

bool oh_doctor_process(pid_t pid, struct oh_doctor_report *report)
{
    char onehop[OH_DOCTOR_TEXT - 64] = "", why[OH_DOCTOR_TEXT], command[32];
    bool nccl = false;
    report->mode = "process";
    int files = add_libraries(pid, onehop, sizeof onehop, &nccl, report);
    if (files <= 0) {
        const char *problem = files == 0 ? "no program is mapped: it has ended, or is a kernel thread"
                              : errno == ENOENT || errno == ESRCH ? "no such process"
                                                                  : strerror(errno);
        oh_tool_error("doctor: --pid %d: %s", (int)pid, problem);
        return false;
    }
    oh_live_read_command(pid, command, sizeof command);
    snprintf(report->subject, sizeof report->subject, "process %d (%s)", (int)pid, command);
    if (!nccl) {
        oh_doctor_add(report, "nccl", OH_ANSWER_UNKNOWN,
                      "no libnccl.so is loaded; expected a rank whose NCCL is not statically linked");
    }
    adopt_environment(pid, report);
    if (!onehop[0]) {
        oh_doctor_add(report, "onehop", nccl ? OH_ANSWER_NO : OH_ANSWER_UNKNOWN,
                      "onehop is not loaded; start the program by `onehop run`");
    } else {
        const char *by = loaded_by(onehop);
        oh_doctor_add(report, "onehop", OH_ANSWER_YES, "%s, by %s", onehop, by);
        if (oh_doctor_environment_forbids(why, sizeof why)) {
            oh_doctor_add(report, "environment", OH_ANSWER_NO, "%s", why);
        }
        add_calls(pid, strcmp(by, "NCCL_NET_PLUGIN") == 0, report);
    }
    oh_doctor_note_own_allreduce(pid, report);
    oh_doctor_judge(report, "onehop serves its calls");
    return true;
}
