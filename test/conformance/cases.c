/* SPDX-License-Identifier: MIT */
#include "test/conformance/cases.h"

#define CF_ENTRY(name_, run_, when_, what_) {name_, cf_case_##run_, when_, what_},
const struct cf_case cf_cases[] = {CF_CASES(CF_ENTRY)};
#undef CF_ENTRY

const int cf_case_count = sizeof cf_cases / sizeof *cf_cases;
_Static_assert(sizeof cf_cases / sizeof *cf_cases <= CF_MAX_CASES, "the board has room for all");
