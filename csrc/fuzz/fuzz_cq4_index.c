/* A valid data file whose index is overwritten with anything: a wrong index may cost time, but never leads out of the
 * file; and as long as only one slot is wrong, every message is found. */
#include "fuzz.h"
#include "tests/cq4_files.h"

enum { MESSAGES = 64, FILE_SIZE = 8192, PATCH = 4 };

static uint64_t offsets[MESSAGES + 1];
static uint64_t pages[4]; /* of their values */

static cq4_file_t write_file(const ac_cq4_roll_t *roll) {
    cq4_file_t file = cq4_create_cycle(fuzz_queue, roll, 7, FILE_SIZE, 0);
    for (uint64_t seq = 0; seq < MESSAGES; seq++) {
        uint8_t payload[16] = {(uint8_t)seq};
        offsets[seq] = cq4_append(&file, payload, 1 + (uint32_t)seq % 16);
        if (seq % 16 == 0) pages[seq / 16] = file.page;
    }
    offsets[MESSAGES] = file.out.at;
    return file;
}

/* Four bytes each: the slot, how its value is derived, and from what. 1 = the value may be that of another slot. */
static int patch(cq4_file_t *file, const uint8_t *bytes) {
    uint64_t slot = bytes[0] % (MESSAGES / 2 + 4), value = bytes[2] | (uint64_t)bytes[3] << 8;
    uint64_t where = slot >= MESSAGES / 2 ? file->pages + (slot - MESSAGES / 2) * 8
                                          : pages[slot / 8] + slot % 8 * 8;
    if (bytes[1] % 4 == 0) value = offsets[value % MESSAGES];
    if (bytes[1] % 4 == 1) value |= (uint64_t)bytes[0] << 56;
    if (bytes[1] % 4 == 2) value = 0;
    cq4_set(&file->out, where, value);
    return value > 0 && value < FILE_SIZE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_directory_t dir;
    ac_cq4_cycle_t cycle;
    ac_error_t err;
    char name[AC_CQ4_NAME_MAX];
    if (size < 1 || size > 40 * PATCH) return 0;
    ac_cq4_roll_t roll = cq4_known_roll("TEST_DAILY");
    roll.index_spacing = 2;
    fuzz_clear();
    cq4_file_t file = write_file(&roll);
    int liars = 0;
    for (size_t at = 1; at + PATCH <= size; at += PATCH)
        liars += patch(&file, data + at);
    FUZZ_CHECK(ac_directory_init(&dir, fuzz_queue, 0600, 0, &err) == AC_OK);
    FUZZ_CHECK(ac_cq4_roll_file_name(&roll, 7, name) == AC_OK);
    int dir_fd = ac_directory_open(&dir, &err);
    FUZZ_CHECK(ac_cq4_cycle_open(&dir, dir_fd, name, 7, 0, &cycle, &err) == AC_OK);
    close(dir_fd);
    for (uint64_t seq = data[0] % 3; seq <= MESSAGES; seq += 3) {
        ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, seq);
        FUZZ_CHECK(place.offset >= cycle.first && place.offset <= offsets[MESSAGES]);
        /* Several slots with values of others may be consistent with each other. */
        if (liars < 2) FUZZ_CHECK(place.offset == offsets[seq] && place.seq == seq);
    }
    FUZZ_CHECK(ac_cq4_cycle_end(&cycle).offset == offsets[MESSAGES]);
    ac_cq4_cycle_close(&cycle);
    cq4_close_file(&file.out);
    return 0;
}
