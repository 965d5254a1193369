/* SPDX-License-Identifier: MIT */
/*
 * nccl_conf.c - reads nccl.conf
 *
 * Does: See nccl_conf.h. A line is NAME=VALUE; of two lines with one name the first counts, as with setenv without
 *    overwriting (initEnv of NCCL).
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
            if (length == strlen(names[i]) && strncasecmp(word, names[i], length) == 0) {
                policy = policy == unset ? i : policy | i; /* their values are 0, 1 and 2 */
            }
        }
        word += length;
    }
    return policy;
}
