/* Settings that change while the writer is open. */
#include "writer_settings.h"

#include "queue.h"
#include "writer.h"

#include <pthread.h>

enum { SEGMENT = 64 << 10 };

static ac_error_t err;
static ac_settings_t settings;
static ac_writer_stats_t stats;

static ac_writer_t *open_with(int inline_housekeeping) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = inline_housekeeping;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_writer_settings(writer, &settings);
    ac_writer_stats(writer, &stats);
    return writer;
}

static uint64_t syncs(ac_writer_t *writer) {
    ac_writer_stats(writer, &stats);
    return stats.syncs;
}

TEST(the_next_append_goes_by_another_flush_mode) {
    ac_writer_t *writer = open_with(1);
    append_numbered(writer, 10);
    CHECK_EQUAL(syncs(writer), 0);
    settings.flush_mode = AC_FLUSH_SYNC;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    append_numbered(writer, 3);
    CHECK_EQUAL(syncs(writer), 3);
    CHECK_EQUAL(stats.durable_seq, 13);
    settings.flush_mode = AC_FLUSH_BATCH;
    settings.batch_bytes = 4096;
    settings.batch_ns = 1000000000u;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    append_numbered(writer, 200);
    CHECK(syncs(writer) > 3 && stats.syncs < 100);
    uint64_t before = stats.syncs;
    settings.flush_mode = AC_FLUSH_ASYNC;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    append_numbered(writer, 20);
    CHECK_EQUAL(syncs(writer), before);
    close_writer(writer);
}

TEST(a_batch_is_flushed_in_the_background_from_then_on) {
    ac_writer_t *writer = open_with(0);
    append_numbered(writer, 10);
    settings.flush_mode = AC_FLUSH_BATCH;
    settings.batch_bytes = 1 << 20;
    settings.batch_ns = 10000000;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    for (int i = 0; i < 200 && stats.durable_seq < 10; i++) {
        ac_os_sleep_ns(10000000);
        syncs(writer);
    }
    CHECK_EQUAL(stats.durable_seq, 10);
    close_writer(writer);
}

TEST(what_is_refused_changes_nothing) {
    ac_writer_t *writer = open_with(1);
    ac_settings_t now;
    settings.flush_mode = AC_FLUSH_BATCH;
    settings.capacity_bytes = 4096;
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_ARGUMENT);
    settings.flush_mode = 7;
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_ARGUMENT);
    settings.flush_mode = AC_FLUSH_ASYNC;
    settings.capacity_policy = 2;
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_ARGUMENT);
    settings.capacity_policy = AC_CAPACITY_FAIL;
    snprintf(settings.wait_for, sizeof settings.wait_for, "../x");
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_NAME);
    memset(settings.wait_for, 'a', sizeof settings.wait_for);
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_NAME);
    settings.wait_for[0] = 0;
    memset(settings.archive, 'a', sizeof settings.archive);
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_ARGUMENT);
    ac_writer_settings(writer, &now);
    CHECK_EQUAL(now.flush_mode, AC_FLUSH_ASYNC);
    CHECK_EQUAL(now.capacity_bytes, 0);
    CHECK_EQUAL(ac_load_relaxed_u32(&writer->settings_changed), 0);
    ac_writer_close(writer, &err);
    memset(&settings, 0, sizeof settings);
    CHECK_FAILS(ac_writer_configure(writer, &settings, &err), err, AC_E_CLOSED);
    ac_writer_free(writer);
}

TEST(a_capacity_comes_and_goes) {
    static uint8_t payload[2000];
    ac_writer_t *writer = open_with(1);
    append_numbered(writer, 1);
    ac_reader_t *reader = open_reader(check_path("queue"), "slow", AC_START_FIRST);
    settings.capacity_bytes = 10000;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    int64_t rc = 0;
    for (int i = 0; i < 10 && rc >= 0; i++)
        rc = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err);
    CHECK_EQUAL(rc, AC_E_FULL);
    settings.capacity_bytes = 1000;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    CHECK_FAILS(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err,
                AC_E_TOO_LARGE);
    settings.capacity_bytes = 0;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    CHECK_OK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err);
    ac_reader_free(reader);
    close_writer(writer);
}

static void *append_one(void *argument) {
    static uint8_t payload[2000];
    static ac_error_t own;
    int64_t rc = ac_writer_append(argument, payload, sizeof payload, 0, AC_NOW, &own);
    return (void *)(intptr_t)rc;
}

TEST(an_append_that_waits_for_capacity_goes_on_with_a_larger_one) {
    pthread_t thread;
    void *result;
    ac_writer_t *writer = open_with(0);
    append_numbered(writer, 1);
    ac_reader_t *reader = open_reader(check_path("queue"), "slow", AC_START_FIRST);
    settings.capacity_bytes = 2200;
    settings.capacity_policy = AC_CAPACITY_BLOCK;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    CHECK_EQUAL((intptr_t)append_one(writer), 1);
    CHECK_EQUAL(pthread_create(&thread, NULL, append_one, writer), 0);
    do {
        ac_os_sleep_ns(1000000);
        ac_writer_stats(writer, &stats);
    } while (stats.capacity_waits == 0);
    settings.capacity_bytes = 1 << 20;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    CHECK_EQUAL((intptr_t)result, 2);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(retention_begins_and_ends_while_the_writer_is_open) {
    ac_writer_t *writer = open_with(0);
    append_numbered(writer, 2000);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    settings.retention = 1;
    settings.retain_bytes = 2 * SEGMENT;
    settings.retain_for_readers = 0;
    settings.retention_check_ns = 10000000;
    for (int again = 0; again < 2; again++)
        CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    for (int i = 0; i < 500 && stats.segments_deleted == 0; i++) {
        ac_os_sleep_ns(10000000);
        ac_writer_stats(writer, &stats);
    }
    CHECK(stats.segments_deleted > 0);
    settings.retention = 0;
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    ac_os_sleep_ns(50000000);
    ac_writer_stats(writer, &stats);
    uint64_t deleted = stats.segments_deleted;
    append_numbered(writer, 1000);
    ac_os_sleep_ns(100000000);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.segments_deleted, deleted);
    close_writer(writer);
}

TEST(readers_learn_of_another_ttl) {
    ac_writer_t *writer = open_with(1);
    ac_settings_t now;
    CHECK_EQUAL(writer->control->reader_ttl_ns, 0);
    settings.retention = 1;
    settings.reader_ttl_ns = 5000000000u;
    uint64_t before = ac_os_monotonic_ns();
    CHECK_OK(ac_writer_configure(writer, &settings, &err), err);
    CHECK_EQUAL(writer->control->reader_ttl_ns, 5000000000u);
    ac_writer_settings(writer, &now);
    CHECK(now.opened_ns >= before);
    CHECK_OK(ac_writer_configure(writer, &now, &err), err);
    CHECK_EQUAL(writer->settings.opened_ns, now.opened_ns);
    close_writer(writer);
}

/* One thread appends while another keeps changing all settings: for ThreadSanitizer. */
typedef struct changing {
    ac_writer_t *writer;
    uint32_t done;
} changing_t;

static void *change_settings(void *argument) {
    changing_t *changing = argument;
    ac_settings_t wanted;
    ac_error_t own;
    ac_writer_settings(changing->writer, &wanted);
    for (unsigned i = 0; !ac_load_relaxed_u32(&changing->done); i++) {
        wanted.flush_mode = (int32_t)(i % 3);
        wanted.batch_bytes = 4096 + i % 7 * 1000;
        wanted.batch_ns = 1000000;
        wanted.capacity_bytes = i % 2 ? 1 << 30 : 0;
        wanted.retention = (int32_t)(i / 4 % 2);
        wanted.retain_bytes = 4 * SEGMENT;
        wanted.retention_check_ns = 1000000;
        snprintf(wanted.wait_for, sizeof wanted.wait_for, i % 5 ? "" : "risk");
        CHECK_OK(ac_writer_configure(changing->writer, &wanted, &own), own);
        ac_os_sleep_ns(200000);
    }
    return NULL;
}

TEST_IN_MEMORY(settings_change_under_an_appender) {
    pthread_t thread;
    changing_t changing = {.writer = open_with(0)};
    CHECK_EQUAL(pthread_create(&thread, NULL, change_settings, &changing), 0);
    append_numbered(changing.writer, 20000);
    ac_store_relaxed_u32(&changing.done, 1);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    ac_writer_stats(changing.writer, &stats);
    CHECK_EQUAL(stats.next_seq, 20000);
    close_writer(changing.writer);
}
