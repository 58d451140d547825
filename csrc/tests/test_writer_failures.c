/* A failure of background work is in the statistics and, once, in the log. */
#include "log.h"
#include "writer.h"

#include "queue.h"

enum { SEGMENT = 16 << 10 };

static ac_error_t err;
static ac_writer_stats_t stats;
static ac_log_entry_t entry;

static ac_writer_t *open_small(void) {
    while (ac_log_next(&entry))
        continue;
    ac_writer_config_t config = small_queue(SEGMENT);
    config.retention = 1;
    config.retention_check_ns = 1000000;
    return open_writer(check_path("queue"), &config);
}

/* Checks that the log has one entry, about this file of the queue. */
static void check_logged(int level, const char *file, const char *what, const char *why) {
    char path[1200];
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, level);
    snprintf(path, sizeof path, "%s%s%s", check_path("queue"), file[0] ? "/" : "", file);
    CHECK(strcmp(entry.path, path) == 0);
    CHECK(strstr(entry.text, what) != NULL);
    CHECK(strstr(entry.text, why) != NULL);
    CHECK_EQUAL(ac_log_next(&entry), 0);
}

static void check_last_error(ac_writer_t *writer, int error, const char *file) {
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.last_error_errno, error);
    CHECK(strncmp(stats.last_error, check_path("queue"), strlen(check_path("queue"))) == 0);
    CHECK(strstr(stats.last_error, file) != NULL);
    CHECK(strstr(stats.last_error, strerror(error)) != NULL);
}

static int fill(ac_writer_t *writer) {
    static uint8_t payload[1000];
    int64_t rc = 0;
    for (int i = 0; i < 40 && rc >= 0; i++)
        rc = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err);
    return rc < 0 ? (int)rc : AC_OK;
}

TEST_IN_MEMORY(a_segment_that_could_not_be_created_also_by_the_appender) {
    failing_t failing = {.call = AC_CALL_ALLOCATE, .error = ENOSPC};
    ac_writer_t *writer = open_small();
    ac_os_set_hook(fail_hook, &failing);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(fill(writer), AC_E_NO_SPACE);
    ac_os_set_hook(NULL, NULL);
    check_last_error(writer, ENOSPC, "000000001.q");
    CHECK_EQUAL(stats.prealloc_errors, 3);
    check_logged(AC_LOG_WARNING, "000000001.q", "creating the next segment failed", "space");
    CHECK_EQUAL(fill(writer), AC_OK);
    check_logged(AC_LOG_INFO, "", "creating the next segment works again", "3");
    close_writer(writer);
}

TEST_IN_MEMORY(pages_that_could_not_be_had) {
    failing_t failing = {.call = AC_CALL_POPULATE, .error = EIO};
    ac_writer_t *writer = open_small();
    ac_os_set_hook(fail_hook, &failing);
    CHECK_EQUAL(fill(writer), AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    check_last_error(writer, EIO, "000000000.q");
    CHECK_EQUAL(stats.populate_errors, 1);
    check_logged(AC_LOG_WARNING, "000000000.q", "pages", "error");
    CHECK_EQUAL(fill(writer), AC_OK);
    check_logged(AC_LOG_INFO, "", "pages", "works again");
    close_writer(writer);
}

TEST_IN_MEMORY(a_segment_that_could_not_be_locked_into_memory) {
    failing_t failing = {.call = AC_CALL_MEMLOCK, .error = ENOMEM};
    ac_writer_t *writer = open_small();
    writer->config.memlock = 1;
    ac_os_set_hook(fail_hook, &failing);
    CHECK_EQUAL(fill(writer), AC_OK);
    ac_os_set_hook(NULL, NULL);
    check_last_error(writer, ENOMEM, ".q");
    CHECK_EQUAL(stats.populate_errors, 0);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(strstr(entry.text, "RLIMIT_MEMLOCK") != NULL);
    close_writer(writer);
}

TEST_IN_MEMORY(an_index_that_could_not_be_written) {
    failing_t failing = {.call = AC_CALL_OPEN, .name_end = ".idx.tmp", .error = EMFILE};
    ac_writer_t *writer = open_small();
    ac_os_set_hook(fail_hook, &failing);
    CHECK_EQUAL(fill(writer), AC_OK);
    ac_os_set_hook(NULL, NULL);
    check_last_error(writer, EMFILE, ".idx");
    CHECK_EQUAL(stats.seal_errors, stats.rolls);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_WARNING);
    CHECK(strstr(entry.text, "indexing a full segment failed") != NULL);
    CHECK(strstr(entry.path, "000000000.idx") != NULL);
    close_writer(writer);
}

TEST_IN_MEMORY(a_failed_sync_stops_the_writer_and_says_so) {
    failing_t failing = {.call = AC_CALL_SYNC_MAP, .error = EIO};
    ac_writer_t *writer = open_small();
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    ac_os_set_hook(fail_hook, &failing);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    check_last_error(writer, EIO, "000000000.q");
    CHECK_EQUAL(stats.sync_errors, 1);
    check_logged(AC_LOG_ERROR, "000000000.q", "syncing failed: cannot sync", "open it again");
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_POISONED);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_writer_free(writer);
}

TEST_IN_MEMORY(a_queue_that_was_removed_is_logged_once) {
    ac_writer_t *writer = open_small();
    remove_in(check_path("queue"), "control.meta");
    for (int i = 0; i < 3; i++)
        ac_writer_check_files(writer);
    check_logged(AC_LOG_ERROR, "", "control.meta was removed", "stops");
    ac_writer_stats(writer, &stats);
    CHECK(strncmp(stats.last_error, check_path("queue"), strlen(check_path("queue"))) == 0);
    CHECK(strstr(stats.last_error, ": control.meta was removed") != NULL);
    close_writer(writer);
}

/* As the housekeeper does. */
static void retain(ac_writer_t *writer, int error) {
    failing_t failing = {.call = AC_CALL_LIST, .error = error};
    if (error) ac_os_set_hook(fail_hook, &failing);
    ac_writer_housekeep_archive(&writer->archiving, ac_os_monotonic_ns());
    ac_os_set_hook(NULL, NULL);
}

TEST_IN_MEMORY(what_fails_again_and_again_is_logged_when_it_changes_and_once_a_minute) {
    ac_writer_t *writer = open_small();
    for (int i = 0; i < 5; i++)
        retain(writer, EIO);
    check_logged(AC_LOG_WARNING, "", "retention failed", strerror(EIO));
    retain(writer, EMFILE);
    check_logged(AC_LOG_WARNING, "", "retention failed", strerror(EMFILE));
    retain(writer, EMFILE);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    writer->retention_errors.logged_ns -= 61000000000u;
    retain(writer, EMFILE);
    check_logged(AC_LOG_WARNING, "", "retention failed", strerror(EMFILE));
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.retention_errors, 8);
    for (int i = 0; i < 2; i++)
        retain(writer, 0);
    check_logged(AC_LOG_INFO, "", "retention works again", "8");
    retain(writer, EMFILE);
    check_logged(AC_LOG_WARNING, "", "retention failed", strerror(EMFILE));
    close_writer(writer);
}

TEST_IN_MEMORY(a_position_that_cannot_be_read_is_named) {
    failing_t failing = {.call = AC_CALL_OPEN, .name_end = "audit.meta", .error = EACCES};
    ac_writer_t *writer = open_small();
    ac_reader_t *reader = open_reader(check_path("queue"), "audit", AC_START_FIRST);
    ac_os_set_hook(fail_hook, &failing);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_ACCESS);
    ac_os_set_hook(NULL, NULL);
    CHECK(strstr(err.path, "queue/readers/audit.meta") != NULL);
    ac_reader_free(reader);
    close_writer(writer);
}

static void wait_for_entry(void) {
    CHECK_EQUAL(ac_log_wait(20000000000u), 1);
    CHECK_EQUAL(ac_log_next(&entry), 1);
}

TEST_IN_MEMORY(readers_that_cannot_be_connected_are_logged_once_and_when_they_can) {
    ac_injection_t no_descriptors = {
        .call = AC_CALL_SOCKET, .answer = EMFILE, .first = 1, .times = UINT64_MAX};
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "reader", AC_START_FIRST);
    CHECK_OK(ac_reader_eventfd(reader, &err), err);
    close_writer(writer);
    ac_os_set_hook(ac_os_inject, &no_descriptors);
    writer = open_writer(check_path("queue"), &config);
    while (__atomic_load_n(&no_descriptors.seen, __ATOMIC_RELAXED) < 5)
        ac_os_sleep_ns(1000000);
    wait_for_entry();
    CHECK_EQUAL(entry.level, AC_LOG_WARNING);
    CHECK(strcmp(entry.path, check_path("queue")) == 0);
    CHECK(strstr(entry.text, strerror(EMFILE)) != NULL);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_os_set_hook(NULL, NULL);
    wait_for_entry();
    CHECK_EQUAL(entry.level, AC_LOG_INFO);
    CHECK(strstr(entry.text, "again") != NULL);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_reader_whose_position_was_cut_is_logged_once) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.retention = 1;
    config.reader_ttl_ns = 40000000;
    close_writer(open_small());
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "reader", AC_START_FIRST);
    CHECK_EQUAL(truncate(check_path("queue/readers/reader.meta"), 0), 0);
    wait_for_entry();
    CHECK_EQUAL(entry.level, AC_LOG_ERROR);
    CHECK(strstr(entry.text, "position file of reader reader was cut") != NULL);
    ac_os_sleep_ns(100000000);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_reader_free(reader);
    close_writer(writer);
}
