#include "cq4_turns.h"

#define SHORT_NS 3000u
#define LONG_NS 20000u
#define HALF_NS 50000000u
#define GONE_NS 20000000u
#define PATIENCE_NS 200000u
#define GLANCE_NS 1000u
enum { POLITE_APPENDS = 64, FREE_APPENDS = 32, FREE_APPENDS_ALONE = 512, PRESSING = 128 };

void ac_cq4_turns_enter(ac_cq4_turns_t *turns, uint64_t seq) {
    turns->seen_seq = seq;
    turns->seen_ours = ac_cq4_turns_ours(turns);
}

static void fade(ac_cq4_turns_t *turns, uint64_t now_ns) {
    uint64_t passed = now_ns - turns->halved_ns; /* a large difference, if the clock was set back */
    if (passed < HALF_NS) return;
    uint64_t halves = passed / HALF_NS;
    turns->ours = halves < 64 ? turns->ours >> halves : 0;
    turns->java = halves < 64 ? turns->java >> halves : 0;
    turns->halved_ns = now_ns;
}

void ac_cq4_turns_meet(ac_cq4_turns_t *turns, uint64_t seq, uint64_t now_ns) {
    uint64_t all = seq - turns->seen_seq, now_ours = ac_cq4_turns_ours(turns);
    uint64_t ours = now_ours - turns->seen_ours;
    if (ours > all) ours = all;
    fade(turns, now_ns);
    turns->ours += ours;
    turns->java += all - ours;
    turns->seen_seq = seq;
    turns->seen_ours = now_ours;
    turns->others_ns = now_ns;
    if (all > ours) turns->waited_ns = 0;
    turns->polite = POLITE_APPENDS;
    turns->free = 0;
    turns->is_shared = 1;
}

uint64_t ac_cq4_turns_pause_ns(ac_cq4_turns_t *turns, uint64_t now_ns) {
    uint64_t pause_ns = 0;
    if (!turns->is_shared) return 0;
    fade(turns, now_ns);
    uint64_t java = turns->java;
    uint64_t ours = turns->ours + (ac_cq4_turns_ours(turns) - turns->seen_ours);
    /* After a clock was set back, all of it counts as long ago. */
    turns->is_shared = now_ns - turns->others_ns < GONE_NS;
    turns->is_owing = turns->is_shared && java >= PRESSING && 2 * ours > 3 * java;
    turns->is_ahead = turns->is_owing && turns->waited_ns < PATIENCE_NS;
    turns->free = 0;
    if (turns->is_ahead) {
        pause_ns = LONG_NS;
    } else if (turns->is_owing) {
        pause_ns = GLANCE_NS;
        turns->free = FREE_APPENDS_ALONE;
    } else if (turns->is_shared && turns->polite && ours >= java) {
        pause_ns = SHORT_NS;
    } else {
        turns->free = FREE_APPENDS;
    }
    uint64_t passed_ns = now_ns - turns->appended_ns;
    pause_ns = passed_ns < pause_ns ? pause_ns - passed_ns : 0;
    if (turns->is_ahead) turns->waited_ns += pause_ns;
    return pause_ns;
}

int ac_cq4_turns_may_go(const ac_cq4_turns_t *turns, int has_foreign) {
    if (!has_foreign || !turns->is_ahead) return has_foreign;
    return ac_cq4_turns_ours(turns) == turns->appended_ours; /* so it was a JVM */
}
