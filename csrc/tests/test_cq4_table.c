#include "cq4_table.h"

#include "cq4_files.h"
#include "cq4_lock.h"
#include "cq4_temporary.h"
#include "forks.h"
#include "queue.h"

#include <sys/wait.h>

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
    /* An entry added later is found in the same mapping. */
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
    busy = 0xDEADBEEF; /* no JVM writes this */
    memcpy(written.out.base, &busy, 4);
    CHECK_FAILS(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err,
                AC_E_CORRUPT);
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

/* After any change of one byte: an error, or values inside the mapping. */
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

/* ---- what we write ---- */

static int count_files(const char *path) {
    DIR *stream = opendir(path);
    int count = -2; /* itself and the one above */
    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

static int is_any(void *context, const char *key, uint64_t *value) {
    (void)context, (void)key, (void)value;
    return 0;
}

static int count_key(void *context, const char *key, uint64_t *value) {
    (void)value;
    if (strncmp(key, "index.", 6) == 0) ((int *)context)[atoi(key + 6)]++;
    return 0;
}

static uint64_t kill_at, kill_seen;

static int kill_hook(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    (void)context, (void)call, (void)path, (void)fd, (void)offset, (void)length;
    if (++kill_seen == kill_at) _exit(0);
    return 0;
}

static uint64_t value_of(const ac_cq4_table_t *table, const char *key) {
    uint64_t *value;
    CHECK_EQUAL(ac_cq4_table_find(table, key, &value), 1);
    return *value;
}

TEST(a_created_table_is_that_of_java_5_26) {
    ac_cq4_table_t table;
    uint64_t *value;
    /* Records of 5.24 to 5.26 for FAST_DAILY, as JVMs write them. */
    static const struct {
        const char *key;
        uint64_t at, value;
    } keys[] = {{AC_CQ4_KEY_HIGHEST, 208, 1ull << 63},
                {AC_CQ4_KEY_LOWEST, 248, INT32_MAX},
                {AC_CQ4_KEY_MOD_COUNT, 280, 0},
                {AC_CQ4_KEY_WRITE_LOCK, 320, 1ull << 63},
                {AC_CQ4_KEY_APPEND_LOCK, 360, 1ull << 63},
                {AC_CQ4_KEY_LAST_REPLICATED, 408, UINT64_MAX},
                {AC_CQ4_KEY_LAST_ACKNOWLEDGED, 464, UINT64_MAX},
                {AC_CQ4_KEY_LAST_SYNCED, 512, UINT64_MAX}};
    ac_cq4_roll_t roll = cq4_known_roll("FAST_DAILY");
    open_directory();
    CHECK_OK(ac_cq4_table_create(&dir, dir_fd, &roll, &err), err);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &table, &err), err);
    CHECK_EQUAL(table.map->size, 131072);
    CHECK_EQUAL(table.first, 180);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        CHECK_EQUAL(ac_cq4_table_find(&table, keys[i].key, &value), 1);
        CHECK_EQUAL((uint8_t *)value - table.map->base, keys[i].at);
        CHECK_EQUAL(*value, keys[i].value);
    }
    CHECK_EQUAL(value_of(&table, AC_CQ4_KEY_ENDS_UP_TO), 0);
    CHECK(strcmp(table.roll.format, roll.format) == 0);
    CHECK_EQUAL(table.roll.length_ms, 86400000);
    ac_cq4_table_close(&table);
    /* A second creation does not change the first, and leaves no temporary file. */
    ac_cq4_roll_t other = cq4_known_roll("HOURLY");
    CHECK_OK(ac_cq4_table_create(&dir, dir_fd, &other, &err), err);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &table, &err), err);
    CHECK_EQUAL(table.roll.length_ms, 86400000);
    CHECK_EQUAL(count_files(dir.path), 1);
    ac_cq4_table_close(&table);
    ac_os_close(dir_fd);
}

TEST(an_epoch_of_any_size_comes_back) {
    static const int64_t epochs[] = {
        0,        1,        -1,         255,        256,    -129,       32768,       65536,
        -3600000, 61200000, 4294967295, 4294967296, -40000, 2147483648, -2147483649, 1600000123456};
    for (size_t i = 0; i < sizeof epochs / sizeof *epochs; i++) {
        ac_cq4_table_t table;
        ac_cq4_roll_t roll = cq4_known_roll("HOURLY");
        roll.epoch_ms = epochs[i];
        open_directory();
        CHECK_OK(ac_cq4_table_create(&dir, dir_fd, &roll, &err), err);
        CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err), err);
        CHECK_EQUAL(table.roll.epoch_ms, epochs[i]);
        CHECK_EQUAL(value_of(&table, AC_CQ4_KEY_WRITE_LOCK), 1ull << 63);
        ac_cq4_table_close(&table);
        CHECK_EQUAL(unlinkat(dir_fd, AC_CQ4_METADATA, 0), 0);
        ac_os_close(dir_fd);
    }
}

static void open_created(ac_cq4_table_t *table) {
    ac_cq4_roll_t roll = cq4_known_roll("FAST_DAILY");
    open_directory();
    CHECK_OK(ac_cq4_table_create(&dir, dir_fd, &roll, &err), err);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, table, &err), err);
}

TEST(a_key_is_added_once_and_stays) {
    ac_cq4_table_t table, again;
    uint64_t *value, *same;
    open_created(&table);
    CHECK_OK(ac_cq4_table_add(&table, &dir, "index.a", 5, AC_CQ4_KEY_TIMEOUT_NS, &value, &err),
             err);
    CHECK_EQUAL(*value, 5);
    ac_store_release_u64(value, 6);
    CHECK_OK(ac_cq4_table_add(&table, &dir, "INDEX.A", 7, AC_CQ4_KEY_TIMEOUT_NS, &same, &err), err);
    CHECK(same == value);
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &again, &err), err);
    CHECK_EQUAL(value_of(&again, "index.a"), 6);
    CHECK_EQUAL(value_of(&again, AC_CQ4_KEY_WRITE_LOCK), AC_CQ4_UNLOCKED);
    CHECK_FAILS(ac_cq4_table_add(&table, &dir, "", 7, AC_CQ4_KEY_TIMEOUT_NS, &same, &err), err,
                AC_E_NAME);
    char long_key[AC_CQ4_KEY_MAX + 1];
    memset(long_key, 'x', sizeof long_key);
    long_key[AC_CQ4_KEY_MAX] = 0;
    CHECK_FAILS(ac_cq4_table_add(&table, &dir, long_key, 7, AC_CQ4_KEY_TIMEOUT_NS, &same, &err),
                err, AC_E_NAME);
    long_key[AC_CQ4_KEY_MAX - 1] = 0; /* its length has two bytes */
    CHECK_OK(ac_cq4_table_add(&table, &dir, long_key, 7, AC_CQ4_KEY_TIMEOUT_NS, &same, &err), err);
    CHECK_EQUAL(value_of(&again, long_key), 7);
    ac_cq4_table_close(&again);
    ac_cq4_table_close(&table);
    ac_os_close(dir_fd);
}

TEST(keys_are_refused_before_java_would_fail) {
    ac_cq4_table_t table;
    uint64_t *value, end;
    char key[32];
    int count = 0, rc;
    open_created(&table);
    do {
        snprintf(key, sizeof key, "index.reader%d", count++);
        rc = ac_cq4_table_add(&table, &dir, key, 0, AC_CQ4_KEY_TIMEOUT_NS, &value, &err);
    } while (rc == AC_OK);
    CHECK_EQUAL(rc, AC_E_TOO_MANY_READERS);
    CHECK(count > 1300);
    ac_cq4_table_each(&table, is_any, NULL, &end);
    CHECK(end <= 65536 && end > 65536 - 64);
    ac_cq4_table_close(&table);
    ac_os_close(dir_fd);
}

TEST(processes_and_threads_add_keys_at_the_same_time) {
    enum { PROCESSES = 4, KEYS = 60 };
    ac_cq4_table_t table;
    int counted[PROCESSES * KEYS] = {0};
    open_created(&table);
    for (int process = 0; process < PROCESSES; process++) {
        if (fork() != 0) continue;
        ac_cq4_table_t own;
        uint64_t *value;
        CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &own, &err), err);
        for (int i = 0; i < KEYS; i++) {
            char key[32];
            /* Half of them are open to all users. */
            snprintf(key, sizeof key, "index.%d", i % 2 ? i : process * KEYS + i);
            CHECK_OK(
                ac_cq4_table_add(&own, &dir, key, (uint64_t)i, AC_CQ4_KEY_TIMEOUT_NS, &value, &err),
                err);
        }
        _exit(0);
    }
    for (int process = 0; process < PROCESSES; process++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    ac_cq4_table_each(&table, count_key, counted, NULL);
    for (int i = 0; i < PROCESSES * KEYS; i++)
        CHECK_EQUAL(counted[i], i % 2 == 0 || i < KEYS);
    CHECK_EQUAL(value_of(&table, AC_CQ4_KEY_WRITE_LOCK), AC_CQ4_UNLOCKED);
    ac_cq4_table_close(&table);
    ac_os_close(dir_fd);
}

TEST(a_killed_creator_leaves_nothing_that_matters) {
    ac_cq4_table_t table;
    ac_cq4_roll_t roll = cq4_known_roll("FAST_DAILY");
    open_directory();
    /* After each of its system calls that change something. */
    for (uint64_t call = 1; call < 12; call++) {
        pid_t child = fork();
        if (child == 0) {
            kill_at = call;
            ac_os_set_hook(kill_hook, NULL);
            ac_cq4_table_create(&dir, dir_fd, &roll, &err);
            _exit(0);
        }
        CHECK_EQUAL(waitpid(child, NULL, 0), child);
        int rc = ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &table, &err);
        CHECK(rc == AC_OK || rc == AC_E_NOT_FOUND);
        if (rc == AC_OK) {
            CHECK_EQUAL(value_of(&table, AC_CQ4_KEY_ENDS_UP_TO), 0);
            ac_cq4_table_close(&table);
            CHECK_EQUAL(unlinkat(dir_fd, AC_CQ4_METADATA, 0), 0);
        }
        ac_cq4_temporary_clean(dir_fd);
        CHECK_EQUAL(count_files(dir.path), 0);
    }
    ac_os_close(dir_fd);
}
