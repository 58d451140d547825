#include "cq4_field.h"

#include "check.h"

static const char *wrong;

/* Returns the time in nanoseconds, or 0 and the error. */
static uint64_t time_of(const char *field_name, uint64_t unit_ns, const char *bytes,
                        size_t length) {
    ac_cq4_field_t field = {.unit_ns = unit_ns};
    uint64_t found = 0;
    uint8_t *copy = malloc(length ? length : 1); /* so that an overrun is detected */
    CHECK(ac_cq4_field_name(&field, field_name) == NULL);
    memcpy(copy, bytes, length);
    wrong = ac_cq4_field_time(&field, copy, (uint32_t)length, &found);
    free(copy);
    return wrong ? 0 : found;
}
#define TIME(name, unit_ns, text) time_of(name, unit_ns, text, sizeof(text) - 1)

TEST(a_field_of_a_document) {
    CHECK_EQUAL(TIME("t", 1, "\xC1t\xA1\x07"), 7);
    CHECK_EQUAL(TIME("t", 1000,
                     "\xC1"
                     "a\xE2hi\xC1t\x07"),
                7000);
    CHECK_EQUAL(TIME("t", 1,
                     "\xC1"
                     "a\x82\x04\0\0\0\xC1t\xA1\x01\xC1t\xA1\x02"),
                2); /* not inside */
    CHECK_EQUAL(TIME("t", 1, "\xB7\x01t\xA7\0\0\0\0\0\0\0\x01"), 1ull << 56);
    CHECK_EQUAL(TIME("t", 1, "\x8F\x8F\xBE\x02hi\xC1t\xA1\x09"), 9);
    CHECK_EQUAL(TIME("5", 1, "\xBA\x05\xA1\x09"), 9);
    CHECK_EQUAL(TIME("\xC3\xA9", 1, "\xC1\xE9\xA1\x09"), 9);
}

TEST(numbers_of_every_code) {
    CHECK_EQUAL(TIME("t", 1000000000, "\xC1t\x92\x96\x01"), 1500000000);     /* 1.5 */
    CHECK_EQUAL(TIME("t", 1000000000, "\xC1t\x90\0\0\xC0\x3F"), 1500000000); /* 1.5f */
    CHECK_EQUAL(TIME("t", 1, "\xC1t\x91\0\0\0\0\0\0\xF8\x3F"), 1);
    CHECK_EQUAL(TIME("t", 1, "\xC1t\x90\0\0\x80\x53"), 1ull << 40);
    CHECK_EQUAL(TIME("t", 1, "\xC1t\xB6\x03int\xA1\x05"), 5);
}

TEST(a_field_of_an_argument) {
    CHECK_EQUAL(TIME("t", 1,
                     "\xB9\x02on\x80\x08\xC1"
                     "a\xA1\x01\xC1t\xA1\x05"),
                5);
    CHECK_EQUAL(TIME("t", 1, "\xB9\x02on\x80\x08\xE2hi\x80\x03\xC1t\x05"),
                5); /* the second of two */
    CHECK_EQUAL(TIME("t", 1, "\xB9\x02on\xB6\x01T\x80\x03\xC1t\x05"), 5);
    CHECK_EQUAL(TIME("t", 1, "\xB9\x02to\xE1x\xB9\x02on\x80\x03\xC1t\x05"), 5); /* a chain */
    CHECK_EQUAL(TIME("t", 1, "\xB9\x07history\x80\x03\xC1t\x01\xB9\x02on\x80\x03\xC1t\x05"), 5);
    CHECK_EQUAL(TIME("t", 1, "\xBA\x80\0\x80\x03\xC1t\x01\xB9\x02on\x80\x03\xC1t\x05"), 5);
    CHECK_EQUAL(TIME("t", 1, "\xB6\x01T\x80\x03\xC1t\x05"), 5); /* an object */
}

TEST(what_is_no_time) {
    CHECK(TIME("t", 1, "") == 0 && strstr(wrong, "missing"));
    CHECK(TIME("t", 1, "\xE3one") == 0 && strstr(wrong, "missing"));
    CHECK(TIME("t", 1, "\xC1u\x05") == 0 && strstr(wrong, "missing"));
    CHECK(TIME("t", 1, "\xC1t\xE3one") == 0 && strstr(wrong, "no number"));
    CHECK(TIME("t", 1, "\xC1t\xA4\xFF") == 0 && strstr(wrong, "no number"));
    CHECK(TIME("t", 1, "\xC1t") == 0 && strstr(wrong, "no number"));
    CHECK(TIME("t", 1000, "\xC1t\xA7\0\0\0\0\0\0\0\x7F") == 0 && strstr(wrong, "no number"));
    CHECK(TIME("t", 1, "\xC1t\x90\0\0\xC0\x7F") == 0 && strstr(wrong, "no number")); /* NaN */
    CHECK(TIME("t", 1, "\xC1u\x82\xFF\xFF\xFF\x7F") == 0 && strstr(wrong, "binary format"));
    CHECK(TIME("t", 1, "\xC5t") == 0 && strstr(wrong, "binary format"));
}

static uint64_t parsed(const char *text) {
    uint64_t found;
    return ac_cq4_parse_time(text, &found) ? found : 0;
}

TEST(dates_and_times) {
    CHECK_EQUAL(parsed("1970-01-01T00:00:01"), 1000000000);
    CHECK_EQUAL(parsed("2026-01-31T12:30"), 1769862600000000000);
    CHECK_EQUAL(parsed("2024-02-29T23:59:59.999999999Z"), 1709251199999999999);
    CHECK_EQUAL(parsed("2024-03-01T00:00"), 1709251200000000000);
    CHECK_EQUAL(parsed("2000-03-01T00:00"), 951868800000000000);
    CHECK_EQUAL(parsed("2026-01-31T12:30:00.5+01:00[Europe/Paris]"), 1769859000500000000);
    CHECK_EQUAL(parsed("2026-01-31T12:30-05:30"), 1769882400000000000);
    static const char *const wrongs[] = {"",
                                         "2026",
                                         "2026-13-01T00:00",
                                         "2026-01-00T00:00",
                                         "2026-01-31 12:30",
                                         "2026-01-31T24:00",
                                         "2026-01-31T12:30x",
                                         "1969-12-31T23:59",
                                         "9999-01-01T00:00",
                                         "2026-01-31T12:30+1",
                                         "0000-01-01T00:00"};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++)
        CHECK_EQUAL(parsed(wrongs[i]), 0);
    CHECK_EQUAL(TIME("t", 1000,
                     "\xC1t\xB4\x10"
                     "2026-01-31T12:30"),
                1769862600000000000);
}

TEST(names_are_latin_1) {
    ac_cq4_field_t field;
    char text[8];
    CHECK(ac_cq4_field_name(&field, "") != NULL);
    CHECK(ac_cq4_field_name(&field, "\xE2\x82\xAC") != NULL); /* the euro sign */
    CHECK(ac_cq4_field_name(&field, "\xC3") != NULL);
    CHECK_EQUAL(ac_cq4_to_latin1("1234567", text, sizeof text), 1);
    CHECK_EQUAL(ac_cq4_to_latin1("12345678", text, sizeof text), 0);
    ac_cq4_from_latin1("a\xE9", text, sizeof text);
    CHECK(strcmp(text, "a\xC3\xA9") == 0);
    ac_cq4_from_latin1("\xE9\xE9\xE9\xE9\xE9", text, sizeof text);
    CHECK(strlen(text) < sizeof text);
}
