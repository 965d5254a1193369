/* SPDX-License-Identifier: MIT */
/*
 * shared/message.c - what all subcommands say, and say of a GPU
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gpu/driver.h"
#include "tools/shared/tool.h"

void oh_tool_error(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "onehop: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
}

int oh_tool_finish_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return OH_EXIT_OK;
    }
    oh_tool_error("stdout: %s", strerror(errno));
    return OH_EXIT_USAGE;
}

void oh_tool_driver_error(char *text_p, size_t size)
{
    if (strstr(oh_driver_error(), "CUDA_ERROR_NO_DEVICE")) {
        snprintf(text_p, size, "CUDA sees no GPU here");
    } else {
        snprintf(text_p, size, "no usable CUDA driver: %s", oh_driver_error());
    }
}

bool oh_tool_is_simulated(const char *gpu_name)
{
    return strncmp(gpu_name, "SIMULATED", strlen("SIMULATED")) == 0;
}
