/* SPDX-License-Identifier: MIT */
/*
 * t_architecture.c - for which GPUs a build has kernels, by the targets of nvcc
 */
#include "gpu/kernels.h"

#include <string.h>

#include "test/tap.h"

static void check(const char *targets, int capability, bool runs)
{
    tap_ok(oh_architectures_include(targets, capability / 10, capability % 10) == runs, "\"%s\" %s %d.%d", targets,
           runs ? "runs on" : "does not run on", capability / 10, capability % 10);
}

int main(void)
{
    static const char shipped[] = "sm_80 sm_90 sm_100 compute_90";
    check("", 90, false);
    check("any", 90, true);
    check("sm_90", 90, true);
    check("sm_90", 80, false);
    check("sm_90", 100, false);
    check("sm_80", 86, true);
    check("sm_86", 80, false);
    check("sm_80 compute_80", 90, true);
    check("compute_90", 80, false);
    check("sm_90a", 90, true);
    check("sm_100a", 103, false);
    check("compute_100a", 120, false);
    check(shipped, 80, true);
    check(shipped, 75, false);
    check(shipped, 103, true);
    check(shipped, 120, true);
    tap_ok(!strchr(oh_architectures, '\n') && !strchr(oh_architectures, '='), "this build's: \"%s\"", oh_architectures);
    return tap_done();
}
