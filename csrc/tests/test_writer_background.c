/* The background work of several writers: long work for one must not delay the others. */
#include "writer.h"

#include "queue.h"

enum { SEGMENT = 16 << 10, LARGE = 4 << 20, SEGMENTS = 3 };

#define MS 1000000ull
#define LATEST_NS (250 * MS)

static ac_error_t err;
static ac_writer_stats_t stats;

/* A disk that is slow for one kind of call. */
typedef struct slow {
    int call;
    uint64_t sleep_ns;
    uint64_t length_min; /* shorter ones are quick */
    uint32_t calls;
} slow_t;

static int slow_hook(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    slow_t *slow = context;
    (void)path;
    (void)fd;
    (void)offset;
    if (call != slow->call || length < slow->length_min) return 0;
    __atomic_add_fetch(&slow->calls, 1, __ATOMIC_SEQ_CST);
    ac_os_sleep_ns(slow->sleep_ns);
    return 0;
}

static uint32_t slow_calls(const slow_t *slow) {
    return __atomic_load_n(&slow->calls, __ATOMIC_SEQ_CST);
}

static void wait_for_call(const slow_t *slow) {
    uint64_t deadline = ac_os_monotonic_ns() + 20000 * MS;
    while (slow_calls(slow) == 0) {
        CHECK(ac_os_monotonic_ns() < deadline);
        ac_os_sleep_ns(MS);
    }
}

/* An archive to which segments must be copied; the tests' queues are in memory. 0 = none on this
 * machine. */
static char archive[64];

static int make_archive(void) {
    struct stat here, there;
    snprintf(archive, sizeof archive, "/tmp/aiochronicle-XXXXXX");
    CHECK(mkdtemp(archive) != NULL);
    CHECK(stat(check_directory, &here) == 0 && stat(archive, &there) == 0);
    if (here.st_dev != there.st_dev) return 1;
    rmdir(archive);
    return 0;
}

static void remove_archive(void) {
    nftw(archive, check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static int count_tmp, count_q;

static int count_archived(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)kind;
    (void)where;
    count_tmp += strstr(path, ".tmp") != NULL;
    count_q += strcmp(path + strlen(path) - 2, ".q") == 0;
    return 0;
}

static void look_into_archive(void) {
    count_tmp = count_q = 0;
    nftw(archive, count_archived, 16, FTW_PHYS);
}

/* A queue with SEGMENTS full segments and a partial one; then a writer that archives the full ones. */
static ac_writer_t *open_archiving(uint64_t segment_size) {
    static uint8_t payload[8000];
    ac_writer_config_t config = small_queue(segment_size);
    ac_writer_t *writer = open_writer(check_path("archived"), &config);
    do {
        CHECK_OK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err);
        ac_writer_stats(writer, &stats);
    } while (stats.segment < SEGMENTS);
    close_writer(writer);
    config.inline_housekeeping = 0;
    config.retention = 1;
    config.retain_bytes = 1;
    config.archive = archive;
    return open_writer(check_path("archived"), &config);
}

static ac_writer_t *open_batches_of(const char *name, uint64_t segment_size, uint64_t batch_ns) {
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = segment_size;
    config.flush_mode = AC_FLUSH_BATCH;
    config.batch_bytes = 1 << 30;
    config.batch_ns = batch_ns;
    return open_writer(check_path(name), &config);
}

static ac_writer_t *open_batching(void) {
    return open_batches_of("batching", SEGMENT, 20 * MS);
}

/* Appends one message and waits until it is durable. Returns how long it took. */
static uint64_t time_of_batch(ac_writer_t *writer) {
    uint64_t began = ac_os_monotonic_ns();
    int64_t seq = ac_writer_append(writer, "order", 5, 0, AC_NOW, &err);
    CHECK_OK(seq, err);
    do {
        ac_os_sleep_ns(MS);
        ac_writer_stats(writer, &stats);
        CHECK(ac_os_monotonic_ns() - began < 30000 * MS);
    } while (stats.durable_seq <= (uint64_t)seq);
    return ac_os_monotonic_ns() - began;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Returns the longest times of a writer's batches and heartbeats until the slow calls are over. */
static void watch(ac_writer_t *writer, uint64_t for_ns, uint64_t *batch_ns, uint64_t *beat_ns) {
    uint64_t began = ac_os_monotonic_ns();
    *batch_ns = *beat_ns = 0;
    while (ac_os_monotonic_ns() - began < for_ns) {
        *batch_ns = larger(*batch_ns, time_of_batch(writer));
        uint64_t beat = ac_load_relaxed_u64(&writer->control->writer_heartbeat_ns);
        uint64_t now = ac_os_now_ns();
        *beat_ns = larger(*beat_ns, now > beat ? now - beat : 0);
    }
}

TEST_IN_MEMORY(batches_and_heartbeats_are_on_time_while_another_writer_archives) {
    slow_t slow = {.call = AC_CALL_COPY, .sleep_ns = 800 * MS, .length_min = SEGMENT};
    uint64_t batch_ns, beat_ns;
    if (!make_archive()) return;
    ac_writer_t *batching = open_batching();
    ac_os_set_hook(slow_hook, &slow);
    ac_writer_t *archiving = open_archiving(SEGMENT);
    wait_for_call(&slow);
    watch(batching, SEGMENTS * slow.sleep_ns, &batch_ns, &beat_ns);
    CHECK(slow_calls(&slow) > 1);
    ac_os_set_hook(NULL, NULL);
    CHECK(batch_ns < LATEST_NS);
    CHECK(beat_ns < 1500 * MS);
    close_writer(archiving);
    close_writer(batching);
    remove_archive();
}

TEST_IN_MEMORY(segments_are_sealed_while_another_writer_archives) {
    slow_t slow = {.call = AC_CALL_COPY, .sleep_ns = 1000 * MS, .length_min = SEGMENT};
    ac_writer_config_t config = small_queue(SEGMENT);
    if (!make_archive()) return;
    config.inline_housekeeping = 0;
    ac_writer_t *rolling = open_writer(check_path("rolling"), &config);
    ac_os_set_hook(slow_hook, &slow);
    ac_writer_t *archiving = open_archiving(SEGMENT);
    wait_for_call(&slow);
    append_numbered(rolling, 200);
    uint64_t began = ac_os_monotonic_ns();
    do {
        ac_writer_stats(rolling, &stats);
        CHECK(ac_os_monotonic_ns() - began < LATEST_NS);
    } while (stats.rolls == 0 || stats.seals < stats.rolls);
    ac_os_set_hook(NULL, NULL);
    close_writer(archiving);
    close_writer(rolling);
    remove_archive();
}

/* Also that writer's own heartbeat and check of its files. */
TEST_IN_MEMORY(batches_are_on_time_while_another_writer_seals) {
    slow_t slow = {.call = AC_CALL_SYNC_MAP, .sleep_ns = 1500 * MS, .length_min = LARGE / 2};
    ac_writer_config_t config = small_queue(LARGE);
    static uint8_t payload[LARGE / 8];
    uint64_t batch_ns, beat_ns, own_ns;
    config.inline_housekeeping = 0;
    ac_writer_t *batching = open_batching();
    ac_writer_t *rolling = open_writer(check_path("rolling"), &config);
    ac_os_set_hook(slow_hook, &slow);
    for (int i = 0; i < 18; i++)
        CHECK_OK(ac_writer_append(rolling, payload, sizeof payload, 0, AC_NOW, &err), err);
    wait_for_call(&slow);
    watch(batching, 2500 * MS, &batch_ns, &beat_ns);
    own_ns = ac_os_now_ns() - ac_load_relaxed_u64(&rolling->control->writer_heartbeat_ns);
    CHECK_EQUAL(slow_calls(&slow), 2);
    ac_os_set_hook(NULL, NULL);
    CHECK(batch_ns < LATEST_NS);
    CHECK(beat_ns < 1500 * MS);
    CHECK(own_ns < 1500 * MS);
    close_writer(rolling);
    close_writer(batching);
}

/* Its batch needs a sync of the full segment, too, which must not delay batches of others that are due. */
TEST_IN_MEMORY(batches_are_on_time_while_another_writer_of_batches_seals) {
    slow_t slow = {.call = AC_CALL_SYNC_MAP, .sleep_ns = 1500 * MS, .length_min = LARGE / 2};
    static uint8_t payload[LARGE / 8];
    uint64_t batch_ns, beat_ns;
    ac_writer_t *batching = open_batching();
    ac_writer_t *rolling = open_batches_of("rolling", LARGE, 400 * MS);
    time_of_batch(rolling); /* so the next one is not due while it rolls */
    ac_os_set_hook(slow_hook, &slow);
    for (int i = 0; i < 9; i++)
        CHECK_OK(ac_writer_append(rolling, payload, sizeof payload, 0, AC_NOW, &err), err);
    wait_for_call(&slow);
    watch(batching, 1400 * MS, &batch_ns, &beat_ns);
    CHECK_EQUAL(slow_calls(&slow), 1);
    ac_os_set_hook(NULL, NULL);
    CHECK(batch_ns < LATEST_NS);
    CHECK(time_of_batch(rolling) < 5000 * MS);
    close_writer(rolling);
    close_writer(batching);
}

TEST_IN_MEMORY(closing_does_not_wait_until_everything_is_archived) {
    slow_t slow = {.call = AC_CALL_COPY, .sleep_ns = 400 * MS, .length_min = SEGMENT};
    if (!make_archive()) return;
    ac_os_set_hook(slow_hook, &slow);
    ac_writer_t *archiving = open_archiving(LARGE);
    wait_for_call(&slow);
    uint64_t began = ac_os_monotonic_ns();
    CHECK_OK(ac_writer_close(archiving, &err), err);
    CHECK(ac_os_monotonic_ns() - began < 800 * MS);
    ac_os_set_hook(NULL, NULL);
    ac_writer_stats(archiving, &stats);
    CHECK_EQUAL(stats.retention_errors, 0);
    ac_writer_free(archiving);
    CHECK(exists(check_path("archived"), "000000000.q"));
    look_into_archive();
    CHECK_EQUAL(count_q, 0);
    CHECK_EQUAL(count_tmp, 0);
    /* No removal is pending any more: a new reader begins with what was not archived. */
    ac_reader_t *reader = open_reader(check_path("archived"), "new", AC_START_COMMITTED);
    ac_reader_stats_t reading;
    ac_reader_stats(reader, &reading);
    CHECK_EQUAL(reading.segment, 0);
    ac_reader_free(reader);
    remove_in(check_path("archived/readers"), "new.meta");
    archiving = open_archiving(LARGE);
    CHECK_OK(ac_writer_retain(archiving, &err), err);
    close_writer(archiving);
    look_into_archive();
    CHECK_EQUAL(count_q, SEGMENTS);
    CHECK(!exists(check_path("archived"), "000000000.q"));
    remove_archive();
}
