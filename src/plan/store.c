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

#define WHY 300 /* bytes of a reason */

/*
 * Reads a file of at most OH_TUNING_BYTES; of one with more, a byte more. Returns NULL and the reason, which is empty
 * if nobody `asked` for a file that is not there. The caller frees the text.
 */
static char *read_file(const char *path, bool asked, size_t *size_p, char why_p[WHY])
{
    struct stat status;
    char *text = NULL;
    ssize_t size = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not block */
    why_p[0] = '\0';
    if (fd < 0) {
        if (asked) {
            snprintf(why_p, WHY, "cannot be opened: %s", strerror(errno));
        }
        return NULL;
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        snprintf(why_p, WHY, "is no regular file");
    } else if (!asked && status.st_uid != geteuid() && status.st_uid != 0) {
        snprintf(why_p, WHY, "belongs to someone else");
    } else {
        text = malloc(OH_TUNING_BYTES + 1);
        size = text ? read(fd, text, OH_TUNING_BYTES + 1) : -1;
    }
    if (size < 0 && !why_p[0]) {
        snprintf(why_p, WHY, "cannot be read: %s", strerror(errno));
        free(text);
        text = NULL;
    }
    close(fd);
    *size_p = (size_t)size;
    return text;
}

/* Returns false and the reason, empty as above. */
static bool load_file(const char *path, bool asked, const struct oh_tuning_key *key, struct oh_plan_table *table_p,
                      char from_p[OH_STORE_PATH], char why_p[WHY])
{
    struct oh_tuning_fault fault;
    char source[OH_TUNING_TEXT];
    size_t size;
    char *text = read_file(path, asked, &size, why_p);
    if (!text) {
        return false;
    }
    enum oh_tuning_result result = oh_tuning_parse(text, size, key, table_p, source, &fault);
    free(text);
    if (result == OH_TUNING_FOUND) {
        snprintf(from_p, OH_STORE_PATH, "%.400s (%s)", path, source);
    } else if (result == OH_TUNING_FOREIGN) {
        snprintf(why_p, WHY, "line %u: %s (accepted: %u x %.40s, driver %.20s, NCCL %.12s)", fault.line, fault.what,
                 key->nranks, key->gpu, key->driver, key->nccl);
    } else {
        snprintf(why_p, WHY, "line %u: %s", fault.line, fault.what);
    }
    return result == OH_TUNING_FOUND;
}

void oh_store_load(const struct oh_tuning_key *key, struct oh_plan_table *table_p, char from_p[OH_STORE_PATH])
{
    static atomic_flag warned;
    char cached[OH_STORE_PATH], source[OH_TUNING_TEXT], why[WHY] = "";
    bool none;
    const char *asked = oh_env_path_or_none(OH_ENV_TUNING_FILE, &none);
    const char *path = asked || none || !oh_store_cache_path(key, cached) ? asked : cached;
    if (path && load_file(path, asked != NULL, key, table_p, from_p, why)) {
        return;
    }
    if (why[0] && !atomic_flag_test_and_set(&warned)) {
        OH_WARN("tuning table %s %s; using the shipped table", path, why);
    }
    oh_tuning_shipped(key->gpu, key->nranks, table_p, source);
    snprintf(from_p, OH_STORE_PATH, "shipped (%s)", source);
}
