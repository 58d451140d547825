/* A writer that opens a directory of any files: the result must be a queue that can be appended to.
 *
 * The input is a byte of options and then, per file, its number, its length and its bytes. */
#include "fuzz.h"

/* FORGED: records may be forged, with matching checksums. */
enum { VERIFY = 1, CUT = 2, FORGED = 4 };
enum {
    CONTROL,
    DURABLE,
    SEGMENT_0,
    SEGMENT_1,
    SEGMENT_2,
    INDEX_0,
    INDEX_1,
    READER,
    LOCK,
    FAR,
    KINDS
};
enum { PREFIX = 3, MESSAGES_MAX = 4 * FUZZ_SEGMENT / AC_ALIGNMENT };

static const char *const NAMES[KINDS] = {
    [CONTROL] = "control.meta",  [DURABLE] = "index.meta",    [SEGMENT_0] = "000000000.q",
    [SEGMENT_1] = "000000001.q", [SEGMENT_2] = "000000002.q", [INDEX_0] = "000000000.idx",
    [INDEX_1] = "000000001.idx", [READER] = "readers/r.meta", [LOCK] = "writer.lock",
    [FAR] = "4294967293.q",
};

static int is_segment(unsigned kind) {
    return (kind >= SEGMENT_0 && kind <= SEGMENT_2) || kind == FAR;
}

/* The bytes of the next file; 0 = no more files. */
static size_t next_file(fuzz_bytes_t *bytes, unsigned *kind, const uint8_t **content) {
    if (bytes->left < PREFIX) return 0;
    *kind = (unsigned)fuzz_take(bytes, 1) % KINDS;
    size_t length = fuzz_take(bytes, 2) % (FUZZ_SEGMENT + 1);
    if (length > bytes->left) length = bytes->left;
    *content = bytes->at;
    bytes->at += length;
    bytes->left -= length;
    return length + 1;
}

static void lay_out(fuzz_bytes_t bytes, int cut) {
    unsigned kind;
    const uint8_t *content;
    fuzz_clear();
    fuzz_make_directory("readers");
    for (size_t found; (found = next_file(&bytes, &kind, &content)) > 0;) {
        size_t length = found - 1;
        if (kind == CONTROL) {
            ac_control_t control = fuzz_control(0);
            memcpy(&control, content, length < sizeof control ? length : sizeof control);
            control.init_state = AC_CONTROL_READY; /* see fuzz_control.c */
            if (ac_segment_size_valid(control.segment_size)) control.segment_size = FUZZ_SEGMENT;
            fuzz_put_control(&control);
        } else {
            fuzz_put(NAMES[kind], content, length, is_segment(kind) && !cut ? FUZZ_SEGMENT : 0);
        }
    }
}

/* -1 = it was refused. */
static int64_t append_one(int verify, int clean_expected) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    ac_recovery_t report;
    ac_writer_defaults(&config);
    config.segment_size = FUZZ_SEGMENT;
    config.inline_housekeeping = 1;
    config.verify = verify;
    config.reader_ttl_ns = 30000000000u; /* so that retention does not wait for readers long gone */
    if (ac_writer_open(fuzz_queue, &config, &writer, &err) != AC_OK) {
        FUZZ_CHECK(!clean_expected);
        return -1;
    }
    ac_writer_recovery(writer, &report);
    FUZZ_CHECK(!clean_expected || report.clean);
    int64_t seq = ac_writer_append(writer, "hello", 5, 1, AC_NOW, &err);
    ac_writer_retain(writer, &err);
    FUZZ_CHECK(ac_writer_close(writer, &err) == AC_OK);
    ac_writer_free(writer);
    return seq;
}

/* Continues after a missing segment. */
static int next_anywhere(ac_reader_t *reader, ac_message_t *message) {
    ac_error_t err;
    int rc = ac_reader_next(reader, message, &err);
    while (rc == AC_E_POSITION_LOST) {
        rc = ac_reader_seek_position(reader, err.first_segment, err.first_offset, &err);
        if (rc == AC_OK) rc = ac_reader_next(reader, message, &err);
    }
    return rc;
}

/* The appended message is the last one that a reader finds, and unless others were forged, has the largest
 * seq. */
static void check_end(int64_t seq, int forged) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message = {0};
    ac_error_t err;
    uint64_t count = 0, last = UINT64_MAX;
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    config.skip_corrupt = 1;
    if (ac_reader_open(fuzz_queue, &config, &reader, &err) != AC_OK) return;
    while (next_anywhere(reader, &message) == 1) {
        fuzz_look_at(&message, 1);
        last = message.seq;
        FUZZ_CHECK(forged || last <= (uint64_t)seq);
        FUZZ_CHECK(++count <= MESSAGES_MAX);
    }
    FUZZ_CHECK(last == (uint64_t)seq);
    ac_reader_free(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 5 * FUZZ_SEGMENT) return 0;
    lay_out((fuzz_bytes_t){data + 1, size - 1}, data[0] & CUT);
    int64_t seq = append_one(data[0] & VERIFY, 0);
    if (seq < 0) return 0;
    check_end(seq, data[0] & FORGED);
    FUZZ_CHECK(append_one(0, 1) == seq + 1);
    check_end(seq + 1, data[0] & FORGED);
    return 0;
}

static void mend(unsigned kind, uint8_t *content, size_t length, unsigned seed) {
    if (is_segment(kind)) {
        ac_segment_header_t header;
        if (length < sizeof header) return;
        memcpy(&header, content, sizeof header);
        if (seed & 8) {
            header.magic = AC_SEGMENT_MAGIC;
            header.version = AC_SEGMENT_VERSION;
            header.segment_id = kind == FAR ? 4294967293u : kind - SEGMENT_0;
        }
        memcpy(content, &header, sizeof header);
        fuzz_mend_segment(content, length, seed & 16 ? seed >> 5 : 0);
    } else if (kind == CONTROL && length == sizeof(ac_control_t)) {
        ac_control_t control;
        memcpy(&control, content, sizeof control);
        if (seed & 8) control.clean.epoch = control.writer_epoch;
        control.clean.checksum = 0;
        control.clean.checksum = ac_crc32(&control.clean, sizeof control.clean);
        memcpy(content, &control, sizeof control);
    } else if (kind == READER && length >= 80) {
        for (int slot = 0; slot < 2; slot++) {
            uint32_t checksum = ac_crc32(content + slot * 40, 32);
            memcpy(content + slot * 40 + 32, &checksum, sizeof checksum);
        }
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    unsigned kind;
    const uint8_t *content;
    uint8_t forged = size > 0 ? data[0] & FORGED : 0;
    size = LLVMFuzzerMutate(data, size, room);
    if (size < 1) return size;
    data[0] |= forged;
    if (seed % 8 == 0) return size;
    data[0] |= FORGED;
    fuzz_bytes_t bytes = {data + 1, size - 1};
    for (size_t found; (found = next_file(&bytes, &kind, &content)) > 0;)
        mend(kind, data + (content - data), found - 1, seed);
    return size;
}
