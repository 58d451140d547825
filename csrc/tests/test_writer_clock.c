/* Timestamps and heartbeats ahead of the clock: which are refused, how the next writer handles them, and what it
 * logs. */
#include "fanin.h"
#include "log.h"
#include "queue.h"
#include "writer.h"

#include <string.h>

enum { SEGMENT = 1 << 16 };
#define SECOND_NS 1000000000ull
#define HOUR_NS (3600 * SECOND_NS)

static ac_error_t err;

static ac_writer_t *open_here(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    return open_writer(check_path("queue"), &config);
}

static uint64_t watermark(void) {
    ac_queue_info_t info;
    CHECK_OK(ac_queue_info(check_path("queue"), &info, &err), err);
    return info.watermark_ns;
}

/* Returns the number of warnings with this text; empties the log. */
static int warnings(const char *text) {
    ac_log_entry_t entry;
    int found = 0;
    while (ac_log_next(&entry))
        found += entry.level == AC_LOG_WARNING && strstr(entry.text, text) != NULL;
    return found;
}

static uint64_t timestamp_of(uint64_t seq) {
    ac_message_t message;
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_OK(ac_reader_seek_seq(reader, seq, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_free(reader);
    return message.timestamp_ns;
}

static int is_about_now(uint64_t timestamp_ns) {
    uint64_t now = ac_clock_ns();
    return timestamp_ns <= now && timestamp_ns > now - 60 * SECOND_NS;
}

/* ---- promises of a predecessor ---- */

TEST(a_promise_from_the_far_future_is_taken_back_by_the_next_writer) {
    for (uint64_t records = 0; records < 2; records++) {
        ac_writer_t *writer = open_here();
        if (records) CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
        CHECK_OK(ac_writer_heartbeat(writer, ac_clock_ns() + 10 * HOUR_NS, &err), err);
        close_writer(writer);
        warnings("");
        writer = open_here();
        CHECK_EQUAL(warnings("promise"), 1);
        CHECK(watermark() <= ac_clock_ns());
        int64_t seq = ac_writer_append(writer, "x", 1, 0, AC_NOW, &err);
        CHECK_OK(seq, err);
        CHECK(is_about_now(timestamp_of((uint64_t)seq)));
        close_writer(writer);
    }
}

TEST(a_promise_of_a_killed_writer_is_taken_back_too) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    CHECK_OK(ac_writer_heartbeat(writer, ac_clock_ns() + 10 * HOUR_NS, &err), err);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
    CHECK(watermark() > ac_clock_ns());
    writer = open_here();
    CHECK(watermark() <= ac_clock_ns());
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 1);
    CHECK(is_about_now(timestamp_of(1)));
    close_writer(writer);
}

TEST(a_promise_that_may_be_meant_is_kept_by_the_next_writer) {
    ac_writer_t *writer = open_here();
    uint64_t promised = ac_clock_ns() + HOUR_NS / 2;
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    CHECK_OK(ac_writer_heartbeat(writer, promised, &err), err);
    close_writer(writer);
    writer = open_here();
    CHECK_EQUAL(watermark(), promised);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, promised - 1, &err), err, AC_E_TIMESTAMP);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 1);
    CHECK_EQUAL(timestamp_of(1), promised);
    close_writer(writer);
}

/* Strict order relied on the promise. After it was taken back, later deliveries must not overtake older
 * messages. */
TEST(strict_order_sees_that_a_promise_was_taken_back) {
    enum { QUEUES = 12 };
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *busy = open_writer(check_path("busy"), &config), *writers[QUEUES];
    ac_reader_t *readers[QUEUES + 1];
    ac_fanin_t *fanin;
    ac_message_t message;
    uint32_t slot, id;
    int late;
    char name[32];
    uint64_t now = ac_clock_ns();
    CHECK_OK(ac_fanin_new(1, UINT64_MAX, &fanin, &err), err);
    for (int i = 0; i < QUEUES; i++) {
        snprintf(name, sizeof name, "idle%d", i);
        writers[i] = open_writer(check_path(name), &config);
        CHECK_OK(ac_writer_heartbeat(writers[i], now + 10 * HOUR_NS, &err), err);
        readers[i] = open_reader(check_path(name), NULL, AC_START_FIRST);
        CHECK_OK(ac_fanin_attach(fanin, readers[i], &slot, &id, &err), err);
    }
    readers[QUEUES] = open_reader(check_path("busy"), NULL, AC_START_FIRST);
    CHECK_OK(ac_fanin_attach(fanin, readers[QUEUES], &slot, &id, &err), err);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(ac_writer_append(busy, "x", 1, 0, now + i * 100, &err), err);
    for (int i = 0; i < QUEUES; i++) {
        CHECK_EQUAL(ac_fanin_next(fanin, &message, &slot, &late, &err), 1);
        CHECK_EQUAL(message.timestamp_ns, now + (uint64_t)i * 100);
    }
    /* The state that a killed writer leaves: the lock is free, and there is no mark of a close. */
    ac_control_t *control = ac_control_of(readers[7]->control_map);
    close_writer(writers[7]);
    control->clean.checksum ^= 1;
    snprintf(name, sizeof name, "idle%d", 7);
    writers[7] = open_writer(check_path(name), &config);
    CHECK_OK(ac_writer_append(writers[7], "y", 1, 0, now + QUEUES * 100 - 50, &err), err);
    CHECK_OK(ac_writer_append(writers[7], "y", 1, 0, now + HOUR_NS, &err), err);
    CHECK_EQUAL(ac_fanin_next(fanin, &message, &slot, &late, &err), 1);
    CHECK_EQUAL(message.timestamp_ns, now + QUEUES * 100 - 50);
    CHECK_EQUAL(late, 0);
    ac_fanin_free(fanin);
    for (int i = 0; i <= QUEUES; i++)
        ac_reader_free(readers[i]);
    for (int i = 0; i < QUEUES; i++)
        close_writer(writers[i]);
    close_writer(busy);
}

/* ---- the log ---- */

TEST(a_queue_that_is_ahead_of_the_clock_is_logged_when_it_is_opened) {
    ac_writer_t *writer = open_here();
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, ac_clock_ns() + HOUR_NS, &err), err);
    close_writer(writer);
    warnings("");
    close_writer(open_here());
    CHECK_EQUAL(warnings("in the future"), 1);
}

TEST(a_clock_that_is_held_is_logged_once_a_minute) {
    ac_writer_t *writer = open_here();
    warnings("");
    uint64_t now = ac_os_monotonic_ns();
    ac_writer_log_clock(writer, now);
    CHECK_EQUAL(warnings(""), 0);
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, ac_clock_ns() + 100 * SECOND_NS, &err), err);
    for (int i = 0; i < 3; i++)
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    ac_writer_log_clock(writer, now);
    CHECK_EQUAL(warnings("before the last timestamp"), 1);
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    ac_writer_log_clock(writer, now + 59 * SECOND_NS);
    CHECK_EQUAL(warnings(""), 0);
    ac_writer_log_clock(writer, now + 61 * SECOND_NS);
    CHECK_EQUAL(warnings("before the last timestamp"), 1);
    ac_writer_log_clock(writer, now + 300 * SECOND_NS);
    CHECK_EQUAL(warnings(""), 0);
    close_writer(writer);
}

TEST(the_housekeeper_logs_it) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    warnings("");
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, ac_clock_ns() + 100 * SECOND_NS, &err), err);
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    CHECK_EQUAL(ac_log_wait(30 * SECOND_NS), 1);
    CHECK_EQUAL(warnings("before the last timestamp"), 1);
    close_writer(writer);
}

/* ---- max_ahead_ns ---- */

static ac_writer_t *open_limited(uint64_t max_ahead_ns, uint64_t roll_ns) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.max_ahead_ns = max_ahead_ns;
    config.roll_ns = roll_ns;
    return open_writer(check_path("queue"), &config);
}

TEST(a_timestamp_too_far_ahead_is_refused_whichever_way_it_comes) {
    ac_writer_t *writer = open_limited(10 * SECOND_NS, 0);
    ac_writer_stats_t stats;
    ac_slice_t items[2] = {{"x", 1}, {"y", 1}};
    void *room;
    for (int i = 0; i < 3; i++) {
        uint64_t far = ac_clock_ns() + 20 * SECOND_NS;
        uint64_t times[2] = {ac_clock_ns(), far};
        CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, far, &err), err, AC_E_TIMESTAMP);
        CHECK(strstr(err.detail, "ahead of the clock") != NULL);
        CHECK_FAILS(ac_writer_append_many(writer, items, 2, 0, times, &err), err, AC_E_TIMESTAMP);
        CHECK_OK(ac_writer_reserve(writer, 1, &room, &err), err);
        CHECK_FAILS(ac_writer_commit(writer, 0, far, NULL, &err), err, AC_E_TIMESTAMP);
        CHECK_FAILS(ac_writer_heartbeat(writer, far, &err), err, AC_E_TIMESTAMP);
        CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, UINT64_MAX - 1, &err), err, AC_E_TIMESTAMP);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.next_seq, 5 * i);
        uint64_t near = ac_clock_ns() + 5 * SECOND_NS;
        times[0] = times[1] = near;
        CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, near, &err), 5 * i);
        CHECK_EQUAL(ac_writer_append_many(writer, items, 2, 0, times, &err), 5 * i + 1);
        CHECK_OK(ac_writer_reserve(writer, 1, &room, &err), err);
        CHECK_EQUAL(ac_writer_commit(writer, 0, near, NULL, &err), 5 * i + 3);
        CHECK_OK(ac_writer_heartbeat(writer, near, &err), err);
        CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 5 * i + 4);
    }
    close_writer(writer);
}

/* The limit moves with the clock, and the engine's own timestamps are never refused. */
TEST(the_limit_follows_the_clock) {
    const uint64_t step = 20000000; /* 20 ms */
    ac_writer_t *writer = open_limited(step, 0);
    uint64_t last = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t ahead = ac_clock_ns() + step - 1000000;
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, ahead, &err), err);
        CHECK(ahead > last);
        last = ahead;
        while (ac_clock_ns() < ahead + 1000000)
            CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    }
    close_writer(writer);
}

TEST(the_limit_does_not_roll_and_rolling_by_time_goes_on) {
    ac_writer_t *writer = open_limited(1000000, 3 * SECOND_NS);
    ac_writer_stats_t stats;
    uint64_t now = ac_clock_ns();
    for (uint64_t i = 0; i < 10; i++)
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, now - (20 - i) * SECOND_NS, &err), err);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 3);
    for (int i = 0; i < 20; i++) {
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
        ac_os_sleep_ns(500000); /* beyond the limit of the append before */
    }
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 4);
    close_writer(writer);
}
