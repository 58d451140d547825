/* The readers that a writer is connected to, and how it wakes them. The wake thread adds and forgets them; the
 * appending thread signals them, or some and the wake thread the others. */
#include "os.h"
#include "wake_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bits from FIRST_ALONE on are for members of groups, one each, and never for anybody else: who lowers such a bit late,
 * when another writer has given it away, takes the signal from another member at most, which looks by itself. */
enum { READERS_MAX = 4096, FIRST_ALONE = 48, ALONE_MAX = 64 - FIRST_ALONE };
#define SHARED_BITS ((1ull << FIRST_ALONE) - 1)

/* To wake a process takes the appender up to 10 us. Of more sleepers than these it wakes the first one and the wake
 * thread, which wakes the others. */
enum { DIRECT_MAX = 4 };

/* 0 = of no group. */
static uint32_t group_of(const char *name) {
    char *end;
    if (strncmp(name, AC_MEMBER_PREFIX, strlen(AC_MEMBER_PREFIX)) != 0) return 0;
    unsigned long tag = strtoul(name + strlen(AC_MEMBER_PREFIX), &end, 16);
    return *end == '-' ? (uint32_t)tag : 0;
}

/* The bit that the fewest sleepers share. */
static uint32_t choose_bit(const ac_wake_targets_t *targets) {
    uint32_t used[64] = {0}, best = 0;
    for (uint32_t i = 0; i < targets->count; i++)
        used[targets->sleepers[i].bit]++;
    for (uint32_t bit = 1; bit < FIRST_ALONE; bit++)
        if (used[bit] < used[best]) best = bit;
    return best;
}

/* A bit that nobody has, for one who lowers it by itself; AC_NO_BIT if there is none left. */
static uint32_t choose_alone(const ac_wake_targets_t *targets) {
    uint64_t used = SHARED_BITS;
    for (uint32_t i = 0; i < targets->count; i++)
        used |= 1ull << targets->sleepers[i].bit;
    return used == UINT64_MAX ? AC_NO_BIT : (uint32_t)__builtin_ctzll(~used);
}

int ac_wake_targets_add(ac_wake_targets_t *targets, int eventfd, const char *name, uint32_t *bit) {
    int rc = -EMFILE;
    uint32_t group = group_of(name);
    pthread_mutex_lock(&targets->mutex);
    if (targets->count == targets->room && targets->room < READERS_MAX) {
        uint32_t room = targets->room ? targets->room * 2 : 8;
        ac_wake_target_t *grown = realloc(targets->sleepers, room * sizeof *grown);
        if (grown) {
            targets->sleepers = grown;
            targets->room = room;
        }
    }
    if (targets->count < targets->room) {
        uint32_t chosen = group ? choose_alone(targets) : AC_NO_BIT;
        if (chosen == AC_NO_BIT) {
            group = 0;
            chosen = choose_bit(targets);
        }
        targets->sleepers[targets->count++] = (ac_wake_target_t){eventfd, chosen, group, 0};
        *bit = chosen | (group ? AC_BIT_ALONE : 0);
        rc = 0;
    }
    pthread_mutex_unlock(&targets->mutex);
    return rc;
}

void ac_wake_targets_remove(ac_wake_targets_t *targets, int eventfd) {
    uint32_t group = 0;
    pthread_mutex_lock(&targets->mutex);
    for (uint32_t i = 0; i < targets->count; i++) {
        if (targets->sleepers[i].eventfd != eventfd) continue;
        group = targets->sleepers[i].group;
        targets->sleepers[i] = targets->sleepers[--targets->count];
        break;
    }
    for (uint32_t i = 0; group != 0 && i < targets->count; i++)
        if (targets->sleepers[i].group == group) ac_os_eventfd_signal(targets->sleepers[i].eventfd);
    pthread_mutex_unlock(&targets->mutex);
}

typedef struct woken {
    uint32_t group, count;
} woken_t;

static woken_t *woken_of(woken_t woken[ALONE_MAX], uint32_t group) {
    uint32_t i = 0;
    while (woken[i].group != group && woken[i].group != 0)
        i++;
    woken[i].group = group;
    return &woken[i];
}

/* Without the wake thread. */
static void signal_marked(ac_wake_targets_t *targets) {
    pthread_mutex_lock(&targets->mutex);
    for (uint32_t i = 0; i < targets->count; i++) {
        if (!targets->sleepers[i].handed_over) continue;
        targets->sleepers[i].handed_over = 0;
        ac_os_eventfd_signal(targets->sleepers[i].eventfd);
    }
    pthread_mutex_unlock(&targets->mutex);
}

uint32_t ac_wake_targets_signal(ac_wake_targets_t *targets, uint64_t bits, uint32_t messages,
                                uint64_t *left) {
    woken_t groups[ALONE_MAX] = {{0, 0}};
    uint32_t woken = 0, handed = 0;
    pthread_mutex_lock(&targets->mutex);
    uint32_t count = targets->count, first = count ? targets->turn % count : 0;
    int many = count > DIRECT_MAX && __builtin_popcountll(bits & SHARED_BITS) > DIRECT_MAX;
    for (uint32_t i = 0; i < count; i++) {
        ac_wake_target_t *sleeper = &targets->sleepers[(first + i) % count];
        if (!(bits >> sleeper->bit & 1)) continue;
        if (sleeper->group && woken_of(groups, sleeper->group)->count++ >= messages) {
            *left |= 1ull << sleeper->bit;
            continue;
        }
        if (sleeper->group) targets->turn = (first + i) % count + 1;
        if (many && woken > 0 && !sleeper->group) {
            sleeper->handed_over = 1;
            handed++;
            continue;
        }
        ac_os_eventfd_signal(sleeper->eventfd);
        woken++;
    }
    pthread_mutex_unlock(&targets->mutex);
    /* After the marks, which the wake thread looks for after it has emptied its eventfd. */
    if (handed > 0 && ac_wake_nudge() < 0) signal_marked(targets);
    return woken + handed;
}

/* The eventfds are used outside of the mutex, so that an appender need not wait: see the header for why they are open. */
void ac_wake_targets_signal_rest(ac_wake_targets_t *targets) {
    enum { SOME = 64 };
    int eventfds[SOME];
    uint32_t found;
    do {
        found = 0;
        pthread_mutex_lock(&targets->mutex);
        for (uint32_t i = 0; i < targets->count && found < SOME; i++) {
            if (!targets->sleepers[i].handed_over) continue;
            targets->sleepers[i].handed_over = 0;
            eventfds[found++] = targets->sleepers[i].eventfd;
        }
        pthread_mutex_unlock(&targets->mutex);
        for (uint32_t i = 0; i < found; i++)
            ac_os_eventfd_signal(eventfds[i]);
    } while (found == SOME);
}
