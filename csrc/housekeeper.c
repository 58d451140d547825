#include "housekeeper.h"

#include "atomics.h"
#include "os.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static ac_task_t *tasks;
static int fork_handlers;
static int forks_wait_for; /* how many tasks that are running now */

static struct lane {
    int eventfd; /* eventfd that wakes the thread; 0 = none yet */
    int started;
} lanes[AC_LANES];

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    while (forks_wait_for > 0)
        pthread_cond_wait(&idle, &lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_child(void) {
    for (ac_task_t *task = tasks; task; task = task->next)
        if (task->forked) task->forked(task);
    tasks = NULL;
    for (int i = 0; i < AC_LANES; i++) { /* threads are not inherited */
        if (lanes[i].started) ac_os_close(lanes[i].eventfd);
        lanes[i] = (struct lane){0};
    }
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&idle, NULL);
}

/* The task to run next, or NULL; *wait_ns = how long until one is due. Called with the lock held. */
static ac_task_t *pick(enum ac_lane lane, uint64_t now_ns, uint64_t *wait_ns) {
    ac_task_t *best = NULL;
    uint64_t earliest = UINT64_MAX;
    for (ac_task_t *task = tasks; task; task = task->next) {
        uint64_t due = ac_load_relaxed_u64(&task->due_ns);
        if (task->lane == lane && due < earliest) {
            earliest = due;
            best = task;
        }
    }
    *wait_ns = earliest == UINT64_MAX ? UINT64_MAX : earliest > now_ns ? earliest - now_ns : 0;
    return best && earliest <= now_ns ? best : NULL;
}

enum { TOGETHER = 128 };

static void begin(ac_task_t *task) {
    /* Before the work, so that a nudge during it is not lost. */
    ac_exchange_seq_cst_u64(&task->due_ns, UINT64_MAX);
    task->running = 1;
    forks_wait_for += task->forks_wait;
}

static void end(ac_task_t *task, uint64_t next) {
    uint64_t untouched = UINT64_MAX;
    task->running = 0;
    forks_wait_for -= task->forks_wait;
    __atomic_compare_exchange_n(&task->due_ns, &untouched, next, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&idle);
}

/* Not who has met the others and had no turn of its own since; unless it was nudged meanwhile. */
static int is_to_meet(const ac_task_t *task) {
    return task->together && (!task->met || ac_load_relaxed_u64(&task->due_ns) == 0);
}

/* The task, and those that are due and want to be with it. */
static size_t gather(ac_task_t *first, uint64_t now_ns, ac_task_t *due[TOGETHER]) {
    size_t count = 0;
    due[count++] = first;
    for (ac_task_t *task = tasks; task && count < TOGETHER; task = task->next)
        if (task != first && task->lane == first->lane && task->together == first->together &&
            is_to_meet(task) && ac_load_relaxed_u64(&task->due_ns) <= now_ns)
            due[count++] = task;
    return count;
}

/* Only the first goes on to its own turn at once; the others have theirs later, and may be removed before. */
static void meet(ac_task_t *first, uint64_t now_ns) {
    ac_task_t *due[TOGETHER];
    size_t count = gather(first, now_ns, due);
    for (size_t i = 0; i < count; i++)
        begin(due[i]);
    pthread_mutex_unlock(&lock);
    first->together(due, count);
    pthread_mutex_lock(&lock);
    for (size_t i = 1; i < count; i++) {
        due[i]->met = 1;
        end(due[i], now_ns);
    }
}

/* With the lock held, but for the work itself. */
static void run_due(ac_task_t *task, uint64_t now_ns) {
    if (is_to_meet(task))
        meet(task, now_ns);
    else
        begin(task);
    task->met = 0;
    pthread_mutex_unlock(&lock);
    uint64_t next = task->run(task, now_ns);
    pthread_mutex_lock(&lock);
    end(task, next);
}

static void *housekeep(void *argument) {
    enum ac_lane lane = (enum ac_lane)(uintptr_t)argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        uint64_t wait_ns;
        ac_task_t *task = pick(lane, ac_os_monotonic_ns(), &wait_ns);
        if (task) {
            run_due(task, ac_os_monotonic_ns());
            continue;
        }
        int eventfd = lanes[lane].eventfd;
        pthread_mutex_unlock(&lock);
        ac_os_eventfd_wait(eventfd, wait_ns);
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

static int start_locked(enum ac_lane lane) {
    if (!fork_handlers) {
        int rc = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
        if (rc != 0) return -rc;
        fork_handlers = 1;
    }
    if (lanes[lane].started) return 0;
    int eventfd = ac_os_eventfd();
    if (eventfd < 0) return eventfd;
    __atomic_store_n(&lanes[lane].eventfd, eventfd, __ATOMIC_RELEASE);
    int rc = ac_os_thread(housekeep, (void *)(uintptr_t)lane);
    if (rc < 0)
        ac_os_close(eventfd);
    else
        lanes[lane].started = 1;
    return rc;
}

int ac_housekeeper_add(ac_task_t *task) {
    pthread_mutex_lock(&lock);
    int rc = start_locked(task->lane);
    if (rc == 0) {
        task->due_ns = UINT64_MAX;
        task->running = task->met = 0;
        task->next = tasks;
        tasks = task;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void ac_housekeeper_remove(ac_task_t *task) {
    pthread_mutex_lock(&lock);
    for (ac_task_t **link = &tasks; *link; link = &(*link)->next) {
        if (*link != task) continue;
        *link = task->next;
        break;
    }
    while (task->running)
        pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
}

void ac_housekeeper_nudge(ac_task_t *task) {
    if (ac_exchange_seq_cst_u64(&task->due_ns, 0) != 0)
        ac_os_eventfd_signal(__atomic_load_n(&lanes[task->lane].eventfd, __ATOMIC_ACQUIRE));
}
