/* SPDX-License-Identifier: MIT */
/*
 * store.c - which tuning table is used
 *
 * Does: Tries ONEHOP_TUNING_FILE, the user's cache, and the shipped tables.
 * Threads: any; a WARN is given once.
 * Owns: nothing; the table is copied.
 */
#include "plan/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/env.h"
#include "util/log.h"

/* An absolute path from the environment; in a set-user-ID program there is none. */
static const char *folder_of(const char *variable)
{
    const char *value = secure_getenv(variable);
    return value && value[0] == '/' ? value : NULL;
}

bool oh_store_cache_path(const struct oh_tuning_key *key, char path_p[OH_STORE_PATH])
{
    const char *cache = folder_of("XDG_CACHE_HOME"), *home = folder_of("HOME");
    int folder = -1, all = -1;
    if (cache) {
        folder = snprintf(path_p, OH_STORE_PATH, "%s/onehop/", cache);
    } else if (home) {
        folder = snprintf(path_p, OH_STORE_PATH, "%s/.cache/onehop/", home);
    }
    if (folder > 0 && folder < OH_STORE_PATH) {
        all = folder + snprintf(path_p + folder, (size_t)(OH_STORE_PATH - folder), "%s-n%u-driver-%s-nccl-%s.tuning",
                                key->gpu, key->nranks, key->driver, key->nccl);
    }
    if (all < 0 || all >= OH_STORE_PATH) {
        return false;
    }
    for (char *c = path_p + folder; *c; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.';
        *c = plain ? *c : '-';
    }
    return true;
}

/* One for each process, whatever is wrong how often. */
__attribute__((format(printf, 1, 2))) static void warn(const char *format, ...)
{
    static atomic_flag said;
    char text[OH_STORE_PATH + 300];
    va_list args;
    if (atomic_flag_test_and_set(&said)) {
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    OH_WARN("%s; using the shipped table", text);
}

/* Why a file is not to be read; NULL: it is. */
static const char *refuse_file(const struct stat *status, bool asked)
{
    if (!S_ISREG(status->st_mode)) {
        return "is no regular file";
    }
    if (status->st_size > OH_TUNING_BYTES) {
        return "is no tuning table: more than 64 KiB";
    }
    /* Whoever names a file has looked at it; one that lies in a cache must be the user's own. */
    bool own = status->st_uid == geteuid() || status->st_uid == 0;
    return asked || own ? NULL : "belongs to someone else";
}

/* Reads the file. NULL: it is not there, or not to be read (said). To be freed. */
static char *read_file(const char *path, bool asked, size_t *size_p)
{
    struct stat status;
    const char *why = NULL;
    char *text = NULL;
    ssize_t part = 1;
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not hold us up */
    if (fd < 0) {
        if (asked) {
            warn("tuning table %s cannot be opened: %s", path, strerror(errno));
        }
        return NULL;
    }
    if (fstat(fd, &status) != 0) {
        why = strerror(errno);
    } else if (!(why = refuse_file(&status, asked)) && !(text = malloc(OH_TUNING_BYTES + 1))) {
        why = "cannot be read: no memory";
    }
    while (text && part > 0 && size <= OH_TUNING_BYTES) { /* one byte more than is allowed is found out */
        part = read(fd, text + size, OH_TUNING_BYTES + 1 - size);
        size += part > 0 ? (size_t)part : 0;
    }
    if (part < 0) {
        why = strerror(errno);
        free(text);
        text = NULL;
    }
    close(fd);
    if (why) {
        warn("tuning table %s %s", path, why);
    }
    *size_p = size;
    return text;
}

static bool load_file(const char *path, bool asked, const struct oh_tuning_key *key, struct oh_plan_table *table_p,
                      char from_p[OH_STORE_PATH])
{
    struct oh_tuning_fault fault;
    char source[OH_TUNING_TEXT];
    size_t size;
    char *text = read_file(path, asked, &size);
    if (!text) {
        return false;
    }
    enum oh_tuning_result result = oh_tuning_parse(text, size, key, table_p, source, &fault);
    free(text);
    if (result == OH_TUNING_FOUND) {
        snprintf(from_p, OH_STORE_PATH, "%s (%s)", path, source);
    } else if (result == OH_TUNING_FOREIGN) {
        warn("tuning table %s line %u: %s (accepted: %u x %s, driver %s, NCCL %s)", path, fault.line, fault.what,
             key->nranks, key->gpu, key->driver, key->nccl);
    } else {
        warn("tuning table %s line %u: %s", path, fault.line, fault.what);
    }
    return result == OH_TUNING_FOUND;
}

void oh_store_load(const struct oh_tuning_key *key, struct oh_plan_table *table_p, char from_p[OH_STORE_PATH])
{
    char path[OH_STORE_PATH], source[OH_TUNING_TEXT];
    bool none;
    const char *asked = oh_env_path_or_none(OH_ENV_TUNING_FILE, NULL, &none);
    if (asked && load_file(asked, true, key, table_p, from_p)) {
        return;
    }
    if (!asked && !none && oh_store_cache_path(key, path) && load_file(path, false, key, table_p, from_p)) {
        return;
    }
    oh_tuning_shipped(key->gpu, key->nranks, table_p, source);
    snprintf(from_p, OH_STORE_PATH, "shipped (%s)", source);
}
