#include "lock.h"

#include "queue.h"

#include <signal.h>
#include <sys/wait.h>

static ac_directory_t dir;
static ac_error_t err;
static ac_control_t control;

static int open_directory(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    CHECK_OK(ac_control_create(&dir, fd, 4096, &err), err);
    memset(&control, 0, sizeof control);
    return fd;
}

/* A child that holds the lock until it is killed. */
static pid_t hold(int fd) {
    int pipe_fds[2];
    char byte;
    CHECK_EQUAL(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        ac_ownership_t lock = {0};
        int rc = ac_writer_lock(&lock, &dir, fd, &control, &err);
        if (write(pipe_fds[1], rc == AC_OK ? "+" : "-", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    CHECK_EQUAL(read(pipe_fds[0], &byte, 1), 1);
    CHECK_EQUAL(byte, '+');
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return child;
}

static void kill_child(pid_t child) {
    int status;
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
}

TEST(the_lock_says_who_holds_it) {
    int fd = open_directory();
    ac_ownership_t lock = {0};
    char text[64] = {0}, expected[64];
    control.writer_epoch = 41;
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    int length = snprintf(expected, sizeof expected, "%d %" PRIu64 " 42\n", (int)getpid(),
                          ac_os_process_start((int)getpid()));
    peek(dir.path, "writer.lock", 0, text, (size_t)length);
    CHECK(strcmp(text, expected) == 0);
    CHECK(control.writer_boot == ac_os_boot_id() && control.writer_boot != 0);
    CHECK(control.writer_namespace == ac_os_pid_namespace() && control.writer_namespace != 0);
    ac_writer_unlock(&lock);
    ac_writer_unlock(&lock);
    ac_os_close(fd);
}

TEST(a_live_holder_is_named_and_a_dead_one_is_taken_over) {
    int fd = open_directory();
    ac_ownership_t lock = {0};
    char expected[64];
    pid_t child = hold(fd);
    CHECK_FAILS(ac_writer_lock(&lock, &dir, fd, &control, &err), err, AC_E_LOCKED);
    snprintf(expected, sizeof expected, "held by pid %d ", (int)child);
    CHECK(strstr(err.detail, expected));
    CHECK(strstr(err.path, "writer.lock"));
    control.writer_namespace = 12345;
    CHECK_FAILS(ac_writer_lock(&lock, &dir, fd, &control, &err), err, AC_E_LOCKED);
    CHECK(strstr(err.detail, "another container"));
    kill_child(child);
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    ac_writer_unlock(&lock);
    ac_os_close(fd);
}

/* Another process gets the pid of a dead one: the text alone must not keep the lock. */
TEST(a_pid_in_the_file_is_not_the_lock) {
    int fd = open_directory();
    ac_ownership_t lock = {0};
    char text[64];
    snprintf(text, sizeof text, "%d 1 7\n", (int)getppid());
    poke(dir.path, "writer.lock", 0, text, strlen(text));
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    ac_writer_unlock(&lock);
    poke(dir.path, "writer.lock", 0, "\xff\xff nonsense", 11);
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    ac_writer_unlock(&lock);
    ac_os_close(fd);
}

TEST(a_held_lock_with_unreadable_text_is_still_held) {
    int fd = open_directory();
    ac_ownership_t lock = {0};
    pid_t child = hold(fd);
    CHECK_EQUAL(truncate(check_path("queue/writer.lock"), 0), 0);
    CHECK_FAILS(ac_writer_lock(&lock, &dir, fd, &control, &err), err, AC_E_LOCKED);
    poke(dir.path, "writer.lock", 0, "999999999 1 1\n", 14);
    CHECK_FAILS(ac_writer_lock(&lock, &dir, fd, &control, &err), err, AC_E_LOCKED);
    CHECK(strstr(err.detail, "opening the queue"));
    CHECK_EQUAL(err.holder_pid, child);
    kill_child(child);
    ac_os_close(fd);
}

TEST(a_forked_child_does_not_keep_the_lock) {
    int fd = open_directory();
    ac_ownership_t lock = {0}, second = {0};
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    ac_writer_unlock(&lock);
    CHECK_OK(ac_writer_lock(&second, &dir, fd, &control, &err), err);
    ac_writer_unlock(&second);
    kill_child(child);
    ac_os_close(fd);
}

TEST(a_lock_that_fails_half_way_is_given_back) {
    static const int calls[] = {AC_CALL_OPEN, AC_CALL_LOCK,     AC_CALL_MAP,
                                AC_CALL_STAT, AC_CALL_TRUNCATE, AC_CALL_WRITE};
    int fd = open_directory();
    ac_ownership_t lock = {0};
    CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
    ac_writer_unlock(&lock);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int skip = 0;; skip++) {
            failing_t failing = {.call = calls[i], .error = EIO, .skip = skip};
            ac_os_set_hook(fail_hook, &failing);
            int rc = ac_writer_lock(&lock, &dir, fd, &control, &err);
            ac_os_set_hook(NULL, NULL);
            if (failing.failed) CHECK_EQUAL(rc, AC_E_SYSTEM);
            if (!failing.failed) {
                CHECK_OK(rc, err);
                ac_writer_unlock(&lock);
                break;
            }
            CHECK_OK(ac_writer_lock(&lock, &dir, fd, &control, &err), err);
            ac_writer_unlock(&lock);
        }
    ac_os_close(fd);
}
