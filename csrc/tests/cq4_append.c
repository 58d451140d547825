/* Appends to a Java Chronicle Queue, for tests that have Java look at it. Driven by tests/interop.
 *
 *   cq4_append QUEUE [OPTION…] script       reads commands from standard input, answers each with a line:
 *       bytes HEX            an index, in decimal; or "error CODE TEXT"
 *       fill LENGTH SEED     the same for byte i = (SEED * 31 + i) mod 251
 *       many COUNT PREFIX    appends PREFIX:0, PREFIX:1 …; the last index
 *       time MS              sets the clock
 *       flush
 *   cq4_append QUEUE [OPTION…] many COUNT PREFIX     appends so many, at full speed; prints the last index
 *   cq4_append QUEUE [OPTION…] for SECONDS PREFIX    appends for so long; prints how many
 *   cq4_append QUEUE [OPTION…] bench COUNT LENGTH ROUNDS   prints nanoseconds per message
 *
 * Options: roll=NAME epoch=MS time=MS (a clock that stands) shift=MS timeout=MS rate=HZ sync=1 */
#include "../cq4_writer.h"
#include "os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ac_cq4_writer_t *writer;
static ac_cq4_writer_config_t config;
static ac_error_t err;
static int64_t fixed_ms = INT64_MIN, shift_ms, rate_hz;
static uint8_t payload[(16 << 20) + 16];

static uint64_t clock_ns(void *context) {
    (void)context;
    if (fixed_ms != INT64_MIN) return (uint64_t)fixed_ms * 1000000;
    return ac_os_now_ns() + (uint64_t)(shift_ms * 1000000);
}

static void fail(void) {
    fprintf(stderr, "%d %s at %" PRIu64 ": %s (%d %s)\n", err.code, err.path, err.offset,
            err.detail, err.holder_pid, err.holder_command);
    exit(1);
}

/* The way of a caller: first what is fast. */
static int64_t append(size_t length) {
    int64_t index = ac_cq4_writer_try_append(writer, payload, length);
    return index >= 0 ? index : ac_cq4_writer_append(writer, payload, length, &err);
}

static int64_t append_numbered(const char *prefix, uint64_t number) {
    return append((size_t)snprintf((char *)payload, 256, "%s:%" PRIu64, prefix, number));
}

static void answer(int64_t index) {
    if (index >= 0)
        printf("%" PRId64 "\n", index);
    else
        printf("error %s %s\n", ac_code_name((int)index), err.detail);
    fflush(stdout);
}

static size_t read_hex(const char *text) {
    size_t length = 0;
    unsigned byte;
    while (sscanf(text + 2 * length, "%2x", &byte) == 1)
        payload[length++] = (uint8_t)byte;
    return length;
}

static size_t fill(size_t length, uint64_t seed) {
    for (size_t i = 0; i < length && i < sizeof payload; i++)
        payload[i] = (uint8_t)((seed * 31 % 251 + i) % 251);
    return length;
}

static int64_t append_many(uint64_t count, const char *prefix) {
    int64_t index = 0;
    for (uint64_t i = 0; i < count && index >= 0; i++)
        index = append_numbered(prefix, i);
    return index;
}

static void run_script(void) {
    static char line[1 << 16];
    char text[1 << 16];
    uint64_t a, b;
    while (fgets(line, sizeof line, stdin)) {
        text[0] = 0;
        if (strncmp(line, "bytes", 5) == 0)
            answer(append(read_hex(line[5] == ' ' ? line + 6 : "")));
        else if (sscanf(line, "fill %" SCNu64 " %" SCNu64, &a, &b) == 2)
            answer(append(fill(a, b)));
        else if (sscanf(line, "many %" SCNu64 " %s", &a, text) == 2)
            answer(append_many(a, text));
        else if (sscanf(line, "time %" SCNd64, &fixed_ms) == 1)
            answer(0);
        else if (strncmp(line, "flush", 5) == 0)
            answer(ac_cq4_writer_flush(writer, &err));
        else
            exit(2);
    }
}

static void run_for(double seconds, const char *prefix) {
    uint64_t start_ns = ac_os_monotonic_ns(), count = 0;
    while ((double)(ac_os_monotonic_ns() - start_ns) < seconds * 1e9) {
        for (int i = 0; i < 16 && !rate_hz; i++)
            if (append_numbered(prefix, count++) < 0) fail();
        if (!rate_hz) continue;
        if (append_numbered(prefix, count++) < 0) fail();
        uint64_t due_ns = start_ns + count * 1000000000u / (uint64_t)rate_hz;
        uint64_t now_ns = ac_os_monotonic_ns();
        if (due_ns > now_ns) ac_os_sleep_ns(due_ns - now_ns);
    }
    printf("%" PRIu64 "\n", count);
}

static void bench(uint64_t count, size_t length, int rounds) {
    fill(length, 1);
    for (int round = 0; round < rounds; round++) {
        uint64_t start_ns = ac_os_monotonic_ns();
        for (uint64_t i = 0; i < count; i++)
            if (append(length) < 0) fail();
        printf("%.1f ns per message\n", (double)(ac_os_monotonic_ns() - start_ns) / (double)count);
    }
}

static int take_option(const char *argument) {
    static char roll[64];
    if (sscanf(argument, "roll=%63s", roll) == 1) {
        config.roll_cycle = roll;
        return 1;
    }
    if (sscanf(argument, "epoch=%" SCNd64, &config.epoch_ms) == 1) return config.epoch_given = 1;
    if (sscanf(argument, "timeout=%" SCNu64, &config.lock_timeout_ns) == 1) {
        config.lock_timeout_ns *= 1000000;
        return 1;
    }
    return sscanf(argument, "time=%" SCNd64, &fixed_ms) == 1 ||
           sscanf(argument, "shift=%" SCNd64, &shift_ms) == 1 ||
           sscanf(argument, "rate=%" SCNd64, &rate_hz) == 1 ||
           sscanf(argument, "sync=%d", &config.sync) == 1;
}

int main(int argc, char **argv) {
    int at = 2;
    if (argc < 3) return 2;
    ac_cq4_writer_defaults(&config);
    config.clock_ns = clock_ns;
    while (at < argc && take_option(argv[at]))
        at++;
    if (fixed_ms == INT64_MIN && shift_ms == 0) config.clock_ns = NULL;
    int left = argc - at;
    const char *command = left > 0 ? argv[at] : "";
    if (ac_cq4_writer_open(argv[1], &config, &writer, &err) < 0) fail();
    if (strcmp(command, "script") == 0) {
        printf("0\n");
        fflush(stdout);
        run_script();
    } else if (strcmp(command, "many") == 0 && left == 3) {
        answer(append_many(strtoull(argv[at + 1], NULL, 10), argv[at + 2]));
    } else if (strcmp(command, "for") == 0 && left == 3) {
        run_for(atof(argv[at + 1]), argv[at + 2]);
    } else if (strcmp(command, "bench") == 0 && left == 4) {
        bench(strtoull(argv[at + 1], NULL, 10), strtoull(argv[at + 2], NULL, 10),
              atoi(argv[at + 3]));
    } else {
        return 2;
    }
    ac_cq4_writer_free(writer);
    return 0;
}
