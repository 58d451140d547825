/* Which of many directories changed, for discovery: see aiochronicle.h.
 *
 * It has an inotify instance of its own, separate from that of wake_connection.c: an event loop waits for the descriptor
 * itself, without a thread in between. */
#include "aiochronicle.h"
#include "error.h"
#include "os.h"

#include <stdio.h>
#include <sys/inotify.h>

typedef struct reading {
    ac_change_t *out;
    int room, count;
} reading_t;

int ac_watch_open(ac_error_t *err) {
    int fd = ac_os_inotify();
    return fd < 0 ? ac_fail_os(err, fd, NULL, "cannot watch directories") : fd;
}

int ac_watch_add(int watches, int directory, ac_error_t *err) {
    uint32_t mask = IN_CREATE | IN_DELETE | IN_MOVE | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE_SELF |
                    IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK;
    int watch = ac_os_inotify_add(watches, directory, mask);
    return watch < 0 ? ac_fail_os(err, watch, NULL, "cannot watch a directory") : watch;
}

void ac_watch_remove(int watches, int watch) {
    ac_os_inotify_remove(watches, watch);
}

static void take_change(void *context, int watch, const char *name) {
    reading_t *reading = context;
    if (reading->count < reading->room) {
        ac_change_t *change = &reading->out[reading->count++];
        change->watch = watch;
        snprintf(change->name, sizeof change->name, "%s", name);
    } else {
        reading->out[reading->room - 1].watch = -1;
    }
}

int ac_watch_read(int watches, ac_change_t *out, int room) {
    reading_t reading = {out, room, 0};
    if (room > 0) ac_os_inotify_read(watches, take_change, &reading);
    return reading.count;
}
