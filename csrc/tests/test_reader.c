#include "reader.h"

#include "queue.h"
#include "writer.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SEGMENT = 4096 };

static ac_error_t err;
static ac_message_t message;
static ac_reader_stats_t stats;

static void write_queue(int count) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, count);
    close_writer(writer);
}

static ac_reader_t *open_skipping(void) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    config.skip_corrupt = 1;
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    return reader;
}

/* Returns the offset of a record of segment 0. */
static uint64_t offset_of(uint64_t seq) {
    uint8_t payload[PAYLOAD_MAX];
    uint64_t offset = AC_SEGMENT_DATA;
    for (uint64_t i = 0; i < seq; i++)
        offset += ac_record_size(payload_of(i, payload));
    return offset;
}

TEST(everything_written_is_read_once_and_in_order) {
    write_queue(200);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(read_numbered(reader, 0), 200);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.messages, 200);
    CHECK_EQUAL(stats.next_seq, 200);
    CHECK(stats.segments_entered > 3);
    CHECK(stats.queue_id != 0 && !stats.attended);
    ac_reader_free(reader);
    ac_reader_free(NULL);
}

TEST(a_reader_may_come_before_the_first_message) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    append_numbered(writer, 60);
    CHECK_EQUAL(read_numbered(reader, 0), 60);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(what_is_not_a_queue_is_said_to_be_none) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_reader_defaults(&config);
    CHECK_FAILS(ac_reader_open(check_path("none"), &config, &reader, &err), err, AC_E_NOT_FOUND);
    CHECK_EQUAL(mkdir(check_path("empty"), 0700), 0);
    CHECK_FAILS(ac_reader_open(check_path("empty"), &config, &reader, &err), err, AC_E_NOT_FOUND);
    write_queue(1);
    config.start = 17;
    CHECK_FAILS(ac_reader_open(check_path("queue"), &config, &reader, &err), err, AC_E_ARGUMENT);
}

TEST(a_named_reader_resumes_after_its_commit) {
    uint64_t segment, offset;
    write_queue(100);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    for (int i = 0; i < 40; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_commit(reader, segment, offset, 1, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_free(reader);
    reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    uint64_t kept_segment, kept_offset;
    CHECK_OK(ac_reader_committed(reader, &kept_segment, &kept_offset, &err), err);
    CHECK_EQUAL(kept_segment, segment);
    CHECK_EQUAL(kept_offset, offset);
    CHECK_EQUAL(read_numbered(reader, 40), 100);
    ac_reader_free(reader);
}

TEST(an_anonymous_reader_has_nothing_to_commit) {
    uint64_t segment, offset;
    write_queue(1);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_COMMITTED);
    CHECK_FAILS(ac_reader_commit(reader, 0, 64, 0, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_reader_committed(reader, &segment, &offset, &err), err, AC_E_ARGUMENT);
    ac_reader_free(reader);
}

/* A position at which no reader can have been would make the next writer continue far after the queue. */
TEST(a_position_beyond_the_end_is_not_committed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 50);
    ac_writer_stats_t stats;
    ac_writer_stats(writer, &stats);
    CHECK(stats.segment > 1 && stats.offset < SEGMENT);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    const uint64_t beyond[][2] = {
        {stats.segment, stats.offset + 64}, {stats.segment + 1, 64}, {2000, 64}, {2000, 128}};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        CHECK_FAILS(ac_reader_commit(reader, beyond[i][0], beyond[i][1], 0, &err), err,
                    AC_E_ARGUMENT);
        /* A seek cannot reach it either, and leaves the reader where it is. */
        CHECK_FAILS(ac_reader_seek_position(reader, beyond[i][0], beyond[i][1], &err), err,
                    AC_E_POSITION_LOST);
        CHECK_EQUAL(reader->segment, 0);
        CHECK_EQUAL(reader->offset, 64);
    }
    CHECK_EQUAL(read_numbered(reader, 0), 50);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    CHECK_OK(ac_reader_commit(reader, stats.segment, stats.offset, 0, &err), err);
    CHECK_OK(ac_reader_commit(reader, 1, 64, 0, &err), err);
    ac_reader_free(reader);
    close_writer(writer);
    writer = open_writer(check_path("queue"), &config);
    ac_writer_stats(writer, &stats);
    CHECK(stats.segment < 10);
    close_writer(writer);
}

/* A record is readable as soon as it is committed; the control block shows it a moment later, or never if
 * the writer was killed in between. */
TEST(a_position_that_the_control_block_does_not_know_yet_is_committed) {
    ac_map_t *map;
    ac_directory_t dir;
    write_queue(3);
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 0, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(ac_control_open(&dir, fd, 1, 1, &map, &err), err);
    ac_os_close(fd);
    ac_control_of(map)->write_offset = offset_of(2);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_OK(ac_reader_commit(reader, 0, offset_of(3), 0, &err), err);
    CHECK_FAILS(ac_reader_commit(reader, 0, offset_of(3) + 64, 0, &err), err, AC_E_ARGUMENT);
    ac_reader_free(reader);
    ac_map_release(map);
}

TEST(a_position_must_be_one) {
    static const uint64_t wrong[][2] = {
        {0, 0}, {0, 63}, {0, 65}, {0, SEGMENT + 64}, {1ull << 32, 64}};
    write_queue(3);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_FAILS(ac_reader_commit(reader, wrong[i][0], wrong[i][1], 0, &err), err,
                    AC_E_ARGUMENT);
        CHECK_FAILS(ac_reader_seek_position(reader, wrong[i][0], wrong[i][1], &err), err,
                    AC_E_ARGUMENT);
    }
    CHECK_FAILS(ac_reader_seek_position(reader, 9, 64, &err), err, AC_E_POSITION_LOST);
    CHECK_EQUAL(err.wanted_segment, 9);
    CHECK_EQUAL(err.first_segment, 0);
    CHECK_FAILS(ac_reader_seek_position(reader, 0, 2048, &err), err, AC_E_POSITION_LOST);
    CHECK_EQUAL(err.first_offset, offset_of(3));
    CHECK_OK(ac_reader_seek_position(reader, 0, offset_of(3), &err), err);
    CHECK_OK(ac_reader_seek_position(reader, 0, offset_of(2), &err), err);
    CHECK_EQUAL(read_numbered(reader, 2), 3);
    ac_reader_free(reader);
}

TEST(a_corrupt_record_is_an_error_at_its_offset_and_the_reader_stays_there) {
    uint8_t noise = 0xee;
    write_queue(9);
    poke(check_path("queue"), "000000000.q", offset_of(5) + 64, &noise, 1);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    for (int i = 0; i < 3; i++) {
        CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
        CHECK_EQUAL(err.offset, offset_of(5));
        CHECK(strstr(err.path, "000000000.q"));
        CHECK_EQUAL(ac_reader_ready(reader, &err), 1);
    }
    ac_reader_free(reader);
}

static void damage(uint64_t seq, int header) {
    uint8_t noise[8] = {0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee};
    poke(check_path("queue"), "000000000.q", offset_of(seq) + (header ? 8 : 64), noise, 8);
}

TEST(stepping_over_corruption_loses_the_corrupt_record_only) {
    for (int header = 0; header < 2; header++) {
        for (int look = 0; look < 2; look++) {
            uint64_t seen = 0, count = 0;
            write_queue(60);
            damage(5, header);
            damage(8, header);
            ac_reader_t *reader = open_skipping();
            for (;;) {
                /* Checking first must not change the next message. */
                if (look) CHECK_OK(ac_reader_ready(reader, &err), err);
                if (look) CHECK_OK(ac_reader_wait(reader, 0, 0, &err), err);
                int rc = ac_reader_next(reader, &message, &err);
                CHECK_OK(rc, err);
                if (rc == 0) break;
                CHECK(message.seq != 5 && message.seq != 8);
                CHECK(count == 0 || message.seq > seen);
                seen = message.seq;
                count++;
                check_payload(&message);
            }
            CHECK_EQUAL(count, 58);
            ac_reader_stats(reader, &stats);
            CHECK_EQUAL(stats.messages, 58);
            CHECK(stats.skipped_records >= 2 && stats.skipped_bytes >= 128);
            ac_reader_free(reader);
            nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
        }
    }
}

/* A hole of zeros in a finished segment. */
TEST(records_that_are_missing_are_noticed) {
    uint8_t zeros[64] = {0};
    write_queue(60);
    poke(check_path("queue"), "000000000.q", offset_of(5), zeros, sizeof zeros);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    CHECK(strstr(err.detail, "missing"));
    CHECK_EQUAL(err.offset, offset_of(5));
    ac_reader_free(reader);
    /* step_over leads to all that follows, in the same segment, too. */
    reader = open_skipping();
    for (int i = 0; i < 6; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    uint64_t first = message.seq;
    CHECK_EQUAL(first, 6);
    CHECK_EQUAL((uint64_t)(message.record - reader->base), offset_of(6));
    CHECK_EQUAL(read_numbered(reader, first + 1), 60);
    ac_reader_free(reader);
}

TEST(one_damage_is_stepped_over_at_a_time) {
    uint8_t zeros[64] = {0}, byte = 0xEE;
    write_queue(60);
    poke(check_path("queue"), "000000000.q", offset_of(5), zeros, sizeof zeros);
    poke(check_path("queue"), "000000000.q", offset_of(9) + AC_HEADER_SIZE, &byte, 1);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    for (uint64_t seq = 0; seq < 12; seq++) {
        if (seq == 5 || seq == 9) {
            CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
            CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
            CHECK_EQUAL(err.offset, offset_of(seq));
            CHECK_OK(ac_reader_step_over(reader, &err), err);
            continue;
        }
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq);
    }
    /* An unused step_over does not apply to later damage. */
    CHECK_OK(ac_reader_step_over(reader, &err), err);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    for (int i = 0; i < 5; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.skipped_records, 2);
    ac_reader_close(reader);
    CHECK_FAILS(ac_reader_step_over(reader, &err), err, AC_E_CLOSED);
    ac_reader_free(reader);
}

/* A record that is all zeros between two valid ones: a forged or wrongly restored file. */
static void turn_into_padding(uint64_t seq) {
    ac_record_t record;
    uint64_t words[8];
    peek(check_path("queue"), "000000000.q", offset_of(seq), &record, sizeof record);
    record.type_id = AC_TYPE_PADDING;
    memcpy(words, &record, sizeof words);
    record.header_check = ac_crc32c_header(ac_crc32c_seed(0, record.epoch), words);
    poke(check_path("queue"), "000000000.q", offset_of(seq), &record, sizeof record);
}

/* A woken task reads the message itself: the check before it must not compute the checksum again. */
TEST(looking_for_a_message_does_not_read_its_payload) {
    enum { PAGE = 4096 };
    static uint8_t payload[4 * PAGE];
    ac_writer_config_t config = small_queue(1 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    uint8_t *page = reader->map->base + (reader->offset / PAGE + 1) * PAGE;
    CHECK_EQUAL(mprotect(page, 2 * PAGE, PROT_NONE), 0); /* reading it would end the test */
    ac_reader_stats_t before, after;
    ac_reader_stats(reader, &before);
    CHECK_EQUAL(ac_reader_ready(reader, &err), 1);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_READY);
    CHECK_EQUAL(ac_reader_wait(reader, UINT64_MAX, 0, &err), 1);
    ac_reader_stats(reader, &after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_EQUAL(mprotect(page, 2 * PAGE, PROT_READ), 0);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(message.seq, 1);
    CHECK_EQUAL(ac_reader_ready(reader, &err), 0);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(what_would_be_stepped_over_is_not_something_to_read) {
    for (int is_padding = 0; is_padding < 2; is_padding++) {
        write_queue(5);
        if (is_padding)
            turn_into_padding(4);
        else
            damage(4, 0);
        ac_reader_t *reader =
            is_padding ? open_reader(check_path("queue"), NULL, AC_START_FIRST) : open_skipping();
        for (uint64_t seq = 0; seq < 4; seq++) {
            CHECK_EQUAL(ac_reader_ready(reader, &err), 1);
            CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
            CHECK_EQUAL(message.seq, seq);
        }
        CHECK_EQUAL(ac_reader_ready(reader, &err), 0);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
        ac_reader_free(reader);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

TEST(a_gap_in_seq_is_noticed_however_the_first_message_was_read) {
    write_queue(20);
    turn_into_padding(5);
    for (int look = 0; look < 2; look++) {
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        for (int i = 0; i < 5; i++) {
            if (look) CHECK_EQUAL(ac_reader_ready(reader, &err), 1);
            CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        }
        if (look) CHECK_EQUAL(ac_reader_ready(reader, &err), 1);
        CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
        CHECK_EQUAL(err.offset, offset_of(6));
        ac_reader_free(reader);
    }
    int64_t seqs[20];
    ac_columns_t columns = {.seq = seqs, .rows_max = 20};
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_fill(reader, &columns, &err), AC_FILL_TROUBLE);
    CHECK_EQUAL(columns.rows, 5);
    columns.rows = columns.messages = 0;
    CHECK_FAILS(ac_reader_fill(reader, &columns, &err), err, AC_E_CORRUPT);
    ac_reader_free(reader);
}

TEST(a_cut_segment_is_reported_or_stepped_over) {
    write_queue(60);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 1024), 0);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1)
        continue;
    CHECK_EQUAL(rc, AC_E_CORRUPT);
    ac_reader_free(reader);
    reader = open_skipping();
    uint64_t last = 0;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1)
        last = message.seq;
    CHECK_OK(rc, err);
    CHECK_EQUAL(last, 59);
    ac_reader_free(reader);
}

TEST(a_file_cut_under_a_reader_is_an_error_not_a_signal) {
    ac_writer_config_t config = small_queue(1 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 2000);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    copy_queue(check_path("queue"), check_path("copy"));
    close_writer(writer);
    ac_reader_free(reader);
    reader = open_reader(check_path("copy"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(truncate(check_path("copy/000000000.q"), 8192), 0);
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1)
        continue;
    CHECK_EQUAL(rc, AC_E_GONE);
    ac_reader_free(reader);
}

TEST(a_reader_that_stood_behind_the_cut_of_the_newest_segment_is_told) {
    ac_writer_config_t config = small_queue(1 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 2000);
    close_writer(writer);
    ac_reader_t *reader = open_reader(check_path("queue"), "behind", AC_START_LAST);
    CHECK_OK(ac_reader_commit(reader, reader->segment, reader->offset, 0, &err), err);
    ac_reader_free(reader);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 8192), 0);
    reader = open_reader(check_path("queue"), "behind", AC_START_COMMITTED);
    CHECK(reader->offset <= reader->size); /* memory after the mapping must not be touched */
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    CHECK_EQUAL(err.offset, 8192);
    ac_reader_free(reader);
}

TEST(a_segment_removed_ahead_of_a_reader_is_a_lost_position) {
    write_queue(100);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    remove_in(check_path("queue"), "000000001.q");
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1)
        continue;
    CHECK_EQUAL(rc, AC_E_POSITION_LOST);
    CHECK_EQUAL(err.wanted_segment, 1);
    ac_reader_free(reader);
}

TEST(a_replaced_directory_is_noticed) {
    write_queue(100);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(rename(check_path("queue"), check_path("moved")), 0);
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1)
        continue;
    CHECK_EQUAL(rc, AC_E_GONE);
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_GONE);
    CHECK(strstr(err.detail, "replaced"));
    ac_reader_free(reader);
}

/* ---- records of other programs ---- */

static void put_foreign(uint64_t offset, uint64_t seq, uint64_t timestamp_ns, uint16_t type_id) {
    ac_record_t record = {.commit_len = 4,
                          .version = 1,
                          .seq = seq,
                          .timestamp_ns = timestamp_ns,
                          .type_id = type_id,
                          .checksum = type_id == AC_TYPE_PADDING ? 0 : ac_crc32("abc", 3)};
    poke(check_path("queue"), "000000000.q", offset + 64, "abc", 3);
    poke(check_path("queue"), "000000000.q", offset, &record, sizeof record);
}

TEST(a_foreign_queue_is_read_in_file_order) {
    static const uint64_t seqs[] = {0, 1, 0, 1, 5};
    static const uint64_t timestamps[] = {10, 20, 15, 30, 30};
    ac_lag_t lag;
    write_queue(0);
    for (uint64_t i = 0; i < 5; i++)
        put_foreign(64 + 128 * (i + (i > 2)), seqs[i], timestamps[i], 1);
    put_foreign(64 + 128 * 3, 0, 0, AC_TYPE_PADDING);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_OK(ac_reader_lag(reader, &lag, &err), err);
    CHECK_EQUAL(lag.messages, 5);
    for (int i = 0; i < 5; i++) {
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seqs[i]);
        CHECK_EQUAL(message.timestamp_ns, timestamps[i]);
    }
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.seq_restarts, 1);
    CHECK_EQUAL(stats.timestamp_returns, 1);
    ac_reader_free(reader);
    ac_writer_config_t config = small_queue(SEGMENT);
    uint64_t no_epoch = 0;
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, clean), &no_epoch, 8);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 6);
    close_writer(writer);
}

TEST(records_of_another_program_take_the_fast_path_in_its_own_queue_only) {
    for (int is_theirs = 0; is_theirs < 2; is_theirs++) {
        uint64_t no_id = 0, wrong = 0x12345678;
        write_queue(0);
        for (uint64_t i = 0; i < 8; i++)
            put_foreign(64 + 128 * i, i, 10 + i, 1);
        if (is_theirs)
            poke(check_path("queue"), "control.meta", offsetof(ac_control_t, queue_id), &no_id, 8);
        poke(check_path("queue"), "000000000.q", 64 + 128 * 6 + 28, &wrong, 4); /* a checksum */
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        CHECK_EQUAL(ac_reader_try_next(reader, &message), AC_E_SLOW);
        for (uint64_t seq = 0; seq < 6; seq++) {
            int fast = ac_reader_try_next(reader, &message);
            CHECK_EQUAL(fast == 1, is_theirs && seq > 0);
            if (fast != 1) CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
            CHECK_EQUAL(message.seq, seq);
            CHECK(!reader->continued);
        }
        CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
        /* Without verification a foreign record is accepted as it is; in our queue it may be a damaged
         * record of ours. */
        reader->check = AC_CHECK_HEADER;
        CHECK_EQUAL(ac_reader_next(reader, &message, &err) == 1, is_theirs);
        ac_reader_free(reader);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* Its writer left no mark of a clean close, like other such programs. */
TEST(a_foreign_queue_without_a_writer_is_read_fast_and_ends_before_what_is_torn) {
    uint64_t nothing = 0, wrong = 0x12345678;
    write_queue(0);
    for (uint64_t i = 0; i < 8; i++)
        put_foreign(64 + 128 * i, i, 10 + i, 1);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, queue_id), &nothing, 8);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, clean), &nothing, 8);
    CHECK_EQUAL(unlink(check_path("queue/writer.lock")), 0); /* it names this process */
    poke(check_path("queue"), "000000000.q", 64 + 128 * 7 + 28, &wrong, 4); /* a checksum */
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK(reader->unrepaired_epoch != 0);
    for (uint64_t seq = 0; seq < 7; seq++) {
        int fast = ac_reader_try_next(reader, &message);
        CHECK_EQUAL(fast == 1, seq > 1);
        if (fast != 1) CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq);
    }
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_EQUAL(ac_reader_ready(reader, &err), 0); /* or a waiting reader would never sleep */
    /* Without verification every record is checked: it may be the torn one. */
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    reader->check = AC_CHECK_HEADER;
    for (int i = 0; i < 7; i++) {
        CHECK_EQUAL(ac_reader_try_next(reader, &message), AC_E_SLOW);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    }
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    ac_reader_free(reader);
}

/* ---- waiting ---- */

static void *append_later(void *argument) {
    ac_os_sleep_ns(20000000);
    append_numbered(argument, 1);
    return NULL;
}

TEST(a_sleeping_reader_is_woken_by_the_next_message) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    pthread_t thread;
    CHECK_EQUAL(ac_reader_wait(reader, 1000000, 1000000000, &err), 0);
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    do {
        CHECK_EQUAL(ac_reader_wait(reader, 1000000, 0, &err), 0);
        CHECK(ac_os_monotonic_ns() < deadline);
    } while (!ac_reader_attended(reader)); /* until the writer has its eventfd */
    pthread_create(&thread, NULL, append_later, writer);
    CHECK_EQUAL(ac_reader_wait(reader, UINT64_MAX, 100000, &err), 1);
    pthread_join(thread, NULL);
    CHECK_EQUAL(read_numbered(reader, 0), 1);
    ac_writer_stats_t writer_stats;
    ac_writer_stats(writer, &writer_stats);
    CHECK_EQUAL(writer_stats.wakeups, 1);
    CHECK(!ac_reader_is_parked(reader));
    ac_sleep_t sleep;
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_reader_prepare_sleep(reader, &sleep, &err), 1);
    CHECK_EQUAL(read_numbered(reader, 1), 2);
    CHECK_EQUAL(ac_reader_prepare_sleep(reader, &sleep, &err), 0);
    ac_reader_close(reader); /* the sleep does not need the reader */
    ac_reader_sleep(&sleep, 1000000);
    CHECK_FAILS(ac_reader_wait(reader, 0, 0, &err), err, AC_E_CLOSED);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_queue_without_signals_is_polled) {
    uint64_t nobody = 0;
    write_queue(0);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, queue_id), &nobody, 8);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_wait(reader, 2000000, 0, &err), 0);
    put_foreign(64, 0, 1, 1);
    CHECK_EQUAL(ac_reader_wait(reader, UINT64_MAX, 0, &err), 1);
    ac_reader_free(reader);
}

/* ---- ends of a handle ---- */

TEST(a_closed_reader_says_so) {
    uint64_t segment, offset;
    ac_lag_t lag;
    ac_sleep_t sleep;
    write_queue(10);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_close(reader);
    ac_reader_close(reader);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_ready(reader, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_prepare_sleep(reader, &sleep, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_seek_seq(reader, 0, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_seek_first(reader, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_seek_last(reader, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_seek_position(reader, 0, 64, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_commit(reader, 0, 64, 0, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_committed(reader, &segment, &offset, &err), err, AC_E_CLOSED);
    CHECK_FAILS(ac_reader_lag(reader, &lag, &err), err, AC_E_CLOSED);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.messages, 1);
    ac_reader_free(reader);
}

TEST(a_name_in_use_is_refused_to_a_second_reader) {
    ac_reader_config_t config;
    ac_reader_t *second;
    write_queue(10);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    ac_reader_defaults(&config);
    config.name = "r";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &config, &second, &err), err, AC_E_READER_BUSY);
    config.name = "../r";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &config, &second, &err), err, AC_E_NAME);
    ac_reader_free(reader);
    ac_reader_free(open_reader(check_path("queue"), "r", AC_START_COMMITTED));
}

TEST(in_a_forked_child_a_reader_is_closed_and_its_name_is_still_the_parents) {
    write_queue(10);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int rc = ac_reader_next(reader, &message, &err);
        ac_reader_free(reader);
        _exit(rc == AC_E_FORKED ? 0 : 1);
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ac_reader_config_t config;
    ac_reader_t *second;
    ac_reader_defaults(&config);
    config.name = "r";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &config, &second, &err), err, AC_E_READER_BUSY);
    CHECK_EQUAL(read_numbered(reader, 1), 10);
    ac_reader_free(reader);
}

/* ---- whole queues ---- */

TEST(a_cause_is_found_from_the_back) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_cause_t found;
    CHECK_EQUAL(ac_queue_last_cause(check_path("queue"), 7, &found, &err), 0);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(ac_writer_append_cause(writer, "x", 1, 0, AC_NOW,
                                        &(ac_cause_t){7 + i % 2, i, (uint32_t)i / 50, 0}, &err),
                 err);
    for (int i = 0; i < 100; i++)
        CHECK_OK(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), err);
    CHECK_EQUAL(ac_queue_last_cause(check_path("queue"), 7, &found, &err), 1);
    CHECK(found.source == 7 && found.seq == 98 && found.epoch == 1);
    CHECK_EQUAL(ac_queue_last_cause(check_path("queue"), 8, &found, &err), 1);
    CHECK(found.source == 8 && found.seq == 99 && found.epoch == 1);
    CHECK_EQUAL(ac_queue_last_cause(check_path("queue"), 9, &found, &err), 0);
    close_writer(writer);
    CHECK_FAILS(ac_queue_last_cause(check_path("none"), 9, &found, &err), err, AC_E_NOT_FOUND);
}

/* Checks that both ways to ask fail at this offset of the file. */
static void check_causes_fail(const char *name, uint64_t offset) {
    ac_cause_t found;
    for (int all = 0; all < 2; all++) {
        int64_t rc = all ? ac_queue_last_causes(check_path("queue"), 0, &found, 1, &err)
                         : ac_queue_last_cause(check_path("queue"), 7, &found, &err);
        CHECK_FAILS(rc, err, AC_E_CORRUPT);
        CHECK_EQUAL(err.offset, offset);
        CHECK(strstr(err.path, name) != NULL);
    }
}

/* A chain that continues from too old a cause repeats everything after it. */
TEST(a_cause_is_not_looked_for_before_a_damaged_record) {
    static const uint8_t noise = 0xff;
    static const uint8_t zeros[SEGMENT];
    enum { SIZE = 2 * AC_HEADER_SIZE };
    uint64_t last = AC_SEGMENT_DATA + 5 * SIZE;
    ac_cause_t found;
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (uint64_t i = 0; i < 40; i++)
        CHECK_OK(ac_writer_append_cause(writer, "x", 1, 0, AC_NOW, &(ac_cause_t){7, i, 0, 0}, &err),
                 err);
    close_writer(writer);
    poke(check_path("queue"), "000000001.q", last + 9, &noise, 1);
    check_causes_fail("000000001.q", last);
    poke(check_path("queue"), "000000001.q", last, zeros, SIZE); /* before the durable end */
    check_causes_fail("000000001.q", last);
    poke(check_path("queue"), "000000001.q", AC_SEGMENT_DATA, zeros, SEGMENT - AC_SEGMENT_DATA);
    poke(check_path("queue"), "index.meta", 0, &(ac_durable_t){1, AC_SEGMENT_DATA}, 16);
    CHECK_EQUAL(ac_queue_last_cause(check_path("queue"), 7, &found, &err), 1);
    CHECK_EQUAL(found.seq, 30);
    poke(check_path("queue"), "000000000.q", last, zeros, SEGMENT - last); /* sealed */
    check_causes_fail("000000000.q", last);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), (off_t)last), 0);
    check_causes_fail("000000000.q", last);
}

TEST(room_that_was_given_up_at_the_start_of_a_segment_does_not_hide_older_causes) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_cause_t cause;
    void *room;
    CHECK_OK(ac_writer_append_cause(writer, "x", 1, 0, 1000, &(ac_cause_t){7, 5, 3, 0}, &err), err);
    CHECK_OK(ac_writer_reserve(writer, SEGMENT - AC_SEGMENT_DATA - AC_HEADER_SIZE, &room, &err),
             err);
    ac_writer_abandon(writer);
    CHECK_OK(ac_writer_append(writer, "x", 1, 0, 2000, &err), err);
    CHECK_EQUAL(ac_queue_last_causes(check_path("queue"), 500, &cause, 1, &err), 1);
    CHECK(cause.source == 7 && cause.seq == 5 && cause.epoch == 3);
    close_writer(writer);
}

TEST(verification_counts_the_corrupt_places) {
    uint64_t records;
    ac_queue_info_t info;
    write_queue(60);
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 0);
    CHECK_EQUAL(records, 60);
    damage(3, 0);
    damage(7, 1);
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 2);
    CHECK_EQUAL(records, 58);
    CHECK_EQUAL(err.offset, offset_of(3));
    CHECK_FAILS(ac_queue_verify(check_path("none"), &records, &err), err, AC_E_NOT_FOUND);
    CHECK_FAILS(ac_queue_info(check_path("none"), &info, &err), err, AC_E_NOT_FOUND);
    CHECK_OK(ac_queue_info(check_path("queue"), &info, &err), err);
    CHECK_EQUAL(info.next_seq, 60);
    CHECK_EQUAL(info.segments, info.last_segment + 1);
}

/* A segment that is full to the last byte, and the next one prepared. */
static ac_writer_t *fill_segment(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (unsigned i = 0; i < (SEGMENT - AC_SEGMENT_DATA) / AC_HEADER_SIZE; i++)
        CHECK_OK(ac_writer_append(writer, "", 0, 0, AC_NOW, &err), err);
    CHECK_OK(ac_writer_prepare_next(writer, &err), err);
    CHECK(exists(check_path("queue"), "000000001.q"));
    return writer;
}

TEST(a_reader_at_the_end_of_a_full_segment_outlives_the_writer) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = fill_segment();
    ac_reader_t *walking = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_reader_t *waiting = open_reader(check_path("queue"), NULL, AC_START_LAST);
    while (ac_reader_next(walking, &message, &err) == 1)
        continue;
    CHECK_EQUAL(ac_reader_next(waiting, &message, &err), 0);
    close_writer(writer); /* removes the prepared segment; the next writer makes another */
    CHECK(!exists(check_path("queue"), "000000001.q"));
    writer = open_writer(check_path("queue"), &config);
    int64_t seq = ac_writer_append(writer, "on", 2, 0, AC_NOW, &err);
    CHECK_OK(seq, err);
    CHECK_EQUAL(ac_reader_next(walking, &message, &err), 1);
    CHECK_EQUAL(message.seq, seq);
    CHECK_EQUAL(ac_reader_next(waiting, &message, &err), 1);
    CHECK_EQUAL(message.seq, seq);
    ac_reader_free(walking);
    ac_reader_free(waiting);
    close_writer(writer);
}

static int fail_once(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    failing_t *failing = context;
    return failing->failed ? 0 : fail_hook(context, call, path, fd, offset, length);
}

TEST(a_segment_that_comes_between_two_looks_is_not_taken_for_removed) {
    failing_t failing = {.call = AC_CALL_OPEN, .name_end = "000000001.q", .error = ENOENT};
    write_queue(200);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    for (;;) {
        ac_reader_stats(reader, &stats);
        if (stats.offset >= SEGMENT - 512) break;
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    }
    ac_os_set_hook(fail_once, &failing);
    uint64_t end = read_numbered(reader, stats.next_seq);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(failing.failed, 1);
    CHECK_EQUAL(end, 200);
    ac_reader_free(reader);
}
