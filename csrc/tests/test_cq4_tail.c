#include "cq4_tail.h"

#include "cq4_files.h"
#include "queue.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SIZE = 256 << 10, FIRST_CYCLE = 1700000000 };

static ac_error_t err;
static ac_cq4_tail_t tail;
static ac_cq4_roll_t roll;
static cq4_table_t table;
static const char *path;

static void create_queue(const char *roll_name) {
    static char kept[600];
    roll = cq4_known_roll(roll_name);
    snprintf(kept, sizeof kept, "%s", check_path("queue"));
    path = kept;
    CHECK_EQUAL(mkdir(path, 0700), 0);
    table = cq4_create_table(path, &roll);
}

static cq4_file_t create_cycle(uint32_t cycle) {
    cq4_file_t file = cq4_create_cycle(path, &roll, cycle, SIZE, 0);
    cq4_add_to_listing(&table, cycle);
    return file;
}

static void append(cq4_file_t *file, uint32_t cycle, int count) {
    for (int i = 0; i < count; i++) {
        uint64_t payload[8] = {ac_cq4_index(&roll, cycle, file->seq)};
        cq4_append(file, payload, 8 + file->seq % 50);
    }
}

static void open_tail(void) {
    CHECK_OK(ac_cq4_tail_open(&tail, path, &err), err);
}

static void expect(uint32_t cycle, uint64_t seq) {
    ac_message_t message;
    uint64_t index = ac_cq4_index(&roll, cycle, seq), payload;
    int rc = ac_cq4_tail_next(&tail, &message, &err);
    CHECK_OK(rc, err);
    CHECK_EQUAL(rc, 1);
    memcpy(&payload, message.record + AC_HEADER_SIZE, 8);
    CHECK_EQUAL(message.seq, index);
    CHECK_EQUAL(payload, index);
    CHECK_EQUAL(message.segment, cycle);
    CHECK_EQUAL(message.length, 8 + seq % 50);
    CHECK_EQUAL(message.timestamp_ns, ac_cq4_roll_moment_ns(&roll, cycle));
    CHECK(message.type_id == 0 && message.flags == 0 && message.batch_left == 0);
    CHECK(message.record >= ac_cq4_tail_map(&tail)->base);
}

static void expect_nothing(void) {
    ac_message_t message;
    int rc = ac_cq4_tail_next(&tail, &message, &err);
    CHECK_OK(rc, err);
    CHECK_EQUAL(rc, 0);
}

/* Waits until the reader repeats the checks that cost more than a read of memory. */
static void expect_soon(uint32_t cycle, uint64_t seq) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + 30000000000ull;
    int rc;
    while ((rc = ac_cq4_tail_ready(&tail, &err)) == 0 && ac_os_monotonic_ns() < deadline_ns)
        ac_os_sleep_ns(100000);
    expect(cycle, seq);
}

static void finish(cq4_file_t *file) {
    ac_cq4_tail_close(&tail);
    cq4_close_file(&table.out);
    if (file) cq4_close_file(&file->out);
}

TEST(messages_of_all_cycles_come_in_order_over_gaps) {
    static const uint32_t cycles[] = {FIRST_CYCLE, FIRST_CYCLE + 1, FIRST_CYCLE + 7,
                                      FIRST_CYCLE + 100000};
    create_queue("TEST4_SECONDLY");
    for (int i = 0; i < 4; i++) {
        cq4_file_t file = create_cycle(cycles[i]);
        append(&file, cycles[i], 300 * (i != 2)); /* the third is empty */
        if (i < 3) cq4_finish(&file);
        cq4_close_file(&file.out);
    }
    poke(path, "notes.cq4", 0, "x", 1);
    poke(path, ".cycle.tmp.77", 0, "x", 1);
    CHECK(ac_cq4_is_queue(path));
    open_tail();
    CHECK_EQUAL(tail.queue.dialect, AC_CQ4_DIALECT_V5);
    for (int i = 0; i < 4; i++)
        for (uint64_t seq = 0; seq < 300 && i != 2; seq++)
            expect(cycles[i], seq);
    expect_nothing();
    expect_nothing();
    CHECK_EQUAL(tail.messages, 900);
    CHECK_EQUAL(tail.cycles_entered, 4);
    CHECK_EQUAL(tail.missing_ends, 0);
    finish(NULL);
}

TEST(a_queue_without_files_is_empty_until_one_comes) {
    create_queue("FAST_DAILY");
    open_tail();
    expect_nothing();
    expect_nothing();
    cq4_file_t file = create_cycle(19000);
    append(&file, 19000, 2);
    expect(19000, 0); /* at once: the listing has changed */
    expect(19000, 1);
    expect_nothing();
    append(&file, 19000, 1);
    expect(19000, 2);
    finish(&file);
}

TEST(a_file_that_nobody_has_listed_is_found_all_the_same) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE);
    append(&file, FIRST_CYCLE, 1);
    open_tail();
    expect(FIRST_CYCLE, 0);
    cq4_finish(&file);
    expect_nothing();
    cq4_file_t next = cq4_create_cycle(path, &roll, FIRST_CYCLE + 1, SIZE, 0);
    append(&next, FIRST_CYCLE + 1, 1);
    expect_soon(FIRST_CYCLE + 1, 0);
    cq4_close_file(&next.out);
    finish(&file);
}

TEST(without_end_mark_it_goes_on_only_if_a_later_file_has_messages) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE);
    append(&file, FIRST_CYCLE, 2);
    open_tail();
    expect(FIRST_CYCLE, 0);
    expect(FIRST_CYCLE, 1);
    cq4_file_t early = create_cycle(FIRST_CYCLE + 1); /* made ahead of time */
    expect_nothing();
    append(&file, FIRST_CYCLE, 1);
    expect(FIRST_CYCLE, 2);
    expect_nothing();
    append(&early, FIRST_CYCLE + 1, 1);
    expect_soon(FIRST_CYCLE + 1, 0);
    CHECK_EQUAL(tail.missing_ends, 1);
    cq4_close_file(&early.out);
    finish(&file);
}

TEST(without_end_mark_it_waits_for_a_live_holder_of_the_lock_and_for_no_dead_one) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE), next = create_cycle(FIRST_CYCLE + 1);
    append(&file, FIRST_CYCLE, 1);
    append(&next, FIRST_CYCLE + 1, 1);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    cq4_set(&table.out, table.write_lock, (uint64_t)child);
    open_tail();
    expect(FIRST_CYCLE, 0);
    for (int i = 0; i < 20; i++) {
        expect_nothing();
        ac_os_sleep_ns(1000000);
    }
    append(&file, FIRST_CYCLE, 1); /* what it took the lock for */
    expect(FIRST_CYCLE, 1);
    expect_nothing();
    kill(child, SIGKILL);
    expect_soon(FIRST_CYCLE + 1, 0); /* a zombie appends nothing either */
    waitpid(child, NULL, 0);
    cq4_close_file(&next.out);
    finish(&file);
}

/* Runs when the reader has found nothing and lists the directory. */
static int append_meanwhile(void *context, int call, const char *name, int fd, uint64_t offset,
                            uint64_t length) {
    (void)name;
    (void)fd;
    (void)offset;
    (void)length;
    if (call != AC_CALL_LIST) return 0;
    ac_os_set_hook(NULL, NULL);
    append(context, FIRST_CYCLE, 1);
    return 0;
}

TEST(without_end_mark_it_looks_again_before_it_goes_on) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE), next = create_cycle(FIRST_CYCLE + 1);
    append(&file, FIRST_CYCLE, 1);
    append(&next, FIRST_CYCLE + 1, 1);
    open_tail();
    expect(FIRST_CYCLE, 0);
    ac_os_set_hook(append_meanwhile, &file);
    expect(FIRST_CYCLE, 1);
    expect_soon(FIRST_CYCLE + 1, 0);
    cq4_close_file(&next.out);
    finish(&file);
}

TEST(a_system_call_that_fails_leaves_the_reader_where_it_is) {
    static const int calls[] = {AC_CALL_OPEN, AC_CALL_STAT, AC_CALL_LIST, AC_CALL_MAP,
                                AC_CALL_ALLOC};
    ac_message_t message;
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE), next = create_cycle(FIRST_CYCLE + 1);
    append(&file, FIRST_CYCLE, 1);
    cq4_finish(&file);
    append(&next, FIRST_CYCLE + 1, 1);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int skip = 0; skip < 12; skip++) {
            failing_t failing = {.call = calls[i], .error = EMFILE, .skip = skip};
            ac_lag_t lag;
            ac_os_set_hook(fail_hook, &failing);
            int rc = ac_cq4_tail_open(&tail, path, &err);
            if (rc == AC_OK) {
                while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1)
                    ;
                if (rc == 0) rc = ac_cq4_tail_seek_last(&tail, &err);
                if (rc == 0) rc = ac_cq4_tail_lag(&tail, &lag, &err);
            }
            int failed = failing.failed;
            ac_os_set_hook(NULL, NULL);
            CHECK(rc == AC_OK || failed);
            if (rc < 0) CHECK(err.code == AC_E_SYSTEM && err.path[0] && err.detail[0]);
            if (failed) CHECK(rc < 0); /* nothing is taken for something else */
            if (tail.queue.table.map) {
                uint64_t read = tail.messages;
                tail.look_again_ns = 0;
                while (ac_cq4_tail_next(&tail, &message, &err) == 1)
                    read++;
                CHECK_EQUAL(read, 2);
                ac_cq4_tail_close(&tail);
            }
        }
    open_tail();
    cq4_close_file(&next.out);
    finish(&file);
}

TEST(a_file_that_is_being_created_is_waited_for_unless_a_later_one_has_messages) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE);
    append(&file, FIRST_CYCLE, 1);
    cq4_finish(&file);
    cq4_file_t next = create_cycle(FIRST_CYCLE + 1);
    append(&next, FIRST_CYCLE + 1, 1);
    uint32_t header, busy = AC_CQ4_NOT_COMPLETE;
    memcpy(&header, next.out.base, 4);
    memcpy(next.out.base, &busy, 4);
    open_tail();
    expect(FIRST_CYCLE, 0);
    expect_nothing();
    memcpy(next.out.base, &header, 4);
    expect_soon(FIRST_CYCLE + 1, 0);
    cq4_finish(&next);
    cq4_file_t stuck = create_cycle(FIRST_CYCLE + 2), last = create_cycle(FIRST_CYCLE + 3);
    memcpy(stuck.out.base, &busy, 4);
    expect_nothing();
    append(&last, FIRST_CYCLE + 3, 1);
    expect_soon(FIRST_CYCLE + 3, 0);
    cq4_close_file(&last.out);
    cq4_close_file(&stuck.out);
    cq4_close_file(&next.out);
    finish(&file);
}

TEST(a_queue_of_4_x_has_its_roll_in_its_files_and_is_busy_while_written) {
    roll = cq4_known_roll("MINUTELY");
    path = check_path("queue");
    CHECK_EQUAL(mkdir(path, 0700), 0);
    cq4_file_t file = cq4_create_cycle(path, &roll, 100, SIZE, 1);
    append(&file, 100, 200);
    open_tail();
    CHECK_EQUAL(tail.queue.dialect, AC_CQ4_DIALECT_V4);
    CHECK(strcmp(tail.queue.roll.format, "yyyyMMdd-HHmm") == 0);
    for (uint64_t seq = 0; seq < 200; seq++)
        expect(100, seq);
    uint64_t at = file.out.at;
    cq4_store_header(&file.out, at, AC_CQ4_NOT_COMPLETE | 4711);
    expect_nothing();
    CHECK_EQUAL(tail.offset, at);
    append(&file, 100, 1);
    expect(100, 200);
    /* A file whose writer was killed: the reader moves on when Java would, and not before. */
    cq4_store_header(&file.out, file.out.at, AC_CQ4_NOT_COMPLETE);
    cq4_file_t next = cq4_create_cycle(path, &roll, 101, SIZE, 1);
    append(&next, 101, 1);
    for (int i = 0; i < 2; i++) {
        expect_nothing();
        tail.look_again_ns = 0; /* a reason to list the directory */
        tail.busy_since_ns -= 3000000000ull;
    }
    tail.busy_since_ns -= 10000000000ull;
    expect_soon(101, 0);
    cq4_close_file(&next.out);
    ac_cq4_tail_close(&tail);
    cq4_close_file(&file.out);
}

TEST(seeking_by_index_first_last_and_position) {
    create_queue("TEST4_SECONDLY");
    cq4_file_t file = create_cycle(FIRST_CYCLE), next = create_cycle(FIRST_CYCLE + 5);
    append(&file, FIRST_CYCLE, 300);
    cq4_finish(&file);
    append(&next, FIRST_CYCLE + 5, 100);
    cq4_file_t early = create_cycle(FIRST_CYCLE + 6); /* empty: not where the end is */
    open_tail();
    ac_lag_t lag;
    CHECK_OK(ac_cq4_tail_lag(&tail, &lag, &err), err);
    CHECK_EQUAL(lag.messages, 400);
    uint64_t segment, offset, bytes = lag.bytes;
    ac_cq4_tail_position(&tail, &segment, &offset);
    CHECK(segment == 0 && offset == 0);
    CHECK_OK(ac_cq4_tail_seek_position(&tail, segment, offset, &err), err);
    for (uint64_t seq = 0; seq < 300; seq += 7) {
        CHECK_OK(ac_cq4_tail_seek_index(&tail, ac_cq4_index(&roll, FIRST_CYCLE, seq), &err), err);
        expect(FIRST_CYCLE, seq);
        ac_cq4_tail_position(&tail, &segment, &offset);
        CHECK_OK(ac_cq4_tail_lag(&tail, &lag, &err), err);
        CHECK_EQUAL(lag.messages, 399 - seq);
        CHECK(lag.bytes < bytes && lag.age_ns > 0);
        bytes = lag.bytes;
        CHECK_OK(ac_cq4_tail_seek_last(&tail, &err), err);
        CHECK_OK(ac_cq4_tail_seek_position(&tail, segment, offset, &err), err);
        if (seq < 299)
            expect(FIRST_CYCLE, seq + 1);
        else
            expect(FIRST_CYCLE + 5, 0);
    }
    CHECK_OK(ac_cq4_tail_seek_index(&tail, ac_cq4_index(&roll, FIRST_CYCLE, 300), &err), err);
    expect(FIRST_CYCLE + 5, 0);
    CHECK_OK(ac_cq4_tail_seek_index(&tail, ac_cq4_index(&roll, FIRST_CYCLE + 2, 9), &err), err);
    expect(FIRST_CYCLE + 5, 0);
    CHECK_OK(ac_cq4_tail_seek_index(&tail, 0, &err), err);
    expect(FIRST_CYCLE, 0);
    CHECK_OK(ac_cq4_tail_seek_index(&tail, UINT64_MAX, &err), err);
    expect_nothing();
    CHECK_OK(ac_cq4_tail_seek_last(&tail, &err), err);
    expect_nothing();
    CHECK_OK(ac_cq4_tail_lag(&tail, &lag, &err), err);
    CHECK(lag.messages == 0 && lag.bytes == 0 && lag.age_ns == 0);
    append(&next, FIRST_CYCLE + 5, 1);
    expect(FIRST_CYCLE + 5, 100);
    CHECK_OK(ac_cq4_tail_seek_first(&tail, &err), err);
    expect(FIRST_CYCLE, 0);
    CHECK_FAILS(ac_cq4_tail_seek_position(&tail, FIRST_CYCLE + 5, 777, &err), err,
                AC_E_POSITION_LOST);
    CHECK_FAILS(ac_cq4_tail_seek_position(&tail, FIRST_CYCLE + 2, 777, &err), err,
                AC_E_POSITION_LOST);
    CHECK_EQUAL(err.first_segment, FIRST_CYCLE + 5);
    CHECK_EQUAL(err.wanted_segment, FIRST_CYCLE + 2);
    expect(FIRST_CYCLE, 1); /* its position is unchanged */
    CHECK_OK(ac_cq4_tail_seek_position(&tail, err.first_segment, err.first_offset, &err), err);
    expect(FIRST_CYCLE + 5, 0);
    cq4_close_file(&early.out);
    cq4_close_file(&next.out);
    finish(&file);
}

TEST(reading_ends_where_it_was_told_to_and_a_message_can_be_taken_back) {
    ac_message_t message;
    uint64_t segment, offset;
    create_queue("DAILY");
    cq4_file_t file = create_cycle(19000);
    append(&file, 19000, 10);
    open_tail();
    for (uint64_t seq = 0; seq < 5; seq++)
        expect(19000, seq);
    ac_cq4_tail_position(&tail, &segment, &offset);
    CHECK_OK(ac_cq4_tail_seek_first(&tail, &err), err);
    ac_cq4_tail_end_at(&tail, segment, offset);
    for (uint64_t seq = 0; seq < 5; seq++) {
        CHECK_EQUAL(ac_cq4_tail_ready(&tail, &err), 1);
        expect(19000, seq);
    }
    expect_nothing();
    CHECK_EQUAL(ac_cq4_tail_ready(&tail, &err), 0);
    ac_cq4_tail_end_at(&tail, UINT64_MAX, UINT64_MAX);
    CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
    ac_cq4_tail_unread(&tail, &message);
    expect(19000, 5);
    CHECK_EQUAL(tail.messages, 11);
    finish(&file);
}

TEST(a_growing_file_is_followed_and_messages_stay_valid) {
    ac_message_t message;
    create_queue("TEST8_DAILY");
    cq4_file_t file = create_cycle(19000);
    char name[AC_CQ4_NAME_MAX], full[700];
    CHECK_EQUAL(ac_cq4_roll_file_name(&roll, 19000, name), AC_OK);
    snprintf(full, sizeof full, "%s/%s", path, name);
    append(&file, 19000, 20);
    CHECK_EQUAL(truncate(full, (off_t)file.out.at), 0); /* not even room for the next header */
    open_tail();
    for (uint64_t seq = 0; seq < 19; seq++)
        expect(19000, seq);
    CHECK_EQUAL(ac_cq4_tail_next(&tail, &message, &err), 1);
    ac_map_t *held = ac_cq4_tail_map(&tail);
    ac_map_retain(held);
    expect_nothing();
    CHECK_EQUAL(truncate(full, SIZE), 0);
    append(&file, 19000, 100);
    for (uint64_t seq = 20; seq < 120; seq++)
        expect(19000, seq);
    CHECK(held != ac_cq4_tail_map(&tail));
    CHECK_EQUAL(message.record[AC_HEADER_SIZE], 19);
    ac_map_release(held);
    finish(&file);
}

TEST(a_length_that_leads_out_of_the_file_is_an_error_with_path_and_offset) {
    ac_message_t message;
    create_queue("DAILY");
    cq4_file_t file = create_cycle(19000);
    append(&file, 19000, 3);
    uint64_t at = file.out.at;
    open_tail();
    for (uint64_t seq = 0; seq < 3; seq++)
        expect(19000, seq);
    cq4_store_header(&file.out, at, SIZE);
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(ac_cq4_tail_next(&tail, &message, &err), err, AC_E_CORRUPT);
        CHECK_EQUAL(err.offset, at);
        CHECK(strstr(err.path, "/20220108.cq4"));
    }
    cq4_store_header(&file.out, at, 0);
    expect_nothing();
    finish(&file);
}

TEST(a_file_that_is_cut_under_the_reader_is_gone_and_so_is_a_removed_queue) {
    ac_message_t message;
    char full[700];
    create_queue("DAILY");
    cq4_file_t file = create_cycle(19000);
    append(&file, 19000, 3000);
    snprintf(full, sizeof full, "%s/20220108.cq4", path);
    open_tail();
    for (uint64_t seq = 0; seq < 10; seq++)
        expect(19000, seq);
    CHECK_EQUAL(truncate(full, (off_t)(tail.offset + 4096) & ~4095), 0);
    int rc;
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1)
        ;
    CHECK_EQUAL(rc, AC_E_GONE);
    CHECK_EQUAL(truncate(full, (off_t)(tail.offset - 100)), 0);
    for (int i = 0; i < 3; i++) { /* it stays gone */
        memset(&err, 0, sizeof err);
        CHECK_FAILS(ac_cq4_tail_next(&tail, &message, &err), err, AC_E_GONE);
        CHECK(strstr(err.path, "20220108.cq4") && strstr(err.detail, "cut"));
    }
    ac_cq4_tail_close(&tail);
    open_tail();
    CHECK_EQUAL(rename(path, check_path("away")), 0);
    CHECK_FAILS(ac_cq4_tail_next(&tail, &message, &err), err, AC_E_GONE);
    finish(&file);
}

TEST(what_is_no_queue_is_refused) {
    CHECK_EQUAL(mkdir(check_path("empty"), 0700), 0);
    CHECK(!ac_cq4_is_queue(check_path("empty")));
    CHECK(!ac_cq4_is_queue(check_path("missing")));
    CHECK_FAILS(ac_cq4_tail_open(&tail, check_path("empty"), &err), err, AC_E_NOT_A_QUEUE);
    CHECK_FAILS(ac_cq4_tail_open(&tail, check_path("missing"), &err), err, AC_E_NOT_FOUND);
    create_queue("DAILY");
    uint8_t *format = memmem(table.out.base, 200, "yyyyMMdd", 8);
    memcpy(format, "YYYY'W'w", 8);
    CHECK_FAILS(ac_cq4_tail_open(&tail, path, &err), err, AC_E_VERSION);
    CHECK(strstr(err.detail, "YYYY'W'w"));
    cq4_close_file(&table.out);
    CHECK_EQUAL(unlink(check_path("queue/metadata.cq4t")), 0);
    cq4_file_t file = cq4_create_cycle(path, &roll, 19000, SIZE, 0);
    CHECK_FAILS(ac_cq4_tail_open(&tail, path, &err), err, AC_E_NOT_A_QUEUE);
    CHECK(strstr(err.detail, "metadata.cq4t"));
    cq4_close_file(&file.out);
}

TEST(a_roll_cycle_of_a_user_s_own_takes_the_shift_from_its_files) {
    create_queue("DAILY");
    cq4_close_file(&table.out);
    CHECK_EQUAL(unlink(check_path("queue/metadata.cq4t")), 0);
    snprintf(roll.format, sizeof roll.format, "'mine'ddMMyyyy");
    roll.index_count = 32768;
    roll.index_spacing = 256;
    roll.shift = 38;
    table = cq4_create_table(path, &roll);
    open_tail();
    CHECK_EQUAL(tail.queue.roll.shift, 0);
    expect_nothing();
    CHECK_OK(ac_cq4_tail_seek_index(&tail, 5, &err), err);
    cq4_file_t file = cq4_create_cycle(path, &roll, 19000, 8 * SIZE, 0);
    append(&file, 19000, 2);
    cq4_add_to_listing(&table, 19000);
    expect(19000, 0);
    expect(19000, 1);
    finish(&file);
}

/* Another process appends, rolls, and sometimes leaves out an end mark. */
static void write_live(uint64_t random, int cycles) {
    cq4_file_t file = create_cycle(FIRST_CYCLE);
    for (uint32_t cycle = FIRST_CYCLE;; cycle += 1 + check_random(&random) % 3) {
        if (cycle > FIRST_CYCLE) {
            if (check_random(&random) % 4) cq4_finish(&file);
            cq4_close_file(&file.out);
            file = create_cycle(cycle);
        }
        int count = 1 + (int)(check_random(&random) % 3000);
        for (int i = 0; i < count; i++) {
            append(&file, cycle, 1);
            if (check_random(&random) % 1000 == 0) ac_os_sleep_ns(200000);
        }
        if (--cycles == 0) break;
    }
    cq4_finish(&file);
}

TEST(a_live_queue_is_followed_without_loss_over_rolls) {
    enum { CYCLES = 30 };
    uint64_t random = check_seed() | 1, copy = random;
    create_queue("TEST4_SECONDLY");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        write_live(random, CYCLES);
        _exit(0);
    }
    open_tail();
    uint32_t cycle = FIRST_CYCLE;
    for (int i = 0; i < CYCLES; i++) { /* the same numbers again */
        if (i > 0) check_random(&copy);
        int count = 1 + (int)(check_random(&copy) % 3000);
        for (uint64_t seq = 0; seq < (uint64_t)count; seq++) {
            expect_soon(cycle, seq);
            check_random(&copy);
        }
        cycle += 1 + (i < CYCLES - 1 ? check_random(&copy) % 3 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
    expect_nothing();
    finish(NULL);
}

/* After any change of a few bytes: errors, or messages inside the mapping, and an end. */
TEST(any_damage_to_a_queue_ends_in_an_error_or_harmlessly) {
    uint64_t random = check_seed() | 1;
    create_queue("TEST2_DAILY");
    cq4_file_t file = create_cycle(19000), next = create_cycle(19001);
    append(&file, 19000, 100);
    cq4_finish(&file);
    append(&next, 19001, 5);
    uint64_t used = file.out.at + 8;
    uint8_t *whole = malloc(used);
    memcpy(whole, file.out.base, used);
    for (int round = 0; round < 3000; round++) {
        ac_message_t message;
        ac_lag_t lag;
        uint64_t messages = 0;
        int rc;
        for (int i = 0; i < 3; i++)
            file.out.base[check_random(&random) % used] = (uint8_t)check_random(&random);
        if (ac_cq4_tail_open(&tail, path, &err) == AC_OK) {
            ac_cq4_tail_seek_index(&tail, ac_cq4_index(&roll, 19000, check_random(&random) % 101),
                                   &err);
            ac_cq4_tail_lag(&tail, &lag, &err);
            while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1) {
                const uint8_t *base = ac_cq4_tail_map(&tail)->base;
                uint64_t from = (uint64_t)(message.record + AC_HEADER_SIZE - base);
                CHECK(from >= 64 && from + message.length <= ac_cq4_tail_map(&tail)->size);
                CHECK(++messages < SIZE);
            }
            CHECK(rc == 0 || rc == AC_E_CORRUPT || rc == AC_E_VERSION);
            ac_cq4_tail_seek_position(&tail, 19000, check_random(&random) % used, &err);
            ac_cq4_tail_close(&tail);
        }
        memcpy(file.out.base, whole, used);
    }
    free(whole);
    cq4_close_file(&next.out);
    cq4_close_file(&file.out);
    cq4_close_file(&table.out);
}
