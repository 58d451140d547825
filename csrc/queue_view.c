#include "queue_view.h"

#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"
#include "segment.h"

#include <stdlib.h>
#include <string.h>

void ac_view_close(ac_view_t *view) {
    free(view->ids);
    ac_map_release(view->control);
    ac_os_close(view->dir_fd);
}

int ac_view_open(ac_view_t *view, const char *path, ac_error_t *err) {
    memset(view, 0, sizeof *view);
    view->dir_fd = -1;
    int rc = ac_directory_init(&view->dir, path, 0600, 0, err);
    if (rc == AC_OK) {
        view->dir_fd = ac_directory_open(&view->dir, err);
        rc = view->dir_fd < 0 ? view->dir_fd : AC_OK;
    }
    if (rc == AC_OK)
        rc =
            ac_control_open(&view->dir, view->dir_fd, AC_CONTROL_READ_ONLY, 1, &view->control, err);
    if (rc == AC_OK)
        ac_durable_believe(&view->dir, view->dir_fd, ac_control_of(view->control), &view->durable);
    if (rc == AC_OK) rc = ac_segment_list(&view->dir, view->dir_fd, &view->ids, &view->count, err);
    if (rc == AC_OK) {
        view->segment_size = ac_load_relaxed_u64(&ac_control_of(view->control)->segment_size);
        if (!ac_segment_size_valid(view->segment_size))
            rc = ac_fail(err, AC_E_CORRUPT, 0, path, 24, "segment size is impossible");
    }
    if (rc == AC_OK && view->count > 0 &&
        ac_segment_awaited(&view->dir, view->dir_fd, view->ids[view->count - 1],
                           ac_control_of(view->control), &view->durable))
        view->count--;
    if (rc != AC_OK) ac_view_close(view);
    return rc;
}

int ac_view_is_java(const char *path) {
    return ac_cq4_is_queue(path) == 1;
}

int ac_view_refuse_java(int rc, const char *path, const char *why, ac_error_t *err) {
    if (rc != AC_E_NOT_FOUND || !ac_view_is_java(path)) return rc;
    return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0, "%s", why);
}
