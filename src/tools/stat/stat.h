/* SPDX-License-Identifier: MIT */
/*
 * stat.h - what the parts of `onehop stat` share
 *
 * The live pages of all processes are read first (stat.c), then written in one form. One thread.
 */
#ifndef OH_TOOLS_STAT_STAT_H_
#define OH_TOOLS_STAT_STAT_H_

#include <stdio.h>

#include "tools/shared/live_reader.h"

struct oh_stat {
    struct oh_live_view *view;
    size_t views;
};

/* stat/openmetrics.c: writes the counters in the text format of OpenMetrics 1.0. */
void oh_stat_openmetrics(FILE *stream, const struct oh_stat *stat);

#endif
