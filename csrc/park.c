/* Waiting for the next message: how a reader says that it sleeps, and what wakes it.
 *
 * An event loop watches the bell itself (ac_reader_bell, ac_reader_park); a thread sleeps on it
 * (ac_reader_prepare_sleep, ac_reader_sleep, or both at once in ac_reader_wait). */
#include "cq4_reader.h"
#include "error.h"
#include "lock.h"
#include "os.h"
#include "reader.h"

#include <stdio.h>
#include <unistd.h>

enum { DIRECTORY_NS = 100000000 };

/* The name under which writers find the reader; one without a name gets one that nobody else has, not
 * even in another pid namespace. */
static void name_caller(ac_reader_t *reader) {
    uint64_t unique = 0;
    if (reader->name[0] && !reader->java) { /* Java lets two have one name */
        snprintf(reader->caller.name, sizeof reader->caller.name, "%s", reader->name);
        return;
    }
    if (ac_os_random(&unique, sizeof unique) < 0) unique = ac_os_monotonic_ns();
    snprintf(reader->caller.name, sizeof reader->caller.name, "%c%d-%016llx", AC_ANONYMOUS_PREFIX,
             (int)getpid(), (unsigned long long)unique);
}

/* The epoch of a writer of ours, which signals; 0 = the last one to open the queue was another program's. */
static uint64_t signalling_epoch(const ac_control_t *control) {
    uint64_t epoch = ac_load_acquire_u64(&control->writer_epoch);
    return ac_load_acquire_u64(&control->signalling_epoch) == epoch ? epoch : 0;
}

/* A writer that has the queue open now will connect; until it has, it could die without a sign. The same goes
 * for one that took the lock before it was watched. */
static void suspect_writer(ac_reader_t *reader) {
    if (ac_writer_lives(&reader->dir, reader->control) && !ac_reader_attended(reader))
        ac_store_relaxed_u32(&reader->caller.suspect, 1);
}

static void announce_to_java(ac_reader_t *reader) {
    if (reader->retracting) return;
    if (reader->caller.name[0] != AC_ANONYMOUS_PREFIX) name_caller(reader);
    reader->announced = ac_cq4_bells_listen(&reader->java->bells, &reader->dir, &reader->caller);
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
        reader->announced = ac_doorman_announce(&reader->caller, &reader->dir, NULL) == AC_OK;
    if (reader->announced) suspect_writer(reader);
}

void ac_reader_retract(ac_reader_t *reader) {
    if (reader->announced || reader->retracting) ac_doorman_retract(&reader->caller);
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

/* A fault maps sixteen pages at once, and a thousand idle sources would hold 64 MiB of them. What a sleeper
 * looks at are two: the segment's header and where it stands. */
void ac_reader_keep_two_pages(ac_reader_t *reader) {
    uint64_t page = ac_os_page_size(), here = reader->offset & ~(page - 1);
    if (!reader->map || reader->java) return;
    ac_os_unpopulate(reader->map->base, page, here);
    ac_os_unpopulate(reader->map->base, here + page, reader->map->size & ~(page - 1));
}

int ac_reader_bell(ac_reader_t *reader, ac_error_t *err) {
    int error;
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->tried_to_announce) return reader->bell->fd;
    if (!reader->bell) reader->bell = ac_bell_new(&error);
    if (!reader->bell) return ac_fail_os(err, error, reader->dir.path, "cannot create an eventfd");
    reader->tried_to_announce = 1;
    name_caller(reader);
    reader->caller.bell = reader->bell;
    ac_reader_keep_two_pages(reader);
    if (!reader->pending) ac_reader_announce(reader);
    return reader->bell->fd;
}

void ac_reader_use_bell(ac_reader_t *reader, ac_bell_t *bell) {
    ac_reader_retract(reader);
    ac_doorman_stop_expecting(&reader->caller);
    reader->tried_to_announce = 0;
    reader->tried_epoch = 0;
    ac_bell_release(reader->bell);
    reader->bell = bell;
    reader->shares_bell = bell != NULL;
    if (bell) ac_bell_retain(bell);
}

int ac_reader_is_parked(const ac_reader_t *reader) {
    if (!reader->announced || reader->java) return 0;
    uint32_t bit = ac_load_acquire_u32(&reader->caller.bit);
    return bit != AC_NO_BIT && (ac_load_seq_cst_u64(&reader->control->parked) >> bit & 1);
}

int ac_reader_attended(ac_reader_t *reader) {
    return reader->announced && ac_load_acquire_u32(&reader->caller.bit) != AC_NO_BIT;
}

/* With no writer connected, nobody may ever ring for a queue that was removed, or another made in its place; and
 * a watch that could not be had may be had now. Looked at no more often than DIRECTORY_NS, because whoever polls comes by all the time. */
static int is_gone(ac_reader_t *reader) {
    uint64_t now = ac_os_monotonic_ns();
    if (reader->gone || (reader->looked_ns && now - reader->looked_ns < DIRECTORY_NS))
        return reader->gone;
    reader->looked_ns = now;
    int fd = ac_directory_open(&reader->dir, NULL);
    if (fd >= 0) ac_os_close(fd);
    if (fd >= 0 && reader->announced && !ac_load_acquire_u32(&reader->caller.watching)) {
        ac_doorman_watch(&reader->caller);
        suspect_writer(reader);
    }
    reader->gone = fd == AC_E_GONE;
    if (reader->gone) reader->window_end = 0; /* off the fast path, to where it is reported */
    return reader->gone;
}

/* Java never rings: whoever sleeps looks again from time to time, too, and now and then at the directory. */
static int park_with_java(ac_reader_t *reader, ac_error_t *err) {
    if (reader->announced) ac_cq4_bells_park(&reader->java->bells);
    int rc = ac_reader_ready(reader, err);
    if (rc != 0) return rc;
    reader->parks++;
    return AC_POLL;
}

/* Raising our bit is the full barrier between it and the look that follows; it pairs with the increment
 * of notify_seq in ac_writer_publish. Without a connected writer there is nobody to raise it for: the
 * doorman rings when one connects. */
int ac_reader_park(ac_reader_t *reader, ac_error_t *err) {
    int rc = ac_reader_bell(reader, err);
    if (rc < 0) return rc;
    if (reader->pending) {
        int watched = ac_doorman_expect(&reader->caller, reader->dir.path) == 0;
        rc = ac_reader_ready_in_loop(reader, err);
        if (rc != 0) return rc;
        /* The last step of a half-made control block may be a store that no watch can see. */
        if (reader->pending)
            return reader->opening || (watched && !reader->half_made) ? AC_PARKED : AC_POLL;
    }
    ac_control_t *control = reader->control;
    if (!reader->announced) ac_reader_announce(reader);
    if (reader->java) return park_with_java(reader, err);
    uint32_t bit = reader->announced ? ac_load_acquire_u32(&reader->caller.bit) : AC_NO_BIT;
    if (bit != AC_NO_BIT) __atomic_fetch_or(&control->parked, 1ull << bit, __ATOMIC_SEQ_CST);
    rc = ac_reader_ready(reader, err);
    if (rc != 0) return rc;
    if (bit == AC_NO_BIT && is_gone(reader)) return AC_READY;
    reader->parks++;
    if (bit != AC_NO_BIT) return AC_PARKED;
    /* No watch, no park: whoever takes the lock next may be somebody who does not signal. */
    if (!reader->announced || signalling_epoch(control) == 0 ||
        !ac_load_acquire_u32(&reader->caller.watching))
        return AC_POLL;
    return ac_load_relaxed_u32(&reader->caller.suspect) ? AC_POLL : AC_PARKED;
}

int ac_reader_prepare_sleep(ac_reader_t *reader, ac_sleep_t *sleep, ac_error_t *err) {
    int rc = ac_reader_park(reader, err);
    if (rc < 0 || rc == AC_READY) return rc;
    sleep->poll = rc == AC_POLL;
    sleep->poll_ns = ac_poll_interval_ns(sleep->poll_ns, ac_reader_poll_max_ns(reader));
    sleep->bell = reader->bell;
    ac_bell_retain(reader->bell);
    reader->waits++;
    return 0;
}

void ac_reader_sleep(ac_sleep_t *sleep, uint64_t timeout_ns) {
    ac_bell_t *bell = sleep->bell;
    if (sleep->poll && timeout_ns > sleep->poll_ns) timeout_ns = sleep->poll_ns;
    ac_os_eventfd_wait(bell->fd, timeout_ns);
    if (ac_load_acquire_u32(&bell->closing)) ac_os_eventfd_signal(bell->fd);
    ac_bell_release(bell);
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
