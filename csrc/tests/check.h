/* The frame of the C tests: each program is a list of TESTs, whose names are sentences; every one gets a
 * fresh directory under TMPDIR. The first CHECK that fails ends the program with what it compared.
 *
 * `program NAME…` runs the named tests only. */
#ifndef AC_TESTS_CHECK_H
#define AC_TESTS_CHECK_H

#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_TESTS_MAX = 128 };

static struct {
    const char *name;
    void (*run)(void);
    int in_memory;
} check_tests[CHECK_TESTS_MAX];
static int check_count;
static char check_directory[512];
static pid_t check_owner;

__attribute__((unused)) static void check_register(const char *name, void (*run)(void),
                                                   int in_memory) {
    if (check_count == CHECK_TESTS_MAX) abort();
    check_tests[check_count].name = name;
    check_tests[check_count].in_memory = in_memory;
    check_tests[check_count++].run = run;
}

#define TEST_WHERE(name, in_memory)                                                                \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void register_##name(void) {                               \
        check_register(#name, name, in_memory);                                                    \
    }                                                                                              \
    static void name(void)
#define TEST(name) TEST_WHERE(name, 0)
/* For tests with a thousand small queues, which would spend all their time waiting for the disk. */
#define TEST_IN_MEMORY(name) TEST_WHERE(name, access("/dev/shm", W_OK) == 0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(left, right)                                                                   \
    do {                                                                                           \
        long long left_value = (long long)(left), right_value = (long long)(right);                \
        if (left_value != right_value) {                                                           \
            fprintf(stderr, "%s:%d: %s: %s is %lld, %s is %lld\n", __FILE__, __LINE__, __func__,   \
                    #left, left_value, #right, right_value);                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Checks that a call of the engine that fills `error` succeeds, or fails with a given code. */
#define CHECK_OK(call, error)                                                                      \
    do {                                                                                           \
        long long ok_value = (long long)(call);                                                    \
        if (ok_value < 0) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s gives %lld: %s: %s\n", __FILE__, __LINE__, __func__,    \
                    #call, ok_value, (error).path, (error).detail);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_FAILS(call, error, wanted)                                                           \
    do {                                                                                           \
        CHECK_EQUAL(call, wanted);                                                                 \
        CHECK_EQUAL((error).code, wanted);                                                         \
        CHECK((error).detail[0] != 0);                                                             \
    } while (0)

static int check_remove(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static void check_clean(void) {
    if (getpid() == check_owner && check_directory[0])
        nftw(check_directory, check_remove, 16, FTW_DEPTH | FTW_PHYS);
    check_directory[0] = 0;
}

/* A path inside the test's own directory; valid until the fourth call from now. */
__attribute__((unused)) static const char *check_path(const char *name) {
    static char paths[4][1024];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", check_directory, name);
    return path;
}

/* Returns the seed from AIOCHRONICLE_SEED, or a new one, and prints it, so that a failure can be
 * repeated. */
__attribute__((unused)) static uint64_t check_seed(void) {
    const char *given = getenv("AIOCHRONICLE_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    printf("AIOCHRONICLE_SEED=%" PRIu64 "\n", seed);
    return seed;
}

/* xorshift64*; the state must not be 0. */
__attribute__((unused)) static uint64_t check_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ull;
}

static int check_wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return 1;
    return argc <= 1;
}

int main(int argc, char **argv) {
    const char *root = getenv("TMPDIR");
    check_owner = getpid();
    atexit(check_clean);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < check_count; i++) {
        if (!check_wanted(check_tests[i].name, argc, argv)) continue;
        snprintf(check_directory, sizeof check_directory, "%s/aiochronicle-XXXXXX",
                 check_tests[i].in_memory ? "/dev/shm"
                 : root && *root          ? root
                                          : "/tmp");
        if (!mkdtemp(check_directory)) {
            perror(check_directory);
            return 1;
        }
        printf("%s\n", check_tests[i].name);
        check_tests[i].run();
        check_clean();
    }
    return 0;
}

#endif
