/* SPDX-License-Identifier: MIT */
/*
 * log.h - messages to the user
 *
 * Lines go to stderr, or to the file that ONEHOP_DEBUG_FILE names, in one write(2) each, so lines of several ranks do
 * not mix. The level comes from ONEHOP_DEBUG (NONE, WARN, INFO, TRACE; WARN when unset). Formatting happens only when
 * the level is on. errno is preserved. Thread-safe; does not allocate, and waits for nobody.
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

/* Writes one line "onehop: host:pid LEVEL text". */
void oh_log_write(enum oh_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes one line "onehop: host:pid stats: text", whatever the level: the user asked for it with ONEHOP_STATS. */
void oh_log_stats(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes a line, newline included, as it is to where the log goes, whatever the level. */
void oh_log_raw(const char *line, size_t length);

#define OH_LOG(level_, ...)                                                                                            \
    do {                                                                                                               \
        if (oh_log_level() >= (level_)) {                                                                              \
            oh_log_write((level_), __VA_ARGS__);                                                                       \
        }                                                                                                              \
    } while (0)
#define OH_INFO(...) OH_LOG(OH_LOG_INFO, __VA_ARGS__)
#define OH_TRACE(...) OH_LOG(OH_LOG_TRACE, __VA_ARGS__)

/* What one place in the code has warned of: a cause that stays must not fill the disk. */
#define OH_LOG_CAUSES 16
struct oh_log_site {
    _Atomic uint32_t said[OH_LOG_CAUSES]; /* hashes of texts; 0: free */
};

/* Writes a WARN unless this place has said the same before, or OH_LOG_CAUSES other things. */
void oh_log_warn(struct oh_log_site *place, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define OH_WARN(...)                                                                                                   \
    do {                                                                                                               \
        static struct oh_log_site place_;                                                                              \
        if (oh_log_level() >= OH_LOG_WARN) {                                                                           \
            oh_log_warn(&place_, __VA_ARGS__);                                                                         \
        }                                                                                                              \
    } while (0)

#endif
