/* A copy of a queue's segments that is described as a queue of its own: see ac_queue_describe_copy. */
#include "control.h"

#include "queue.h"
#include "recovery.h"

enum { SEGMENT = 4096, COUNT = 20 };

static ac_error_t err;

/* Copies the segments and describes them; the copy ends where the closed original ends. */
static int describe_copy(int new_id, ac_copy_t *copy) {
    ac_control_t control;
    copy_queue(check_path("queue"), check_path("copy"));
    CHECK_EQUAL(unlink(check_path("copy/control.meta")), 0);
    CHECK_EQUAL(unlink(check_path("copy/index.meta")), 0);
    peek(check_path("queue"), "control.meta", 0, &control, sizeof control);
    ac_clean_t clean;
    memcpy(&clean, &control.clean, sizeof clean);
    *copy = (ac_copy_t){.segment = clean.segment,
                        .offset = clean.offset,
                        .next_seq = clean.next_seq,
                        .last_timestamp_ns = clean.last_timestamp_ns,
                        .last_record = clean.last_record,
                        .mode = 0600,
                        .new_id = new_id};
    return ac_queue_describe_copy(check_path("queue"), check_path("copy"), copy, &err);
}

static uint64_t write_some(const char *name, ac_recovery_t *report) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_stats_t stats;
    ac_writer_t *writer = open_writer(check_path(name), &config);
    ac_writer_recovery(writer, report);
    append_numbered(writer, COUNT);
    ac_writer_stats(writer, &stats);
    close_writer(writer);
    return stats.queue_id;
}

static void check_copy(int new_id) {
    ac_recovery_t report;
    ac_copy_t copy;
    uint64_t id = write_some("queue", &report);
    CHECK_EQUAL(describe_copy(new_id, &copy), AC_OK);
    CHECK_EQUAL(count_numbered(check_path("copy")), COUNT);
    uint64_t copied = write_some("copy", &report);
    CHECK(report.clean);
    CHECK_EQUAL(report.is_copy, new_id);
    CHECK((copied == id) == !new_id);
    CHECK_EQUAL(count_numbered(check_path("copy")), 2 * COUNT);
}

TEST(a_copy_that_takes_the_place_of_its_original_opens_as_if_it_had_been_closed) {
    check_copy(0);
}

TEST(a_copy_beside_its_original_gets_an_identity_of_its_own) {
    check_copy(1);
}

TEST(an_original_that_is_no_queue_is_an_error) {
    ac_copy_t copy = {.offset = 64, .mode = 0600};
    CHECK_EQUAL(mkdir(check_path("copy"), 0700), 0);
    CHECK_EQUAL(ac_queue_describe_copy(check_path("none"), check_path("copy"), &copy, &err),
                AC_E_NOT_FOUND);
    ac_recovery_t report;
    write_some("queue", &report);
    CHECK_EQUAL(ac_queue_describe_copy(check_path("queue"), check_path("none"), &copy, &err),
                AC_E_NOT_FOUND);
}
