/* One queue, used concurrently: an appender, readers that wait and commit, readers that seek, flushes,
 * retention and statistics from other threads. For ThreadSanitizer, which compares addresses: so all
 * handles share one mapping of each segment and of the control block (the engine's calls of ac_os_map are
 * linked to the functions below).
 *
 * AIOCHRONICLE_THREADS_SECONDS sets how long (2). */
#include "queue.h"

#include <pthread.h>

enum { SEGMENT = 128 << 10, MAPS_MAX = 4096 };

void *__real_ac_os_map(int fd, uint64_t length, int writable, int *error);
void __real_ac_os_unmap(void *base, uint64_t length);
void *__wrap_ac_os_map(int fd, uint64_t length, int writable, int *error);
void __wrap_ac_os_unmap(void *base, uint64_t length);

static struct shared_map {
    dev_t device;
    ino_t inode;
    void *base;
    int writable, users;
} maps[MAPS_MAX];
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;

void *__wrap_ac_os_map(int fd, uint64_t length, int writable, int *error) {
    struct stat info;
    if ((length != SEGMENT && length != AC_CONTROL_SIZE) || fstat(fd, &info) != 0)
        return __real_ac_os_map(fd, length, writable, error);
    pthread_mutex_lock(&maps_lock);
    struct shared_map *place = NULL;
    for (int i = 0; i < MAPS_MAX; i++) {
        struct shared_map *map = &maps[i];
        if (!map->users && !place) place = map;
        if (!map->users || map->device != info.st_dev || map->inode != info.st_ino) continue;
        if (writable && !map->writable) continue;
        map->users++;
        pthread_mutex_unlock(&maps_lock);
        return map->base;
    }
    CHECK(place != NULL);
    void *base = __real_ac_os_map(fd, length, writable, error);
    if (base) *place = (struct shared_map){info.st_dev, info.st_ino, base, writable, 1};
    pthread_mutex_unlock(&maps_lock);
    return base;
}

void __wrap_ac_os_unmap(void *base, uint64_t length) {
    int last = 1;
    pthread_mutex_lock(&maps_lock);
    for (int i = 0; i < MAPS_MAX; i++)
        if (maps[i].users && maps[i].base == base) last = --maps[i].users == 0;
    if (last) __real_ac_os_unmap(base, length);
    pthread_mutex_unlock(&maps_lock);
}

static struct {
    const char *path;
    ac_writer_t *writer;
    uint64_t seed;
    uint32_t stop, following;
    uint64_t appended;
    uint64_t read_by[3];
    uint64_t seeks, flushes, statistics;
} run;

static int stopping(void) {
    return ac_load_acquire_u32(&run.stop) != 0;
}

static void append_batch(uint64_t *random) {
    uint8_t payloads[8][PAYLOAD_MAX];
    ac_slice_t items[8];
    ac_error_t err;
    size_t count = 1 + check_random(random) % 8;
    for (size_t i = 0; i < count; i++)
        items[i] = (ac_slice_t){payloads[i], payload_of(run.appended + i, payloads[i])};
    int64_t seq = ac_writer_append_many(run.writer, items, count, 1, NULL, &err);
    CHECK_OK(seq, err);
    CHECK_EQUAL(seq, run.appended);
    ac_store_release_u64(&run.appended, run.appended + count);
}

static void append_in_place(uint64_t *random) {
    uint8_t payload[PAYLOAD_MAX];
    void *room;
    ac_error_t err;
    size_t length = payload_of(run.appended, payload);
    CHECK_OK(ac_writer_reserve(run.writer, length, &room, &err), err);
    memcpy(room, payload, length);
    if (check_random(random) % 4 == 0) {
        ac_writer_abort(run.writer);
        return;
    }
    CHECK_EQUAL(ac_writer_commit(run.writer, 1, AC_NOW, NULL, &err), run.appended);
    ac_store_release_u64(&run.appended, run.appended + 1);
}

static void *append(void *unused) {
    uint64_t random = run.seed | 1;
    uint8_t payload[PAYLOAD_MAX];
    ac_error_t err;
    (void)unused;
    while (!stopping()) {
        uint64_t what = check_random(&random) % 100;
        if (what < 10) {
            append_batch(&random);
        } else if (what < 15) {
            append_in_place(&random);
        } else if (what < 16) {
            CHECK_OK(ac_writer_heartbeat(run.writer, AC_NOW, &err), err);
        } else {
            size_t length = payload_of(run.appended, payload);
            int64_t seq = ac_writer_append(run.writer, payload, length, 1, AC_NOW, &err);
            CHECK_OK(seq, err);
            CHECK_EQUAL(seq, run.appended);
            ac_store_release_u64(&run.appended, run.appended + 1);
        }
        /* Bursts, so that readers also sleep. */
        if (check_random(&random) % 512 == 0) ac_os_sleep_ns(check_random(&random) % 500000);
    }
    return NULL;
}

/* A named reader: gets every message, waits, and commits, which lets retention proceed. */
static void *follow(void *argument) {
    int number = (int)(intptr_t)argument;
    char name[32];
    ac_message_t message;
    ac_error_t err;
    uint64_t segment, offset, next_seq = 0;
    snprintf(name, sizeof name, "reader%d", number);
    ac_reader_t *reader = open_reader(run.path, name, AC_START_COMMITTED);
    ac_fetch_add_seq_cst_u32(&run.following, 1);
    while (!stopping()) {
        CHECK_OK(ac_reader_wait(reader, 20000000, number == 1 ? 5000 : 0, &err), err);
        int rc;
        while ((rc = ac_reader_next(reader, &message, &err)) == 1) {
            CHECK_EQUAL(message.seq, next_seq);
            check_payload(&message);
            next_seq++;
            if (next_seq % 64 != 0) continue;
            ac_reader_position(reader, &segment, &offset);
            CHECK_OK(ac_reader_commit(reader, segment, offset, next_seq % 4096 == 0, &err), err);
            CHECK_OK(ac_reader_committed(reader, &segment, &offset, &err), err);
        }
        CHECK_OK(rc, err);
    }
    run.read_by[number] = next_seq;
    ac_reader_free(reader);
    return NULL;
}

/* An anonymous reader, for which retention does not wait: it seeks, and may find its segment removed. */
static void *seek(void *unused) {
    uint64_t random = run.seed * 3 | 1;
    ac_message_t message;
    ac_error_t err;
    ac_lag_t lag;
    (void)unused;
    ac_reader_t *reader = open_reader(run.path, NULL, AC_START_LAST);
    while (!stopping()) {
        uint64_t appended = ac_load_acquire_u64(&run.appended);
        uint64_t back = check_random(&random) % 2000,
                 wanted = appended > back ? appended - back : 0;
        int rc = ac_reader_seek_seq(reader, wanted, &err);
        if (rc == AC_OK) rc = ac_reader_next(reader, &message, &err);
        if (rc == 1) {
            CHECK(message.seq >= wanted);
            check_payload(&message);
            uint64_t timestamp_ns = message.timestamp_ns;
            rc = ac_reader_seek_time(reader, timestamp_ns, &err);
            if (rc == AC_OK) rc = ac_reader_next(reader, &message, &err);
            if (rc == 1) CHECK(message.timestamp_ns >= timestamp_ns);
        }
        if (rc >= 0) rc = ac_reader_lag(reader, &lag, &err);
        if (rc < 0 && rc != AC_E_POSITION_LOST && rc != AC_E_GONE && rc != AC_E_NOT_FOUND)
            CHECK_OK(rc, err);
        run.seeks++;
    }
    ac_reader_free(reader);
    return NULL;
}

static void *flush(void *unused) {
    ac_error_t err;
    int64_t before = 0;
    (void)unused;
    while (!stopping()) {
        uint64_t appended = ac_load_acquire_u64(&run.appended);
        int64_t durable = ac_writer_flush(run.writer, &err);
        CHECK_OK(durable, err);
        CHECK(durable >= before && (uint64_t)durable >= appended);
        before = durable;
        run.flushes++;
        if ((uint64_t)durable == appended) ac_os_sleep_ns(20000);
    }
    return NULL;
}

static void *observe(void *unused) {
    ac_writer_stats_t stats;
    ac_queue_info_t info;
    ac_recovery_t recovery;
    ac_error_t err;
    uint64_t lag, live, seq = 0;
    (void)unused;
    while (!stopping()) {
        ac_writer_stats(run.writer, &stats);
        CHECK(stats.next_seq >= seq && stats.durable_seq <= stats.next_seq);
        seq = stats.next_seq;
        CHECK_OK(ac_writer_retain(run.writer, &err), err);
        CHECK_OK(ac_writer_reader_lag(run.writer, &lag, &live, &err), err);
        CHECK_OK(ac_queue_info(run.path, &info, &err), err);
        ac_writer_recovery(run.writer, &recovery);
        run.statistics++;
        ac_os_sleep_ns(1000000);
    }
    return NULL;
}

static void run_threads(const ac_writer_config_t *config, double seconds) {
    pthread_t threads[8];
    int count = 0;
    run.path = check_path("queue");
    char path[1024];
    snprintf(path, sizeof path, "%s", run.path);
    memset(&run, 0, sizeof run);
    run.path = path;
    run.seed = check_seed();
    run.writer = open_writer(path, config);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[count++], NULL, follow, (void *)(intptr_t)i);
    while (ac_load_seq_cst_u32(&run.following) < 3) /* or retention runs first */
        ac_os_sleep_ns(100000);
    pthread_create(&threads[count++], NULL, append, NULL);
    pthread_create(&threads[count++], NULL, seek, NULL);
    pthread_create(&threads[count++], NULL, flush, NULL);
    pthread_create(&threads[count++], NULL, observe, NULL);
    ac_os_sleep_ns((uint64_t)(seconds * 1e9));
    ac_store_release_u32(&run.stop, 1);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    ac_writer_stats_t stats;
    ac_writer_stats(run.writer, &stats);
    close_writer(run.writer);
    printf("%" PRIu64 " appended, %" PRIu64 " %" PRIu64 " %" PRIu64 " read, %" PRIu64
           " rolls, %" PRIu64 " deleted, %" PRIu64 " seeks, %" PRIu64 " flushes, %" PRIu64
           " statistics\n",
           run.appended, run.read_by[0], run.read_by[1], run.read_by[2], stats.rolls,
           stats.segments_deleted, run.seeks, run.flushes, run.statistics);
    CHECK_EQUAL(stats.next_seq, run.appended);
    CHECK(stats.rolls > 0 && stats.segments_deleted > 0 && run.seeks > 0 && run.flushes > 0);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "reader%d", i);
        CHECK(run.read_by[i] > 0);
        ac_reader_t *reader = open_reader(path, name, AC_START_COMMITTED);
        CHECK_EQUAL(read_numbered(reader, run.read_by[i] / 64 * 64), run.appended);
        ac_reader_free(reader);
    }
}

static double seconds_each(void) {
    const char *given = getenv("AIOCHRONICLE_THREADS_SECONDS");
    return (given ? atof(given) : 2) / 2;
}

TEST(threads_share_a_queue_that_the_kernel_writes_back) {
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT;
    config.retention = 1;
    config.retention_check_ns = 10000000;
    run_threads(&config, seconds_each());
}

TEST(threads_share_a_queue_with_batch_flushes_capacity_and_rolls_by_count) {
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT;
    config.flush_mode = AC_FLUSH_BATCH;
    config.batch_bytes = 64 << 10;
    config.batch_ns = 2000000;
    config.roll_messages = 300;
    config.capacity_bytes = 32 * SEGMENT;
    config.capacity_policy = AC_CAPACITY_BLOCK;
    config.capacity_timeout_ns = 20000000000u;
    config.retention = 1;
    config.retention_check_ns = 5000000;
    run_threads(&config, seconds_each());
}
