#include "log.h"

#include "atomics.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ENTRIES = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static ac_log_entry_t entries[ENTRIES];
static size_t first, count;
static uint64_t dropped;
static uint32_t level_wanted = AC_LOG_INFO; /* atomic */

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* Entries that the parent has not logged yet stay the parent's. */
static void after_fork_child(void) {
    first = count = 0;
    dropped = 0;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&arrived, NULL);
}

/* Registered before any other module of the engine: handlers run in the reverse order before a fork, so the
 * lock here is taken last, as by a thread that logs while it holds a lock of its own. And before anybody
 * waits: a child would inherit that in `arrived`. */
__attribute__((constructor)) static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static int add(int level, const char *path, const char *format, va_list arguments) {
    pthread_mutex_lock(&lock);
    int has_room = count < ENTRIES;
    if (!has_room) {
        dropped++;
    } else {
        ac_log_entry_t *entry = &entries[(first + count++) % ENTRIES];
        entry->level = level;
        entry->dropped_before = dropped;
        dropped = 0;
        snprintf(entry->path, sizeof entry->path, "%s", path ? path : "");
        vsnprintf(entry->text, sizeof entry->text, format, arguments);
        pthread_cond_broadcast(&arrived);
    }
    pthread_mutex_unlock(&lock);
    return has_room;
}

void ac_log_set_level(int level) {
    ac_store_relaxed_u32(&level_wanted, (uint32_t)level);
}

int ac_log(int level, const char *path, const char *format, ...) {
    va_list arguments;
    /* A line below the chosen level takes no room. */
    if (level != AC_LOG_SETTINGS && (uint32_t)level < ac_load_relaxed_u32(&level_wanted)) return 1;
    va_start(arguments, format);
    int added = add(level, path, format, arguments);
    va_end(arguments);
    return added;
}

void ac_log_error(int level, const ac_error_t *err, const char *what) {
    ac_log(level, err->path, "%s: %s", what, err->detail);
}

int ac_log_next(ac_log_entry_t *out) {
    pthread_mutex_lock(&lock);
    int found = count > 0;
    if (found) {
        *out = entries[first];
        first = (first + 1) % ENTRIES;
        count--;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int ac_log_wait(uint64_t timeout_ns) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    uint64_t nanoseconds = (uint64_t)deadline.tv_nsec + timeout_ns % 1000000000u;
    deadline.tv_sec += (time_t)(timeout_ns / 1000000000u + nanoseconds / 1000000000u);
    deadline.tv_nsec = (long)(nanoseconds % 1000000000u);
    pthread_mutex_lock(&lock);
    int rc = 0;
    while (count == 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&arrived, &lock, &deadline);
    int found = count > 0;
    pthread_mutex_unlock(&lock);
    return found;
}
