/* SPDX-License-Identifier: MIT */
/*
 * doctor/process.c - which calls of a running process reach onehop
 *
 * From /proc: what is mapped (maps), the environment that it was started with (environ), and, where the system allows
 * it, the words through which its objects call ncclAllReduce (mem). Nothing is stopped and nothing attached. Where mem
 * cannot be read, the answer follows from how onehop came in.
 */
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/live_reader.h"
#include "tools/shared/tool.h"

/* --- files */

/* What is known of files, by their inode: many processes map the same ones. */
struct known {
    dev_t device;
    ino_t inode;
    struct timespec changed;
    enum oh_elf_file_status status;
    struct oh_elf_file elf;
    char version[OH_ELF_VERSION];
    bool version_searched;
};

static struct known *known;
static size_t knowns;

static struct known *find_known(const struct stat *status)
{
    for (size_t i = 0; i < knowns; i++) {
        if (known[i].device == status->st_dev && known[i].inode == status->st_ino &&
            known[i].changed.tv_sec == status->st_mtim.tv_sec && known[i].changed.tv_nsec == status->st_mtim.tv_nsec) {
            return &known[i];
        }
    }
    struct known *larger = realloc(known, (knowns + 1) * sizeof *known);
    if (!larger) {
        return NULL;
    }
    known = larger;
    known[knowns] = (struct known){
        .device = status->st_dev, .inode = status->st_ino, .changed = status->st_mtim, .status = OH_ELF_UNREADABLE};
    return &known[knowns++];
}

/* Opens a file as the process sees it: it may live in a container. */
static int open_object(pid_t pid, const char *path)
{
    char there[PATH_MAX + 64];
    struct stat status;
    snprintf(there, sizeof there, "/proc/%d/root%s", (int)pid, path);
    int fd = open(there, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == EACCES || errno == EPERM)) { /* that way is closed: it is mostly our own tree */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    }
    if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void read_object(pid_t pid, struct oh_object *object, bool search_version)
{
    struct stat status;
    int fd = open_object(pid, object->path);
    object->status = OH_ELF_UNREADABLE;
    if (fd < 0 || fstat(fd, &status) != 0) {
        return;
    }
    size_t before = knowns;
    struct known *file = find_known(&status);
    if (file && knowns > before) {
        file->status = oh_elf_file_read(fd, &file->elf);
    }
    if (file && file->status == OH_ELF_OK) {
        if ((search_version || file->elf.exports_pcall || file->elf.hides_call) && !file->version_searched) {
            oh_elf_file_nccl_version(fd, file->version);
            file->version_searched = true;
        }
        object->elf = file->elf;
        memcpy(object->version, file->version, sizeof object->version);
    }
    if (file) {
        object->status = file->status;
    }
    close(fd);
}

/* --- what is mapped */

/* A file of /proc/N, with a zero behind; NULL, with errno set, when it cannot be read. Free it. */
static char *read_proc(pid_t pid, const char *name, size_t *size_p)
{
    char path[64], *text = NULL;
    size_t size = 0, room = 0;
    ssize_t got = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    do {
        size += (size_t)got;
        if (room - size < 4096) { /* the kernel gives no more than a page at once */
            char *larger = realloc(text, 2 * room + 65536 + 1);
            if (!larger) {
                got = -1;
                break;
            }
            text = larger;
            room = 2 * room + 65536;
        }
        got = read(fd, text + size, room - size);
    } while (got > 0);
    int error = errno;
    close(fd);
    if (got < 0) {
        free(text);
        errno = error;
        return NULL;
    }
    text[size] = '\0';
    *size_p = size;
    return text;
}

/* /proc writes a newline in a path as \012. */
static void unescape(char *path)
{
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (strncmp(from, "\\012", 4) == 0) {
            *to++ = '\n';
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static bool add_object(struct oh_process_report *report, const char *path, uint64_t start)
{
    struct oh_object *larger = realloc(report->object, (report->objects + 1) * sizeof *larger);
    if (!larger) {
        return false;
    }
    report->object = larger;
    larger[report->objects++] = (struct oh_object){.path = path, .start = start, .reached = OH_ANSWER_UNKNOWN};
    return true;
}

/* The object of a path; the mappings of an object follow one another, so the last ones are looked at first. */
static bool find_object(struct oh_process_report *report, const char *path, uint64_t start, size_t *object_p)
{
    for (size_t i = report->objects; i-- > 0;) {
        if (strcmp(report->object[i].path, path) == 0) {
            *object_p = i;
            return true;
        }
    }
    *object_p = report->objects;
    return add_object(report, path, start);
}

static bool add_mapping(struct oh_process_report *report, const char *path, uint64_t start, uint64_t end, bool code)
{
    size_t object;
    struct oh_mapping *larger = realloc(report->mapping, (report->mappings + 1) * sizeof *larger);
    if (!larger) {
        return false;
    }
    report->mapping = larger;
    if (!find_object(report, path, start, &object)) {
        return false;
    }
    larger[report->mappings++] = (struct oh_mapping){start, end, object};
    report->object[object].has_code |= code;
    return true;
}

/* One line of maps; only files are noted. */
static bool read_mapping(struct oh_process_report *report, char *line)
{
    uint64_t start, end;
    char rights[5];
    int at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %*s %*s %n", &start, &end, rights, &at) != 3 || at == 0 ||
        line[at] != '/') {
        return true;
    }
    unescape(line + at);
    return add_mapping(report, line + at, start, end, rights[2] == 'x');
}

static uint64_t fingerprint(const char *text, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Only files with code will be opened: there are devices, and data of any size. */
static bool read_maps(struct oh_process_report *report)
{
    size_t size;
    report->maps = read_proc(report->pid, "maps", &size);
    if (!report->maps) {
        return false;
    }
    report->fingerprint = fingerprint(report->maps, size);
    char *rest = report->maps, *line;
    while ((line = strsep(&rest, "\n"))) {
        if (!read_mapping(report, line)) {
            errno = ENOMEM;
            return false;
        }
    }
    return true;
}

static const struct oh_object *object_at(const struct oh_process_report *report, uint64_t address)
{
    for (size_t i = 0; i < report->mappings; i++) {
        if (address >= report->mapping[i].start && address < report->mapping[i].end) {
            return &report->object[report->mapping[i].object];
        }
    }
    return NULL;
}

uint64_t oh_doctor_process_fingerprint(pid_t pid)
{
    size_t size;
    char *text = read_proc(pid, "maps", &size);
    uint64_t hash = text ? fingerprint(text, size) : 0;
    free(text);
    return hash;
}

/* --- the environment */

static const char *variable(const struct oh_process_report *report, const char *name)
{
    size_t length = strlen(name);
    for (size_t at = 0; at < report->environment_size; at += strlen(report->environment + at) + 1) {
        const char *text = report->environment + at;
        if (strncmp(text, name, length) == 0 && text[length] == '=') {
            return text + length + 1;
        }
    }
    return NULL;
}

/* Takes over the settings of the process, so that the same questions are asked of them as of our own. */
static void adopt_environment(const struct oh_process_report *report)
{
    extern char **environ;
    for (char **at = environ; at && *at;) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        if (oh_doctor_variable_matters(*at) && strlen(name) < sizeof name - 1 && unsetenv(name) == 0) {
            at = environ;
        } else {
            at++;
        }
    }
    for (size_t at = 0; at < report->environment_size; at += strlen(report->environment + at) + 1) {
        const char *text = report->environment + at;
        const char *equals = strchr(text, '=');
        if (oh_doctor_variable_matters(text) && equals) {
            char *name = strndup(text, (size_t)(equals - text));
            if (name) {
                setenv(name, equals + 1, 1);
            }
            free(name);
        }
    }
}

/* --- who reaches whom */

static bool base_name_is(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, name) == 0;
}

static const struct oh_object *find_by_name(const struct oh_process_report *report, const char *name)
{
    for (size_t i = 0; i < report->objects; i++) {
        if (base_name_is(report->object[i].path, name)) {
            return &report->object[i];
        }
    }
    return NULL;
}

static bool file_names(const char *path, const char *text)
{
    char line[PATH_MAX];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        found = strstr(line, text) != NULL;
    }
    if (file) {
        fclose(file);
    }
    return found;
}

static const char *how_it_came(const struct oh_process_report *report)
{
    const char *preload = variable(report, "LD_PRELOAD");
    for (size_t i = 0; i < report->objects; i++) {
        if (report->object[i].elf.needs_onehop) {
            return "linked";
        }
    }
    if (base_name_is(report->onehop->path, OH_NET_PLUGIN)) {
        return "NCCL_NET_PLUGIN";
    }
    if (preload && strstr(preload, "libonehop")) {
        return "LD_PRELOAD";
    }
    if (file_names("/etc/ld.so.preload", "libonehop")) {
        return "/etc/ld.so.preload";
    }
    const char *plugin = variable(report, "NCCL_NET_PLUGIN");
    return plugin && strstr(plugin, "onehop") ? "NCCL_NET_PLUGIN" : "dlopen";
}

static bool came_first(const struct oh_process_report *report)
{
    return strcmp(report->came_by, "LD_PRELOAD") == 0 || strcmp(report->came_by, "/etc/ld.so.preload") == 0;
}

/* Inside the creation of the first communicator. */
static bool came_late(const struct oh_process_report *report)
{
    return report->came_by && strcmp(report->came_by, "NCCL_NET_PLUGIN") == 0;
}

/* Has a call come to onehop? (NCCL itself looks at its communicator, which then is on the board without calls.) */
static bool has_calls(pid_t pid)
{
    struct oh_live_view view;
    if (oh_live_read(pid, &view) != OH_LIVE_SEEN) {
        return false;
    }
    uint64_t calls = oh_stats_served(&view.ended_totals) + oh_stats_fallbacks(&view.ended_totals);
    for (size_t i = 0; i < view.entries; i++) {
        calls += oh_stats_served(&view.entry[i]) + oh_stats_fallbacks(&view.entry[i]);
    }
    oh_live_view_free(&view);
    return calls > 0;
}

/* A word of the process's memory. */
static bool peek(int memory, uint64_t address, uint64_t *word_p)
{
    return memory >= 0 && pread(memory, word_p, sizeof *word_p, (off_t)address) == sizeof *word_p;
}

/* It may be mapped under each of its names. */
static bool is_onehop(const struct oh_object *object)
{
    return object && object->elf.exports_onehop;
}

/* Does the table of symbols of an NCCL, as it is in memory, lead to onehop? */
static bool is_redirected(const struct oh_process_report *report, const struct oh_object *nccl, int memory)
{
    uint64_t bias = nccl->start - nccl->elf.base, value;
    return nccl->elf.call_field > 0 && peek(memory, bias + nccl->elf.call_field, &value) &&
           is_onehop(object_at(report, bias + value));
}

static enum oh_answer answer_look_ups(const struct oh_process_report *report, int memory)
{
    bool any = false, all = true;
    if (!report->onehop) {
        return OH_ANSWER_NO;
    }
    if ((came_first(report) && report->onehop->elf.exports_dlsym) || find_by_name(report, OH_AUDIT)) {
        return OH_ANSWER_YES;
    }
    for (size_t i = 0; i < report->objects; i++) {
        const struct oh_object *object = &report->object[i];
        if (object->elf.exports_pcall) {
            any = true;
            all = all && is_redirected(report, object, memory);
        }
    }
    if (!any || (!all && memory < 0)) {
        return OH_ANSWER_UNKNOWN;
    }
    return all ? OH_ANSWER_YES : OH_ANSWER_NO;
}

/* Where one word leads; unknown while it is not bound, or bound to somebody else in between. */
static enum oh_answer answer_slot(const struct oh_process_report *report, const struct oh_object *object, uint64_t slot,
                                  int memory)
{
    uint64_t value;
    if (!report->onehop) {
        return OH_ANSWER_NO;
    }
    if (peek(memory, object->start - object->elf.base + slot, &value)) {
        const struct oh_object *target = object_at(report, value);
        if (is_onehop(target)) {
            return OH_ANSWER_YES;
        }
        if (target && target->elf.exports_pcall) {
            return OH_ANSWER_NO;
        }
        if (target && target != object) {
            return OH_ANSWER_UNKNOWN;
        }
    }
    /* Not bound yet, or not to be seen: what the dynamic linker will find. */
    if (came_first(report) || strcmp(report->came_by, "linked") == 0) {
        return OH_ANSWER_YES;
    }
    return report->look_ups == OH_ANSWER_YES ? OH_ANSWER_YES : OH_ANSWER_UNKNOWN;
}

static enum oh_answer worse(enum oh_answer a, enum oh_answer b)
{
    if (a == OH_ANSWER_NO || b == OH_ANSWER_NO) {
        return OH_ANSWER_NO;
    }
    return a == OH_ANSWER_UNKNOWN ? a : b;
}

static void answer_callers(struct oh_process_report *report, int memory)
{
    for (size_t i = 0; i < report->objects; i++) {
        struct oh_object *object = &report->object[i];
        if (object->elf.slots == 0 || is_onehop(object)) {
            continue;
        }
        object->reached = OH_ANSWER_YES;
        for (int s = 0; s < object->elf.slots; s++) {
            object->reached = worse(object->reached, answer_slot(report, object, object->elf.slot[s], memory));
        }
    }
}

/* --- the verdict */

static void decide(struct oh_process_report *report, enum oh_answer answer, const char *text, const char *path)
{
    report->answer = answer;
    snprintf(report->reason, sizeof report->reason, "%s%s%.300s", text, path ? ": " : "", path ? path : "");
}

static const struct oh_object *first_static(const struct oh_process_report *report)
{
    for (size_t i = 0; i < report->objects; i++) {
        if (report->object[i].is_static) {
            return &report->object[i];
        }
    }
    return NULL;
}

/* An object that by its name is NCCL or onehop, and cannot be read. */
static const struct oh_object *first_unread(const struct oh_process_report *report)
{
    for (size_t i = 0; i < report->objects; i++) {
        const struct oh_object *object = &report->object[i];
        if (object->has_code && object->status != OH_ELF_OK &&
            (strstr(object->path, "/libnccl") || strstr(object->path, "/libonehop"))) {
            return object;
        }
    }
    return NULL;
}

/* The first caller with that answer. */
static const struct oh_object *first_caller(const struct oh_process_report *report, enum oh_answer answer)
{
    for (size_t i = 0; i < report->objects; i++) {
        const struct oh_object *object = &report->object[i];
        if (object->elf.slots > 0 && !is_onehop(object) && object->reached == answer) {
            return object;
        }
    }
    return NULL;
}

/* The first NCCL that says that it is older than onehop takes. */
static const struct oh_object *first_old(const struct oh_process_report *report)
{
    for (size_t i = 0; i < report->objects; i++) {
        int major, minor;
        const struct oh_object *object = &report->object[i];
        if (object->elf.exports_pcall && sscanf(object->version, "%d.%d", &major, &minor) == 2 &&
            (major < 2 || (major == 2 && minor < 19))) {
            return object;
        }
    }
    return NULL;
}

/*
 * Loaded by NCCL, onehop knows the first communicator only if NCCL takes it for a profiler plugin, too: it asks the one
 * that is named, else the network plugin that it has opened last (src/hook/initial_comm.h).
 */
static bool misses_first(const struct oh_process_report *report)
{
    const char *profiler = variable(report, "NCCL_PROFILER_PLUGIN"), *networks = variable(report, "NCCL_NET_PLUGIN");
    return came_late(report) && (profiler ? !strstr(profiler, "onehop") : networks && strchr(networks, ','));
}

static void judge(struct oh_process_report *report)
{
    char why[OH_DOCTOR_TEXT];
    const struct oh_object *object;
    if ((object = first_unread(report))) {
        decide(report, OH_ANSWER_UNKNOWN, "a file that matters cannot be read (it may have been replaced)",
               object->path);
    } else if ((object = first_static(report))) {
        decide(report, OH_ANSWER_NO, "NCCL is statically linked, its calls cannot be reached", object->path);
    } else if (!report->has_nccl) {
        decide(report, OH_ANSWER_UNKNOWN, report->onehop ? "onehop is loaded, but no NCCL (yet)" : "no NCCL is loaded",
               NULL);
    } else if (!report->onehop) {
        decide(report, OH_ANSWER_NO, "onehop is not loaded", NULL);
    } else if (adopt_environment(report), oh_doctor_environment_forbids(why, sizeof why)) {
        decide(report, OH_ANSWER_NO, why, NULL);
    } else if ((object = first_old(report))) {
        decide(report, OH_ANSWER_NO, "NCCL 2.19 or later is needed", object->path);
    } else if ((object = first_caller(report, OH_ANSWER_NO))) {
        decide(report, OH_ANSWER_NO, "calls go to NCCL, not to onehop", object->path);
    } else if ((object = first_caller(report, OH_ANSWER_UNKNOWN))) {
        decide(report, OH_ANSWER_UNKNOWN, "it cannot be seen where calls go", object->path);
    } else if (first_caller(report, OH_ANSWER_YES)) {
        decide(
            report, OH_ANSWER_YES,
            misses_first(report)
                ? "its calls reach onehop, but for those on the first communicator: NCCL_PROFILER_PLUGIN is not onehop"
                : "its calls reach onehop",
            NULL);
    } else if (report->has_calls) {
        decide(report, OH_ANSWER_YES, "calls of functions taken by dlsym have come to onehop", NULL);
    } else if (report->look_ups == OH_ANSWER_YES && came_late(report)) {
        decide(report, OH_ANSWER_UNKNOWN, "no ncclAllReduce call has come to onehop: " OH_UNREACHED_REASON, NULL);
    } else if (report->dlsym == OH_ANSWER_YES) {
        decide(report, OH_ANSWER_YES, "functions taken by dlsym reach onehop", NULL);
    } else if (report->dlsym == OH_ANSWER_NO) {
        decide(report, OH_ANSWER_NO, "no object is bound to NCCL: functions are taken by dlsym, and go to NCCL", NULL);
    } else {
        decide(report, OH_ANSWER_UNKNOWN, "no object is bound to NCCL, and it cannot be seen what dlsym gives", NULL);
    }
}

/* --- all of it */

static void read_objects(struct oh_process_report *report)
{
    bool has_gpu = false;
    for (size_t i = 0; i < report->objects; i++) {
        struct oh_object *object = &report->object[i];
        const char *slash = strrchr(object->path, '/');
        if (!object->has_code) {
            object->status = OH_ELF_NOT_ELF;
            continue;
        }
        read_object(report->pid, object, false);
        object->is_static = object->elf.hides_call && !object->elf.exports_onehop;
        report->has_nccl |= object->elf.exports_pcall || object->is_static;
        has_gpu |= strncmp(slash, "/libcuda.so", strlen("/libcuda.so")) == 0;
    }
    /* A GPU program without an NCCL: it may be inside an object whose symbols were removed. */
    for (size_t i = 0; has_gpu && !report->has_nccl && i < report->objects; i++) {
        struct oh_object *object = &report->object[i];
        if (object->status == OH_ELF_OK && object->elf.stripped && !object->elf.exports_onehop) {
            read_object(report->pid, object, true);
            object->is_static = object->version[0] != '\0';
        }
    }
    for (size_t i = 0; i < report->objects; i++) {
        report->has_nccl |= report->object[i].is_static;
        if (report->object[i].elf.exports_onehop && !report->onehop) {
            report->onehop = &report->object[i];
        }
    }
}

static void read_command(struct oh_process_report *report)
{
    size_t size;
    char *text = read_proc(report->pid, "comm", &size);
    if (text) {
        snprintf(report->command, sizeof report->command, "%.*s", (int)strcspn(text, "\n"), text);
    }
    free(text);
}

bool oh_doctor_process_read(pid_t pid, struct oh_process_report *report_p, char *reason_p, size_t size)
{
    struct oh_process_report report = {.pid = pid};
    char path[64];
    if (!read_maps(&report)) {
        int error = errno;
        snprintf(reason_p, size, error == ENOENT || error == ESRCH ? "there is no process %d" : "process %d: %s",
                 (int)pid, strerror(error));
        oh_doctor_process_free(&report);
        return false;
    }
    if (report.mappings == 0) {
        snprintf(reason_p, size, "process %d has no program mapped: it has ended, or belongs to the kernel", (int)pid);
        oh_doctor_process_free(&report);
        return false;
    }
    read_command(&report);
    report.environment = read_proc(pid, "environ", &report.environment_size);
    read_objects(&report);
    report.came_by = report.onehop ? how_it_came(&report) : NULL;
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    report.look_ups = answer_look_ups(&report, memory);
    if (report.look_ups == OH_ANSWER_YES && came_late(&report)) {
        report.has_calls = has_calls(pid);
        report.dlsym = OH_ANSWER_UNKNOWN; /* what was taken before it came, by whom, cannot be seen */
    } else {
        report.dlsym = report.look_ups;
    }
    answer_callers(&report, memory);
    if (memory >= 0) {
        close(memory);
    }
    judge(&report);
    *report_p = report;
    return true;
}

void oh_doctor_process_free(struct oh_process_report *report)
{
    free(report->object);
    free(report->mapping);
    free(report->maps);
    free(report->environment);
}
