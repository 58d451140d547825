/* Clocks, and pauses. */
#include "os.h"

#include "aiochronicle.h"
#include "os_call.h"

#include <sched.h>

void ac_os_sleep_ns(uint64_t ns) {
    struct timespec pause = timespec_of(ns);
    nanosleep(&pause, NULL);
}

void ac_os_yield(void) {
    sched_yield();
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ac_os_coarse_ns(void) {
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

uint64_t ac_os_now_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

uint64_t ac_clock_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

uint64_t ac_os_monotonic_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t ac_os_thread_cpu_ns(void) {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t ac_os_boot_ns(void) {
    uint64_t now_ns = clock_ns(CLOCK_REALTIME), since_boot_ns = clock_ns(CLOCK_BOOTTIME);
    return now_ns > since_boot_ns ? now_ns - since_boot_ns : 0;
}
