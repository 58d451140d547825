/* Payloads of any content, taken apart into columns that are as small as they may be. */
#include "fuzz.h"

enum { FIELDS = 5, ROWS = 2 };

static const char *const NAMES[FIELDS] = {"b", "i", "f", "text", "bytes"};

static int is_content(int kind) {
    return kind == AC_FIELD_TEXT || kind == AC_FIELD_BYTES;
}

static void make_column(ac_field_t *field, int kind, size_t payload_bytes) {
    field->name = NAMES[kind];
    field->name_length = (uint32_t)strlen(NAMES[kind]);
    field->kind = kind;
    field->valid = calloc(1, 1);
    if (is_content(kind)) {
        field->values = malloc(payload_bytes);
        field->offsets = malloc((ROWS + 1) * sizeof(int32_t));
    } else {
        field->values = calloc(1, kind == AC_FIELD_BOOL ? 1 : ROWS * 8);
    }
}

static void check_column(const ac_field_t *field, size_t payload_bytes) {
    uint64_t nulls = 0;
    for (int row = 0; row < ROWS; row++)
        nulls += !(field->valid[0] >> row & 1);
    FUZZ_CHECK(nulls == field->nulls);
    FUZZ_CHECK(nulls == 0 || field->may_be_nil || field->may_be_missing);
    if (!is_content(field->kind)) return;
    FUZZ_CHECK(field->offsets[0] == 0);
    for (int row = 0; row < ROWS; row++)
        FUZZ_CHECK(field->offsets[row] <= field->offsets[row + 1]);
    FUZZ_CHECK((size_t)field->offsets[ROWS] < payload_bytes); /* there are tags between them */
}

/* The first two bytes: which fields may be missing or nil, and where the second payload begins. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    size_t bytes = size - 2;
    int32_t offsets[ROWS + 1] = {0, (int32_t)(data[1] % bytes), (int32_t)bytes};
    ac_field_t fields[FIELDS] = {0};
    for (int i = 0; i < FIELDS; i++) {
        make_column(&fields[i], i, bytes);
        fields[i].may_be_missing = data[0] & 1;
        fields[i].may_be_nil = data[0] >> 1 & 1;
    }
    uint64_t taken = ac_msgpack_columns(data + 2, offsets, ROWS, fields, FIELDS);
    FUZZ_CHECK(taken <= ROWS);
    for (int i = 0; i < FIELDS; i++) {
        if (taken == ROWS) check_column(&fields[i], bytes);
        free(fields[i].valid);
        free(fields[i].values);
        free(fields[i].offsets);
    }
    return 0;
}
