/* A queue that is examined from outside: how every such call starts. */
#ifndef AC_QUEUE_VIEW_H
#define AC_QUEUE_VIEW_H

#include "control.h"
#include "directory.h"
#include "recovery.h"

typedef struct ac_view {
    ac_directory_t dir;
    int dir_fd;
    ac_map_t *control;
    uint64_t segment_size;
    ac_durable_t durable;
    uint32_t *ids; /* of the segments, ascending */
    size_t count;
} ac_view_t;

int ac_view_open(ac_view_t *view, const char *path, ac_error_t *err);
void ac_view_close(ac_view_t *view);

/* Whether there is a Java queue where AC_E_NOT_FOUND says that there is none of ours. */
int ac_view_is_java(const char *path);
/* AC_E_UNSUPPORTED if so, otherwise `rc`. */
int ac_view_refuse_java(int rc, const char *path, const char *why, ac_error_t *err);

/* Its last writer: see ac_queue_writer. */
int ac_view_writer(const ac_view_t *view, ac_queue_writer_t *out, ac_error_t *err);

#endif
