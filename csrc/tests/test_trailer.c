#include "trailer.h"

#include "queue.h"
#include "reader.h"
#include "writer.h"

static ac_error_t err;
static const char *why;

static ac_slice_t text(const char *string) {
    return (ac_slice_t){string, strlen(string)};
}

/* On the heap with its exact size, so that the sanitizer detects an overrun. */
static uint8_t *make(const char *key, const ac_header_t *headers, size_t count, uint32_t *size) {
    ac_slice_t bytes = text(key ? key : "");
    const ac_slice_t *given = key ? &bytes : NULL;
    int64_t measured = ac_trailer_measure(given, headers, count, &why);
    CHECK(measured > 0);
    uint8_t *trailer = malloc((size_t)measured);
    ac_trailer_write(trailer, given, headers, count);
    *size = (uint32_t)measured;
    return trailer;
}

static void check_slice(ac_slice_t found, const char *expected) {
    CHECK_EQUAL(found.length, strlen(expected));
    CHECK(memcmp(found.data, expected, found.length) == 0);
}

TEST(a_trailer_comes_back_as_it_was_written) {
    const ac_header_t headers[] = {{text("a"), text("")}, {text("name"), text("value")}};
    ac_trailer_t trailer;
    ac_header_t header;
    uint32_t size;
    uint8_t *bytes = make("key", headers, 2, &size);
    CHECK_EQUAL(size, 2 + 3 + 3 + 1 + 3 + 4 + 5 + 4);
    CHECK_EQUAL(ac_trailer_find(bytes, size), size);
    CHECK_EQUAL(ac_trailer_open(&trailer, bytes, size), 1);
    check_slice(trailer.key, "key");
    CHECK_EQUAL(trailer.count, 2);
    CHECK_EQUAL(ac_trailer_next(&trailer, &header), 1);
    check_slice(header.name, "a");
    check_slice(header.value, "");
    CHECK_EQUAL(ac_trailer_next(&trailer, &header), 1);
    check_slice(header.name, "name");
    check_slice(header.value, "value");
    CHECK_EQUAL(ac_trailer_next(&trailer, &header), 0);
    free(bytes);
}

TEST(the_bytes_are_those_of_the_documentation) {
    static const uint8_t expected[] = {2, 0, 'i', 'd', 1, 3, 0, 'n', 'x', 'y', 'z', 15, 0, 1, 1};
    const ac_header_t header = {text("n"), text("xyz")};
    uint32_t size;
    uint8_t *bytes = make("id", &header, 1, &size);
    CHECK_EQUAL(size, sizeof expected);
    CHECK(memcmp(bytes, expected, size) == 0);
    free(bytes);
}

TEST(an_empty_key_is_a_key) {
    ac_trailer_t trailer;
    const ac_header_t header = {text("n"), text("")};
    uint32_t size;
    uint8_t *bytes = make("", NULL, 0, &size);
    CHECK_EQUAL(ac_trailer_find(bytes, size), 6);
    CHECK_EQUAL(ac_trailer_open(&trailer, bytes, size), 1);
    CHECK(trailer.key.data != NULL && trailer.key.length == 0);
    free(bytes);
    bytes = make(NULL, &header, 1, &size);
    CHECK_EQUAL(ac_trailer_find(bytes, size), size);
    CHECK_EQUAL(ac_trailer_open(&trailer, bytes, size), 1);
    CHECK(trailer.key.data == NULL);
    free(bytes);
}

TEST(nothing_to_say_takes_no_bytes) {
    CHECK_EQUAL(ac_trailer_measure(NULL, NULL, 0, &why), 0);
}

TEST(limits) {
    static char large[AC_TRAILER_MAX + 1];
    ac_header_t headers[AC_HEADERS_MAX + 1];
    char names[AC_HEADERS_MAX + 1][12];
    memset(large, 'x', sizeof large);
    for (int i = 0; i <= AC_HEADERS_MAX; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        headers[i] = (ac_header_t){text(names[i]), text("")};
    }
    CHECK(ac_trailer_measure(NULL, headers, AC_HEADERS_MAX, &why) > 0);
    CHECK_EQUAL(ac_trailer_measure(NULL, headers, AC_HEADERS_MAX + 1, &why), AC_E_TOO_LARGE);
    ac_slice_t key = {large, AC_TRAILER_MAX - 6};
    CHECK_EQUAL(ac_trailer_measure(&key, NULL, 0, &why), AC_TRAILER_MAX);
    key.length++;
    CHECK_EQUAL(ac_trailer_measure(&key, NULL, 0, &why), AC_E_TOO_LARGE);
    key.length = SIZE_MAX;
    CHECK_EQUAL(ac_trailer_measure(&key, NULL, 0, &why), AC_E_TOO_LARGE);
    ac_header_t header = {{large, AC_HEADER_NAME_MAX}, {large, SIZE_MAX}};
    CHECK_EQUAL(ac_trailer_measure(NULL, &header, 1, &why), AC_E_TOO_LARGE);
    header.value.length = 0;
    CHECK(ac_trailer_measure(NULL, &header, 1, &why) > 0);
    header.name.length++;
    CHECK_EQUAL(ac_trailer_measure(NULL, &header, 1, &why), AC_E_ARGUMENT);
    header.name.length = 0;
    CHECK_EQUAL(ac_trailer_measure(NULL, &header, 1, &why), AC_E_ARGUMENT);
    const ac_header_t twice[] = {{text("n"), text("1")}, {text("n"), text("2")}};
    CHECK_EQUAL(ac_trailer_measure(NULL, twice, 2, &why), AC_E_ARGUMENT);
}

TEST(names_are_utf8) {
    static const char *const good[] = {"\x7f",         "\xc2\x80",         "\xdf\xbf",
                                       "\xe0\xa0\x80", "\xed\x9f\xbf",     "\xee\x80\x80",
                                       "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xc2",
        "\xc2\x41",     "\xe0\x9f\xbf", "\xe1\x80",         "\xe1\x80\x41",     "\xed\xa0\x80",
        "\xf0\x90\x80", "\xf5\x80",     "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xff"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const ac_header_t header = {text(good[i]), text("")};
        CHECK(ac_trailer_measure(NULL, &header, 1, &why) > 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const ac_header_t header = {text(bad[i]), text("")};
        uint32_t size = (uint32_t)(3 + strlen(bad[i]) + 4);
        uint8_t *bytes = malloc(size);
        CHECK_EQUAL(ac_trailer_measure(NULL, &header, 1, &why), AC_E_ARGUMENT);
        ac_trailer_write(bytes, NULL, &header, 1);
        CHECK_EQUAL(ac_trailer_find(bytes, size), 0);
        free(bytes);
    }
}

/* Each has one error. */
TEST(malformed_trailers_are_refused) {
    static const struct {
        uint8_t bytes[16];
        uint32_t size;
    } cases[] = {
        {{0}, 0},
        {{4, 0, 0}, 3},
        {{4, 0, 0, 0}, 4},                              /* says nothing */
        {{0, 0, 7, 0, 0, 1}, 6},                        /* larger than the area */
        {{0, 0, 3, 0, 0, 1}, 6},                        /* smaller than its end */
        {{0, 0, 0, 0, 0, 1}, 6},                        /* no size */
        {{5, 0, 'k', 7, 0, 0, 1}, 7},                   /* the key reaches into the end */
        {{0, 0, 'k', 7, 0, 0, 1}, 7},                   /* a byte is left over */
        {{0, 0, 6, 0, 0, 3}, 6},                        /* a bit that is not known */
        {{0, 4, 0, 0, 1}, 5},                           /* no room for a key's length */
        {{0, 0, 0, 7, 0, 1, 0}, 7},                     /* a header without a name */
        {{1, 0, 0, 7, 0, 1, 0}, 7},                     /* its name reaches into the end */
        {{1, 1, 0, 'n', 8, 0, 1, 0}, 8},                /* its value does */
        {{1, 0, 0, 'n', 8, 0, 2, 0}, 8},                /* a second header is missing */
        {{1, 0, 0, 'n', 1, 0, 0, 'n', 12, 0, 2, 0}, 12} /* a name twice */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *bytes = malloc(cases[i].size + 1);
        memcpy(bytes + 1, cases[i].bytes, cases[i].size);
        CHECK_EQUAL(ac_trailer_find(bytes + 1, cases[i].size), 0);
        free(bytes);
    }
    uint8_t many[AC_TRAILER_END_SIZE + 4 * (AC_HEADERS_MAX + 1)];
    for (int i = 0; i <= AC_HEADERS_MAX; i++)
        memcpy(many + 4 * i, (uint8_t[]){1, 0, 0, (uint8_t)(i + 1)}, 4);
    memcpy(many + sizeof many - 4,
           (uint8_t[]){sizeof many & 0xFF, sizeof many >> 8, AC_HEADERS_MAX + 1, 0}, 4);
    CHECK_EQUAL(ac_trailer_find(many, sizeof many), 0);
}

/* ---- in a queue ---- */

enum { SEGMENT = 16 << 10 };

static ac_slice_t trailer_with(const char *key, uint8_t *room) {
    uint32_t size;
    uint8_t *made = make(key, NULL, 0, &size);
    memcpy(room, made, size);
    free(made);
    return (ac_slice_t){room, size};
}

/* Payload "xx…", as long as its seq, with a trailer unless that is a multiple of three. */
static void check_message(const ac_message_t *message) {
    uint32_t trailer = message->seq % 3 ? message->trailer : 0;
    ac_trailer_t parts;
    CHECK_EQUAL((message->flags & AC_FLAG_TRAILER) != 0, message->seq % 3 != 0);
    CHECK_EQUAL(message->length - trailer, message->seq);
    if (!trailer) return;
    CHECK_EQUAL(ac_trailer_open(&parts, message->record + 64 + message->seq, trailer), 1);
    check_slice(parts.key, "id");
}

static uint64_t append_each_way(ac_writer_t *writer, uint64_t count) {
    uint8_t payload[256], room[16];
    ac_slice_t trailer = trailer_with("id", room), none = {0};
    uint64_t seq = 0;
    memset(payload, 'x', sizeof payload);
    while (seq < count) {
        void *place;
        CHECK_EQUAL(ac_writer_append_trailer(writer, payload, seq, seq % 3 ? &trailer : NULL, 1,
                                             AC_NOW, NULL, &err),
                    seq);
        seq++;
        ac_slice_t items[3], trailers[3];
        for (uint64_t i = 0; i < 3; i++) {
            items[i] = (ac_slice_t){payload, seq + i};
            trailers[i] = (seq + i) % 3 ? trailer : none;
        }
        CHECK_EQUAL(ac_writer_append_many_trailers(writer, items, trailers, 3, 1, NULL, NULL, &err),
                    seq);
        seq += 3;
        size_t more = seq % 3 ? trailer.length : 0;
        CHECK_OK(ac_writer_reserve(writer, seq + more, &place, &err), err);
        memset(place, 'x', seq);
        CHECK_EQUAL(ac_writer_commit_trailer(writer, more ? &trailer : NULL, 1, AC_NOW, NULL, &err),
                    seq);
        seq++;
    }
    return seq;
}

TEST(each_way_of_appending_takes_a_trailer) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t count = append_each_way(writer, 200), seq = 0;
    ac_message_t message;
    for (int verify = 0; verify < 2; verify++) {
        ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        reader->check = verify ? AC_CHECK_PAYLOAD : AC_CHECK_HEADER;
        for (seq = 0; ac_reader_next(reader, &message, &err) == 1; seq++) {
            CHECK_EQUAL(message.seq, seq);
            check_message(&message);
        }
        CHECK_EQUAL(seq, count);
        ac_reader_free(reader);
    }
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &seq, &err), 0);
    CHECK_EQUAL(seq, count);
    close_writer(writer);
}

TEST(a_killed_writers_trailers_are_recovered) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t count = append_each_way(writer, 100);
    copy_queue(check_path("queue"), check_path("killed"));
    close_writer(writer);
    config.verify = 1;
    writer = open_writer(check_path("killed"), &config);
    CHECK_EQUAL(writer->seq, count);
    CHECK_EQUAL(writer->recovery.corrupt_records, 0);
    close_writer(writer);
}

TEST(a_trailer_larger_than_the_reservation_is_refused) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint8_t room[16];
    ac_slice_t trailer = trailer_with("id", room);
    void *place;
    CHECK_OK(ac_writer_reserve(writer, trailer.length - 1, &place, &err), err);
    CHECK_FAILS(ac_writer_commit_trailer(writer, &trailer, 0, AC_NOW, NULL, &err), err,
                AC_E_ARGUMENT);
    CHECK_EQUAL(ac_writer_append(writer, "x", 1, 0, AC_NOW, &err), 0);
    close_writer(writer);
}

/* The checksums match, so it was written like that: damage for readers, but recovery does not cut it
 * off. */
TEST(a_malformed_trailer_is_a_corrupt_record) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_slice_t broken = {"\x09\x00\x00\x01", 4};
    ac_message_t message;
    uint64_t records;
    CHECK_EQUAL(ac_writer_append(writer, "a", 1, 0, AC_NOW, &err), 0);
    CHECK_EQUAL(ac_writer_append_trailer(writer, "b", 1, &broken, 0, AC_NOW, NULL, &err), 1);
    CHECK_EQUAL(ac_writer_append(writer, "c", 1, 0, AC_NOW, &err), 2);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    for (int again = 0; again < 2; again++) /* the position stays */
        CHECK_FAILS(ac_reader_next(reader, &message, &err), err, AC_E_CORRUPT);
    CHECK(strstr(err.detail, "key and headers"));
    CHECK_OK(ac_reader_step_over(reader, &err), err);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    CHECK_EQUAL(message.seq, 2);
    ac_reader_free(reader);
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 1);
    copy_queue(check_path("queue"), check_path("killed"));
    close_writer(writer);
    writer = open_writer(check_path("killed"), &config);
    CHECK_EQUAL(writer->seq, 3);
    close_writer(writer);
}

TEST(stretches_refuse_trailers) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint8_t room[16];
    ac_slice_t trailer = trailer_with("id", room);
    ac_range_t range;
    ac_stretch_t stretch;
    for (int i = 0; i < 10; i++) /* records as long as each other */
        CHECK_OK(i == 5 ? ac_writer_append_trailer(writer, "", 0, &trailer, 0, AC_NOW, NULL, &err)
                        : ac_writer_append(writer, "12345678", trailer.length, 0, AC_NOW, &err),
                 err);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    ac_bound_t none = {AC_BOUND_NONE, 0};
    CHECK_OK(ac_reader_range(reader, none, none, &range, &err), err);
    CHECK_FAILS(ac_reader_stretch(reader, &range, &stretch, &err), err, AC_E_ARGUMENT);
    ac_reader_free(reader);
    close_writer(writer);
}

/* ---- as columns ---- */

static void check_columns(const ac_columns_t *columns, uint64_t seq) {
    uint64_t rows = columns->rows, bytes = columns->trailer_bytes;
    ac_trailer_columns_t parts = {.key_valid = calloc(1, rows / 8 + 1),
                                  .key_offsets = malloc((rows + 1) * 4),
                                  .keys = malloc(bytes),
                                  .header_offsets = malloc((rows + 1) * 4),
                                  .name_offsets = malloc((bytes / 4 + 1) * 4),
                                  .names = malloc(bytes),
                                  .value_offsets = malloc((bytes / 4 + 1) * 4),
                                  .values = malloc(bytes)};
    CHECK_EQUAL(ac_trailer_columns(columns->trailers, columns->trailer_offsets, rows, &parts), 0);
    for (uint64_t row = 0; row < rows; row++, seq++) {
        int has = seq % 3 != 0;
        CHECK_EQUAL(columns->payload_offsets[row + 1] - columns->payload_offsets[row], seq);
        CHECK_EQUAL(parts.key_valid[row / 8] >> row % 8 & 1, has);
        CHECK_EQUAL(parts.key_offsets[row + 1] - parts.key_offsets[row], has ? 2 : 0);
        CHECK_EQUAL(parts.header_offsets[row + 1], 0);
        if (has) CHECK(memcmp(parts.keys + parts.key_offsets[row], "id", 2) == 0);
    }
    free(parts.key_valid);
    free(parts.key_offsets);
    free(parts.keys);
    free(parts.header_offsets);
    free(parts.name_offsets);
    free(parts.names);
    free(parts.value_offsets);
    free(parts.values);
}

static uint64_t read_columns(ac_reader_t *reader, uint64_t rows, uint64_t payload_max,
                             uint64_t trailer_max) {
    uint64_t total = 0;
    int outcome;
    do {
        ac_columns_t columns = {.payload_offsets = malloc((rows + 1) * 4),
                                .payload = malloc(payload_max + AC_COLUMNS_SLACK),
                                .trailer_offsets = malloc((rows + 1) * 4),
                                .trailers = malloc(trailer_max),
                                .rows_max = rows,
                                .payload_bytes_max = payload_max,
                                .trailer_bytes_max = trailer_max};
        outcome = ac_reader_fill(reader, &columns, &err);
        CHECK_OK(outcome, err);
        CHECK_EQUAL(columns.trailer_offsets[columns.rows], columns.trailer_bytes);
        if (outcome == AC_FILL_BYTES)
            CHECK((columns.payload_bytes_wanted > 0) != (columns.trailer_bytes_wanted > 0));
        check_columns(&columns, total);
        total += columns.rows;
        free(columns.payload_offsets);
        free(columns.payload);
        free(columns.trailer_offsets);
        free(columns.trailers);
    } while (outcome != AC_FILL_END);
    return total;
}

TEST(trailers_as_columns) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    uint64_t count = append_each_way(writer, 200);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    static const uint64_t room[][3] = {
        {1000, 1 << 20, 1 << 20}, {7, 1 << 20, 1 << 20}, {1000, 256, 1 << 20}, {1000, 1 << 20, 8}};
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
        CHECK_OK(ac_reader_seek_first(reader, &err), err);
        CHECK_EQUAL(read_columns(reader, room[i][0], room[i][1], room[i][2]), count);
    }
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(columns_without_payloads_do_not_look_at_trailers) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_slice_t broken = {"\x09\x00\x00\x01", 4};
    int64_t seqs[4];
    ac_columns_t columns = {.seq = seqs, .rows_max = 4};
    CHECK_EQUAL(ac_writer_append_trailer(writer, "b", 1, &broken, 0, AC_NOW, NULL, &err), 0);
    CHECK_EQUAL(ac_writer_append(writer, "c", 1, 0, AC_NOW, &err), 1);
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(ac_reader_fill(reader, &columns, &err), AC_FILL_END);
    CHECK_EQUAL(columns.rows, 2);
    ac_reader_free(reader);
    close_writer(writer);
}
