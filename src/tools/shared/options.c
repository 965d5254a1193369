/* SPDX-License-Identifier: MIT */
/*
 * options.c - options of a subcommand
 *
 * Does: Parses them by getopt_long from a table, and the values that several subcommands have in common.
 * Threads: one.
 * Owns: nothing.
 */
#include "tools/shared/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/tool.h"
#include "util/env.h"

#define OPTIONS_MAX 60
#define FIRST_CODE 256 /* what getopt_long returns for row 0: no letter has this value */

/* --- values ----------------------------------------------------------------------------------------------------- */

void oh_option_path(const char *name, const char *text, void *value)
{
    if (!text[0]) {
        OH_TOOL_REFUSE("--%s '': expected a path", name);
    }
    *(const char **)value = text;
}

/* A whole number in [range->min, range->max], with K, M or G behind it if `units`. */
static uint64_t take_number(const char *name, const char *text, const struct oh_range *range, bool units)
{
    uint64_t number;
    if (!oh_number_parse(text, units, range->max, &number) || number < range->min) {
        OH_TOOL_REFUSE("--%s %s: expected a whole number from %zu to %zu%s", name, text, range->min, range->max,
                       units ? "; K, M or G may follow" : "");
    }
    return number;
}

void oh_option_int(const char *name, const char *text, void *value)
{
    const struct oh_range *range = value;
    *(int *)range->number = (int)take_number(name, text, range, false);
}

void oh_option_size(const char *name, const char *text, void *value)
{
    const struct oh_range *range = value;
    *(size_t *)range->number = take_number(name, text, range, true);
}

/* The word's index. */
static int take_word(const char *name, const char *text, const char *word, const struct oh_words *words)
{
    char all[256] = "";
    int found = oh_find_word(word, words->word, words->words);
    for (int i = 0; i < words->words && found < 0; i++) {
        oh_text_append(all, sizeof all, "%s%s", i ? ", " : "", words->word[i]);
    }
    if (found < 0) {
        OH_TOOL_REFUSE("--%s %s: '%s' is unknown; expected %s", name, text, word, all);
    }
    return found;
}

void oh_option_word(const char *name, const char *text, void *value)
{
    const struct oh_words *words = value;
    *(int *)words->chosen = take_word(name, text, text, words);
}

void oh_option_list(const char *name, const char *text, void *value)
{
    const struct oh_words *words = value;
    bool everything = strcmp(text, "all") == 0, *chosen = words->chosen;
    char *copy = strdupa(text);
    for (int i = 0; i < words->words; i++) {
        chosen[i] = everything;
    }
    for (const char *word; !everything && (word = strsep(&copy, ",")) != NULL;) {
        chosen[take_word(name, text, word, words)] = true;
    }
}

/* --- the table -------------------------------------------------------------------------------------------------- */

/* Makes the same table in the form of getopt_long, and its letters. "+": ends at the first operand; ":": prints
 * nothing.
 */
static void translate(const struct oh_option *options, struct option *long_p, char *letters_p)
{
    int row = 0;
    letters_p = stpcpy(letters_p, "+:h");
    for (; row < OPTIONS_MAX && options[row].name; row++) {
        int argument = options[row].take ? required_argument : no_argument;
        long_p[row] = (struct option){options[row].name, argument, NULL, FIRST_CODE + row};
        if (options[row].letter) {
            *letters_p++ = options[row].letter;
            *letters_p = ':';
            letters_p += argument == required_argument;
        }
    }
    *letters_p = '\0';
    long_p[row] = (struct option){"help", no_argument, NULL, 'h'};
    long_p[row + 1] = (struct option){NULL, 0, NULL, 0};
}

static const struct oh_option *row_of(const struct oh_option *options, int code)
{
    if (code >= FIRST_CODE) {
        return &options[code - FIRST_CODE];
    }
    while (options->name && options->letter != code) {
        options++;
    }
    return options;
}

/* Ends the command if more than one option begins with this word. */
static void refuse_unclear(char **argv, const struct oh_option *options, const char *word)
{
    const size_t length = strcspn(word + 2, "=");
    const char *one = NULL;
    for (; options->name; options++) {
        const bool begins = strncmp(options->name, word + 2, length) == 0;
        if (begins && one) {
            OH_TOOL_REFUSE("%s: not clear: --%s or --%s; see onehop %s --help", word, one, options->name, argv[0]);
        }
        one = begins ? options->name : one;
    }
}

/* Ends the command because of what getopt_long has just returned. */
static _Noreturn void refuse(char **argv, const struct oh_option *options, int code)
{
    const char letter[] = {'-', (char)optopt, '\0'};
    const char *known = optopt == 'h' ? "help" : optopt ? row_of(options, optopt)->name : NULL;
    const char *word = optopt ? letter : argv[optind - 1];
    if (!optopt) {
        refuse_unclear(argv, options, word);
    }
    const char *nearest = optopt ? NULL : oh_tool_nearest(word + 2, options, sizeof *options);
    if (known) {
        OH_TOOL_REFUSE("--%s: %s; see onehop %s --help", known, code == ':' ? "value missing" : "takes no value",
                       argv[0]);
    }
    OH_TOOL_REFUSE("%s: unknown option%s%s%s; see onehop %s --help", word, nearest ? " (did you mean --" : "",
                   nearest ? nearest : "", nearest ? "?)" : "", argv[0]);
}

int oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options)
{
    struct option long_options[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 4];
    int code;
    translate(options, long_options, letters);
    while ((code = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
        if (code == '?' || code == ':') {
            refuse(argv, options, code);
        }
        if (code == 'h') {
            fputs(help, stdout);
            oh_tool_finish_stdout();
            exit(OH_EXIT_OK);
        }
        const struct oh_option *option = row_of(options, code);
        if (option->take) {
            option->take(option->name, optarg, option->value);
        } else {
            *(bool *)option->value = true;
        }
    }
    return optind;
}

void oh_options_only(int argc, char **argv, const char *help, const struct oh_option *options)
{
    int first = oh_options_read(argc, argv, help, options);
    if (first < argc) {
        OH_TOOL_REFUSE("%s: unexpected argument; see onehop %s --help", argv[first], argv[0]);
    }
}
