/* SPDX-License-Identifier: MIT */
/*
 * doctor/machine.c - would this machine be served, and if not, why?
 *
 * Each check answers yes, no or unknown, and says what it saw. Creates no CUDA context. Puts the settings of nccl.conf
 * into this process's environment, as NCCL will.
 */
#include "tools/doctor/doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/core/segment.h"
#include "gpu/driver.h"
#include "tools/shared/tool.h"
#include "topo/topo.h"
#include "util/env.h"

#define OLDEST_NCCL 21900

__attribute__((format(printf, 3, 4))) static enum oh_answer say(struct oh_check *check, enum oh_answer answer,
                                                                const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(check->text, sizeof check->text, format, args);
    va_end(args);
    return answer;
}

/* --- the environment */

bool oh_doctor_variable_matters(const char *name)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "LD_AUDIT",         "LD_PRELOAD",
                                        "NCCL_COMM_BLOCKING",   "NCCL_NET",         "NCCL_NET_PLUGIN",
                                        "NCCL_NVLS_ENABLE",     "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"};
    size_t length = strcspn(name, "=");
    if (strncmp(name, "ONEHOP_", strlen("ONEHOP_")) == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == length && strncmp(name, names[i], length) == 0) {
            return true;
        }
    }
    return false;
}

bool oh_doctor_environment_forbids(char *reason_p, size_t size)
{
    if (oh_env_flag(OH_ENV_DISABLE, false)) {
        snprintf(reason_p, size, "ONEHOP_DISABLE=1 is set");
        return true;
    }
    if (oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, UINT64_MAX) == 0) {
        snprintf(reason_p, size, "ONEHOP_MAX_BYTES=0 leaves no message to serve");
        return true;
    }
    return !oh_topo_allowed_by_env(reason_p, size);
}

/* NCCL reads one file of the user's, then /etc/nccl.conf; neither overrides the environment. */
static void adopt_nccl_conf(const char *path)
{
    char line[1024];
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\n")] = '\0';
        if (equals && line[0] != '#' && oh_doctor_variable_matters(line) && strncmp(line, "NCCL_", 5) == 0) {
            *equals = '\0';
            setenv(line, equals + 1, 0);
        }
    }
    if (file) {
        fclose(file);
    }
}

static enum oh_answer check_environment(struct oh_check *check)
{
    char path[PATH_MAX], why[OH_DOCTOR_TEXT - 32];
    const char *file = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
    if (file) {
        adopt_nccl_conf(file);
    } else if (home) {
        snprintf(path, sizeof path, "%s/.nccl.conf", home);
        adopt_nccl_conf(path);
    }
    adopt_nccl_conf("/etc/nccl.conf");
    if (oh_doctor_environment_forbids(why, sizeof why)) {
        return say(check, OH_ANSWER_NO, "%s", why);
    }
    return say(check, OH_ANSWER_YES, "no variable, and no nccl.conf, keeps calls from onehop");
}

/* --- files */

static enum oh_answer check_library(struct oh_check *check)
{
    char path[PATH_MAX], why[OH_DOCTOR_TEXT];
    struct oh_elf_file elf = {0};
    if (!oh_tool_locate_library(path, sizeof path, why, sizeof why)) {
        return say(check, OH_ANSWER_NO, "%s", why);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum oh_elf_file_status status = fd >= 0 ? oh_elf_file_read(fd, &elf) : OH_ELF_UNREADABLE;
    if (fd >= 0) {
        close(fd);
    }
    if (status != OH_ELF_OK) {
        return say(check, OH_ANSWER_NO, "%.300s %s", path, oh_elf_file_complaint(status));
    }
    if (!elf.exports_onehop) {
        return say(check, OH_ANSWER_NO, "%.300s is not onehop's", path);
    }
    return say(check, OH_ANSWER_YES, "%.400s", path);
}

/* What a program would get that asks for NCCL by its usual name. Programs may bring their own. */
static enum oh_answer check_nccl(struct oh_check *check)
{
    int version = 0;
    struct link_map *map = NULL;
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (!nccl) {
        return say(check, OH_ANSWER_YES, "libnccl.so.2 is not on the usual paths; programs bring their own");
    }
    ncclResult_t (*get_version)(int *) = (ncclResult_t(*)(int *))dlsym(nccl, "ncclGetVersion");
    if (!get_version || get_version(&version) != ncclSuccess || dlinfo(nccl, RTLD_DI_LINKMAP, &map) != 0) {
        return say(check, OH_ANSWER_UNKNOWN, "libnccl.so.2 does not tell its version");
    }
    enum oh_answer answer = version >= OLDEST_NCCL ? OH_ANSWER_YES : OH_ANSWER_NO;
    return say(check, answer, "%.300s, version %d.%d.%d%s", map->l_name, version / 10000, version / 100 % 100,
               version % 100, answer == OH_ANSWER_NO ? ": 2.19 or later is needed" : "");
}

/* --- where ranks meet */

static enum oh_answer check_meeting(struct oh_check *check)
{
    char path[PATH_MAX];
    struct statvfs room;
    const char *folder = oh_env_path(OH_ENV_SHM_DIR, "/dev/shm");
    snprintf(path, sizeof path, "%s/onehop-doctor.%d", folder, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(struct oh_shared));
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (error) {
        return say(check, OH_ANSWER_NO, "%.300s: %s", folder, strerror(error));
    }
    if (statvfs(folder, &room) != 0) {
        return say(check, OH_ANSWER_UNKNOWN, "%.300s: %s", folder, strerror(errno));
    }
    return say(check, OH_ANSWER_YES, "%.300s, %llu MiB free; a communicator takes %zu KiB there", folder,
               (unsigned long long)room.f_bavail * room.f_frsize >> 20, (sizeof(struct oh_shared) + 1023) / 1024);
}

static bool in_container(void)
{
    return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 || getenv("container");
}

static enum oh_answer check_processes(struct oh_check *check)
{
    char space[64];
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (length < 0) {
        return say(check, OH_ANSWER_UNKNOWN, "/proc/self/ns/pid: %s: ranks cannot tell that they see each other",
                   strerror(errno));
    }
    space[length] = '\0';
    return say(check, OH_ANSWER_YES, "%s%s", space,
               in_container() ? " in a container: all ranks must be in this one, or share its IPC and PID namespaces"
                              : "");
}

/* --- GPUs */

static enum oh_answer check_driver(struct oh_check *check)
{
    const struct oh_driver *driver;
    int version = 0;
    if (oh_driver_get(&driver) != ncclSuccess) {
        return say(check, OH_ANSWER_NO, "%s", oh_driver_error());
    }
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    CUresult (*get_version)(int *) = library ? (CUresult(*)(int *))dlsym(library, "cuDriverGetVersion") : NULL;
    if (!get_version || get_version(&version) != CUDA_SUCCESS) {
        return say(check, OH_ANSWER_YES, "a CUDA driver of unknown version");
    }
    return say(check, OH_ANSWER_YES, "a driver for CUDA %d.%d", version / 1000, version % 1000 / 10);
}

static enum oh_answer check_gpus(struct oh_check *check)
{
    char reason[160], name[96] = "";
    const struct oh_driver *driver;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    CUdevice device;
    if (oh_driver_get(&driver) != ncclSuccess || driver->device_get_count(&count) != CUDA_SUCCESS || count < 1) {
        return say(check, OH_ANSWER_NO, "CUDA sees no GPU");
    }
    if (count < 2 && visible && visible[0]) {
        return say(check, OH_ANSWER_UNKNOWN,
                   "CUDA_VISIBLE_DEVICES=%.64s shows one GPU (ranks may see one each): unset it for this question",
                   visible);
    }
    if (driver->device_get(&device, 0) != CUDA_SUCCESS ||
        driver->device_get_name(name, sizeof name, device) != CUDA_SUCCESS) {
        name[0] = '\0';
    }
    bool served = oh_tool_assess_gpus(reason, sizeof reason);
    return say(check, served ? OH_ANSWER_YES : OH_ANSWER_NO, "%d x %s: %s", count, name,
               served ? "full NVLink between them" : reason);
}

void oh_doctor_machine(struct oh_machine_report *report_p)
{
    static const struct {
        const char *name;
        enum oh_answer (*ask)(struct oh_check *check);
    } checks[] = {
        {"environment", check_environment},
        {"driver", check_driver},
        {"gpus", check_gpus},
        {"shared_memory", check_meeting},
        {"processes", check_processes},
        {"library", check_library},
        {"nccl", check_nccl},
    };
    struct oh_machine_report report = {.checks = sizeof checks / sizeof *checks};
    for (int i = 0; i < report.checks; i++) {
        report.check[i].name = checks[i].name;
        report.check[i].answer = checks[i].ask(&report.check[i]);
    }
    *report_p = report;
}
