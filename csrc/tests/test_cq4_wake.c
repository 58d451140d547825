/* Our own writers on a Java queue wake our own readers, each of them. */
#include "cq4_files.h"
#include "cq4_wake.h"
#include "queue.h"
#include "reader.h"

static ac_error_t err;

static const char *create_queue(void) {
    static char path[600];
    ac_cq4_roll_t roll = cq4_known_roll("TEST_SECONDLY");
    snprintf(path, sizeof path, "%s", check_path("queue"));
    CHECK_EQUAL(mkdir(path, 0700), 0);
    cq4_table_t table = cq4_create_table(path, &roll);
    cq4_close_file(&table.out);
    return path;
}

static ac_directory_t directory_of(const char *path) {
    ac_directory_t dir;
    CHECK_OK(ac_directory_init(&dir, path, 0600, 0, &err), err);
    return dir;
}

static uint32_t connected(ac_cq4_wake_t *wake) {
    pthread_mutex_lock(&wake->targets.mutex);
    uint32_t count = wake->targets.count;
    pthread_mutex_unlock(&wake->targets.mutex);
    return count;
}

static void until_connected(ac_cq4_wake_t *wake, uint32_t count) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + 10000000000ull;
    while (connected(wake) != count && ac_os_monotonic_ns() < deadline_ns)
        ac_os_sleep_ns(100000);
    CHECK_EQUAL(connected(wake), count);
}

static void drain(ac_reader_t *reader) {
    while (ac_os_eventfd_wait(reader->eventfd->fd, 10000000))
        ;
}

TEST(each_of_several_writers_rings_every_reader) {
    ac_cq4_wake_t wake[2];
    const char *path = create_queue();
    ac_directory_t dir = directory_of(path);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ac_cq4_wake_open(&wake[i], &dir, &err), err);
    ac_reader_t *readers[2];
    for (int i = 0; i < 2; i++) {
        readers[i] = open_reader(path, NULL, AC_START_FIRST);
        CHECK(ac_reader_eventfd(readers[i], &err) >= 0);
        CHECK(readers[i]->announced);
    }
    for (int i = 0; i < 2; i++)
        until_connected(&wake[i], 2);
    CHECK(ac_reader_attended(readers[0]) && ac_reader_attended(readers[1]));
    for (int writer = 0; writer < 2; writer++) {
        for (int i = 0; i < 2; i++) {
            drain(readers[i]);
            CHECK_EQUAL(ac_reader_park(readers[i], &err), AC_PARKED);
        }
        CHECK_EQUAL(ac_cq4_wake_signal(&wake[writer]), 2);
        CHECK_EQUAL(ac_cq4_wake_signal(&wake[writer]), 0); /* no reader sleeps any more */
        for (int i = 0; i < 2; i++)
            CHECK_EQUAL(ac_os_eventfd_wait(readers[i]->eventfd->fd, 1000000000), 1);
    }
    /* The remaining reader is still woken. */
    ac_cq4_wake_close(&wake[1]);
    drain(readers[0]);
    CHECK(ac_reader_attended(readers[0]));
    CHECK_EQUAL(ac_reader_park(readers[0], &err), AC_PARKED);
    CHECK_EQUAL(ac_cq4_wake_signal(&wake[0]), 2);
    ac_reader_free(readers[1]);
    until_connected(&wake[0], 1);
    ac_cq4_wake_close(&wake[0]);
    while (ac_reader_attended(readers[0]))
        ac_os_sleep_ns(100000);
    ac_reader_free(readers[0]);
}

TEST(a_reader_makes_nothing_and_finds_a_writer_that_comes_later) {
    ac_cq4_wake_t wake;
    const char *path = create_queue();
    ac_directory_t dir = directory_of(path);
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    CHECK(!reader->announced);
    char own[700];
    snprintf(own, sizeof own, "%s/%s", path, AC_CQ4_OWN_DIRECTORY);
    CHECK(access(own, F_OK) != 0);
    CHECK_OK(ac_cq4_wake_open(&wake, &dir, &err), err);
    CHECK_EQUAL(ac_cq4_wake_signal(&wake), 0);
    uint64_t deadline_ns = ac_os_monotonic_ns() + 10000000000ull;
    while (!reader->announced && ac_os_monotonic_ns() < deadline_ns) {
        CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
        ac_os_sleep_ns(10000000);
    }
    until_connected(&wake, 1);
    ac_reader_free(reader);
    ac_cq4_wake_close(&wake);
}
