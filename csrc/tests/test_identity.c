/* The identity of a queue: a moved queue keeps it, a copy gets a new one, and a directory that shares the files is
 * refused. Also the epochs of writers, which distinguish one life of a queue from the next. */
#include "control.h"

#include "queue.h"
#include "recovery.h"

enum { SEGMENT = 4096 };

static ac_error_t err;
static ac_recovery_t report;
static ac_writer_stats_t stats;

uint64_t __real_ac_os_now_ns(void);
uint64_t __wrap_ac_os_now_ns(void);

static uint64_t set_ns; /* the time of the clock; 0 = the real time */

uint64_t __wrap_ac_os_now_ns(void) {
    return set_ns ? set_ns : __real_ac_os_now_ns();
}

/* Opens the queue for writing, appends `count` messages, and closes it; `report` and `stats` are of this
 * writer. */
static void write_some(const char *name, int count) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path(name), &config);
    ac_writer_recovery(writer, &report);
    append_numbered(writer, count);
    ac_writer_stats(writer, &stats);
    close_writer(writer);
}

static ac_control_t control_of(const char *name) {
    ac_control_t control;
    peek(check_path(name), "control.meta", 0, &control, sizeof control);
    return control;
}

TEST(a_queue_that_is_moved_stays_the_same) {
    write_some("queue", 3);
    uint64_t id = stats.queue_id;
    CHECK_EQUAL(mkdir(check_path("elsewhere"), 0700), 0);
    CHECK_EQUAL(rename(check_path("queue"), check_path("elsewhere/moved")), 0);
    write_some("elsewhere/moved", 3);
    CHECK(stats.queue_id == id);
    CHECK(!report.is_copy);
    CHECK(report.clean);
    CHECK_EQUAL(stats.segment, 0);
    CHECK_EQUAL(control_of("elsewhere/moved").ancestors[0].queue_id, 0);
    CHECK_EQUAL(count_numbered(check_path("elsewhere/moved")), 6);
}

TEST(a_copy_gets_an_identity_of_its_own_when_it_is_written_to) {
    for (int killed = 0; killed < 2; killed++) {
        ac_writer_config_t config = small_queue(SEGMENT);
        write_some("queue", 3);
        uint64_t id = stats.queue_id, epoch = stats.epoch;
        ac_writer_t *writer = NULL;
        if (killed) { /* it is open while it is copied */
            writer = open_writer(check_path("queue"), &config);
            ac_writer_stats(writer, &stats);
            epoch = stats.epoch;
        }
        copy_queue_as_copy(check_path("queue"), check_path("copy"));
        ac_control_t original = control_of("queue");
        write_some("copy", 2);
        CHECK(report.is_copy);
        CHECK_EQUAL(report.clean, !killed);
        CHECK(stats.queue_id != id && stats.queue_id != 0);
        CHECK(stats.epoch > epoch);
        CHECK_EQUAL(stats.segment, 1);
        ac_control_t control = control_of("copy");
        CHECK(ac_control_id_of(&control, 0) == id);
        CHECK(ac_control_id_of(&control, 1) == stats.queue_id);
        CHECK(ac_control_id_of(&control, 1000) == stats.queue_id);
        CHECK_EQUAL(count_numbered(check_path("copy")), 5);
        uint64_t own = stats.queue_id;
        write_some("copy", 1); /* once only */
        CHECK(!report.is_copy);
        CHECK(stats.queue_id == own);
        CHECK_EQUAL(stats.segment, 1);
        /* The original is not affected. */
        ac_control_t after = control_of("queue");
        CHECK(memcmp(&original, &after, sizeof original) == 0);
        if (writer) {
            append_numbered(writer, 1);
            close_writer(writer);
        }
        write_some("queue", 1);
        CHECK(!report.is_copy);
        CHECK(stats.queue_id == id);
        CHECK_EQUAL(stats.segment, 0);
        CHECK_EQUAL(count_numbered(check_path("queue")), 4 + killed);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
        nftw(check_path("copy"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* It has no message that another queue could have named. */
TEST(a_copy_without_messages_goes_on_where_it_is) {
    write_some("queue", 0);
    uint64_t id = stats.queue_id;
    copy_queue_as_copy(check_path("queue"), check_path("copy"));
    write_some("copy", 1);
    CHECK(report.is_copy);
    CHECK_EQUAL(stats.segment, 0);
    ac_control_t control = control_of("copy");
    CHECK(stats.queue_id != id);
    CHECK(ac_control_id_of(&control, 0) == stats.queue_id);
}

TEST(copies_of_copies_remember_the_newest_of_their_ancestors) {
    enum { GENERATIONS = AC_ANCESTORS + 3 };
    uint64_t ids[GENERATIONS];
    write_some("queue0", 2);
    ids[0] = stats.queue_id;
    for (uint64_t newest = 1; newest < GENERATIONS; newest++) {
        char from[32], to[32];
        snprintf(from, sizeof from, "queue%d", (int)newest - 1);
        snprintf(to, sizeof to, "queue%d", (int)newest);
        copy_queue_as_copy(check_path(from), check_path(to));
        write_some(to, 2);
        ids[newest] = stats.queue_id;
        CHECK_EQUAL(stats.segment, newest); /* so each segment is of another generation */
        ac_control_t control = control_of(to);
        for (uint64_t segment = 0; segment <= newest; segment++) {
            uint64_t oldest = newest > AC_ANCESTORS ? newest - AC_ANCESTORS : 0;
            uint64_t known = segment > oldest ? segment : oldest;
            CHECK(ac_control_id_of(&control, segment) == ids[known]);
        }
        for (uint64_t i = 0; i < AC_ANCESTORS; i++) {
            CHECK(control.ancestors[i].queue_id == (i < newest ? ids[newest - 1 - i] : 0));
            CHECK_EQUAL(control.ancestors[i].until_segment, i < newest ? newest - i : 0);
        }
        CHECK_EQUAL(count_numbered(check_path(to)), 2 * newest + 2);
    }
}

static uint64_t offset_of(uint64_t seq) {
    uint64_t offset = AC_SEGMENT_DATA;
    for (uint64_t i = 0; i < seq; i++)
        offset += ac_record_size(i * 37 % 300);
    return offset;
}

/* A copy whose index.meta was copied last, after more had been appended and flushed. */
static void copy_late_mark(const char *name) {
    static const uint8_t zeros[SEGMENT];
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 9);
    CHECK_EQUAL(ac_writer_flush(writer, &err), 9);
    copy_queue_as_copy(check_path("queue"), check_path(name));
    close_writer(writer);
    poke(check_path(name), "000000000.q", offset_of(5), zeros, SEGMENT - offset_of(5));
}

TEST(a_reader_of_a_copy_that_was_not_repaired_does_not_go_by_its_index_meta) {
    ac_message_t message;
    copy_late_mark("copy");
    ac_reader_t *reader = open_reader(check_path("copy"), NULL, AC_START_FIRST);
    CHECK_EQUAL(read_numbered(reader, 0), 5);
    write_some("copy", 3);
    CHECK(report.is_copy);
    CHECK_EQUAL(report.corrupt_records, 0);
    CHECK_EQUAL(stats.segment, 1);
    CHECK_EQUAL(read_numbered(reader, 5), 8);
    ac_reader_free(reader);
    CHECK_EQUAL(count_numbered(check_path("copy")), 8);
    /* In the original the same bytes count as damage. */
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    copy_late_mark("original");
    forget_home(check_path("original"));
    reader = open_reader(check_path("original"), NULL, AC_START_FIRST);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    ac_reader_free(reader);
}

static void link_files(const char *from, const char *to) {
    CHECK_EQUAL(mkdir(to, 0700), 0);
    DIR *stream = opendir(from);
    CHECK(stream != NULL);
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        char source[1400], target[1400];
        struct stat info;
        snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        CHECK_EQUAL(lstat(source, &info), 0);
        if (S_ISREG(info.st_mode)) CHECK_EQUAL(link(source, target), 0);
    }
    closedir(stream);
}

TEST(a_directory_that_shares_its_files_with_a_queue_is_not_opened_for_writing) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = NULL;
    write_some("queue", 3);
    uint64_t id = stats.queue_id;
    link_files(check_path("queue"), check_path("links"));
    ac_control_t before = control_of("queue");
    CHECK_FAILS(ac_writer_open(check_path("links"), &config, &writer, &err), err, AC_E_NOT_A_QUEUE);
    CHECK(strstr(err.detail, "hard links") != NULL);
    ac_control_t after = control_of("queue");
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_EQUAL(count_numbered(check_path("links")), 3);
    write_some("queue", 2); /* the original has as many names for its files, and is where it was */
    CHECK(stats.queue_id == id);
    CHECK(!report.is_copy);
    CHECK_EQUAL(count_numbered(check_path("queue")), 5);
    /* Once the original is gone, it is an ordinary copy. */
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    write_some("links", 1);
    CHECK(report.is_copy);
    CHECK(stats.queue_id != id);
    CHECK_EQUAL(count_numbered(check_path("links")), 6);
}

/* ---- epochs ---- */

#define DAY_NS (86400ull * 1000000000u)

TEST(an_epoch_is_no_smaller_than_the_seconds_of_the_clock) {
    set_ns = (__real_ac_os_now_ns() / 1000000000u + 1000) * 1000000000u + 999999999u;
    write_some("queue", 1);
    CHECK_EQUAL(stats.epoch, set_ns / 1000000000u);
    write_some("queue", 1); /* in the same second */
    CHECK_EQUAL(stats.epoch, set_ns / 1000000000u + 1);
    uint64_t last = stats.epoch;
    set_ns += DAY_NS;
    write_some("queue", 1);
    CHECK_EQUAL(stats.epoch, set_ns / 1000000000u);
    CHECK(stats.epoch > last);
    CHECK_EQUAL(control_of("queue").writer_epoch, stats.epoch);
    set_ns = 0;
}

TEST(an_epoch_is_one_more_than_the_last_when_the_clock_went_back) {
    set_ns = __real_ac_os_now_ns() + DAY_NS;
    write_some("queue", 1);
    uint64_t last = stats.epoch;
    for (uint64_t i = 1; i < 4; i++) {
        set_ns -= DAY_NS;
        write_some("queue", 1);
        CHECK_EQUAL(stats.epoch, last + i);
    }
    set_ns = 0;
}

/* Otherwise no epoch would be left after the clock is corrected. */
TEST(a_clock_that_is_most_of_a_century_ahead_is_not_gone_by) {
    write_some("queue", 1);
    uint64_t last = stats.epoch;
    set_ns = (uint64_t)UINT32_MAX * 1000000000u;
    write_some("queue", 0);
    CHECK_EQUAL(stats.epoch, last + 1);
    set_ns = 0;
}

TEST(copies_that_are_opened_in_one_second_have_different_epochs) {
    uint64_t second = __real_ac_os_now_ns() / 1000000000u + 1000, epochs[3];
    set_ns = second * 1000000000u;
    write_some("queue", 1);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "copy%d", i);
        copy_queue_as_copy(check_path("queue"), check_path(name));
    }
    for (uint64_t i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "copy%d", (int)i);
        set_ns = second * 1000000000u + (i + 1) * 7000;
        write_some(name, 1);
        epochs[i] = stats.epoch;
        CHECK(epochs[i] > second);
        for (uint64_t before = 0; before < i; before++)
            CHECK(epochs[i] != epochs[before]);
    }
    write_some("queue", 1);
    for (int i = 0; i < 3; i++)
        CHECK(epochs[i] != stats.epoch);
    set_ns = 0;
}
