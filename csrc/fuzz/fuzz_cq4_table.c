/* A table store of any content, as a queue's metadata and by itself. */
#include "cq4_queue.h"
#include "fuzz.h"

enum { KEYS_MAX = 65536 / 8, FILE_MAX = 8192 };

static uint64_t keys;

static int look_at(void *context, const char *key, uint64_t *value) {
    const ac_cq4_table_t *table = context;
    uint64_t where = (uint64_t)((uint8_t *)value - table->map->base);
    uint64_t *again;
    FUZZ_CHECK(strlen(key) < AC_CQ4_KEY_MAX);
    FUZZ_CHECK(where % 8 == 0 && where + 8 <= table->map->size);
    FUZZ_CHECK(++keys <= KEYS_MAX);
    if (keys < 20) FUZZ_CHECK(ac_cq4_table_find(table, key, &again) == 1 && again <= value);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_directory_t dir;
    ac_cq4_table_t table;
    ac_cq4_queue_t queue;
    ac_error_t err;
    uint64_t end;
    if (size < 1 || size > FILE_MAX) return 0;
    fuzz_clear();
    fuzz_put(AC_CQ4_METADATA, data + 1, size - 1, data[0] & 1 ? FILE_MAX : 0);
    FUZZ_CHECK(ac_directory_init(&dir, fuzz_queue, 0600, 0, &err) == AC_OK);
    int dir_fd = ac_directory_open(&dir, &err);
    FUZZ_CHECK(dir_fd >= 0);
    keys = 0;
    int rc = ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 0, &table, &err);
    close(dir_fd);
    if (rc == AC_OK) {
        FUZZ_CHECK(ac_cq4_table_each(&table, look_at, &table, &end) == 0);
        FUZZ_CHECK(end <= FILE_MAX + 4);
        ac_cq4_table_close(&table);
    } else {
        FUZZ_CHECK(rc == AC_E_CORRUPT || rc == AC_E_NOT_FOUND);
        FUZZ_CHECK(err.path[0] && err.detail[0]);
    }
    if (ac_cq4_queue_open(fuzz_queue, &queue, &err) == AC_OK) {
        char name[AC_CQ4_NAME_MAX];
        uint32_t cycle = (uint32_t)size * 131;
        ac_cq4_queue_is_locked(&queue);
        if (ac_cq4_roll_file_name(&queue.roll, cycle, name) == AC_OK) {
            int64_t again = ac_cq4_roll_cycle_of_name(&queue.roll, name);
            FUZZ_CHECK(again < 0 || again <= cycle); /* several cycles may share a name */
            FUZZ_CHECK(!strchr(name, '/'));
        }
        ac_cq4_roll_moment_ns(&queue.roll, cycle);
        ac_cq4_queue_close(&queue);
    }
    return 0;
}
