/* SPDX-License-Identifier: MIT */
/*
 * env.c - the environment variables of env.h
 *
 * Does: Reads a variable when it is asked for, and rejects a bad value with one WARN.
 * Threads: any; atomic flags.
 * Owns: nothing; values are the environment's strings.
 */
#include "util/env.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/log.h"

#define PATH_LENGTH_MAX 200

static const struct {
    const char *name;
    const char *standard;
    const char *accepted;
} variables[OH_ENV_COUNT] = {
#define OH_ENV_ROW(identifier_, name_, default_, accepted_) {name_, default_, accepted_},
    OH_ENV_VARIABLES(OH_ENV_ROW)};

const char *oh_env_text(enum oh_env_variable variable)
{
    const char *value = secure_getenv(variables[variable].name);
    return value && *value ? value : NULL;
}

void oh_env_reject(enum oh_env_variable variable)
{
    static atomic_flag said[OH_ENV_COUNT];
    const char *value = oh_env_text(variable);
    if (!atomic_flag_test_and_set(&said[variable])) {
        OH_WARN("%s=%.64s is not accepted (%s); using the default, %s", variables[variable].name, value ? value : "",
                variables[variable].accepted, variables[variable].standard);
    }
}

int oh_env_choice(enum oh_env_variable variable, const char *const *names, int count, int unset)
{
    const char *value = oh_env_text(variable);
    if (!value) {
        return unset;
    }
    for (int i = 0; i < count; i++) {
        if (strcasecmp(value, names[i]) == 0) {
            return i;
        }
    }
    oh_env_reject(variable);
    return unset;
}

bool oh_env_flag(enum oh_env_variable variable, bool unset)
{
    static const char *const names[] = {"0", "1"};
    return oh_env_choice(variable, names, 2, unset) == 1;
}

bool oh_number_parse(const char *text, bool units, uint64_t max, uint64_t *number_p)
{
    static const char letters[] = "kKmMgG";
    char *end;
    const unsigned long long number = strtoull(text, &end, 10); /* if too large, ULLONG_MAX */
    const char *letter = units && *end ? strchr(letters, *end) : NULL;
    const unsigned shift = letter ? 10 * (1 + (unsigned)(letter - letters) / 2) : 0;
    if (*text < '0' || *text > '9' || end[letter ? 1 : 0] != '\0' || number > max >> shift) {
        return false;
    }
    *number_p = number << shift;
    return true;
}

uint64_t oh_env_number(enum oh_env_variable variable, bool units, uint64_t max, uint64_t unset)
{
    const char *value = oh_env_text(variable);
    uint64_t number;
    if (!value) {
        return unset;
    }
    if (!oh_number_parse(value, units, max, &number)) {
        oh_env_reject(variable);
        return unset;
    }
    return number;
}

bool oh_env_is_path(const char *text)
{
    return text[0] == '/' && strlen(text) <= PATH_LENGTH_MAX;
}

const char *oh_env_path(enum oh_env_variable variable, const char *unset)
{
    const char *value = oh_env_text(variable);
    if (value && !oh_env_is_path(value)) {
        oh_env_reject(variable);
        value = NULL;
    }
    return value ? value : unset;
}
