#include "wake_eventfd.h"

#include "atomics.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>

ac_eventfd_t *ac_eventfd_new(int *error) {
    ac_eventfd_t *eventfd = ac_os_alloc(sizeof *eventfd);
    *error = -ENOMEM;
    if (!eventfd) return NULL;
    eventfd->refs = 1;
    eventfd->fd = ac_os_eventfd();
    if (eventfd->fd >= 0) return eventfd;
    *error = eventfd->fd;
    free(eventfd);
    return NULL;
}

void ac_eventfd_retain(ac_eventfd_t *eventfd) {
    ac_fetch_add_relaxed_u32(&eventfd->refs, 1);
}

void ac_eventfd_release(ac_eventfd_t *eventfd) {
    if (!eventfd || __atomic_sub_fetch(&eventfd->refs, 1, __ATOMIC_ACQ_REL) != 0) return;
    ac_os_close(eventfd->fd);
    free(eventfd);
}
