#include "cq4_watch.h"

#include "cq4_lock.h"
#include "housekeeper.h"
#include "os.h"

#include <pthread.h>
#include <stddef.h>

#define LOOK_NS 250000000ull /* for the reader, if its tail has not set one */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static ac_cq4_watch_t *watches;
static int is_running;

static uint64_t poll_all(ac_task_t *task, uint64_t now_ns);

static ac_task_t looking = {.run = poll_all, .lane = AC_LANE_WATCH};

/* Another thread may have held the mutex, even one that was about to start the thread. */
static void after_fork_child(void) {
    watches = NULL;
    is_running = 0;
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, after_fork_child);
}

static void list(ac_cq4_watch_t *watch) {
    watch->next = watches;
    watch->link = &watches;
    if (watches) watches->link = &watch->next;
    watches = watch;
}

static void unlist(ac_cq4_watch_t *watch) {
    if (!watch->link) return;
    /* Otherwise it was in the parent's list. */
    if (watch->generation == ac_load_relaxed_u32(&ac_cq4_generation)) {
        *watch->link = watch->next;
        if (watch->next) watch->next->link = watch->link;
    }
    watch->link = NULL;
}

/* ---- the thread ---- */

static int has_news(const ac_cq4_watch_t *watch, uint64_t now_ns) {
    if (now_ns >= watch->ring_ns) return 1;
    if (watch->header && ac_cq4_load_header(watch->header) != watch->seen_header) return 1;
    return watch->mod_count && ac_load_acquire_u64(watch->mod_count) != watch->seen_mod_count;
}

static uint64_t next_look_ns(const ac_cq4_watch_t *watch, uint64_t now_ns) {
    uint64_t next_ns =
        now_ns + ac_cq4_watch_interval_ns(now_ns - watch->silent_since_ns, watch->max_ns);
    return next_ns < watch->ring_ns ? next_ns : watch->ring_ns;
}

static uint64_t poll_all(ac_task_t *task, uint64_t now_ns) {
    (void)task;
    uint64_t next_ns = UINT64_MAX;
    pthread_mutex_lock(&mutex);
    /* A reader may have gone to sleep since the turn began. */
    uint64_t locked_ns = ac_os_monotonic_ns();
    if (locked_ns > now_ns) now_ns = locked_ns;
    for (ac_cq4_watch_t *watch = watches, *next; watch; watch = next) {
        next = watch->next;
        if (has_news(watch, now_ns)) {
            unlist(watch);
            ac_os_eventfd_signal(watch->eventfd->fd);
            continue;
        }
        uint64_t due_ns = next_look_ns(watch, now_ns);
        if (due_ns < next_ns) next_ns = due_ns;
    }
    pthread_mutex_unlock(&mutex);
    return next_ns;
}

/* ---- readers ---- */

static const uint8_t *header_of(const ac_cq4_tail_t *tail) {
    if (!tail->cycle.map || tail->size < AC_CQ4_HEADER_BYTES) return NULL;
    return tail->offset <= tail->size - AC_CQ4_HEADER_BYTES ? tail->base + tail->offset : NULL;
}

ac_cq4_sight_t ac_cq4_watch_see(const ac_cq4_tail_t *tail) {
    const uint8_t *header = header_of(tail);
    return (ac_cq4_sight_t){
        .map = tail->cycle.map,
        .offset = tail->offset,
        .header = header ? ac_cq4_load_header(header) : 0,
        .mod_count = tail->queue.mod_count ? ac_load_acquire_u64(tail->queue.mod_count) : 0};
}

int ac_cq4_watch_is_there(const ac_cq4_sight_t *sight, const ac_cq4_tail_t *tail) {
    return sight->map == tail->cycle.map && sight->offset == tail->offset;
}

static void keep_map(ac_map_t **slot, ac_map_t *map) {
    if (*slot == map) return;
    if (map) ac_map_retain(map);
    ac_map_release(*slot);
    *slot = map;
}

static void keep_eventfd(ac_cq4_watch_t *watch, ac_eventfd_t *eventfd) {
    if (watch->eventfd == eventfd) return;
    if (eventfd) ac_eventfd_retain(eventfd);
    ac_eventfd_release(watch->eventfd);
    watch->eventfd = eventfd;
}

static int start_thread(void) {
    if (is_running) return 0;
    int rc = ac_housekeeper_add(&looking);
    is_running = rc == 0;
    return rc;
}

/* The silence continues for a reader that was woken for nothing. */
static void note_silence(ac_cq4_watch_t *watch, const ac_cq4_tail_t *tail, uint64_t now_ns) {
    if (watch->silent_since_ns && watch->messages == tail->messages &&
        watch->offset == tail->offset)
        return;
    watch->silent_since_ns = now_ns;
    watch->messages = tail->messages;
    watch->offset = tail->offset;
}

/* With the mutex held. */
static void set_up(ac_cq4_watch_t *watch, const ac_cq4_sight_t *sight, const ac_cq4_tail_t *tail,
                   ac_eventfd_t *eventfd, uint64_t max_ns, uint64_t now_ns) {
    note_silence(watch, tail, now_ns);
    watch->generation = ac_load_relaxed_u32(&ac_cq4_generation);
    watch->header = header_of(tail);
    watch->seen_header = sight->header;
    watch->mod_count = tail->queue.mod_count;
    watch->seen_mod_count = sight->mod_count;
    watch->max_ns = max_ns;
    watch->ring_ns = tail->look_again_ns ? tail->look_again_ns : now_ns + LOOK_NS;
    if (!watch->header && tail->cycle.map)
        watch->ring_ns = now_ns + ac_cq4_watch_interval_ns(now_ns - watch->silent_since_ns, max_ns);
    keep_map(&watch->map, tail->cycle.map);
    keep_map(&watch->table_map, tail->queue.table.map);
    keep_eventfd(watch, eventfd);
}

int ac_cq4_watch_start(ac_cq4_watch_t *watch, const ac_cq4_sight_t *sight,
                       const ac_cq4_tail_t *tail, ac_eventfd_t *eventfd, uint64_t max_ns) {
    uint64_t due_ns = UINT64_MAX;
    ac_map_t *unused = NULL; /* unmapping would keep the thread from polling for the others */
    ac_map_t **before = ac_map_collect(&unused);
    pthread_mutex_lock(&mutex);
    int rc = start_thread();
    if (rc == 0) {
        uint64_t now_ns = ac_os_monotonic_ns();
        unlist(watch);
        set_up(watch, sight, tail, eventfd, max_ns, now_ns);
        list(watch);
        due_ns = next_look_ns(watch, now_ns);
    }
    pthread_mutex_unlock(&mutex);
    ac_map_collect(before);
    ac_map_unmap(unused);
    if (ac_load_relaxed_u64(&looking.due_ns) > due_ns) ac_housekeeper_nudge(&looking);
    return rc;
}

void ac_cq4_watch_stop(ac_cq4_watch_t *watch) {
    pthread_mutex_lock(&mutex);
    unlist(watch);
    pthread_mutex_unlock(&mutex);
    keep_map(&watch->map, NULL);
    keep_map(&watch->table_map, NULL);
    keep_eventfd(watch, NULL);
}
