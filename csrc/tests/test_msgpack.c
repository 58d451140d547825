#include "aiochronicle.h"

#include "check.h"

enum { FIELDS = 5, BYTES_MAX = 4096 };

static const char *const NAMES[FIELDS] = {"flag", "size", "price", "symbol", "raw"};

/* Columns of one row with nothing after them, so that the sanitizer detects an overrun. */
typedef struct table {
    ac_field_t fields[FIELDS];
} table_t;

static table_t table_new(size_t payload_bytes) {
    table_t table = {0};
    for (int i = 0; i < FIELDS; i++) {
        ac_field_t *field = &table.fields[i];
        int is_content = i == AC_FIELD_TEXT || i == AC_FIELD_BYTES;
        field->name = NAMES[i];
        field->name_length = (uint32_t)strlen(NAMES[i]);
        field->kind = i;
        field->valid = calloc(1, 1);
        field->values = i == AC_FIELD_BOOL ? calloc(1, 1) : malloc(is_content ? payload_bytes : 8);
        field->offsets = is_content ? malloc(2 * sizeof(int32_t)) : NULL;
    }
    return table;
}

static void table_free(table_t *table) {
    for (int i = 0; i < FIELDS; i++) {
        free(table->fields[i].valid);
        free(table->fields[i].values);
        free(table->fields[i].offsets);
    }
}

static int64_t whole(const table_t *table) {
    return *(int64_t *)table->fields[AC_FIELD_INT].values;
}

static int is_null(const table_t *table, int field) {
    return !(table->fields[field].valid[0] & 1);
}

static int takes(table_t *table, const void *message, size_t length) {
    uint8_t *payload = malloc(length ? length : 1); /* of just this size */
    int32_t offsets[2] = {0, (int32_t)length};
    memcpy(payload, message, length);
    int taken = (int)ac_msgpack_columns(payload, offsets, 1, table->fields, FIELDS, NULL);
    free(payload);
    return taken;
}

/* A message with all fields; the last ones are given: map, names, values. */
static size_t message_with(uint8_t *out, const char *size_value, size_t size_length) {
    uint8_t *at = out;
#define PUT(text) (memcpy(at, text, sizeof(text) - 1), at += sizeof(text) - 1)
    PUT("\x85\xa4"
        "flag\xc3\xa4"
        "size");
    memcpy(at, size_value, size_length);
    at += size_length;
    PUT("\xa5price\xcb\x40\x59\x20\x00\x00\x00\x00\x00");
    PUT("\xa6symbol\xa3"
        "EUR");
    PUT("\xa3raw\xc4\x02\x01\xff");
#undef PUT
    return (size_t)(at - out);
}

TEST(plain_messages_become_columns) {
    uint8_t message[200];
    size_t length = message_with(message, "\x07", 1);
    table_t table = table_new(length);
    CHECK(takes(&table, message, length));
    for (int i = 0; i < FIELDS; i++)
        CHECK(!is_null(&table, i) && table.fields[i].nulls == 0);
    CHECK_EQUAL(*(uint8_t *)table.fields[AC_FIELD_BOOL].values & 1, 1);
    CHECK_EQUAL(whole(&table), 7);
    CHECK(*(double *)table.fields[AC_FIELD_FLOAT].values == 100.5);
    CHECK_EQUAL(table.fields[AC_FIELD_TEXT].offsets[1], 3);
    CHECK(memcmp(table.fields[AC_FIELD_TEXT].values, "EUR", 3) == 0);
    CHECK_EQUAL(table.fields[AC_FIELD_BYTES].offsets[1], 2);
    CHECK(memcmp(table.fields[AC_FIELD_BYTES].values, "\x01\xff", 2) == 0);
    table_free(&table);
}

TEST(numbers_of_every_width_are_read) {
    static const struct {
        const char *bytes;
        size_t length;
        int64_t number;
    } numbers[] = {
        {"\x7f", 1, 127},
        {"\xe0", 1, -32},
        {"\xff", 1, -1},
        {"\xcc\xff", 2, 255},
        {"\xcd\xff\xfe", 3, 65534},
        {"\xce\xff\xff\xff\xff", 5, UINT32_MAX},
        {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, INT64_MAX},
        {"\xd0\x80", 2, INT8_MIN},
        {"\xd1\x80\x00", 3, INT16_MIN},
        {"\xd2\x80\x00\x00\x00", 5, INT32_MIN},
        {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, INT64_MIN},
    };
    uint8_t message[200];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        size_t length = message_with(message, numbers[i].bytes, numbers[i].length);
        table_t table = table_new(length);
        CHECK(takes(&table, message, length));
        CHECK_EQUAL(whole(&table), numbers[i].number);
        table_free(&table);
    }
}

TEST(what_is_not_plain_is_left_to_others) {
    static const struct {
        const char *bytes;
        size_t length;
    } values[] = {
        {"\xcf\x80\x00\x00\x00\x00\x00\x00\x00", 9}, /* too large for the column */
        {"\xcb\x40\x59\x00\x00\x00\x00\x00\x00", 9}, /* a float */
        {"\xc0", 1},                                 /* nil */
        {"\xc1", 1},                                 /* means nothing */
        {"\xa1x", 2},                                /* text */
        {"\x07\xa4size\x07", 7},                     /* more than there should be */
        {"", 0},                                     /* less */
    };
    uint8_t message[200];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        size_t length = message_with(message, values[i].bytes, values[i].length);
        table_t table = table_new(length);
        CHECK(!takes(&table, message, length));
        table_free(&table);
    }
    size_t length = message_with(message, "\x07", 1);
    for (size_t cut = 0; cut < length; cut++) {
        table_t table = table_new(length);
        CHECK(!takes(&table, message, cut));
        table_free(&table);
    }
    table_t table = table_new(length + 1);
    message[length] = 0xc0;
    CHECK(!takes(&table, message, length + 1)); /* something follows */
    table_free(&table);
}

TEST(a_name_twice_is_left_to_others) {
    static const char twice[] = "\x82\xa6symbol\xa3"
                                "EUR\xa6symbol\xa3USD";
    table_t table = table_new(sizeof twice - 1);
    for (int i = 0; i < FIELDS; i++)
        table.fields[i].may_be_missing = 1;
    CHECK(!takes(&table, twice, sizeof twice - 1));
    table_free(&table);
}

TEST(nil_and_missing_values_are_null_where_they_may_be) {
    static const char message[] = "\x81\xa4size\xc0";
    for (int may = 0; may < 4; may++) {
        table_t table = table_new(sizeof message - 1);
        for (int i = 0; i < FIELDS; i++) {
            table.fields[i].may_be_nil = may & 1;
            table.fields[i].may_be_missing = may >> 1;
        }
        CHECK_EQUAL(takes(&table, message, sizeof message - 1), may == 3);
        for (int i = 0; i < FIELDS && may == 3; i++)
            CHECK(is_null(&table, i) && table.fields[i].nulls == 1);
        table_free(&table);
    }
}

TEST(unknown_entries_are_skipped_whatever_they_are) {
    /* One after the other: an array of a map, extensions, bytes, a long text, numbers; then the size. */
    static const char message[] =
        "\x87\xa1"
        "a\x91\x82\xa1x\xc2\xc0\xdc\x00\x01\xdf\x00\x00\x00\x00\xa1"
        "b\xd8\x05"
        "0123456789abcdef\xa1"
        "c\xc7\x02\x05xy\xa1"
        "d\xc6\x00\x00\x00\x01z\xa1"
        "e\xd9\x02hi\xa1"
        "f\x93\xca\x00\x00\x00\x00\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xd1"
        "\x00\x00\xa4size\x2a";
    table_t table = table_new(sizeof message - 1);
    for (int i = 0; i < FIELDS; i++)
        table.fields[i].may_be_missing = 1;
    CHECK(takes(&table, message, sizeof message - 1));
    CHECK_EQUAL(whole(&table), 42);
    table_free(&table);
}

TEST(nesting_without_end_is_left_to_others) {
    static uint8_t message[BYTES_MAX];
    memset(message, 0x91, sizeof message);
    memcpy(message, "\x81\xa1x", 3);
    message[sizeof message - 1] = 0xc0;
    table_t table = table_new(sizeof message);
    for (int i = 0; i < FIELDS; i++)
        table.fields[i].may_be_missing = 1;
    CHECK(!takes(&table, message, sizeof message));
    table_free(&table);
}

TEST(bytes_of_any_kind_stay_within_their_columns) {
    uint64_t state = check_seed() | 1;
    for (int round = 0; round < 100000; round++) {
        uint8_t message[200];
        size_t length = message_with(message, "\x07", 1);
        for (uint64_t changes = 1 + check_random(&state) % 4; changes > 0; changes--)
            message[check_random(&state) % length] = (uint8_t)check_random(&state);
        length -= check_random(&state) % 3;
        table_t table = table_new(length);
        for (int i = 0; i < FIELDS; i++)
            table.fields[i].may_be_nil = table.fields[i].may_be_missing =
                (int)(check_random(&state) & 1);
        takes(&table, message, length);
        table_free(&table);
    }
}

/* A list of structs that are arrays with a tag, a number and a text; there is room for exactly this many of them. */
typedef struct levels {
    ac_field_t list, item, parts[3];
} levels_t;

static void levels_init(levels_t *levels, uint64_t rows, uint64_t items, size_t payload_bytes) {
    memset(levels, 0, sizeof *levels);
    levels->list = (ac_field_t){.name = "levels", .name_length = 6, .kind = AC_FIELD_LIST};
    levels->list.parts = &levels->item;
    levels->list.part_count = 1;
    levels->list.valid = calloc(1, (rows + 7) / 8);
    levels->list.offsets = malloc((rows + 1) * sizeof(int32_t));
    levels->item = (ac_field_t){.kind = AC_FIELD_ARRAY, .parts = levels->parts, .part_count = 3};
    levels->item.items_max = items;
    levels->item.valid = calloc(1, (items + 7) / 8 + 1);
    levels->parts[0] = (ac_field_t){.kind = AC_FIELD_TAG, .values = (void *)"L", .items_max = 1};
    levels->parts[1] = (ac_field_t){.kind = AC_FIELD_FLOAT};
    levels->parts[2] = (ac_field_t){.kind = AC_FIELD_TEXT, .may_be_missing = 1, .may_be_nil = 1};
    levels->parts[1].valid = calloc(1, (items + 7) / 8 + 1);
    levels->parts[2].valid = calloc(1, (items + 7) / 8 + 1);
    levels->parts[1].values = malloc(items * 8 + 1);
    levels->parts[2].values = malloc(payload_bytes);
    levels->parts[2].offsets = malloc((items + 1) * sizeof(int32_t));
}

static void levels_free(levels_t *levels) {
    free(levels->list.valid);
    free(levels->list.offsets);
    free(levels->item.valid);
    for (int i = 1; i < 3; i++) {
        free(levels->parts[i].valid);
        free(levels->parts[i].values);
        free(levels->parts[i].offsets);
    }
}

static const char LEVELS[] =
    "\x81\xa6levels\x93"
    "\x93\xa1L\x07\xa2"
    "ab\x92\xa1L\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x94\xa1L\x01\xc0\x91\x05";

TEST(lists_of_structs_become_columns) {
    int32_t offsets[3] = {0, sizeof LEVELS - 1, 2 * (sizeof LEVELS - 1)};
    char payloads[2 * (sizeof LEVELS - 1)];
    memcpy(payloads, LEVELS, sizeof LEVELS - 1);
    memcpy(payloads + sizeof LEVELS - 1, LEVELS, sizeof LEVELS - 1);
    for (uint64_t room = 0; room <= 6; room++) {
        levels_t levels;
        levels_init(&levels, 2, room, sizeof payloads);
        uint64_t taken = ac_msgpack_columns((uint8_t *)payloads, offsets, 2, &levels.list, 1, NULL);
        CHECK_EQUAL(taken, room / 3);
        if (taken == 2) {
            const double *prices = levels.parts[1].values;
            CHECK_EQUAL(levels.list.offsets[1], 3);
            CHECK_EQUAL(levels.list.offsets[2], 6);
            CHECK_EQUAL(levels.item.items, 6);
            CHECK(prices[0] == 7 && prices[1] == 1.5 && prices[5] == 1);
            CHECK_EQUAL(levels.parts[2].nulls, 4);
            CHECK_EQUAL(levels.parts[2].offsets[6], 4);
            CHECK(memcmp(levels.parts[2].values, "abab", 4) == 0);
        }
        levels_free(&levels);
    }
}

TEST(lists_of_any_bytes_stay_within_their_columns) {
    uint64_t state = check_seed() | 1;
    for (int round = 0; round < 100000; round++) {
        size_t length = sizeof LEVELS - 1 - check_random(&state) % 3;
        uint8_t *message = malloc(length);
        memcpy(message, LEVELS, length);
        for (uint64_t changes = 1 + check_random(&state) % 4; changes > 0; changes--)
            message[check_random(&state) % length] = (uint8_t)check_random(&state);
        levels_t levels;
        int32_t offsets[2] = {0, (int32_t)length};
        levels_init(&levels, 1, check_random(&state) % 5, length);
        levels.list.may_be_nil = levels.item.may_be_nil = (int)(check_random(&state) & 1);
        ac_msgpack_columns(message, offsets, 1, &levels.list, 1, NULL);
        CHECK(levels.item.items <= levels.item.items_max);
        levels_free(&levels);
        free(message);
    }
}
