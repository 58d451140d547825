/* index.meta, the durable mark: it keeps recovery from cutting off what is damaged later, so it must be on disk
 * itself. Tests when it is synced, when its sync is put off, and what happens if the sync fails. */
#include "log.h"
#include "writer.h"

#include "queue.h"
#include "recovery.h"

enum { SEGMENT = 16 << 10 };

static ac_error_t err;
static ac_writer_stats_t stats;
static ac_log_entry_t entry;

/* Returns whether an fd is of the file whose name ends like this. */
static int is_file(int fd, const char *name_end) {
    char link[64], path[1400];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t want = strlen(name_end);
    if (fd < 0 || length < (ssize_t)want) return 0;
    path[length] = 0;
    return strcmp(path + (size_t)length - want, name_end) == 0;
}

/* Counts the syncs of one file and fails them with an errno. Several threads may call this at once. */
typedef struct watched {
    const char *name_end;
    int error;
    uint32_t syncs;
    uint32_t segment_syncs; /* those of segments */
} watched_t;

static int watch_syncs(void *context, int call, const char *path, int fd, uint64_t offset,
                       uint64_t length) {
    watched_t *watched = context;
    (void)path;
    (void)offset;
    (void)length;
    if (call != AC_CALL_SYNC && call != AC_CALL_SYNC_MAP) return 0;
    if (is_file(fd, ".q")) ac_fetch_add_seq_cst_u32(&watched->segment_syncs, 1);
    if (!is_file(fd, watched->name_end)) return 0;
    ac_fetch_add_seq_cst_u32(&watched->syncs, 1);
    return watched->error;
}

static watched_t watched;

static void watch(const char *name_end, int error) {
    watched = (watched_t){.name_end = name_end, .error = error};
    ac_os_set_hook(watch_syncs, &watched);
}

/* Returns how often the file was synced since watch. */
static int seen(void) {
    ac_os_set_hook(NULL, NULL);
    return (int)watched.syncs;
}

static ac_durable_t mark_of(const char *path) {
    ac_durable_t position;
    peek(path, "index.meta", 0, &position, sizeof position);
    return position;
}

static ac_writer_t *open_by(int flush_mode) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = flush_mode;
    return open_writer(check_path("queue"), &config);
}

TEST(opening_syncs_the_mark) {
    watch("/index.meta", 0);
    ac_writer_t *writer = open_by(AC_FLUSH_ASYNC);
    CHECK_EQUAL(seen(), 1);
    CHECK_EQUAL(mark_of(check_path("queue")).offset, AC_SEGMENT_DATA);
    watch("/index.meta", 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 0);
    CHECK_EQUAL(seen(), 0); /* and there is no background work */
    append_numbered(writer, 3);
    copy_queue(check_path("queue"), check_path("killed"));
    close_writer(writer);
    /* What recovery has made durable counts as durable from now on. */
    ac_writer_config_t config = small_queue(SEGMENT);
    watch("/index.meta", 0);
    writer = open_writer(check_path("killed"), &config);
    CHECK_EQUAL(seen(), 1);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(mark_of(check_path("killed")).offset, stats.offset);
    CHECK(stats.offset > AC_SEGMENT_DATA);
    close_writer(writer);
}

TEST(opening_fails_if_the_mark_cannot_be_synced) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = NULL;
    watch("/index.meta", EIO);
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_SYSTEM);
    CHECK_EQUAL(seen(), 1);
    CHECK_EQUAL(err.sys_errno, EIO);
    CHECK(strstr(err.path, "/index.meta") != NULL);
    close_writer(open_writer(check_path("queue"), &config));
}

TEST(a_flush_syncs_the_mark_once_it_has_moved) {
    ac_writer_t *writer = open_by(AC_FLUSH_ASYNC);
    for (int i = 1; i < 4; i++) {
        append_numbered(writer, 2);
        watch("/index.meta", 0);
        CHECK_EQUAL(ac_writer_flush(writer, &err), 2 * i);
        CHECK_EQUAL(seen(), 1);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(mark_of(check_path("queue")).offset, stats.offset);
        watch("/index.meta", 0);
        CHECK_EQUAL(ac_writer_flush(writer, &err), 2 * i);
        CHECK_EQUAL(seen(), 0);
    }
    close_writer(writer);
}

TEST(each_segment_that_is_sealed_has_the_mark_synced) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2; /* rolls leave segments to be sealed */
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 250);
    ac_writer_stats(writer, &stats);
    CHECK(stats.rolls >= 3);
    for (uint64_t segment = 0; segment < stats.rolls; segment++) {
        watch("/index.meta", 0);
        CHECK_EQUAL(ac_writer_seal_next(writer, &err), 1);
        CHECK_EQUAL(seen(), 1);
        CHECK_EQUAL(mark_of(check_path("queue")).segment, segment);
        CHECK(mark_of(check_path("queue")).offset > AC_SEGMENT_DATA);
    }
    CHECK_EQUAL(ac_writer_seal_next(writer, &err), 0);
    close_writer(writer);
}

TEST(an_append_in_sync_mode_moves_the_mark_and_leaves_its_sync_to_a_flush) {
    ac_writer_t *writer = open_by(AC_FLUSH_SYNC);
    static const ac_slice_t items[] = {{"a", 1}, {"b", 1}};
    void *room;
    watch("/index.meta", 0);
    append_numbered(writer, 3);
    CHECK_OK(ac_writer_append_many(writer, items, 2, 0, NULL, &err), err);
    CHECK_OK(ac_writer_reserve(writer, 10, &room, &err), err);
    CHECK_OK(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), err);
    CHECK_EQUAL(seen(), 0);
    CHECK_EQUAL(watched.segment_syncs, 5);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.durable_seq, 6);
    CHECK_EQUAL(mark_of(check_path("queue")).offset, stats.offset);
    watch("/index.meta", 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 6);
    CHECK_EQUAL(seen(), 1);
    CHECK_EQUAL(watched.segment_syncs, 0);
    close_writer(writer);
}

enum { WRITERS = 3 };

static void open_several(ac_writer_t **writers, int flush_mode, int count) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = flush_mode;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "queue%d", i);
        writers[i] = open_writer(check_path(name), &config);
        append_numbered(writers[i], i + 1);
    }
}

/* A single file is synced directly, several at once with io_uring or with threads. */
TEST(a_flush_of_several_writers_syncs_the_mark_of_each) {
    ac_writer_t *writers[WRITERS];
    int64_t results[WRITERS];
    ac_error_t errors[WRITERS];
    for (int mode = AC_FLUSH_ASYNC; mode <= AC_FLUSH_SYNC; mode++)
        for (int count = 1; count <= WRITERS; count += WRITERS - 1) {
            open_several(writers, mode, count);
            watch("/index.meta", 0);
            CHECK_EQUAL(ac_writers_flush(writers, (size_t)count, results, errors), 0);
            CHECK_EQUAL(seen(), count);
            watch("/index.meta", 0);
            CHECK_EQUAL(ac_writers_flush(writers, (size_t)count, results, errors), 0);
            CHECK_EQUAL(seen(), 0);
            for (int i = 0; i < count; i++) {
                char name[32];
                snprintf(name, sizeof name, "queue%d", i);
                ac_writer_stats(writers[i], &stats);
                CHECK_EQUAL(results[i], i + 1);
                CHECK_EQUAL(mark_of(check_path(name)).offset, stats.offset);
                close_writer(writers[i]);
                nftw(check_path(name), check_remove, 16, FTW_DEPTH | FTW_PHYS);
            }
        }
}

static void check_poisoned(ac_writer_t *writer) {
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_POISONED);
    CHECK_EQUAL(err.sys_errno, EIO);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_POISONED);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.sync_errors, 1);
    CHECK(strstr(stats.last_error, "index.meta") != NULL);
    CHECK_FAILS(ac_writer_close(writer, &err), err, AC_E_POISONED);
    ac_writer_free(writer);
}

TEST(a_mark_that_a_flush_cannot_sync_poisons_the_writer) {
    for (int mode = AC_FLUSH_ASYNC; mode <= AC_FLUSH_SYNC; mode++) {
        ac_writer_t *writer = open_by(mode);
        append_numbered(writer, 3);
        watch("/index.meta", EIO);
        CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_SYSTEM);
        CHECK_EQUAL(seen(), 1);
        CHECK_EQUAL(err.sys_errno, EIO);
        CHECK(strstr(err.path, "/index.meta") != NULL);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.durable_seq, mode == AC_FLUSH_SYNC ? 3 : 0);
        check_poisoned(writer);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

TEST(a_mark_that_a_flush_of_several_cannot_sync_poisons_its_own_writer_only) {
    for (int mode = AC_FLUSH_ASYNC; mode <= AC_FLUSH_SYNC; mode++) {
        ac_writer_t *writers[WRITERS];
        int64_t results[WRITERS];
        ac_error_t errors[WRITERS];
        open_several(writers, mode, WRITERS);
        watch("/queue1/index.meta", EIO);
        CHECK_EQUAL(ac_writers_flush(writers, WRITERS, results, errors), 1);
        CHECK_EQUAL(seen(), 1);
        CHECK_FAILS(results[1], errors[1], AC_E_SYSTEM);
        check_poisoned(writers[1]);
        for (int i = 0; i < WRITERS; i += 2) {
            CHECK_EQUAL(results[i], i + 1);
            CHECK_OK(ac_writer_append(writers[i], "x", 1, 0, AC_NOW, &err), err);
            close_writer(writers[i]);
        }
        for (int i = 0; i < WRITERS; i++) {
            char name[32];
            snprintf(name, sizeof name, "queue%d", i);
            nftw(check_path(name), check_remove, 16, FTW_DEPTH | FTW_PHYS);
        }
    }
}

TEST(a_mark_that_cannot_be_synced_when_a_segment_is_sealed_poisons_the_writer) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 150);
    watch("/index.meta", EIO);
    CHECK_FAILS(ac_writer_seal_next(writer, &err), err, AC_E_SYSTEM);
    CHECK_EQUAL(seen(), 1);
    CHECK(!exists(check_path("queue"), "000000000.idx")); /* recovery would take it for finished */
    check_poisoned(writer);
}

/* ---- without a flush ---- */

static ac_writer_t *open_in_background(int flush_mode) {
    while (ac_log_next(&entry))
        continue;
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    config.flush_mode = flush_mode;
    config.write_back_ns = 1;
    return open_writer(check_path("queue"), &config);
}

static void await(uint32_t *word, uint32_t least) {
    uint64_t deadline = ac_os_monotonic_ns() + 30000000000u;
    while (ac_load_acquire_u32(word) < least) {
        CHECK(ac_os_monotonic_ns() < deadline);
        ac_os_sleep_ns(1000000);
    }
}

TEST(what_is_appended_in_async_mode_becomes_durable_though_nobody_flushes) {
    ac_writer_t *writer = open_in_background(AC_FLUSH_ASYNC);
    watch("/index.meta", 0);
    append_numbered(writer, 1); /* a single record: several might be synced separately */
    await(&watched.syncs, 1);
    uint64_t deadline = ac_os_monotonic_ns() + 30000000000u;
    do {
        ac_writer_stats(writer, &stats);
        CHECK(ac_os_monotonic_ns() < deadline);
    } while (stats.durable_seq < 1);
    CHECK_EQUAL(mark_of(check_path("queue")).offset, stats.offset);
    CHECK(watched.segment_syncs > 0);
    CHECK_EQUAL(seen(), 1);
    close_writer(writer);
}

/* A record says itself that everything before it is on disk. If it is the only one to be flushed, the mark need not be
 * on disk before the flush returns: nothing after it could be cut off. */
TEST(a_flush_of_one_message_after_another_leaves_the_mark_for_later) {
    ac_writer_t *writer = open_by(AC_FLUSH_ASYNC);
    append_numbered(writer, 1);
    watch("/index.meta", 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 1);
    CHECK_EQUAL(seen(), 1);
    for (int i = 2; i < 6; i++) {
        append_numbered(writer, 1);
        watch("/index.meta", 0);
        CHECK_EQUAL(ac_writer_flush(writer, &err), i);
        CHECK_EQUAL(watched.segment_syncs, 1);
        CHECK_EQUAL(seen(), 0);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(mark_of(check_path("queue")).offset, stats.offset);
        CHECK_EQUAL(ac_writer_find_write_back(writer, 1), AC_WRITE_BACK_MARK);
    }
    /* A second flush syncs it. */
    watch("/index.meta", 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 5);
    CHECK_EQUAL(seen(), 1);
    /* Of two, the second could be cut off together with a damaged first. */
    append_numbered(writer, 2);
    watch("/index.meta", 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 7);
    CHECK_EQUAL(seen(), 1);
    close_writer(writer);
}

/* The power is cut right after the flush, with an old mark on the disk, and an older record is damaged. */
TEST(messages_flushed_one_by_one_are_not_cut_off_with_a_damaged_one) {
    for (int damaged = 0; damaged < 5; damaged++) {
        uint8_t noise[8] = {0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee};
        uint64_t offsets[8];
        ac_recovery_t report;
        ac_writer_t *writer = open_by(AC_FLUSH_ASYNC);
        ac_durable_t mark = mark_of(check_path("queue"));
        for (int i = 0; i < 6; i++) {
            ac_writer_stats(writer, &stats);
            offsets[i] = stats.offset;
            append_numbered(writer, 1);
            CHECK_EQUAL(ac_writer_flush(writer, &err), i + 1);
        }
        copy_queue(check_path("queue"), check_path("cut"));
        close_writer(writer);
        /* The first flush had to sync it. */
        mark.offset = offsets[1];
        poke(check_path("cut"), "index.meta", 0, &mark, sizeof mark);
        poke(check_path("cut"), "000000000.q", offsets[damaged] + 8, noise, sizeof noise);
        ac_writer_config_t config = small_queue(SEGMENT);
        writer = open_writer(check_path("cut"), &config);
        ac_writer_recovery(writer, &report);
        CHECK_EQUAL(report.corrupt_records, 1);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.next_seq, 6);
        close_writer(writer);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
        nftw(check_path("cut"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

TEST(it_stays_as_it_is_for_as_long_as_was_agreed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.write_back_ns = 15000000000u;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t now = 1000000000u;
    CHECK_EQUAL(ac_writer_find_write_back(writer, now), 0);
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_writer_find_write_back(writer, now), 0);
    CHECK_EQUAL(ac_writer_find_write_back(writer, now + config.write_back_ns - 1), 0);
    CHECK_EQUAL(ac_writer_find_write_back(writer, now + config.write_back_ns), AC_WRITE_BACK_ALL);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 1);
    CHECK_EQUAL(ac_writer_find_write_back(writer, now + 2 * config.write_back_ns), 0);
    append_numbered(writer, 1); /* the time of this one begins when it is seen */
    CHECK_EQUAL(ac_writer_find_write_back(writer, now + 4 * config.write_back_ns), 0);
    close_writer(writer);
}

TEST(the_mark_of_sync_mode_is_synced_in_the_background) {
    ac_writer_t *writer = open_in_background(AC_FLUSH_SYNC);
    watch("/index.meta", 0);
    append_numbered(writer, 1);
    await(&watched.syncs, 1);
    ac_os_set_hook(NULL, NULL);
    close_writer(writer);
}

static void check_background_failure(int flush_mode, const char *file) {
    char path[1200];
    ac_writer_t *writer = open_in_background(flush_mode);
    watch(file, EIO);
    append_numbered(writer, 1);
    await(&watched.syncs, 1);
    await(&writer->poisoned, 1);
    CHECK_EQUAL(ac_log_wait(20000000000u), 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_ERROR);
    snprintf(path, sizeof path, "%s%s", check_path("queue"), file);
    CHECK(strcmp(entry.path, path) == 0);
    CHECK(strstr(entry.text, "syncing failed") != NULL);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_POISONED);
    CHECK_EQUAL(err.sys_errno, EIO);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.sync_errors, 1);
    CHECK_EQUAL(stats.durable_seq, flush_mode == AC_FLUSH_SYNC ? 1 : 0);
    CHECK_FAILS(ac_writer_close(writer, &err), err, AC_E_POISONED);
    ac_writer_free(writer);
}

TEST(records_that_cannot_be_synced_in_the_background_poison_the_writer_and_are_logged) {
    check_background_failure(AC_FLUSH_ASYNC, "/000000000.q");
}

TEST(a_mark_that_cannot_be_synced_in_the_background_poisons_the_writer_and_is_logged) {
    check_background_failure(AC_FLUSH_ASYNC, "/index.meta");
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    check_background_failure(AC_FLUSH_SYNC, "/index.meta");
}
