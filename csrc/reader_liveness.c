#include "reader_liveness.h"

#include "os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ac_liveness_entry_t *find(ac_liveness_t *liveness, const char *name) {
    for (size_t i = 0; i < liveness->count; i++) {
        size_t at = (liveness->turn + i) % liveness->count;
        if (strcmp(liveness->entries[at].name, name) != 0) continue;
        liveness->turn = at + 1;
        return &liveness->entries[at];
    }
    return NULL;
}

/* NULL without memory. Names that are no longer used stay until there are too many; then all are forgotten,
 * and judged by the wall clock once more. */
static ac_liveness_entry_t *add(ac_liveness_t *liveness, const char *name) {
    if (liveness->count == AC_READERS_MAX) liveness->count = 0;
    if (liveness->count == liveness->room) {
        size_t room = liveness->room ? liveness->room * 2 : 8;
        ac_liveness_entry_t *grown = realloc(liveness->entries, room * sizeof *grown);
        if (!grown) return NULL;
        liveness->entries = grown;
        liveness->room = room;
    }
    ac_liveness_entry_t *entry = &liveness->entries[liveness->count++];
    *entry = (ac_liveness_entry_t){0};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return entry;
}

static uint64_t elapsed(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

static int is_same(const ac_liveness_entry_t *entry, const ac_slot_t *slot) {
    return entry->generation == slot->generation && entry->heartbeat_ns == slot->heartbeat_ns;
}

uint64_t ac_liveness_age_ns(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot) {
    uint64_t age_ns = elapsed(slot->heartbeat_ns, ac_os_now_ns());
    pthread_mutex_lock(&liveness->mutex);
    uint64_t now_ns = ac_os_monotonic_ns();
    ac_liveness_entry_t *known = find(liveness, name);
    ac_liveness_entry_t *entry = known ? known : add(liveness, name);
    if (known && is_same(known, slot)) {
        age_ns = known->age_ns + elapsed(known->seen_ns, now_ns);
    } else if (entry) {
        if (known)
            age_ns =
                0; /* new since the last look; how new, only a clock that may be set could tell */
        entry->generation = slot->generation;
        entry->heartbeat_ns = slot->heartbeat_ns;
        entry->age_ns = age_ns;
        entry->seen_ns = now_ns;
        entry->sync = AC_SYNC_UNKNOWN;
    }
    pthread_mutex_unlock(&liveness->mutex);
    return age_ns;
}

enum ac_sync_state ac_liveness_sync(ac_liveness_t *liveness, const char *name,
                                    const ac_slot_t *slot) {
    pthread_mutex_lock(&liveness->mutex);
    const ac_liveness_entry_t *entry = find(liveness, name);
    enum ac_sync_state sync = entry && is_same(entry, slot) ? entry->sync : AC_SYNC_UNKNOWN;
    pthread_mutex_unlock(&liveness->mutex);
    return sync;
}

void ac_liveness_note_sync(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot,
                           enum ac_sync_state sync) {
    pthread_mutex_lock(&liveness->mutex);
    ac_liveness_entry_t *entry = find(liveness, name);
    if (entry && is_same(entry, slot)) entry->sync = sync;
    pthread_mutex_unlock(&liveness->mutex);
}

int ac_liveness_warn(ac_liveness_t *liveness, const char *name, const ac_slot_t *slot) {
    pthread_mutex_lock(&liveness->mutex);
    ac_liveness_entry_t *entry = find(liveness, name);
    int known = entry && entry->warned && entry->warned_segment == slot->segment &&
                entry->warned_offset == slot->offset;
    if (entry) {
        entry->warned = 1;
        entry->warned_segment = slot->segment;
        entry->warned_offset = slot->offset;
    }
    pthread_mutex_unlock(&liveness->mutex);
    return !known;
}
