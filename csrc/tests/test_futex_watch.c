#include "futex_watch.h"

#include "queue.h"
#include "reader.h"

#include <poll.h>

enum { SEGMENT = 1 << 20, STEP = 128 };

static ac_error_t err;
static ac_message_t message;

/* A queue of another program, empty, and its writer: the control block and the segment, mapped. */
static ac_map_t *control_map;
static ac_control_t *control;
static uint64_t written;

static void make_foreign(void) {
    uint64_t none = 0;
    ac_writer_config_t config = small_queue(SEGMENT);
    close_writer(open_writer(check_path("queue"), &config));
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, queue_id), &none, 8);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, signalling_epoch), &none, 8);
    ac_directory_t dir;
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0700, 0, &err), err);
    int dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
    CHECK_OK(ac_control_open(&dir, dir_fd, 1, 0, &control_map, &err), err);
    ac_os_close(dir_fd);
    control = (ac_control_t *)(void *)control_map->base;
    written = 0;
}

/* As chronicle-rs appends: the record, then notify_seq, then a wake-up of waiting readers. */
static void append_foreign(void) {
    ac_record_t record = {.commit_len = 4,
                          .version = AC_RECORD_VERSION,
                          .seq = written,
                          .timestamp_ns = 10 + written,
                          .type_id = 1,
                          .checksum = ac_crc32("abc", 3)};
    uint64_t offset = AC_SEGMENT_DATA + STEP * written++;
    poke(check_path("queue"), "000000000.q", offset + 64, "abc", 3);
    poke(check_path("queue"), "000000000.q", offset, &record, sizeof record);
    ac_fetch_add_seq_cst_u32(&control->notify_seq, 1);
    if (ac_load_seq_cst_u32(&control->waiters_pending))
        ac_os_futex_wake(&control->notify_seq, 1 << 30);
}

static uint32_t waiters(void) {
    return ac_load_seq_cst_u32(&control->waiters_pending);
}

static int is_signalled(const ac_reader_t *reader, int limit_ms) {
    struct pollfd poll_fd = {.fd = reader->eventfd->fd, .events = POLLIN};
    return poll(&poll_fd, 1, limit_ms) == 1;
}

static ac_reader_t *open_parked(void) {
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL); /* it looks from time to time as well */
    return reader;
}

TEST(a_writer_that_wakes_by_futex_has_the_eventfd_signalled) {
    make_foreign();
    ac_reader_t *reader = open_parked();
    for (uint64_t i = 0; i < 100; i++) {
        CHECK_EQUAL(waiters(), 1);
        append_foreign();
        CHECK(is_signalled(reader, 30000));
        CHECK_EQUAL(waiters(), 0);
        ac_os_eventfd_wait(reader->eventfd->fd, 0);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, i);
        CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL);
        CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL); /* a second check counts once */
    }
    CHECK(!is_signalled(reader, 0));
    ac_reader_free(reader);
    CHECK_EQUAL(waiters(), 0);
    ac_map_release(control_map);
}

TEST(who_finds_a_message_is_not_counted_as_a_sleeper) {
    make_foreign();
    ac_reader_t *reader = open_parked();
    ac_futex_watch_end(&reader->futex_watch);
    CHECK_EQUAL(waiters(), 0);
    append_foreign();
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_READY);
    CHECK_EQUAL(waiters(), 0);
    ac_reader_free(reader);
    ac_map_release(control_map);
}

/* More than one system call can take. */
TEST(any_number_of_readers_is_signalled) {
    enum { READERS = 200 };
    ac_reader_t *readers[READERS];
    make_foreign();
    for (int i = 0; i < READERS; i++)
        readers[i] = open_parked();
    CHECK_EQUAL(waiters(), READERS);
    append_foreign();
    for (int i = 0; i < READERS; i++)
        CHECK(is_signalled(readers[i], 30000));
    CHECK_EQUAL(waiters(), 0);
    for (int i = 0; i < READERS; i++)
        ac_reader_free(readers[i]);
    ac_map_release(control_map);
}

TEST(a_count_that_its_writer_has_cleared_does_not_wrap) {
    make_foreign();
    ac_reader_t *reader = open_parked();
    ac_store_release_u32(&control->waiters_pending, 0);
    ac_reader_free(reader);
    CHECK_EQUAL(waiters(), 0);
    ac_map_release(control_map);
}

TEST(a_reader_of_our_own_writers_queue_is_no_sleeper_on_a_futex) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0; /* otherwise it signals no reader */
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    CHECK_OK(ac_reader_park(reader, &err), err);
    CHECK_EQUAL(ac_load_seq_cst_u32(&reader->control->waiters_pending), 0);
    ac_reader_free(reader);
    close_writer(writer);
}

static int refuse_to_wait(void *context, int call, const char *path, int fd, uint64_t offset,
                          uint64_t length) {
    (void)context, (void)path, (void)fd, (void)offset, (void)length;
    return call == AC_CALL_WAIT ? ENOSYS : 0;
}

/* The last one: it is not tried again. */
TEST(without_futex_waitv_readers_poll_and_do_not_count) {
    make_foreign();
    ac_os_set_hook(refuse_to_wait, NULL);
    for (int tries = 0;; tries++) {
        ac_reader_t *reader = open_parked();
        int is_counted = waiters() == 1;
        ac_reader_free(reader);
        CHECK_EQUAL(waiters(), 0);
        if (!is_counted) break;
        CHECK(tries < 30000);
        ac_os_sleep_ns(1000000);
    }
    ac_os_set_hook(NULL, NULL);
    append_foreign();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_wait(reader, 30000000000u, 0, &err), 1);
    ac_reader_free(reader);
    ac_map_release(control_map);
}
