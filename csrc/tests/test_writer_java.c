/* A Java queue through the public calls of a writer. test_cq4_writer.c checks the content of the files. */
#include "writer.h"

#include "queue.h"

#include <sys/wait.h>

static ac_error_t err;

static ac_writer_config_t java_queue(void) {
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.format = AC_FORMAT_CQ4;
    return config;
}

/* In cycle 5 of a roll cycle of seconds. */
static ac_writer_t *open_java(void) {
    ac_writer_config_t config = java_queue();
    config.roll_cycle = "TEST_SECONDLY";
    config.now_ns = 5000000000ull;
    return open_writer(check_path("java"), &config);
}

static int64_t append(ac_writer_t *writer, const char *text) {
    return ac_writer_append(writer, text, strlen(text), 0, AC_NOW, &err);
}

TEST(what_is_there_is_opened_and_nothing_else) {
    ac_writer_config_t native, java = java_queue();
    ac_writer_t *writer;
    ac_writer_defaults(&native);
    native.segment_size = 1 << 16;
    ac_writer_free(open_writer(check_path("native"), &native));
    ac_writer_free(open_java());
    CHECK_EQUAL(ac_queue_format(check_path("native")), AC_FORMAT_NATIVE);
    CHECK_EQUAL(ac_queue_format(check_path("java")), AC_FORMAT_CQ4);
    CHECK_EQUAL(ac_queue_format(check_path("nothing")), AC_FORMAT_NONE);
    CHECK_EQUAL(ac_writer_open(check_path("native"), &java, &writer, &err), AC_E_ARGUMENT);
    native.format = AC_FORMAT_NATIVE;
    CHECK_EQUAL(ac_writer_open(check_path("java"), &native, &writer, &err), AC_E_ARGUMENT);
}

TEST(messages_get_javas_indexes_and_are_counted) {
    ac_writer_stats_t stats;
    ac_writer_t *writer = open_java();
    const ac_slice_t items[] = {{"b", 1}, {"cc", 2}};
    CHECK_EQUAL(writer->limit, 0); /* no fast path of native queues */
    CHECK_EQUAL(append(writer, "a"), 5ll << 32);
    CHECK_EQUAL(ac_writer_append_many(writer, items, 2, 0, NULL, &err), (5ll << 32) + 1);
    CHECK_EQUAL(ac_writer_append_many(writer, items, 0, 0, NULL, &err), (5ll << 32) + 3);
    CHECK_EQUAL(ac_java_try_append(writer, "d", 1), (5ll << 32) + 3);
    writer->java_now_ns = 6000000000ull;
    CHECK_EQUAL(append(writer, "e"), 6ll << 32);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.messages, 5);
    CHECK_EQUAL(stats.payload_bytes, 6);
    CHECK_EQUAL(stats.next_seq, (6ll << 32) + 1);
    CHECK_EQUAL(stats.segment, 6);
    CHECK_EQUAL(stats.rolls, 1);
    CHECK_EQUAL(stats.durable_seq, 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), (6ll << 32) + 1);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.durable_seq, (6ll << 32) + 1);
    ac_writer_free(writer);
    writer = open_java();
    CHECK_EQUAL(writer->seq, (6ull << 32) + 1);
    ac_writer_free(writer);
}

TEST(what_has_no_place_is_refused_and_nothing_is_appended) {
    ac_writer_t *writer = open_java();
    const ac_slice_t item = {"x", 1};
    const ac_cause_t cause = {.source = 1}, expiry = {.source = 1, .is_expiry = 1};
    const uint64_t stamp = 7;
    uint64_t lag, live;
    void *room;
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 1, AC_NOW, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, 7, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_append_cause(writer, "x", 1, 0, AC_NOW, &cause, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_append_cause(writer, "x", 1, 0, AC_NOW, &expiry, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_append_many(writer, &item, 1, 0, &stamp, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_reserve(writer, 1, &room, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), AC_E_RESERVED);
    CHECK_EQUAL(ac_writer_heartbeat(writer, AC_NOW, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_reader_lag(writer, &lag, &live, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(ac_writer_retain(writer, &err), AC_E_UNSUPPORTED);
    CHECK_EQUAL(append(writer, "first"), 5ll << 32);
    CHECK_OK(ac_writer_close(writer, &err), err);
    CHECK_EQUAL(ac_writer_heartbeat(writer, AC_NOW, &err), AC_E_CLOSED);
    CHECK_EQUAL(append(writer, "late"), AC_E_CLOSED);
    CHECK_EQUAL(ac_writer_flush(writer, &err), (5ll << 32) + 1); /* closing did it */
    ac_writer_free(writer);
}

TEST(native_and_java_queues_are_flushed_together) {
    ac_writer_config_t config;
    int64_t results[2];
    ac_error_t errors[2];
    ac_writer_defaults(&config);
    config.segment_size = 1 << 16;
    ac_writer_t *writers[] = {open_java(), open_writer(check_path("native"), &config)};
    CHECK_EQUAL(append(writers[0], "a"), 5ll << 32);
    CHECK_EQUAL(append(writers[1], "b"), 0);
    CHECK_EQUAL(ac_writers_flush(writers, 2, results, errors), 0);
    CHECK_EQUAL(results[0], (5ll << 32) + 1);
    CHECK_EQUAL(results[1], 1);
    ac_writer_free(writers[0]);
    ac_writer_free(writers[1]);
}

TEST(a_failed_sync_poisons) {
    ac_writer_t *writer = open_java();
    ac_injection_t injection = {.call = -1, .answer = EIO, .first = 1, .times = UINT64_MAX};
    CHECK_EQUAL(append(writer, "a"), 5ll << 32);
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK(ac_writer_flush(writer, &err) < 0);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(ac_writer_flush(writer, &err), AC_E_POISONED);
    CHECK_EQUAL(append(writer, "b"), AC_E_POISONED);
    CHECK_EQUAL(ac_java_try_append(writer, "b", 1), AC_E_SLOW);
    ac_writer_free(writer);
    writer = open_java();
    CHECK_EQUAL(append(writer, "b"), (5ll << 32) + 1);
    ac_writer_free(writer);
}

TEST(a_removed_queue_is_gone) {
    ac_writer_config_t config = java_queue();
    ac_writer_t *writer = open_writer(check_path("java"), &config);
    char path[600], moved[600];
    snprintf(path, sizeof path, "%s", check_path("java"));
    snprintf(moved, sizeof moved, "%s", check_path("moved"));
    CHECK(append(writer, "a") > 0);
    CHECK_EQUAL(rename(path, moved), 0);
    int64_t rc = AC_OK;
    for (int i = 0; i < 3000 && rc >= 0; i++) { /* which is checked from time to time */
        rc = append(writer, "b");
        ac_os_sleep_ns(1000000);
    }
    CHECK_EQUAL(rc, AC_E_GONE);
    CHECK_EQUAL(ac_writer_check_removed(writer, &err), AC_E_GONE);
    CHECK_OK(ac_writer_close(writer, &err), err);
    ac_writer_free(writer);
}

TEST(a_forked_childs_writer_is_closed) {
    int status;
    ac_writer_t *writer = open_java();
    CHECK_EQUAL(append(writer, "a"), 5ll << 32);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(append(writer, "b"), AC_E_FORKED);
        CHECK_EQUAL(ac_writer_flush(writer, &err), AC_E_FORKED);
        CHECK_EQUAL(ac_writer_heartbeat(writer, AC_NOW, &err), AC_E_FORKED);
        ac_writer_free(writer);
#ifndef __SANITIZE_THREAD__ /* which does not let a child of a process with threads start one */
        writer = open_java();
        CHECK_EQUAL(append(writer, "c"), (5ll << 32) + 1);
        ac_writer_free(writer);
#endif
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
#ifndef __SANITIZE_THREAD__
    CHECK_EQUAL(append(writer, "d"), (5ll << 32) + 2);
#endif
    ac_writer_free(writer);
}
