#include "retention.h"

#include "control.h"
#include "position.h"
#include "queue.h"
#include "seekindex.h"
#include "writer.h"

enum { SEGMENT = 4096, DAY_S = 86400 };

static ac_error_t err;
static ac_writer_stats_t stats;

/* Both clocks as the tests want them: how far the time of day is ahead, and how much time has passed. */
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

/* A position as a reader left it that long ago. */
static void leave_position(const char *name, uint64_t segment, uint64_t offset, uint64_t age_ns) {
    ac_slot_t slots[2] = {{.segment = segment,
                           .offset = offset,
                           .heartbeat_ns = ac_os_now_ns() - age_ns,
                           .generation = 1}};
    slots[0].checksum = ac_checksum(&slots[0], 32);
    poke(check_path("queue/readers"), name, 0, slots, sizeof slots);
}

enum { EMPTY = 10 };

/* A writer behind that many empty segments, as recovery leaves them for a reader that had committed what a
 * power cut then took; that reader does not come back. */
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
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    /* Less than two segments: what the roll left unused is not between them, nor is a header. */
    CHECK(lag > stats.offset && lag < SEGMENT - 64 + stats.offset - 64);
    CHECK_EQUAL(retain(writer), stats.segment - 1);
    close_writer(writer);
}

TEST(a_reader_that_could_not_know_how_often_to_beat_is_live_while_it_is_open) {
    ac_writer_config_t config = retaining();
    config.reader_ttl_ns = 60000000000u;
    ac_directory_t dir;
    ac_position_t position;
    uint64_t lag, live;
    int created;
    ac_writer_free(fill(&config));
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    leave_position("sleeper.meta", 0, 64, 61000000000u);
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 0, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(ac_position_open(&position, &dir, fd, "sleeper", 0, 64, &created, &err), err);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    CHECK_EQUAL(writer->control->reader_ttl_ns, config.reader_ttl_ns);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    CHECK_EQUAL(retain(writer), 0);
    /* That it has committed since does not mean that it knows, … */
    ac_position_store(&position, 0, 64, ac_clock_ns());
    writer->config.reader_ttl_ns = 0;
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    CHECK_EQUAL(retain(writer), 0);
    /* … but some time later it must. */
    writer->config.opened_ns -= 2 * AC_HEARTBEAT_MAX_NS;
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    writer->config.opened_ns += 2 * AC_HEARTBEAT_MAX_NS;
    ac_position_close(&position);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 0);
    ac_os_close(fd);
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
    writer->config.opened_ns -= 2 * AC_HEARTBEAT_MAX_NS;
    CHECK_EQUAL(retain(writer), 1);
    ahead_ns = 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* A sign of life from before the jump, that nobody has looked at yet. */
    ahead_ns = 0;
    leave_position("one.meta", 1, 64, 1);
    ahead_ns = 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* The same, after a look that was longer ago than a reader may be silent. */
    passed_ns = 2 * config.reader_ttl_ns;
    leave_position("one.meta", 1, 64, 0);
    ahead_ns += 3600000000000u;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 1);
    /* But it does not live for ever. */
    passed_ns += config.reader_ttl_ns;
    CHECK_EQUAL(live_readers(writer), 0);
    passed_ns = ahead_ns = 0;
    close_writer(writer);
}

TEST(a_clock_that_is_set_back_makes_nobody_live_for_longer) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill(&config);
    CHECK_EQUAL(mkdir(check_path("queue/readers"), 0700), 0);
    ahead_ns = 3600000000000u;
    leave_position("one.meta", 1, 64, 0);
    ahead_ns = 0;
    CHECK_EQUAL(live_readers(writer), 1);
    passed_ns = config.reader_ttl_ns;
    CHECK_EQUAL(live_readers(writer), 0);
    passed_ns = 0;
    close_writer(writer);
}

TEST_IN_MEMORY(signs_of_life_are_kept_of_as_many_readers_as_there_can_be) {
    ac_signs_t signs = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < AC_READERS_MAX + 2; i++) {
            char name[32];
            ac_slot_t slot = {.generation = 1, .heartbeat_ns = ac_clock_ns()};
            snprintf(name, sizeof name, "r%d", i);
            CHECK(ac_sign_age_ns(&signs, name, &slot) < 60000000000u);
        }
    }
    CHECK(signs.count <= AC_READERS_MAX);
    free(signs.signs);
}

/* Names with a date or a pid in them add up. No new one is let in then; but what is there already, by whatever
 * means it came, must not keep a writer from opening, retaining or making room. */
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
    CHECK(live >= 1);
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

/* Without a free descriptor the positions cannot be read; that must not look like nobody being there. */
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
    writer->config.retain_bytes = full * SEGMENT;
    CHECK_EQUAL(retain(writer), 0);
    writer->config.retain_bytes = (full - 1) * SEGMENT;
    CHECK_EQUAL(retain(writer), 1);
    /* They go when all before them is gone, and there is still too much. */
    append_numbered(writer, 100);
    writer->config.retain_bytes = 3 * SEGMENT;
    retain(writer);
    CHECK_EQUAL(segments_left(&first), 3);
    close_writer(writer);
}

TEST_IN_MEMORY(nobody_is_behind_by_an_empty_segment) {
    ac_writer_config_t config = retaining();
    ac_writer_t *writer = fill_and_lose(&config);
    uint64_t lag, live;
    leave_position("slow.meta", 0, 64, 0);
    CHECK_OK(ac_writer_reader_lag(writer, &lag, &live, &err), err);
    CHECK_EQUAL(live, 1);
    uint64_t full = stats.segment - EMPTY;
    CHECK(lag < full * SEGMENT);
    writer->config.max_reader_lag = (full + 1) * SEGMENT;
    CHECK_EQUAL(live_readers(writer), 1);
    CHECK_EQUAL(retain(writer), 0);
    writer->config.max_reader_lag = full * SEGMENT - 1;
    CHECK_EQUAL(live_readers(writer), 0);
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
    /* What is before them goes first, … */
    writer->config.retain_bytes = SEGMENT;
    CHECK_EQUAL(retain(writer), stats.segment - EMPTY);
    /* … they in a later round, as the last of their day so far, … */
    writer->config.retain_ns = 1;
    CHECK_EQUAL(retain(writer), stats.segment);
    archive_name(day, sizeof day, ".");
    CHECK_OK(ac_queue_info(day, &archived, &err), err);
    CHECK_EQUAL(archived.segments, stats.segment);
    CHECK_EQUAL(archived.next_seq, 100);
    CHECK_EQUAL(count_numbered(day), 100);
    /* … and what follows them behind them. */
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

/* The archive is often another disk: then moving is copying, and a failure on the way leaves the original. */
TEST(across_file_systems_a_segment_is_copied_before_it_is_removed) {
    char other[64] = "/dev/shm/aiochronicle-XXXXXX";
    struct stat here, there;
    if (access("/dev/shm", W_OK) != 0) return;
    CHECK(mkdtemp(other) != NULL);
    CHECK(stat(check_directory, &here) == 0 && stat(other, &there) == 0);
    /* The last two find the copy in the archive, and the original in its place. */
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
        CHECK_EQUAL(failing.failed, 1);
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
    CHECK(beats > 4); /* ten, on a machine with nothing else to do */
    ac_reader_free(reader);
    close_writer(writer);
}
