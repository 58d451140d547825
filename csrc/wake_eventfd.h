/* A reference-counted eventfd: what wakes a parked reader. Several readers may share one (a fan-in). */
#ifndef AC_WAKE_EVENTFD_H
#define AC_WAKE_EVENTFD_H

#include <stdint.h>

typedef struct ac_eventfd {
    int fd;
    uint32_t refs;
    uint32_t closing; /* atomic: the reader is gone, so a woken sleeper wakes the next one, too */
} ac_eventfd_t;

ac_eventfd_t *ac_eventfd_new(int *error); /* NULL with a negated errno in *error */
void ac_eventfd_retain(ac_eventfd_t *eventfd);
void ac_eventfd_release(ac_eventfd_t *eventfd); /* NULL is allowed */

#endif
