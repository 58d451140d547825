/* Payloads of any content, decoded into columns of the smallest allowed size. */
#include "fuzz.h"

enum { FIELDS = 8, ROWS = 2, PARTS = 3 };

static const char *const NAMES[FIELDS] = {"b", "i", "f", "text", "bytes", "tag", "list", "map"};

static int is_content(int kind) {
    return kind == AC_FIELD_TEXT || kind == AC_FIELD_BYTES;
}

static void make_column(ac_field_t *field, int kind, size_t rows, size_t payload_bytes) {
    field->kind = kind;
    field->valid = calloc(1, rows / 8 + 1);
    field->items_max = rows;
    if (is_content(kind) || kind == AC_FIELD_LIST)
        field->offsets = malloc((rows + 1) * sizeof(int32_t));
    if (is_content(kind))
        field->values = malloc(payload_bytes);
    else if (kind == AC_FIELD_BOOL)
        field->values = calloc(1, rows / 8 + 1);
    else if (kind == AC_FIELD_INT || kind == AC_FIELD_FLOAT)
        field->values = malloc(rows * 8);
}

static void make_tag(ac_field_t *field) {
    field->kind = AC_FIELD_TAG;
    field->values = strdup("t");
    field->items_max = 1;
}

/* A struct of a number, a text and one more field: a tag in front of an array, a list at the end of a map. */
static void make_struct(ac_field_t *field, int kind, size_t rows, size_t payload_bytes) {
    static const char *const names[PARTS] = {"x", "y", "z"};
    make_column(field, kind, rows, payload_bytes);
    field->part_count = PARTS;
    field->parts = calloc(PARTS, sizeof(ac_field_t));
    if (kind == AC_FIELD_ARRAY)
        make_tag(&field->parts[0]);
    else
        make_column(&field->parts[0], AC_FIELD_BOOL, rows, payload_bytes);
    make_column(&field->parts[1], AC_FIELD_FLOAT, rows, payload_bytes);
    make_column(&field->parts[2], AC_FIELD_TEXT, rows, payload_bytes);
    for (int i = 0; i < PARTS; i++) {
        field->parts[i].name = names[i];
        field->parts[i].name_length = 1;
    }
}

static void make_field(ac_field_t *field, int number, size_t payload_bytes) {
    if (number == 5) {
        make_tag(field);
    } else if (number == 6) {
        make_column(field, AC_FIELD_LIST, ROWS, payload_bytes);
        field->part_count = 1;
        field->parts = calloc(1, sizeof(ac_field_t));
        /* Less room than the maximum, so that the decoder must count them. */
        make_struct(field->parts, AC_FIELD_ARRAY, payload_bytes / 4, payload_bytes);
    } else if (number == 7) {
        make_struct(field, AC_FIELD_MAP, ROWS, payload_bytes);
    } else {
        make_column(field, number, ROWS, payload_bytes);
    }
    field->name = NAMES[number];
    field->name_length = (uint32_t)strlen(NAMES[number]);
}

static void allow(ac_field_t *field, int missing, int nil) {
    if (field->kind != AC_FIELD_TAG) {
        field->may_be_missing = missing;
        field->may_be_nil = nil;
    }
    for (uint32_t i = 0; i < field->part_count; i++)
        allow(&field->parts[i], missing, nil);
}

static void check_column(const ac_field_t *field, uint64_t rows, size_t payload_bytes) {
    uint64_t nulls = 0;
    if (field->kind == AC_FIELD_TAG) return;
    for (uint64_t row = 0; row < rows; row++)
        nulls += !(field->valid[row / 8] >> row % 8 & 1);
    FUZZ_CHECK(nulls == field->nulls);
    if (field->offsets) {
        FUZZ_CHECK(field->offsets[0] == 0);
        for (uint64_t row = 0; row < rows; row++)
            FUZZ_CHECK(field->offsets[row] <= field->offsets[row + 1]);
    }
    if (is_content(field->kind)) /* there are tags between them */
        FUZZ_CHECK((size_t)field->offsets[rows] < payload_bytes || payload_bytes == 0);
    if (field->kind == AC_FIELD_LIST) {
        FUZZ_CHECK((uint64_t)field->offsets[rows] == field->parts[0].items);
        FUZZ_CHECK(field->parts[0].items <= field->parts[0].items_max);
        rows = field->parts[0].items;
    }
    for (uint32_t i = 0; i < field->part_count; i++)
        check_column(&field->parts[i], rows, payload_bytes);
}

static void free_column(ac_field_t *field) {
    for (uint32_t i = 0; i < field->part_count; i++)
        free_column(&field->parts[i]);
    free(field->parts);
    free(field->valid);
    free(field->values);
    free(field->offsets);
}

/* The first two bytes: which fields may be missing or nil, and where the second payload begins. Inputs without them,
 * as older findings are, mean the same as before. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    size_t bytes = size - 2;
    int32_t offsets[ROWS + 1] = {0, (int32_t)(data[1] % bytes), (int32_t)bytes};
    uint32_t count = data[0] >> 2 & 1 ? FIELDS : 5;
    ac_field_t fields[FIELDS] = {0};
    uint8_t usual = 0;
    for (uint32_t i = 0; i < count; i++) {
        make_field(&fields[i], (int)i, bytes);
        allow(&fields[i], data[0] & 1, data[0] >> 1 & 1);
    }
    uint64_t taken = ac_msgpack_columns(data + 2, offsets, ROWS, fields, count, &usual);
    FUZZ_CHECK(taken <= ROWS);
    for (uint32_t i = 0; i < count; i++) {
        if (taken == ROWS) check_column(&fields[i], ROWS, bytes);
        free_column(&fields[i]);
    }
    return 0;
}
