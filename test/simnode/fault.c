/* SPDX-License-Identifier: MIT */
/*
 * fault.c - see fault.h
 *
 * The list of faults is built by the first call and then only its counters change.
 */
#include "test/simnode/fault.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FAULTS 16
#define MAX_NAME 64

enum act {
    ACT_FAIL,
    ACT_KILL,
    ACT_STOP,
    ACT_QUIT,
    ACT_EXIT
};

struct fault {
    char function[MAX_NAME];
    unsigned long nth; /* 0: every call */
    enum act act;
    atomic_ulong calls;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fault faults[MAX_FAULTS];
static int fault_count;
static int trace = -1;
static const char *caller_name; /* NULL: all count */
static const char *from;        /* calls count after the first of this function; NULL: from the start */
static atomic_bool begun;

uint32_t simnode_setting(const char *variable)
{
    const char *text = getenv(variable);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* Reads one `symbol[:n]` of `length` characters. */
static bool parse_fault(const char *text, size_t length, struct fault *fault_p)
{
    int name = 0, number = 0;
    *fault_p = (struct fault){.nth = 0};
    if (sscanf(text, "%63[^:,]%n", fault_p->function, &name) != 1) {
        return false;
    }
    if ((size_t)name == length) {
        return true;
    }
    return sscanf(text + name, ":%lu%n", &fault_p->nth, &number) == 1 && fault_p->nth > 0 &&
           (size_t)(name + number) == length;
}

static void read_faults(const char *variable, enum act act)
{
    const char *text = getenv(variable);
    while (text && text[0] != '\0') {
        size_t length = strcspn(text, ",");
        if (fault_count == MAX_FAULTS || !parse_fault(text, length, &faults[fault_count])) {
            fprintf(stderr, "simnode: %s: cannot use '%.*s'\n", variable, (int)length, text);
        } else {
            faults[fault_count++].act = act;
        }
        text += length + (text[length] == ',');
    }
}

static void read_environment(void)
{
    const char *path = getenv("SIMNODE_TRACE");
    read_faults("SIMNODE_FAIL", ACT_FAIL);
    read_faults("SIMNODE_KILL", ACT_KILL);
    read_faults("SIMNODE_STOP", ACT_STOP);
    read_faults("SIMNODE_QUIT", ACT_QUIT);
    read_faults("SIMNODE_EXIT", ACT_EXIT);
    caller_name = getenv("SIMNODE_CALLER");
    from = getenv("SIMNODE_FROM");
    atomic_store(&begun, from == NULL);
    if (path && path[0] != '\0') {
        trace = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
}

/* One write, so that lines of several threads and processes do not mix. */
static void trace_call(const char *function)
{
    char line[MAX_NAME + 1];
    int length = snprintf(line, sizeof line, "%s\n", function);
    if (write(trace, line, (size_t)length) != length) {
        fprintf(stderr, "simnode: SIMNODE_TRACE cannot be written\n");
    }
}

static bool counts(const char *function, const void *caller)
{
    Dl_info info;
    if (!atomic_load(&begun)) {
        atomic_store(&begun, strcmp(function, from) == 0);
        return false;
    }
    if (!caller_name) {
        return true;
    }
    if (!dladdr(caller, &info) || !info.dli_fname) {
        return false;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    return strcmp(slash ? slash + 1 : info.dli_fname, caller_name) == 0;
}

/* What a fault does to the process. True: the call fails. */
static bool act_on(enum act act)
{
    switch (act) {
    case ACT_FAIL:
        return true;
    case ACT_KILL:
        kill(getpid(), SIGKILL);
        break;
    case ACT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case ACT_QUIT:
        _exit(0);
    case ACT_EXIT:
        exit(0);
    }
    return false;
}

bool simnode_call(const char *function, const void *caller)
{
    bool fails = false;
    pthread_once(&once, read_environment);
    if ((trace < 0 && fault_count == 0) || !counts(function, caller)) {
        return false;
    }
    if (trace >= 0) {
        trace_call(function);
    }
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->function, function) == 0) {
            unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
            if (fault->nth == 0 || fault->nth == call) {
                fails |= act_on(fault->act);
            }
        }
    }
    return fails;
}

void simnode_tell(const char *kind, const char *text)
{
    const char *path = getenv("SIMNODE_SECRETS");
    char line[256];
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        int length = snprintf(line, sizeof line, "%s %s\n", kind, text);
        if (write(fd, line, (size_t)length) != length) {
            fprintf(stderr, "simnode: SIMNODE_SECRETS cannot be written\n");
        }
        close(fd);
    }
}

FILE *simnode_report_open(void)
{
    const char *prefix = getenv("SIMNODE_REPORT");
    char path[4096];
    if (!prefix || prefix[0] == '\0') {
        return NULL;
    }
    snprintf(path, sizeof path, "%s.%ld", prefix, (long)getpid());
    return fopen(path, "ae");
}
