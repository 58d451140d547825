/* Fairness among writers that append to one Java queue at full speed.
 *
 * Java's lock is not fair, and nobody can see who waits for it. A writer that releases it and acquires it again at once
 * starves the others. A JVM is slower than we are: it takes longer to notice that the lock is free, and on a busy machine,
 * or while its code is still interpreted, it appends less in its time slice. So our writers hold back:
 *
 * 1. After another has appended, a writer leaves the lock free for SHORT_NS before each of its next POLITE_APPENDS, or
 *    until another has appended again. Not while JVMs have recently appended more than our writers.
 * 2. All our writers on the queue count their appends in one word, so each knows how many of the others' were those of JVMs.
 *    While JVMs append much (PRESSING recently), ours may append at most three messages for two of theirs. A writer that is
 *    ahead of that leaves the lock free for LONG_NS before each append, or until a JVM has appended. It yields its
 *    processor meanwhile: a JVM that wants to append may be waiting for it.
 * 3. When a JVM has appended nothing during PATIENCE_NS of such waiting, our writers stop waiting for it. It may lack a
 *    processor, so they yield theirs once in FREE_APPENDS_ALONE appends.
 *
 * "Recently" is a sum that is halved every HALF_NS. When others have not appended for GONE_NS, nobody holds back; a JVM
 * that only lacked a processor for that long gets its share later, because the sums remain. A writer waits at most LONG_NS
 * per message, and only if it appends without a pause: its own pauses count.
 *
 * The word is a hint. A stale or wrong one costs fairness, or LONG_NS for a message. The mutex is held for all of this. */
#ifndef AC_CQ4_TURNS_H
#define AC_CQ4_TURNS_H

#include "atomics.h"

#include <stdint.h>

typedef struct ac_cq4_turns {
    uint64_t
        *shared;   /* appends of all our writers; NULL: there is no such word, and `own` is used */
    uint64_t own;  /* of this writer */
    int is_shared; /* others have appended recently */
    int is_owing;  /* ours have appended more than their share … */
    int is_ahead;  /* … and there are JVMs that append */
    uint32_t polite;              /* for this many more appends */
    uint32_t free;                /* so many appends need not ask for a pause */
    uint64_t seen_seq, seen_ours; /* when others were counted last */
    uint64_t ours, java;          /* recently, up to that count */
    uint64_t halved_ns;
    uint64_t others_ns;   /* when others were seen to have appended */
    uint64_t waited_ns;   /* of pauses for JVMs, since one was seen to append */
    uint64_t appended_ns; /* when this writer appended, and ac_cq4_turns_ours at that time */
    uint64_t appended_ours;
} ac_cq4_turns_t;

static inline uint64_t ac_cq4_turns_ours(const ac_cq4_turns_t *turns) {
    return turns->shared ? ac_load_relaxed_u64(turns->shared) : turns->own;
}

/* With the write lock held, so none of our other writers does the same. */
static inline void ac_cq4_turns_count(ac_cq4_turns_t *turns, uint64_t now_ns) {
    uint64_t *word = turns->shared ? turns->shared : &turns->own;
    turns->appended_ours = ac_load_relaxed_u64(word) + 1;
    ac_store_relaxed_u64(word, turns->appended_ours);
    turns->appended_ns = now_ns;
    turns->polite -= turns->polite > 0;
    turns->free -= turns->free > 0;
}

/* Whether the next append may be tried without ac_cq4_turns_pause_ns. */
static inline int ac_cq4_turns_is_free(const ac_cq4_turns_t *turns, int has_foreign) {
    return !turns->is_shared || turns->free || (has_foreign && !turns->is_ahead);
}

/* It appends to another file, which has this many messages. */
void ac_cq4_turns_enter(ac_cq4_turns_t *turns, uint64_t seq);

/* With the write lock held: others have appended, and the next message has this number. */
void ac_cq4_turns_meet(ac_cq4_turns_t *turns, uint64_t seq, uint64_t now_ns);

/* How long to leave the lock free now, in nanoseconds. */
uint64_t ac_cq4_turns_pause_ns(ac_cq4_turns_t *turns, uint64_t now_ns);

/* Whether the pause may end earlier; has_foreign: another has appended since. */
int ac_cq4_turns_may_go(const ac_cq4_turns_t *turns, int has_foreign);

#endif
