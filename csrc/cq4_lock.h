/* The write lock of a Java Chronicle Queue: a word in the table store.
 *
 *   chronicle.write.lock    0x8000000000000000: free; else the pid of the holder, in the low 32 bits
 *   chronicle.append.lock   the same; while it is held (by the sink of a replication) nobody may append. We check it,
 *                           but never take or free it: Java does not free it either, not even that of a dead process
 *
 * 1. It is acquired by compare-and-swap from free to our pid, and released by compare-and-swap from our pid to free. In
 *    between only a message is copied: no system call that waits, no Python code.
 * 2. The word names a process, not a thread. So a thread first locks a mutex, which all handles of this process to the
 *    same table store share.
 * 3. The lock of a process that no longer exists is freed, as Java does when it opens a queue. A zombie still exists. If
 *    the holder has our own pid, it was an earlier process with that pid, in a container that was restarted: while
 *    we hold the mutex no thread of this process holds the lock. It is freed only at the end of the timeout, in case a
 *    JVM runs in this process.
 * 4. Releasing the lock signals nobody. A waiting thread spins for microseconds, yields for a millisecond, and then
 *    sleeps between attempts; after the timeout it fails with an error that names the holder.
 * 5. A forked child does not hold its parent's lock. */
#ifndef AC_CQ4_LOCK_H
#define AC_CQ4_LOCK_H

#include "atomics.h"
#include "cq4_table.h"

#define AC_CQ4_LOCK_TIMEOUT_NS (15ull * 1000000000u)
/* To add a key, which is done when a reader is opened. */
#define AC_CQ4_KEY_TIMEOUT_NS (5ull * 1000000000u)

enum ac_cq4_mutex_state {
    AC_CQ4_MUTEX_FREE = 0,
    AC_CQ4_MUTEX_HELD = 1,
    AC_CQ4_MUTEX_CONTENDED = 2
};

/* Held by one thread of this process; contended: held, and others wait for it. */
typedef struct ac_cq4_mutex {
    uint32_t word; /* an enum ac_cq4_mutex_state */
    uint32_t refs;
    dev_t device; /* of the table store */
    ino_t inode;
    struct ac_cq4_mutex *next;
} ac_cq4_mutex_t;

typedef struct ac_cq4_lock {
    ac_cq4_mutex_t *mutex; /* NULL: not open */
    uint64_t *word;
    const uint64_t *append_word; /* NULL: the queue is from before there was one */
    const ac_map_t *map;         /* of the table */
    uint64_t pid;
    uint64_t timeout_ns;
    uint32_t generation;
    const char *path; /* of the queue; as long as the lock is open */
    /* Called between attempts while waiting: a non-zero result ends the wait with AC_E_INTERRUPTED. May be
     * NULL. */
    int (*interrupted)(void *context);
    void *interrupted_context;
    uint64_t waits, freed, stolen; /* written with the mutex held */
} ac_cq4_lock_t;

/* The table must be mapped writable, have the key of the write lock, and outlive the lock; so must `path`. */
int ac_cq4_lock_open(ac_cq4_lock_t *lock, const ac_cq4_table_t *table, const char *path,
                     uint64_t timeout_ns, ac_error_t *err);
int ac_cq4_lock_is_interrupted(const ac_cq4_lock_t *lock, ac_error_t *err); /* 0, or the error */
void ac_cq4_lock_close(ac_cq4_lock_t *lock); /* also for one that is all zeros */

/* How often this process was forked: a handle with another number belongs to the parent. */
extern uint32_t ac_cq4_generation;

static inline int ac_cq4_lock_is_forked(const ac_cq4_lock_t *lock) {
    return lock->generation != ac_load_relaxed_u32(&ac_cq4_generation);
}

static inline int ac_cq4_lock_swap(uint64_t *word, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static inline int ac_cq4_mutex_try_lock(ac_cq4_mutex_t *mutex) {
    uint32_t free = AC_CQ4_MUTEX_FREE;
    return __atomic_compare_exchange_n(&mutex->word, &free, AC_CQ4_MUTEX_HELD, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

void ac_cq4_mutex_wake(ac_cq4_mutex_t *mutex);

static inline void ac_cq4_mutex_unlock(ac_cq4_mutex_t *mutex) {
    if (AC_UNLIKELY(__atomic_exchange_n(&mutex->word, AC_CQ4_MUTEX_FREE, __ATOMIC_RELEASE) ==
                    AC_CQ4_MUTEX_CONTENDED))
        ac_cq4_mutex_wake(mutex);
}

/* Locks the mutex, without the queue's write lock. AC_E_TIMEOUT. */
int ac_cq4_mutex_lock(ac_cq4_lock_t *lock, ac_error_t *err);
/* Locks it again after it was unlocked in the middle of a call. Waits without a limit. */
void ac_cq4_mutex_relock(ac_cq4_mutex_t *mutex);

static inline int ac_cq4_lock_is_append_locked(const ac_cq4_lock_t *lock) {
    return lock->append_word && ac_load_acquire_u64(lock->append_word) != AC_CQ4_UNLOCKED;
}

static inline int ac_cq4_lock_is_free(const ac_cq4_lock_t *lock) {
    return ac_load_relaxed_u64(lock->word) == AC_CQ4_UNLOCKED;
}

/* With the mutex held: 1 = acquired, 0 = another process holds it. */
static inline int ac_cq4_lock_try(ac_cq4_lock_t *lock) {
    return ac_cq4_lock_is_free(lock) && ac_cq4_lock_swap(lock->word, AC_CQ4_UNLOCKED, lock->pid);
}

/* With the mutex held: acquires it, waiting if necessary. AC_E_LOCKED, with the holder, after the timeout,
 * or at once if the append lock is held. AC_E_GONE if the table store was truncated, AC_E_CORRUPT if a lock
 * has an impossible value. */
int ac_cq4_lock_take(ac_cq4_lock_t *lock, ac_error_t *err);

/* Releases it; the mutex stays locked. */
static inline void ac_cq4_lock_release(ac_cq4_lock_t *lock) {
    if (AC_UNLIKELY(!ac_cq4_lock_swap(lock->word, lock->pid, AC_CQ4_UNLOCKED)))
        ac_count_u64(&lock->stolen, 1);
}

#endif
