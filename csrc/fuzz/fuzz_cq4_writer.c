/* A queue whose table store and newest data file have any content, opened for appending: each append gets a higher
 * index or an error that says where; the next writer and a tail can handle what is left.
 *
 * Input: options; the length of the table store, 2 bytes; the table store; the data file. */
#include "cq4_tail.h"
#include "cq4_writer.h"
#include "fuzz.h"
#include "tests/cq4_files.h"

enum { PREFIX = 3, FILE_MAX = 8192, MESSAGES_MAX = 2 * FILE_MAX, CYCLE = 5 };
enum { OWN_TABLE = 1, WHOLE_PAGES = 2, SECONDS = 4, LARGE = 8, ROLLS = 16 };

static uint64_t clock_now_ns;

static uint64_t clock_ns(void *context) {
    (void)context;
    return clock_now_ns;
}

/* Returns 1 if the message was appended. */
static int append(ac_cq4_writer_t *writer, size_t length, int64_t *last) {
    static uint8_t payload[64 << 10];
    ac_error_t err = {0};
    memset(payload, 'p', sizeof payload);
    int64_t index = ac_cq4_writer_append(writer, payload, length, &err);
    if (index < 0) {
        FUZZ_CHECK(err.path[0] && err.detail[0]);
        return 0;
    }
    FUZZ_CHECK(index > *last);
    *last = index;
    return 1;
}

static void write_some(uint8_t options, uint64_t length_ms) {
    static const ac_slice_t several[] = {{"a", 1}, {"", 0}, {"ccc", 3}};
    ac_cq4_writer_config_t config;
    ac_cq4_writer_t *writer;
    ac_cq4_run_t run;
    ac_error_t err = {0};
    int64_t last = -1;
    ac_cq4_writer_defaults(&config);
    config.clock_ns = clock_ns;
    config.lock_timeout_ns = 1000000;
    int rc = ac_cq4_writer_open(fuzz_queue, &config, &writer, &err);
    FUZZ_CHECK(rc == AC_OK || (err.path[0] && err.detail[0]));
    if (rc != AC_OK) return;
    append(writer, 3, &last);
    append(writer, options & LARGE ? 64 << 10 : 0, &last);
    int64_t first = ac_cq4_writer_append_run(writer, several, 3, &run, &err);
    FUZZ_CHECK(first < 0 || (first > last && run.messages >= 1 && run.messages <= 3));
    if (first >= 0) last = (int64_t)run.last_index;
    if (options & ROLLS) {
        clock_now_ns += length_ms * 1000000;
        append(writer, 20, &last);
    }
    ac_cq4_writer_free(writer);
}

static void read_all(void) {
    ac_cq4_tail_t tail;
    ac_message_t message;
    ac_error_t err;
    uint64_t count = 0, last = 0;
    int rc;
    if (ac_cq4_tail_open(&tail, fuzz_queue, &err) != AC_OK) return;
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1) {
        const ac_map_t *map = ac_cq4_tail_map(&tail);
        uint64_t from = (uint64_t)(message.record + AC_HEADER_SIZE - map->base);
        FUZZ_CHECK(message.length <= map->size - from);
        FUZZ_CHECK(count == 0 || message.seq > last);
        FUZZ_CHECK(++count <= MESSAGES_MAX);
        last = message.seq;
    }
    ac_cq4_tail_close(&tail);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char name[AC_CQ4_NAME_MAX];
    if (size < PREFIX || size > PREFIX + 2 * FILE_MAX) return 0;
    ac_cq4_roll_t roll = cq4_known_roll(data[0] & SECONDS ? "TEST4_SECONDLY" : "TEST2_DAILY");
    size_t table_bytes = data[1] | (size_t)data[2] << 8;
    if (table_bytes > size - PREFIX) table_bytes = size - PREFIX;
    fuzz_clear();
    size_t whole = data[0] & WHOLE_PAGES ? FILE_MAX : 0;
    if (data[0] & OWN_TABLE) {
        fuzz_put(AC_CQ4_METADATA, data + PREFIX, table_bytes, AC_CQ4_TABLE_BYTES);
    } else {
        cq4_table_t table = cq4_create_table(fuzz_queue, &roll);
        cq4_close_file(&table.out);
    }
    FUZZ_CHECK(ac_cq4_roll_file_name(&roll, CYCLE, name) == AC_OK);
    if (size > PREFIX + table_bytes)
        fuzz_put(name, data + PREFIX + table_bytes, size - PREFIX - table_bytes, whole);
    clock_now_ns = ac_cq4_roll_moment_ns(&roll, CYCLE) + 1000000;
    write_some(data[0], roll.length_ms);
    read_all();
    write_some(data[0] ^ ROLLS, roll.length_ms);
    read_all();
    return 0;
}
