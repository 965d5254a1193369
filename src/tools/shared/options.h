/* SPDX-License-Identifier: MIT */
/*
 * options.h - the options of a subcommand, as a table
 *
 * Options end at the first operand, so that those of a program behind it stay its own. Every table has --help without a
 * row for it. Whatever is wrong ends the command, with one sentence on stderr.
 */
#ifndef OH_TOOLS_SHARED_OPTIONS_H_
#define OH_TOOLS_SHARED_OPTIONS_H_

#include <stddef.h>
#include <string.h>

/*
 * One row. `take` reads the option's argument into *value; it may be one of those below. Without `take` the option has
 * no argument: *value is a bool and becomes true.
 */
struct oh_option {
    const char *name; /* without its dashes; NULL ends the table */
    char letter;      /* 0: none */
    void (*take)(const char *name, const char *text, void *value);
    void *value;
};

/* The text itself, which is not empty; value: const char *. */
void oh_option_path(const char *name, const char *text, void *value);

/* A whole number; value: OH_RANGE of an int, or of a size_t. A size may have K, M or G behind it. */
struct oh_range {
    void *number;
    size_t min, max;
};
#define OH_RANGE(number_, min_, max_) (&(struct oh_range){(number_), (min_), (max_)})
void oh_option_int(const char *name, const char *text, void *value);
void oh_option_size(const char *name, const char *text, void *value);

/*
 * One of some words; value: OH_WORDS of an int, its index. Or several, separated by commas; value: OH_WORDS of an array
 * of bool, of which those named become true and the others false; "all" names all.
 */
struct oh_words {
    void *chosen;
    const char *const *word;
    int words;
};
#define OH_WORDS(chosen_, word_) (&(struct oh_words){(chosen_), (word_), (int)(sizeof(word_) / sizeof *(word_))})
void oh_option_word(const char *name, const char *text, void *value);
void oh_option_list(const char *name, const char *text, void *value);

/* The index of `text` among the words, or -1. */
static inline int oh_find_word(const char *text, const char *const *word, int words)
{
    while (--words >= 0 && strcmp(text, word[words]) != 0) {
    }
    return words;
}

/* Reads the options. Returns the index of the first operand; argc: there is none. --help ends the command. */
int oh_options_read(int argc, char **argv, const char *help, const struct oh_option *options);

/* Does the same for a subcommand without operands. */
void oh_options_only(int argc, char **argv, const char *help, const struct oh_option *options);

#endif
