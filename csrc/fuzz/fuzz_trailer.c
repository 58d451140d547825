/* Trailers of any content: found at the end of a record, and decoded into columns of the smallest allowed size. */
#include "fuzz.h"

#include "trailer.h"

static uint8_t *copy(const uint8_t *data, size_t size) {
    uint8_t *bytes = malloc(size);
    FUZZ_CHECK(bytes);
    return memcpy(bytes, data, size);
}

/* A valid trailer, encoded again, gives the same bytes. */
static void write_again(const uint8_t *from, uint32_t size) {
    ac_header_t headers[AC_HEADERS_MAX];
    ac_trailer_t trailer;
    size_t count = 0;
    const char *why;
    FUZZ_CHECK(ac_trailer_open(&trailer, from, size) == 1);
    const ac_slice_t *key = trailer.key.data ? &trailer.key : NULL;
    FUZZ_CHECK(trailer.count <= AC_HEADERS_MAX);
    size_t expected = trailer.count;
    while (count < expected)
        FUZZ_CHECK(ac_trailer_next(&trailer, &headers[count++]) == 1);
    FUZZ_CHECK(ac_trailer_next(&trailer, &headers[0]) == 0);
    FUZZ_CHECK(ac_trailer_measure(key, headers, count, &why) == (int64_t)size);
    uint8_t *again = malloc(size);
    FUZZ_CHECK(again);
    ac_trailer_write(again, key, headers, count);
    FUZZ_CHECK(memcmp(again, from, size) == 0);
    free(again);
}

/* Decoded without a check, as if it had been overwritten after the check. */
static void take_apart(const uint8_t *from, size_t size, int is_sound) {
    enum { ROWS = 2 };
    int32_t offsets[ROWS + 1] = {0, 0, (int32_t)size};
    ac_trailer_columns_t columns = {.key_valid = calloc(1, 1),
                                    .key_offsets = malloc((ROWS + 1) * 4),
                                    .keys = malloc(size),
                                    .header_offsets = malloc((ROWS + 1) * 4),
                                    .name_offsets = malloc((size / 4 + 1) * 4),
                                    .names = malloc(size),
                                    .value_offsets = malloc((size / 4 + 1) * 4),
                                    .values = malloc(size)};
    int64_t count = ac_trailer_columns(from, offsets, ROWS, &columns);
    FUZZ_CHECK(count <= AC_HEADERS_MAX && (count >= 0 || !is_sound));
    if (count >= 0) {
        FUZZ_CHECK(columns.header_offsets[1] == 0 && columns.header_offsets[ROWS] == count);
        FUZZ_CHECK((size_t)columns.name_offsets[count] < size);
        FUZZ_CHECK((size_t)columns.value_offsets[count] < size);
        FUZZ_CHECK((columns.key_valid[0] & ~2) == 0);
    }
    free(columns.key_valid);
    free(columns.key_offsets);
    free(columns.keys);
    free(columns.header_offsets);
    free(columns.name_offsets);
    free(columns.names);
    free(columns.value_offsets);
    free(columns.values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > AC_TRAILER_MAX) return 0;
    uint8_t *bytes = copy(data, size);
    uint32_t found = ac_trailer_find(bytes, (uint32_t)size);
    FUZZ_CHECK(found <= size);
    if (found > 0) write_again(bytes + size - found, found);
    take_apart(bytes, size, found == size);
    free(bytes);
    return 0;
}

/* With the right size at its end, without which nothing else is parsed. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, room);
    if (size < AC_TRAILER_END_SIZE || seed % 8 == 0) return size;
    data[size - 4] = (uint8_t)size;
    data[size - 3] = (uint8_t)(size >> 8);
    return size;
}
