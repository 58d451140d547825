/* Waiting for the next message: how a reader says that it sleeps, and what wakes it.
 *
 * An event loop watches the eventfd itself (ac_reader_eventfd, ac_reader_park); a thread sleeps on it
 * (ac_reader_prepare_sleep, ac_reader_sleep, or both at once in ac_reader_wait). */
#include "cq4_reader.h"
#include "error.h"
#include "lock.h"
#include "os.h"
#include "reader.h"

#include <stdio.h>
#include <unistd.h>

enum { DIRECTORY_NS = 100000000 };

/* The name under which writers find the reader; an anonymous one gets a unique name, even across pid
 * namespaces. */
static void name_endpoint(ac_reader_t *reader) {
    uint64_t unique = 0;
    if (reader->name[0] && !reader->java) { /* Java allows two of one name */
        snprintf(reader->endpoint.name, sizeof reader->endpoint.name, "%s", reader->name);
        return;
    }
    if (ac_os_random(&unique, sizeof unique) < 0) unique = ac_os_monotonic_ns();
    if (reader->group_tag) {
        snprintf(reader->endpoint.name, sizeof reader->endpoint.name,
                 AC_MEMBER_PREFIX "%08x-%d-%016llx", reader->group_tag, (int)getpid(),
                 (unsigned long long)unique);
        return;
    }
    snprintf(reader->endpoint.name, sizeof reader->endpoint.name, "%c%d-%016llx",
             AC_ANONYMOUS_PREFIX, (int)getpid(), (unsigned long long)unique);
}

/* The epoch of a writer of ours, which signals; 0 = another program opened the queue last. */
static uint64_t signalling_epoch(const ac_control_t *control) {
    uint64_t epoch = ac_load_acquire_u64(&control->writer_epoch);
    return ac_load_acquire_u64(&control->signalling_epoch) == epoch ? epoch : 0;
}

/* A writer that has the queue open now will connect; until it has, it could die unnoticed. The same holds
 * for one that took the lock before it was watched. */
static void suspect_writer(ac_reader_t *reader) {
    if (ac_writer_lives(&reader->dir, reader->control) && !ac_reader_attended(reader))
        ac_store_relaxed_u32(&reader->endpoint.suspect, 1);
}

static void announce_to_java(ac_reader_t *reader) {
    if (reader->retracting) return;
    if (reader->endpoint.name[0] != AC_ANONYMOUS_PREFIX) name_endpoint(reader);
    reader->announced = ac_cq4_wake_listen(&reader->java->wake, &reader->dir, &reader->endpoint);
}

void ac_reader_announce(ac_reader_t *reader) {
    if (reader->java) {
        announce_to_java(reader);
        return;
    }
    uint64_t epoch = signalling_epoch(reader->control);
    if (epoch == 0 || epoch == reader->tried_epoch || reader->retracting) return;
    reader->tried_epoch = epoch;
    if (reader->control_map->writable)
        reader->announced = ac_wake_announce(&reader->endpoint, &reader->dir, NULL) == AC_OK;
    if (reader->announced) suspect_writer(reader);
}

void ac_reader_retract(ac_reader_t *reader) {
    if (reader->announced || reader->retracting) ac_wake_retract(&reader->endpoint);
    reader->announced = 0;
}

int ac_reader_begin_retract(ac_reader_t *reader) {
    if (!reader->announced) return 0;
    reader->announced = 0;
    reader->retracting = 1;
    return 1;
}

void ac_reader_end_retract(ac_reader_t *reader) {
    reader->retracting = 0;
}

/* A fault maps sixteen pages at once, and a thousand idle sources would hold 64 MiB of them. A sleeping
 * reader needs two: the segment's header and the page of its position. */
void ac_reader_keep_two_pages(ac_reader_t *reader) {
    uint64_t page = ac_os_page_size(), here = reader->offset & ~(page - 1);
    if (!reader->map || reader->java) return;
    ac_os_unpopulate(reader->map->base, page, here);
    ac_os_unpopulate(reader->map->base, here + page, reader->map->size & ~(page - 1));
}

int ac_reader_eventfd(ac_reader_t *reader, ac_error_t *err) {
    int error;
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->tried_to_announce) return reader->eventfd->fd;
    if (!reader->eventfd) reader->eventfd = ac_eventfd_new(&error);
    if (!reader->eventfd)
        return ac_fail_os(err, error, reader->dir.path, "cannot create an eventfd");
    reader->tried_to_announce = 1;
    name_endpoint(reader);
    reader->endpoint.eventfd = reader->eventfd;
    ac_reader_keep_two_pages(reader);
    if (!reader->pending) ac_reader_announce(reader);
    return reader->eventfd->fd;
}

void ac_reader_use_eventfd(ac_reader_t *reader, ac_eventfd_t *eventfd) {
    ac_futex_watch_end(&reader->futex_watch); /* it has the old one */
    if (reader->java) ac_cq4_watch_stop(&reader->java->watch);
    ac_reader_retract(reader);
    ac_wake_stop_expecting(&reader->endpoint);
    reader->tried_to_announce = 0;
    reader->tried_epoch = 0;
    ac_eventfd_release(reader->eventfd);
    reader->eventfd = eventfd;
    reader->shares_eventfd = eventfd != NULL;
    if (eventfd) ac_eventfd_retain(eventfd);
}

/* Where the reader's bit is, and which bit of the word it is. */
static uint64_t *word_of_bit(ac_control_t *control, uint32_t bit) {
    return bit < AC_BIT_FIRST_MEMBER
               ? &control->parked
               : &control->parked_members[bit / 64 - AC_BIT_FIRST_MEMBER / 64];
}

/* A member's own bit first: the writer takes them in the other order. */
static void raise_bit(ac_control_t *control, uint32_t bit) {
    __atomic_fetch_or(word_of_bit(control, bit), 1ull << bit % 64, __ATOMIC_SEQ_CST);
    if (bit >= AC_BIT_FIRST_MEMBER)
        __atomic_fetch_or(&control->parked, 1ull << AC_BIT_MEMBERS, __ATOMIC_SEQ_CST);
}

int ac_reader_is_parked(const ac_reader_t *reader) {
    if (!reader->announced || reader->java) return 0;
    uint32_t bit = ac_load_acquire_u32(&reader->endpoint.bit);
    return bit != AC_NO_BIT &&
           (ac_load_seq_cst_u64(word_of_bit(reader->control, bit)) >> bit % 64 & 1);
}

void ac_reader_unpark(ac_reader_t *reader) {
    if (!reader->announced || reader->java) return;
    uint32_t bit = ac_load_acquire_u32(&reader->endpoint.bit);
    if (bit == AC_NO_BIT || bit < AC_BIT_FIRST_MEMBER) return; /* others may share it */
    __atomic_fetch_and(word_of_bit(reader->control, bit), ~(1ull << bit % 64), __ATOMIC_SEQ_CST);
}

int ac_reader_attended(ac_reader_t *reader) {
    return reader->announced && ac_load_acquire_u32(&reader->endpoint.bit) != AC_NO_BIT;
}

/* Without a connected writer nothing may ever signal that the queue was removed, or replaced by another;
 * and a watch that failed before may succeed now. Checked at most every DIRECTORY_NS, because a polling
 * reader calls this often. */
static int is_removed(ac_reader_t *reader) {
    uint64_t now = ac_os_monotonic_ns();
    if (reader->gone || (reader->looked_ns && now - reader->looked_ns < DIRECTORY_NS))
        return reader->gone;
    reader->looked_ns = now;
    int fd = ac_directory_open(&reader->dir, NULL);
    if (fd >= 0) ac_os_close(fd);
    if (fd >= 0 && reader->announced && !ac_load_acquire_u32(&reader->endpoint.watching)) {
        ac_wake_watch_lock(&reader->endpoint);
        suspect_writer(reader);
    }
    reader->gone = fd == AC_E_GONE;
    if (reader->gone) reader->window_end = 0; /* off the fast path, to where it is reported */
    return reader->gone;
}

/* Java never signals: a thread polls for sleeping readers. */
static int park_with_java(ac_reader_t *reader, ac_error_t *err) {
    ac_cq4_reader_t *java = reader->java;
    ac_cq4_sight_t sight;
    if (reader->announced) ac_cq4_wake_park(&java->wake);
    do { /* a look may skip metadata, and enter the next file */
        sight = ac_cq4_watch_see(&java->tail);
        int rc = ac_reader_ready(reader, err);
        if (rc != 0) return rc;
    } while (!ac_cq4_watch_is_there(&sight, &java->tail));
    reader->parks++;
    int rc = ac_cq4_watch_start(&java->watch, &sight, &java->tail, reader->eventfd,
                                ac_reader_poll_max_ns(reader));
    return rc == 0 ? AC_PARKED : AC_POLL;
}

/* Raising our bit is the full barrier between it and the look that follows; it pairs with the increment of
 * notify_seq in ac_writer_publish. Without a connected writer the bit has no meaning: the wake thread
 * signals when one connects. */
int ac_reader_park(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_reader_eventfd(reader, err);
    if (rc < 0) return rc;
    if (reader->pending) {
        int watched = ac_wake_expect_queue(&reader->endpoint, reader->dir.path) == 0;
        rc = ac_reader_ready_in_loop(reader, err);
        if (rc != 0) return rc;
        /* The last step of a half-created control block may be a store that no watch can see. */
        if (reader->pending)
            return reader->opening || (watched && !reader->half_made) ? AC_PARKED : AC_POLL;
    }
    ac_control_t *control = reader->control;
    if (!reader->announced) ac_reader_announce(reader);
    if (reader->java) return park_with_java(reader, err);
    uint32_t bit = reader->announced ? ac_load_acquire_u32(&reader->endpoint.bit) : AC_NO_BIT;
    if (bit != AC_NO_BIT) raise_bit(control, bit);
    int by_futex = signalling_epoch(control) == 0 &&
                   ac_futex_watch_count(&reader->futex_watch, reader->control_map);
    rc = ac_reader_ready(reader, err);
    if (rc != 0) {
        if (by_futex) ac_futex_watch_end(&reader->futex_watch);
        return rc;
    }
    if (by_futex) ac_futex_watch_start(&reader->futex_watch, reader->eventfd);
    if (bit == AC_NO_BIT && is_removed(reader)) return AC_READY;
    reader->parks++;
    if (bit != AC_NO_BIT) return AC_PARKED;
    /* No watch, no park: the next writer may be one that does not signal. */
    if (!reader->announced || signalling_epoch(control) == 0 ||
        !ac_load_acquire_u32(&reader->endpoint.watching))
        return AC_POLL;
    return ac_load_relaxed_u32(&reader->endpoint.suspect) ? AC_POLL : AC_PARKED;
}

int ac_reader_prepare_sleep(ac_reader_t *reader, ac_sleep_t *sleep, ac_error_t *err) {
    int rc = ac_reader_park(reader, err);
    if (rc < 0 || rc == AC_READY) return rc;
    sleep->poll = rc == AC_POLL;
    sleep->poll_ns = ac_poll_interval_ns(sleep->poll_ns, ac_reader_poll_max_ns(reader));
    sleep->eventfd = reader->eventfd;
    ac_eventfd_retain(reader->eventfd);
    reader->waits++;
    return 0;
}

void ac_reader_sleep(ac_sleep_t *sleep, uint64_t timeout_ns) {
    ac_eventfd_t *eventfd = sleep->eventfd;
    if (sleep->poll && timeout_ns > sleep->poll_ns) timeout_ns = sleep->poll_ns;
    ac_os_eventfd_wait(eventfd->fd, timeout_ns);
    if (ac_load_acquire_u32(&eventfd->closing)) ac_os_eventfd_signal(eventfd->fd);
    ac_eventfd_release(eventfd);
}

int ac_reader_wait(ac_reader_t *reader, uint64_t timeout_ns, uint64_t spin_ns, ac_error_t *err) {
    uint64_t started = ac_os_monotonic_ns();
    ac_sleep_t sleep = {0};
    int rc = ac_reader_ready(reader, err);
    while (rc == 0) {
        uint64_t waited = ac_os_monotonic_ns() - started;
        if (waited >= timeout_ns) return 0;
        if (waited < spin_ns) {
            for (int i = 0; i < 64; i++)
                ac_cpu_relax();
            rc = ac_reader_ready(reader, err);
        } else {
            rc = ac_reader_prepare_sleep(reader, &sleep, err);
            if (rc == 0) ac_reader_sleep(&sleep, timeout_ns - waited);
            if (rc == 0) rc = ac_reader_ready(reader, err);
        }
    }
    return rc;
}
