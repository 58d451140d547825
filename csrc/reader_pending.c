/* A reader that was opened before its queue: how it gets the queue when that appears.
 *
 * Opening waits for the disk: a named reader creates its position and syncs it. A call of an ordinary function waits
 * (ac_reader_attach). An event loop must not: it only checks whether there is a queue, and has a task open it in the
 * background, in a handle that belongs to the task. When that is done the eventfd is signalled, and the loop's next look
 * takes over what was opened, or the error. */
#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS 10000000u

struct ac_opening {
    ac_task_t task;     /* first; everything up to `done` belongs to the task until that is set */
    ac_reader_t opened; /* its first part is the queue, if rc is AC_OK */
    ac_error_t error;
    int rc;
    uint32_t done; /* atomic */
    ac_eventfd_t
        *eventfd; /* signalled then; retained, because the reader may be closed meanwhile */
};

static int open_wanted(ac_reader_t *reader, ac_error_t *err) {
    char path[sizeof reader->dir.path];
    snprintf(path, sizeof path, "%s", reader->dir.path);
    return ac_reader_open_queue(reader, path, &reader->wanted, err);
}

static void begin_reading(ac_reader_t *reader) {
    ac_wake_stop_expecting(&reader->endpoint);
    if (reader->tried_to_announce) ac_reader_announce(reader);
    ac_reader_begin_heartbeat(reader);
}

/* ---- in the background ---- */

static uint64_t open_aside(ac_task_t *task, uint64_t now_ns) {
    ac_opening_t *opening = (ac_opening_t *)(void *)task;
    (void)now_ns;
    opening->rc = open_wanted(&opening->opened, &opening->error);
    /* The first look reads from the disk, too. The reader finds the same again. */
    if (opening->rc == AC_OK) ac_reader_ready(&opening->opened, &opening->error);
    ac_store_release_u32(&opening->done, 1);
    ac_os_eventfd_signal(opening->eventfd->fd);
    return UINT64_MAX;
}

static void on_fork(ac_task_t *task) {
    ac_position_forked(&((ac_opening_t *)(void *)task)->opened.position);
}

/* Negative: there is no thread or no memory for it. */
static int open_in_background(ac_reader_t *reader) {
    if (ac_reader_eventfd(reader, NULL) < 0) return -1;
    ac_opening_t *opening = ac_os_alloc(sizeof *opening);
    if (!opening) return -1;
    ac_reader_init(&opening->opened, &reader->wanted);
    snprintf(opening->opened.dir.path, sizeof opening->opened.dir.path, "%s", reader->dir.path);
    opening->opened.wanted = reader->wanted; /* whose name is the reader's: it outlives the task */
    opening->task.run = open_aside;
    opening->task.forked = on_fork;
    opening->task.lane = AC_LANE_OPEN;
    opening->task.forks_wait = 1; /* a child must not inherit the file that it locks */
    if (ac_housekeeper_add(&opening->task) < 0) {
        free(opening);
        return -1;
    }
    opening->eventfd = reader->eventfd;
    ac_eventfd_retain(opening->eventfd);
    reader->opening = opening;
    ac_housekeeper_nudge(&opening->task);
    return 0;
}

void ac_opening_free(ac_opening_t *opening) {
    if (!opening) return;
    ac_housekeeper_remove(&opening->task);
    ac_reader_detach(&opening->opened);
    ac_eventfd_release(opening->eventfd);
    free(opening);
}

ac_opening_t *ac_reader_take_opening(ac_reader_t *reader) {
    ac_opening_t *opening = reader->opening;
    if (opening) reader->opening = NULL;
    return opening;
}

/* A mutex is not copied: it is recreated. */
static void take_over(ac_reader_t *reader, ac_reader_t *opened) {
    size_t queue_part = offsetof(ac_reader_t, name);
    if (opened->named) pthread_mutex_destroy(&opened->position.mutex);
    memcpy(reader, opened, queue_part);
    memset(opened, 0, queue_part);
    if (reader->named) pthread_mutex_init(&reader->position.mutex, NULL);
    reader->pending = 0;
}

/* The result. AC_E_NOT_FOUND: the queue existed and no longer does. */
static int end_opening(ac_reader_t *reader, ac_error_t *err) {
    ac_opening_t *opening = ac_reader_take_opening(reader);
    int rc = opening->rc;
    if (rc == AC_OK)
        take_over(reader, &opening->opened);
    else if (err)
        *err = opening->error;
    ac_opening_free(opening);
    if (rc == AC_OK) begin_reading(reader);
    return rc;
}

/* ---- for callers that may wait ---- */

int ac_reader_attach(ac_reader_t *reader, ac_error_t *err) {
    ac_error_t local;
    if (reader->opening) {
        ac_housekeeper_remove(&reader->opening->task); /* it has ended now, or never begins */
        if (ac_load_acquire_u32(&reader->opening->done)) {
            int rc = end_opening(reader, err);
            if (rc != AC_E_NOT_FOUND) return rc;
        }
        ac_opening_free(ac_reader_take_opening(reader));
    }
    int rc = open_wanted(reader, &local);
    if (rc == AC_OK)
        begin_reading(reader);
    else if (err)
        *err = local;
    return rc;
}

/* ---- for event loops ---- */

/* A Java queue begins with its table store. The directory is not listed: this may be an event loop's
 * thread. */
static int has_table(int dir_fd) {
    struct stat info;
    return ac_os_stat_at(dir_fd, AC_CQ4_METADATA, &info) == 0 ||
           ac_os_stat_at(dir_fd, AC_CQ4_LISTING, &info) == 0;
}

/* Whether there is a queue, or something that opening must report. */
static int is_there(ac_reader_t *reader) {
    ac_directory_t dir;
    ac_map_t *map = NULL;
    ac_error_t err;
    int rc = ac_reader_find(&dir, reader->dir.path, &reader->wanted, &err);
    int dir_fd = rc == AC_OK ? ac_directory_open(&dir, &err) : rc;
    rc = dir_fd < 0
             ? dir_fd
             : ac_control_open(&dir, dir_fd, AC_CONTROL_WRITABLE_IF_PERMITTED, 0, &map, &err);
    ac_map_release(map);
    reader->half_made = rc == AC_E_NOT_FOUND && err.sys_errno == EAGAIN;
    int is_java = rc == AC_E_NOT_FOUND && dir_fd >= 0 && !reader->half_made && has_table(dir_fd);
    if (dir_fd >= 0) ac_os_close(dir_fd);
    return rc != AC_E_NOT_FOUND || is_java;
}

/* Looks for the queue. If one could not be opened a moment ago because something was missing, it is checked
 * again after a while: no watch reports when. */
static int begin_opening(ac_reader_t *reader, ac_error_t *err) {
    if (!is_there(reader)) return AC_E_NOT_FOUND;
    if (reader->missed_ns && ac_os_monotonic_ns() - reader->missed_ns < RETRY_NS) {
        reader->half_made = 1;
        return AC_E_NOT_FOUND;
    }
    /* A function of the caller may need a lock that a thread waiting for the task holds. */
    if (!reader->wanted.timestamp_function && open_in_background(reader) == 0)
        return AC_E_NOT_FOUND;
    return ac_reader_attach(reader, err);
}

/* 1 = the queue is open; 0 = not yet; negative = it cannot be opened, which is reported once, or at each
 * call that only peeks. */
static int attach_in_loop(ac_reader_t *reader, int peek, ac_error_t *err) {
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    const ac_opening_t *opening = reader->opening;
    if (!opening) {
        rc = begin_opening(reader, err);
    } else if (!ac_load_acquire_u32(&opening->done)) {
        return 0;
    } else if (peek && opening->rc != AC_OK && opening->rc != AC_E_NOT_FOUND) {
        return opening->rc;
    } else {
        rc = end_opening(reader, err);
        if (rc == AC_E_NOT_FOUND) reader->missed_ns = ac_os_monotonic_ns();
    }
    return rc == AC_OK ? 1 : rc == AC_E_NOT_FOUND ? 0 : rc;
}

int ac_reader_next_in_loop(ac_reader_t *reader, ac_message_t *out, ac_error_t *err) {
    int rc = AC_UNLIKELY(reader->pending) ? attach_in_loop(reader, 0, err) : 1;
    return rc == 1 ? ac_reader_next(reader, out, err) : rc;
}

int ac_reader_ready_in_loop(ac_reader_t *reader, ac_error_t *err) {
    int rc = reader->pending ? attach_in_loop(reader, 1, err) : 1;
    if (rc == 1) return ac_reader_ready(reader, err);
    return rc == 0 || rc == AC_E_CLOSED || rc == AC_E_FORKED ? rc : 1; /* next will report it */
}
