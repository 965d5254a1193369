/* SPDX-License-Identifier: MIT */
/*
 * t_driver.c - a machine without the CUDA driver: one clear reason, again and again, and nothing else
 */
#include <dlfcn.h>
#include <string.h>

#include "gpu/driver.h"
#include "test/tap.h"
#include "topo/topo.h"

int main(void)
{
    struct oh_topo_pair pair;
    char reason[160];

    if (dlopen("libcuda.so.1", RTLD_LAZY)) {
        tap_skip_all("this machine has a CUDA driver");
    }
    tap_ok(strcmp(oh_driver_error(), "") == 0, "no reason before anything was asked");
    for (int i = 0; i < 2; i++) {
        tap_ok(oh_driver_open() == ncclSystemError, "no table without a driver");
        tap_ok(strcmp(oh_driver_error(), "libcuda.so.1 cannot be opened") == 0, "the reason: %s", oh_driver_error());
    }
    pair = (struct oh_topo_pair){0}; /* what can be gathered then */
    tap_ok(!oh_topo_check_pair("0000:19:00.0", "0000:3b:00.0", &pair, reason, sizeof reason) && reason[0],
           "nothing known is not NVLink: %s", reason);
    return tap_done();
}
