/* A reader, and everything else that walks records or gives them as columns, over two segments and an index.meta of any content. */
#include "fuzz.h"

enum { VERIFY = 1, SKIP = 2, SECOND = 4, NAMELESS = 8, CUT = 16 };
enum { PREFIX = 24, MESSAGES_MAX = 2 * FUZZ_SEGMENT / AC_ALIGNMENT };

typedef struct input {
    uint8_t options, cut_blocks;
    uint16_t seek;
    uint32_t write_offset;
    uint64_t durable[2];
    const uint8_t *segments[2];
    size_t lengths[2];
} input_t;

_Static_assert(PREFIX == 1 + 1 + 2 + 4 + 16, "what comes before the segments");

static int parse(input_t *input, const uint8_t *data, size_t size) {
    fuzz_bytes_t bytes = {data, size};
    if (size < PREFIX || size > PREFIX + 2 * FUZZ_SEGMENT) return 0;
    input->options = (uint8_t)fuzz_take(&bytes, 1);
    input->cut_blocks = (uint8_t)fuzz_take(&bytes, 1);
    input->seek = (uint16_t)fuzz_take(&bytes, 2);
    input->write_offset = (uint32_t)fuzz_take(&bytes, 4);
    input->durable[0] = fuzz_take(&bytes, 8);
    input->durable[1] = fuzz_take(&bytes, 8);
    for (int i = 0; i < 2; i++) {
        input->segments[i] = bytes.at;
        input->lengths[i] = bytes.left < FUZZ_SEGMENT ? bytes.left : FUZZ_SEGMENT;
        bytes.at += input->lengths[i];
        bytes.left -= input->lengths[i];
    }
    return 1;
}

static void lay_out(const input_t *input) {
    ac_control_t control = fuzz_control(input->options & SECOND ? 1 : 0);
    control.write_offset = input->write_offset;
    fuzz_clear();
    fuzz_put_control(&control);
    fuzz_put("index.meta", input->durable, sizeof input->durable, 0);
    size_t cut = (size_t)input->cut_blocks * AC_ALIGNMENT + input->seek % AC_ALIGNMENT;
    int is_cut = (input->options & CUT) && cut < FUZZ_SEGMENT;
    size_t length = is_cut && cut < input->lengths[0] ? cut : input->lengths[0];
    fuzz_put_segment(0, input->segments[0], length, is_cut ? cut : FUZZ_SEGMENT);
    if (input->options & SECOND)
        fuzz_put_segment(1, input->segments[1], input->lengths[1], FUZZ_SEGMENT);
}

/* The number of messages read, and the seq of the first one. */
typedef struct seen {
    uint64_t count, first_seq;
} seen_t;

/* To the end, or to the first error. */
static seen_t read_all(ac_reader_t *reader, int verify) {
    ac_message_t message;
    ac_error_t err;
    seen_t seen = {0, 0};
    for (;;) {
        int ready = ac_reader_ready(reader, &err);
        int rc = ac_reader_next(reader, &message, &err);
        FUZZ_CHECK(ready == (rc != 0));
        if (rc != 1) return seen;
        fuzz_look_at(&message, verify);
        if (seen.count++ == 0) seen.first_seq = message.seq;
        FUZZ_CHECK(seen.count <= MESSAGES_MAX);
    }
}

static void seek_around(ac_reader_t *reader, const input_t *input, uint64_t seq) {
    ac_message_t message;
    ac_error_t err;
    ac_lag_t lag;
    int verify = input->options & VERIFY;
    if (ac_reader_seek_seq(reader, seq + input->seek % 8, &err) == AC_OK) read_all(reader, verify);
    if (ac_reader_seek_time(reader, 1000 + input->seek, &err) == AC_OK) read_all(reader, verify);
    if (ac_reader_seek_position(reader, input->seek & 1, input->seek & ~63u, &err) == AC_OK)
        read_all(reader, verify);
    if (ac_reader_seek_first(reader, &err) == AC_OK) ac_reader_lag(reader, &lag, &err);
    if (ac_reader_seek_last(reader, &err) == AC_OK && ac_reader_next(reader, &message, &err) == 1)
        fuzz_look_at(&message, verify);
}

/* Reads the same as columns, a few rows at a time; their buffers have the exact size, so that ASan detects
 * an overrun. */
static void read_columns(ac_reader_t *reader, seen_t seen) {
    enum { ROWS = 5 };
    ac_error_t err;
    uint64_t count = 0;
    int outcome;
    if (ac_reader_seek_first(reader, &err) != AC_OK) return;
    int64_t *seqs = malloc(ROWS * sizeof *seqs);
    int32_t *offsets = malloc((ROWS + 1) * sizeof *offsets);
    uint8_t *payload = malloc(FUZZ_SEGMENT + AC_COLUMNS_SLACK);
    int32_t *trailer_offsets = malloc((ROWS + 1) * sizeof *trailer_offsets);
    uint8_t *trailers = malloc(FUZZ_SEGMENT);
    FUZZ_CHECK(seqs && offsets && payload && trailer_offsets && trailers);
    do {
        ac_columns_t columns = {.seq = seqs,
                                .payload_offsets = offsets,
                                .payload = payload,
                                .trailer_offsets = trailer_offsets,
                                .trailers = trailers,
                                .rows_max = ROWS,
                                .payload_bytes_max = FUZZ_SEGMENT,
                                .trailer_bytes_max = FUZZ_SEGMENT};
        outcome = ac_reader_fill(reader, &columns, &err);
        FUZZ_CHECK(columns.rows <= ROWS && offsets[columns.rows] >= 0);
        FUZZ_CHECK((uint64_t)offsets[columns.rows] == columns.payload_bytes);
        FUZZ_CHECK((uint64_t)trailer_offsets[columns.rows] == columns.trailer_bytes);
        FUZZ_CHECK(columns.rows > 0 || outcome == AC_FILL_END || outcome < 0);
        if (count == 0 && columns.rows > 0) FUZZ_CHECK((uint64_t)seqs[0] == seen.first_seq);
        count += columns.rows;
        FUZZ_CHECK(count <= MESSAGES_MAX);
    } while (outcome > AC_FILL_END);
    FUZZ_CHECK(count == seen.count);
    free(trailers);
    free(trailer_offsets);
    free(payload);
    free(offsets);
    free(seqs);
}

/* Reads a range of it: found, counted, as arrays in the map, and as messages. Ends reading there. */
static void read_task(ac_reader_t *reader, const input_t *input, uint64_t seq) {
    ac_range_t range, rest;
    ac_stretch_t stretch;
    ac_error_t err;
    ac_bound_t start = {input->seek & 1 ? AC_BOUND_SEQ : AC_BOUND_NONE, seq + input->seek % 8};
    ac_bound_t end = {input->seek & 2 ? AC_BOUND_TIME : AC_BOUND_NONE, 1000 + input->seek};
    if (ac_reader_range(reader, start, end, &range, &err) != AC_OK) return;
    FUZZ_CHECK(ac_reader_count(reader, &range, &err) <= MESSAGES_MAX);
    rest = range;
    while (ac_reader_stretch(reader, &rest, &stretch, &err) == 1) {
        FUZZ_CHECK(stretch.count > 0 && stretch.count <= MESSAGES_MAX);
        for (uint64_t i = 0; i < stretch.count; i++)
            ac_crc32(stretch.payload + i * stretch.stride, stretch.length);
        ac_stretch_release(&stretch);
    }
    if (ac_reader_read_range(reader, &range, &err) == AC_OK)
        read_all(reader, input->options & VERIFY);
}

static void ask_about_queue(void) {
    ac_error_t err;
    ac_queue_info_t info;
    ac_cause_t cause, causes[4];
    uint64_t records;
    FUZZ_CHECK(ac_queue_info(fuzz_queue, &info, &err) == AC_OK);
    int64_t corrupt = ac_queue_verify(fuzz_queue, &records, &err);
    FUZZ_CHECK(corrupt < 0 || records <= MESSAGES_MAX);
    ac_queue_last_cause(fuzz_queue, 5, &cause, &err);
    ac_queue_last_causes(fuzz_queue, 0, causes, 4, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input_t input;
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_error_t err;
    if (!parse(&input, data, size)) return 0;
    lay_out(&input);
    ac_reader_defaults(&config);
    config.verify = input.options & VERIFY;
    config.skip_corrupt = input.options & SKIP;
    config.name = input.options & NAMELESS ? NULL : "reader";
    config.start = AC_START_FIRST;
    if (ac_reader_open(fuzz_queue, &config, &reader, &err) == AC_OK) {
        seen_t seen = read_all(reader, config.verify);
        seek_around(reader, &input, seen.first_seq);
        read_columns(reader, seen);
        read_task(reader, &input, seen.first_seq);
        ac_reader_free(reader);
    }
    ask_about_queue();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, room);
    if (size <= PREFIX || seed % 8 == 0) return size;
    size_t first = size - PREFIX < FUZZ_SEGMENT ? size - PREFIX : FUZZ_SEGMENT;
    uint32_t spare = seed % 8 < 4 ? 0 : seed >> 3;
    fuzz_mend_segment(data + PREFIX, first, spare);
    fuzz_mend_segment(data + PREFIX + first, size - PREFIX - first, spare);
    return size;
}
