/* A control block of any content, opened by readers, by queries and by a writer. */
#include "fuzz.h"

#include <stddef.h>

enum { RECORDS = 3 };

/* A valid segment beside it. */
static void put_records(uint32_t id) {
    uint8_t bytes[AC_SEGMENT_DATA + RECORDS * 128] = {0};
    ac_segment_header_t header = {
        .magic = AC_SEGMENT_MAGIC, .version = AC_SEGMENT_VERSION, .segment_id = id};
    memcpy(bytes, &header, sizeof header);
    for (uint64_t i = 0; i < RECORDS; i++) {
        uint8_t *at = bytes + AC_SEGMENT_DATA + i * 128;
        ac_record_t record = {
            .commit_len = 65, .seq = i, .timestamp_ns = 1000 + i, .flags = 1, .epoch = 1};
        memcpy(at, &record, sizeof record);
    }
    fuzz_mend_segment(bytes, sizeof bytes, 0);
    fuzz_put_segment(id, bytes, sizeof bytes, FUZZ_SEGMENT);
}

static void read_all(int skip) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t err;
    ac_lag_t lag;
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    config.skip_corrupt = skip;
    if (ac_reader_open(fuzz_queue, &config, &reader, &err) != AC_OK) return;
    ac_reader_lag(reader, &lag, &err);
    uint64_t count = 0;
    while (ac_reader_next(reader, &message, &err) == 1) {
        fuzz_look_at(&message, 1);
        FUZZ_CHECK(message.seq == count++);
    }
    /* The records decide, whatever the control block contains. */
    FUZZ_CHECK(count == RECORDS);
    ac_reader_seek_seq(reader, 1, &err);
    ac_reader_lag(reader, &lag, &err);
    if (ac_reader_seek_last(reader, &err) == AC_OK)
        FUZZ_CHECK(ac_reader_next(reader, &message, &err) != 1);
    ac_reader_free(reader);
}

static void write_one(void) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    uint64_t lag, readers;
    ac_writer_defaults(&config);
    config.inline_housekeeping = 1;
    if (ac_writer_open(fuzz_queue, &config, &writer, &err) != AC_OK) return;
    ac_writer_append(writer, "hello", 5, 1, AC_NOW, &err);
    ac_writer_heartbeat(writer, AC_NOW, &err);
    ac_writer_reader_lag(writer, &lag, &readers, &err);
    ac_writer_retain(writer, &err);
    ac_writer_close(writer, &err);
    ac_writer_free(writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_queue_info_t info;
    ac_error_t err;
    ac_control_t control;
    if (size < 1 || size > sizeof control + 1) return 0;
    control = fuzz_control(0);
    memcpy(&control, data + 1, size - 1);
    /* Opening waits a second for an unfinished one; larger segments only cost memory. */
    control.init_state = AC_CONTROL_READY;
    if (ac_segment_size_valid(control.segment_size)) control.segment_size = FUZZ_SEGMENT;
    fuzz_clear();
    fuzz_put_control(&control);
    if (data[0] & 2) put_records(0);
    ac_queue_info(fuzz_queue, &info, &err);
    if (data[0] & 2) read_all(data[0] & 1);
    write_one();
    return 0;
}

/* Makes the checksums of the notes `clean` and `removed` valid, without which they are ignored. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    ac_control_t control;
    size = LLVMFuzzerMutate(data, size, room);
    if (size != 1 + sizeof control || seed % 4 == 0) return size;
    memcpy(&control, data + 1, sizeof control);
    if (seed % 4 > 1) {
        control.magic = AC_CONTROL_MAGIC;
        control.version = AC_CONTROL_VERSION;
        control.segment_size = FUZZ_SEGMENT;
        control.clean.epoch = control.writer_epoch;
    }
    control.clean.checksum = 0;
    control.clean.checksum = ac_crc32(&control.clean, sizeof control.clean);
    uint64_t removed[2] = {control.removed_seq, control.removed_ns};
    control.removed_check = ac_crc32(removed, sizeof removed);
    memcpy(data + 1, &control, sizeof control);
    return size;
}
