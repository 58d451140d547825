#include "record.h"

#include "check.h"

enum { SIZE = 4096, SEGMENT = 3, EPOCH = 9 };

static uint8_t segment[SIZE] __attribute__((aligned(64)));
static const char *why;

/* Writes a committed record at `offset`; returns the offset after it. */
static uint64_t put(uint64_t offset, const void *payload, uint32_t length) {
    const ac_cause_t cause = {.source = 11, .seq = 12, .epoch = 13};
    ac_stamp_t stamp = {.seq = 5,
                        .timestamp_ns = 77,
                        .cause = &cause,
                        .batch_left = 2,
                        .epoch = EPOCH,
                        .type_id = 6};
    uint8_t *at = segment + offset;
    uint32_t checksum = ac_crc32_copy(at + AC_HEADER_SIZE, payload, length);
    ac_record_write_header(at, length, checksum, &stamp, ac_crc32c_seed(SEGMENT, EPOCH));
    ac_store_release_u32(ac_record_commit_word(at), length + 1);
    return offset + ac_record_size(length);
}

static int inspect(uint64_t offset, ac_message_t *out) {
    return ac_record_inspect(segment, SIZE, offset, SEGMENT, AC_CHECK_PAYLOAD, out, &why);
}

static void fresh(void) {
    memset(segment, 0, sizeof segment);
}

TEST(a_record_comes_back_as_it_was_written) {
    ac_message_t message;
    fresh();
    CHECK_EQUAL(put(64, "payload", 7), 192);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
    CHECK_EQUAL(message.seq, 5);
    CHECK_EQUAL(message.timestamp_ns, 77);
    CHECK_EQUAL(message.cause_source, 11);
    CHECK_EQUAL(message.cause_seq, 12);
    CHECK_EQUAL(((const ac_record_t *)(const void *)message.record)->cause_epoch, 13);
    CHECK_EQUAL(message.batch_left, 2);
    CHECK_EQUAL(message.type_id, 6);
    CHECK_EQUAL(message.flags, AC_FLAG_OURS | AC_FLAG_CAUSE);
    CHECK_EQUAL(message.length, 7);
    CHECK_EQUAL(message.segment, SEGMENT);
    CHECK(memcmp(message.record + 64, "payload", 7) == 0);
}

TEST(an_expiry_stands_where_a_cause_would) {
    ac_message_t message;
    const ac_cause_t expiry = {.source = 1234, .is_expiry = 1};
    ac_stamp_t stamp = {.seq = 5, .timestamp_ns = 77, .cause = &expiry, .epoch = EPOCH};
    fresh();
    uint32_t checksum = ac_crc32_copy(segment + 64 + AC_HEADER_SIZE, "abc", 3);
    ac_record_write_header(segment + 64, 3, checksum, &stamp, ac_crc32c_seed(SEGMENT, EPOCH));
    ac_store_release_u32(ac_record_commit_word(segment + 64), 4);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
    CHECK_EQUAL(message.flags, AC_FLAG_OURS | AC_FLAG_EXPIRES);
    CHECK_EQUAL(message.cause_source, 1234);
    CHECK_EQUAL(message.cause_seq, 0);
    CHECK_EQUAL(((const ac_record_t *)(const void *)message.record)->cause_epoch, 0);
}

TEST(a_record_takes_whole_lines) {
    CHECK_EQUAL(ac_record_size(0), 64);
    CHECK_EQUAL(ac_record_size(1), 128);
    CHECK_EQUAL(ac_record_size(64), 128);
    CHECK_EQUAL(ac_record_size(65), 192);
    CHECK_EQUAL(ac_record_size(UINT32_MAX - 1ull), (1ull << 32) + 64);
}

TEST(an_empty_payload_is_a_record) {
    ac_message_t message;
    fresh();
    put(64, NULL, 0);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
    CHECK_EQUAL(message.length, 0);
}

TEST(nothing_is_found_where_nothing_is_committed_or_no_header_fits) {
    ac_message_t message;
    fresh();
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_NONE);
    CHECK_EQUAL(inspect(SIZE, &message), AC_RECORD_NONE);
    CHECK_EQUAL(inspect(SIZE - 63, &message), AC_RECORD_NONE);
    CHECK_EQUAL(inspect(UINT64_MAX, &message), AC_RECORD_NONE);
}

TEST(a_payload_that_just_fits_is_good_and_one_byte_more_is_not) {
    static uint8_t payload[SIZE];
    ac_message_t message;
    fresh();
    put(64, payload, SIZE - 128);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
    ac_store_release_u32(ac_record_commit_word(segment + 64), SIZE - 128 + 2);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_BAD);
    CHECK(strstr(why, "beyond the segment"));
    ac_store_release_u32(ac_record_commit_word(segment + 64), UINT32_MAX);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_BAD);
}

TEST(no_flip_of_a_bit_in_header_or_payload_goes_unnoticed) {
    ac_message_t message;
    uint8_t payload[100];
    memset(payload, 0x5a, sizeof payload);
    fresh();
    put(64, payload, sizeof payload);
    for (int bit = 0; bit < (64 + (int)sizeof payload) * 8; bit++) {
        segment[64 + bit / 8] ^= (uint8_t)(1 << bit % 8);
        int found = inspect(64, &message);
        segment[64 + bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* With the flag gone it is a foreign record, whose header nothing protects. */
        int disowned = bit == 26 * 8;
        CHECK(found == AC_RECORD_BAD || disowned);
    }
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
}

TEST(a_record_copied_from_another_place_is_refused) {
    ac_message_t message;
    fresh();
    put(64, "x", 1);
    CHECK_EQUAL(ac_record_inspect(segment, SIZE, 64, SEGMENT + 1, AC_CHECK_HEADER, &message, &why),
                AC_RECORD_BAD);
    CHECK(strstr(why, "header check"));
}

TEST(a_foreign_record_needs_no_header_check) {
    ac_message_t message;
    ac_record_t foreign = {.commit_len = 4,
                           .version = 1,
                           .seq = 1,
                           .timestamp_ns = 2,
                           .type_id = 3,
                           .checksum = ac_crc32("abc", 3),
                           .batch_left = 99};
    fresh();
    memcpy(segment + 64, &foreign, sizeof foreign);
    memcpy(segment + 128, "abc", 3);
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_GOOD);
    CHECK_EQUAL(message.batch_left, 0);
    segment[68] = 2;
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_BAD);
    CHECK(strstr(why, "version"));
}

TEST(only_the_check_of_the_payload_looks_at_it) {
    ac_message_t message;
    fresh();
    put(64, "payload", 7);
    segment[128] ^= 1;
    CHECK_EQUAL(inspect(64, &message), AC_RECORD_BAD);
    CHECK_EQUAL(ac_record_inspect(segment, SIZE, 64, SEGMENT, AC_CHECK_HEADER, &message, &why),
                AC_RECORD_GOOD);
}
