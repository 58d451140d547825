/* A data file of any content: its header, its records, its index. */
#include "cq4_cycle.h"
#include "fuzz.h"

enum { FILE_MAX = 16384, PREFIX = 4 };

static void look_at(const ac_cq4_cycle_t *cycle, ac_cq4_place_t place) {
    uint32_t length;
    FUZZ_CHECK(place.offset >= cycle->first && place.offset <= cycle->map->size + 3);
    FUZZ_CHECK(ac_cq4_inspect(cycle->map->base, cycle->map->size, place.offset, &length) ==
               place.kind);
    FUZZ_CHECK((place.offset & cycle->padding) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_directory_t dir;
    ac_cq4_cycle_t cycle;
    ac_error_t err;
    if (size < PREFIX || size > FILE_MAX) return 0;
    fuzz_clear();
    fuzz_put("any.cq4", data + PREFIX, size - PREFIX, data[0] & 1 ? FILE_MAX : 0);
    FUZZ_CHECK(ac_directory_init(&dir, fuzz_queue, 0600, 0, &err) == AC_OK);
    int dir_fd = ac_directory_open(&dir, &err);
    FUZZ_CHECK(dir_fd >= 0);
    int rc = ac_cq4_cycle_open(&dir, dir_fd, "any.cq4", 1, data[0] & 2 ? 40 : 0, &cycle, &err);
    close(dir_fd);
    if (rc != AC_OK) {
        FUZZ_CHECK(rc == AC_E_CORRUPT || rc == AC_E_VERSION || rc == AC_E_NOT_FOUND);
        FUZZ_CHECK(err.path[0] && err.detail[0]);
        return 0;
    }
    FUZZ_CHECK(cycle.first >= 60);
    look_at(&cycle, ac_cq4_cycle_find(&cycle, data[1]));
    look_at(&cycle, ac_cq4_cycle_find(&cycle, UINT64_MAX));
    look_at(&cycle, ac_cq4_cycle_end(&cycle));
    uint64_t offset = cycle.first + data[2] * 4u + data[3];
    ac_cq4_place_t place = ac_cq4_cycle_place_at(&cycle, offset);
    look_at(&cycle, place);
    if (place.offset == offset && place.kind == AC_CQ4_DATA)
        look_at(&cycle, ac_cq4_cycle_find(&cycle, place.seq));
    ac_cq4_cycle_has_message(&cycle);
    FUZZ_CHECK(ac_cq4_cycle_refresh(&cycle, &err) == 0);
    ac_cq4_cycle_close(&cycle);
    return 0;
}

/* A first header that matches the record, so that its content is parsed. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, room);
    if (size > PREFIX + 24 && seed % 8)
        memcpy(data + PREFIX + 4, "\xB9\x06header\xB6\x08SCQStore\x82", 19);
    return size;
}
