/* Readers that are opened before their queue, as an event loop uses them. The hook on system calls records
 * which thread makes which call, and stops the background thread where a test needs it. */
#include "queue.h"
#include "reader.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { SEGMENT = 1 << 20 };

static ac_error_t err;
static ac_message_t message;

typedef struct watched {
    pthread_t loop;
    uint32_t by_loop;       /* calls that scan, lock, sync or make directories */
    uint32_t by_other;      /* the same, in other threads */
    int hold_at;            /* other threads stop before this call … */
    uint32_t held;          /* … one of them has stopped … */
    uint32_t let_go;        /* … until this is set */
    uint64_t no_memory_for; /* this many bytes, or more; 0 = there is enough */
} watched_t;

static int may_wait(int call) {
    return call == AC_CALL_SYNC || call == AC_CALL_SYNC_DIR || call == AC_CALL_SYNC_MAP ||
           call == AC_CALL_LIST || call == AC_CALL_LOCK || call == AC_CALL_MKDIR;
}

static int watch_calls(void *context, int call, const char *path, int fd, uint64_t offset,
                       uint64_t length) {
    watched_t *watched = context;
    (void)path;
    (void)fd;
    (void)offset;
    int is_loop = pthread_equal(pthread_self(), watched->loop);
    if (may_wait(call))
        ac_fetch_add_relaxed_u32(is_loop ? &watched->by_loop : &watched->by_other, 1);
    if (is_loop && call == AC_CALL_ALLOC && watched->no_memory_for &&
        length >= watched->no_memory_for)
        return ENOMEM;
    if (is_loop || call != watched->hold_at) return 0;
    ac_store_release_u32(&watched->held, 1);
    while (!ac_load_acquire_u32(&watched->let_go))
        ac_os_sleep_ns(100000);
    return 0;
}

static void watch(watched_t *watched) {
    watched->loop = pthread_self();
    ac_os_set_hook(watch_calls, watched);
}

static void wait_until(const uint32_t *flag) {
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    while (!ac_load_acquire_u32(flag)) {
        CHECK(ac_os_monotonic_ns() < deadline);
        ac_os_sleep_ns(100000);
    }
}

static ac_reader_t *open_early(const char *name) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_reader_defaults(&config);
    config.name = name;
    config.wait_for_queue = 1;
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    CHECK(reader->pending);
    return reader;
}

static void write_queue(const char *path, int messages) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(path, &config);
    append_numbered(writer, messages);
    close_writer(writer);
}

/* As a loop does: checks, parks, sleeps on the eventfd. */
static int next_as_loop(ac_reader_t *reader) {
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    int rc;
    while ((rc = ac_reader_next_in_loop(reader, &message, &err)) == 0) {
        CHECK(ac_os_monotonic_ns() < deadline);
        int parked = ac_reader_park(reader, &err);
        CHECK_OK(parked, err);
        if (parked != AC_READY)
            ac_os_eventfd_wait(ac_reader_eventfd(reader, &err),
                               parked == AC_PARKED ? 20000000000u : 1000000u);
    }
    return rc;
}

TEST(the_thread_of_the_loop_opens_nothing_that_waits_for_the_disk) {
    const char *names[] = {"r", NULL};
    for (int i = 0; i < 2; i++) {
        watched_t watched = {.hold_at = -1};
        ac_reader_t *reader = open_early(names[i]);
        CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
        CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
        write_queue(check_path("queue"), 3);
        watch(&watched);
        CHECK_EQUAL(next_as_loop(reader), 1);
        check_payload(&message);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(watched.by_loop, 0);
        CHECK(watched.by_other > 0);
        CHECK_EQUAL(read_numbered(reader, 1), 3);
        if (names[i])
            CHECK_OK(ac_reader_commit(reader, reader->segment, reader->offset, 1, &err), err);
        ac_reader_free(reader);
        CHECK_EQUAL(rename(check_path("queue"), check_path(i ? "second" : "first")), 0);
    }
    ac_reader_t *again = open_reader(check_path("first"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_next(again, &message, &err), 0);
    ac_reader_free(again);
}

TEST(a_parked_reader_is_woken_when_its_queue_is_open) {
    watched_t watched = {.hold_at = AC_CALL_LIST};
    ac_reader_t *reader = open_early("r");
    write_queue(check_path("queue"), 1);
    watch(&watched);
    for (int i = 0; i < 3; i++) { /* however often it checks */
        CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
        CHECK_EQUAL(ac_reader_ready_in_loop(reader, &err), 0);
        CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    }
    wait_until(&watched.held);
    ac_store_release_u32(&watched.let_go, 1);
    ac_os_eventfd_wait(ac_reader_eventfd(reader, &err), 20000000000u);
    CHECK_EQUAL(ac_reader_ready_in_loop(reader, &err), 1);
    CHECK_EQUAL(ac_reader_ready_in_loop(reader, &err), 1);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(reader->messages, 1);
    ac_reader_free(reader);
}

static void *close_it(void *reader) {
    ac_reader_close(reader);
    return NULL;
}

static void *read_one(void *reader) {
    ac_error_t local;
    return (void *)(uintptr_t)ac_reader_next(reader, &message, &local);
}

/* Begins to open, stops the opening at its first sync, and uses the reader in another thread. */
static void *do_while_opening(ac_reader_t *reader, void *(*what)(void *)) {
    watched_t watched = {.hold_at = AC_CALL_SYNC_DIR};
    pthread_t thread;
    void *result;
    write_queue(check_path("queue"), 1);
    watch(&watched);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
    wait_until(&watched.held);
    CHECK_EQUAL(pthread_create(&thread, NULL, what, reader), 0);
    ac_os_sleep_ns(5000000); /* it may be waiting or not: nothing depends on it */
    ac_store_release_u32(&watched.let_go, 1);
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    ac_os_set_hook(NULL, NULL);
    return result;
}

TEST(a_reader_is_closed_while_its_queue_is_being_opened) {
    ac_reader_t *reader = open_early("r");
    do_while_opening(reader, close_it);
    CHECK_FAILS(ac_reader_next_in_loop(reader, &message, &err), err, AC_E_CLOSED);
    ac_reader_free(open_reader(check_path("queue"), "r", AC_START_COMMITTED)); /* not taken */
    ac_reader_free(reader);
}

TEST(a_reader_is_closed_at_any_time) {
    write_queue(check_path("other"), 1);
    for (uint64_t i = 0; i < 100; i++) {
        ac_reader_t *reader = open_early("r");
        CHECK_EQUAL(rename(check_path("other"), check_path("queue")), 0);
        CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
        ac_os_sleep_ns(i * 5000);
        ac_opening_t *opening = i % 2 ? ac_reader_take_opening(reader) : NULL;
        ac_reader_close(reader);
        ac_opening_free(opening);
        ac_reader_free(reader);
        ac_reader_free(open_reader(check_path("queue"), "r", AC_START_COMMITTED));
        CHECK_EQUAL(rename(check_path("queue"), check_path("other")), 0);
    }
}

TEST(whoever_may_wait_gets_the_queue_that_is_being_opened) {
    ac_reader_t *reader = open_early("r");
    CHECK_EQUAL((uintptr_t)do_while_opening(reader, read_one), 1);
    check_payload(&message);
    CHECK(!reader->pending);
    ac_reader_free(reader);
}

TEST(whoever_may_wait_opens_the_queue_at_once) {
    ac_reader_t *reader = open_early("r");
    write_queue(check_path("queue"), 1);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_free(reader);
}

TEST(why_a_queue_cannot_be_opened_is_said_once_to_whoever_reads) {
    ac_reader_t *reader = open_early("r");
    write_queue(check_path("queue"), 1);
    ac_reader_t *other = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    for (int i = 0; i < 3; i++) {
        while (ac_reader_park(reader, &err) != AC_READY)
            ac_os_eventfd_wait(ac_reader_eventfd(reader, &err), 20000000000u);
        CHECK_EQUAL(ac_reader_ready_in_loop(reader, &err), 1); /* checking does not consume it */
        CHECK_EQUAL(ac_reader_ready_in_loop(reader, &err), 1);
        if (i == 2) /* the same for an ordinary call */
            CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_READER_BUSY);
        else
            CHECK_FAILS(ac_reader_next_in_loop(reader, &message, &err), err, AC_E_READER_BUSY);
    }
    ac_reader_free(other);
    CHECK_EQUAL(next_as_loop(reader), 1);
    ac_reader_free(reader);
}

TEST(a_queue_that_vanishes_while_it_is_being_opened_is_waited_for) {
    watched_t watched = {.hold_at = AC_CALL_OPEN};
    ac_reader_t *reader = open_early("r");
    write_queue(check_path("queue"), 1);
    watch(&watched);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
    wait_until(&watched.held);
    CHECK_EQUAL(rename(check_path("queue"), check_path("away")), 0);
    ac_store_release_u32(&watched.let_go, 1);
    ac_os_eventfd_wait(ac_reader_eventfd(reader, &err), 20000000000u);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
    ac_os_set_hook(NULL, NULL);
    CHECK(reader->pending && !reader->opening);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    CHECK_EQUAL(rename(check_path("away"), check_path("queue")), 0);
    CHECK_EQUAL(next_as_loop(reader), 1);
    ac_reader_free(reader);
}

TEST(without_memory_for_the_background_the_queue_is_opened_all_the_same) {
    watched_t watched = {.hold_at = -1};
    ac_reader_t *reader = open_early("r");
    write_queue(check_path("queue"), 1);
    CHECK_OK(ac_reader_eventfd(reader, &err), err);
    watched.no_memory_for = sizeof(ac_reader_t);
    watch(&watched);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(watched.by_other, 0);
    ac_reader_free(reader);
}

static void *let_go_soon(void *argument) {
    watched_t *watched = argument;
    ac_os_sleep_ns(20000000);
    ac_store_release_u32(&watched->let_go, 1);
    return NULL;
}

/* Stopped when its position is locked and the file that holds the lock is still open. */
TEST(a_child_that_is_forked_meanwhile_does_not_inherit_the_lock) {
    watched_t watched = {.hold_at = AC_CALL_RENAME};
    ac_reader_t *reader = open_early("r");
    pthread_t helper;
    int ends[2];
    char told = 0;
    write_queue(check_path("queue"), 1);
    CHECK_EQUAL(pipe(ends), 0);
    watch(&watched);
    CHECK_EQUAL(ac_reader_next_in_loop(reader, &message, &err), 0);
    wait_until(&watched.held);
    CHECK_EQUAL(pthread_create(&helper, NULL, let_go_soon, &watched), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        told = ac_reader_next_in_loop(reader, &message, &err) == AC_E_FORKED &&
               ac_reader_park(reader, &err) == AC_E_FORKED;
        ac_reader_free(reader);
        if (write(ends[1], &told, 1) == 1) pause();
        _exit(1);
    }
    close(ends[1]);
    CHECK_EQUAL(pthread_join(helper, NULL), 0);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(read(ends[0], &told, 1), 1);
    CHECK(told);
    CHECK_EQUAL(next_as_loop(reader), 1);
    ac_reader_free(reader);
    ac_reader_free(open_reader(check_path("queue"), "r", AC_START_COMMITTED));
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
    close(ends[0]);
}

/* The reader is polled while its writer creates the first segment. */
TEST(a_queue_without_a_segment_is_not_listed_again_and_again) {
    watched_t watched = {.hold_at = -1};
    ac_directory_t dir;
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    int dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
    CHECK_OK(ac_control_create(&dir, dir_fd, SEGMENT, &err), err);
    ac_os_close(dir_fd);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    watch(&watched);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(watched.by_loop, 0);
    write_queue(check_path("queue"), 2);
    CHECK_EQUAL(read_numbered(reader, 0), 2);
    ac_reader_free(reader);
}
