#include "queue.h"
#include "reader.h"
#include "segment_tail.h"

enum { SEGMENT = 64 << 10, RECORDS = 2000 };

static ac_error_t err;
static ac_message_t message;

/* Timestamps 1000, 1000, 1010, 1010, … */
static uint64_t timestamp_of(uint64_t seq) {
    return 1000 + seq / 2 * 10;
}

static ac_writer_t *write_queue(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint8_t payload[PAYLOAD_MAX];
    for (uint64_t i = 0; i < RECORDS; i++)
        CHECK_EQUAL(
            ac_writer_append(writer, payload, payload_of(i, payload), 0, timestamp_of(i), &err), i);
    return writer;
}

static void check_all_seeks(ac_reader_t *reader, uint64_t step) {
    for (uint64_t seq = 0; seq < RECORDS; seq += step) {
        CHECK_OK(ac_reader_seek_seq(reader, seq, &err), err);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq);
        CHECK_OK(ac_reader_seek_time(reader, timestamp_of(seq), &err), err);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq / 2 * 2);
        CHECK_OK(ac_reader_seek_time(reader, timestamp_of(seq) - 5, &err), err);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq / 2 * 2);
    }
}

TEST(every_message_is_found_by_seq_and_by_time) {
    ac_writer_t *writer = write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    check_all_seeks(reader, 7);
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS + 5, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_OK(ac_reader_seek_time(reader, UINT64_MAX, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_OK(ac_reader_seek_time(reader, 0, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(message.seq, 0);
    CHECK_OK(ac_reader_seek_last(reader, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    append_numbered(writer, 1);
    CHECK_EQUAL(read_numbered(reader, RECORDS), RECORDS + 1);
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS, &err), err);
    CHECK_EQUAL(read_numbered(reader, RECORDS), RECORDS + 1);
    ac_reader_free(reader);
    close_writer(writer);
}

/* The seq in a torn header is not trusted. */
TEST(the_end_is_expected_behind_the_last_sound_record) {
    ac_writer_stats_t written;
    ac_reader_stats_t stats;
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 10);
    ac_writer_stats(writer, &written);
    ac_record_t torn = {.commit_len = 1, .version = 1, .seq = 999, .flags = AC_FLAG_OURS};
    poke(check_path("queue"), "000000000.q", written.offset, &torn, sizeof torn);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.next_seq, 10);
    CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    ac_reader_free(reader);
    close_writer(writer);
}

/* The state when the writer has linked the next segment but has not moved to it yet. */
static uint64_t leave_an_empty_last_segment(ac_writer_t *writer, int end_known) {
    static const uint8_t nothing[4096];
    ac_writer_stats_t last, before, after;
    ac_writer_stats(writer, &before);
    do {
        last = before;
        ac_writer_stats(writer, &before);
        append_numbered(writer, 1);
        ac_writer_stats(writer, &after);
    } while (after.segment == 0);
    poke(check_path("queue"), "000000001.q", AC_SEGMENT_DATA, nothing, sizeof nothing);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, current_segment),
         &(uint32_t){0}, 4);
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, write_offset), &before.offset,
         8);
    if (!end_known) /* the last record before is lost */
        poke(check_path("queue"), "000000000.q", last.offset, nothing, 64);
    return before.next_seq;
}

TEST(where_an_empty_segment_begins_the_next_seq_is_that_after_the_segment_before) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_stats_t stats;
    uint64_t end = leave_an_empty_last_segment(writer, 1), seq = 0;
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.segment, 1);
    CHECK_EQUAL(stats.next_seq, end);
    CHECK_EQUAL(ac_reader_seq_at(reader, 1, AC_SEGMENT_DATA, &seq, &err), 1);
    CHECK_EQUAL(seq, end);
    CHECK_EQUAL(ac_reader_seq_at(reader, 1, AC_SEGMENT_DATA + 64, &seq, &err), 0);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(an_unknown_seq_is_not_made_up) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_stats_t stats;
    leave_an_empty_last_segment(writer, 0);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    uint64_t seq = 77;
    ac_reader_stats(reader, &stats);
    CHECK_EQUAL(stats.segment, 1);
    CHECK_EQUAL(stats.next_seq, 0);
    CHECK_EQUAL(ac_reader_seq_at(reader, 1, AC_SEGMENT_DATA, &seq, &err), 0);
    CHECK_EQUAL(seq, 77);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_reader_can_be_opened_anywhere) {
    static const struct {
        int start;
        uint64_t value, seq;
    } starts[] = {{AC_START_FIRST, 0, 0},
                  {AC_START_COMMITTED, 0, 0},
                  {AC_START_SEQ, 1234, 1234},
                  {AC_START_TIME, 1000 + 500 * 10, 1000}};
    close_writer(write_queue());
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        ac_reader_config_t config;
        ac_reader_t *reader;
        ac_reader_defaults(&config);
        config.start = starts[i].start;
        config.start_value = starts[i].value;
        CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
        CHECK_EQUAL(read_numbered(reader, starts[i].seq), RECORDS);
        ac_reader_free(reader);
    }
}

/* No content of an index makes a message unreachable. */
TEST(lying_and_missing_indexes_change_nothing) {
    static const uint64_t lies[] = {0, 1, 700, 1000000, UINT64_MAX};
    close_writer(write_queue());
    for (size_t lie = 0; lie < sizeof lies / sizeof *lies; lie++) {
        for (uint32_t id = 0; id < 100; id++) {
            char name[AC_NAME_MAX];
            ac_index_header_t header;
            ac_segment_name(name, id, ".idx");
            if (!exists(check_path("queue"), name)) break;
            peek(check_path("queue"), name, 0, &header, sizeof header);
            if (id % 2)
                header.max_seq = lies[lie];
            else
                header.max_ts_ns = lies[lie];
            if (header.min_seq > header.max_seq) header.min_seq = header.max_seq;
            if (header.min_ts_ns > header.max_ts_ns) header.min_ts_ns = header.max_ts_ns;
            poke(check_path("queue"), name, 0, &header, sizeof header);
        }
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        check_all_seeks(reader, 31);
        ac_reader_free(reader);
    }
    remove_in(check_path("queue"), "000000001.idx");
    poke(check_path("queue"), "000000000.idx", 0, "garbage!", 8);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    check_all_seeks(reader, 31);
    ac_reader_free(reader);
}

/* A killed writer may leave some; only a walk shows which record is where in them. */
TEST(unsealed_segments_before_sealed_ones_are_searched) {
    static const char *const segments[] = {"000000000", "000000002", "000000003"};
    close_writer(write_queue());
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        char name[AC_NAME_MAX];
        uint32_t flags = 0;
        snprintf(name, sizeof name, "%s.q", segments[i]);
        poke(check_path("queue"), name, 12, &flags, sizeof flags);
        snprintf(name, sizeof name, "%s.idx", segments[i]);
        remove_in(check_path("queue"), name);
    }
    for (uint64_t seq = 0; seq < RECORDS; seq += 31) { /* each with nothing known before */
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        CHECK_OK(ac_reader_seek_seq(reader, seq, &err), err);
        CHECK_EQUAL(read_numbered(reader, seq), RECORDS);
        ac_reader_free(reader);
    }
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    check_all_seeks(reader, 7);
    ac_reader_free(reader);
}

TEST(segments_that_went_or_came_are_noticed) {
    ac_writer_t *writer = write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS - 1, &err), err);
    remove_in(check_path("queue"), "000000000.q");
    remove_in(check_path("queue"), "000000001.q");
    CHECK_OK(ac_reader_seek_seq(reader, 0, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK(message.seq > 0);
    CHECK_EQUAL(message.segment, 2);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(message.segment, 2);
    append_numbered(writer, 1000);
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS + 900, &err), err);
    CHECK_EQUAL(read_numbered(reader, RECORDS + 900), RECORDS + 1000);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(an_empty_queue_can_be_sought_in) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    ac_lag_t lag;
    CHECK_OK(ac_reader_seek_seq(reader, 5, &err), err);
    CHECK_OK(ac_reader_seek_time(reader, 5, &err), err);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    CHECK_OK(ac_reader_seek_last(reader, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_OK(ac_reader_lag(reader, &lag, &err), err);
    CHECK_EQUAL(lag.messages, 0);
    append_numbered(writer, 3);
    CHECK_OK(ac_reader_lag(reader, &lag, &err), err);
    CHECK_EQUAL(lag.messages, 3);
    CHECK(lag.bytes > 0 && lag.age_ns > 0);
    CHECK_EQUAL(read_numbered(reader, 0), 3);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_wrong_note_of_the_last_record_only_costs_a_walk) {
    static const uint64_t notes[] = {0, 1, 63, 65, 128, SEGMENT, UINT64_MAX, UINT64_MAX & ~63ull};
    ac_writer_t *writer = write_queue();
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        poke(check_path("queue"), "control.meta", offsetof(ac_control_t, last_record), &notes[i],
             8);
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
        ac_writer_stats_t stats;
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
        append_numbered(writer, 1);
        CHECK_EQUAL(read_numbered(reader, stats.next_seq), stats.next_seq + 1);
        ac_reader_free(reader);
    }
    close_writer(writer);
}

static void end_at_seq(ac_reader_t *reader, uint64_t seq) {
    uint64_t segment, offset;
    CHECK_OK(ac_reader_seek_seq(reader, seq, &err), err);
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_end_at(reader, segment, offset, &err), err);
    CHECK(ac_reader_ended(reader));
}

TEST(an_end_is_where_reading_ends_whatever_comes_behind_it) {
    ac_writer_t *writer = write_queue();
    for (int verify = 0; verify < 2; verify++) {
        ac_reader_config_t config;
        ac_reader_t *reader;
        ac_reader_defaults(&config);
        config.verify = verify;
        CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
        for (uint64_t end = 0; end <= RECORDS; end += 97) {
            end_at_seq(reader, end);
            CHECK_OK(ac_reader_seek_first(reader, &err), err);
            CHECK_EQUAL(ac_reader_ended(reader), end == 0);
            CHECK_EQUAL(read_numbered(reader, 0), end);
            CHECK(ac_reader_ended(reader));
            CHECK_OK(ac_reader_seek_last(reader, &err), err);
            CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
        }
        ac_reader_free(reader);
    }
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_LAST);
    uint64_t segment, offset;
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_end_at(reader, segment, offset, &err), err);
    append_numbered(writer, 1000);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    CHECK_EQUAL(read_numbered(reader, 0), RECORDS);
    CHECK_EQUAL(ac_reader_end_at(reader, segment, offset + 1, &err), AC_E_ARGUMENT);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(an_end_that_is_a_corrupt_record_is_reported) {
    ac_writer_t *writer = write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t segment, offset;
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS - 1, &err), err);
    ac_reader_position(reader, &segment, &offset);
    char name[32];
    snprintf(name, sizeof name, "%09llu.q", (unsigned long long)segment);
    poke(check_path("queue"), name, offset + offsetof(ac_record_t, seq), "\377\377", 2);
    CHECK_OK(ac_reader_end_at(reader, segment, offset, &err), err);
    CHECK_OK(ac_reader_seek_seq(reader, RECORDS - 3, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), AC_E_CORRUPT);
    ac_reader_free(reader);
    close_writer(writer);
}

/* As if retention, or the end of a writer, had removed the segment after it was listed. */
static int hide_once(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    uint32_t *hidden = context;
    (void)fd;
    (void)offset;
    (void)length;
    if (call != AC_CALL_OPEN || !path || !strstr(path, ".q") || *hidden) return 0;
    *hidden = 1;
    return ENOENT;
}

TEST(a_segment_that_goes_after_it_was_listed_is_not_the_end_of_a_seek) {
    static int (*const seeks[])(ac_reader_t *, ac_error_t *) = {ac_reader_seek_first,
                                                                ac_reader_seek_last};
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 10);
    for (int i = 0; i < 2; i++) {
        uint32_t hidden = 0;
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        ac_map_release(reader->map);
        reader->map = NULL;
        ac_os_set_hook(hide_once, &hidden);
        CHECK_OK(seeks[i](reader, &err), err);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(hidden, 1);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), i == 0);
        ac_reader_free(reader);
    }
    close_writer(writer);
}

enum { TAIL_RECORDS = 3 * AC_INDEX_STRIDE + 100 };

static void write_tail(uint64_t first, uint64_t count, size_t size) {
    ac_writer_config_t config = small_queue(8 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint8_t payload[PAYLOAD_MAX] = {0};
    for (uint64_t seq = first; seq < first + count; seq++)
        CHECK_EQUAL(ac_writer_append(writer, payload, size, 0, timestamp_of(seq), &err), seq);
    close_writer(writer);
}

static void check_tail(ac_reader_t *reader, uint64_t records) {
    for (uint64_t seq = 0; seq < records; seq += 997) {
        CHECK_OK(ac_reader_seek_seq(reader, seq, &err), err);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq);
    }
    CHECK_OK(ac_reader_seek_seq(reader, records, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    CHECK_EQUAL(reader->catalogue[reader->catalogue_count - 1].records, records);
}

TEST(a_reader_goes_on_where_another_one_has_indexed_the_tail) {
    write_tail(0, TAIL_RECORDS, 64);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t queue_id = ac_load_relaxed_u64(&reader->control->queue_id);
    ac_index_t found = {0};
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    CHECK(!ac_tail_recall(reader->dir.path, queue_id, reader->map, &found));
    check_tail(reader, TAIL_RECORDS);
    CHECK(ac_tail_recall(reader->dir.path, queue_id, reader->map, &found));
    CHECK_EQUAL(found.records, 3 * AC_INDEX_STRIDE);
    CHECK_EQUAL(ac_index_extend(&found, reader->map), 0);
    CHECK_EQUAL(found.records, TAIL_RECORDS);
    CHECK_EQUAL(found.count, 4);
    CHECK_EQUAL(found.min_seq, 0);
    CHECK_EQUAL(found.max_seq, TAIL_RECORDS - 1);
    CHECK_EQUAL(found.max_ts_ns, timestamp_of(TAIL_RECORDS - 1));
    CHECK(!found.mixed && !found.broken);
    ac_index_free(&found);
    CHECK(!ac_tail_recall(reader->dir.path, queue_id + 1, reader->map, &found));
    ac_reader_free(reader);
    write_tail(TAIL_RECORDS, 2 * AC_INDEX_STRIDE, 64);
    reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    check_tail(reader, TAIL_RECORDS + 2 * AC_INDEX_STRIDE);
    ac_reader_free(reader);
}

TEST(the_index_of_a_tail_that_has_changed_is_forgotten) {
    ac_index_t found = {0};
    write_tail(0, TAIL_RECORDS, 64);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t queue_id = ac_load_relaxed_u64(&reader->control->queue_id);
    check_tail(reader, TAIL_RECORDS);
    uint64_t last = reader->catalogue[0].entries[3].offset;
    uint8_t wrong = 0xee;
    poke(check_path("queue"), "000000000.q", last + AC_HEADER_SIZE, &wrong, 1);
    CHECK(!ac_tail_recall(reader->dir.path, queue_id, reader->map, &found));
    wrong = 0;
    poke(check_path("queue"), "000000000.q", last + AC_HEADER_SIZE, &wrong, 1);
    CHECK(!ac_tail_recall(reader->dir.path, queue_id, reader->map, &found)); /* forgotten */
    ac_reader_free(reader);
}
