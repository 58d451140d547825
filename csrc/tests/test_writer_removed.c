#include "writer.h"

#include "queue.h"

static ac_error_t err;

static ac_writer_t *open_small(int inline_housekeeping) {
    ac_writer_config_t config = small_queue(1 << 20);
    config.inline_housekeeping = inline_housekeeping;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 3);
    return writer;
}

static void move_away(void) {
    CHECK_EQUAL(rename(check_path("queue"), check_path("elsewhere")), 0);
}

static void check_told(ac_writer_t *writer, const char *what) {
    CHECK_FAILS(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err, AC_E_GONE);
    CHECK(strstr(err.detail, what));
    CHECK(strcmp(err.path, check_path("queue")) == 0);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_GONE);
    CHECK_FAILS(ac_writer_heartbeat(writer, AC_NOW, &err), err, AC_E_GONE);
    close_writer(writer);
}

TEST(a_queue_that_is_all_there_is_left_alone) {
    ac_writer_t *writer = open_small(1);
    ac_writer_check_files(writer);
    append_numbered(writer, 1);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 4);
}

TEST(a_directory_moved_away_is_noticed) {
    ac_writer_t *writer = open_small(1);
    move_away();
    ac_writer_check_files(writer);
    check_told(writer, "directory");
    CHECK_EQUAL(count_numbered(check_path("elsewhere")), 3);
}

TEST(another_directory_in_its_place_is_noticed) {
    ac_writer_t *writer = open_small(1);
    move_away();
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    ac_writer_check_files(writer);
    check_told(writer, "directory");
}

TEST(a_removed_control_block_is_noticed) {
    ac_writer_t *writer = open_small(1);
    remove_in(check_path("queue"), "control.meta");
    ac_writer_check_files(writer);
    check_told(writer, "control.meta");
}

TEST(a_removed_segment_is_noticed) {
    ac_writer_t *writer = open_small(1);
    remove_in(check_path("queue"), "000000000.q");
    ac_writer_check_files(writer);
    check_told(writer, "segment");
}

TEST(a_flush_into_a_removed_segment_fails) {
    ac_writer_t *writer = open_small(1);
    remove_in(check_path("queue"), "000000000.q");
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_GONE);
    check_told(writer, "segment");
}

TEST(a_flush_into_a_directory_that_was_moved_away_fails) {
    ac_writer_t *writer = open_small(1);
    move_away();
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_GONE);
    check_told(writer, "directory");
    CHECK_EQUAL(count_numbered(check_path("elsewhere")), 3);
}

TEST(a_directory_that_is_reached_by_a_link_is_there) {
    ac_writer_config_t config = small_queue(1 << 20);
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    CHECK_EQUAL(symlink(check_path("queue"), check_path("link")), 0);
    ac_writer_t *writer = open_writer(check_path("link"), &config);
    append_numbered(writer, 1);
    ac_writer_check_files(writer);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    CHECK_EQUAL(unlink(check_path("link")), 0);
    CHECK_FAILS(ac_writer_flush(writer, &err), err, AC_E_GONE);
    close_writer(writer);
}

TEST(what_cannot_be_looked_at_is_not_gone) {
    const int calls[] = {AC_CALL_OPEN, AC_CALL_STAT};
    ac_writer_t *writer = open_small(1);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        failing_t failing = {.call = calls[i], .error = EMFILE};
        ac_os_set_hook(fail_hook, &failing);
        ac_writer_check_files(writer);
        CHECK_OK(ac_writer_flush(writer, &err), err);
        ac_os_set_hook(NULL, NULL);
        append_numbered(writer, 1);
    }
    close_writer(writer);
}

TEST(the_housekeeper_looks_while_appends_and_rolls_go_on) {
    static uint8_t payload[1000];
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    ac_writer_t *writer = open_small(0);
    int64_t seq = 0;
    for (int i = 0; i < 5000 && seq >= 0; i++)
        seq = ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err);
    CHECK_OK(seq, err);
    move_away();
    while (seq >= 0) {
        CHECK(ac_os_monotonic_ns() < deadline);
        seq = ac_writer_append(writer, payload, 1, 0, AC_NOW, &err);
    }
    check_told(writer, "directory");
}

static void forget_log(void) {
    ac_log_entry_t entry;
    while (ac_log_next(&entry))
        continue;
}

TEST(a_removed_lock_file_is_made_again_and_told) {
    ac_log_entry_t entry;
    struct stat info;
    forget_log();
    ac_writer_t *writer = open_small(1);
    remove_in(check_path("queue"), "writer.lock");
    failing_t failing = {.call = AC_CALL_OPEN, .error = EMFILE};
    ac_os_set_hook(fail_hook, &failing);
    ac_writer_check_files(writer); /* fails; control.meta is still ours */
    ac_writer_check_files(writer);
    ac_os_set_hook(NULL, NULL);
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(entry.level == AC_LOG_WARNING && strstr(entry.text, "cannot be made again"));
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_writer_check_files(writer);
    CHECK_EQUAL(stat(check_path("queue/writer.lock"), &info), 0);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(entry.level == AC_LOG_WARNING && strstr(entry.text, "it was made again"));
    CHECK_OK(ac_writer_flush(writer, &err), err);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 4);
}

/* The lock also keeps out other programs; if one came and went, its epoch shows that. */
TEST(something_else_in_place_of_the_lock_file_is_told) {
    ac_log_entry_t entry;
    forget_log();
    ac_writer_t *writer = open_small(1);
    remove_in(check_path("queue"), "writer.lock");
    CHECK_EQUAL(mkdir(check_path("queue/writer.lock"), 0700), 0);
    ac_writer_check_files(writer);
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(strstr(entry.path, "writer.lock"));
    ac_store_relaxed_u64(&writer->control->writer_epoch, writer->epoch + 1);
    ac_writer_check_files(writer);
    check_told(writer, "another program");
}
