/* Durability: what a flush promises, what sealing a segment adds to it, and what a failed sync takes away. */
#include "writer.h"

#include "queue.h"
#include "recovery.h"

#include <pthread.h>

enum { SEGMENT = 16 << 10 };

static ac_error_t err;
static ac_writer_stats_t stats;

static ac_writer_t *open_small(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    return open_writer(check_path("queue"), &config);
}

static ac_durable_t durable(void) {
    ac_durable_t position;
    peek(check_path("queue"), "index.meta", 0, &position, sizeof position);
    return position;
}

TEST(a_flush_moves_index_meta_to_the_end_and_sealing_does_not_take_it_back) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 1;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    writer->config.inline_housekeeping = 0; /* so that rolls leave segments to be sealed … */
    ac_housekeeper_remove(&writer->disk);   /* … and no thread seals them */
    append_numbered(writer, 150);
    CHECK(writer->sealing != NULL);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 150);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(durable().segment, stats.segment);
    CHECK_EQUAL(durable().offset, stats.offset);
    CHECK(stats.segment > 1);
    CHECK_OK(ac_writer_seal_pending(writer, &err), err);
    CHECK_EQUAL(durable().segment, stats.segment);
    CHECK_EQUAL(durable().offset, stats.offset);
    CHECK_OK(ac_housekeeper_add(&writer->disk), err);
    close_writer(writer);
}

static struct {
    ac_writer_t *writer;
    int indexes, synced, flushed;
} sealed;

/* A flush while the index of a segment is being written; the seal has been synced by then. */
static int flush_meanwhile(void *context, int call, const char *path, int fd, uint64_t offset,
                           uint64_t length) {
    (void)context;
    (void)fd;
    (void)offset;
    sealed.synced += call == AC_CALL_SYNC_MAP && length == AC_SEGMENT_DATA;
    if (call != AC_CALL_OPEN || !path || !strstr(path, ".idx")) return 0;
    sealed.indexes++;
    if (sealed.indexes > 1) return 0; /* one is enough, and its own calls come here, too */
    CHECK_EQUAL(sealed.synced, 1);
    CHECK_EQUAL(pthread_mutex_trylock(&sealed.writer->sync_mutex), 0);
    pthread_mutex_unlock(&sealed.writer->sync_mutex);
    sealed.flushed = (int)ac_writer_flush(sealed.writer, &err);
    return 0;
}

TEST(a_flush_does_not_wait_for_the_index_of_a_segment_that_is_sealed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    memset(&sealed, 0, sizeof sealed);
    sealed.writer = writer;
    append_numbered(writer, 250);
    ac_os_set_hook(flush_meanwhile, NULL);
    CHECK_EQUAL(ac_writer_seal_next(writer, &err), 1);
    CHECK_EQUAL(sealed.flushed, 250);
    CHECK(writer->sealing != NULL); /* the flush has synced it, but it has no index yet */
    CHECK_OK(ac_writer_seal_pending(writer, &err), err);
    ac_os_set_hook(NULL, NULL);
    ac_writer_stats(writer, &stats);
    CHECK(stats.seals >= 2);
    CHECK_EQUAL(stats.seals, stats.rolls);
    CHECK_EQUAL(stats.seal_errors, 0);
    CHECK(writer->sealing == NULL);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 250);
}

static uint32_t failing;

/* The first sync of a segment fails, after the housekeeper had time to reach the same one. */
static int fail_late(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)offset;
    if (call != AC_CALL_SYNC_MAP || length == AC_CONTROL_SIZE) return 0;
    if (ac_exchange_seq_cst_u32(&failing, 1)) return 0;
    ac_os_sleep_ns(300000000);
    return EIO;
}

static void *flush_in_vain(void *context) {
    ac_error_t why;
    CHECK_FAILS(ac_writer_flush(context, &why), why, AC_E_SYSTEM);
    return NULL;
}

/* The kernel reports a failure once: the next sync of the same pages succeeds, and proves nothing. */
TEST(what_another_thread_could_not_sync_is_not_sealed) {
    pthread_t flusher;
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 250);
    failing = 0;
    ac_os_set_hook(fail_late, NULL);
    CHECK_EQUAL(pthread_create(&flusher, NULL, flush_in_vain, writer), 0);
    while (!ac_load_acquire_u32(&failing))
        ac_os_sleep_ns(1000000);
    CHECK_EQUAL(ac_writer_seal_next(writer, &err), 0);
    CHECK_EQUAL(pthread_join(flusher, NULL), 0);
    ac_os_set_hook(NULL, NULL);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.durable_seq, 0);
    CHECK_EQUAL(stats.seals, 0);
    CHECK_EQUAL(durable().segment, 0);
    CHECK_EQUAL(durable().offset, AC_SEGMENT_DATA);
    CHECK(access(check_path("queue/000000000.idx"), F_OK) != 0);
    CHECK_FAILS(ac_writer_close(writer, &err), err, AC_E_POISONED);
    ac_writer_free(writer);
}

static struct {
    ac_writer_t *writer;
    int rolled;
    uint64_t synced_to[64];
} during;

/* While the first segment is being synced, the writer rolls twice. */
static int roll_meanwhile(void *context, int call, const char *path, int fd, uint64_t offset,
                          uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)offset;
    (void)length;
    if (call != AC_CALL_SYNC_MAP || during.rolled) return 0;
    during.rolled = 1;
    append_numbered(during.writer, 250);
    return 0;
}

TEST(a_flush_promises_no_more_than_it_synced_when_rolls_overtake_it) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_writer_stats_t before;
    writer->config.inline_housekeeping = 0;
    ac_housekeeper_remove(&writer->disk);
    during.writer = writer;
    append_numbered(writer, 10);
    ac_os_set_hook(roll_meanwhile, NULL);
    int64_t flushed = ac_writer_flush(writer, &err);
    ac_os_set_hook(NULL, NULL);
    ac_writer_stats(writer, &before);
    CHECK(before.rolls >= 2);
    CHECK_EQUAL(flushed, 10);
    CHECK_EQUAL(before.durable_seq, 10);
    CHECK_EQUAL(durable().segment, 0);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 260);
    CHECK_OK(ac_housekeeper_add(&writer->disk), err);
    close_writer(writer);
}

TEST(in_sync_mode_nothing_returns_before_it_is_durable) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = AC_FLUSH_SYNC;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_slice_t items[2] = {{"a", 1}, {"b", 1}};
    void *room;
    for (uint64_t i = 0; i < 40; i += 4) {
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
        CHECK_OK(ac_writer_append_many(writer, items, 2, 0, NULL, &err), err);
        CHECK_OK(ac_writer_reserve(writer, 1000, &room, &err), err);
        CHECK_OK(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), err);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.durable_seq, i + 4);
        CHECK_EQUAL(durable().offset, stats.offset);
    }
    close_writer(writer);
}

TEST(in_batch_mode_no_more_than_the_agreed_bytes_are_at_risk) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = AC_FLUSH_BATCH;
    config.batch_bytes = 1000;
    config.batch_ns = 1000000000000u;
    static uint8_t payload[3000];
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(ac_writer_append(writer, payload, (size_t)(i * 29 % 3000), 0, AC_NOW, &err), err);
        CHECK(ac_writer_unsynced(writer) <= 1000);
    }
    close_writer(writer);
}

TEST(the_housekeeper_keeps_the_time_of_batch_mode) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    config.flush_mode = AC_FLUSH_BATCH;
    config.batch_bytes = 1 << 20;
    config.batch_ns = 1000000;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 5);
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    do {
        ac_writer_stats(writer, &stats);
        CHECK(ac_os_monotonic_ns() < deadline);
    } while (stats.durable_seq < 5);
    close_writer(writer);
}

/* Write-back begins ahead of a sync only if many syncs run at once. */
TEST(batches_of_many_writers_are_flushed_together) {
    enum { WRITERS = 10 };
    ac_writer_t *writers[WRITERS];
    ac_injection_t together = {.call = AC_CALL_START_WRITING};
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = 1 << 16;
    config.flush_mode = AC_FLUSH_BATCH;
    config.batch_bytes = 1 << 20;
    config.batch_ns = 5000000;
    for (int i = 0; i < WRITERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "queue%d", i);
        writers[i] = open_writer(check_path(name), &config);
    }
    ac_os_set_hook(ac_os_inject, &together);
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    while (__atomic_load_n(&together.seen, __ATOMIC_SEQ_CST) < WRITERS) {
        CHECK(ac_os_monotonic_ns() < deadline);
        for (int i = 0; i < WRITERS; i++)
            append_numbered(writers[i], 1);
        ac_os_sleep_ns(1000000);
    }
    ac_os_set_hook(NULL, NULL);
    for (int i = 0; i < WRITERS; i++) {
        do {
            ac_writer_stats(writers[i], &stats);
            CHECK(ac_os_monotonic_ns() < deadline);
        } while (stats.durable_seq < stats.next_seq);
        close_writer(writers[i]);
    }
}

TEST(the_first_failed_sync_stops_the_writer_for_good) {
    failing_t failing = {.call = AC_CALL_SYNC_MAP, .error = EIO};
    ac_writer_t *writer = open_small();
    append_numbered(writer, 3);
    ac_os_set_hook(fail_hook, &failing);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_POISONED);
    CHECK_EQUAL(err.sys_errno, EIO);
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_POISONED);
    void *room;
    CHECK_FAILS(ac_writer_reserve(writer, 1, &room, &err), err, AC_E_POISONED);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.sync_errors, 1);
    CHECK_FAILS(ac_writer_close(writer, &err), err, AC_E_POISONED);
    ac_writer_free(writer);
    writer = open_small();
    ac_recovery_t recovery;
    ac_writer_recovery(writer, &recovery);
    CHECK(!recovery.clean);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 3);
}

/* Readers have it before the disk does, so it must not look as if it had not been written. */
TEST(a_record_whose_sync_fails_is_named) {
    static const ac_slice_t items[] = {{"a", 1}, {"b", 1}};
    for (int mode = AC_FLUSH_SYNC; mode <= AC_FLUSH_BATCH; mode++) {
        for (int many = 0; many < 2; many++) {
            failing_t failing = {.call = AC_CALL_SYNC_MAP, .error = ENOSPC};
            ac_writer_config_t config = small_queue(SEGMENT);
            config.flush_mode = mode;
            config.batch_bytes = 1; /* less than any record, so that each of them is synced */
            config.batch_ns = UINT64_MAX;
            const char *path = check_path(mode == AC_FLUSH_SYNC ? many ? "sync-many" : "sync"
                                          : many                ? "batch-many"
                                                                : "batch");
            ac_writer_t *writer = open_writer(path, &config);
            append_numbered(writer, 3);
            ac_os_set_hook(fail_hook, &failing);
            int64_t rc = many ? ac_writer_append_many(writer, items, 2, 0, NULL, &err)
                              : ac_writer_append(writer, "a", 1, 0, AC_NOW, &err);
            ac_os_set_hook(NULL, NULL);
            CHECK_FAILS(rc, err, AC_E_NOT_DURABLE);
            CHECK_EQUAL(err.seq, 3);
            CHECK_EQUAL(err.sys_errno, ENOSPC);
            ac_writer_stats(writer, &stats);
            CHECK_EQUAL(stats.next_seq, 4 + many);
            CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_POISONED);
            ac_writer_free(writer);
        }
    }
}

TEST(a_segment_cut_before_it_was_sealed_is_told) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 250);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), SEGMENT / 2), 0);
    CHECK_FAILS(ac_writer_seal_next(writer, &err), err, AC_E_SYSTEM);
    CHECK(strstr(err.detail, "was cut, or its disk failed"));
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_POISONED);
    CHECK_FAILS(ac_writer_close(writer, &err), err, AC_E_POISONED);
    ac_writer_free(writer);
}

/* Returns how far the segment is on disk. */
static int note_sync(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    uint64_t *end = context;
    (void)path;
    if (call == AC_CALL_SYNC_MAP && fd >= 0 && offset + length > *end) *end = offset + length;
    return 0;
}

/* Otherwise a power cut leaves a gap before the place where the closed queue continues. */
TEST(an_abandoned_reservation_is_on_disk_before_the_queue_counts_as_closed) {
    ac_writer_t *writer = open_small();
    uint64_t synced = 0;
    void *room;
    append_numbered(writer, 1);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    CHECK_OK(ac_writer_reserve(writer, 5000, &room, &err), err);
    ac_os_set_hook(note_sync, &synced);
    close_writer(writer);
    ac_os_set_hook(NULL, NULL);
    CHECK(durable().offset > 5000);
    CHECK(synced >= durable().offset);
}
