/* The readers that a writer is connected to, and how it wakes them. The doorman adds and forgets them; the
 * appending thread signals. */
#include "doorman.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>

enum { READERS_MAX = 4096 };

/* The bit that the fewest sleepers share. */
static uint32_t choose_bit(const ac_callers_t *callers) {
    uint32_t used[64] = {0}, best = 0;
    for (uint32_t i = 0; i < callers->count; i++)
        used[callers->sleepers[i].bit]++;
    for (uint32_t bit = 1; bit < 64; bit++)
        if (used[bit] < used[best]) best = bit;
    return best;
}

int ac_callers_add(ac_callers_t *callers, int bell, uint32_t *bit) {
    int rc = -EMFILE;
    pthread_mutex_lock(&callers->mutex);
    if (callers->count == callers->room && callers->room < READERS_MAX) {
        uint32_t room = callers->room ? callers->room * 2 : 8;
        ac_sleeper_t *grown = realloc(callers->sleepers, room * sizeof *grown);
        if (grown) {
            callers->sleepers = grown;
            callers->room = room;
        }
    }
    if (callers->count < callers->room) {
        *bit = choose_bit(callers);
        callers->sleepers[callers->count++] = (ac_sleeper_t){bell, *bit};
        rc = 0;
    }
    pthread_mutex_unlock(&callers->mutex);
    return rc;
}

void ac_callers_forget(ac_callers_t *callers, int bell) {
    pthread_mutex_lock(&callers->mutex);
    for (uint32_t i = 0; i < callers->count; i++) {
        if (callers->sleepers[i].bell != bell) continue;
        callers->sleepers[i] = callers->sleepers[--callers->count];
        break;
    }
    pthread_mutex_unlock(&callers->mutex);
}

uint32_t ac_callers_wake(ac_callers_t *callers, uint64_t bits) {
    uint32_t woken = 0;
    pthread_mutex_lock(&callers->mutex);
    for (uint32_t i = 0; i < callers->count; i++) {
        if (!(bits >> callers->sleepers[i].bit & 1)) continue;
        ac_os_eventfd_signal(callers->sleepers[i].bell);
        woken++;
    }
    pthread_mutex_unlock(&callers->mutex);
    return woken;
}
