#include "writer.h"

#include "queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { SEGMENT = 16 << 10 };

static ac_error_t err;
static ac_writer_stats_t stats;

static ac_writer_t *open_small(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    return open_writer(check_path("queue"), &config);
}

TEST_IN_MEMORY(messages_keep_their_order_over_rolls_and_reopening) {
    uint64_t epoch = 0;
    for (int round = 0; round < 5; round++) {
        ac_writer_t *writer = open_small();
        append_numbered(writer, 100);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.next_seq, 100 * (round + 1));
        CHECK_EQUAL(stats.messages, 100);
        CHECK(stats.epoch > epoch);
        epoch = stats.epoch;
        close_writer(writer);
    }
    CHECK(stats.segment > 2);
    CHECK_EQUAL(count_numbered(check_path("queue")), 500);
}

TEST(an_open_queue_has_one_writer) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_small(), *second;
    char pid[32];
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &second, &err), err, AC_E_LOCKED);
    snprintf(pid, sizeof pid, "pid %d ", (int)getpid());
    CHECK(strstr(err.detail, pid));
    close_writer(writer);
    close_writer(open_small());
}

TEST(impossible_configurations_are_refused) {
    ac_writer_t *writer;
    ac_writer_config_t config = small_queue(100);
    char long_path[2000];
    memset(long_path, 'a', sizeof long_path);
    long_path[1999] = 0;
    CHECK_FAILS(ac_writer_open(check_path("q"), &config, &writer, &err), err, AC_E_ARGUMENT);
    config = small_queue(SEGMENT);
    config.flush_mode = 9;
    CHECK_FAILS(ac_writer_open(check_path("q"), &config, &writer, &err), err, AC_E_ARGUMENT);
    config.flush_mode = AC_FLUSH_BATCH;
    CHECK_FAILS(ac_writer_open(check_path("q"), &config, &writer, &err), err, AC_E_ARGUMENT);
    config = small_queue(SEGMENT);
    config.archive = long_path;
    CHECK_FAILS(ac_writer_open(check_path("q"), &config, &writer, &err), err, AC_E_ARGUMENT);
    config = small_queue(SEGMENT);
    CHECK_FAILS(ac_writer_open(long_path, &config, &writer, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_writer_open("", &config, &writer, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_writer_open(check_path("no/such/parent"), &config, &writer, &err), err,
                AC_E_NOT_FOUND);
    poke(check_directory, "file", 0, "x", 1);
    CHECK_FAILS(ac_writer_open(check_path("file"), &config, &writer, &err), err, AC_E_NOT_A_QUEUE);
}

TEST(segments_without_a_control_block_are_not_overwritten) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_small();
    append_numbered(writer, 3);
    close_writer(writer);
    remove_in(check_path("queue"), "control.meta");
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_CORRUPT);
}

TEST(arguments_out_of_range_write_nothing) {
    static uint8_t payload[SEGMENT];
    ac_writer_t *writer = open_small();
    ac_slice_t items[2] = {{payload, 10}, {payload, SEGMENT}};
    uint64_t backwards[2] = {20, 10};
    CHECK_FAILS(ac_writer_append(writer, payload, SEGMENT - 127, 0, AC_NOW, &err), err,
                AC_E_TOO_LARGE);
    CHECK_FAILS(ac_writer_append(writer, payload, UINT32_MAX, 0, AC_NOW, &err), err,
                AC_E_TOO_LARGE);
    CHECK_FAILS(ac_writer_append(writer, payload, 1, 0xFFFF, AC_NOW, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_writer_append_many(writer, items, 2, 0, NULL, &err), err, AC_E_TOO_LARGE);
    items[1].length = 10;
    CHECK_FAILS(ac_writer_append_many(writer, items, 2, 0, backwards, &err), err, AC_E_TIMESTAMP);
    CHECK_FAILS(ac_writer_append_many(writer, items, 2, 70000, NULL, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_writer_append_many(writer, items, (size_t)UINT32_MAX + 1, 0, NULL, &err), err,
                AC_E_TOO_LARGE);
    CHECK_EQUAL(ac_writer_append_many(writer, items, 0, 0, NULL, &err), 0);
    CHECK_EQUAL(ac_writer_append(writer, payload, SEGMENT - 128, 0, 1000, &err), 0);
    CHECK_FAILS(ac_writer_append(writer, payload, 1, 0, 999, &err), err, AC_E_TIMESTAMP);
    CHECK_FAILS(ac_writer_heartbeat(writer, 999, &err), err, AC_E_TIMESTAMP);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.next_seq, 1);
    close_writer(writer);
}

TEST(a_heartbeat_forbids_older_records) {
    ac_writer_t *writer = open_small();
    ac_queue_info_t info;
    CHECK_OK(ac_writer_heartbeat(writer, 5000, &err), err);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, 4999, &err), err, AC_E_TIMESTAMP);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, 5000, &err), 0);
    CHECK_OK(ac_writer_heartbeat(writer, AC_NOW, &err), err);
    CHECK_OK(ac_queue_info(check_path("queue"), &info, &err), err);
    CHECK(info.watermark_ns > 5000);
    close_writer(writer);
}

TEST(a_clock_that_steps_back_is_held) {
    ac_writer_t *writer = open_small();
    uint64_t future = ac_clock_ns() + 3600000000000u;
    ac_message_t message;
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, future, &err), 0);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 1);
    ac_writer_stats(writer, &stats);
    CHECK(stats.clock_steps > 0);
    CHECK_EQUAL(stats.last_timestamp_ns, future);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_SEQ);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(message.timestamp_ns, future);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_reservation_excludes_everything_else_and_leaves_no_trace_when_aborted) {
    ac_writer_t *writer = open_small();
    ac_slice_t item = {"x", 1};
    void *room, *second;
    CHECK_FAILS(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), err, AC_E_RESERVED);
    CHECK_OK(ac_writer_reserve(writer, 100, &room, &err), err);
    memset(room, 0xff, 100);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_RESERVED);
    CHECK_FAILS(ac_writer_append_many(writer, &item, 1, 0, NULL, &err), err, AC_E_RESERVED);
    CHECK_FAILS(ac_writer_reserve(writer, 1, &second, &err), err, AC_E_RESERVED);
    ac_writer_abort(writer);
    ac_writer_abort(writer);
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL(((uint8_t *)room)[i], 0);
    CHECK_OK(ac_writer_reserve(writer, 100, &room, &err), err);
    memset(room, 0xff, 100);
    CHECK_FAILS(ac_writer_commit(writer, 0x10000, AC_NOW, NULL, &err), err, AC_E_ARGUMENT);
    CHECK_EQUAL(*(uint8_t *)room, 0);
    CHECK_OK(ac_writer_reserve(writer, 3, &room, &err), err);
    memcpy(room, "abc", 3);
    CHECK_EQUAL(ac_writer_commit(writer, 4, 10, NULL, &err), 0);
    CHECK_OK(ac_writer_reserve(writer, 3, &room, &err), err);
    CHECK_FAILS(ac_writer_commit(writer, 4, 9, NULL, &err), err, AC_E_TIMESTAMP);
    CHECK_FAILS(ac_writer_reserve(writer, UINT32_MAX, &room, &err), err, AC_E_TOO_LARGE);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 1);
    CHECK_OK(ac_writer_reserve(writer, 3, &room, &err), err);
    CHECK_OK(ac_writer_close(writer, &err), err);
    CHECK_FAILS(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), err, AC_E_CLOSED);
    ac_writer_free(writer);
    uint64_t records;
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 0);
    CHECK_EQUAL(records, 2);
}

static uint64_t rolls_after(const ac_writer_config_t *config, int count, uint64_t step_ns) {
    ac_writer_t *writer = open_writer(check_path("queue"), config);
    for (int i = 0; i < count; i++)
        CHECK_OK(ac_writer_append(writer, "0123456789", 10, 0, 1000 + (uint64_t)i * step_ns, &err),
                 err);
    ac_writer_stats(writer, &stats);
    close_writer(writer);
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    return stats.rolls;
}

TEST_IN_MEMORY(segments_roll_by_bytes_count_and_time) {
    ac_writer_config_t config = small_queue(SEGMENT);
    CHECK_EQUAL(rolls_after(&config, 100, 1), 0);
    config.roll_messages = 10;
    CHECK_EQUAL(rolls_after(&config, 100, 1), 9);
    config.roll_messages = 0;
    config.roll_bytes = 1280; /* ten records of 128 bytes */
    CHECK_EQUAL(rolls_after(&config, 100, 1), 9);
    config.roll_bytes = 1; /* less than one record: one each */
    CHECK_EQUAL(rolls_after(&config, 10, 1), 9);
    config.roll_bytes = 0;
    config.roll_ns = 1000;
    CHECK_EQUAL(rolls_after(&config, 100, 100), 9);
}

TEST(a_limit_of_the_largest_number_is_no_limit) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.roll_messages = config.roll_bytes = config.roll_ns = UINT64_MAX;
    config.capacity_bytes = UINT64_MAX;
    CHECK_EQUAL(rolls_after(&config, 100, 1), 0);
}

TEST(a_record_written_in_place_starts_the_time_of_its_segment) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.roll_ns = 1000000000;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    void *room;
    uint64_t now = 1700000000000000000u;
    CHECK_OK(ac_writer_reserve(writer, 3, &room, &err), err);
    CHECK_EQUAL(ac_writer_commit(writer, 0, now, NULL, &err), 0);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, now + 999999999, &err), 1);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 0);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, now + 1000000000, &err), 2);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 1);
    close_writer(writer);
}

TEST_IN_MEMORY(roll_limits_go_on_where_they_were_after_reopening) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.roll_messages = 10;
    config.roll_ns = 1000000;
    for (int i = 0; i < 20; i++) {
        ac_writer_t *writer = open_writer(check_path("queue"), &config);
        CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, 1000 + (uint64_t)i, &err), i);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.segment, i / 10);
        close_writer(writer);
    }
}

/* ---- filling pages ahead must never overwrite stored records ---- */

static void fill_ahead(int flush_mode, uint64_t seed) {
    static uint8_t large[3 << 20];
    uint64_t random = seed | 1;
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = 8 << 20;
    config.flush_mode = flush_mode;
    config.batch_bytes = 1 << 20;
    config.batch_ns = 1000000;
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (uint8_t)(i * 31 >> 3 | 1);
    uint64_t expected = 0;
    for (int round = 0; round < 6; round++) {
        ac_writer_t *writer = open_writer(check_path("queue"), &config);
        int records = flush_mode == AC_FLUSH_SYNC ? 6 : 40;
        for (int i = 0; i < records; i++, expected++) {
            uint64_t kind = check_random(&random) % 8;
            size_t length = (size_t)(check_random(&random) % (kind == 0   ? sizeof large
                                                              : kind == 1 ? 400000
                                                                          : 3000));
            if (kind == 2) {
                void *room;
                CHECK_OK(ac_writer_reserve(writer, length, &room, &err), err);
                memcpy(room, large, length);
                if (check_random(&random) % 2) {
                    ac_writer_abort(writer);
                    expected--;
                    continue;
                }
                CHECK_EQUAL(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), expected);
            } else {
                CHECK_EQUAL(ac_writer_append(writer, large, length, 0, AC_NOW, &err), expected);
            }
        }
        close_writer(writer);
    }
    uint64_t records;
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 0);
    CHECK_EQUAL(records, expected);
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

TEST(filling_pages_ahead_never_destroys_a_record) {
    uint64_t seed = check_seed();
    fill_ahead(AC_FLUSH_ASYNC, seed);
    fill_ahead(AC_FLUSH_BATCH, seed + 1);
    fill_ahead(AC_FLUSH_SYNC, seed + 2);
}

TEST(a_full_disk_is_an_error_and_then_room_is_room_again) {
    failing_t failing = {.call = AC_CALL_ALLOCATE, .error = ENOSPC};
    static uint8_t payload[1000];
    ac_writer_t *writer = open_small();
    ac_os_set_hook(fail_hook, &failing);
    int64_t seq = 0, count = 0;
    while ((seq = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err)) >= 0)
        count++;
    CHECK_EQUAL(seq, AC_E_NO_SPACE);
    CHECK_EQUAL(count, (SEGMENT - 64) / 1088);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), count);
    close_writer(writer);
}

/* ---- capacity ---- */

static void commit_here(ac_reader_t *reader) {
    uint64_t segment, offset;
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_commit(reader, segment, offset, 0, &err), err);
}

TEST(at_capacity_an_append_fails_until_the_slowest_reader_has_committed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.capacity_bytes = 1280;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t lag, live;
    for (int i = 0; i < 20; i++) /* no reader: nothing to wait for */
        CHECK_OK(ac_writer_append(writer, "0123456789", 10, 0, AC_NOW, &err), err);
    ac_reader_t *reader = open_reader(check_path("queue"), "slow", AC_START_LAST);
    commit_here(reader);
    for (int i = 0; i < 10; i++)
        CHECK_OK(ac_writer_append(writer, "0123456789", 10, 0, AC_NOW, &err), err);
    CHECK_FAILS(ac_writer_append(writer, "0123456789", 10, 0, AC_NOW, &err), err, AC_E_FULL);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(lag, 1280);
    CHECK_EQUAL(live, 1);
    ac_message_t message;
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    commit_here(reader);
    CHECK_OK(ac_writer_append(writer, "0123456789", 10, 0, AC_NOW, &err), err);
    CHECK_FAILS(ac_writer_append(writer, "0123456789", 10, 0, AC_NOW, &err), err, AC_E_FULL);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_record_larger_than_the_capacity_is_refused_at_once) {
    static uint8_t payload[2000];
    ac_writer_config_t config = small_queue(SEGMENT);
    config.capacity_bytes = 1280;
    config.capacity_policy = AC_CAPACITY_BLOCK; /* forever */
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    alarm(20);
    CHECK_FAILS(ac_writer_append(writer, payload, 2000, 0, AC_NOW, &err), err, AC_E_TOO_LARGE);
    alarm(0);
    CHECK_EQUAL(ac_writer_append(writer, payload, 1200, 0, AC_NOW, &err), 0);
    close_writer(writer);
}

TEST(waiting_for_capacity_ends_at_the_timeout) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.capacity_bytes = 256;
    config.capacity_policy = AC_CAPACITY_BLOCK;
    config.capacity_timeout_ns = 5000000;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "slow", AC_START_COMMITTED);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 0);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 1);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_TIMEOUT);
    ac_writer_stats(writer, &stats);
    CHECK(stats.capacity_waits > 0);
    CHECK_EQUAL(stats.next_seq, 2);
    ac_reader_free(reader);
    close_writer(writer);
}

/* ---- ends of a handle ---- */

TEST(a_closed_writer_says_so) {
    ac_writer_t *writer = open_small();
    ac_slice_t item = {"x", 1};
    void *room;
    uint64_t lag, live;
    append_numbered(writer, 3);
    CHECK_OK(ac_writer_close(writer, &err), err);
    CHECK_OK(ac_writer_close(writer, &err), err);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_append_many(writer, &item, 1, 0, NULL, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_reserve(writer, 1, &room, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_heartbeat(writer, AC_NOW, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_mark_ready(writer, "{}", &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_writer_reader_lag(writer, &lag, &live, &err), err, AC_E_CLOSED);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 3); /* all of it is on disk */
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.next_seq, 3);
    CHECK(strstr(ac_writer_path(writer), "queue"));
    ac_writer_free(writer);
    ac_writer_free(NULL);
}

static int forked_calls(ac_writer_t *writer) {
    ac_error_t mine;
    void *room;
    uint64_t lag, live;
    ac_slice_t item = {"x", 1};
    int good = ac_writer_append(writer, "x", 1, 0, AC_NOW, &mine) == AC_E_FORKED &&
               ac_writer_append_many(writer, &item, 1, 0, NULL, &mine) == AC_E_FORKED &&
               ac_writer_reserve(writer, 1, &room, &mine) == AC_E_FORKED &&
               ac_writer_flush(writer, &mine) == AC_E_FORKED &&
               ac_writer_heartbeat(writer, AC_NOW, &mine) == AC_E_FORKED &&
               ac_writer_mark_ready(writer, "{}", &mine) == AC_E_FORKED &&
               ac_writer_retain(writer, &mine) == AC_E_FORKED &&
               ac_writer_reader_lag(writer, &lag, &live, &mine) == AC_E_FORKED;
    ac_writer_stats_t mine_stats;
    ac_writer_stats(writer, &mine_stats);
    ac_writer_free(writer);
    return good;
}

TEST(in_a_forked_child_every_call_says_so_and_the_parent_goes_on) {
    ac_writer_t *writer = open_small();
    append_numbered(writer, 3);
    /* As if another thread were inside a call at that moment. */
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(forked_calls(writer) ? 0 : 1);
    }
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    append_numbered(writer, 3);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 6);
}

TEST(ready_is_published_whole_and_bounded) {
    static char text[70000];
    char found[8] = {0};
    ac_writer_t *writer = open_small();
    CHECK_OK(ac_writer_mark_ready(writer, "{\"a\":1}", &err), err);
    peek(check_path("queue"), "READY", 0, found, 7);
    CHECK(strcmp(found, "{\"a\":1}") == 0);
    CHECK(!exists(check_path("queue"), "READY.tmp"));
    memset(text, ' ', sizeof text - 1);
    CHECK_FAILS(ac_writer_mark_ready(writer, text, &err), err, AC_E_ARGUMENT);
    close_writer(writer);
}

TEST(schema_replaces_the_one_before_and_is_bounded) {
    char found[8] = {0};
    ac_writer_t *writer = open_small();
    CHECK_OK(ac_writer_publish_schema(writer, "{\"old\":1}", &err), err);
    CHECK_OK(ac_writer_publish_schema(writer, "{\"a\":1}", &err), err);
    peek(check_path("queue"), "schema.json", 0, found, 7);
    CHECK(strcmp(found, "{\"a\":1}") == 0);
    CHECK(!exists(check_path("queue"), "schema.json.tmp"));
    char *text = calloc(1, (1 << 20) + 2);
    memset(text, ' ', (1 << 20) + 1);
    CHECK_FAILS(ac_writer_publish_schema(writer, text, &err), err, AC_E_ARGUMENT);
    free(text);
    close_writer(writer);
}

TEST(a_segment_cut_by_another_program_is_an_error_not_a_signal) {
    static uint8_t payload[1000];
    ac_writer_t *writer = open_small();
    append_numbered(writer, 3);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 0), 0);
    int64_t seq = 0;
    for (int i = 0; i < 100 && seq >= 0; i++)
        seq = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err);
    CHECK(seq == AC_E_GONE || seq == AC_E_SYSTEM);
    CHECK(ac_writer_close(writer, &err) < 0);
    ac_writer_free(writer);
}

TEST(memory_that_may_not_be_locked_is_an_error) {
    ac_writer_config_t config = small_queue(SEGMENT);
    failing_t failing = {.call = AC_CALL_MEMLOCK, .error = ENOMEM};
    ac_writer_t *writer;
    config.memlock = 1;
    ac_os_set_hook(fail_hook, &failing);
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    CHECK(strstr(err.detail, "RLIMIT_MEMLOCK"));
}

/* Fails every system call of a writer's life with rolls, flushes and sealing in turn. Every acknowledged
 * message is there afterwards, and nothing is left open. */
static int count_fds(void) {
    int count = 0;
    DIR *stream = opendir("/proc/self/fd");
    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

static uint64_t live_until_failure(const char *path) {
    ac_writer_config_t config = small_queue(4096);
    ac_writer_t *writer;
    uint8_t payload[PAYLOAD_MAX];
    uint64_t acknowledged = 0;
    if (ac_writer_open(path, &config, &writer, &err) != AC_OK) return 0;
    for (uint64_t i = 0; i < 40; i++) {
        int64_t seq =
            ac_writer_append(writer, payload, payload_of(acknowledged, payload), 0, AC_NOW, &err);
        if (seq >= 0) acknowledged = (uint64_t)seq + 1;
        if (i % 16 == 15) ac_writer_flush(writer, &err);
    }
    ac_writer_close(writer, &err);
    ac_writer_free(writer);
    return acknowledged;
}

TEST_IN_MEMORY(any_system_call_may_fail_without_losing_what_was_acknowledged) {
    live_until_failure(check_path("first"));
    int before = count_fds();
    for (int call = 0; call < ac_os_call_count(); call++) {
        for (int skip = 0;; skip += 1 + skip / 6) {
            failing_t failing = {.call = call, .error = EMFILE, .skip = skip};
            char name[32];
            snprintf(name, sizeof name, "queue%d-%d", call, skip);
            ac_os_set_hook(fail_hook, &failing);
            uint64_t acknowledged = live_until_failure(check_path(name));
            ac_os_set_hook(NULL, NULL);
            ac_writer_config_t config = small_queue(4096);
            close_writer(open_writer(check_path(name), &config));
            CHECK(count_numbered(check_path(name)) >= acknowledged);
            CHECK_EQUAL(count_fds(), before);
            nftw(check_path(name), check_remove, 16, FTW_DEPTH | FTW_PHYS);
            if (!failing.failed) break;
        }
    }
}

static uint64_t wakeups_of(ac_writer_t *writer, int appends) {
    ac_writer_stats_t before, after;
    ac_writer_stats(writer, &before);
    for (int i = 0; i < appends; i++)
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    ac_writer_stats(writer, &after);
    return after.wakeups - before.wakeups;
}

/* Sleeps like a reader of another program; the test counts it. */
static void *sleep_on_futex(void *context) {
    ac_control_t *control = context;
    uint32_t seq = ac_load_acquire_u32(&control->notify_seq);
    while (ac_load_acquire_u32(&control->notify_seq) == seq)
        ac_os_futex_wait(&control->notify_seq, seq, 20000000000u);
    return NULL;
}

TEST(a_waiter_that_was_killed_does_not_cost_a_call_per_append) {
    ac_writer_config_t config = small_queue(1 << 24);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    CHECK_EQUAL(wakeups_of(writer, 100), 0);
    ac_fetch_add_seq_cst_u32(&writer->control->waiters_pending, 1);
    CHECK_EQUAL(wakeups_of(writer, 100), 100); /* it may be about to sleep */
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    while (writer->dead_waiters == 0) {
        wakeups_of(writer, 1);
        ac_os_sleep_ns(1000000);
        CHECK(ac_os_monotonic_ns() < deadline);
    }
    CHECK_EQUAL(wakeups_of(writer, 6400), 100);

    /* A second sleeper counts, and the next append wakes it. */
    pthread_t sleeper;
    ac_fetch_add_seq_cst_u32(&writer->control->waiters_pending, 1);
    CHECK_EQUAL(pthread_create(&sleeper, NULL, sleep_on_futex, writer->control), 0);
    ac_os_sleep_ns(50000000); /* it sleeps by now, most likely */
    CHECK_EQUAL(wakeups_of(writer, 1), 1);
    pthread_join(sleeper, NULL);
    close_writer(writer);
}

TEST(a_waiter_that_is_taken_for_dead_is_woken_a_little_later) {
    ac_writer_config_t config = small_queue(1 << 24);
    pthread_t sleeper;
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_fetch_add_seq_cst_u32(&writer->control->waiters_pending, 1);
    while (writer->dead_waiters == 0) {
        wakeups_of(writer, 1);
        ac_os_sleep_ns(1000000);
    }
    CHECK_EQUAL(pthread_create(&sleeper, NULL, sleep_on_futex, writer->control), 0);
    ac_os_sleep_ns(50000000); /* it sleeps by now, most likely */
    uint64_t started = ac_os_monotonic_ns();
    wakeups_of(writer, 1); /* and no longer: the housekeeper runs within a second */
    pthread_join(sleeper, NULL);
    CHECK(ac_os_monotonic_ns() - started < 10000000000u);
    close_writer(writer);
}
