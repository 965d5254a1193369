/* SPDX-License-Identifier: MIT */
/*
 * shared/message.c - messages of all subcommands
 *
 * Does: Prints errors, ends stdout, compares words. Ends the command without memory.
 * Threads: one.
 * Owns: the name of the subcommand, and the line of progress.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/shared/tool.h"

#define FAR 3 /* changes of a word */

static const char *command; /* the subcommand; NULL: none yet */
int oh_tool_failure = OH_EXIT_FAILED;
static bool progress; /* is on the terminal */

void oh_tool_begin(const char *name, int failure)
{
    command = name;
    oh_tool_failure = failure;
}

void oh_tool_clear_progress(void)
{
    if (progress) {
        fprintf(stderr, "\r\033[K");
        progress = false;
    }
}

void oh_tool_show_progress(const char *format, ...)
{
    va_list args;
    if (isatty(STDERR_FILENO)) {
        oh_tool_clear_progress();
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        progress = true;
    }
}

void oh_tool_error(const char *format, ...)
{
    va_list args;
    int error = errno; /* for %m */
    fflush(stdout);
    oh_tool_clear_progress();
    fprintf(stderr, "onehop: %s%s", command ? command : "", command ? ": " : "");
    errno = error;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
}

void oh_tool_put_escaped(const char *text, FILE *stream)
{
    for (; *text; text++) {
        fprintf(stream, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
}

static void *there(void *memory)
{
    if (!memory) {
        OH_TOOL_FAIL("out of memory");
    }
    return memory;
}

void *oh_tool_allocate(size_t size)
{
    return there(calloc(1, size));
}

void *oh_tool_resize(void *array, size_t count, size_t size)
{
    return there(reallocarray(array, count, size));
}

static struct {
    int number;
    void (*before)(int);
} write_signals[] = {{SIGPIPE, SIG_DFL}, {SIGXFSZ, SIG_DFL}};

void oh_tool_ignore_write_signals(void)
{
    for (size_t i = 0; i < sizeof write_signals / sizeof *write_signals; i++) {
        write_signals[i].before = signal(write_signals[i].number, SIG_IGN);
    }
}

void oh_tool_restore_write_signals(void)
{
    for (size_t i = 0; i < sizeof write_signals / sizeof *write_signals; i++) {
        signal(write_signals[i].number, write_signals[i].before);
    }
}

int oh_tool_exec(char **argv)
{
    oh_tool_restore_write_signals();
    execvp(argv[0], argv);
    int error = errno;
    oh_tool_error("%s: %m", argv[0]);
    return error == ENOENT ? OH_EXIT_NOT_FOUND : OH_EXIT_CANNOT_RUN;
}

void oh_tool_finish_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        OH_TOOL_REFUSE("stdout: %m");
    }
}

/* True when so many letters that are changed, inserted or removed make one word of the other. */
static bool is_near(const char *a, const char *b, size_t changes)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return (!*a && !*b) ||
           (changes > 0 && ((*a && *b && is_near(a + 1, b + 1, changes - 1)) ||
                            (*a && is_near(a + 1, b, changes - 1)) || (*b && is_near(a, b + 1, changes - 1))));
}

const char *oh_tool_nearest(const char *word, const void *rows, size_t row_size)
{
    const char *name;
    for (size_t changes = 1; changes < FAR; changes++) {
        for (const char *row = rows; memcpy(&name, row, sizeof name), name; row += row_size) {
            if (changes < strlen(name) && is_near(word, name, changes)) {
                return name;
            }
        }
    }
    return NULL;
}

bool oh_tool_is_simulated(const char *gpu_name)
{
    return strncmp(gpu_name, "SIMULATED", strlen("SIMULATED")) == 0;
}
