/* SPDX-License-Identifier: MIT */
/*
 * log.h - messages to the user, and their texts
 *
 * Does: Writes lines to stderr, or to the file that ONEHOP_DEBUG_FILE names, up to the level ONEHOP_DEBUG (NONE, WARN,
 *    INFO, TRACE; WARN when unset). One write(2) a line, so that lines of several ranks do not mix. Keeps errno.
 * Threads: any; never blocks.
 * Owns: nothing.
 */
#ifndef OH_UTIL_LOG_H_
#define OH_UTIL_LOG_H_

#include <stddef.h>
#include <stdint.h>

enum oh_log_level {
    OH_LOG_NONE = 0,
    OH_LOG_WARN = 1,
    OH_LOG_INFO = 2,
    OH_LOG_TRACE = 3
};

/* The level in force. The first call reads ONEHOP_DEBUG. */
enum oh_log_level oh_log_level(void);

/* Writes a line, newline included, as it is to where the log goes, whatever the level. */
void oh_log_raw(const char *line, size_t length);

/* The warnings that one line of code has written: a cause that stays must not fill the disk. */
#define OH_LOG_CAUSES 16
struct oh_log_site {
    _Atomic uint32_t said[OH_LOG_CAUSES]; /* hashes of texts; 0: free */
};

/* Writes one line "onehop: host:pid TAG text", unless `site`, if not NULL, had this text or OH_LOG_CAUSES others. */
void oh_log_write(struct oh_log_site *site, const char *tag, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define OH_LOG_AT(level_, site_, ...)                                                                                  \
    do {                                                                                                               \
        if (oh_log_level() >= OH_LOG_##level_) {                                                                       \
            oh_log_write(site_, #level_, __VA_ARGS__);                                                                 \
        }                                                                                                              \
    } while (0)
#define OH_WARN_AT(site_, ...) OH_LOG_AT(WARN, site_, __VA_ARGS__)
#define OH_WARN(...)                                                                                                   \
    do {                                                                                                               \
        static struct oh_log_site site_;                                                                               \
        OH_WARN_AT(&site_, __VA_ARGS__);                                                                               \
    } while (0)
#define OH_INFO(...) OH_LOG_AT(INFO, NULL, __VA_ARGS__)
#define OH_TRACE(...) OH_LOG_AT(TRACE, NULL, __VA_ARGS__)

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Appends to a text of `size` bytes, as far as there is room. */
void oh_text_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes bytes from elsewhere one line of printable ASCII that ends within size. */
void oh_text_clean(char *text, size_t size);

#endif
