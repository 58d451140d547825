/* The reported reasons why segments are kept are those that retention applies. */
#include "position.h"

#include "queue.h"
#include "writer.h"

enum { SEGMENT = 4096, ROOM = 64 };

static ac_error_t err;
static ac_writer_stats_t stats;
static ac_kept_segment_t kept[ROOM];
static ac_reader_entry_t readers[ROOM];

static ac_writer_config_t retaining(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.retention = 1;
    return config;
}

/* A writer in the fourth segment or later. */
static ac_writer_t *fill(const ac_writer_config_t *config) {
    ac_writer_t *writer = open_writer(check_path("queue"), config);
    append_numbered(writer, 100);
    ac_writer_stats(writer, &stats);
    CHECK(stats.segment > 3);
    return writer;
}

static size_t ask(void) {
    int64_t count = ac_queue_why_kept(check_path("queue"), NULL, kept, ROOM, &err);
    CHECK_OK(count, err);
    CHECK(count <= ROOM);
    return (size_t)count;
}

static void configure(ac_writer_t *writer, const ac_settings_t *settings) {
    CHECK_OK(ac_writer_configure(writer, settings, &err), err);
}

/* Exactly the segments that are reported as removable are removed. */
static void check_retention_agrees(ac_writer_t *writer) {
    ac_queue_info_t info;
    size_t count = ask(), goes = 0;
    while (goes < count && kept[goes].why == AC_KEPT_GOES)
        goes++;
    uint32_t first = goes < count ? kept[goes].segment : UINT32_MAX;
    CHECK_OK(ac_writer_retain(writer, &err), err);
    CHECK_OK(ac_queue_info(check_path("queue"), &info, &err), err);
    CHECK_EQUAL(info.first_segment, first);
}

static int64_t list(void) {
    int64_t count = ac_queue_readers(check_path("queue"), readers, ROOM, &err);
    CHECK_OK(count, err);
    return count;
}

TEST_IN_MEMORY(without_retention_everything_is_kept) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(ask(), stats.segment + 1);
    for (uint32_t i = 0; i < stats.segment; i++) {
        CHECK_EQUAL(kept[i].segment, i);
        CHECK_EQUAL(kept[i].why, AC_KEPT_NO_RETENTION);
        CHECK_EQUAL(kept[i].bytes, SEGMENT);
    }
    CHECK_EQUAL(kept[stats.segment].why, AC_KEPT_ACTIVE);
    close_writer(writer);
}

TEST_IN_MEMORY(readers_keep_what_they_have_not_committed_past) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_NO_READER);
    ac_reader_t *slow = open_reader(check_path("queue"), "slow", AC_START_FIRST);
    ac_reader_t *quick = open_reader(check_path("queue"), "quick", AC_START_FIRST);
    CHECK_OK(ac_reader_commit(quick, 3, AC_SEGMENT_DATA, 0, &err), err);
    CHECK_OK(ac_reader_commit(slow, 1, AC_SEGMENT_DATA, 0, &err), err);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_GOES);
    CHECK_EQUAL(kept[1].why, AC_KEPT_READER);
    CHECK(strcmp(kept[1].reader, "slow") == 0);
    CHECK_EQUAL(kept[1].readers, 1);
    CHECK_EQUAL(kept[3].readers, 2);
    CHECK(strcmp(kept[3].reader, "slow") == 0);
    CHECK_EQUAL(list(), 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(readers[i].pid, getpid());
        CHECK_EQUAL(readers[i].keeps, stats.segment - readers[i].segment);
        CHECK(strstr(readers[i].command, "test_retention_kept") != NULL);
    }
    check_retention_agrees(writer);
    ac_reader_free(slow);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_AWAY);
    CHECK(strcmp(kept[0].reader, "slow") == 0);
    check_retention_agrees(writer);
    ac_reader_free(quick);
    list();
    CHECK_EQUAL(readers[0].pid, 0);
    CHECK_EQUAL(readers[0].open, 0);
    CHECK(readers[0].keeps > 0);
    close_writer(writer);
}

TEST_IN_MEMORY(limits_keep_what_they_do_not_reach) {
    ac_writer_config_t config = retaining();
    ac_settings_t settings;
    config.retain_for_readers = 0;
    config.retain_bytes = 1ull << 40;
    ac_writer_t *writer = fill(&config);
    ac_writer_settings(writer, &settings);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_LIMITS);
    settings.retain_bytes = 3 * SEGMENT;
    configure(writer, &settings);
    size_t count = ask();
    for (size_t i = 0; i < count - 3; i++) {
        CHECK_EQUAL(kept[i].why, AC_KEPT_GOES);
        CHECK(strcmp(kept[i].detail, "max_bytes") == 0);
        CHECK(kept[i].newest_ns > 0);
    }
    CHECK_EQUAL(kept[count - 3].why, AC_KEPT_LIMITS);
    CHECK_EQUAL(kept[count - 1].why, AC_KEPT_ACTIVE);
    check_retention_agrees(writer);
    settings.retain_bytes = 0;
    settings.retain_ns = 1;
    configure(writer, &settings);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_GOES);
    CHECK(strcmp(kept[0].detail, "max_age") == 0);
    snprintf(settings.wait_for, sizeof settings.wait_for, "archive");
    configure(writer, &settings);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_AWAITED);
    CHECK(strcmp(kept[0].reader, "archive") == 0);
    check_retention_agrees(writer);
    close_writer(writer);
}

TEST_IN_MEMORY(one_that_is_damaged_keeps_those_after_it) {
    ac_writer_config_t config = retaining();
    uint32_t nonsense = 0xffffff;
    config.retain_for_readers = 0;
    config.retain_ns = 1;
    ac_writer_t *writer = fill(&config);
    remove_in(check_path("queue"), "000000001.idx");
    poke(check_path("queue"), "000000001.q", AC_SEGMENT_DATA + 8, &nonsense, 4);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_GOES);
    CHECK_EQUAL(kept[1].why, AC_KEPT_DAMAGED);
    CHECK(kept[1].detail[0] != 0);
    CHECK_EQUAL(kept[2].why, AC_KEPT_BEHIND);
    CHECK(!exists(check_path("queue"), "000000001.idx"));
    check_retention_agrees(writer);
    close_writer(writer);
}

TEST_IN_MEMORY(a_damaged_position_keeps_everything) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    config.retain_ns = 1;
    ac_writer_t *writer = fill(&config);
    ac_reader_free(open_reader(check_path("queue"), "broken", AC_START_FIRST));
    uint8_t noise[AC_POSITION_SIZE] = {1};
    poke(check_path("queue/readers"), "broken.meta", 0, noise, sizeof noise);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_POSITION);
    CHECK(strcmp(kept[0].reader, "broken.meta") == 0);
    CHECK_EQUAL(kept[1].why, AC_KEPT_BEHIND);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_POSITION_CORRUPT);
    close_writer(writer);
}

TEST_IN_MEMORY(nobody_removes_anything_while_no_writer_is_open) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    config.retain_ns = 1;
    close_writer(fill(&config));
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_NO_WRITER);
    CHECK_EQUAL(kept[1].why, AC_KEPT_NO_WRITER);
    remove_in(check_path("queue"), AC_PUBLISHED_FILE);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_UNKNOWN);
    CHECK_EQUAL(ac_queue_why_kept(check_path("queue"), NULL, kept, 0, &err), stats.segment + 1);
    CHECK_FAILS(ac_queue_why_kept(check_path("none"), NULL, kept, 1, &err), err, AC_E_NOT_FOUND);
}

TEST_IN_MEMORY(other_rules_than_those_in_force_are_explained_and_not_applied) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    config.retain_bytes = 1u << 30;
    ac_writer_t *writer = fill(&config);
    ac_settings_t rules, before;
    ac_writer_settings(writer, &before);
    rules = before;
    rules.retain_bytes = 1;
    int64_t count = ac_queue_why_kept(check_path("queue"), &rules, kept, ROOM, &err);
    CHECK_EQUAL(count, stats.segment + 1);
    for (size_t i = 0; i < stats.segment; i++)
        CHECK_EQUAL(kept[i].why, AC_KEPT_GOES);
    CHECK_EQUAL(kept[stats.segment].why, AC_KEPT_ACTIVE);
    rules.retention = 0;
    CHECK(ac_queue_why_kept(check_path("queue"), &rules, kept, ROOM, &err) == count);
    CHECK_EQUAL(kept[0].why, AC_KEPT_NO_RETENTION);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_LIMITS);
    ac_writer_settings(writer, &rules);
    CHECK(memcmp(&rules, &before, sizeof rules) == 0);
    memset(rules.wait_for, 'x', sizeof rules.wait_for);
    CHECK_FAILS(ac_queue_why_kept(check_path("queue"), &rules, kept, ROOM, &err), err, AC_E_NAME);
    close_writer(writer);
    /* A writer that publishes nothing does not matter: these rules are known. */
    remove_in(check_path("queue"), AC_PUBLISHED_FILE);
    rules = before;
    rules.retain_bytes = 1;
    CHECK(ac_queue_why_kept(check_path("queue"), &rules, kept, ROOM, &err) == count);
    CHECK_EQUAL(kept[0].why, AC_KEPT_NO_WRITER);
}

TEST_IN_MEMORY(a_reader_beyond_its_limits_keeps_nothing) {
    ac_writer_config_t config = retaining();
    config.max_reader_lag = SEGMENT;
    ac_writer_t *writer = fill(&config);
    ac_reader_t *reader = open_reader(check_path("queue"), "slow", AC_START_FIRST);
    list();
    CHECK_EQUAL(readers[0].open, 1);
    CHECK_EQUAL(readers[0].keeps, 0);
    ask();
    CHECK_EQUAL(kept[0].why, AC_KEPT_GOES);
    check_retention_agrees(writer);
    ac_reader_free(reader);
    close_writer(writer);
}
