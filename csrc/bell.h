/* A reference-counted eventfd: what wakes a parked reader. Several readers may share one (a fan-in). */
#ifndef AC_BELL_H
#define AC_BELL_H

#include <stdint.h>

typedef struct ac_bell {
    int fd;
    uint32_t refs;
    uint32_t
        closing; /* atomic: the reader is gone, so whoever is woken wakes the next sleeper, too */
} ac_bell_t;

ac_bell_t *ac_bell_new(int *error); /* NULL with a negated errno in *error */
void ac_bell_retain(ac_bell_t *bell);
void ac_bell_release(ac_bell_t *bell); /* NULL is fine */

#endif
