/* SPDX-License-Identifier: MIT */
/*
 * options.h - the command line of a test program, as a table
 *
 * Options end at the first word that is none. A wrong one prints the usage and ends the program with status 2.
 */
#ifndef TEST_COMMON_OPTIONS_H_
#define TEST_COMMON_OPTIONS_H_

#include <stdbool.h>

#include "test/common/number.h"

enum cf_kind {
    CF_KIND_FLAG,
    CF_KIND_INT,
    CF_KIND_NUMBER,
    CF_KIND_WORD,
    CF_KIND_TAKE
};

struct cf_option {
    const char *name; /* "ranks": --ranks; "n": -n. NULL ends the table. */
    enum cf_kind kind;
    void *value;
    int least, most;
    bool (*take)(void *value, const char *text);
};

/* Rows of a table. */
#define CF_OPTION(name_, kind_, value_, least_, most_, take_)                                                          \
    {                                                                                                                  \
        name_, kind_, value_, least_, most_, take_                                                                     \
    }
/* Without an argument: a bool becomes true. */
#define CF_FLAG(name_, bool_) CF_OPTION(name_, CF_KIND_FLAG, bool_, 0, 0, NULL)
#define CF_INT(name_, int_, least_, most_) CF_OPTION(name_, CF_KIND_INT, int_, least_, most_, NULL)
/* uint64_t, in any base that strtoull knows. */
#define CF_NUMBER(name_, number_) CF_OPTION(name_, CF_KIND_NUMBER, number_, 0, 0, NULL)
/* const char *: the argument itself. */
#define CF_WORD(name_, word_) CF_OPTION(name_, CF_KIND_WORD, word_, 0, 0, NULL)
/* What `take` makes of the argument; false: it is wrong. */
#define CF_TAKES(name_, take_, value_) CF_OPTION(name_, CF_KIND_TAKE, value_, 0, 0, take_)
#define CF_NO_MORE CF_OPTION(NULL, CF_KIND_FLAG, NULL, 0, 0, NULL)

/* Returns the index of the first word that is no option. */
int cf_options_read(int argc, char **argv, const char *usage, const struct cf_option *options);

/* Prints the usage and ends the program. */
void cf_options_refuse(const char *usage) __attribute__((noreturn));

/* Calls `add` for each part of a list with commas; false when one of them is wrong. */
bool cf_for_each(const char *list, bool (*add)(void *value, const char *part), void *value);

/* Numbers of ranks, for CF_TAKES: "2,4". */
struct cf_ranks {
    int list[CF_MAX_RANKS];
    int count;
};
bool cf_take_ranks(void *ranks, const char *list);

/* The place of a word among `count` names; -1: it is none of them. */
int cf_index(const char *const *names, int count, const char *word);

#endif
