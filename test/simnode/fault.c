/* SPDX-License-Identifier: MIT */
/*
 * fault.c - see fault.h
 *
 * The list of faults is built by the first call and then only its counters change.
 */
#include "test/simnode/fault.h"

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

struct fault {
    char function[MAX_NAME];
    unsigned long nth; /* 0: every call */
    atomic_ulong calls;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fault faults[MAX_FAULTS];
static int fault_count;
static struct fault fatal; /* no name: none */
static int trace = -1;

/* Reads one `symbol[:n]` of `length` characters. */
static bool parse_fault(const char *text, size_t length, struct fault *fault_p)
{
    char word[MAX_NAME + 16], *end;
    if (length == 0 || length >= sizeof word) {
        return false;
    }
    memcpy(word, text, length);
    word[length] = '\0';
    char *colon = strchr(word, ':');
    if (colon) {
        *colon = '\0';
        fault_p->nth = strtoul(colon + 1, &end, 10);
        if (*end != '\0' || fault_p->nth == 0) {
            return false;
        }
    }
    size_t name = strlen(word);
    if (name == 0 || name >= MAX_NAME) {
        return false;
    }
    memcpy(fault_p->function, word, name + 1);
    return true;
}

static void read_environment(void)
{
    const char *text = getenv("SIMNODE_FAIL");
    const char *path = getenv("SIMNODE_TRACE");
    const char *kills = getenv("SIMNODE_KILL");
    if (kills && !parse_fault(kills, strlen(kills), &fatal)) {
        fprintf(stderr, "simnode: SIMNODE_KILL: cannot use '%s'\n", kills);
    }
    while (text && text[0] != '\0') {
        size_t length = strcspn(text, ",");
        if (fault_count == MAX_FAULTS || !parse_fault(text, length, &faults[fault_count])) {
            fprintf(stderr, "simnode: SIMNODE_FAIL: cannot use '%.*s'\n", (int)length, text);
        } else {
            fault_count++;
        }
        text += length + (text[length] == ',');
    }
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

bool simnode_call(const char *function)
{
    bool fails = false;
    pthread_once(&once, read_environment);
    if (trace >= 0) {
        trace_call(function);
    }
    if (strcmp(fatal.function, function) == 0 && atomic_fetch_add(&fatal.calls, 1) + 1 == fatal.nth) {
        raise(SIGKILL);
    }
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->function, function) == 0) {
            unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
            fails = fails || fault->nth == 0 || fault->nth == call;
        }
    }
    return fails;
}
