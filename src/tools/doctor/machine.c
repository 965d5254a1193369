/* SPDX-License-Identifier: MIT */
/*
 * doctor/machine.c - whether this machine serves, and if not, why
 *
 * Does: adds one finding for each check. Creates no CUDA context.
 * Threads: one.
 * Owns: the libraries that it loads, until the process ends.
 */
#include "tools/doctor/doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/shared/segment.h"
#include "gpu/driver.h"
#include "tools/shared/tool.h"
#include "topo/topo.h"
#include "util/env.h"

#define OLDEST_NCCL 21900

bool oh_doctor_environment_forbids(char *reason_p, size_t size)
{
    if (oh_env_flag(OH_ENV_DISABLE, false)) {
        snprintf(reason_p, size, "ONEHOP_DISABLE=1 is set");
        return true;
    }
    if (!oh_env_flag(OH_ENV_INVARIANT, false) &&
        oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, UINT64_MAX) == 0) {
        snprintf(reason_p, size, "ONEHOP_MAX_BYTES=0 disables onehop");
        return true;
    }
    return !oh_topo_allowed_by_env(reason_p, size);
}

static void check_environment(struct oh_doctor_report *report)
{
    char why[OH_DOCTOR_TEXT] = "no variable and no nccl.conf disables onehop";
    bool forbids = oh_doctor_environment_forbids(why, sizeof why);
    oh_doctor_add(report, "environment", forbids ? OH_ANSWER_NO : OH_ANSWER_YES, "%s", why);
}

static void check_library(struct oh_doctor_report *report)
{
    char path[PATH_MAX];
    const char *problem = oh_tool_find_library(path);
    void *library = problem ? NULL : dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        oh_doctor_add(report, "library", OH_ANSWER_NO, "%s", problem ? problem : dlerror());
    } else if (!dlsym(library, "onehopVersion")) {
        oh_doctor_add(report, "library", OH_ANSWER_NO, "%s is not onehop's", path);
    } else {
        oh_doctor_add(report, "library", OH_ANSWER_YES, "%s", path);
    }
}

/* Programs may bring an NCCL of their own. */
static void check_nccl(struct oh_doctor_report *report)
{
    char path[PATH_MAX];
    int version = oh_tool_nccl_version(path);
    if (!path[0]) {
        oh_doctor_add(report, "nccl", OH_ANSWER_YES,
                      "libnccl.so.2 is not in the search path; programs may load another");
    } else if (version == 0) {
        oh_doctor_add(report, "nccl", OH_ANSWER_UNKNOWN, "libnccl.so.2 does not report its version");
    } else {
        bool good = version >= OLDEST_NCCL;
        oh_doctor_add(report, "nccl", good ? OH_ANSWER_YES : OH_ANSWER_NO, "%.300s, version %d.%d.%d%s", path,
                      version / 10000, version / 100 % 100, version % 100, good ? "" : "; expected 2.19 or later");
    }
}

static void check_shared_memory(struct oh_doctor_report *report)
{
    char path[PATH_MAX];
    struct statvfs room = {.f_frsize = 0};
    bool container = access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 || getenv("container");
    const char *folder = oh_env_path(OH_ENV_SHM_DIR, "/dev/shm");
    snprintf(path, sizeof path, "%s/onehop-doctor.XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(struct oh_shared));
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (error || statvfs(folder, &room) != 0) {
        oh_doctor_add(report, "shared_memory", OH_ANSWER_NO, "%.300s: %s", folder, strerror(error ? error : errno));
        return;
    }
    oh_doctor_add(report, "shared_memory", OH_ANSWER_YES, "%.300s, %llu MiB free; a communicator needs %zu KiB%s",
                  folder, (unsigned long long)room.f_bavail * room.f_frsize >> 20,
                  (sizeof(struct oh_shared) + 1023) / 1024,
                  container ? "; all ranks must share the container's IPC and PID namespaces" : "");
}

static void check_driver(struct oh_doctor_report *report)
{
    int version = 0;
    if (oh_driver_open() != ncclSuccess) {
        oh_doctor_add(report, "driver", OH_ANSWER_NO, "%s; see `onehop topo`, or add --simulated", oh_driver_error());
    } else if (!oh_driver.get_version || oh_driver.get_version(&version) != CUDA_SUCCESS) {
        oh_doctor_add(report, "driver", OH_ANSWER_YES, "a CUDA driver of unknown version");
    } else {
        oh_doctor_add(report, "driver", OH_ANSWER_YES, "for CUDA %d.%d", version / 1000, version % 1000 / 10);
    }
}

static void check_kernels(struct oh_doctor_report *report)
{
    char why[OH_DOCTOR_TEXT];
    if (oh_tool_lacks_kernels(why, sizeof why)) {
        oh_doctor_add(report, "kernels", OH_ANSWER_NO, "%s", why);
    }
}

static void check_gpus(struct oh_doctor_report *report)
{
    char text[OH_DOCTOR_TEXT];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool served;
    int gpus = oh_tool_assess_gpus(&served, text, sizeof text);
    if (gpus == 1 && visible && visible[0]) {
        oh_doctor_add(report, "gpus", OH_ANSWER_UNKNOWN,
                      "CUDA_VISIBLE_DEVICES=%.64s shows one GPU; each rank may see another one; unset it and repeat",
                      visible);
    } else {
        oh_doctor_add(report, "gpus", served ? OH_ANSWER_YES : OH_ANSWER_NO, "%s%s", text,
                      served ? "" : "; see `onehop topo`");
    }
}

/* After the verdict: every allreduce is served, or none. */
static void note_invariant(struct oh_doctor_report *report)
{
    if (!oh_env_flag(OH_ENV_INVARIANT, false)) {
        return;
    }
    if (report->answer == OH_ANSWER_YES) {
        oh_doctor_add(report, "invariant", OH_ANSWER_YES,
                      "invariant: yes: every allreduce of 2 to %d ranks of this host", OH_MAX_RANKS);
    } else {
        oh_doctor_add(report, "invariant", report->answer, "invariant: no: %s", report->reason);
    }
}

void oh_doctor_machine(struct oh_doctor_report *report)
{
    report->mode = "machine";
    snprintf(report->subject, sizeof report->subject, "this machine");
    check_environment(report);
    check_driver(report);
    check_gpus(report);
    check_kernels(report);
    check_shared_memory(report);
    check_library(report);
    check_nccl(report);
    oh_doctor_judge(report, "onehop serves on this machine");
    note_invariant(report);
}
