/* The engine's side of benchmarks/java.py, called by ctypes: reading and appending in C, and a callback for each
 * message, as a pure ctypes binding would do. Times are real, in nanoseconds per message. */
#include "cq4_tail.h"
#include "cq4_writer.h"
#include "os.h"

#include <string.h>

static ac_error_t err;

const char *bench_error(void) {
    return err.detail;
}

typedef void bench_call_t(uint64_t index, const uint8_t *payload, uint32_t length);

/* Reads the whole queue and one number of each payload. Negative: an error. */
double bench_tail(const char *path, uint64_t *sum) {
    ac_cq4_tail_t tail;
    ac_message_t message;
    uint64_t number, messages = 0;
    int rc = ac_cq4_tail_open(&tail, path, &err);
    if (rc < 0) return -1;
    uint64_t start_ns = ac_os_monotonic_ns();
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1) {
        memcpy(&number, message.record + AC_HEADER_SIZE, sizeof number);
        *sum += number;
        messages++;
    }
    uint64_t took_ns = ac_os_monotonic_ns() - start_ns;
    ac_cq4_tail_close(&tail);
    return rc < 0 || messages == 0 ? -1 : (double)took_ns / (double)messages;
}

double bench_each(const char *path, bench_call_t *call) {
    ac_cq4_tail_t tail;
    ac_message_t message;
    uint64_t messages = 0;
    int rc = ac_cq4_tail_open(&tail, path, &err);
    if (rc < 0) return -1;
    uint64_t start_ns = ac_os_monotonic_ns();
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1) {
        call(message.seq, message.record + AC_HEADER_SIZE, message.length);
        messages++;
    }
    uint64_t took_ns = ac_os_monotonic_ns() - start_ns;
    ac_cq4_tail_close(&tail);
    return rc < 0 || messages == 0 ? -1 : (double)took_ns / (double)messages;
}

void *bench_writer(const char *path) {
    ac_cq4_writer_t *writer;
    ac_cq4_writer_config_t config;
    ac_cq4_writer_defaults(&config);
    return ac_cq4_writer_open(path, &config, &writer, &err) < 0 ? NULL : writer;
}

double bench_append(void *writer, const uint8_t *payload, uint32_t length, uint32_t count) {
    uint64_t start_ns = ac_os_monotonic_ns();
    for (uint32_t i = 0; i < count; i++)
        if (ac_cq4_writer_append(writer, payload, length, &err) < 0) return -1;
    return (double)(ac_os_monotonic_ns() - start_ns) / count;
}

void bench_writer_close(void *writer) {
    ac_cq4_writer_close(writer);
}
