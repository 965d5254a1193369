/* SPDX-License-Identifier: MIT */
#include "test/common/options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cf_options_refuse(const char *usage)
{
    fputs(usage, stderr);
    exit(2);
}

static bool take(const struct cf_option *option, const char *text)
{
    char *end = (char *)"";
    switch (option->kind) {
    case CF_KIND_INT: {
        long number = strtol(text, &end, 10);
        *(int *)option->value = (int)number;
        return *text != '\0' && *end == '\0' && number >= option->least && number <= option->most;
    }
    case CF_KIND_NUMBER:
        *(uint64_t *)option->value = strtoull(text, &end, 0);
        return *text != '\0' && *end == '\0';
    case CF_KIND_WORD:
        *(const char **)option->value = text;
        return true;
    default:
        return option->take(option->value, text);
    }
}

static const struct cf_option *find(const struct cf_option *options, const char *word)
{
    const char *name = strncmp(word, "--", 2) == 0 ? word + 2 : word + 1;
    while (options->name != NULL && (strcmp(options->name, name) != 0 || (name - word == 1) != (name[1] == '\0'))) {
        options++;
    }
    return options->name != NULL ? options : NULL;
}

int cf_options_read(int argc, char **argv, const char *usage, const struct cf_option *options)
{
    int at = 1;
    for (; at < argc && argv[at][0] == '-' && argv[at][1] != '\0'; at++) {
        const struct cf_option *option = find(options, argv[at]);
        if (option != NULL && option->kind == CF_KIND_FLAG) {
            *(bool *)option->value = true;
        } else if (option == NULL || at + 1 == argc || !take(option, argv[++at])) {
            fprintf(stderr, "%s: wrong: %s\n", argv[0], argv[at]);
            cf_options_refuse(usage);
        }
    }
    return at;
}

bool cf_for_each(const char *list, bool (*add)(void *value, const char *part), void *value)
{
    char copy[4096], *rest = copy, *part;
    bool good = (size_t)snprintf(copy, sizeof copy, "%s", list) < sizeof copy;
    while (good && (part = strsep(&rest, ",")) != NULL) {
        good = add(value, part);
    }
    return good;
}

static bool add_ranks(void *value, const char *part)
{
    struct cf_ranks *ranks = value;
    int number = atoi(part);
    if (number < 2 || number > CF_MAX_RANKS || ranks->count == CF_MAX_RANKS) {
        return false;
    }
    ranks->list[ranks->count++] = number;
    return true;
}

bool cf_take_ranks(void *ranks, const char *list)
{
    ((struct cf_ranks *)ranks)->count = 0;
    return cf_for_each(list, add_ranks, ranks);
}

int cf_index(const char *const *names, int count, const char *word)
{
    int i = 0;
    while (i < count && strcmp(names[i], word) != 0) {
        i++;
    }
    return i < count ? i : -1;
}
