#include "../crc32.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * Two figures per case. "apart": calls that do not wait for each other, which the CPU overlaps.
 * "chained": each call's address depends on the result before it, which shows the latency that
 * a caller sees who needs the CRC at once.
 */

enum { ROUNDS = 15, BYTES_PER_ROUND = 1 << 23, MOST_CALLS = 1 << 17 };

typedef uint32_t (*operation)(uint32_t link, size_t len);

static uint8_t source[4096 + 64];
static uint8_t target[4096 + 64];

static uint32_t run_crc(uint32_t link, size_t len) {
    return ac_crc32(source + link, len);
}

static uint32_t run_copy(uint32_t link, size_t len) {
    return ac_crc32_copy(target, source + link, len);
}

static uint32_t run_header(uint32_t link, size_t len) {
    uint64_t words[8];

    (void)len;
    memcpy(words, source + link, sizeof words);
    return ac_crc32c_header(0x12345678u, words);
}

static uint32_t run_seed(uint32_t link, size_t len) {
    (void)len;
    return ac_crc32c_seed(link, 42);
}

static double now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The mask is zero, but the compiler may not know: the next address then waits for this result. */
static double one_round_chained(operation run, size_t len, size_t calls) {
    double start = now_ns();
    uint32_t link = 0;
    uint32_t mask = 0;

    for (size_t i = 0; i < calls; i++) {
        __asm__ volatile("" : "+r"(mask) : : "memory");
        link = run(link & mask, len);
    }
    __asm__ volatile("" : : "r"(link));
    return (now_ns() - start) / (double)calls;
}

static double one_round_apart(operation run, size_t len, size_t calls) {
    double start = now_ns();

    for (size_t i = 0; i < calls; i++) {
        uint32_t result = run(0, len);
        __asm__ volatile("" : : "r"(result) : "memory");
    }
    return (now_ns() - start) / (double)calls;
}

static void measure(const char *name, operation run, size_t len) {
    size_t calls = BYTES_PER_ROUND / len < MOST_CALLS ? BYTES_PER_ROUND / len : MOST_CALLS;
    double apart = 1e9;
    double chained = 1e9;

    for (int i = 0; i < ROUNDS; i++) {
        double a = one_round_apart(run, len, calls);
        double c = one_round_chained(run, len, calls);
        apart = a < apart ? a : apart;
        chained = c < chained ? c : chained;
    }
    printf("%-9s %-9s %5zu %9.2f %9.2f\n", ac_crc32_implementation(), name, len, apart, chained);
}

static void measure_all(void) {
    static const size_t lengths[] = {8, 16, 32, 64, 100, 128, 256, 1024, 4096};
    size_t count = sizeof lengths / sizeof lengths[0];

    for (size_t i = 0; i < count; i++) {
        measure("crc32", run_crc, lengths[i]);
    }
    for (size_t i = 0; i < count; i++) {
        measure("copy", run_copy, lengths[i]);
    }
    measure("header60", run_header, 60);
    measure("seed16", run_seed, 16);
}

int main(void) {
    for (size_t i = 0; i < sizeof source; i++) {
        source[i] = (uint8_t)(i * 131 + 7);
    }
    memset(target, 1, sizeof target);
    printf("%-9s %-9s %5s %9s %9s\n", "", "", "bytes", "ns apart", "chained");
    measure_all();
    ac_crc32_allow(0);
    if (strcmp(ac_crc32_implementation(), "portable") == 0) {
        measure_all();
    }
    ac_crc32_allow(-1);
    return 0;
}
