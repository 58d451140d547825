/* A fan-in over two queues of any records, one of which changes while it is read. */
#include "fuzz.h"

enum { STRICT = 1, VERIFY = 2, SKIP = 4, CHANGE = 8, DETACH = 16 };
enum { PREFIX = 4, QUEUES = 2, CALLS_MAX = 4 * QUEUES * FUZZ_SEGMENT / AC_ALIGNMENT };

static void lay_out(const uint8_t *segments, size_t size) {
    fuzz_clear();
    for (int i = 0; i < QUEUES; i++) {
        ac_control_t control = fuzz_control(0);
        char name[64];
        snprintf(name, sizeof name, "%d", i);
        fuzz_make_directory(name);
        snprintf(name, sizeof name, "%d/control.meta", i);
        fuzz_put(name, &control, sizeof control, 0);
        size_t length = size < FUZZ_SEGMENT ? size : FUZZ_SEGMENT;
        snprintf(name, sizeof name, "%d/000000000.q", i);
        fuzz_put(name, segments, length, FUZZ_SEGMENT);
        segments += length;
        size -= length;
    }
}

static ac_reader_t *open_source(int i, int options) {
    char path[400];
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_error_t err;
    snprintf(path, sizeof path, "%s/%d", fuzz_queue, i);
    ac_reader_defaults(&config);
    config.verify = options & VERIFY;
    config.skip_corrupt = options & SKIP;
    config.start = AC_START_FIRST;
    return ac_reader_open(path, &config, &reader, &err) == AC_OK ? reader : NULL;
}

/* Changes that a hostile writer may make to a record that was already read ahead. */
static void overwrite(const uint8_t *prefix) {
    char path[400];
    snprintf(path, sizeof path, "%s/1/000000000.q", fuzz_queue);
    int fd = open(path, O_RDWR);
    uint64_t word = prefix[3] * 0x0101010101010101ull;
    FUZZ_CHECK(fd >= 0 && pwrite(fd, &word, sizeof word, prefix[2] % 64 * 64) == sizeof word);
    close(fd);
}

static void drain(ac_fanin_t *fanin, const uint8_t *prefix, uint32_t *slots) {
    ac_message_t message;
    ac_source_stats_t stats;
    ac_error_t err;
    uint32_t slot;
    uint64_t last = 0;
    int late, rc = 1, idle = 0;
    for (int calls = 0; idle < 2; calls++) {
        FUZZ_CHECK(calls <= CALLS_MAX);
        rc = ac_fanin_next(fanin, &message, &slot, &late, &err);
        FUZZ_CHECK(ac_fanin_check(fanin) == 0);
        idle = rc == 0 ? idle + 1 : 0;
        if (rc == 1) {
            FUZZ_CHECK(message.length <= FUZZ_SEGMENT);
            FUZZ_CHECK(late == (message.timestamp_ns < last) || message.timestamp_ns == last);
            if (!late) last = message.timestamp_ns;
        }
        if (calls != prefix[1] % 8) continue;
        ac_fanin_source_stats(fanin, slots[0], &stats, &err);
        if (prefix[0] & CHANGE) overwrite(prefix);
        if (prefix[0] & DETACH) ac_fanin_detach(fanin, slots[1]);
        ac_fanin_ready(fanin, &err);
        FUZZ_CHECK(ac_fanin_check(fanin) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ac_fanin_t *fanin;
    ac_error_t err;
    ac_reader_t *readers[QUEUES] = {NULL};
    uint32_t slots[QUEUES], id, attached = 0;
    if (size < PREFIX || size > PREFIX + QUEUES * FUZZ_SEGMENT) return 0;
    lay_out(data + PREFIX, size - PREFIX);
    FUZZ_CHECK(ac_fanin_new(data[0] & STRICT, 0, &fanin, &err) == AC_OK);
    for (int i = 0; i < QUEUES; i++) {
        readers[i] = open_source(i, data[0]);
        if (readers[i] && ac_fanin_attach(fanin, readers[i], &slots[i], &id, &err) == AC_OK)
            attached++;
    }
    if (attached == QUEUES) drain(fanin, data, slots);
    ac_fanin_free(fanin);
    for (int i = 0; i < QUEUES; i++)
        ac_reader_free(readers[i]);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, room);
    if (size <= PREFIX || seed % 8 == 0) return size;
    size_t first = size - PREFIX < FUZZ_SEGMENT ? size - PREFIX : FUZZ_SEGMENT;
    fuzz_mend_segment(data + PREFIX, first, seed % 8 < 4 ? 0 : seed >> 3);
    fuzz_mend_segment(data + PREFIX + first, size - PREFIX - first, 0);
    return size;
}
