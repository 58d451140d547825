#include "control.h"

#include "queue.h"

#include <pthread.h>

static ac_directory_t dir;
static ac_error_t err;

static int open_directory(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    return fd;
}

TEST(a_fresh_block_is_usable_and_has_an_identity) {
    ac_map_t *map;
    int fd = open_directory();
    CHECK_FAILS(ac_control_open(&dir, fd, 1, 1, &map, &err), err, AC_E_NOT_FOUND);
    CHECK_OK(ac_control_create(&dir, fd, 4096, &err), err);
    CHECK_OK(ac_control_open(&dir, fd, 1, 1, &map, &err), err);
    ac_control_t *control = ac_control_of(map);
    CHECK_EQUAL(control->segment_size, 4096);
    CHECK_EQUAL(control->init_state, AC_CONTROL_READY);
    CHECK_EQUAL(control->write_offset, AC_SEGMENT_DATA);
    CHECK(control->queue_id != 0);
    CHECK_EQUAL(control->writer_epoch, 0);
    ac_map_release(map);
    ac_os_close(fd);
}

/* Two processes that find no queue both create one: the second must get the first's. */
TEST(creating_does_not_replace_what_another_created) {
    ac_control_t before, after;
    int fd = open_directory();
    CHECK_OK(ac_control_create(&dir, fd, 4096, &err), err);
    peek(dir.path, "control.meta", 0, &before, sizeof before);
    CHECK_OK(ac_control_create(&dir, fd, 8192, &err), err);
    peek(dir.path, "control.meta", 0, &after, sizeof after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    ac_os_close(fd);
}

enum { RACERS = 8 };

static void *race(void *argument) {
    ac_writer_config_t config = small_queue(4096);
    ac_error_t mine;
    int rc = ac_writer_open(dir.path, &config, argument, &mine);
    if (rc != AC_E_LOCKED) CHECK_OK(rc, mine);
    return NULL;
}

TEST_IN_MEMORY(of_many_who_create_a_queue_one_gets_it_and_its_block_is_the_one_in_the_directory) {
    for (int round = 0; round < 20; round++) {
        pthread_t threads[RACERS];
        ac_writer_t *writers[RACERS] = {0};
        char name[32];
        snprintf(name, sizeof name, "queue%d", round);
        snprintf(dir.path, sizeof dir.path, "%s", check_path(name));
        for (int i = 0; i < RACERS; i++)
            pthread_create(&threads[i], NULL, race, &writers[i]);
        int owners = 0;
        for (int i = 0; i < RACERS; i++) {
            pthread_join(threads[i], NULL);
            if (!writers[i]) continue;
            ac_writer_stats_t stats;
            ac_queue_info_t info;
            owners++;
            append_numbered(writers[i], 3);
            ac_writer_stats(writers[i], &stats);
            CHECK_OK(ac_queue_info(dir.path, &info, &err), err);
            CHECK(info.queue_id == stats.queue_id);
            CHECK_EQUAL(info.next_seq, 3);
        }
        CHECK(owners == 1);
        for (int i = 0; i < RACERS; i++)
            if (writers[i]) close_writer(writers[i]);
    }
}

TEST(wrong_blocks_are_told_apart) {
    ac_map_t *map;
    uint32_t bad_magic = 1, newer = 4, unfinished = 1, good_magic = AC_CONTROL_MAGIC;
    uint32_t good_version = AC_CONTROL_VERSION, ready = AC_CONTROL_READY;
    static const uint64_t sizes[] = {0, 64, 4095, 4096 + 1, (1ull << 32) + 64, UINT64_MAX};
    int fd = open_directory();
    CHECK_OK(ac_control_create(&dir, fd, 4096, &err), err);
    poke(dir.path, "control.meta", 0, &bad_magic, 4);
    CHECK_FAILS(ac_control_open(&dir, fd, 1, 1, &map, &err), err, AC_E_NOT_A_QUEUE);
    poke(dir.path, "control.meta", 0, &good_magic, 4);
    poke(dir.path, "control.meta", 4, &newer, 4);
    CHECK_FAILS(ac_control_open(&dir, fd, 1, 1, &map, &err), err, AC_E_VERSION);
    poke(dir.path, "control.meta", 4, &good_version, 4);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        poke(dir.path, "control.meta", 24, &sizes[i], 8);
        CHECK_FAILS(ac_control_open(&dir, fd, 1, 1, &map, &err), err, AC_E_CORRUPT);
        CHECK_EQUAL(err.offset, 24);
    }
    poke(dir.path, "control.meta", 8, &unfinished, 4);
    CHECK_FAILS(ac_control_open(&dir, fd, 0, 1, &map, &err), err, AC_E_CORRUPT);
    uint64_t waited_until = ac_os_monotonic_ns(); /* once, as if another process completed it */
    CHECK_FAILS(ac_control_open(&dir, fd, 0, 1, &map, &err), err, AC_E_CORRUPT);
    CHECK(ac_os_monotonic_ns() - waited_until < 900000000u);
    poke(dir.path, "control.meta", 8, &ready, 4);
    CHECK_EQUAL(truncate(check_path("queue/control.meta"), 511), 0);
    CHECK_FAILS(ac_control_open(&dir, fd, 1, 1, &map, &err), err, AC_E_CORRUPT);
    ac_os_close(fd);
}

static struct {
    ac_control_t control;
    uint32_t stop;
} seqlock;

/* Always offset = 64 + 64 * segment, unless a read was torn. */
static void *move(void *unused) {
    (void)unused;
    for (uint32_t segment = 0; !ac_load_relaxed_u32(&seqlock.stop); segment++)
        ac_control_set_position(&seqlock.control, segment, 64 + 64 * (uint64_t)segment);
    return NULL;
}

TEST(a_position_is_never_read_half_way) {
    pthread_t thread;
    uint32_t segment;
    uint64_t offset, seen = 0;
    ac_control_set_position(&seqlock.control, 0, 64);
    pthread_create(&thread, NULL, move, NULL);
    for (int consistent = 0; consistent < 100000 || seen == 0;) {
        if (!ac_control_position(&seqlock.control, &segment, &offset)) continue;
        CHECK_EQUAL(offset, 64 + 64 * (uint64_t)segment);
        seen |= segment;
        consistent++;
    }
    ac_store_relaxed_u32(&seqlock.stop, 1);
    pthread_join(thread, NULL);
    CHECK_EQUAL(seqlock.control.segment_gen % 2, 0);
}

TEST(a_writer_that_died_between_segments_does_not_stop_readers_or_its_successor) {
    ac_control_t control = {.segment_gen = 7, .current_segment = 3, .write_offset = 128};
    uint32_t segment;
    uint64_t offset;
    CHECK_EQUAL(ac_control_position(&control, &segment, &offset), 0);
    CHECK_EQUAL(segment, 3);
    CHECK_EQUAL(offset, 128);
    ac_control_set_position(&control, 4, 64);
    CHECK_EQUAL(control.segment_gen, 8);
}
