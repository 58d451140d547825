#include "sync.h"

#include "queue.h"
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

enum { FILES = 40, SIZE = 64 << 10 };

static struct {
    int fds[FILES];
    uint8_t *maps[FILES];
    ac_sync_t ranges[FILES];
    int told[FILES];
} files;

static void open_files(void) {
    char name[32];
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        files.fds[i] = open(check_path(name), O_RDWR | O_CREAT, 0600);
        CHECK(files.fds[i] >= 0);
        CHECK_EQUAL(ftruncate(files.fds[i], SIZE), 0);
        files.maps[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, files.fds[i], 0);
        CHECK(files.maps[i] != MAP_FAILED);
        memset(files.maps[i] + 5000, 'x', 5000);
        files.ranges[i] =
            (ac_sync_t){.base = files.maps[i], .fd = files.fds[i], .offset = 5000, .length = 5000};
    }
}

static void close_files(void) {
    for (int i = 0; i < FILES; i++) {
        munmap(files.maps[i], SIZE);
        close(files.fds[i]);
    }
}

static void synced(void *context, size_t number) {
    CHECK(context == &files);
    CHECK(files.ranges[number].result <= 0);
    files.told[number]++;
}

static void sync_files(void) {
    memset(files.told, 0, sizeof files.told);
    ac_sync_ranges(files.ranges, FILES, synced, &files);
    for (int i = 0; i < FILES; i++)
        CHECK_EQUAL(files.told[i], 1);
}

/* Fails calls of `call` (for one file if `fd` is not -1), and those in `refused` for every file. */
typedef struct plan {
    int call, fd, error, refused[2];
    uint64_t syncs, threads;
} plan_t;

static int follow(void *context, int call, const char *path, int fd, uint64_t offset,
                  uint64_t length) {
    plan_t *plan = context;
    (void)path, (void)offset, (void)length;
    if (call == AC_CALL_SYNC_MAP) __atomic_add_fetch(&plan->syncs, 1, __ATOMIC_RELAXED);
    if (call == AC_CALL_THREAD) __atomic_add_fetch(&plan->threads, 1, __ATOMIC_RELAXED);
    if (call == plan->refused[0] || call == plan->refused[1]) return EPERM;
    return call == plan->call && (plan->fd < 0 || plan->fd == fd) ? plan->error : 0;
}

static void run(plan_t *plan) {
    open_files();
    if (plan->fd >= 0) plan->fd = files.fds[plan->fd];
    ac_os_set_hook(follow, plan);
    sync_files();
    ac_os_set_hook(NULL, NULL);
    close_files();
}

/* io_uring if this kernel has it; threads; and neither. */
static const int without[3][2] = {{-1, -1}, {AC_CALL_RING, -1}, {AC_CALL_RING, AC_CALL_THREAD}};

static plan_t plan_for(int way) {
    return (plan_t){.call = -1, .fd = -1, .refused = {without[way][0], without[way][1]}};
}

TEST(every_range_is_synced_once_whichever_way) {
    for (int way = 0; way < 3; way++) {
        plan_t plan = plan_for(way);
        run(&plan);
        for (int i = 0; i < FILES; i++)
            CHECK_EQUAL(files.ranges[i].result, 0);
        CHECK_EQUAL(plan.syncs, FILES);
        if (way > 0) CHECK(plan.threads > 0);
    }
}

TEST(a_failed_sync_is_its_own_ranges_only) {
    static const int calls[] = {AC_CALL_SYNC_MAP, AC_CALL_START_WRITING};
    for (int way = 0; way < 3; way++)
        for (int k = 0; k < 2; k++) {
            plan_t plan = plan_for(way);
            plan.call = calls[k];
            plan.fd = 17;
            plan.error = EIO;
            run(&plan);
            for (int i = 0; i < FILES; i++)
                CHECK_EQUAL(files.ranges[i].result, i == 17 ? -EIO : 0);
        }
}

TEST(a_file_that_is_not_open_gives_its_own_error) {
    open_files();
    files.ranges[3].fd = -1; /* the ring has no such file, and write-back cannot begin */
    sync_files();
    for (int i = 0; i < FILES; i++)
        CHECK_EQUAL(files.ranges[i].result, i == 3 ? -EBADF : 0);
    close_files();
}

TEST(empty_ranges_keep_their_result) {
    plan_t plan = plan_for(0);
    open_files();
    for (int i = 0; i < FILES; i++)
        files.ranges[i] = (ac_sync_t){.fd = -1, .result = -i};
    ac_os_set_hook(follow, &plan);
    sync_files();
    ac_sync_ranges(files.ranges, 0, synced, &files);
    ac_os_set_hook(NULL, NULL);
    for (int i = 0; i < FILES; i++)
        CHECK_EQUAL(files.ranges[i].result, -i);
    CHECK_EQUAL(plan.syncs, 0);
    close_files();
}

/* The writers' part: like ac_writer_flush for each, but together. */

enum { WRITERS = 300, SEGMENT = 16 << 10 }; /* more than one group */

static ac_writer_t *writers[WRITERS];
static int64_t results[WRITERS];
static ac_error_t errors[WRITERS];

static void open_writers(int count) {
    char name[32];
    ac_writer_config_t config = small_queue(SEGMENT);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "queue-%d", i);
        writers[i] = open_writer(check_path(name), &config);
    }
}

static void close_writers(int count) {
    for (int i = 0; i < count; i++)
        close_writer(writers[i]);
}

TEST_IN_MEMORY(many_writers_are_durable_after_one_call) {
    ac_writer_stats_t stats;
    open_writers(WRITERS);
    for (int i = 0; i < WRITERS; i++)
        append_numbered(writers[i], 1 + i % 150); /* some of them over a roll */
    CHECK_EQUAL(ac_writers_flush(writers, WRITERS, results, errors), 0);
    for (int i = 0; i < WRITERS; i++) {
        ac_writer_stats(writers[i], &stats);
        CHECK_EQUAL(results[i], 1 + i % 150);
        CHECK_EQUAL(stats.durable_seq, stats.next_seq);
    }
    CHECK_EQUAL(ac_writers_flush(writers, WRITERS, results, errors), 0);
    CHECK_EQUAL(results[149], 150);
    CHECK_EQUAL(ac_writers_flush(writers, 0, results, errors), 0);
    close_writers(WRITERS);
}

TEST_IN_MEMORY(a_failed_sync_poisons_one_writer_of_many) {
    ac_error_t err;
    open_writers(20);
    for (int i = 0; i < 20; i++)
        append_numbered(writers[i], 3);
    plan_t plan = plan_for(0);
    plan.call = AC_CALL_SYNC_MAP;
    plan.fd = writers[7]->map->fd;
    plan.error = EIO;
    ac_os_set_hook(follow, &plan);
    CHECK_EQUAL(ac_writers_flush(writers, 20, results, errors), 1);
    ac_os_set_hook(NULL, NULL);
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(results[i], i == 7 ? AC_E_SYSTEM : 3);
    CHECK_EQUAL(errors[7].sys_errno, EIO);
    CHECK(strstr(errors[7].path, "queue-7"));
    CHECK_FAILS(ac_writer_append(writers[7], "x", 1, 0, AC_NOW, &err), err, AC_E_POISONED);
    CHECK_EQUAL(ac_writers_flush(writers, 20, results, errors), 1);
    CHECK_EQUAL(results[7], AC_E_POISONED);
    CHECK_EQUAL(ac_writer_append(writers[8], "x", 1, 0, AC_NOW, &err), 3);
    CHECK_FAILS(ac_writer_close(writers[7], &err), err, AC_E_POISONED);
    ac_writer_free(writers[7]);
    writers[7] = writers[19];
    close_writers(19);
}

static void *flush_five(void *unused) {
    (void)unused;
    CHECK_EQUAL(ac_writers_flush(writers, 5, results, errors), 0);
    return NULL;
}

static int is_durable(ac_writer_t *writer) {
    ac_writer_stats_t stats;
    ac_writer_stats(writer, &stats);
    return stats.durable_seq == stats.next_seq;
}

TEST_IN_MEMORY(a_writer_that_is_busy_does_not_keep_the_others) {
    pthread_t thread;
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    int busy = 0;
    open_writers(5);
    for (int i = 0; i < 5; i++) {
        append_numbered(writers[i], 3);
        if (writers[i] < writers[busy]) busy = i; /* the one that comes first */
    }
    pthread_mutex_lock(&writers[busy]->sync_mutex);
    CHECK_EQUAL(pthread_create(&thread, NULL, flush_five, NULL), 0);
    for (int i = 0; i < 5; i++)
        while (i != busy && !is_durable(writers[i])) {
            CHECK(ac_os_monotonic_ns() < deadline);
            ac_os_sleep_ns(100000);
        }
    CHECK(!is_durable(writers[busy]));
    pthread_mutex_unlock(&writers[busy]->sync_mutex);
    pthread_join(thread, NULL);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(results[i], 3);
    close_writers(5);
}

TEST_IN_MEMORY(a_writer_that_is_listed_twice_is_refused_once) {
    open_writers(2);
    append_numbered(writers[0], 1);
    append_numbered(writers[1], 1);
    ac_writer_t *list[3] = {writers[0], writers[1], writers[0]};
    CHECK_EQUAL(ac_writers_flush(list, 3, results, errors), 1);
    CHECK_EQUAL(results[1], 1);
    CHECK((results[0] == 1) != (results[2] == 1));
    close_writers(2);
}

TEST_IN_MEMORY(without_memory_they_are_flushed_one_by_one) {
    open_writers(3);
    for (int i = 0; i < 3; i++)
        append_numbered(writers[i], 5);
    ac_injection_t injection = {.call = AC_CALL_ALLOC, .answer = ENOMEM, .first = 1, .times = 2};
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK_EQUAL(ac_writers_flush(writers, 3, results, errors), 0);
    ac_os_set_hook(NULL, NULL);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(results[i], 5);
    close_writers(3);
}
