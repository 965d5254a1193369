/* SPDX-License-Identifier: MIT */
/*
 * check.h - how the programs of this folder that run a rank in each process or thread end when something is wrong
 *
 * The whole process ends at once: other threads may wait for ever.
 */
#ifndef TEST_GPU_CHECK_H_
#define TEST_GPU_CHECK_H_

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* One write, so that lines of several processes do not mix. who: "" or "rank 3, " */
__attribute__((noreturn, format(printf, 3, 4))) static inline void check_failed(const char *who, int line,
                                                                                const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("FAIL %sline %d: %s\n", who, line, text);
    fflush(stdout);
    _exit(1);
}

/* CHECK_WHO is a text for the above, defined before. */
#define CHECK(condition_, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            check_failed(CHECK_WHO, __LINE__, __VA_ARGS__);                                                            \
        }                                                                                                              \
    } while (0)

#endif
