/* Who has a queue open for writing, and what it publishes: looked up without opening the queue. */
#include "control.h"
#include "lock.h"
#include "os.h"
#include "queue_view.h"
#include "writer_published.h"

#include <stdio.h>
#include <string.h>

/* The last `room` of `count` entries in a ring of that size, oldest first. Returns how many. */
static uint32_t unroll(void *out, const void *ring, size_t size, uint64_t count, size_t room) {
    size_t some = count < room ? (size_t)count : room;
    for (size_t i = 0; i < some; i++)
        memcpy((uint8_t *)out + i * size,
               (const uint8_t *)ring + (size_t)((count - some + i) % room) * size, size);
    return (uint32_t)some;
}

static void take_published(const ac_published_t *content, ac_queue_writer_t *out) {
    out->published = 1;
    out->user = content->user;
    out->since_ns = content->opened_ns;
    out->published_ns = content->time_ns;
    out->closed_ns = content->closed_ns;
    out->settings = content->settings;
    out->recovery = content->recovery;
    memcpy(&out->statistics, content->counters, sizeof content->counters);
    memcpy(out->command, content->command, sizeof out->command);
    memcpy(out->slow_total, content->slow_total, sizeof out->slow_total);
    out->samples =
        unroll(out->sample, content->sample, sizeof *out->sample, content->samples, AC_SAMPLES);
    out->slow_appends = unroll(out->slow_append, content->slow_append, sizeof *out->slow_append,
                               content->slow_appends, AC_SLOW_APPENDS);
    out->errors =
        unroll(out->error, content->error, sizeof *out->error, content->errors, AC_RECENT_ERRORS);
    if (out->errors == 0) return;
    out->statistics.last_error_errno = out->error[out->errors - 1].sys_errno;
    snprintf(out->statistics.last_error, sizeof out->statistics.last_error, "%s",
             out->error[out->errors - 1].text);
}

static int state_of(const ac_named_writer_t *named) {
    return named->closed ? AC_WRITER_CLOSED : named->lives ? AC_WRITER_OPEN : AC_WRITER_DIED;
}

static void look(const ac_directory_t *dir, int dir_fd, const ac_control_t *control, uint64_t home,
                 ac_queue_writer_t *out) {
    ac_named_writer_t named;
    ac_published_t content;
    /* The files of a copy name the writer of the original. */
    if (ac_control_is_copy(control, home)) return;
    if (!ac_writer_named(dir, dir_fd, control, &named)) return;
    out->state = state_of(&named);
    out->pid = named.pid;
    out->since_ns = named.since_ns;
    out->heartbeat_ns = ac_load_relaxed_u64(&control->writer_heartbeat_ns);
    if (ac_published_read(dir, dir_fd, &content) && content.home == home &&
        content.epoch == named.epoch && content.pid == named.pid)
        take_published(&content, out);
    if (out->state != AC_WRITER_OPEN || !named.here) return;
    out->stopped = ac_os_process_stopped(named.pid);
    ac_os_process_command(named.pid, out->command, sizeof out->command);
}

int ac_view_writer(const ac_view_t *view, ac_queue_writer_t *out, ac_error_t *err) {
    uint64_t home = 0;
    memset(out, 0, sizeof *out);
    int rc = ac_control_home(&view->dir, view->dir_fd, &home, err);
    if (rc == AC_OK) look(&view->dir, view->dir_fd, ac_control_of(view->control), home, out);
    return rc;
}

int ac_queue_writer(const char *path, ac_queue_writer_t *out, ac_error_t *err) {
    ac_view_t view;
    memset(out, 0, sizeof *out);
    int rc = ac_view_open(&view, path, err);
    if (rc == AC_E_NOT_FOUND && ac_view_is_java(path)) return AC_OK; /* it may have many */
    if (rc != AC_OK) return rc;
    rc = ac_view_writer(&view, out, err);
    ac_view_close(&view);
    return rc;
}
