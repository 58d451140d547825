/* A seek index of any content beside a valid segment: a wrong index may cost time, but never causes a wrong
 * answer. */
#include "fuzz.h"
#include "segment_seekindex.h"

enum { PREFIX = 1, RECORDS = 40 };

static void write_queue(void) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    ac_writer_defaults(&config);
    config.segment_size = FUZZ_SEGMENT;
    config.inline_housekeeping = 1;
    FUZZ_CHECK(ac_writer_open(fuzz_queue, &config, &writer, &err) == AC_OK);
    for (uint64_t i = 0; i < RECORDS; i++)
        FUZZ_CHECK(ac_writer_append(writer, &i, sizeof i, 1, 1000 + i, &err) == (int64_t)i);
    FUZZ_CHECK(ac_writer_close(writer, &err) == AC_OK);
    ac_writer_free(writer);
}

static void expect(ac_reader_t *reader, uint64_t seq) {
    ac_message_t message;
    ac_error_t err;
    FUZZ_CHECK(ac_reader_next(reader, &message, &err) == 1);
    FUZZ_CHECK(message.seq == seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_error_t err;
    ac_lag_t lag;
    if (size < PREFIX || size > 4096) return 0;
    fuzz_clear();
    write_queue();
    fuzz_put("000000000.idx", data + PREFIX, size - PREFIX, 0);
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    FUZZ_CHECK(ac_reader_open(fuzz_queue, &config, &reader, &err) == AC_OK);
    uint64_t seq = data[0] % RECORDS;
    FUZZ_CHECK(ac_reader_seek_seq(reader, seq, &err) == AC_OK);
    expect(reader, seq);
    FUZZ_CHECK(ac_reader_seek_time(reader, 1000 + seq, &err) == AC_OK);
    expect(reader, seq);
    FUZZ_CHECK(ac_reader_lag(reader, &lag, &err) == AC_OK);
    FUZZ_CHECK(lag.messages == RECORDS - 1 - seq);
    ac_reader_free(reader);
    return 0;
}

/* Makes the header match the segment, so that the entries are used; the bounds stay unchanged. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    ac_index_header_t header;
    size = LLVMFuzzerMutate(data, size, room);
    if (size < PREFIX + sizeof header || seed % 4 == 0) return size;
    memcpy(&header, data + PREFIX, sizeof header);
    memcpy(header.magic, "CHRIDX1", 8);
    header.version = 1;
    header.header_len = sizeof header;
    header.segment_id = 0;
    header.segment_size = FUZZ_SEGMENT;
    if (seed % 4 > 1)
        header.entry_count = (size - PREFIX - sizeof header) / sizeof(ac_index_entry_t);
    memcpy(data + PREFIX, &header, sizeof header);
    return size;
}
