#include "bell.h"

#include "atomics.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>

ac_bell_t *ac_bell_new(int *error) {
    ac_bell_t *bell = ac_os_alloc(sizeof *bell);
    *error = -ENOMEM;
    if (!bell) return NULL;
    bell->refs = 1;
    bell->fd = ac_os_eventfd();
    if (bell->fd >= 0) return bell;
    *error = bell->fd;
    free(bell);
    return NULL;
}

void ac_bell_retain(ac_bell_t *bell) {
    ac_fetch_add_relaxed_u32(&bell->refs, 1);
}

void ac_bell_release(ac_bell_t *bell) {
    if (!bell || __atomic_sub_fetch(&bell->refs, 1, __ATOMIC_ACQ_REL) != 0) return;
    ac_os_close(bell->fd);
    free(bell);
}
