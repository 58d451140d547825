/* A queue of two data files of any content, read, and read again after seeks. */
#include "cq4_tail.h"
#include "fuzz.h"
#include "tests/cq4_files.h"

enum { PREFIX = 6, FILE_MAX = 8192, MESSAGES_MAX = 2 * FILE_MAX };
enum { WHOLE_PAGES = 1, NO_METADATA = 2, SECONDS = 4 };

static void look_at(const ac_cq4_tail_t *tail, const ac_message_t *message) {
    const ac_map_t *map = ac_cq4_tail_map(tail);
    uint64_t from = (uint64_t)(message->record + AC_HEADER_SIZE - map->base);
    FUZZ_CHECK(from >= AC_HEADER_SIZE && message->length <= map->size - from);
    FUZZ_CHECK(message->length > 0 && message->flags == 0);
    ac_crc32(message->record + AC_HEADER_SIZE, message->length);
}

static uint64_t read_all(ac_cq4_tail_t *tail) {
    ac_message_t message;
    ac_error_t err;
    uint64_t count = 0, last = 0;
    int rc;
    while ((rc = ac_cq4_tail_next(tail, &message, &err)) == 1) {
        look_at(tail, &message);
        FUZZ_CHECK(count == 0 || message.seq > last);
        FUZZ_CHECK(++count <= MESSAGES_MAX);
        last = message.seq;
    }
    FUZZ_CHECK(rc == 0 || (err.path[0] && err.detail[0]));
    return count;
}

static void seek_around(ac_cq4_tail_t *tail, const uint8_t *options) {
    ac_message_t message, again;
    ac_error_t err;
    ac_lag_t lag;
    uint64_t segment, offset;
    if (ac_cq4_tail_seek_first(tail, &err) == AC_OK) {
        ac_cq4_tail_lag(tail, &lag, &err);
        for (int i = 0; i < options[4] % 8; i++)
            if (ac_cq4_tail_next(tail, &message, &err) != 1) break;
        ac_cq4_tail_position(tail, &segment, &offset);
        if (ac_cq4_tail_next(tail, &message, &err) == 1 &&
            ac_cq4_tail_seek_position(tail, segment, offset, &err) == AC_OK &&
            ac_cq4_tail_next(tail, &again, &err) == 1)
            look_at(tail, &again);
    }
    uint32_t shift = tail->queue.roll.shift ? tail->queue.roll.shift : 32;
    if (ac_cq4_tail_seek_index(tail, ((uint64_t)5 << shift) + options[4], &err) == AC_OK)
        read_all(tail);
    if (ac_cq4_tail_seek_position(tail, 5, options[5] * 4u, &err) == AC_OK) read_all(tail);
    if (ac_cq4_tail_seek_last(tail, &err) == AC_OK) read_all(tail);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_cq4_tail_t tail;
    ac_error_t err;
    char names[2][AC_CQ4_NAME_MAX];
    if (size < PREFIX || size > PREFIX + 2 * FILE_MAX) return 0;
    ac_cq4_roll_t roll = cq4_known_roll(data[0] & SECONDS ? "TEST4_SECONDLY" : "TEST2_DAILY");
    size_t first = data[1] | (size_t)data[2] << 8;
    if (first > size - PREFIX) first = size - PREFIX;
    if (first > FILE_MAX || size - PREFIX - first > FILE_MAX) return 0;
    fuzz_clear();
    if (!(data[0] & NO_METADATA)) {
        cq4_table_t table = cq4_create_table(fuzz_queue, &roll);
        cq4_close_file(&table.out);
    }
    for (uint32_t i = 0; i < 2; i++)
        FUZZ_CHECK(ac_cq4_roll_file_name(&roll, 5 + i * (1 + data[3] % 3), names[i]) == AC_OK);
    size_t whole = data[0] & WHOLE_PAGES ? FILE_MAX : 0;
    fuzz_put(names[0], data + PREFIX, first, whole);
    if (size > PREFIX + first)
        fuzz_put(names[1], data + PREFIX + first, size - PREFIX - first, whole);
    if (ac_cq4_tail_open(&tail, fuzz_queue, &err) == AC_OK) {
        read_all(&tail);
        seek_around(&tail, data);
        ac_cq4_tail_close(&tail);
    }
    return 0;
}
