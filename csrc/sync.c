#include "sync.h"

#include "atomics.h"
#include "os.h"

#include <errno.h>
#include <pthread.h>

/* Measured with a hundred queues: with fewer the disk is idle at times, with more they hinder each other. */
enum { RING_WORKERS = 32, THREADS = 16, SUBMITTED_TOGETHER = 8 };

enum { PENDING = 1 }; /* as a result: there is none yet */

static void sync_directly(ac_sync_t *range) {
    range->result = range->base
                        ? ac_os_map_sync(range->base, range->fd, range->offset, range->length)
                        : ac_os_sync(range->fd);
}

/* A request that never ran says nothing about the data. Any other failure stands: another try would turn
 * "lost" into "fine", since the kernel reports it once. */
static int never_ran(int result) {
    return result == -ECANCELED || result == -EAGAIN || result == -EINTR;
}

static void start_writing(ac_sync_t *range) {
    int rc = ac_os_start_writing(range->fd, range->offset, range->length);
    if (rc < 0) range->result = rc; /* it may have dropped what it could not write */
}

static size_t queue_sync(ac_ring_t *ring, ac_sync_t *range, uint64_t number) {
    int rc = ac_os_ring_sync(ring, range->fd, range->offset, range->length, number);
    if (rc < 0) range->result = rc;
    return rc >= 0;
}

/* Writes and syncs everything that is pending, some at a time: while the kernel's workers sync these, this
 * thread hands further pages to the disk, and waits for nothing. Returns how many completions are to come. */
static size_t submit(ac_ring_t *ring, ac_sync_t *ranges, size_t count) {
    size_t submitted = 0, queued = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].result == PENDING) start_writing(&ranges[i]);
        if (ranges[i].result == PENDING) queued += queue_sync(ring, &ranges[i], i);
        if (queued < SUBMITTED_TOGETHER && i + 1 < count) continue;
        size_t taken = ac_os_ring_submit(ring, queued);
        submitted += taken;
        if (taken < queued) break;
        queued = 0;
    }
    return submitted;
}

/* The receiver of results. */
typedef struct listener {
    void (*synced)(void *context, size_t number);
    void *context;
} listener_t;

static void tell(const listener_t *listener, ac_sync_t *range, size_t number) {
    if (range->reported) return;
    range->reported = 1;
    listener->synced(listener->context, number);
}

/* 0 = io_uring is not available, and nothing was done. Ranges that are still pending afterwards never ran. */
static int sync_by_ring(ac_sync_t *ranges, size_t count, const listener_t *listener) {
    ac_ring_t ring;
    if (ac_os_ring_open(&ring, (unsigned)count, RING_WORKERS) < 0) return 0;
    for (size_t left = submit(&ring, ranges, count); left > 0; left--) {
        uint64_t number;
        int result;
        /* Half of them at a time: waking up for each would cost more than the work it brings. */
        if (ac_os_ring_wait(&ring, (left + 1) / 2, &number, &result) < 0) {
            for (size_t i = 0; i < count; i++) /* submitted, with an unknown outcome */
                if (ranges[i].result == PENDING) ranges[i].result = -EIO;
            break;
        }
        if (number >= count || never_ran(result)) continue;
        ranges[number].result = result;
        tell(listener, &ranges[number], number);
    }
    ac_os_ring_close(&ring);
    return 1;
}

typedef struct crew {
    ac_sync_t *ranges;
    size_t count;
    uint64_t next;
    pthread_mutex_t mutex;
    pthread_cond_t finished;
    int working;
} crew_t;

static void take_turns(crew_t *crew) {
    for (;;) {
        uint64_t number = __atomic_fetch_add(&crew->next, 1, __ATOMIC_RELAXED);
        if (number >= crew->count) return;
        if (crew->ranges[number].result == PENDING) sync_directly(&crew->ranges[number]);
    }
}

static void *work(void *argument) {
    crew_t *crew = argument;
    take_turns(crew);
    pthread_mutex_lock(&crew->mutex);
    if (--crew->working == 0) pthread_cond_signal(&crew->finished);
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

static void sync_by_threads(ac_sync_t *ranges, size_t count) {
    /* The disk gets everything to write before this thread waits for anything. */
    for (size_t i = 0; i < count; i++)
        if (ranges[i].result == PENDING) start_writing(&ranges[i]);
    crew_t crew = {.ranges = ranges, .count = count};
    pthread_mutex_init(&crew.mutex, NULL);
    pthread_cond_init(&crew.finished, NULL);
    pthread_mutex_lock(&crew.mutex);
    while (crew.working < THREADS - 1 && (size_t)crew.working + 1 < count &&
           ac_os_thread(work, &crew) == 0)
        crew.working++;
    pthread_mutex_unlock(&crew.mutex);
    take_turns(&crew); /* the only one, if no thread could be started */
    pthread_mutex_lock(&crew.mutex);
    while (crew.working > 0)
        pthread_cond_wait(&crew.finished, &crew.mutex);
    pthread_mutex_unlock(&crew.mutex);
    pthread_cond_destroy(&crew.finished);
    pthread_mutex_destroy(&crew.mutex);
}

void ac_sync_ranges(ac_sync_t *ranges, size_t count, void (*synced)(void *context, size_t number),
                    void *context) {
    const listener_t listener = {synced, context};
    size_t pending = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].length == 0) continue;
        ranges[i].result = PENDING;
        pending++;
    }
    if (pending > 1 && !sync_by_ring(ranges, count, &listener)) sync_by_threads(ranges, count);
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].result == PENDING) sync_directly(&ranges[i]);
        tell(&listener, &ranges[i], i);
    }
}
