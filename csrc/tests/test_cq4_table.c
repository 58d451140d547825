#include "cq4_table.h"

#include "cq4_writer.h"
#include "queue.h"

static ac_directory_t dir;
static ac_error_t err;
static int dir_fd;

static void open_directory(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
}

static cq4_table_t create(const char *roll_name) {
    ac_cq4_roll_t roll = cq4_known_roll(roll_name);
    open_directory();
    return cq4_create_table(dir.path, &roll);
}

TEST(the_header_gives_the_roll_and_keys_give_addresses) {
    ac_cq4_table_t table;
    uint64_t *value;
    cq4_table_t written = create("TEST4_SECONDLY");
    cq4_add_key(&written.out, "index.M\xFCller", 77);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &table, &err), err);
    CHECK(strcmp(table.roll.format, "yyyyMMdd-HHmmss'T4'") == 0);
    CHECK_EQUAL(table.roll.length_ms, 1000);
    CHECK_EQUAL(table.roll.epoch_ms, 0);
    CHECK_EQUAL(ac_cq4_table_find(&table, "LISTING.modcount", &value), 1);
    CHECK_EQUAL((uintptr_t)value % 8, 0);
    cq4_set(&written.out, written.mod_count, 5);
    CHECK_EQUAL(ac_load_acquire_u64(value), 5);
    ac_store_release_u64(value, 6);
    CHECK_EQUAL(cq4_get(&written.out, written.mod_count), 6);
    CHECK_EQUAL(ac_cq4_table_find(&table, "index.m\xDCLLER", &value), 1);
    CHECK_EQUAL(*value, 77);
    CHECK_EQUAL(ac_cq4_table_find(&table, "index.", &value), 0);
    CHECK_EQUAL(ac_cq4_table_find(&table, "index.M\xFCllers", &value), 0);
    /* One that comes later is found in the same mapping. */
    cq4_add_key(&written.out, "index.late", 9);
    CHECK_EQUAL(ac_cq4_table_find(&table, "index.late", &value), 1);
    CHECK_EQUAL(*value, 9);
    ac_cq4_table_close(&table);
    cq4_close_file(&written.out);
    ac_os_close(dir_fd);
}

TEST(a_roll_time_is_kept_for_whoever_appends) {
    ac_cq4_table_t table;
    ac_cq4_roll_t roll = cq4_known_roll("DAILY");
    roll.epoch_ms = 61200000;
    open_directory();
    cq4_table_t written = cq4_create_table(dir.path, &roll);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err);
    CHECK_EQUAL(table.roll.epoch_ms, 61200000);
    CHECK(strcmp(table.roll_time, "17:00") == 0 && strcmp(table.roll_time_zone, "UTC") == 0);
    ac_cq4_table_close(&table);
    cq4_close_file(&written.out);
    ac_os_close(dir_fd);
}

TEST(a_table_that_is_being_created_is_not_there_yet) {
    ac_cq4_table_t table;
    uint32_t busy = AC_CQ4_NOT_COMPLETE, none = 0;
    cq4_table_t written = create("DAILY");
    memcpy(written.out.base, &busy, 4);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err,
                AC_E_NOT_FOUND);
    CHECK_EQUAL(err.sys_errno, EAGAIN);
    memcpy(written.out.base, &none, 4);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err,
                AC_E_NOT_FOUND);
    cq4_close_file(&written.out);
    CHECK_EQUAL(truncate(check_path("queue/metadata.cq4t"), 0), 0);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err,
                AC_E_NOT_FOUND);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, "other", 0, &table, &err), err, AC_E_NOT_FOUND);
    CHECK_EQUAL(err.sys_errno, ENOENT);
    ac_os_close(dir_fd);
}

TEST(another_file_is_refused_with_its_path) {
    ac_cq4_table_t table;
    open_directory();
    poke(dir.path, AC_CQ4_METADATA, 0, "something else altogether", 25);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err,
                AC_E_CORRUPT);
    CHECK(strstr(err.path, "queue/metadata.cq4t"));
    ac_os_close(dir_fd);
}

/* Whatever a byte of it becomes: an error, or values inside the mapping. */
TEST(any_damage_is_an_error_or_harmless) {
    ac_cq4_table_t table;
    uint64_t *value;
    cq4_table_t written = create("HOURLY");
    uint64_t end = written.out.at;
    for (uint64_t at = 0; at < end; at++) {
        uint8_t was = written.out.base[at];
        for (int bit = 0; bit < 8; bit++) {
            written.out.base[at] = (uint8_t)(was ^ 1 << bit);
            if (ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err) != AC_OK)
                continue;
            if (ac_cq4_table_find(&table, AC_CQ4_KEY_WRITE_LOCK, &value)) {
                uint64_t where = (uint64_t)((uint8_t *)value - table.map->base);
                CHECK(where % 8 == 0 && where + 8 <= table.map->size);
            }
            ac_cq4_table_close(&table);
        }
        written.out.base[at] = was;
    }
    cq4_close_file(&written.out);
    ac_os_close(dir_fd);
}
