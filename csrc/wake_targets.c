/* The readers that a writer is connected to, and how it wakes them. The wake thread adds and removes them;
 * the appending thread signals them, or some of them and the wake thread the others. */
#include "os.h"
#include "wake_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { READERS_MAX = 4096 };

/* Waking a process takes the appender up to 10 us. If more readers than this sleep, it wakes the first one
 * and the wake thread, which wakes the others. */
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
    uint32_t used[AC_BIT_MEMBERS] = {0}, best = 0;
    for (uint32_t i = 0; i < targets->count; i++)
        if (targets->sleepers[i].bit < AC_BIT_MEMBERS) used[targets->sleepers[i].bit]++;
    for (uint32_t bit = 1; bit < AC_BIT_MEMBERS; bit++)
        if (used[bit] < used[best]) best = bit;
    return best;
}

/* A bit that no other member has, which the member clears itself; AC_NO_BIT if none is left. If it clears
 * the bit late, when another writer has assigned it to another member, it takes at most that member's
 * signal, and that member polls. */
static uint32_t choose_member_bit(const ac_wake_targets_t *targets) {
    uint64_t used[AC_MEMBER_BITS / 64] = {0};
    for (uint32_t i = 0; i < targets->count; i++) {
        uint32_t number = targets->sleepers[i].bit - AC_BIT_FIRST_MEMBER;
        if (number < AC_MEMBER_BITS) used[number / 64] |= 1ull << number % 64;
    }
    for (uint32_t i = 0; i < AC_MEMBER_BITS / 64; i++)
        if (used[i] != UINT64_MAX)
            return AC_BIT_FIRST_MEMBER + i * 64 + (uint32_t)__builtin_ctzll(~used[i]);
    return AC_NO_BIT;
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
        *bit = group ? choose_member_bit(targets) : AC_NO_BIT;
        if (*bit == AC_NO_BIT) { /* a member without a bit of its own is woken every time */
            group = 0;
            *bit = choose_bit(targets);
        }
        targets->sleepers[targets->count++] = (ac_wake_target_t){eventfd, *bit, group, 0};
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

/* What is taken from the members' words, and goes back to them; and how many of each group were signalled. */
typedef struct round {
    uint64_t bits[AC_MEMBER_BITS / 64], left[AC_MEMBER_BITS / 64];
    woken_t groups[AC_MEMBER_BITS];
    uint32_t known;
} round_t;

static uint32_t *count_of(round_t *round, uint32_t group) {
    uint32_t i = 0;
    while (i < round->known && round->groups[i].group != group)
        i++;
    if (i == round->known) round->groups[round->known++] = (woken_t){group, 0};
    return &round->groups[i].count;
}

static int is_raised(uint64_t word, uint32_t bit) {
    return (int)(word >> bit % 64 & 1);
}

/* In turn: 1 = it is to be signalled. */
static int is_next_member(round_t *round, const ac_wake_target_t *member, uint32_t messages) {
    uint32_t number = member->bit - AC_BIT_FIRST_MEMBER;
    if (!is_raised(round->bits[number / 64], number)) return 0;
    uint32_t *count = count_of(round, member->group);
    if ((*count)++ < messages) return 1;
    round->left[number / 64] |= 1ull << number % 64;
    return 0;
}

static uint32_t signal_members(ac_wake_targets_t *targets, ac_control_t *control,
                               uint32_t messages) {
    round_t round;
    uint32_t woken = 0, count = targets->count, first = count ? targets->turn % count : 0;
    uint64_t left = 0;
    round.known = 0;
    memset(round.left, 0, sizeof round.left);
    for (uint32_t i = 0; i < AC_MEMBER_BITS / 64; i++)
        round.bits[i] = ac_load_relaxed_u64(&control->parked_members[i])
                            ? ac_exchange_seq_cst_u64(&control->parked_members[i], 0)
                            : 0;
    for (uint32_t i = 0; i < count; i++) {
        const ac_wake_target_t *sleeper = &targets->sleepers[(first + i) % count];
        if (!sleeper->group || !is_next_member(&round, sleeper, messages)) continue;
        targets->turn = (first + i) % count + 1;
        ac_os_eventfd_signal(sleeper->eventfd);
        woken++;
    }
    for (uint32_t i = 0; i < AC_MEMBER_BITS / 64; left |= round.left[i++])
        if (round.left[i])
            __atomic_fetch_or(&control->parked_members[i], round.left[i], __ATOMIC_SEQ_CST);
    if (left) __atomic_fetch_or(&control->parked, 1ull << AC_BIT_MEMBERS, __ATOMIC_SEQ_CST);
    return woken;
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

uint32_t ac_wake_targets_signal(ac_wake_targets_t *targets, ac_control_t *control, uint64_t bits,
                                uint32_t messages) {
    uint64_t readers = bits & ~(1ull << AC_BIT_MEMBERS);
    uint32_t woken = 0, handed = 0;
    pthread_mutex_lock(&targets->mutex);
    int many = targets->count > DIRECT_MAX && __builtin_popcountll(readers) > DIRECT_MAX;
    for (uint32_t i = 0; i < targets->count; i++) {
        ac_wake_target_t *sleeper = &targets->sleepers[i];
        if (sleeper->group || !is_raised(readers, sleeper->bit)) continue;
        if (many && woken > 0) {
            sleeper->handed_over = 1;
            handed++;
            continue;
        }
        ac_os_eventfd_signal(sleeper->eventfd);
        woken++;
    }
    if (control && is_raised(bits, AC_BIT_MEMBERS))
        woken += signal_members(targets, control, messages);
    pthread_mutex_unlock(&targets->mutex);
    /* After the marks, which the wake thread looks for after it has drained its eventfd. */
    if (handed > 0 && ac_wake_nudge() < 0) signal_marked(targets);
    return woken + handed;
}

/* The eventfds are used outside the mutex, so that an appender need not wait: see the header for why they
 * are open. */
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
