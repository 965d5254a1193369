/* SPDX-License-Identifier: MIT */
/*
 * fuzz_env.c - values of environment variables: whatever they hold, what comes out is within bounds
 *
 * The first byte chooses variable and kind, the rest is the value.
 *
 * sources: src/util/env.c src/util/log.c src/util/output.c src/util/nccl_conf.c src/util/selection.c
 */
#include <stdlib.h>
#include <string.h>

#include "test/fuzz/fuzz.h"
#include "util/env.h"
#include "util/nccl_conf.h"
#include "util/selection.h"

static const char *const names[OH_ENV_COUNT] = {
#define OH_ENV_NAME(identifier_, name_, default_, accepted_) name_,
    OH_ENV_VARIABLES(OH_ENV_NAME)
#undef OH_ENV_NAME
};

static void read_as(int kind, enum oh_env_variable variable)
{
    static const char *const choices[] = {"NONE", "WARN", "INFO", "TRACE"};
    const uint64_t max = UINT64_C(1) << 30;
    int choice;
    uint64_t number;
    const char *path;
    switch (kind) {
    case 0:
        choice = oh_env_choice(variable, choices, 4, -1);
        must(choice >= -1 && choice < 4);
        break;
    case 1:
        (void)oh_env_flag(variable, true);
        break;
    case 2:
        number = oh_env_number(variable, true, max, UINT64_MAX);
        must(number <= max || number == UINT64_MAX);
        break;
    case 3:
        number = oh_env_number(variable, false, UINT64_MAX - 1, UINT64_MAX);
        (void)number;
        break;
    case 4:
        (void)oh_nccl_algo_is_pinned(oh_env_text(variable));
        break;
    case 5:
        path = oh_env_text(variable);
        must(!path || (oh_selection_match(path, 2, "a", "b") == OH_SELECTION_INVALID) ==
                          (oh_selection_match(path, 8, "", "c") == OH_SELECTION_INVALID));
        break;
    default:
        path = oh_env_path(variable, "/unset");
        must(path[0] == '/' && strlen(path) <= 200);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    enum oh_env_variable variable = (enum oh_env_variable)(data[0] / 8 % OH_ENV_COUNT);
    size_t name = strlen(names[variable]);
    char *setting = malloc(name + 1 + size);
    if (!setting) {
        return 0;
    }
    memcpy(setting, names[variable], name);
    setting[name] = '=';
    memcpy(setting + name + 1, data + 1, size - 1);
    setting[name + size] = '\0';
    putenv(setting); /* setenv would keep each value for ever */
    read_as(data[0] % 8, variable);
    unsetenv(names[variable]);
    free(setting);
    return 0;
}
