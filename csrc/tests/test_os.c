#include "os.h"

#include "queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static int seen[AC_CALL_COUNT];

static int observe(void *context, int call, const char *path, int fd, uint64_t offset,
                   uint64_t length) {
    (void)path;
    (void)fd;
    (void)offset;
    (void)length;
    CHECK(call >= 0 && call < AC_CALL_COUNT);
    __atomic_fetch_add(&seen[call], 1, __ATOMIC_RELAXED);
    return context && __atomic_load_n(&seen[call], __ATOMIC_RELAXED) % 2 ? EINTR : 0;
}

TEST(every_call_has_a_name_of_its_own) {
    CHECK_EQUAL(ac_os_call_count(), AC_CALL_COUNT);
    for (int i = 0; i < AC_CALL_COUNT; i++) {
        CHECK(strcmp(ac_os_call_name(i), "unknown") != 0);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(ac_os_call_name(i), ac_os_call_name(j)) != 0);
    }
    CHECK(strcmp(ac_os_call_name(-1), "unknown") == 0);
    CHECK(strcmp(ac_os_call_name(AC_CALL_COUNT), "unknown") == 0);
    for (int code = 0; code >= AC_E_UNSUPPORTED; code--)
        CHECK(strcmp(ac_code_name(code), "unknown") != 0);
    CHECK(strcmp(ac_code_name(1), "unknown") == 0);
    CHECK(strcmp(ac_code_name(-100), "unknown") == 0);
    CHECK(ac_version()[0] && ac_checksum_implementation()[0]);
}

TEST(an_interrupted_call_is_made_again) {
    ac_writer_config_t config = small_queue(4096);
    ac_error_t err;
    memset(seen, 0, sizeof seen);
    ac_os_set_hook(observe, seen);
    ac_writer_t *writer = NULL;
    int rc = ac_writer_open(check_path("queue"), &config, &writer, &err);
    ac_os_set_hook(NULL, NULL);
    /* Memory is not a system call: there any answer means failure. */
    CHECK(rc == AC_OK || err.sys_errno == ENOMEM || err.sys_errno == EINTR);
    if (rc == AC_OK) ac_writer_free(writer);
    CHECK(seen[AC_CALL_OPEN] + seen[AC_CALL_ALLOC] > 0);
}

/* NFS, for example, does not know the flag that keeps the system call from replacing a file. */
static int move_without_the_flag(int from_dir, const char *from, int to_dir, const char *to) {
    ac_injection_t once = {.call = AC_CALL_RENAME, .answer = EINVAL, .first = 1, .times = 1};
    ac_os_set_hook(ac_os_inject, &once);
    int rc = ac_os_move_new(from_dir, from, to_dir, to);
    ac_os_set_hook(NULL, NULL);
    CHECK(once.seen == 2);
    return rc;
}

TEST(a_file_system_without_moves_that_never_replace_is_moved_in_by_links) {
    CHECK_EQUAL(mkdir(check_path("there"), 0700), 0);
    int here = ac_os_open_dir(check_directory), there = ac_os_open_dir(check_path("there"));
    poke(check_directory, "a", 0, "old", 3);
    CHECK_EQUAL(move_without_the_flag(here, "a", there, "a"), 0);
    CHECK(!exists(check_directory, "a") && exists(check_path("there"), "a"));
    poke(check_directory, "a", 0, "new", 3);
    CHECK_EQUAL(move_without_the_flag(here, "a", there, "a"), -EEXIST);
    char kept[3];
    peek(check_path("there"), "a", 0, kept, 3);
    CHECK(memcmp(kept, "old", 3) == 0 && exists(check_directory, "a"));
    CHECK_EQUAL(move_without_the_flag(here, "missing", there, "b"), -ENOENT);
    /* The state of a move that was killed between its two steps. */
    CHECK_EQUAL(linkat(here, "a", there, "b", 0), 0);
    CHECK_EQUAL(move_without_the_flag(here, "a", there, "b"), 0);
    CHECK(!exists(check_directory, "a") && exists(check_path("there"), "b"));
    ac_os_close(here);
    ac_os_close(there);
}

TEST(a_life_of_a_queue_goes_through_the_hook) {
    ac_writer_config_t config = small_queue(4096);
    ac_error_t err;
    memset(seen, 0, sizeof seen);
    ac_os_set_hook(observe, NULL);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 60);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(read_numbered(reader, 0), 60);
    CHECK_OK(ac_reader_wait(reader, 1000, 0, &err), err);
    ac_reader_free(reader);
    close_writer(writer);
    ac_os_set_hook(NULL, NULL);
    static const int expected[] = {
        AC_CALL_OPEN,     AC_CALL_STAT, AC_CALL_MKDIR, AC_CALL_RENAME,   AC_CALL_ALLOCATE,
        AC_CALL_WRITE,    AC_CALL_SYNC, AC_CALL_MAP,   AC_CALL_SYNC_DIR, AC_CALL_SYNC_MAP,
        AC_CALL_POPULATE, AC_CALL_LOCK, AC_CALL_LIST,  AC_CALL_CHMOD,    AC_CALL_TRUNCATE,
        AC_CALL_UNLINK,   AC_CALL_ALLOC};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!seen[expected[i]]) {
            fprintf(stderr, "%s was not seen\n", ac_os_call_name(expected[i]));
            CHECK(seen[expected[i]]);
        }
}

TEST(reading_and_writing_are_whole) {
    char text[10] = {0};
    int fd = open(check_path("file"), O_RDWR | O_CREAT, 0600);
    CHECK_EQUAL(ac_os_write_at(fd, "0123456789", 10, 5), 0);
    CHECK_EQUAL(ac_os_read_at(fd, text, 10, 5), 10);
    CHECK(memcmp(text, "0123456789", 10) == 0);
    CHECK_EQUAL(ac_os_read_at(fd, text, 10, 10), 5);
    CHECK_EQUAL(ac_os_read_at(fd, text, 10, 100), 0);
    CHECK_EQUAL(ac_os_read_at(-1, text, 10, 0), -EBADF);
    CHECK_EQUAL(ac_os_write_at(-1, text, 10, 0), -EBADF);
    CHECK_EQUAL(ac_os_truncate(fd, 3), 0);
    CHECK_EQUAL(ac_os_copy(fd, fd, 0, 10), -EIO); /* shorter than it should be */
    close(fd);
}

/* On a file system without FALLOC_FL_ZERO_RANGE, the zeros are written. */
TEST(a_range_is_zeroed_with_or_without_the_file_systems_help) {
    for (int error = 0; error < 2; error++) {
        failing_t failing = {.call = AC_CALL_ZERO, .error = EOPNOTSUPP};
        static uint8_t bytes[200000];
        memset(bytes, 0x55, sizeof bytes);
        int fd = open(check_path("file"), O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK_EQUAL(ac_os_write_at(fd, bytes, sizeof bytes, 0), 0);
        if (error) ac_os_set_hook(fail_hook, &failing);
        CHECK_EQUAL(ac_os_zero_range(fd, 1000, 150000), 0);
        ac_os_set_hook(NULL, NULL);
        CHECK_EQUAL(failing.failed, error);
        CHECK_EQUAL(ac_os_read_at(fd, bytes, sizeof bytes, 0), sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i++)
            CHECK_EQUAL(bytes[i], i < 1000 || i >= 151000 ? 0x55 : 0);
        close(fd);
    }
}

TEST(an_old_kernel_without_populate_is_no_error) {
    failing_t failing = {.call = AC_CALL_POPULATE, .error = EINVAL};
    ac_os_set_hook(fail_hook, &failing);
    CHECK_EQUAL(ac_os_populate(NULL, 0, 4096, 1), 0);
    failing.error = EFAULT;
    CHECK_EQUAL(ac_os_populate(NULL, 0, 4096, 1), -EFAULT);
    ac_os_set_hook(NULL, NULL);
}

static int stop_at(void *context, const char *name) {
    ++*(int *)context;
    return strcmp(name, "b") == 0 ? 7 : 0;
}

TEST(a_listing_can_be_stopped_and_shows_no_dots) {
    int visits = 0, fd = open(check_directory, O_RDONLY | O_DIRECTORY);
    CHECK_EQUAL(ac_os_list(fd, stop_at, &visits), 0);
    CHECK_EQUAL(visits, 0);
    poke(check_directory, "b", 0, "x", 1);
    poke(check_directory, "..c", 0, "x", 1);
    visits = 0;
    CHECK_EQUAL(ac_os_list(fd, stop_at, &visits), 7);
    CHECK(visits == 1 || visits == 2);
    CHECK_EQUAL(ac_os_list(-1, stop_at, &visits), -EBADF);
    close(fd);
}

static uint32_t word;

static void *wake_later(void *unused) {
    ac_os_sleep_ns(10000000);
    ac_store_release_u32(&word, 1);
    ac_os_futex_wake(&word, 1);
    return unused;
}

TEST(a_futex_sleeps_until_woken_or_until_the_time_is_over) {
    pthread_t thread;
    CHECK_EQUAL(ac_os_futex_wait(&word, 5, 1000000), -EAGAIN);
    CHECK_EQUAL(ac_os_futex_wait(&word, 0, 1000000), -ETIMEDOUT);
    pthread_create(&thread, NULL, wake_later, NULL);
    while (ac_load_acquire_u32(&word) == 0)
        ac_os_futex_wait(&word, 0, UINT64_MAX);
    pthread_join(thread, NULL);
}

TEST(an_eventfd_is_drained_by_its_waiter) {
    int fd = ac_os_eventfd();
    CHECK(fd >= 0);
    CHECK_EQUAL(ac_os_eventfd_wait(fd, 1000000), 0);
    CHECK_EQUAL(ac_os_eventfd_signal(fd), 0);
    CHECK_EQUAL(ac_os_eventfd_signal(fd), 0);
    CHECK_EQUAL(ac_os_eventfd_wait(fd, UINT64_MAX), 1);
    CHECK_EQUAL(ac_os_eventfd_wait(fd, 0), 0);
    uint64_t full = UINT64_MAX - 1;
    CHECK_EQUAL(write(fd, &full, 8), 8);
    CHECK_EQUAL(ac_os_eventfd_signal(fd), 0); /* signalled already */
    CHECK(ac_os_eventfd_signal(-1) < 0);
    close(fd);
}

TEST(draining_never_waits_even_if_others_made_the_eventfd_blocking) {
    int fd = ac_os_eventfd();
    CHECK(fd >= 0);
    CHECK_EQUAL(fcntl(fd, F_SETFL, 0), 0);
    alarm(5); /* this would end the wait */
    CHECK_EQUAL(ac_os_eventfd_wait(fd, 0), 0);
    alarm(0);
    CHECK_EQUAL(ac_os_eventfd_signal(fd), 0);
    CHECK_EQUAL(ac_os_eventfd_wait(fd, 0), 1);
    close(fd);
}

TEST(processes_are_told_apart_by_their_start) {
    CHECK(ac_os_process_start((int)getpid()) > 0);
    CHECK_EQUAL(ac_os_process_start(0x7ffffff0), 0);
    CHECK(ac_os_boot_id() != 0 && ac_os_boot_id() == ac_os_boot_id());
    CHECK(ac_os_pid_namespace() != 0);
}
