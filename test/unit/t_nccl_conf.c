/* SPDX-License-Identifier: MIT */
/*
 * t_nccl_conf.c - NCCL's variables from the environment and from nccl.conf, in NCCL's order
 */
#include "util/nccl_conf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/tap.h"

static bool is(const char *name, const char *expected)
{
    const char *value = oh_nccl_variable(name);
    return expected ? value && strcmp(value, expected) == 0 : !value;
}

int main(void)
{
    char path[] = "/tmp/onehop-conf.XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    if (!file) {
        perror(path);
        return 1;
    }
    fputs("# NCCL_OUT=1\n\nNCCL_NO_VALUE\nNCCL_A=first\nNCCL_A=second\nNCCL_SET=file\nNCCL_EMPTY=\nNCCL_B=x=y #z\n"
          " NCCL_BLANK=1\nNCCL_DOS=1\r\nNCCL_LAST=8",
          file);
    fclose(file);
    setenv("NCCL_CONF_FILE", path, 1);
    setenv("NCCL_SET", "environment", 1);
    errno = 4711;
    tap_ok(is("NCCL_A", "first"), "of two lines the first counts");
    tap_ok(errno == 4711, "errno stays");
    unlink(path);
    tap_ok(is("NCCL_SET", "environment"), "the environment goes before the file");
    tap_ok(is("NCCL_EMPTY", "") && is("NCCL_B", "x=y #z") && is("NCCL_LAST", "8") && is("NCCL_DOS", "1"),
           "values as they are written");
    tap_ok(is("NCCL_OUT", NULL) && is("NCCL_NO_VALUE", NULL) && is("NCCL_BLANK", NULL) && is("NCCL", NULL),
           "comments, lines without a value, names behind a blank, parts of names: not set");
    tap_ok(!getenv("NCCL_A"), "the program's environment is as it was");
    tap_ok(oh_nccl_number("0x10", -1) == 16 && oh_nccl_number("12", -1) == 12 && oh_nccl_number("0", -1) == 0 &&
               oh_nccl_number("", -1) == -1 && oh_nccl_number(NULL, -1) == -1 && oh_nccl_number("1x", -1) == -1 &&
               oh_nccl_number("-5", -1) == -1 && oh_nccl_number("99999999999", -1) == -1,
           "whole numbers, and what is none");
    return tap_done();
}
