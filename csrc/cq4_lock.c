#include "cq4_lock.h"

#include "error.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define YIELD_NS 1000000u
#define SLEEP_NS_MIN 50000u
#define SLEEP_NS_MAX 1000000u
#define LOOK_NS 10000000u /* how often the holder's liveness is checked */
enum { SPINS = 400 }; /* about 20 us; while a JVM appends without a pause, fewer may not succeed */

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static ac_cq4_mutex_t *mutexes;
uint32_t ac_cq4_generation;

static void before_fork(void) {
    pthread_mutex_lock(&list_mutex);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&list_mutex);
}

/* The child does not have the threads that hold mutexes: handles that it opens get new ones. */
static void after_fork_child(void) {
    mutexes = NULL;
    ac_fetch_add_relaxed_u32(&ac_cq4_generation, 1);
    pthread_mutex_unlock(&list_mutex);
}

__attribute__((constructor)) static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static ac_cq4_mutex_t *find_mutex(dev_t device, ino_t inode) {
    ac_cq4_mutex_t *mutex = mutexes;
    while (mutex && (mutex->device != device || mutex->inode != inode))
        mutex = mutex->next;
    return mutex;
}

static ac_cq4_mutex_t *share_mutex(dev_t device, ino_t inode) {
    pthread_mutex_lock(&list_mutex);
    ac_cq4_mutex_t *mutex = find_mutex(device, inode);
    if (!mutex && (mutex = ac_os_alloc(sizeof *mutex))) {
        mutex->device = device;
        mutex->inode = inode;
        mutex->next = mutexes;
        mutexes = mutex;
    }
    if (mutex) mutex->refs++;
    pthread_mutex_unlock(&list_mutex);
    return mutex;
}

static void drop_mutex(ac_cq4_mutex_t *mutex) {
    pthread_mutex_lock(&list_mutex);
    if (--mutex->refs == 0) {
        ac_cq4_mutex_t **at = &mutexes;
        while (*at != mutex)
            at = &(*at)->next;
        *at = mutex->next;
        free(mutex);
    }
    pthread_mutex_unlock(&list_mutex);
}

void ac_cq4_mutex_wake(ac_cq4_mutex_t *mutex) {
    ac_os_futex_wake(&mutex->word, 1);
}

static uint64_t left_until(uint64_t deadline_ns) {
    uint64_t now_ns = ac_os_monotonic_ns();
    return now_ns < deadline_ns ? deadline_ns - now_ns : 0;
}

int ac_cq4_lock_is_interrupted(const ac_cq4_lock_t *lock, ac_error_t *err) {
    if (!lock->interrupted || !lock->interrupted(lock->interrupted_context)) return 0;
    return ac_fail(err, AC_E_INTERRUPTED, 0, lock->path, 0, "interrupted while waiting to append");
}

int ac_cq4_mutex_lock(ac_cq4_lock_t *lock, ac_error_t *err) {
    ac_cq4_mutex_t *mutex = lock->mutex;
    if (ac_cq4_lock_is_forked(lock))
        return ac_fail(err, AC_E_FORKED, 0, lock->path, 0, "opened before fork");
    if (ac_cq4_mutex_try_lock(mutex)) return AC_OK;
    uint64_t deadline_ns = ac_os_monotonic_ns() + lock->timeout_ns, left_ns;
    /* After a wait it is marked contended: this thread cannot know whether others still wait. */
    while (__atomic_exchange_n(&mutex->word, AC_CQ4_MUTEX_CONTENDED, __ATOMIC_ACQUIRE) !=
           AC_CQ4_MUTEX_FREE) {
        if ((left_ns = left_until(deadline_ns)) == 0)
            return ac_fail(err, AC_E_TIMEOUT, ETIMEDOUT, lock->path, 0,
                           "another thread of this process has been appending for %.1f s",
                           (double)lock->timeout_ns / 1e9);
        ac_os_futex_wait(&mutex->word, AC_CQ4_MUTEX_CONTENDED,
                         left_ns < LOOK_NS ? left_ns : LOOK_NS);
        int rc = ac_cq4_lock_is_interrupted(lock, err);
        if (rc != 0) return rc;
    }
    return AC_OK;
}

void ac_cq4_mutex_relock(ac_cq4_mutex_t *mutex) {
    if (ac_cq4_mutex_try_lock(mutex)) return;
    while (__atomic_exchange_n(&mutex->word, AC_CQ4_MUTEX_CONTENDED, __ATOMIC_ACQUIRE) !=
           AC_CQ4_MUTEX_FREE)
        ac_os_futex_wait(&mutex->word, AC_CQ4_MUTEX_CONTENDED, LOOK_NS);
}

int ac_cq4_lock_open(ac_cq4_lock_t *lock, const ac_cq4_table_t *table, const char *path,
                     uint64_t timeout_ns, ac_error_t *err) {
    uint64_t *append_word;
    memset(lock, 0, sizeof *lock);
    if (!ac_cq4_table_find(table, AC_CQ4_KEY_WRITE_LOCK, &lock->word))
        return ac_fail(err, AC_E_CORRUPT, 0, path, 0, "%s has no " AC_CQ4_KEY_WRITE_LOCK,
                       table->name);
    if (ac_cq4_table_find(table, AC_CQ4_KEY_APPEND_LOCK, &append_word))
        lock->append_word = append_word;
    lock->map = table->map;
    lock->pid = (uint64_t)getpid();
    lock->timeout_ns = timeout_ns;
    lock->path = path;
    lock->generation = ac_load_relaxed_u32(&ac_cq4_generation);
    lock->mutex = share_mutex(table->device, table->inode);
    if (!lock->mutex) return ac_fail_os(err, -ENOMEM, path, "cannot allocate");
    return AC_OK;
}

void ac_cq4_lock_close(ac_cq4_lock_t *lock) {
    if (lock->mutex && !ac_cq4_lock_is_forked(lock)) drop_mutex(lock->mutex);
    lock->mutex = NULL;
}

static int fail_held(const ac_cq4_lock_t *lock, uint64_t holder, const char *what,
                     ac_error_t *err) {
    char command[sizeof err->holder_command] = "";
    int pid = (int)(uint32_t)holder;
    ac_os_process_command(pid, command, sizeof command);
    ac_fail(err, AC_E_LOCKED, ETIMEDOUT, lock->path, 0, "%s: by pid %d%s%.70s%s", what, pid,
            command[0] ? " (" : "", command, command[0] ? ")" : "");
    if (!err || pid <= 0) return AC_E_LOCKED;
    err->holder_pid = pid;
    err->holder_since_ns = ac_os_process_started_ns(pid);
    memcpy(err->holder_command, command, sizeof command);
    return AC_E_LOCKED;
}

/* Java writes a pid, which is never 0: zeros are those of a file that was truncated and extended again, or of a missing
 * page. */
static int is_damaged(const uint64_t *word) {
    uint64_t value = word ? ac_load_acquire_u64(word) : AC_CQ4_UNLOCKED;
    return value != AC_CQ4_UNLOCKED && (uint32_t)value == 0;
}

static int fail_damaged(const ac_cq4_lock_t *lock, ac_error_t *err) {
    const uint64_t *word = is_damaged(lock->word) ? lock->word : lock->append_word;
    if (ac_map_is_cut(lock->map))
        return ac_fail(err, AC_E_GONE, 0, lock->path, 0, AC_CQ4_METADATA " was cut");
    return ac_cq4_table_fail(
        lock->path, AC_CQ4_METADATA, AC_E_CORRUPT, 0,
        (uint64_t)((const uint8_t *)word - lock->map->base),
        "was cut or overwritten: its lock has neither a process nor the mark of a free one", err);
}

/* Frees the lock if its holder has died. */
static void free_dead(ac_cq4_lock_t *lock, int is_last_look) {
    uint64_t holder = ac_load_acquire_u64(lock->word);
    int pid = (int)(uint32_t)holder;
    int is_dead = is_last_look && (uint64_t)(uint32_t)pid == lock->pid;
    if (holder == AC_CQ4_UNLOCKED || (!is_dead && ac_os_process_exists(pid))) return;
    if (!ac_cq4_lock_swap(lock->word, holder, AC_CQ4_UNLOCKED)) return;
    ac_count_u64(&lock->freed, 1);
    ac_log(AC_LOG_WARNING, lock->path,
           is_dead ? "frees the write lock: it has the pid of this process, %d, and no thread here "
                     "holds it"
                   : "frees the write lock of process %d, which has ended",
           pid);
}

/* Between two attempts. */
static void wait_a_little(uint64_t waited_ns, uint64_t *sleep_ns) {
    if (waited_ns < YIELD_NS) {
        ac_os_yield();
        return;
    }
    ac_os_sleep_ns(*sleep_ns);
    if (*sleep_ns < SLEEP_NS_MAX) *sleep_ns *= 2;
}

/* 1 = acquired, 0 = timeout, or AC_E_INTERRUPTED. */
static int wait_for_lock(ac_cq4_lock_t *lock, ac_error_t *err) {
    uint64_t start_ns = ac_os_monotonic_ns(), waited_ns = 0, looked_ns = 0;
    uint64_t sleep_ns = SLEEP_NS_MIN;
    ac_count_u64(&lock->waits, 1);
    for (;;) {
        if (ac_cq4_lock_try(lock)) return 1;
        int is_last_look = waited_ns >= lock->timeout_ns;
        if (is_last_look || waited_ns - looked_ns >= (looked_ns ? LOOK_NS : YIELD_NS)) {
            looked_ns = waited_ns;
            if (is_damaged(lock->word)) return 0;
            free_dead(lock, is_last_look);
            int rc = ac_cq4_lock_is_interrupted(lock, err);
            if (rc != 0) return rc;
        }
        if (is_last_look) return ac_cq4_lock_try(lock);
        wait_a_little(waited_ns, &sleep_ns);
        waited_ns = ac_os_monotonic_ns() - start_ns;
    }
}

/* The same, but spins first. */
static int try_and_wait(ac_cq4_lock_t *lock, ac_error_t *err) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (ac_cq4_lock_try(lock)) return 1;
        ac_cpu_relax();
    }
    return wait_for_lock(lock, err);
}

int ac_cq4_lock_take(ac_cq4_lock_t *lock, ac_error_t *err) {
    int is_append_locked = ac_cq4_lock_is_append_locked(lock);
    int rc = is_append_locked ? 0 : try_and_wait(lock, err);
    if (AC_UNLIKELY(ac_map_is_cut(lock->map))) return fail_damaged(lock, err);
    if (rc != 0) return rc < 0 ? rc : AC_OK;
    if (is_damaged(lock->word) || is_damaged(lock->append_word)) return fail_damaged(lock, err);
    if (is_append_locked)
        return fail_held(lock, ac_load_acquire_u64(lock->append_word),
                         "is the sink of a replication: " AC_CQ4_KEY_APPEND_LOCK
                         " is held, and nobody else may append",
                         err);
    return fail_held(lock, ac_load_acquire_u64(lock->word), "the write lock was held all the time",
                     err);
}
