#include "cq4_cycle.h"

#include "cq4_files.h"
#include "queue.h"

enum { SIZE = 256 << 10, MESSAGES = 700 };

static ac_directory_t dir;
static ac_error_t err;
static int dir_fd;
static char name[AC_CQ4_NAME_MAX];
static cq4_file_t written;
static uint64_t offsets[MESSAGES + 1];
static ac_cq4_cycle_t cycle;

/* The index count and spacing of the file may differ from those of the roll cycle. */
static void create(uint32_t count, uint32_t spacing, int is_old) {
    ac_cq4_roll_t roll = cq4_known_roll("TEST_DAILY");
    roll.index_count = count;
    roll.index_spacing = spacing;
    roll.shift = ac_cq4_shift(count, spacing);
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
    CHECK_EQUAL(ac_cq4_roll_file_name(&roll, 3, name), AC_OK);
    unlink(check_path("queue/19700104T1.cq4"));
    written = cq4_create_cycle(dir.path, &roll, 3, SIZE, is_old);
}

static void append(int count) {
    uint8_t payload[PAYLOAD_MAX];
    for (int i = 0; i < count; i++) {
        size_t length = payload_of(written.seq, payload) % 60 + 1;
        offsets[written.seq] = cq4_append(&written, payload, (uint32_t)length);
    }
    offsets[written.seq] = written.out.at;
}

static void open_cycle(void) {
    CHECK_OK(ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err), err);
}

static void finish(void) {
    ac_cq4_cycle_close(&cycle);
    cq4_close_file(&written.out);
    ac_os_close(dir_fd);
}

static void check_every_message(void) {
    for (uint64_t seq = 0; seq < written.seq; seq++) {
        ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, seq);
        CHECK_EQUAL(place.kind, AC_CQ4_DATA);
        CHECK_EQUAL(place.seq, seq);
        CHECK_EQUAL(place.offset, offsets[seq]);
    }
    ac_cq4_place_t end = ac_cq4_cycle_end(&cycle);
    CHECK_EQUAL(end.seq, written.seq);
    CHECK_EQUAL(end.offset, written.out.at);
    CHECK_EQUAL(ac_cq4_cycle_find(&cycle, written.seq + 5).seq, written.seq);
    CHECK_EQUAL(ac_cq4_cycle_find(&cycle, UINT64_MAX).offset, written.out.at);
}

TEST(every_message_is_found_by_its_seq_and_by_its_offset) {
    static const uint32_t shapes[][2] = {{8, 1}, {16, 2}, {32, 4}, {128, 8}, {4096, 256}};
    for (int is_old = 0; is_old < 2; is_old++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            create(shapes[i][0], shapes[i][1], is_old);
            uint32_t room = shapes[i][0] * shapes[i][0] * shapes[i][1]; /* more cannot be indexed */
            append(room < MESSAGES ? (int)room : MESSAGES);
            open_cycle();
            check_every_message();
            for (uint64_t seq = 0; seq <= written.seq; seq++) {
                ac_cq4_place_t place = ac_cq4_cycle_place_at(&cycle, offsets[seq]);
                CHECK_EQUAL(place.offset, offsets[seq]);
                CHECK_EQUAL(place.seq, seq);
                place = ac_cq4_cycle_place_at(&cycle, offsets[seq] + 1);
                CHECK(place.offset != offsets[seq] + 1);
            }
            finish();
        }
}

TEST(seeking_does_not_read_the_file_from_its_start) {
    create(32, 4, 0);
    append(MESSAGES);
    open_cycle();
    memset(written.out.base + offsets[10], 0xFF, 400); /* no walk can pass this */
    ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, 301);
    CHECK_EQUAL(place.kind, AC_CQ4_DATA);
    CHECK_EQUAL(place.offset, offsets[301]);
    CHECK_EQUAL(ac_cq4_cycle_end(&cycle).seq, MESSAGES);
    CHECK_EQUAL(ac_cq4_cycle_place_at(&cycle, offsets[650]).seq, 650);
    finish();
}

TEST(slots_that_are_missing_or_wrong_cost_time_only) {
    uint64_t random = check_seed() | 1;
    for (int round = 0; round < 60; round++) {
        create(32, 4, round % 2);
        append(MESSAGES);
        for (uint64_t page = 0; page < 5; page++) {
            uint64_t offset = cq4_get(&written.out, written.pages + page * 8);
            uint8_t *values = written.out.base + offset + 4;
            while (*values != 0x8D)
                values++;
            if (check_random(&random) % 8 == 0) cq4_set(&written.out, written.pages + page * 8, 0);
            int liars = 1; /* two might agree with each other */
            for (int slot = 0; slot < 32; slot++) {
                uint64_t value, any = check_random(&random);
                uint8_t *at = values + 17 + slot * 8;
                memcpy(&value, at, 8);
                switch (any % 12) {
                case 0:
                    value = 0;
                    break;
                case 1:
                    value += 1; /* unaligned, or in a payload */
                    break;
                case 2:
                    value = any; /* after the end */
                    break;
                case 3:
                    if (liars-- > 0) value = offsets[any / 16 % MESSAGES]; /* another message */
                    break;
                case 4:
                    value = offset; /* metadata */
                    break;
                }
                memcpy(at, &value, 8);
            }
        }
        open_cycle();
        check_every_message();
        finish();
    }
}

TEST(the_end_is_found_whatever_the_write_position_says) {
    create(32, 4, 0);
    append(100);
    cycle.map = NULL;
    open_cycle();
    uint64_t position = offsets[99], stale = offsets[40];
    const uint64_t pairs[][2] = {
        {position, (position << 32) + 99},
        {position, (position << 40) + 99},    /* of a roll cycle with another shift */
        {position, (stale << 32) + 40},       /* between the two stores */
        {stale, (stale << 32) + 40},          /* before both */
        {stale, (stale << 32) + 41},          /* wrong */
        {position + 4, (position << 32) + 4}, /* in a payload */
        {0, 0},
        {UINT64_MAX, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (uint32_t shift = 32; shift <= 40; shift += 8) {
            cq4_set(&written.out, written.write_position, pairs[i][0]);
            cq4_set(&written.out, written.write_position + 8, pairs[i][1]);
            cycle.shift = shift;
            CHECK_EQUAL(ac_cq4_cycle_end(&cycle).seq, 100);
            CHECK_EQUAL(ac_cq4_cycle_end(&cycle).offset, offsets[100]);
        }
    finish();
}

TEST(an_empty_file_has_no_message_and_one_that_is_being_created_is_not_there) {
    uint32_t was, unfinished[] = {AC_CQ4_NOT_COMPLETE, AC_CQ4_NOT_COMPLETE | AC_CQ4_META_BIT, 0};
    create(32, 4, 0);
    open_cycle();
    CHECK(!ac_cq4_cycle_has_message(&cycle));
    CHECK_EQUAL(ac_cq4_cycle_end(&cycle).seq, 0);
    append(1);
    CHECK(ac_cq4_cycle_has_message(&cycle));
    ac_cq4_cycle_close(&cycle);
    memcpy(&was, written.out.base, 4);
    for (int i = 0; i < 3; i++) {
        memcpy(written.out.base, &unfinished[i], 4);
        CHECK_FAILS(ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err), err, AC_E_NOT_FOUND);
        CHECK_EQUAL(err.sys_errno, EAGAIN);
    }
    memcpy(written.out.base, &was, 4);
    open_cycle();
    finish();
    CHECK_EQUAL(truncate(check_path("queue/19700104T1.cq4"), 0), 0);
    CHECK_FAILS(ac_cq4_cycle_open(&dir, AT_FDCWD, name, 3, 0, &cycle, &err), err, AC_E_NOT_FOUND);
}

TEST(a_file_that_has_grown_is_mapped_again_and_old_mappings_stay) {
    create(32, 4, 0);
    append(10);
    CHECK_EQUAL(truncate(check_path("queue/19700104T1.cq4"), 8192), 0);
    open_cycle();
    CHECK_EQUAL(cycle.map->size, 8192);
    ac_map_t *held = cycle.map;
    ac_map_retain(held);
    CHECK_EQUAL(ac_cq4_cycle_refresh(&cycle, &err), 0);
    CHECK_EQUAL(truncate(check_path("queue/19700104T1.cq4"), SIZE), 0);
    CHECK_EQUAL(ac_cq4_cycle_refresh(&cycle, &err), 1);
    CHECK_EQUAL(cycle.map->size, SIZE);
    CHECK(held->base[offsets[9]] == cycle.map->base[offsets[9]]);
    ac_map_release(held);
    append(MESSAGES - 10);
    check_every_message();
    CHECK_EQUAL(rename(check_path("queue/19700104T1.cq4"), check_path("queue/away")), 0);
    CHECK_EQUAL(ac_cq4_cycle_refresh(&cycle, &err), 0); /* removed: what is mapped can be read */
    poke(dir.path, name, 0, "another", 7);
    CHECK_FAILS(ac_cq4_cycle_refresh(&cycle, &err), err, AC_E_GONE);
    finish();
}

TEST(headers_that_cannot_be_are_refused_with_path) {
    create(32, 4, 0);
    uint8_t *base = written.out.base;
    uint8_t *count = memmem(base, 200, "indexCount\xA1", 11), *format;
    format = memmem(base, 300, "dataFormat\xA1", 11);
    CHECK(count && format);
    count[11] = 33; /* not a power of two */
    CHECK_FAILS(ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err), err, AC_E_CORRUPT);
    CHECK(strstr(err.path, "19700104T1.cq4"));
    count[11] = 32;
    format[11] = 2;
    CHECK_FAILS(ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err), err, AC_E_VERSION);
    format[11] = 1;
    base[4] = 0xC6;
    memcpy(base + 5, "reader", 6);
    CHECK_FAILS(ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err), err, AC_E_CORRUPT);
    cycle.map = NULL;
    finish();
}

/* Whatever a bit of it becomes: an error, or places inside the mapping. */
TEST(any_damage_to_header_and_index_is_an_error_or_harmless) {
    create(8, 1, 0);
    append(20);
    for (uint64_t at = 0; at < 700; at++)
        for (int bit = 0; bit < 8; bit++) {
            written.out.base[at] ^= (uint8_t)(1 << bit);
            if (ac_cq4_cycle_open(&dir, dir_fd, name, 3, 0, &cycle, &err) == AC_OK) {
                for (uint64_t seq = 0; seq < 25; seq += 3)
                    CHECK(ac_cq4_cycle_find(&cycle, seq).offset <= SIZE);
                CHECK(ac_cq4_cycle_end(&cycle).offset <= SIZE);
                ac_cq4_cycle_place_at(&cycle, offsets[13]);
                ac_cq4_cycle_close(&cycle);
            }
            written.out.base[at] ^= (uint8_t)(1 << bit);
        }
    open_cycle();
    check_every_message();
    finish();
}
