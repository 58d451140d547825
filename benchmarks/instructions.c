/* The C part of instructions.py: marks where callgrind begins and ends counting, and loops over the engine's public
 * calls. It is preloaded, for its clock; it uses the engine of the extension module, which it finds once that is
 * loaded. */
#include "aiochronicle.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else /* compiles everywhere; without valgrind it counts nothing */
#define CALLGRIND_START_INSTRUMENTATION (void)0
#define CALLGRIND_TOGGLE_COLLECT (void)0
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

#define EXPORT __attribute__((visibility("default")))

EXPORT void begin_count(void);
EXPORT void end_count(const char *name);
EXPORT int count_in_c(const char *directory, int count);

enum { PAYLOAD = 100, BATCH = 64, COUNT_MAX = 4096 };

static const uint8_t payload[PAYLOAD] = {1, 2, 3};

/* Time stands still for the counted thread from the first count on: the cost of reading a clock depends on the
 * machine, and the clock decides the turns of an event loop, of which a slow callgrind would cause more. */
static __thread int is_frozen;
static __thread struct timespec frozen[CLOCK_MONOTONIC + 1];

EXPORT int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!is_frozen || clock < 0 || clock > CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, out);
    *out = frozen[clock];
    return 0;
}

static void freeze(void) {
    for (clockid_t clock = 0; clock <= CLOCK_MONOTONIC && !is_frozen; clock++)
        syscall(SYS_clock_gettime, clock, &frozen[clock]);
    is_frozen = 1;
}

/* Counts this thread only: the timing of the housekeeper's work is random. */
void begin_count(void) {
    freeze();
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_TOGGLE_COLLECT;
}

void end_count(const char *name) {
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(name);
}

static int append_each(ac_writer_t *writer, int count) {
    ac_error_t err;
    for (int i = 0; i < count; i++)
        if (ac_writer_append(writer, payload, PAYLOAD, 0, AC_NOW, &err) < 0) return -1;
    return 0;
}

static int append_batches(ac_writer_t *writer, int count) {
    ac_error_t err;
    ac_slice_t items[BATCH];
    for (int i = 0; i < BATCH; i++)
        items[i] = (ac_slice_t){payload, PAYLOAD};
    for (int i = 0; i < count; i += BATCH)
        if (ac_writer_append_many(writer, items, BATCH, 0, NULL, &err) < 0) return -1;
    return 0;
}

static int read_each(ac_reader_t *reader, int count) {
    ac_error_t err;
    ac_message_t message;
    for (int i = 0; i < count; i++)
        if (ac_reader_next(reader, &message, &err) != 1) return -1;
    return 0;
}

static int fill_columns(ac_reader_t *reader, int count) {
    static int64_t seq[COUNT_MAX], timestamp_ns[COUNT_MAX], timestamp_us[COUNT_MAX];
    static int32_t type_id[COUNT_MAX], offsets[COUNT_MAX + 1];
    static uint8_t bytes[COUNT_MAX * PAYLOAD + AC_COLUMNS_SLACK];
    ac_error_t err;
    ac_columns_t columns = {.seq = seq,
                            .timestamp_ns = timestamp_ns,
                            .timestamp_us = timestamp_us,
                            .type_id = type_id,
                            .payload_offsets = offsets,
                            .payload = bytes,
                            .rows_max = (uint64_t)count,
                            .payload_bytes_max = (uint64_t)count * PAYLOAD};
    return ac_reader_fill(reader, &columns, &err) >= 0 && columns.rows == (uint64_t)count ? 0 : -1;
}

/* The first call of each populates pages. */
static int count_with(ac_writer_t *writer, ac_reader_t *reader, int count) {
    if (append_each(writer, 1) < 0 || read_each(reader, 1) < 0) return -1;
    begin_count();
    int rc = append_each(writer, count);
    end_count("c.append");
    begin_count();
    if (rc == 0) rc = read_each(reader, count);
    end_count("c.poll");
    begin_count();
    if (rc == 0) rc = append_batches(writer, count);
    end_count("c.append_many");
    begin_count();
    if (rc == 0) rc = fill_columns(reader, count);
    end_count("columns");
    return rc;
}

int count_in_c(const char *directory, int count) {
    ac_error_t err;
    ac_writer_config_t config;
    ac_reader_config_t reading;
    ac_writer_t *writer;
    ac_reader_t *reader;
    if (count > COUNT_MAX) return AC_E_ARGUMENT;
    ac_writer_defaults(&config);
    ac_reader_defaults(&reading);
    reading.start = AC_START_FIRST;
    int rc = ac_writer_open(directory, &config, &writer, &err);
    if (rc != AC_OK) return rc;
    rc = ac_reader_open(directory, &reading, &reader, &err);
    if (rc == AC_OK) {
        rc = count_with(writer, reader, count);
        ac_reader_free(reader);
    }
    int closed = ac_writer_close(writer, &err);
    ac_writer_free(writer);
    return rc != AC_OK ? rc : closed;
}
