/* The right to append to a Java Chronicle Queue: its write lock, a word in the table store.
 *
 *   chronicle.write.lock    0x8000000000000000: free; else the pid of the holder, in the low 32 bits
 *   chronicle.append.lock   the same; while it is held nobody appends at all (the sink of a replication). Looked at,
 *                           never taken, and never freed: Java does not free it either, not even that of a dead process
 *
 * 1. Taken by compare-and-swap from free to our pid, given back by compare-and-swap from our pid to free. Between the
 *    two only a message is copied: no system call that waits, and nothing of Python.
 * 2. The word knows processes, not threads. So the threads of a process first agree among themselves, by a gate
 *    that all users of the same table store share, whichever handle they have.
 * 3. A holder that does not exist any more is freed, as Java does when it opens a queue. A zombie exists. A holder with
 *    our own pid is a process that had it before, in a container that was started again: nobody in this
 *    process holds the lock while we have the gate. It is freed when the time to wait is over, in case a JVM runs
 *    in this process.
 * 4. Nobody signals that the lock is free. Who waits spins for microseconds, gives up the processor for a millisecond,
 *    and then sleeps between looks; after the time to wait it gives up and says who the holder is.
 * 5. In a forked child the lock is not ours. */
#ifndef AC_CQ4_LOCK_H
#define AC_CQ4_LOCK_H

#include "atomics.h"
#include "cq4_table.h"

#define AC_CQ4_LOCK_TIMEOUT_NS (15ull * 1000000000u)
/* To add a key, which is done when a reader is opened. */
#define AC_CQ4_KEY_TIMEOUT_NS (5ull * 1000000000u)

enum ac_cq4_gate_state { AC_CQ4_GATE_FREE = 0, AC_CQ4_GATE_HELD = 1, AC_CQ4_GATE_CONTENDED = 2 };

/* Held by one thread of this process; contended: held, and others wait. */
typedef struct ac_cq4_gate {
    uint32_t word; /* an enum ac_cq4_gate_state */
    uint32_t refs;
    dev_t device; /* of the table store */
    ino_t inode;
    struct ac_cq4_gate *next;
} ac_cq4_gate_t;

typedef struct ac_cq4_lock {
    ac_cq4_gate_t *gate; /* NULL: not open */
    uint64_t *word;
    const uint64_t *append_word; /* NULL: the queue is from before there was one */
    const ac_map_t *map;         /* of the table */
    uint64_t pid;
    uint64_t timeout_ns;
    uint32_t generation;
    const char *path; /* of the queue; as long as the lock is open */
    /* Asked by who waits, between looks: non-zero ends the wait with AC_E_INTERRUPTED. NULL: nobody is. */
    int (*interrupted)(void *context);
    void *interrupted_context;
    uint64_t waits, freed, stolen; /* written with the gate */
} ac_cq4_lock_t;

/* The table must be mapped writable, have the key of the write lock, and outlive the lock; so must `path`. */
int ac_cq4_lock_open(ac_cq4_lock_t *lock, const ac_cq4_table_t *table, const char *path,
                     uint64_t timeout_ns, ac_error_t *err);
int ac_cq4_lock_is_interrupted(const ac_cq4_lock_t *lock, ac_error_t *err); /* 0, or the error */
void ac_cq4_lock_close(ac_cq4_lock_t *lock); /* also one that is all zeros */

/* How often this process was forked: a handle with another number belongs to the parent. */
extern uint32_t ac_cq4_generation;

static inline int ac_cq4_lock_is_forked(const ac_cq4_lock_t *lock) {
    return lock->generation != ac_load_relaxed_u32(&ac_cq4_generation);
}

static inline int ac_cq4_lock_swap(uint64_t *word, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static inline int ac_cq4_gate_try(ac_cq4_gate_t *gate) {
    uint32_t free = AC_CQ4_GATE_FREE;
    return __atomic_compare_exchange_n(&gate->word, &free, AC_CQ4_GATE_HELD, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

void ac_cq4_gate_wake(ac_cq4_gate_t *gate);

static inline void ac_cq4_gate_leave(ac_cq4_gate_t *gate) {
    if (AC_UNLIKELY(__atomic_exchange_n(&gate->word, AC_CQ4_GATE_FREE, __ATOMIC_RELEASE) ==
                    AC_CQ4_GATE_CONTENDED))
        ac_cq4_gate_wake(gate);
}

/* The gate alone, for what only this process must not do twice at a time. AC_E_TIMEOUT. */
int ac_cq4_gate_enter(ac_cq4_lock_t *lock, ac_error_t *err);
/* Again, for who has left it in the middle of a call; for as long as that takes. */
void ac_cq4_gate_return(ac_cq4_gate_t *gate);

static inline int ac_cq4_lock_is_append_locked(const ac_cq4_lock_t *lock) {
    return lock->append_word && ac_load_acquire_u64(lock->append_word) != AC_CQ4_UNLOCKED;
}

static inline int ac_cq4_lock_is_free(const ac_cq4_lock_t *lock) {
    return ac_load_relaxed_u64(lock->word) == AC_CQ4_UNLOCKED;
}

/* With the gate: 1 = taken, 0 = another process has it. */
static inline int ac_cq4_lock_try(ac_cq4_lock_t *lock) {
    return ac_cq4_lock_is_free(lock) && ac_cq4_lock_swap(lock->word, AC_CQ4_UNLOCKED, lock->pid);
}

/* With the gate: takes it, waiting if need be. AC_E_LOCKED, with the holder, after the time to wait; or at once if the
 * append lock is held. AC_E_GONE if the table store was cut, AC_E_CORRUPT if a lock has a value that nobody writes. */
int ac_cq4_lock_take(ac_cq4_lock_t *lock, ac_error_t *err);

/* Gives it back; the gate stays. */
static inline void ac_cq4_lock_release(ac_cq4_lock_t *lock) {
    if (AC_UNLIKELY(!ac_cq4_lock_swap(lock->word, lock->pid, AC_CQ4_UNLOCKED)))
        ac_count_u64(&lock->stolen, 1);
}

#endif
