/* Processes and threads, this machine, and random numbers. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

int ac_os_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    sigset_t all, old;
    int injected_errno = fault(AC_CALL_THREAD, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    /* Signals belong to the application's threads; only faults may be delivered here. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) pthread_detach(thread);
    return -rc;
}

void ac_os_thread_usage(ac_usage_t *out) {
    struct rusage usage;
    memset(out, 0, sizeof *out);
    if (getrusage(RUSAGE_THREAD, &usage) < 0) return;
    *out = (ac_usage_t){.minor_faults = (uint64_t)usage.ru_minflt,
                        .major_faults = (uint64_t)usage.ru_majflt,
                        .waits = (uint64_t)usage.ru_nvcsw,
                        .switches = (uint64_t)usage.ru_nivcsw};
}

static int read_text(const char *path, char *buffer, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    ssize_t got = read(fd, buffer, size - 1);
    close(fd);
    if (got < 0) return -EIO;
    buffer[got] = 0;
    return (int)got;
}

uint64_t ac_os_process_start(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_text(path, text, sizeof text) <= 0) return 0;
    /* Field 22, counted after the command name, which may itself contain blanks and brackets. */
    char *field = strrchr(text, ')');
    for (int skip = 0; field && skip < 20; skip++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

/* Not by /proc, which may hide other users' processes. */
int ac_os_process_exists(int pid) {
    return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

/* Bit 8 of a signal mask is SIGKILL. A killed process has it pending from the moment of the kill until each
 * of its threads has seen it; then its first thread is a zombie while anything is left of the process. */
int ac_os_process_ends(int pid) {
    static const char *const masks[] = {"\nSigPnd:", "\nShdPnd:"};
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (read_text(path, text, sizeof text) <= 0) return 1;
    const char *state = strstr(text, "\nState:\t");
    if (state && (state[8] == 'Z' || state[8] == 'X')) return 1;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const char *mask = strstr(text, masks[i]);
        if (mask && strtoull(mask + 8, NULL, 16) & (1u << (SIGKILL - 1))) return 1;
    }
    return 0;
}

int ac_os_process_stopped(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_text(path, text, sizeof text) <= 0) return 0;
    /* The state follows the command name, which may itself contain blanks and brackets. */
    const char *field = strrchr(text, ')');
    return field && field[1] == ' ' && (field[2] == 'T' || field[2] == 't');
}

uint64_t ac_os_process_started_ns(int pid) {
    uint64_t ticks = ac_os_process_start(pid);
    long per_second = sysconf(_SC_CLK_TCK);
    if (ticks == 0 || per_second <= 0) return 0;
    return ac_os_boot_ns() + ticks * (1000000000u / (uint64_t)per_second);
}

void ac_os_process_command(int pid, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int got = read_text(path, out, size);
    out[got > 0 ? got : 0] = 0;
    /* A NUL ends each argument; other bytes that a terminal might act on are not shown. */
    for (int i = 0; i < got; i++)
        if (out[i] < ' ' || out[i] > '~') out[i] = out[i] ? '?' : ' ';
    for (int i = got; i > 0 && out[i - 1] == ' '; i--)
        out[i - 1] = 0;
}

/* FNV-1a: only to compare identities for equality. */
static uint64_t fingerprint(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

uint64_t ac_os_boot_id(void) {
    char text[64];
    return read_text("/proc/sys/kernel/random/boot_id", text, sizeof text) > 0 ? fingerprint(text)
                                                                               : 0;
}

uint64_t ac_os_clock_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/time", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

uint64_t ac_os_pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

int ac_os_random(void *buffer, size_t length) {
    return getrandom(buffer, length, 0) == (ssize_t)length ? 0 : -errno;
}
