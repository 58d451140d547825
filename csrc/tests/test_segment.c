#include "segment.h"

#include "queue.h"

#include <sys/wait.h>

enum { SIZE = 64 << 10 };

static ac_directory_t dir;
static ac_error_t err;

static int open_directory(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    return fd;
}

TEST(a_new_segment_is_whole_zero_and_not_sealed) {
    ac_map_t *map;
    struct stat info;
    int fd = open_directory();
    CHECK_OK(ac_segment_create(&dir, fd, 7, SIZE, &map, &err), err);
    CHECK_EQUAL(map->segment, 7);
    CHECK_EQUAL(map->size, SIZE);
    CHECK(!ac_segment_sealed(map));
    for (int i = AC_SEGMENT_DATA; i < SIZE; i++)
        CHECK_EQUAL(map->base[i], 0);
    CHECK_EQUAL(ac_os_stat_at(fd, "000000007.q", &info), 0);
    CHECK_EQUAL(info.st_size, SIZE);
    CHECK_EQUAL(info.st_mode & 07777, 0600);
    CHECK(info.st_blocks * 512 >= SIZE);
    CHECK(!exists(dir.path, "000000007.q.tmp"));
    CHECK_EQUAL(ac_segment_end(map), 0);
    ac_segment_seal(map, 192);
    CHECK(ac_segment_sealed(map));
    CHECK_EQUAL(ac_segment_end(map), 192);
    ac_map_release(map);
    CHECK_OK(ac_segment_open(&dir, fd, 7, SIZE, 0, &map, &err), err);
    CHECK(ac_segment_sealed(map));
    ac_map_release(map);
    ac_os_close(fd);
}

TEST(an_existing_segment_is_never_replaced) {
    ac_map_t *map, *second;
    int fd = open_directory();
    CHECK_OK(ac_segment_create(&dir, fd, 0, SIZE, &map, &err), err);
    map->base[64] = 42;
    CHECK_FAILS(ac_segment_create(&dir, fd, 0, SIZE, &second, &err), err, AC_E_SYSTEM);
    CHECK_EQUAL(err.sys_errno, EEXIST);
    CHECK(!exists(dir.path, "000000000.q.tmp"));
    ac_map_release(map);
    CHECK_OK(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err);
    CHECK_EQUAL(map->base[64], 42);
    ac_map_release(map);
    ac_os_close(fd);
}

TEST(a_segment_that_cannot_be_made_leaves_nothing_behind) {
    static const int calls[] = {AC_CALL_OPEN,   AC_CALL_CHMOD, AC_CALL_ALLOCATE,
                                AC_CALL_WRITE,  AC_CALL_SYNC,  AC_CALL_SYNC_DIR,
                                AC_CALL_RENAME, AC_CALL_MAP,   AC_CALL_ALLOC};
    int fd = open_directory();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        failing_t failing = {.call = calls[i], .error = ENOSPC};
        ac_map_t *map;
        ac_os_set_hook(fail_hook, &failing);
        int rc = ac_segment_create(&dir, fd, 0, SIZE, &map, &err);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(failing.failed, 1);
        CHECK(rc == AC_E_NO_SPACE || (calls[i] == AC_CALL_ALLOC && rc == AC_E_SYSTEM));
        CHECK(!exists(dir.path, "000000000.q"));
        CHECK(!exists(dir.path, "000000000.q.tmp"));
    }
    ac_os_close(fd);
}

TEST(wrong_headers_are_told_apart) {
    ac_map_t *map;
    uint32_t zero[3] = {0}, newer[3] = {AC_SEGMENT_MAGIC, 3, 0};
    uint32_t other[3] = {AC_SEGMENT_MAGIC, AC_SEGMENT_VERSION, 5}, noise[3] = {1, 2, 3};
    int fd = open_directory();
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_NOT_FOUND);
    CHECK_OK(ac_segment_create(&dir, fd, 0, SIZE, &map, &err), err);
    ac_map_release(map);
    poke(dir.path, "000000000.q", 0, zero, sizeof zero);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_CORRUPT);
    CHECK(strstr(err.detail, "zero") && strstr(err.path, "000000000.q"));
    poke(dir.path, "000000000.q", 0, noise, sizeof noise);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_CORRUPT);
    poke(dir.path, "000000000.q", 0, newer, sizeof newer);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_VERSION);
    poke(dir.path, "000000000.q", 0, other, sizeof other);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 1, &map, &err), err, AC_E_CORRUPT);
    CHECK_EQUAL(err.offset, 8);
    ac_os_close(fd);
}

TEST(a_cut_segment_is_mapped_as_far_as_it_goes) {
    ac_map_t *map;
    int fd = open_directory();
    CHECK_OK(ac_segment_create(&dir, fd, 0, SIZE, &map, &err), err);
    ac_map_release(map);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 1000), 0);
    CHECK_OK(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err);
    CHECK_EQUAL(map->size, 960);
    ac_map_release(map);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 63), 0);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_CORRUPT);
    ac_os_close(fd);
}

TEST(links_pipes_and_directories_are_not_segments) {
    ac_map_t *map;
    int fd = open_directory();
    CHECK_EQUAL(symlink("/etc/passwd", check_path("queue/000000000.q")), 0);
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_NOT_A_QUEUE);
    CHECK_EQUAL(mkfifo(check_path("queue/000000001.q"), 0600), 0);
    alarm(20); /* opening a pipe without a writer would block */
    CHECK_FAILS(ac_segment_open(&dir, fd, 1, SIZE, 0, &map, &err), err, AC_E_NOT_A_QUEUE);
    alarm(0);
    CHECK_EQUAL(mkdir(check_path("queue/000000002.q"), 0700), 0);
    CHECK(ac_segment_open(&dir, fd, 2, SIZE, 0, &map, &err) < 0);
    CHECK_OK(ac_segment_create(&dir, fd, 3, SIZE, &map, &err), err);
    ac_map_release(map);
    ac_os_close(fd);
}

TEST(a_second_name_is_harmless_unless_it_may_be_another_user_s_file) {
    ac_map_t *map;
    int fd = open_directory();
    CHECK_OK(ac_segment_create(&dir, fd, 0, SIZE, &map, &err), err);
    ac_map_release(map);
    CHECK_EQUAL(link(check_path("queue/000000000.q"), check_path("snapshot.q")), 0);
    CHECK_OK(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err);
    ac_map_release(map);
    dir.owner = 1001; /* whose directory has a file of ours in it */
    CHECK_FAILS(ac_segment_open(&dir, fd, 0, SIZE, 0, &map, &err), err, AC_E_NOT_A_QUEUE);
    ac_os_close(fd);
}

TEST(the_list_has_segments_only_and_in_order) {
    static const char *const names[] = {"000000010.q",   "000000002.q",  "1000000000.q",
                                        "000000003.idx", "00000004.q",   "000000005.q.tmp",
                                        "99999999999.q", "control.meta", "4294967295.q"};
    uint32_t *ids, first, last;
    size_t count;
    int fd = open_directory();
    CHECK_OK(ac_segment_bounds(&dir, fd, &first, &last, &count, &err), err);
    CHECK_EQUAL(count, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        poke(dir.path, names[i], 0, "x", 1);
    CHECK_OK(ac_segment_list(&dir, fd, &ids, &count, &err), err);
    CHECK_EQUAL(count, 3);
    CHECK_EQUAL(ids[0], 2);
    CHECK_EQUAL(ids[1], 10);
    CHECK_EQUAL(ids[2], 1000000000);
    free(ids);
    CHECK_OK(ac_segment_bounds(&dir, fd, &first, &last, &count, &err), err);
    CHECK_EQUAL(first, 2);
    CHECK_EQUAL(last, 1000000000);
    ac_os_close(fd);
}

/* Filling ahead writes zeros: it must not touch a byte before `from` or after `to`. */
TEST(populating_leaves_everything_outside_as_it_is) {
    ac_map_t *map;
    uint64_t random = check_seed() | 1;
    int fd = open_directory();
    CHECK_OK(ac_segment_create(&dir, fd, 0, SIZE, &map, &err), err);
    for (int round = 0; round < 200; round++) {
        uint64_t from = 64 + check_random(&random) % (SIZE - 64) / 64 * 64;
        uint64_t to = from + check_random(&random) % (SIZE - from + 1);
        uint64_t piece = 4096u << check_random(&random) % 10;
        memset(map->base + 64, 0xee, from - 64);
        memset(map->base + from, 0, SIZE - from);
        if (to < SIZE) memset(map->base + to, 0xdd, SIZE - to);
        CHECK_EQUAL(ac_segment_populate(map, from, to, piece), 0);
        for (uint64_t i = 64; i < SIZE; i++)
            CHECK_EQUAL(map->base[i], i < from ? 0xee : i < to ? 0 : 0xdd);
    }
    ac_map_release(map);
    ac_os_close(fd);
}
