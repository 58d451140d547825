#include "queue.h"
#include "reader.h"

enum { SEGMENT = 64 << 10, RECORDS = 2000, ROOM = 512 };

static ac_error_t err;

static const ac_bound_t none = {AC_BOUND_NONE, 0};

static ac_bound_t at_seq(uint64_t seq) {
    return (ac_bound_t){AC_BOUND_SEQ, seq};
}

static void write_queue(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, RECORDS);
    close_writer(writer);
}

/* Columns with nothing after them, so that the sanitizer detects an overrun. */
static ac_columns_t *columns_new(uint64_t rows, uint64_t bytes) {
    ac_columns_t *columns = calloc(1, sizeof *columns);
    columns->rows_max = rows;
    columns->payload_bytes_max = bytes;
    columns->seq = malloc(rows * 8);
    columns->timestamp_ns = malloc(rows * 8);
    columns->timestamp_us = malloc(rows * 8);
    columns->type_id = malloc(rows * 4);
    columns->payload_offsets = malloc((rows + 1) * 4);
    columns->payload = malloc(bytes + AC_COLUMNS_SLACK);
    columns->cause_valid = calloc(1, (rows + 7) / 8);
    columns->cause_queue_id = malloc(rows * 8);
    columns->cause_seq = malloc(rows * 8);
    return columns;
}

static void columns_free(ac_columns_t *columns) {
    free(columns->seq);
    free(columns->timestamp_ns);
    free(columns->timestamp_us);
    free(columns->type_id);
    free(columns->payload_offsets);
    free(columns->payload);
    free(columns->cause_valid);
    free(columns->cause_queue_id);
    free(columns->cause_seq);
    free(columns);
}

static void check_rows(const ac_columns_t *columns, uint64_t first_seq) {
    for (uint64_t row = 0; row < columns->rows; row++) {
        uint8_t expected[PAYLOAD_MAX];
        size_t length = payload_of(first_seq + row, expected);
        CHECK_EQUAL(columns->seq[row], first_seq + row);
        CHECK_EQUAL(columns->type_id[row], 7);
        CHECK_EQUAL(columns->timestamp_us[row], columns->timestamp_ns[row] / 1000);
        CHECK_EQUAL(columns->payload_offsets[row + 1] - columns->payload_offsets[row], length);
        CHECK(memcmp(columns->payload + columns->payload_offsets[row], expected, length) == 0);
        CHECK_EQUAL(columns->cause_valid[row / 8] >> row % 8 & 1, 0);
    }
    CHECK_EQUAL(columns->payload_offsets[columns->rows], columns->payload_bytes);
}

/* Reads a range in batches of this many rows and bytes; returns the number of rows. */
static uint64_t read_range(ac_reader_t *reader, const ac_range_t *range, uint64_t first_seq,
                           uint64_t rows, uint64_t bytes) {
    uint64_t total = 0;
    int rc;
    CHECK_OK(ac_reader_read_range(reader, range, &err), err);
    do {
        ac_columns_t *columns = columns_new(rows, bytes);
        rc = ac_reader_fill(reader, columns, &err);
        CHECK_OK(rc, err);
        check_rows(columns, first_seq + total);
        CHECK(rc != AC_FILL_ROWS || columns->rows == rows);
        CHECK(rc != AC_FILL_BYTES ||
              columns->payload_bytes + columns->payload_bytes_wanted > bytes);
        CHECK(rc == AC_FILL_END || columns->rows > 0);
        total += columns->rows;
        columns_free(columns);
    } while (rc != AC_FILL_END);
    return total;
}

TEST(ranges_are_filled_whatever_the_room) {
    write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t bounds[] = {0, 1, 57, 300, 999, 1000, RECORDS - 1, RECORDS, RECORDS + 10};
    enum { BOUNDS = sizeof bounds / sizeof *bounds };
    for (int i = 0; i < BOUNDS; i++)
        for (int k = i; k < BOUNDS; k++) {
            ac_range_t range;
            uint64_t end = bounds[k] < RECORDS ? bounds[k] : RECORDS;
            uint64_t count = bounds[i] < end ? end - bounds[i] : 0;
            CHECK_OK(ac_reader_range(reader, at_seq(bounds[i]), at_seq(bounds[k]), &range, &err),
                     err);
            CHECK_EQUAL(ac_reader_count(reader, &range, &err), count);
            CHECK_EQUAL(read_range(reader, &range, bounds[i], ROOM, 1 << 20), count);
            CHECK_EQUAL(read_range(reader, &range, bounds[i], 7, 400), count);
        }
    ac_reader_free(reader);
}

TEST(a_batch_goes_on_when_it_was_given_room) {
    write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_columns_t *columns = columns_new(RECORDS, 1 << 20);
    uint64_t pieces = 0;
    columns->payload_bytes_max = 0;
    while (ac_reader_fill(reader, columns, &err) == AC_FILL_BYTES) {
        columns->payload_bytes_max += columns->payload_bytes_wanted;
        pieces++;
    }
    CHECK(pieces > 100);
    CHECK_EQUAL(columns->rows, RECORDS);
    check_rows(columns, 0);
    columns_free(columns);
    ac_reader_free(reader);
}

TEST(trouble_is_told_after_the_rows_before_it) {
    write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_message_t message;
    for (int i = 0; i <= 100; i++)
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    uint64_t offset = (uint64_t)(message.record - reader->base);
    uint8_t wrong = (uint8_t)~message.record[AC_HEADER_SIZE];
    poke(check_path("queue"), "000000000.q", offset + AC_HEADER_SIZE, &wrong, 1);
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    ac_columns_t *columns = columns_new(RECORDS, 1 << 20);
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_TROUBLE);
    CHECK_EQUAL(columns->rows, 100);
    check_rows(columns, 0);
    columns->rows = columns->payload_bytes = columns->messages = 0;
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_E_CORRUPT);
    CHECK_EQUAL(err.offset, offset);
    /* Without the payload column, the payload is not read. */
    uint8_t *payload = columns->payload;
    columns->payload = NULL;
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_END);
    CHECK_EQUAL(columns->rows, RECORDS - 100);
    columns->payload = payload;
    columns_free(columns);
    ac_reader_free(reader);
}

/* Types in turn; a bit is set for those that are wanted. */
static void write_types(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (uint64_t seq = 0; seq < RECORDS; seq++) {
        uint8_t payload[PAYLOAD_MAX];
        size_t length = payload_of(seq, payload);
        uint16_t type_id = seq % 5 == 4 ? AC_TYPE_MAX : (uint16_t)(seq % 5);
        CHECK_EQUAL(ac_writer_append(writer, payload, length, type_id, AC_NOW, &err), seq);
    }
    close_writer(writer);
}

static void want(uint8_t *types, uint16_t type_id) {
    types[type_id / 8] |= (uint8_t)(1u << type_id % 8);
}

/* Returns where the payload of a message is in its file; afterwards the reader is at the first message
 * again. */
static uint64_t payload_at(ac_reader_t *reader, uint64_t seq) {
    ac_message_t message;
    do
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    while (message.seq < seq);
    uint64_t offset = (uint64_t)(message.record - reader->base) + AC_HEADER_SIZE;
    CHECK_OK(ac_reader_seek_first(reader, &err), err);
    return offset;
}

TEST(messages_of_other_types_are_counted_only) {
    static uint8_t types[8192];
    write_types();
    want(types, 2);
    want(types, AC_TYPE_MAX);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t rows = 0, reached = 0;
    int rc;
    do {
        ac_columns_t *columns = columns_new(37, 4000);
        columns->types = types;
        columns->ends_at_gap = 1;
        rc = ac_reader_fill(reader, columns, &err);
        CHECK_OK(rc, err);
        if (columns->messages == 0) {
            columns_free(columns);
            break;
        }
        CHECK_EQUAL(columns->first_seq, reached);
        CHECK_EQUAL(columns->end_seq - columns->first_seq, columns->messages);
        for (uint64_t row = 0; row < columns->rows; row++, rows++) {
            uint64_t seq = rows / 2 * 5 + (rows % 2 ? 4 : 2);
            uint8_t expected[PAYLOAD_MAX];
            size_t length = payload_of(seq, expected);
            CHECK_EQUAL(columns->seq[row], seq);
            CHECK_EQUAL(columns->type_id[row], rows % 2 ? AC_TYPE_MAX : 2);
            CHECK_EQUAL(columns->payload_offsets[row + 1] - columns->payload_offsets[row], length);
            CHECK(memcmp(columns->payload + columns->payload_offsets[row], expected, length) == 0);
        }
        reached = columns->end_seq;
        columns_free(columns);
    } while (rc != AC_FILL_END);
    CHECK_EQUAL(reached, RECORDS);
    CHECK_EQUAL(rows, RECORDS / 5 * 2);
    ac_reader_free(reader);
}

TEST(payloads_of_other_types_are_not_looked_at) {
    static uint8_t types[8192];
    write_types();
    want(types, 2);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    uint64_t of_other = payload_at(reader, 11), wanted = payload_at(reader, 22);
    CHECK_EQUAL(reader->segment, 0);
    poke(check_path("queue"), "000000000.q", of_other, "?", 1);
    poke(check_path("queue"), "000000000.q", wanted, "?", 1);
    ac_columns_t *columns = columns_new(RECORDS, 1 << 20);
    columns->types = types;
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_TROUBLE);
    CHECK_EQUAL(columns->rows, 4);
    CHECK_EQUAL(columns->messages, 22);
    columns->rows = columns->payload_bytes = columns->messages = 0;
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_E_CORRUPT);
    CHECK_EQUAL(err.offset, wanted - AC_HEADER_SIZE);
    columns_free(columns);
    ac_reader_free(reader);
}

TEST(columns_end_at_a_gap_if_asked_to) {
    static uint8_t types[8192];
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    write_types();
    want(types, 2);
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    config.skip_corrupt = 1;
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    uint64_t offset = payload_at(reader, 22);
    poke(check_path("queue"), "000000000.q", offset, "?", 1);
    for (int of_types = 0; of_types < 2; of_types++) {
        ac_columns_t *columns = columns_new(RECORDS, 1 << 20);
        columns->types = of_types ? types : NULL;
        columns->ends_at_gap = 1;
        CHECK_OK(ac_reader_seek_first(reader, &err), err);
        CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_GAP);
        CHECK_EQUAL(columns->end_seq, 22);
        CHECK_EQUAL(columns->rows, of_types ? 4 : 22);
        columns->rows = columns->payload_bytes = columns->messages = 0;
        CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_END);
        CHECK_EQUAL(columns->first_seq, 23);
        CHECK_EQUAL(columns->messages, RECORDS - 23);
        columns_free(columns);
    }
    ac_reader_free(reader);
}

TEST(causes) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    for (uint64_t i = 0; i < 20; i++)
        CHECK_OK(i % 3 ? ac_writer_append(writer, "x", 1, 0, AC_NOW, &err)
                       : ac_writer_append_cause(writer, "x", 1, 0, AC_NOW,
                                                &(ac_cause_t){UINT64_MAX - i, i, 0, 0}, &err),
                 err);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_columns_t *columns = columns_new(20, 100);
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_FILL_ROWS);
    for (uint64_t i = 0; i < 20; i++) {
        int caused = i % 3 == 0;
        CHECK_EQUAL(columns->cause_valid[i / 8] >> i % 8 & 1, caused);
        CHECK_EQUAL((uint64_t)columns->cause_queue_id[i], caused ? UINT64_MAX - i : 0);
        CHECK_EQUAL(columns->cause_seq[i], caused ? i : 0);
    }
    columns_free(columns);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(rows_of_a_file_that_is_cut_meanwhile_count_as_unread) {
    write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_columns_t *columns = columns_new(RECORDS, RECORDS * ROOM);
    ac_message_t message;
    uint64_t segment, offset, seq = 0;
    while (reader->segment < 1) {
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        seq++;
    }
    ac_reader_position(reader, &segment, &offset);
    CHECK_EQUAL(truncate(check_path("queue/000000001.q"), 8192), 0);
    CHECK_FAILS(ac_reader_fill(reader, columns, &err), err, AC_E_GONE);
    CHECK_EQUAL(columns->rows, 0);
    CHECK_EQUAL(reader->segment, segment);
    CHECK_EQUAL(reader->offset, offset);
    int rc; /* those before the cut can still be read one by one */
    for (; (rc = ac_reader_next(reader, &message, &err)) == 1; seq++)
        CHECK_EQUAL(message.seq, seq);
    CHECK_EQUAL(rc, AC_E_GONE);
    CHECK(reader->offset > offset);
    columns_free(columns);
    ac_reader_free(reader);
}

TEST(stretches_need_records_that_are_alike) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_stretch_t stretch;
    ac_range_t range;
    for (uint64_t i = 0; i < RECORDS; i++)
        CHECK_EQUAL(ac_writer_append(writer, &i, sizeof i, 3, AC_NOW, &err), i);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_OK(ac_reader_range(reader, at_seq(5), none, &range, &err), err);
    uint64_t expected = 5;
    while (ac_reader_stretch(reader, &range, &stretch, &err) == 1) {
        CHECK_EQUAL(stretch.length, sizeof expected);
        CHECK_EQUAL(stretch.type_id, 3);
        for (uint64_t i = 0; i < stretch.count; i++, expected++)
            CHECK(memcmp(stretch.payload + i * stretch.stride, &expected, sizeof expected) == 0);
        ac_stretch_release(&stretch);
    }
    CHECK_EQUAL(expected, RECORDS);
    CHECK_OK(ac_writer_append(writer, &expected, 7, 3, AC_NOW, &err), err);
    CHECK_OK(ac_reader_range(reader, at_seq(RECORDS - 1), none, &range, &err), err);
    CHECK_EQUAL(ac_reader_stretch(reader, &range, &stretch, &err), AC_E_ARGUMENT);
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_stretch_does_not_go_beyond_a_file_that_was_cut_since_it_was_indexed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_stretch_t stretch;
    ac_range_t whole, range;
    for (uint64_t i = 0; i < RECORDS; i++)
        CHECK_EQUAL(ac_writer_append(writer, &i, sizeof i, 3, AC_NOW, &err), i);
    close_writer(writer);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_OK(ac_reader_range(reader, none, none, &whole, &err), err);
    range = whole;
    while (ac_reader_stretch(reader, &range, &stretch, &err) == 1)
        ac_stretch_release(&stretch);
    CHECK_EQUAL(truncate(check_path("queue/000000000.q"), 8192), 0);
    CHECK_FAILS(ac_reader_stretch(reader, &whole, &stretch, &err), err, AC_E_CORRUPT);
    CHECK_EQUAL(err.offset, 8192);
    ac_reader_free(reader);
}

TEST(closed_readers_fill_nothing) {
    write_queue();
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_columns_t *columns = columns_new(10, 1000);
    ac_range_t range = {0};
    ac_stretch_t stretch;
    ac_reader_close(reader);
    CHECK_EQUAL(ac_reader_fill(reader, columns, &err), AC_E_CLOSED);
    CHECK_EQUAL(ac_reader_range(reader, none, none, &range, &err), AC_E_CLOSED);
    CHECK_EQUAL(ac_reader_count(reader, &range, &err), AC_E_CLOSED);
    CHECK_EQUAL(ac_reader_stretch(reader, &range, &stretch, &err), AC_E_CLOSED);
    CHECK_EQUAL(columns->rows, 0);
    columns_free(columns);
    ac_reader_free(reader);
}
