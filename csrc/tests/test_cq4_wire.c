#include "cq4_wire.h"

#include "check.h"

static ac_cq4_wire_t wire_of(const char *bytes, size_t length) {
    return (ac_cq4_wire_t){(const uint8_t *)bytes, 0, (uint32_t)length};
}
#define WIRE(text) wire_of(text, sizeof(text) - 1)

TEST(whole_numbers_of_every_code) {
    static const struct {
        const char *bytes;
        size_t length;
        int64_t value;
    } cases[] = {{"\x7F", 1, 127},
                 {"\xA1\xFF", 2, 255},
                 {"\xA2\xFF\xFF", 3, 65535},
                 {"\xA3\xFF\xFF\xFF\xFF", 5, 4294967295},
                 {"\xA4\xFF", 2, -1},
                 {"\xA5\x00\x80", 3, -32768},
                 {"\xA6\xFE\xFF\xFF\xFF", 5, -2},
                 {"\xA7\x00\x00\x00\x00\x00\x00\x00\x80", 9, INT64_MIN},
                 {"\xAF\x01\x00\x00\x00\x00\x00\x00\x00", 9, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ac_cq4_wire_t wire = wire_of(cases[i].bytes, cases[i].length);
        int64_t value;
        uint32_t where;
        CHECK_EQUAL(ac_cq4_wire_i64(&wire, &value, &where), 1);
        CHECK_EQUAL(value, cases[i].value);
        CHECK_EQUAL(where, cases[i].bytes[0] == '\xA7' ? 1 : 0);
        CHECK_EQUAL(wire.at, wire.end);
        wire = wire_of(cases[i].bytes, cases[i].length);
        CHECK_EQUAL(ac_cq4_wire_skip(&wire), 1);
        CHECK_EQUAL(wire.at, wire.end);
        wire = wire_of(cases[i].bytes, cases[i].length - 1);
        CHECK(ac_cq4_wire_i64(&wire, &value, &where) <= 0);
    }
}

TEST(names_types_texts_and_padding) {
    char text[200], expected[301];
    ac_cq4_wire_t wire = WIRE("\x8F\x8E\x02\x00\x00\x00??\xC2px\x8F\xB6\x03"
                              "Abc\xE2hi\xB9\x02on\xB8\x00\xBA\x05\xB2\x05"
                              "17:00");
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "px") == 0);
    CHECK_EQUAL(ac_cq4_wire_type(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "Abc") == 0);
    CHECK_EQUAL(ac_cq4_wire_type(&wire, text, sizeof text), 0);
    CHECK_EQUAL(ac_cq4_wire_text(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "hi") == 0);
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "on") == 0);
    CHECK_EQUAL(ac_cq4_wire_text(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "") == 0);
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "5") == 0);
    CHECK_EQUAL(ac_cq4_wire_text(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, "17:00") == 0);
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), 0);
    CHECK_EQUAL(ac_cq4_wire_skip(&wire), 0);
    /* 300 = AC 02: the low seven bits come first. */
    char longer[303] = "\xB7\xAC\x02";
    memset(longer + 3, 'n', 300);
    memset(expected, 'n', 300);
    expected[199] = 0;
    wire = wire_of(longer, sizeof longer);
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), 1);
    CHECK(strcmp(text, expected) == 0 && wire.at == wire.end);
    wire = wire_of(longer, sizeof longer - 1);
    CHECK_EQUAL(ac_cq4_wire_name(&wire, text, sizeof text), -1);
}

TEST(blocks_arrays_and_what_is_skipped) {
    ac_cq4_wire_t inside,
        wire = WIRE("\x80\x02\xC1x\x81\x01\x00\x07\xB6\x01T\x82\x00\x00\x00\x00\x91"
                    "12345678\xA0"
                    "1234567812345678\xB1\xBB\x8D\x01\x00\x00\x00\x00\x00\x00\x00"
                    "\x01\x00\x00\x00\x00\x00\x00\x00"
                    "12345678\x05");
    ac_cq4_array_t array;
    char name[8];
    CHECK_EQUAL(ac_cq4_wire_block(&wire, &inside), 1);
    CHECK_EQUAL(ac_cq4_wire_name(&inside, name, sizeof name), 1);
    CHECK_EQUAL(ac_cq4_wire_name(&inside, name, sizeof name), 0);
    for (int i = 0; i < 6; i++)
        CHECK_EQUAL(ac_cq4_wire_skip(&wire), 1);
    CHECK_EQUAL(ac_cq4_wire_block(&wire, &inside), 0);
    CHECK_EQUAL(ac_cq4_wire_array(&wire, 0, &array), 1);
    CHECK(array.capacity == 1 && array.used == 1);
    CHECK(memcmp(wire.base + array.where, "12345678", 8) == 0);
    CHECK_EQUAL(ac_cq4_wire_skip(&wire), 1);
    CHECK_EQUAL(wire.at, wire.end);
}

TEST(what_is_cut_short_or_unknown_is_malformed) {
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {{"\x82\xFF\xFF\xFF\xFF", 5},
                 {"\x82\x01", 2},
                 {"\x8E\xFF\xFF\xFF\x7F", 5},
                 {"\x8D\x01\x00", 3},
                 {"\x8D\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x00\x00\x00\x00\x00\x00\x00\x00", 17},
                 {"\xB8\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12},
                 {"\xB8\x80\x00", 3}, /* -1 */
                 {"\xB6\x09T", 3},
                 {"\xB6\x01T\xB6\x01T\x05", 7},
                 {"\xFFx", 2},
                 {"\xA7", 1},
                 {"\x83", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ac_cq4_wire_t wire = wire_of(cases[i].bytes, cases[i].length);
        CHECK_EQUAL(ac_cq4_wire_skip(&wire), -1);
    }
}
