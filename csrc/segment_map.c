#include "segment_map.h"

#include "os.h"
#include "sigbus.h"

#include <errno.h>
#include <stdlib.h>

ac_map_t *ac_map_new(int fd, uint64_t size, int writable, int *error) {
    ac_map_t *map = ac_os_alloc(sizeof *map);
    int positive = ENOMEM;
    if (map) map->base = ac_os_map(fd, size, writable, &positive);
    if (!map || !map->base) {
        *error = -positive;
        free(map);
        return NULL;
    }
    map->size = size;
    map->writable = (uint32_t)writable;
    map->refs = 1;
    map->fd = -1;
    map->sigbus_slot = ac_sigbus_register(map->base, size, &map->cut, &map->cut_at);
    if (map->sigbus_slot < 0) {
        *error = map->sigbus_slot;
        ac_os_unmap(map->base, size);
        free(map);
        return NULL;
    }
    return map;
}

void ac_map_retain(ac_map_t *map) {
    ac_fetch_add_relaxed_u32(&map->refs, 1);
}

static __thread ac_map_t **collected;

ac_map_t **ac_map_collect(ac_map_t **unused) {
    ac_map_t **before = collected;
    collected = unused;
    return before;
}

void ac_map_release(ac_map_t *map) {
    if (!map || __atomic_sub_fetch(&map->refs, 1, __ATOMIC_ACQ_REL) != 0) return;
    map->next = NULL;
    if (collected) {
        map->next = *collected;
        *collected = map;
        return;
    }
    ac_map_unmap(map);
}

void ac_map_unmap(ac_map_t *unused) {
    while (unused) {
        ac_map_t *map = unused;
        unused = map->next;
        ac_sigbus_forget(map->sigbus_slot);
        ac_os_unmap(map->base, map->size);
        ac_os_close(map->fd);
        free(map);
    }
}
