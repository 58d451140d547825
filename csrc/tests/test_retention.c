#include "retention.h"

#include "control.h"
#include "position.h"
#include "queue.h"
#include "segment_seekindex.h"
#include "writer.h"

enum { SEGMENT = 4096, DAY_S = 86400 };

static ac_error_t err;
static ac_writer_stats_t stats;

/* Both clocks, set by the tests: how far the time of day is ahead, and how much time has passed. */
static _Atomic uint64_t ahead_ns, passed_ns;
uint64_t __real_ac_os_now_ns(void);
uint64_t __real_ac_os_monotonic_ns(void);
uint64_t __wrap_ac_os_now_ns(void);
uint64_t __wrap_ac_os_monotonic_ns(void);

uint64_t __wrap_ac_os_now_ns(void) {
    return __real_ac_os_now_ns() + ahead_ns + passed_ns;
}

uint64_t __wrap_ac_os_monotonic_ns(void) {
    return __real_ac_os_monotonic_ns() + passed_ns;
}

static ac_writer_config_t retaining(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.retention = 1;
    config.retention_check_ns = 1000000000000u;
    config.reader_ttl_ns = 30000000000u;
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

static size_t segments_left(uint32_t *first) {
    ac_queue_info_t info;
    CHECK_OK(ac_queue_info(check_path("queue"), &info, &err), err);
    *first = (uint32_t)info.first_segment;
    return (size_t)info.segments;
}

static uint32_t retain(ac_writer_t *writer) {
    uint32_t first;
    CHECK_OK(ac_writer_retain(writer, &err), err);
    segments_left(&first);
    return first;
}

static void commit_at(ac_reader_t *reader, uint64_t segment) {
    CHECK_OK(ac_reader_commit(reader, segment, AC_SEGMENT_DATA, 0, &err), err);
}

/* A position that a reader left that long ago. */
static void leave_position(const char *name, uint64_t segment, uint64_t offset, uint64_t age_ns) {
    ac_slot_t slots[2] = {{.segment = segment,
                           .offset = offset,
                           .heartbeat_ns = ac_os_now_ns() - age_ns,
                           .generation = 1}};
    slots[0].checksum = ac_checksum(&slots[0], 32);
    poke(check_path("queue/readers"), name, 0, slots, sizeof slots);
}

/* Holds a position open, like a reader that gives no sign of life. */
static void hold_position(ac_position_t *position, const char *name) {
    ac_directory_t dir;
    int created;
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 0, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    CHECK_OK(ac_position_open(position, &dir, fd, name, 0, 64, &created, &err), err);
    CHECK(!created);
    ac_os_close(fd);
}

enum { EMPTY = 10 };

/* A writer after that many empty segments, as recovery leaves them for a reader whose commit lies in what a
 * power cut removed; that reader does not come back. */
static ac_writer_t *fill_and_lose(const ac_writer_config_t *config) {
    close_writer(fill(config));
    forget_close();
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("lost.meta", stats.segment + EMPTY, 128, 2 * config->reader_ttl_ns);
    ac_writer_t *writer = open_writer(check_path("queue"), config);
    uint64_t last = stats.segment;
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.segment, last + EMPTY + 1);
    return writer;
}

TEST_IN_MEMORY(nothing_goes_before_there_is_a_reader) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(retain(writer), 0);
    close_writer(writer);
}

TEST(what_every_live_reader_has_committed_past_goes) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    ac_reader_t *one = open_reader(check_path("queue"), "one", AC_START_FIRST);
    ac_reader_t *two = open_reader(check_path("queue"), "two", AC_START_FIRST);
    commit_at(one, 3);
    CHECK_EQUAL(retain(writer), 0);
    commit_at(two, 2);
    CHECK_EQUAL(retain(writer), 2);
    CHECK(!exists(check_path("queue"), "000000001.idx"));
    CHECK(exists(check_path("queue"), "000000002.idx"));
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.segments_deleted, 2);
    CHECK_FAILS(ac_reader_seek_position(one, 1, 64, &err), err, AC_E_POSITION_LOST);
    CHECK_EQUAL(err.first_segment, 2);
    ac_reader_free(one);
    ac_reader_free(two);
    close_writer(writer);
}

TEST_IN_MEMORY(the_active_segment_stays) {
    ac_writer_config_t config = retaining();
    config.retain_bytes = 1;
    config.retain_ns = 1;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(retain(writer), stats.segment);
    close_writer(writer);
}

TEST(a_segment_that_is_not_yet_sealed_stays) {
    ac_writer_config_t config = retaining();
    config.retain_bytes = 1;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    writer->config.inline_housekeeping = 0;
    ac_housekeeper_remove(&writer->disk);
    append_numbered(writer, 100);
    CHECK_EQUAL(retain(writer), 0);
    CHECK_OK(ac_writer_seal_pending(writer, &err), err);
    CHECK(retain(writer) > 3);
    CHECK_OK(ac_housekeeper_add(&writer->disk), err);
    close_writer(writer);
}

TEST(a_reader_that_is_silent_too_long_or_too_far_behind_is_not_waited_for) {
    ac_writer_config_t config = retaining();
    config.reader_ttl_ns = 60000000000u;
    config.max_reader_lag = 3 * SEGMENT;
    ac_writer_t *writer = fill(&config);
    uint64_t lag, live;
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("dead.meta", 0, 64, 61000000000u);
    leave_position("far.meta", 0, 64, 0);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    leave_position("near.meta", stats.segment - 1, 64, 59000000000u);
    ac_position_t near;
    hold_position(&near, "near");
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    /* Less than two segments: the bytes that the roll left unused do not count, nor does a header. */
    CHECK(lag > stats.offset && lag < SEGMENT - 64 + stats.offset - 64);
    CHECK_EQUAL(retain(writer), stats.segment - 1);
    ac_position_close(&near);
    close_writer(writer);
}

TEST(a_reader_that_could_not_know_how_often_to_beat_is_live_while_it_is_open) {
    ac_writer_config_t config = retaining();
    config.reader_ttl_ns = 60000000000u;
    ac_position_t position;
    uint64_t lag, live;
    ac_writer_free(fill(&config));
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("sleeper.meta", 0, 64, 61000000000u);
    hold_position(&position, "sleeper");
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    CHECK_EQUAL(writer->control->reader_ttl_ns, config.reader_ttl_ns);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    CHECK_EQUAL(retain(writer), 0);
    /* A later commit does not prove that the reader knows, … */
    ac_position_store(&position, 0, 64, 0, ac_clock_ns());
    writer->settings.reader_ttl_ns = 1;
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    CHECK_EQUAL(retain(writer), 0);
    /* … but some time later it must. */
    writer->settings.opened_ns -= 2 * AC_HEARTBEAT_MAX_NS;
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    writer->settings.opened_ns += 2 * AC_HEARTBEAT_MAX_NS;
    ac_position_close(&position);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    close_writer(writer);
}

static uint64_t live_readers(ac_writer_t *writer) {
    uint64_t lag, live;
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    return live;
}

/* The clock is set, or the machine slept; no reader could give a sign of life since. */
TEST(a_clock_that_jumps_ahead_makes_nobody_look_dead) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("one.meta", 1, 64, 0);
    ac_position_t position;
    hold_position(&position, "one");
    writer->settings.opened_ns -= 2 * AC_HEARTBEAT_MAX_NS;
    CHECK_EQUAL(retain(writer), 1);
    ahead_ns = 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* A sign of life from before the jump, which the writer has not seen yet. */
    ahead_ns = 0;
    leave_position("one.meta", 1, 64, 1);
    ahead_ns = 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* The same, after a check that was longer ago than a reader may be silent. */
    passed_ns = 2 * config.reader_ttl_ns;
    leave_position("one.meta", 1, 64, 0);
    ahead_ns += 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* But at last the reader counts as gone. */
    passed_ns += config.reader_ttl_ns;
    CHECK_EQUAL(live_readers(writer), 0);
    passed_ns = ahead_ns = 0;
    ac_position_close(&position);
    close_writer(writer);
}

TEST(a_clock_that_is_set_back_makes_nobody_live_for_longer) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    ahead_ns = 3600000000000u;
    leave_position("one.meta", 1, 64, 0);
    ac_position_t position;
    hold_position(&position, "one");
    writer->settings.opened_ns -= 2 * AC_HEARTBEAT_MAX_NS;
    ahead_ns = 0;
    CHECK_EQUAL(live_readers(writer), 1);
    passed_ns = config.reader_ttl_ns;
    CHECK_EQUAL(live_readers(writer), 0);
    passed_ns = 0;
    ac_position_close(&position);
    close_writer(writer);
}

TEST_IN_MEMORY(signs_of_life_are_kept_of_as_many_readers_as_there_can_be) {
    ac_liveness_t liveness = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < AC_READERS_MAX + 2; i++) {
            char name[32];
            ac_slot_t slot = {.generation = 1, .heartbeat_ns = ac_clock_ns()};
            snprintf(name, sizeof name, "r%d", i);
            CHECK(ac_liveness_age_ns(&liveness, name, &slot) < 60000000000u);
        }
    }
    CHECK(liveness.count <= AC_READERS_MAX);
    free(liveness.entries);
}

/* Names with a date or a pid in them accumulate. At the limit no new name is accepted; but existing ones, however they
 * came, must not keep a writer from opening, retaining or making room. */
TEST_IN_MEMORY(too_many_readers_keep_only_new_ones_out) {
    ac_writer_config_t config = retaining();
    config.capacity_bytes = 1 << 20;
    ac_writer_t *writer = fill(&config);
    ac_reader_entry_t entry;
    uint64_t lag, live;
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    for (int i = 0; i < AC_READERS_MAX - 1; i++) {
        char name[32];
        snprintf(name, sizeof name, "run-%d.meta", i);
        leave_position(name, 1, 64, 2 * config.reader_ttl_ns);
    }
    ac_reader_free(open_reader(check_path("queue"), "last", AC_START_FIRST));
    ac_reader_config_t late;
    ac_reader_t *reader = NULL;
    ac_reader_defaults(&late);
    late.name = "late";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &late, &reader, &err), err,
                AC_E_TOO_MANY_READERS);
    CHECK(!exists(check_path("queue/readers"), "late.meta"));
    ac_reader_free(open_reader(check_path("queue"), "run-7", AC_START_COMMITTED));

    leave_position("beyond.meta", 1, 64, 2 * config.reader_ttl_ns);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    retain(writer);
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_queue_readers(check_path("queue"), &entry, 1, &err), AC_READERS_MAX + 1);
    close_writer(writer);
    forget_close();
    close_writer(open_writer(check_path("queue"), &config));
    ac_reader_free(open_reader(check_path("queue"), "beyond", AC_START_FIRST));
}

TEST_IN_MEMORY(impossible_positions_are_not_readers) {
    ac_writer_config_t config = retaining();
    config.max_reader_lag = 0;
    ac_writer_t *writer = fill(&config);
    uint64_t lag, live;
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("ahead.meta", 1ull << 40, 64, 0);
    leave_position("wild.meta", 0, 1ull << 63, 0);
    poke(check_path("queue/readers"), "short.meta", 0, "x", 1);
    poke(check_path("queue/readers"), "zero.meta", 0, (uint8_t[80]){0}, 80);
    poke(check_path("queue/readers"), "other.txt", 0, "x", 1);
    CHECK_EQUAL(symlink("one.meta", check_path("queue/readers/link.meta")), 0);
    CHECK_EQUAL(mkfifo(check_path("queue/readers/pipe.meta"), 0600), 0);
    alarm(20);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    alarm(0);
    CHECK_EQUAL(live, 0);
    CHECK_EQUAL(lag, 0);
    close_writer(writer);
}

/* Without a free descriptor the positions cannot be read; this must not look like a queue without
 * readers. */
TEST_IN_MEMORY(readers_that_cannot_be_seen_are_not_forgotten) {
    static const struct {
        int call;
        const char *name_end;
    } faults[] = {{AC_CALL_OPEN, ".meta"},
                  {AC_CALL_READ, NULL},
                  {AC_CALL_LIST, NULL},
                  {AC_CALL_OPEN, "readers"}};
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_FIRST);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        failing_t failing = {
            .call = faults[i].call, .name_end = faults[i].name_end, .error = EMFILE};
        uint32_t first;
        ac_os_set_hook(fail_hook, &failing);
        int rc = ac_writer_retain(writer, &err);
        ac_os_set_hook(NULL, NULL);
        CHECK(failing.failed > 0);
        CHECK_EQUAL(rc, AC_E_SYSTEM);
        CHECK_EQUAL(err.sys_errno, EMFILE);
        segments_left(&first);
        CHECK_EQUAL(first, 0);
    }
    ac_reader_free(reader);
    close_writer(writer);
}

TEST_IN_MEMORY(age_counts_from_the_newest_record_and_a_lying_index_does_not_change_it) {
    ac_writer_config_t config = retaining();
    config.retain_ns = 3600000000000u;
    config.roll_messages = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t now = ac_clock_ns(), hour = 3600000000000u;
    for (uint64_t i = 0; i < 8; i++) /* segments aged 4 h, 2 h, 0 h, 0 h */
        CHECK_OK(ac_writer_append(writer, "x", 1, 0,
                                  now - (i < 2   ? 4
                                         : i < 4 ? 2
                                                 : 0) *
                                            hour,
                                  &err),
                 err);
    uint64_t old = 1;
    poke(check_path("queue"), "000000002.idx", offsetof(ac_index_header_t, max_ts_ns), &old, 8);
    poke(check_path("queue"), "000000002.idx", offsetof(ac_index_header_t, min_ts_ns), &old, 8);
    CHECK_EQUAL(retain(writer), 2);
    remove_in(check_path("queue"), "000000002.idx");
    CHECK_EQUAL(retain(writer), 2);
    close_writer(writer);
}

TEST_IN_MEMORY(the_oldest_go_until_the_total_fits) {
    ac_writer_config_t config = retaining();
    config.retain_bytes = 3 * SEGMENT;
    ac_writer_t *writer = fill(&config);
    uint32_t first;
    retain(writer);
    CHECK_EQUAL(segments_left(&first), 3);
    close_writer(writer);
}

TEST_IN_MEMORY(an_empty_segment_does_not_count_towards_the_total) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    ac_writer_t *writer = fill_and_lose(&config);
    uint32_t first;
    size_t full = segments_left(&first) - EMPTY;
    writer->settings.retain_bytes = full * SEGMENT;
    CHECK_EQUAL(retain(writer), 0);
    writer->settings.retain_bytes = (full - 1) * SEGMENT;
    CHECK_EQUAL(retain(writer), 1);
    /* They are removed when everything before them is gone and there is still too much. */
    append_numbered(writer, 100);
    writer->settings.retain_bytes = 3 * SEGMENT;
    retain(writer);
    CHECK_EQUAL(segments_left(&first), 3);
    close_writer(writer);
}

TEST_IN_MEMORY(nobody_is_behind_by_an_empty_segment) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill_and_lose(&config);
    uint64_t lag, live;
    leave_position("slow.meta", 0, 64, 0);
    ac_position_t slow;
    hold_position(&slow, "slow");
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    uint64_t full = stats.segment - EMPTY;
    CHECK(lag < full * SEGMENT);
    writer->settings.max_reader_lag = (full + 1) * SEGMENT;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 0);
    writer->settings.max_reader_lag = full * SEGMENT - 1;
    CHECK_EQUAL(live_readers(writer), 0);
    ac_position_close(&slow);
    close_writer(writer);
}

static void archive_name(char *out, size_t size, const char *file) {
    time_t now = time(NULL);
    struct tm day;
    gmtime_r(&now, &day);
    snprintf(out, size, "%s/%04d/%02d/%02d/%s", check_path("archive"), day.tm_year + 1900,
             day.tm_mon + 1, day.tm_mday, file);
}

TEST(an_archive_gets_segment_and_index_by_day) {
    char name[600];
    ac_writer_config_t config = retaining();
    config.archive = check_path("archive");
    config.retain_bytes = SEGMENT;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(retain(writer), stats.segment);
    for (uint64_t id = 0; id < stats.segment; id++) {
        char file[AC_NAME_MAX];
        struct stat info;
        ac_segment_name(file, (uint32_t)id, ".q");
        archive_name(name, sizeof name, file);
        CHECK_EQUAL(stat(name, &info), 0);
        CHECK_EQUAL(info.st_size, SEGMENT);
        ac_segment_name(file, (uint32_t)id, ".idx");
        archive_name(name, sizeof name, file);
        CHECK_EQUAL(stat(name, &info), 0);
    }
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.segments_archived, stats.segment);
    close_writer(writer);
}

TEST(a_day_of_an_archive_is_read_like_a_queue) {
    char day[600];
    ac_queue_info_t live, archived;
    ac_writer_config_t config = retaining();
    config.archive = check_path("archive");
    config.retain_bytes = SEGMENT;
    ac_writer_t *writer = fill(&config);
    retain(writer);
    archive_name(day, sizeof day, ".");
    CHECK_OK(ac_queue_info(check_path("queue"), &live, &err), err);
    CHECK_OK(ac_queue_info(day, &archived, &err), err);
    CHECK_EQUAL(archived.queue_id, live.queue_id);
    CHECK_EQUAL(archived.last_segment + 1, live.first_segment);
    CHECK_EQUAL(count_numbered(day), archived.next_seq);
    CHECK(archived.next_seq > 0 && archived.next_seq < 100);
    close_writer(writer);
}

TEST(an_empty_segment_is_archived_with_what_came_before_it) {
    char day[600], archive[600];
    ac_queue_info_t archived;
    ac_writer_config_t config = retaining();
    snprintf(archive, sizeof archive, "%s", check_path("archive"));
    config.retain_for_readers = 0;
    config.archive = archive;
    ac_writer_t *writer = fill_and_lose(&config);
    /* Segments before them are removed first, … */
    writer->settings.retain_bytes = SEGMENT;
    CHECK_EQUAL(retain(writer), stats.segment - EMPTY);
    /* … these in a later round, as the last of their day so far, … */
    writer->settings.retain_ns = 1;
    CHECK_EQUAL(retain(writer), stats.segment);
    archive_name(day, sizeof day, ".");
    CHECK_OK(ac_queue_info(day, &archived, &err), err);
    CHECK_EQUAL(archived.segments, stats.segment);
    CHECK_EQUAL(archived.next_seq, 100);
    CHECK_EQUAL(count_numbered(day), 100);
    /* … and then the later ones. */
    append_numbered(writer, 100);
    CHECK_OK(ac_writer_retain(writer, &err), err);
    CHECK_OK(ac_queue_info(day, &archived, &err), err);
    CHECK_EQUAL(count_numbered(day), archived.next_seq);
    CHECK(archived.next_seq > 100);
    CHECK(!exists(check_path("archive"), "1970"));
    close_writer(writer);
}

TEST(an_empty_segment_with_nothing_before_it_is_archived_today) {
    char name[600], archive[600];
    ac_writer_config_t config = retaining();
    snprintf(archive, sizeof archive, "%s", check_path("archive"));
    config.archive = archive;
    config.retain_ns = 1;
    close_writer(open_writer(check_path("queue"), &config));
    forget_close();
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("lost.meta", 2, 128, 2 * config.reader_ttl_ns);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    CHECK_EQUAL(retain(writer), 3);
    archive_name(name, sizeof name, "000000002.q");
    CHECK(exists("/", name + 1));
    CHECK(!exists(check_path("archive"), "1970"));
    close_writer(writer);
}

TEST(an_archive_of_another_queue_is_refused) {
    char day[600];
    uint64_t stranger = 12345;
    ac_writer_config_t config = retaining();
    config.archive = check_path("archive");
    config.retain_bytes = 3 * SEGMENT;
    ac_writer_t *writer = fill(&config);
    retain(writer);
    archive_name(day, sizeof day, ".");
    poke(day, "control.meta", offsetof(ac_control_t, queue_id), &stranger, 8);
    append_numbered(writer, 100);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_NOT_A_QUEUE);
    CHECK(strstr(err.detail, "of its own"));
    close_writer(writer);
}

TEST(an_archive_never_replaces_what_another_queue_put_there) {
    char name[600], found[6] = {0};
    ac_writer_config_t config = retaining();
    config.archive = check_path("archive");
    config.retain_bytes = SEGMENT;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("archive"), 0700), 0);
    archive_name(name, sizeof name, "000000000.q");
    for (char *slash = name + strlen(check_path("archive")) + 1; (slash = strchr(slash, '/'));
         slash++) {
        *slash = 0;
        CHECK_EQUAL(mkdir(name, 0700), 0);
        *slash = '/';
    }
    poke("/", name + 1, 0, "other", 5);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_SYSTEM);
    CHECK(strstr(err.detail, "of its own"));
    peek("/", name + 1, 0, found, 5);
    CHECK(strcmp(found, "other") == 0);
    CHECK(exists(check_path("queue"), "000000000.q"));
    CHECK_EQUAL(count_numbered(check_path("queue")), 100);
    close_writer(writer);
}

/* The archive is often on another disk: then a move is a copy, and a failure during it leaves the
 * original. */
TEST(across_file_systems_a_segment_is_copied_before_it_is_removed) {
    char other[64] = "/dev/shm/aiochronicle-XXXXXX";
    struct stat here, there;
    if (access("/dev/shm", W_OK) != 0) return;
    CHECK(mkdtemp(other) != NULL);
    CHECK(stat(check_directory, &here) == 0 && stat(other, &there) == 0);
    /* The last two find the copy in the archive and the original still in the queue. */
    static const int calls[] = {AC_CALL_COPY, AC_CALL_WRITE,    AC_CALL_SYNC,
                                AC_CALL_READ, AC_CALL_SYNC_DIR, AC_CALL_UNLINK};
    ac_writer_config_t config = retaining();
    config.archive = other;
    config.retain_bytes = SEGMENT;
    ac_writer_t *writer = fill(&config);
    for (size_t i = 0; here.st_dev != there.st_dev && i < sizeof calls / sizeof *calls; i++) {
        failing_t failing = {
            .call = calls[i], .error = ENOSPC, .skip = calls[i] == AC_CALL_READ ? 2 : 0};
        ac_os_set_hook(fail_hook, &failing);
        int rc = ac_writer_retain(writer, &err);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(rc, AC_E_NO_SPACE);
        CHECK(exists(check_path("queue"), "000000000.q"));
    }
    CHECK_EQUAL(count_numbered(check_path("queue")), 100);
    CHECK_EQUAL(retain(writer), stats.segment);
    CHECK(!exists(check_path("queue"), "000000000.q"));
    CHECK(!exists(check_path("queue"), "000000000.idx"));
    close_writer(writer);
    nftw(other, check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

TEST(a_segment_is_archived_with_its_index_whichever_of_the_two_failed) {
    static const char *const files[] = {"000000000.q", "000000000.idx"};
    char name[600];
    ac_writer_config_t config = retaining();
    config.archive = check_path("archive");
    config.retain_bytes = SEGMENT;
    ac_writer_t *writer = fill(&config);
    for (int i = 0; i < 2; i++) {
        failing_t failing = {.call = AC_CALL_RENAME, .name_end = files[i], .error = EIO};
        ac_os_set_hook(fail_hook, &failing);
        CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_SYSTEM);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(failing.failed, i + 1); /* also that of an index that is created again */
        CHECK(exists(check_path("queue"), "000000000.q"));
    }
    CHECK_EQUAL(retain(writer), stats.segment);
    for (int i = 0; i < 2; i++) {
        archive_name(name, sizeof name, files[i]);
        CHECK(exists("/", name + 1));
        CHECK(!exists(check_path("queue"), files[i]));
    }
    close_writer(writer);
}

TEST(the_housekeeper_retains_by_itself) {
    ac_writer_config_t config = retaining();
    config.inline_housekeeping = 0;
    config.retention_check_ns = 1000000;
    config.retain_bytes = 2 * SEGMENT;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 100);
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    do {
        ac_writer_stats(writer, &stats);
        CHECK(ac_os_monotonic_ns() < deadline);
    } while (stats.segments_deleted < 3);
    close_writer(writer);
}

TEST(a_reader_beats_as_often_as_a_short_ttl_demands) {
    ac_writer_config_t config = retaining();
    config.inline_housekeeping = 0;
    config.reader_ttl_ns = 400000000u;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "idle", AC_START_FIRST);
    ac_reader_entry_t entry;
    uint64_t last_ns = 0;
    int beats = 0;
    for (int i = 0; i < 100; i++) {
        CHECK_EQUAL(ac_queue_readers(check_path("queue"), &entry, 1, &err), 1);
        beats += entry.heartbeat_ns != last_ns;
        last_ns = entry.heartbeat_ns;
        ac_os_sleep_ns(10000000);
    }
    CHECK(beats > 4); /* ten on an idle machine */
    ac_reader_free(reader);
    close_writer(writer);
}

/* ---- positions that a removal relies on are on disk before it ---- */

enum { SEEN_MAX = 256 };
static struct {
    int call;
    ino_t inode;
    char name[64];
} seen[SEEN_MAX];
static int seen_count;

/* Notes syncs and removals in their order. */
static int note_call(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    struct stat info = {0};
    (void)context, (void)offset, (void)length;
    if (call != AC_CALL_SYNC && call != AC_CALL_SYNC_DIR && call != AC_CALL_UNLINK &&
        call != AC_CALL_RENAME)
        return 0;
    CHECK(seen_count < SEEN_MAX);
    if (fd >= 0) CHECK_EQUAL(fstat(fd, &info), 0);
    seen[seen_count].call = call;
    seen[seen_count].inode = info.st_ino;
    snprintf(seen[seen_count++].name, sizeof seen[0].name, "%s", path ? path : "");
    return 0;
}

static ino_t inode_of(const char *name) {
    struct stat info;
    CHECK_EQUAL(stat(check_path(name), &info), 0);
    return info.st_ino;
}

/* Returns how often before the first removal, or in total if nothing was removed. */
static int synced_before_removal(int call, const char *name) {
    int count = 0;
    for (int i = 0; i < seen_count; i++) {
        if (seen[i].call == AC_CALL_UNLINK || seen[i].call == AC_CALL_RENAME) break;
        count += seen[i].call == call && seen[i].inode == inode_of(name);
    }
    return count;
}

static uint32_t retain_noting(ac_writer_t *writer) {
    seen_count = 0;
    ac_os_set_hook(note_call, NULL);
    uint32_t first = retain(writer);
    ac_os_set_hook(NULL, NULL);
    return first;
}

TEST(the_positions_that_let_a_segment_go_are_on_disk_before_it_goes) {
    for (int archive = 0; archive < 2; archive++) {
        ac_writer_config_t config = retaining();
        if (archive) config.archive = check_path("archive");
        ac_writer_t *writer = fill(&config);
        ac_reader_t *one = open_reader(check_path("queue"), "one", AC_START_FIRST);
        ac_reader_t *two = open_reader(check_path("queue"), "two", AC_START_FIRST);
        commit_at(one, 2);
        commit_at(two, 2);
        CHECK_EQUAL(retain_noting(writer), 2);
        CHECK_EQUAL(synced_before_removal(AC_CALL_SYNC, "queue/readers/one.meta"), 1);
        CHECK_EQUAL(synced_before_removal(AC_CALL_SYNC, "queue/readers/two.meta"), 1);
        CHECK(synced_before_removal(AC_CALL_SYNC_DIR, "queue/readers") >= 1);
        ac_reader_free(one);
        ac_reader_free(two);
        close_writer(writer);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

TEST(a_position_that_did_not_change_is_not_synced_again) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("one.meta", 3, 64, 0);
    leave_position("two.meta", 2, 64, 0);
    CHECK_EQUAL(retain_noting(writer), 2);
    leave_position("two.meta", 3, 64, 1);
    CHECK_EQUAL(retain_noting(writer), 3);
    CHECK_EQUAL(synced_before_removal(AC_CALL_SYNC, "queue/readers/one.meta"), 0);
    CHECK_EQUAL(synced_before_removal(AC_CALL_SYNC, "queue/readers/two.meta"), 1);
    CHECK_EQUAL(retain_noting(writer), 3);
    CHECK_EQUAL(seen_count, 0);
    close_writer(writer);
}

/* The hook fails syncs of this file or directory. */
static int fail_sync_of(void *context, int call, const char *path, int fd, uint64_t offset,
                        uint64_t length) {
    struct stat info;
    (void)path, (void)offset, (void)length;
    if ((call != AC_CALL_SYNC && call != AC_CALL_SYNC_DIR) || fstat(fd, &info) != 0) return 0;
    return info.st_ino == *(ino_t *)context ? EIO : 0;
}

TEST(nothing_goes_if_a_position_cannot_be_made_durable) {
    static const char *const names[] = {"queue/readers/one.meta", "queue/readers"};
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    ac_reader_t *reader = open_reader(check_path("queue"), "one", AC_START_FIRST);
    uint32_t first;
    for (int i = 0; i < 2; i++) {
        commit_at(reader, 2);
        ino_t inode = inode_of(names[i]);
        ac_os_set_hook(fail_sync_of, &inode);
        int rc = ac_writer_retain(writer, &err);
        ac_os_set_hook(NULL, NULL);
        CHECK_FAILS(rc, err, AC_E_SYSTEM);
        CHECK(strstr(err.path, names[i]));
        segments_left(&first);
        CHECK_EQUAL(first, 0);
        /* A new name does not begin after the kept segments, either. */
        CHECK_EQUAL(ac_load_relaxed_u64(&writer->control->removing), 0);
    }
    /* The kernel reports a failure once and then considers the same pages clean: only a new commit
     * helps. */
    ino_t inode = inode_of(names[0]);
    commit_at(reader, 2);
    ac_os_set_hook(fail_sync_of, &inode);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    CHECK_FAILS(ac_writer_retain(writer, &err), err, AC_E_SYSTEM);
    segments_left(&first);
    CHECK_EQUAL(first, 0);
    commit_at(reader, 2);
    CHECK_EQUAL(retain(writer), 2);
    ac_reader_free(reader);
    close_writer(writer);
}

/* ---- unreadable segments and positions ---- */

static int logged(const char *text) {
    ac_log_entry_t entry;
    int count = 0;
    while (ac_log_next(&entry))
        count += entry.level >= AC_LOG_WARNING && strstr(entry.text, text) != NULL;
    return count;
}

TEST(a_segment_that_cannot_be_read_has_no_age_and_no_size) {
    static const struct {
        uint64_t offset;
        const char *bytes;
        size_t length;
    } damages[] = {{64 + 16, "\377\377\377\377\377\377\377\377", 8}, /* first record: its time */
                   {64, "\0\0\0\0", 4},                              /* … its commit word */
                   {64 + 28, "\1\2\3\4", 4}};
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        ac_writer_config_t config = retaining();
        config.retain_for_readers = 0;
        config.retain_ns = 30ull * DAY_S * 1000000000u;
        ac_writer_t *writer = fill(&config);
        poke(check_path("queue"), "000000000.q", damages[i].offset, damages[i].bytes,
             damages[i].length);
        logged("");
        CHECK_EQUAL(retain(writer), 0);
        writer->settings.retain_bytes = SEGMENT;
        CHECK_EQUAL(retain(writer), 0);
        CHECK_EQUAL(retain(writer), 0);
        CHECK_EQUAL(logged("cannot be read"), 1);
        /* All readers have read it. */
        writer->settings.retain_bytes = writer->settings.retain_ns = 0;
        writer->settings.retain_for_readers = 1;
        ac_reader_t *reader = open_reader(check_path("queue"), "one", AC_START_LAST);
        commit_at(reader, 2);
        CHECK_EQUAL(retain(writer), 2);
        ac_reader_free(reader);
        close_writer(writer);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

TEST(a_segment_that_is_cut_short_or_has_no_header_does_not_go_by_age) {
    for (int size = 0; size < 3; size++) {
        ac_writer_config_t config = retaining();
        config.retain_for_readers = 0;
        config.retain_ns = 1;
        ac_writer_t *writer = fill(&config);
        CHECK_EQUAL(truncate(check_path("queue/000000000.q"), size * 64), 0);
        logged("");
        CHECK_EQUAL(retain(writer), 0);
        CHECK_EQUAL(retain(writer), 0);
        CHECK_EQUAL(logged("cannot be read"), 1);
        close_writer(writer);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* ---- the readers that retention waits for ---- */

TEST(by_default_a_reader_that_is_away_keeps_its_data) {
    ac_writer_config_t config = retaining();
    ac_writer_config_t defaults = small_queue(SEGMENT);
    config.reader_ttl_ns = defaults.reader_ttl_ns;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("away.meta", 1, 64, 365ull * DAY_S * 1000000000u);
    CHECK_EQUAL(retain(writer), 1);
    passed_ns = 365ull * DAY_S * 1000000000u;
    CHECK_EQUAL(retain(writer), 1);
    passed_ns = 0;
    close_writer(writer);
}

TEST(a_limit_that_was_chosen_ends_the_wait_for_who_is_away_and_is_logged) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    config.retain_bytes = 3 * SEGMENT;
    config.reader_ttl_ns = 0;
    ac_writer_t *writer = fill(&config);
    uint32_t first;
    ac_reader_t *reader = open_reader(check_path("queue"), "risk", AC_START_FIRST);
    commit_at(reader, 1);
    logged("");
    CHECK_EQUAL(retain(writer), 1); /* it is open, and keeps what it has not read */
    CHECK_EQUAL(logged(""), 0);
    ac_reader_free(reader);
    retain(writer);
    CHECK_EQUAL(segments_left(&first), 3);
    CHECK_EQUAL(logged("'risk'"), 1); /* once, not for each segment */
    append_numbered(writer, 100);
    retain(writer);
    CHECK_EQUAL(logged("'risk'"), 0);
    close_writer(writer);
}

TEST(within_a_chosen_time_a_reader_that_is_away_is_waited_for_whatever_its_data_takes) {
    ac_writer_config_t config = retaining();
    config.retain_for_readers = 0;
    config.retain_bytes = config.retain_ns = 1;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("risk.meta", 2, 64, 0);
    CHECK_EQUAL(retain(writer), 2);
    passed_ns = config.reader_ttl_ns + 1;
    CHECK_EQUAL(retain(writer), stats.segment);
    passed_ns = 0;
    close_writer(writer);
}

TEST(the_log_names_the_limit_and_the_reader_that_lost_by_it) {
    ac_writer_config_t config = retaining();
    config.reader_ttl_ns = 1000000000u;
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("old.meta", 0, 64, 2000000000u);
    leave_position("new.meta", 2, 64, 0);
    logged("");
    CHECK_EQUAL(retain(writer), 2);
    ac_log_entry_t entry;
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(strstr(entry.text, "'old'") && strstr(entry.text, "reader_ttl"));
    CHECK_EQUAL(ac_log_next(&entry), 0);
    close_writer(writer);
}

TEST(a_reader_that_is_closed_does_not_hold_the_writer_up) {
    ac_writer_config_t config = retaining();
    config.capacity_bytes = SEGMENT;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "risk", AC_START_FIRST);
    uint8_t payload[64] = {0};
    int64_t seq;
    while ((seq = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err)) >= 0)
        ;
    CHECK_FAILS((int)seq, err, AC_E_FULL);
    char who[64];
    snprintf(who, sizeof who, "reader 'risk' (pid %d, ", (int)getpid());
    CHECK(strstr(err.detail, who));
    CHECK(strstr(err.detail, "4.0 KiB"));
    ac_reader_free(reader);
    append_numbered(writer, 10);
    close_writer(writer);
}

/* The hook runs in the housekeeper's thread as well. */
static _Atomic int refusals;
static int refuse_position(void *context, int call, const char *path, int fd, uint64_t offset,
                           uint64_t length) {
    (void)context, (void)fd, (void)offset, (void)length;
    if (call != AC_CALL_OPEN || !path || strcmp(path, "r.meta") != 0) return 0;
    refusals++;
    return EACCES;
}

TEST(a_position_that_may_not_be_read_is_named_in_the_log_once) {
    ac_writer_config_t config = retaining();
    config.inline_housekeeping = 0;
    config.retention_check_ns = 1000000;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_FIRST);
    logged("");
    ac_os_set_hook(refuse_position, NULL);
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    while (refusals < 5)
        CHECK(ac_os_monotonic_ns() < deadline);
    ac_os_set_hook(NULL, NULL);
    ac_reader_free(reader);
    close_writer(writer);
    ac_log_entry_t entry;
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_WARNING);
    CHECK(strstr(entry.path, "queue/readers/r.meta") && strstr(entry.text, "retention"));
    while (ac_log_next(&entry))
        CHECK_EQUAL(entry.level, AC_LOG_INFO); /* it works again */
}
