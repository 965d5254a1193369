/* SPDX-License-Identifier: MIT */
/*
 * late_end_library.c - a library with a static object: what the program hands over is called by the library's
 * destructor
 */
#include "late_end.h"

#include <stddef.h>

static void (*action)(void);

__attribute__((visibility("default"))) void late_end_keep(void (*function)(void))
{
    action = function;
}

__attribute__((destructor)) static void end(void)
{
    if (action) {
        action();
    }
}
