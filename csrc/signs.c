#include "signs.h"

#include "os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ac_sign_t *find(ac_signs_t *signs, const char *name) {
    for (size_t i = 0; i < signs->count; i++) {
        size_t at = (signs->turn + i) % signs->count;
        if (strcmp(signs->signs[at].name, name) != 0) continue;
        signs->turn = at + 1;
        return &signs->signs[at];
    }
    return NULL;
}

/* NULL without memory. Names that are not in use any more stay until there are too many; then all are
 * forgotten, and judged by the time of day once more. */
static ac_sign_t *add(ac_signs_t *signs, const char *name) {
    if (signs->count == AC_READERS_MAX) signs->count = 0;
    if (signs->count == signs->room) {
        size_t room = signs->room ? signs->room * 2 : 8;
        ac_sign_t *grown = realloc(signs->signs, room * sizeof *grown);
        if (!grown) return NULL;
        signs->signs = grown;
        signs->room = room;
    }
    ac_sign_t *sign = &signs->signs[signs->count++];
    *sign = (ac_sign_t){0};
    snprintf(sign->name, sizeof sign->name, "%s", name);
    return sign;
}

static uint64_t elapsed(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

static int is_same(const ac_sign_t *sign, const ac_slot_t *slot) {
    return sign->generation == slot->generation && sign->heartbeat_ns == slot->heartbeat_ns;
}

uint64_t ac_sign_age_ns(ac_signs_t *signs, const char *name, const ac_slot_t *slot) {
    uint64_t age_ns = elapsed(slot->heartbeat_ns, ac_os_now_ns());
    pthread_mutex_lock(&signs->mutex);
    uint64_t now_ns = ac_os_monotonic_ns();
    ac_sign_t *known = find(signs, name);
    ac_sign_t *sign = known ? known : add(signs, name);
    if (known && is_same(known, slot)) {
        age_ns = known->age_ns + elapsed(known->seen_ns, now_ns);
    } else if (sign) {
        if (known)
            age_ns = 0; /* new since the last look; how new, only a clock that may be set says */
        sign->generation = slot->generation;
        sign->heartbeat_ns = slot->heartbeat_ns;
        sign->age_ns = age_ns;
        sign->seen_ns = now_ns;
        sign->sync = AC_SYNC_UNKNOWN;
    }
    pthread_mutex_unlock(&signs->mutex);
    return age_ns;
}

enum ac_sync_state ac_sign_sync(ac_signs_t *signs, const char *name, const ac_slot_t *slot) {
    pthread_mutex_lock(&signs->mutex);
    const ac_sign_t *sign = find(signs, name);
    enum ac_sync_state sync = sign && is_same(sign, slot) ? sign->sync : AC_SYNC_UNKNOWN;
    pthread_mutex_unlock(&signs->mutex);
    return sync;
}

void ac_sign_note_sync(ac_signs_t *signs, const char *name, const ac_slot_t *slot,
                       enum ac_sync_state sync) {
    pthread_mutex_lock(&signs->mutex);
    ac_sign_t *sign = find(signs, name);
    if (sign && is_same(sign, slot)) sign->sync = sync;
    pthread_mutex_unlock(&signs->mutex);
}

int ac_sign_warn(ac_signs_t *signs, const char *name, const ac_slot_t *slot) {
    pthread_mutex_lock(&signs->mutex);
    ac_sign_t *sign = find(signs, name);
    int known = sign && sign->warned && sign->warned_segment == slot->segment &&
                sign->warned_offset == slot->offset;
    if (sign) {
        sign->warned = 1;
        sign->warned_segment = slot->segment;
        sign->warned_offset = slot->offset;
    }
    pthread_mutex_unlock(&signs->mutex);
    return !known;
}
