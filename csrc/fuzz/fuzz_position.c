/* A reader's position file of any content, read by its reader and by the writer's survey. */
#include "fuzz.h"
#include "position.h"

static const uint64_t LENGTHS[] = {3000, 3000, 700, 10};

static void write_queue(void) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    uint8_t payload[3000] = {0};
    ac_writer_defaults(&config);
    config.segment_size = FUZZ_SEGMENT;
    config.inline_housekeeping = 1;
    FUZZ_CHECK(ac_writer_open(fuzz_queue, &config, &writer, &err) == AC_OK);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
        FUZZ_CHECK(ac_writer_append(writer, payload, LENGTHS[i], 1, AC_NOW, &err) >= 0);
    FUZZ_CHECK(ac_writer_close(writer, &err) == AC_OK);
    ac_writer_free(writer);
}

static void read_from_it(int skip) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t err;
    uint64_t segment, offset, count = 0;
    ac_lag_t lag;
    ac_reader_defaults(&config);
    config.name = "reader";
    config.skip_corrupt = skip;
    if (ac_reader_open(fuzz_queue, &config, &reader, &err) != AC_OK) return;
    FUZZ_CHECK(ac_reader_committed(reader, &segment, &offset, &err) == AC_OK);
    ac_reader_lag(reader, &lag, &err);
    while (ac_reader_next(reader, &message, &err) == 1) {
        fuzz_look_at(&message, 1);
        FUZZ_CHECK(++count <= 1 + sizeof LENGTHS / sizeof *LENGTHS); /* the survey appends one */
    }
    ac_reader_position(reader, &segment, &offset);
    if (ac_reader_commit(reader, segment, offset, 0, &err) == AC_OK) {
        uint64_t stored[2];
        FUZZ_CHECK(ac_reader_committed(reader, &stored[0], &stored[1], &err) == AC_OK);
        FUZZ_CHECK(stored[0] == segment && stored[1] == offset);
    }
    ac_reader_free(reader);
}

/* The survey decides what retention removes and how much capacity is left. */
static void survey(int options) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    uint64_t lag, readers;
    ac_writer_defaults(&config);
    config.inline_housekeeping = 1;
    config.retention = 1;
    config.retain_for_readers = 1;
    config.reader_ttl_ns = options & 4 ? UINT64_MAX : 1;
    config.capacity_bytes = FUZZ_SEGMENT;
    FUZZ_CHECK(ac_writer_open(fuzz_queue, &config, &writer, &err) == AC_OK);
    ac_writer_reader_lag(writer, &lag, &readers, &err);
    ac_writer_append(writer, "hello", 5, 1, AC_NOW, &err);
    ac_writer_retain(writer, &err);
    ac_writer_close(writer, &err);
    ac_writer_free(writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 200) return 0;
    fuzz_clear();
    write_queue();
    fuzz_make_directory("readers");
    fuzz_put("readers/reader.meta", data + 1, size - 1, 0);
    if (data[0] & 2) survey(data[0]);
    read_from_it(data[0] & 1);
    if (!(data[0] & 2)) survey(data[0]);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    ac_slot_t slots[2];
    size = LLVMFuzzerMutate(data, size, room);
    if (size < 1 + sizeof slots || seed % 8 == 0) return size;
    memcpy(slots, data + 1, sizeof slots);
    for (int i = 0; i < 2; i++) {
        if (seed & 8u << i) continue;
        if (seed % 8 > 2) slots[i].segment %= 8;
        if (seed % 8 > 4) slots[i].offset &= 4095 & ~63u;
        slots[i].checksum = ac_crc32(&slots[i], 32);
    }
    memcpy(data + 1, slots, sizeof slots);
    return size;
}
