/* SPDX-License-Identifier: MIT */
/*
 * tap.h - TAP output for test programs in C and C++
 *
 *   int main(void)
 *   {
 *       tap_ok(1 + 1 == 2, "one and one");
 *       return tap_done();
 *   }
 *
 * A failed point does not end the program; its text should say what was seen. One thread at a time.
 */
#ifndef TEST_TAP_H_
#define TEST_TAP_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int tap_points;
static int tap_failures;

/* One test point: passed when `passed`. Returns `passed`. */
__attribute__((format(printf, 2, 3), unused)) static bool tap_ok(bool passed, const char *format, ...)
{
    va_list args;
    tap_points++;
    tap_failures += !passed;
    printf("%sok %d - ", passed ? "" : "not ", tap_points);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    return passed;
}

/* A line of explanation. */
__attribute__((format(printf, 1, 2), unused)) static void tap_note(const char *format, ...)
{
    va_list args;
    printf("# ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

/* Ends the program: none of it can run here. */
__attribute__((unused)) static void tap_skip_all(const char *reason)
{
    printf("1..0 # SKIP %s\n", reason);
    exit(0);
}

/* Prints the plan. Returns the program's exit status. */
__attribute__((unused)) static int tap_done(void)
{
    printf("1..%d\n", tap_points);
    return tap_failures ? 1 : 0;
}

#endif
