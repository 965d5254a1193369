/* SPDX-License-Identifier: MIT */
/* default_table.h - the shipped table for a GPU that onehop does not know, with the user's limits */
#ifndef TEST_UNIT_DEFAULT_TABLE_H_
#define TEST_UNIT_DEFAULT_TABLE_H_

#include "plan/tuning.h"

static inline void default_table(uint32_t nranks, uint64_t max_bytes, int forced, struct oh_plan_table *table_p)
{
    oh_tuning_shipped("", nranks, table_p, NULL);
    oh_plan_table_apply_limits(table_p, max_bytes, forced);
}

#endif
