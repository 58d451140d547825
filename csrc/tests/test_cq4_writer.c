#include "../cq4_writer.h"

#include "cq4_files.h"
#include "java_queue.h"

static const uint8_t *payload_of(const ac_message_t *message) {
    return message->record + AC_HEADER_SIZE;
}

/* ---- appending ---- */

TEST(what_is_appended_is_read_in_order) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    ac_cq4_writer_stats_t stats;
    uint64_t cycle, offset, first = 0;
    ac_cq4_writer_position(writer, &cycle, &offset);
    CHECK(cycle == START_MS / 86400000 && offset == 0);
    for (uint64_t i = 0; i < 4096; i++) {
        uint64_t index = put(writer, 1, i);
        if (i == 0) first = index;
        CHECK_EQUAL(index, first + i);
    }
    CHECK_EQUAL(first, (uint64_t)(START_MS / 86400000) << 32);
    /* 4096 = 32 * 32 * 4: the index has no place for more. */
    CHECK_FAILS(try_put(writer, 1, 4096), err, AC_E_FULL);
    CHECK_FAILS(try_put(writer, 1, 4096), err, AC_E_FULL);
    ac_cq4_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.messages, 4096);
    CHECK_EQUAL(stats.last_index, first + 4095);
    CHECK_EQUAL(stats.pages_added, 31);
    CHECK(stats.cycles_created == 1 && stats.lock_waits == 0);
    inventory_t seen = read_everything();
    CHECK_EQUAL(seen.count[1], 4096);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_HIGHEST), START_MS / 86400000);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_LOWEST), START_MS / 86400000);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_MOD_COUNT), 1);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_WRITE_LOCK), AC_CQ4_UNLOCKED);
    ac_cq4_writer_free(writer);
}

TEST(every_message_is_found_by_its_index) {
    static ac_cq4_tail_t tail;
    ac_cq4_writer_t *writer = open_java("TEST2_DAILY");
    ac_message_t message;
    uint64_t first = put(writer, 1, 0);
    for (uint64_t i = 1; i < 200; i++)
        put(writer, 1, i);
    CHECK_OK(ac_cq4_tail_open(&tail, check_path("queue"), &err), err);
    for (uint64_t i = 0; i < 200; i++) {
        char text[32];
        snprintf(text, sizeof text, "1:%" PRIu64, i);
        CHECK_OK(ac_cq4_tail_seek_index(&tail, first + i, &err), err);
        CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
        CHECK(message.length == strlen(text) &&
              memcmp(payload_of(&message), text, strlen(text)) == 0);
    }
    ac_cq4_tail_close(&tail);
    ac_cq4_writer_free(writer);
}

TEST(an_empty_message_is_one_byte_of_padding) {
    static ac_cq4_tail_t tail;
    ac_cq4_writer_t *writer = open_java("TEST_DAILY");
    ac_message_t message;
    CHECK_EQUAL(ac_cq4_writer_try_append(writer, "", 0), AC_E_SLOW);
    CHECK_OK(ac_cq4_writer_append(writer, NULL, 0, &err), err);
    CHECK_OK(ac_cq4_tail_open(&tail, check_path("queue"), &err), err);
    CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
    CHECK(message.length == 1 && payload_of(&message)[0] == 0x8F);
    ac_cq4_tail_close(&tail);
    ac_cq4_writer_free(writer);
}

/* Byte i of message n; the length is odd. */
static size_t large_length(uint64_t n) {
    return n % 3 == 2 ? AC_CQ4_PAYLOAD_MAX : AC_CQ4_PAYLOAD_MAX - 5 * n - 1;
}

TEST_IN_MEMORY(messages_of_any_length_lie_across_the_borders_of_chunks) {
    enum { COUNT = 11 };
    static uint8_t payload[AC_CQ4_PAYLOAD_MAX + 1];
    static ac_cq4_tail_t tail;
    ac_cq4_writer_t *writer = open_java("FAST_DAILY");
    ac_message_t message;
    struct stat info;
    for (uint64_t n = 0; n < COUNT; n++) {
        memset(payload, (int)n + 1, sizeof payload);
        CHECK_OK(ac_cq4_writer_append(writer, payload, large_length(n), &err), err);
    }
    CHECK_FAILS(ac_cq4_writer_append(writer, payload, sizeof payload, &err), err, AC_E_TOO_LARGE);
    /* 11 * 16 MiB reach into the third chunk. */
    CHECK_EQUAL(stat(cycle_path("FAST_DAILY", START_MS), &info), 0);
    CHECK_EQUAL(info.st_size, 218103808);
    CHECK_OK(ac_cq4_tail_open(&tail, check_path("queue"), &err), err);
    for (uint64_t n = 0; n < COUNT; n++) {
        CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
        CHECK_EQUAL(message.length, large_length(n));
        CHECK(payload_of(&message)[0] == n + 1 &&
              payload_of(&message)[message.length - 1] == n + 1);
    }
    CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 0);
    ac_cq4_tail_close(&tail);
    ac_cq4_writer_free(writer);
}

TEST(two_writers_go_on_after_each_other) {
    ac_cq4_writer_t *one = open_java("TEST4_DAILY"), *two = open_java(NULL);
    uint64_t index = put(one, 1, 0);
    for (uint64_t i = 1; i < 600; i++)
        CHECK_EQUAL(put(i % 3 ? one : two, i % 3 ? 1 : 2, i), index + i);
    inventory_t seen = read_everything();
    CHECK_EQUAL(seen.messages, 600);
    ac_cq4_writer_free(one);
    ac_cq4_writer_free(two);
}

/* ---- cycles ---- */

TEST(the_clock_leads_from_file_to_file) {
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY");
    ac_cq4_writer_stats_t stats;
    int64_t start = set_ms;
    for (uint64_t i = 0; i < 30; i++) {
        put(writer, 1, 2 * i);
        put(writer, 1, 2 * i + 1);
        set_ms += i % 5 == 0 ? 7000 : 1000; /* with gaps */
    }
    ac_cq4_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.cycles_created, 30);
    CHECK_EQUAL(stats.ends_written, 29);
    inventory_t seen = read_everything();
    CHECK(seen.messages == 60 && seen.cycles == 30);
    CHECK(is_finished());
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_LOWEST), start / 1000);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_HIGHEST), seen.last_index >> 32);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_MOD_COUNT), 30);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_ENDS_UP_TO), (seen.last_index >> 32) - 1);
    ac_cq4_writer_free(writer);
    set_ms = start;
}

TEST(an_epoch_moves_the_cycles) {
    static const int64_t epochs[] = {61200000, -3600000, 1600000123456};
    for (size_t i = 0; i < sizeof epochs / sizeof *epochs; i++) {
        ac_cq4_writer_config_t config = config_of("HOURLY");
        ac_cq4_writer_t *writer;
        config.epoch_ms = epochs[i];
        config.epoch_given = 1;
        char name[32];
        snprintf(name, sizeof name, "queue%zu", i);
        CHECK_OK(ac_cq4_writer_open(check_path(name), &config, &writer, &err), err);
        uint64_t index = put(writer, 1, 0);
        CHECK_EQUAL(index >> 32, (START_MS - epochs[i]) / 3600000);
        ac_cq4_writer_free(writer);
        config.epoch_ms++;
        CHECK_FAILS(ac_cq4_writer_open(check_path(name), &config, &writer, &err), err,
                    AC_E_ARGUMENT);
    }
}

TEST(a_clock_before_the_epoch_is_refused) {
    ac_cq4_writer_config_t config = config_of("HOURLY");
    ac_cq4_writer_t *writer;
    config.epoch_ms = START_MS + 1;
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err,
                AC_E_TIMESTAMP);
}

TEST(a_clock_that_is_behind_creates_nothing) {
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY"), *behind;
    int64_t start = set_ms;
    put(writer, 1, 0);
    set_ms += 5000;
    put(writer, 1, 1);
    /* One that is finished, and one that was never there. */
    set_ms = start;
    CHECK_FAILS(try_put(writer, 1, 2), err, AC_E_TIMESTAMP);
    set_ms = start + 2000;
    CHECK_FAILS(try_put(writer, 1, 2), err, AC_E_TIMESTAMP);
    behind = open_java(NULL);
    CHECK_FAILS(try_put(behind, 2, 0), err, AC_E_TIMESTAMP);
    CHECK(access(cycle_path("TEST_SECONDLY", set_ms), F_OK) != 0);
    /* When the clock is right again, appending works. */
    set_ms = start + 5500;
    put(writer, 1, 2);
    put(behind, 2, 1);
    inventory_t seen = read_everything();
    CHECK(seen.messages == 4 && seen.cycles == 2);
    ac_cq4_writer_free(writer);
    ac_cq4_writer_free(behind);
    set_ms = start;
}

static uint64_t ticking_clock(void *context) {
    static uint64_t start_ns;
    if (!start_ns) start_ns = ac_os_monotonic_ns();
    return set_clock(context) + ac_os_monotonic_ns() - start_ns;
}

TEST(a_clock_that_is_behind_is_waited_for) {
    ac_cq4_writer_config_t config = config_of("TEST_SECONDLY");
    ac_cq4_writer_t *writer;
    int64_t start = set_ms;
    config.clock_ns = ticking_clock;
    config.lock_timeout_ns = 5000000000u;
    CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err);
    put(writer, 1, 0);
    set_ms += 1000;
    put(writer, 1, 1);
    set_ms = start + 900;
    put(writer, 1, 2); /* a fraction of a second later */
    inventory_t seen = read_everything();
    CHECK(seen.messages == 3 && seen.cycles == 2);
    ac_cq4_writer_free(writer);
    set_ms = start;
}

/* As a pretoucher does: the next file exists before its time. The present one has no end mark, and the writer appends
 * to it. */
TEST(a_cycle_created_ahead_of_time_does_not_end_the_present_one) {
    ac_cq4_roll_t roll = cq4_known_roll("TEST_SECONDLY");
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY"), *later;
    int64_t start = set_ms;
    uint32_t now = (uint32_t)(start / 1000);
    put(writer, 1, 0);
    cq4_file_t next = cq4_create_cycle(check_path("queue"), &roll, now + 1, 83886080, 0);
    cq4_close_file(&next.out);
    ac_store_release_u64(table_value(AC_CQ4_KEY_HIGHEST), now + 1);
    put(writer, 1, 1);
    later = open_java(NULL);
    CHECK_EQUAL(put(later, 2, 0) >> 32, now);
    CHECK_EQUAL(put(writer, 1, 2) >> 32, now);
    CHECK(!is_finished());
    set_ms = start + 1000;
    CHECK_EQUAL(put(later, 2, 1) >> 32, now + 1);
    CHECK_EQUAL(put(writer, 1, 3) >> 32, now + 1);
    CHECK(is_finished());
    CHECK_EQUAL(read_everything().messages, 6);
    ac_cq4_writer_free(writer);
    ac_cq4_writer_free(later);
    set_ms = start;
}

/* ---- files that other writers left ---- */

TEST(missing_end_marks_are_written_when_a_queue_is_opened) {
    ac_cq4_roll_t roll = cq4_known_roll("TEST_SECONDLY");
    uint32_t now = (uint32_t)(START_MS / 1000);
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    cq4_table_t table = cq4_create_table(check_path("queue"), &roll);
    for (uint32_t i = 9; i > 0; i--) {
        cq4_file_t file = cq4_create_cycle(check_path("queue"), &roll, now - i, 1 << 20, 0);
        char text[16];
        snprintf(text, sizeof text, "1:%u", 10 - i);
        cq4_append(&file, text, (uint32_t)strlen(text));
        if (i == 6 || i == 3) cq4_finish(&file);
        cq4_close_file(&file.out);
    }
    CHECK(!is_finished());
    ac_cq4_writer_t *writer = open_java(NULL);
    CHECK(is_finished());
    /* Other writers may still append to the newest. */
    ac_cq4_writer_stats_t stats;
    ac_cq4_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.ends_written, 6);
    CHECK_EQUAL(cq4_get(&table.out, table.highest), now - 1);
    CHECK_EQUAL(cq4_get(&table.out, table.lowest), now - 9);
    put(writer, 1, 100);
    CHECK(is_finished());
    CHECK_EQUAL(read_everything().messages, 10);
    ac_cq4_writer_free(writer);
    cq4_close_file(&table.out);
}

/* Killed between link and listing; then a writer that does not know of the file moves on to a later
 * cycle. */
TEST(a_file_that_was_never_listed_is_finished) {
    ac_cq4_roll_t roll = cq4_known_roll("TEST_SECONDLY");
    int64_t start = set_ms;
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY");
    put(writer, 1, 0);
    uint32_t now = (uint32_t)(start / 1000);
    for (uint32_t lost = 1; lost < 8; lost += 2) {
        cq4_file_t file = cq4_create_cycle(check_path("queue"), &roll, now + lost, 83886080, 0);
        cq4_close_file(&file.out);
        set_ms = start + (lost + 1) * 1000;
        put(writer, 1, lost); /* found at the roll */
        CHECK(is_finished());
    }
    CHECK_EQUAL(read_everything().messages, 5);
    ac_cq4_writer_free(writer);
    set_ms = start;
}

TEST(a_file_without_header_is_completed) {
    static const uint32_t headers[] = {0, AC_CQ4_NOT_COMPLETE};
    int64_t start = set_ms;
    ac_cq4_writer_t *writer = open_java("TEST4_SECONDLY");
    for (uint64_t i = 0; i < 2; i++) {
        set_ms += 1000;
        int fd = open(cycle_path("TEST4_SECONDLY", set_ms), O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0 && ftruncate(fd, i ? 83886080 : 0) == 0);
        if (i) CHECK_EQUAL(pwrite(fd, &headers[i], 4, 0), 4);
        /* Garbage where the arrays will be. */
        if (i) CHECK_EQUAL(pwrite(fd, "garbage", 7, 300), 7);
        close(fd);
        put(writer, 1, 2 * i);
        put(writer, 1, 2 * i + 1);
    }
    /* A message that is older than the first one to be indexed. */
    set_ms += 1000;
    close(open(cycle_path("TEST4_SECONDLY", set_ms), O_RDWR | O_CREAT, 0600));
    set_ms += 1000;
    put(writer, 1, 10);
    CHECK(is_finished());
    inventory_t seen = read_everything();
    CHECK(seen.messages == 5 && seen.cycles == 3);
    ac_cq4_writer_free(writer);
    set_ms = start;
}

TEST(a_file_made_ahead_of_time_is_renamed) {
    char ahead[1300];
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    const char *path = cycle_path("TEST4_DAILY", set_ms);
    snprintf(ahead, sizeof ahead, "%.*s.precreated", (int)strlen(path) - 4, path);
    int fd = open(ahead, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 83886080) == 0);
    struct stat made, used;
    CHECK_EQUAL(fstat(fd, &made), 0);
    close(fd);
    put(writer, 1, 0);
    CHECK(access(ahead, F_OK) != 0);
    CHECK_EQUAL(stat(path, &used), 0);
    CHECK_EQUAL(made.st_ino, used.st_ino);
    CHECK_EQUAL(read_everything().messages, 1);
    ac_cq4_writer_free(writer);
}

TEST(temporaries_of_dead_processes_are_removed) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    wait_for(child, 0);
    ac_cq4_writer_free(open_java("TEST4_DAILY"));
    char dead[64], alive[64];
    snprintf(dead, sizeof dead, "queue/.cycle.tmp.%d.0123456789abcdef", (int)child);
    snprintf(alive, sizeof alive, "queue/.cycle.tmp.%d.0123456789abcdef", (int)getpid());
    close(open(check_path(dead), O_CREAT | O_RDWR, 0600));
    close(open(check_path(alive), O_CREAT | O_RDWR, 0600));
    ac_cq4_writer_free(open_java("TEST4_DAILY"));
    CHECK(access(check_path(dead), F_OK) != 0);
    CHECK(access(check_path(alive), F_OK) == 0);
}

/* A JVM that was killed in the middle of a message. */
TEST(garbage_and_unfinished_headers_at_the_end_are_overwritten) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY"), *other;
    uint64_t cycle, offset;
    put(writer, 1, 0);
    ac_cq4_writer_position(writer, &cycle, &offset);
    int fd = open(cycle_path("TEST4_DAILY", set_ms), O_RDWR);
    uint8_t garbage[256];
    memset(garbage, 0xEE, sizeof garbage);
    CHECK_EQUAL(pwrite(fd, garbage, sizeof garbage, (off_t)offset + 4), sizeof garbage);
    put(writer, 1, 1);
    ac_cq4_writer_position(writer, &cycle, &offset);
    CHECK_EQUAL(pwrite(fd, "\0\0\0\x80", 4, (off_t)offset), 4);
    put(writer, 1, 2);
    ac_cq4_writer_position(writer, &cycle, &offset);
    CHECK_EQUAL(pwrite(fd, "\x05\0\0\x80", 4, (off_t)offset), 4);
    other = open_java(NULL);
    put(other, 2, 0);
    /* A completed message, killed before the next step. */
    ac_cq4_writer_position(other, &cycle, &offset);
    CHECK_EQUAL(pwrite(fd,
                       "\x03\0\0\0"
                       "3:0\0\0\0\0\0\0\0\0\0",
                       16, (off_t)offset),
                16);
    put(writer, 1, 3);
    inventory_t seen = read_everything();
    CHECK(seen.messages == 6 && seen.count[3] == 1);
    close(fd);
    ac_cq4_writer_free(writer);
    ac_cq4_writer_free(other);
}

/* ---- refusals ---- */

TEST(settings_that_contradict_the_queue_are_refused) {
    ac_cq4_writer_config_t config = config_of("HOURLY");
    ac_cq4_writer_t *writer = open_java("FAST_DAILY");
    ac_cq4_writer_free(writer);
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err,
                AC_E_ARGUMENT);
    CHECK(strstr(err.detail, "FAST_DAILY"));
    config.roll_cycle = "NEVER";
    CHECK_FAILS(ac_cq4_writer_open(check_path("other"), &config, &writer, &err), err,
                AC_E_ARGUMENT);
    CHECK(access(check_path("other"), F_OK) != 0);
    config.roll_cycle = NULL;
    CHECK_FAILS(ac_cq4_writer_open(check_path("no/such"), &config, &writer, &err), err,
                AC_E_NOT_FOUND);
    CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err);
    ac_cq4_writer_free(writer);
}

TEST(old_dialects_can_be_read_only) {
    ac_cq4_writer_config_t config = config_of(NULL);
    ac_cq4_writer_t *writer;
    ac_cq4_roll_t roll = cq4_known_roll("DAILY");
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    uint32_t now = (uint32_t)(START_MS / 86400000);
    cq4_file_t file = cq4_create_cycle(check_path("queue"), &roll, now, 1 << 20, 1);
    cq4_append(&file, "1:0", 3);
    /* 4.x: no table store at all. */
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err,
                AC_E_UNSUPPORTED);
    /* 5.17: a table store, but records are not aligned. */
    cq4_table_t table = cq4_create_table(check_path("queue"), &roll);
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err,
                AC_E_UNSUPPORTED);
    CHECK(strstr(err.path, ".cq4"));
    cq4_close_file(&file.out);
    cq4_close_file(&table.out);
}

TEST(a_queue_that_rolls_by_the_time_of_a_zone_can_be_read_only) {
    ac_cq4_writer_config_t config = config_of(NULL);
    ac_cq4_writer_t *writer;
    ac_cq4_roll_t roll = cq4_known_roll("DAILY");
    roll.epoch_ms = 61200000;
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    cq4_table_t table = cq4_create_table(check_path("queue"), &roll);
    CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err);
    ac_cq4_writer_free(writer);
    memcpy(memmem(table.out.base, 400, "UTC", 3), "EST", 3);
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err,
                AC_E_UNSUPPORTED);
    CHECK(strstr(err.detail, "time of EST"));
    cq4_close_file(&table.out);
}

/* ---- the lock ---- */

TEST(the_lock_of_a_dead_process_is_freed) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    ac_cq4_writer_stats_t stats;
    put(writer, 1, 0);
    pid_t child = fork();
    if (child == 0) _exit(0);
    wait_for(child, 0);
    uint64_t *lock = table_value(AC_CQ4_KEY_WRITE_LOCK);
    ac_store_release_u64(lock, (uint64_t)child);
    CHECK_EQUAL(ac_cq4_writer_try_append(writer, "1:1", 3), AC_E_SLOW);
    put(writer, 1, 1);
    ac_cq4_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.locks_freed, 1);
    CHECK_EQUAL(ac_load_acquire_u64(lock), AC_CQ4_UNLOCKED);
    /* Java's oldest: thread id in the high half. And at opening. */
    ac_store_release_u64(lock, (uint64_t)child | 77ull << 32);
    ac_cq4_writer_free(open_java(NULL));
    CHECK_EQUAL(ac_load_acquire_u64(lock), AC_CQ4_UNLOCKED);
    ac_cq4_writer_free(writer);
}

TEST(a_live_holder_is_named_and_a_zombie_lives) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    put(writer, 1, 0);
    pid_t child = fork();
    if (child == 0) _exit(0);
    siginfo_t info;
    CHECK_EQUAL(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0); /* still a zombie */
    uint64_t *lock = table_value(AC_CQ4_KEY_WRITE_LOCK);
    uint64_t holders[] = {(uint64_t)child, (uint64_t)getppid()};
    for (int i = 0; i < 2; i++) {
        ac_store_release_u64(lock, holders[i]);
        CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_LOCKED);
        CHECK_EQUAL(err.holder_pid, holders[i]);
        CHECK_EQUAL(ac_load_acquire_u64(lock), holders[i]);
    }
    ac_store_release_u64(lock, AC_CQ4_UNLOCKED);
    wait_for(child, 0);
    put(writer, 1, 1);
    CHECK_EQUAL(read_everything().messages, 2);
    ac_cq4_writer_free(writer);
}

/* The processes of a restarted container get the same pids. */
TEST(a_lock_with_our_own_pid_is_freed_in_the_end) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    uint64_t *lock = table_value(AC_CQ4_KEY_WRITE_LOCK);
    ac_store_release_u64(lock, (uint64_t)getpid());
    put(writer, 1, 0);
    CHECK_EQUAL(ac_load_acquire_u64(lock), AC_CQ4_UNLOCKED);
    ac_cq4_writer_free(writer);
}

TEST(nobody_appends_while_the_append_lock_is_held) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY"), *other;
    ac_cq4_writer_config_t config = config_of(NULL);
    put(writer, 1, 0);
    uint64_t *lock = table_value(AC_CQ4_KEY_APPEND_LOCK);
    ac_store_release_u64(lock, 999999999); /* not even if the holder is dead */
    CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_LOCKED);
    CHECK(strstr(err.detail, "append.lock"));
    CHECK_FAILS(ac_cq4_writer_open(check_path("queue"), &config, &other, &err), err, AC_E_LOCKED);
    ac_store_release_u64(lock, AC_CQ4_UNLOCKED);
    put(writer, 1, 1);
    CHECK_EQUAL(read_everything().messages, 2);
    ac_cq4_writer_free(writer);
}

/* ---- forks and threads ---- */

TEST(a_forked_child_cannot_use_the_writer_of_its_parent) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    put(writer, 1, 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(ac_cq4_writer_try_append(writer, "1:9", 3), AC_E_SLOW);
        CHECK_FAILS(ac_cq4_writer_append(writer, "1:9", 3, &err), err, AC_E_FORKED);
        CHECK_FAILS(ac_cq4_writer_flush(writer, &err), err, AC_E_FORKED);
        ac_cq4_writer_free(writer);
        ac_cq4_writer_t *own = open_java(NULL);
        put(own, 2, 0);
        ac_cq4_writer_free(own);
        _exit(0);
    }
    wait_for(child, 0);
    put(writer, 1, 1);
    inventory_t seen = read_everything();
    CHECK(seen.count[1] == 2 && seen.count[2] == 1);
    ac_cq4_writer_free(writer);
}

enum { THREADS = 4, PER_THREAD = 3000 };
typedef struct appending {
    ac_cq4_writer_t *writer;
    int who;
} appending_t;

static void *append_some(void *argument) {
    const appending_t *mine = argument;
    char text[32];
    ac_error_t own;
    for (uint64_t i = 0; i < PER_THREAD; i++) {
        size_t length = (size_t)snprintf(text, sizeof text, "%d:%" PRIu64, mine->who, i);
        int64_t index = i % 2 ? AC_E_SLOW : ac_cq4_writer_try_append(mine->writer, text, length);
        if (index == AC_E_SLOW) index = ac_cq4_writer_append(mine->writer, text, length, &own);
        CHECK_OK(index, own);
        if (i % 500 == 0) __atomic_fetch_add(&set_ms, 250, __ATOMIC_RELAXED);
    }
    return NULL;
}

TEST(threads_append_through_one_writer_and_through_several) {
    ac_cq4_writer_config_t config = config_of("TEST_SECONDLY");
    ac_cq4_writer_t *writers[2];
    pthread_t threads[THREADS];
    appending_t tasks[THREADS];
    int64_t start = set_ms;
    config.lock_timeout_ns = 15000000000u;
    for (int i = 0; i < 2; i++)
        CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writers[i], &err), err);
    for (int i = 0; i < THREADS; i++) {
        tasks[i] = (appending_t){writers[i % 2], i};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, append_some, &tasks[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    inventory_t seen = read_everything();
    for (int i = 0; i < THREADS; i++)
        CHECK_EQUAL(seen.count[i], PER_THREAD);
    CHECK(seen.cycles > 3);
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_WRITE_LOCK), AC_CQ4_UNLOCKED);
    ac_cq4_writer_free(writers[0]);
    ac_cq4_writer_free(writers[1]);
    set_ms = start;
}

/* ---- several at once ---- */

TEST(several_are_appended_under_one_lock) {
    enum { MANY = 200, LARGE = 40 << 10 };
    static char texts[MANY][24], large[LARGE];
    ac_slice_t items[MANY];
    ac_cq4_run_t run;
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    for (int i = 0; i < MANY; i++)
        items[i] = (ac_slice_t){texts[i], (size_t)snprintf(texts[i], sizeof *texts, "1:%d", i)};
    size_t done = 0, runs = 0;
    int64_t before = -1;
    for (; done < MANY; done += run.messages, runs++) {
        int64_t first = ac_cq4_writer_append_run(writer, &items[done], MANY - done, &run, &err);
        CHECK(first >= 0 && run.messages >= 1 && run.messages <= 64);
        CHECK_EQUAL(run.last_index, (uint64_t)first + run.messages - 1);
        if (before >= 0) CHECK_EQUAL(first, before + 1);
        before = (int64_t)run.last_index;
    }
    CHECK(runs < 10);
    CHECK_EQUAL(read_everything().count[1], MANY);
    /* At most 64 KiB; an empty one is padding; what is too large is left for the next call. */
    ac_slice_t mixed[] = {
        {large, LARGE}, {large, 0}, {large, LARGE}, {large, AC_CQ4_PAYLOAD_MAX + 1}};
    CHECK(ac_cq4_writer_append_run(writer, mixed, 4, &run, &err) >= 0);
    CHECK(run.messages <= 2);
    CHECK(ac_cq4_writer_append_run(writer, &mixed[2], 2, &run, &err) >= 0);
    CHECK_EQUAL(run.messages, 1);
    CHECK_FAILS(ac_cq4_writer_append_run(writer, &mixed[3], 1, &run, &err), err, AC_E_TOO_LARGE);
    /* Beside other writers, a run is short. */
    ac_cq4_writer_t *other = open_java(NULL);
    CHECK(ac_cq4_writer_append_run(other, items, 1, &run, &err) >= 0);
    CHECK(ac_cq4_writer_append_run(writer, items, MANY, &run, &err) >= 0);
    CHECK(run.messages <= 8);
    ac_cq4_writer_free(other);
    ac_cq4_writer_free(writer);
}

/* ---- failures ---- */

enum { LOOK_NS = 1050000000 }; /* a writer checks its files once a second */

TEST(a_file_of_an_old_cycle_may_be_removed) {
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY"), *other = open_java(NULL);
    put(writer, 1, 0);
    const char *oldest = cycle_path("TEST_SECONDLY", set_ms);
    set_ms += 1000;
    put(other, 2, 0);
    CHECK_EQUAL(unlink(oldest), 0);
    ac_os_sleep_ns(LOOK_NS);
    CHECK_OK(ac_cq4_writer_flush(writer, &err), err);
    put(writer, 1, 1);
    CHECK_EQUAL(read_everything().messages, 2);
    ac_cq4_writer_free(writer);
    ac_cq4_writer_free(other);
    set_ms = START_MS;
}

TEST(a_queue_that_is_removed_is_noticed) {
    char moved[1100];
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    put(writer, 1, 0);
    snprintf(moved, sizeof moved, "%s", check_path("moved"));
    CHECK_EQUAL(rename(check_path("queue"), moved), 0);
    ac_os_sleep_ns(LOOK_NS);
    CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_GONE);
    CHECK_EQUAL(rename(moved, check_path("queue")), 0);
    CHECK_FAILS(try_put(writer, 1, 3), err, AC_E_GONE); /* forever */
    CHECK_FAILS(ac_cq4_writer_flush(writer, &err), err, AC_E_GONE);
    ac_cq4_writer_free(writer);
}

TEST(a_file_that_is_cut_or_removed_is_noticed) {
    for (int removed = 0; removed < 2; removed++) {
        ac_cq4_writer_t *writer = open_java("FAST_DAILY");
        put(writer, 1, 0);
        const char *path = cycle_path("FAST_DAILY", set_ms);
        CHECK_EQUAL(removed ? unlink(path) : truncate(path, 100), 0);
        if (removed) ac_os_sleep_ns(LOOK_NS); /* a cut one is noticed at once */
        CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_GONE);
        ac_cq4_writer_free(writer);
        unlink(path);
    }
}

TEST(a_table_store_that_is_cut_is_noticed) {
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    put(writer, 1, 0);
    CHECK_EQUAL(truncate(check_path("queue/metadata.cq4t"), 0), 0);
    int64_t index = try_put(writer, 1, 1);
    CHECK_FAILS(index, err, AC_E_GONE);
    ac_cq4_writer_free(writer);
}

/* Within its page the rest of a cut file reads as zeros; so does the file after it was extended again. */
TEST(a_table_store_that_is_cut_within_a_page_is_damage_not_a_lock) {
    static const off_t lengths[] = {100, 300, 340};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int again = 0; again < 2; again++) {
            ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
            put(writer, 1, 0);
            const char *table = check_path("queue/metadata.cq4t");
            CHECK_EQUAL(truncate(table, lengths[i]), 0);
            if (again) CHECK_EQUAL(truncate(table, AC_CQ4_TABLE_BYTES), 0);
            uint64_t start_ns = ac_os_monotonic_ns();
            int64_t index = try_put(writer, 1, 1);
            CHECK(index == AC_E_CORRUPT || index == AC_E_GONE);
            CHECK(err.code == index && strstr(err.detail, "was cut"));
            CHECK(ac_os_monotonic_ns() - start_ns < 5000000000ull);
            ac_cq4_writer_free(writer);
            nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
        }
    }
}

TEST(a_full_disk_is_an_error_and_nothing_is_seen_of_the_message) {
    static uint8_t payload[1 << 20];
    ac_cq4_writer_t *writer = open_java("FAST_DAILY");
    put(writer, 1, 0);
    ac_injection_t injection = {.call = AC_CALL_POPULATE, .first = 1, .times = 1, .answer = EFAULT};
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK_EQUAL(ac_cq4_writer_append(writer, payload, sizeof payload, &err), AC_E_SYSTEM);
    injection =
        (ac_injection_t){.call = AC_CALL_POPULATE, .first = 1, .times = 1, .answer = ENOSPC};
    CHECK_FAILS(ac_cq4_writer_append(writer, payload, sizeof payload, &err), err, AC_E_NO_SPACE);
    injection =
        (ac_injection_t){.call = AC_CALL_TRUNCATE, .first = 1, .times = 1, .answer = ENOSPC};
    ac_os_set_hook(ac_os_inject, &injection);
    set_ms += 86400000;
    CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_NO_SPACE); /* of a new file */
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(read_everything().messages, 1);
    put(writer, 1, 1);
    CHECK_EQUAL(read_everything().messages, 2);
    ac_cq4_writer_free(writer);
    set_ms = START_MS;
}

TEST(each_failing_system_call_is_an_error_or_harmless) {
    int64_t start = set_ms;
    uint64_t done = 0;
    for (int call = 0; call < AC_CALL_COUNT; call++) {
        for (uint64_t nth = 1; nth < 30; nth++) {
            ac_cq4_writer_config_t config = config_of("TEST4_SECONDLY");
            ac_cq4_writer_t *writer = NULL;
            ac_injection_t injection = {.call = call, .first = nth, .times = 1, .answer = EIO};
            ac_os_set_hook(ac_os_inject, &injection);
            int rc = ac_cq4_writer_open(check_path("queue"), &config, &writer, &err);
            for (int i = 0; rc == AC_OK && i < 3; i++) {
                int64_t index = try_put(writer, 1, done);
                if (index >= 0) done++;
                if (i == 1) ac_cq4_writer_flush(writer, &err);
                set_ms += i * 1000;
            }
            ac_os_set_hook(NULL, NULL);
            ac_cq4_writer_free(writer);
            if (done > 0) CHECK_EQUAL(read_everything().messages, done);
            if (injection.seen < nth) break;
        }
    }
    CHECK(done > 100);
    ac_cq4_writer_free(open_java("TEST4_SECONDLY"));
    CHECK(is_finished());
    CHECK_EQUAL(*table_value(AC_CQ4_KEY_WRITE_LOCK), AC_CQ4_UNLOCKED);
    set_ms = start;
}

/* ---- damage ---- */

enum { STORED = 1000, BAD = 600 };

/* Writes messages, closes, and returns where the bad one is in the file. */
static uint64_t fill(uint64_t *first) {
    static ac_cq4_tail_t tail;
    ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
    *first = put(writer, 1, 0);
    for (uint64_t i = 1; i < STORED; i++)
        put(writer, 1, i);
    ac_cq4_writer_free(writer);
    CHECK_OK(ac_cq4_tail_open(&tail, check_path("queue"), &err), err);
    CHECK_OK(ac_cq4_tail_seek_index(&tail, *first + BAD, &err), err);
    uint64_t segment, offset;
    ac_cq4_tail_position(&tail, &segment, &offset);
    ac_cq4_tail_close(&tail);
    return offset;
}

static void patch(uint64_t offset, const void *bytes, size_t length) {
    int fd = open(cycle_path("TEST4_DAILY", set_ms), O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, bytes, length, (off_t)offset) == (ssize_t)length);
    close(fd);
}

TEST(a_damaged_record_is_an_error_and_nothing_is_put_over_what_follows) {
    static ac_cq4_tail_t tail;
    for (uint32_t header = 0; header < 32; header += 21) { /* none; a wrong one */
        uint64_t first, read = 0;
        ac_message_t message;
        int rc;
        patch(fill(&first), &header, sizeof header);
        ac_cq4_writer_t *writer = open_java(NULL);
        CHECK_EQUAL(put(writer, 1, STORED), first + STORED);
        ac_cq4_writer_free(writer);
        CHECK_OK(ac_cq4_tail_open(&tail, check_path("queue"), &err), err);
        while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1)
            read++;
        if (header == 0) {
            CHECK_FAILS(rc, err, AC_E_CORRUPT);
            CHECK_EQUAL(read, BAD);
            CHECK(ac_cq4_tail_pass_damage(&tail) > 0);
        } else {
            CHECK_OK(ac_cq4_tail_seek_index(&tail, first + BAD + 8, &err), err);
        }
        CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
        CHECK(message.seq > first + BAD && message.seq <= first + BAD + 8);
        while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1)
            read = message.seq - first;
        CHECK_EQUAL(rc, 0);
        CHECK_EQUAL(read, STORED);
        ac_cq4_tail_close(&tail);
        unlink(cycle_path("TEST4_DAILY", set_ms));
    }
}

TEST(a_file_whose_end_was_lost_is_not_appended_to) {
    static const uint8_t zeros[64 << 10];
    uint64_t first;
    patch(fill(&first), zeros, sizeof zeros);
    ac_cq4_writer_t *writer = open_java(NULL);
    CHECK_FAILS(try_put(writer, 1, STORED), err, AC_E_CORRUPT);
    set_ms += 86400000;
    CHECK_EQUAL(put(writer, 1, STORED) >> 32, (first >> 32) + 1);
    ac_cq4_writer_free(writer);
    set_ms = START_MS;
}

/* ---- on disk ---- */

TEST(a_failed_sync_is_told_and_not_tried_again) {
    ac_cq4_writer_config_t config = config_of("TEST_SECONDLY");
    ac_cq4_writer_t *writer;
    int64_t start = set_ms;
    config.sync = 1;
    CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err);
    uint64_t index = put(writer, 1, 0);
    CHECK_EQUAL(ac_cq4_writer_try_append(writer, "1:1", 3), AC_E_SLOW);
    ac_injection_t injection = {.call = AC_CALL_SYNC, .first = 1, .times = 1, .answer = EIO};
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK_FAILS(try_put(writer, 1, 1), err, AC_E_NOT_DURABLE);
    CHECK_EQUAL(err.seq, index + 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_FAILS(try_put(writer, 1, 2), err, AC_E_POISONED);
    ac_cq4_writer_free(writer);
    writer = open_java(NULL);
    CHECK_EQUAL(put(writer, 1, 2), index + 2);
    set_ms = start;
    ac_cq4_writer_free(writer);
}

TEST(a_flush_syncs_the_files_that_were_left_as_well) {
    ac_cq4_writer_t *writer = open_java("TEST_SECONDLY");
    int64_t start = set_ms;
    CHECK_OK(ac_cq4_writer_flush(writer, &err), err);
    for (uint64_t i = 0; i < 3; i++, set_ms += 1000)
        put(writer, 1, i);
    ac_injection_t injection = {.call = AC_CALL_SYNC, .first = 100};
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK_OK(ac_cq4_writer_flush(writer, &err), err);
    CHECK_EQUAL(injection.seen, 3);
    CHECK_OK(ac_cq4_writer_flush(writer, &err), err);
    CHECK_EQUAL(injection.seen, 4);
    ac_os_set_hook(NULL, NULL);
    ac_cq4_writer_free(writer);
    set_ms = start;
}

/* The hook is called during a flush, at the point where a sync would wait for the disk. */
static int append_during_sync(void *context, int call, const char *path, int fd, uint64_t offset,
                              uint64_t length) {
    (void)path;
    (void)fd;
    (void)offset;
    (void)length;
    if (call == AC_CALL_SYNC && ac_cq4_writer_try_append(context, "1:1", 3) < 0) return EBUSY;
    return 0;
}

TEST(others_append_while_a_flush_waits_for_the_disk) {
    ac_cq4_writer_t *writer = open_java("TEST_DAILY");
    ac_cq4_writer_stats_t stats;
    put(writer, 1, 0);
    ac_os_set_hook(append_during_sync, writer);
    CHECK_OK(ac_cq4_writer_flush(writer, &err), err);
    ac_os_set_hook(NULL, NULL);
    ac_cq4_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.messages, 2);
    CHECK_EQUAL(read_everything().count[1], 2);
    ac_cq4_writer_free(writer);
}
