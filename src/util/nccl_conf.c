/* SPDX-License-Identifier: MIT */
/*
 * nccl_conf.c - reads nccl.conf, and values of NCCL's variables
 *
 * Does: See nccl_conf.h. A line of the file is NAME=VALUE; of two lines with one name the first counts, as with setenv
 *    without overwriting (initEnv of NCCL).
 * Threads: any; pthread_once.
 * Owns: the settings.
 */
#include "util/nccl_conf.h"

#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "util/scope.h"

struct setting {
    char *line; /* "NAME=VALUE" */
    struct setting *next;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct setting *first, **end = &first;

static void read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    while (file && getline(&line, &room, file) > 0) {
        struct setting *setting = line[0] != '#' && strchr(line, '=') ? malloc(sizeof *setting) : NULL;
        if (setting) {
            line[strcspn(line, "\r\n")] = '\0';
            *setting = (struct setting){.line = line};
            *end = setting;
            end = &setting->next;
            line = NULL;
        }
    }
    free(line);
    if (file) {
        fclose(file);
    }
}

static void read_home(const char *home)
{
    char path[PATH_MAX];
    if (home && snprintf(path, sizeof path, "%s/.nccl.conf", home) < (int)sizeof path) {
        read_file(path);
    }
}

/* NCCL asks the password database for the home. A file in another $HOME counts behind it: a shell writes it to ~. */
static void read_all(void)
{
    const char *named = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
    char buffer[4096];
    struct passwd entry, *user = NULL;
    if (named && named[0]) {
        read_file(named);
    } else {
        getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &user);
        read_home(user ? user->pw_dir : NULL);
        read_home(home && user && strcmp(home, user->pw_dir) == 0 ? NULL : home);
    }
    read_file("/etc/nccl.conf");
}

const char *oh_nccl_variable(const char *name)
{
    const char *value = getenv(name);
    const size_t length = strlen(name);
    OH_KEEP_ERRNO();
    pthread_once(&once, read_all);
    for (const struct setting *setting = first; setting && !value; setting = setting->next) {
        if (strncmp(setting->line, name, length) == 0 && setting->line[length] == '=') {
            value = setting->line + length + 1;
        }
    }
    return value;
}

int oh_nccl_number(const char *text, int unset)
{
    char *rest;
    OH_KEEP_ERRNO();
    const long value = text ? strtol(text, &rest, 0) : 0;
    return text && rest != text && *rest == '\0' && value >= 0 && value <= INT_MAX ? (int)value : unset;
}

static bool is_name(const char *text, size_t length, const char *name)
{
    return strlen(name) == length && strncasecmp(text, name, length) == 0;
}

int oh_nccl_cta_policy(const char *text, int unset)
{
    static const char *const names[] = {"DEFAULT", "EFFICIENCY", "ZERO"}; /* since 2.29: several, with '|' between */
    int policy = unset;
    OH_KEEP_ERRNO();
    if (text && text[0] >= '0' && text[0] <= '9') {
        return (int)(strtol(text, NULL, 0) & INT_MAX);
    }
    for (const char *word = text; word && *word; word += *word == '|') {
        const size_t length = strcspn(word, "|");
        for (int i = 0; i < 3; i++) {
            if (is_name(word, length, names[i])) {
                policy = policy == unset ? i : policy | i; /* their values are 0, 1 and 2 */
            }
        }
        word += length;
    }
    return policy;
}

/* --- NCCL_ALGO ---------------------------------------------------------------------------------------------------- */

/*
 * In a bit set of algorithms. Inside a host NCCL has no CollNet and no NVLSTree, and uses no PAT (tuning.cc:277 and
 * :466): these names leave nothing. For a reduce-scatter it has no tree, either; but then every list without NVLS would
 * leave one algorithm, as a machine without NVLS does.
 */
enum {
    ALGO_NONE = 0,
    ALGO_TREE = 1,
    ALGO_RING = 2,
    ALGO_NVLS = 4,
    ALGO_ALL = ALGO_TREE | ALGO_RING | ALGO_NVLS,
    ALGO_UNKNOWN = 8 /* of an NCCL newer than this list */
};

static const struct {
    const char *name;
    unsigned bit;
} algorithms[] = {
    {"Tree", ALGO_TREE}, {"Ring", ALGO_RING},     {"CollNetDirect", ALGO_NONE}, {"CollNetChain", ALGO_NONE},
    {"NVLS", ALGO_NVLS}, {"NVLSTree", ALGO_NONE}, {"PAT", ALGO_NONE},
};

static unsigned bit_of(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        if (is_name(name, length, algorithms[i].name)) {
            return algorithms[i].bit;
        }
    }
    return ALGO_UNKNOWN;
}

/* The algorithms that a list leaves, up to a semicolon: names with commas between, after '^' those left out. */
static unsigned read_list(const char *list)
{
    const bool is_inverse = list[0] == '^';
    unsigned named = 0;
    size_t word;
    for (const char *at = list + is_inverse; *at && *at != ';'; at += word + (at[word] == ',')) {
        word = strcspn(at, ",;");
        named |= word > 0 ? bit_of(at, word) : ALGO_NONE;
    }
    return is_inverse ? ALGO_ALL & ~named : named;
}

/*
 * The algorithms that the value leaves for a function. Follows parseList of NCCL (src/graph/tuning.cc of 2.28.9).
 * Entries are separated by semicolons. An entry is a list, or the name of a function, a colon and a list; a later entry
 * of a function replaces an earlier one.
 */
static unsigned algorithms_left(const char *value, const char *function)
{
    unsigned left = ALGO_ALL;
    for (const char *entry = value; *entry;) {
        const size_t length = strcspn(entry, ";"), prefix = strcspn(entry, ":;");
        const bool has_prefix = prefix < length;
        if (length > 0 && (!has_prefix || is_name(entry, prefix, function))) {
            left = read_list(has_prefix ? entry + prefix + 1 : entry);
        }
        entry += length + (entry[length] == ';');
    }
    return left;
}

bool oh_nccl_algo_is_pinned(const char *value)
{
    static const char *const functions[] = {"AllReduce", "ReduceScatter"}; /* that reduce, and that onehop serves */
    bool pinned = false;
    for (int i = 0; value && i < 2; i++) {
        const unsigned left = algorithms_left(value, functions[i]);
        pinned |= (left & (left - 1)) == 0;
    }
    return pinned;
}
