/* SPDX-License-Identifier: MIT */
/*
 * t_env.c - what the environment may say, and what the user is told when it says something else
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/tap.h"
#include "util/env.h"
#include "util/log.h"

static int error_pipe[2];

/* stderr goes into a pipe; this takes out what has come since the last time. */
static const char *said(void)
{
    static char text[4096];
    ssize_t length = read(error_pipe[0], text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    return text;
}

static void test_number(const char *value, uint64_t expected)
{
    setenv("ONEHOP_MAX_BYTES", value, 1);
    uint64_t got = oh_env_number(OH_ENV_MAX_BYTES, true, UINT64_C(1) << 30, 12345);
    tap_ok(got == expected, "ONEHOP_MAX_BYTES=%s is %llu", value, (unsigned long long)got);
}

int main(void)
{
    static const char *const names[] = {"auto", "oneshot"};
    if (pipe(error_pipe) != 0 || fcntl(error_pipe[0], F_SETFL, O_NONBLOCK) != 0) {
        return 1;
    }
    dup2(error_pipe[1], STDERR_FILENO);

    setenv("ONEHOP_DEBUG", "LOUD", 1); /* read at the first message */
    tap_ok(oh_log_level() == OH_LOG_WARN && strstr(said(), "ONEHOP_DEBUG=LOUD"), "a level that is none is reported");
    test_number("0", 0);
    test_number("4096", 4096);
    test_number("64K", 65536);
    test_number("1m", 1 << 20);
    test_number("1G", 1 << 30);
    tap_ok(said()[0] == '\0', "accepted values are taken in silence");

    test_number("banana", 12345);
    const char *text = said();
    tap_ok(strstr(text, "WARN") && strstr(text, "ONEHOP_MAX_BYTES=banana") && strstr(text, "0 to 1G") &&
               strchr(text, '\n') == text + strlen(text) - 1,
           "one line with name, value and what is accepted: %.100s", text);
    test_number("banana", 12345);
    tap_ok(said()[0] == '\0', "said once");
    static const char *const bad[] = {"-1", " 4",   "4 ",  "4KB", "2G", "99999999999999999999", "18446744073709551615K",
                                      "K",  "0x10", "1.5M"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_number(bad[i], 12345);
    }
    test_number("", 12345);

    setenv("ONEHOP_ALGO", "ONESHOT", 1);
    tap_ok(oh_env_choice(OH_ENV_ALGO, names, 2, 0) == 1, "a choice, whatever its case");
    setenv("ONEHOP_ALGO", "ring", 1);
    tap_ok(oh_env_choice(OH_ENV_ALGO, names, 2, 0) == 0 && strstr(said(), "ONEHOP_ALGO=ring"), "an unknown choice");
    setenv("ONEHOP_DISABLE", "1", 1);
    tap_ok(oh_env_flag(OH_ENV_DISABLE, false), "a flag");
    setenv("ONEHOP_DISABLE", "yes", 1);
    tap_ok(!oh_env_flag(OH_ENV_DISABLE, false) && strstr(said(), "0 or 1"), "a flag that is none");
    setenv("ONEHOP_SHM_DIR", "relative", 1);
    tap_ok(strcmp(oh_env_path(OH_ENV_SHM_DIR, "/dev/shm"), "/dev/shm") == 0 && strstr(said(), "absolute"),
           "a relative path");
    return tap_done();
}
