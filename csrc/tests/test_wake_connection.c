/* Connections between a running writer and readers that come and go. */
#include "forks.h"
#include "queue.h"
#include "reader.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { SEGMENT = 4096, LIVES = 300 };

static ac_error_t err;

static int becomes_attended(ac_reader_t *reader) {
    uint64_t deadline = ac_os_monotonic_ns() + 5000000000u;
    while (!ac_reader_attended(reader)) {
        if (ac_os_monotonic_ns() > deadline) return 0;
        ac_os_sleep_ns(20000);
    }
    return 1;
}

static pid_t start_writer(void) {
    int ready[2];
    char byte;
    CHECK_EQUAL(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ac_writer_config_t config = small_queue(SEGMENT);
        config.inline_housekeeping = 0;
        open_writer(check_path("queue"), &config);
        CHECK_EQUAL(write(ready[1], "", 1), 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK_EQUAL(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

/* Otherwise a writer that dies before it connects leaves a reader asleep although it had published a
 * message. */
TEST(a_reader_polls_until_the_live_writer_has_connected) {
    int status;
    pid_t child = start_writer();
    CHECK_EQUAL(kill(child, SIGSTOP), 0);
    CHECK_EQUAL(waitpid(child, &status, WUNTRACED), child);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL);
    CHECK_EQUAL(kill(child, SIGCONT), 0);
    CHECK(becomes_attended(reader));
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    while (ac_reader_attended(reader))
        ac_os_eventfd_wait(reader->eventfd->fd, UINT64_MAX);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    ac_reader_free(reader);
}

/* The writer then gets one event for each life of the reader, and all of them lead to the last one. */
TEST(a_reader_that_comes_back_at_once_is_connected) {
    int status;
    pid_t child = start_writer();
    for (int i = 0; i < 50; i++) {
        CHECK_EQUAL(kill(child, SIGSTOP), 0);
        CHECK_EQUAL(waitpid(child, &status, WUNTRACED), child);
        for (int life = 0; life < 4; life++) {
            ac_reader_t *short_lived = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
            CHECK_OK(ac_reader_eventfd(short_lived, &err), err);
            ac_reader_free(short_lived);
        }
        ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
        CHECK_OK(ac_reader_eventfd(reader, &err), err);
        CHECK_EQUAL(kill(child, SIGCONT), 0);
        CHECK(becomes_attended(reader));
        ac_os_sleep_ns(2000000); /* until all connections are served */
        CHECK(becomes_attended(reader));
        ac_reader_free(reader);
    }
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
}

static uint32_t finished;

/* Keeps the wake thread reading events of wake/, so that it handles the event of a new reader before the
 * end of the connection to the old one. */
static void *stir(void *path) {
    char name[1400];
    snprintf(name, sizeof name, "%s/wake/not-a-reader", (const char *)path);
    while (!ac_load_relaxed_u32(&finished)) {
        close(open(name, O_RDWR | O_CREAT, 0600));
        unlink(name);
    }
    return NULL;
}

TEST(a_reader_that_comes_back_under_its_name_is_found_again) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    pthread_t thread;
    char path[1024];
    snprintf(path, sizeof path, "%s", check_path("queue"));
    CHECK_EQUAL(pthread_create(&thread, NULL, stir, path), 0);
    for (int i = 0; i < LIVES; i++) {
        ac_reader_t *reader = open_reader(path, "r", AC_START_COMMITTED);
        CHECK_OK(ac_reader_eventfd(reader, &err), err);
        CHECK(becomes_attended(reader));
        ac_reader_free(reader);
    }
    ac_store_relaxed_u32(&finished, 1);
    pthread_join(thread, NULL);
    close_writer(writer);
}

/* As when the reader is attached to a fan-in: announced a second time, with nothing left of the first. */
TEST(a_reader_that_gets_another_eventfd_is_found_again) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_OK(ac_reader_eventfd(reader, &err), err);
    CHECK(becomes_attended(reader));
    for (int i = 0; i < 10; i++) {
        int error;
        ac_eventfd_t *eventfd = ac_eventfd_new(&error);
        CHECK(eventfd != NULL);
        ac_reader_use_eventfd(reader, eventfd);
        ac_eventfd_release(eventfd);
        CHECK_OK(ac_reader_eventfd(reader, &err), err);
        CHECK(becomes_attended(reader));
    }
    ac_reader_free(reader);
    close_writer(writer);
}

TEST(a_queue_whose_writer_was_closed_is_not_polled) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    close_writer(open_writer(check_path("queue"), &config));
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    ac_reader_free(reader);
}

/* Various files at a reader's place in wake/, and whether the writer takes each for a reader. */
static uint64_t sleepers_after_offering(ac_writer_t *writer, const char *queue, int offered) {
    char path[1200];
    ac_writer_stats_t stats;
    snprintf(path, sizeof path, "%s/wake", queue);
    int dir_fd = ac_os_open_dir(path);
    int listener = ac_os_socket_listen(dir_fd, "offer.tmp");
    CHECK(listener >= 0);
    CHECK_EQUAL(ac_os_rename(dir_fd, "offer.tmp", "offer.efd"), 0);
    int peer = -EAGAIN;
    while (peer == -EAGAIN)
        peer = ac_os_socket_accept(listener);
    CHECK(peer >= 0);
    uint8_t yes = 1;
    CHECK_EQUAL(ac_os_send(peer, &yes, sizeof yes, offered), 0);
    uint8_t answer[64];
    int unwanted, got;
    do /* the hello; then a bit, or the end of the connection */
        got = ac_os_receive(peer, answer, sizeof answer, &unwanted);
    while (got == -EAGAIN || got == (int)sizeof answer);
    ac_writer_stats(writer, &stats);
    uint64_t connected = stats.readers_connected;
    CHECK_EQUAL(got, connected ? (int)sizeof(uint32_t) : 0);
    ac_os_close(peer);
    ac_os_close(listener);
    ac_os_unlink(dir_fd, "offer.efd");
    ac_os_close(dir_fd);
    return connected;
}

TEST(only_an_eventfd_is_taken_for_one) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    char path[1024];
    int pipe_ends[2];
    snprintf(path, sizeof path, "%s", check_path("queue"));
    ac_writer_t *writer = open_writer(path, &config);
    CHECK_EQUAL(pipe(pipe_ends), 0);
    CHECK_EQUAL(sleepers_after_offering(writer, path, pipe_ends[1]), 0);
    CHECK_EQUAL(sleepers_after_offering(writer, path, -1), 0);
    int eventfd = ac_os_eventfd();
    CHECK_EQUAL(sleepers_after_offering(writer, path, eventfd), 1);
    ac_os_close(eventfd);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    close_writer(writer);
}

/* The next holder of the lock may be a process that does not signal. */
TEST(a_reader_that_cannot_watch_the_lock_polls) {
    ac_writer_config_t config = small_queue(SEGMENT);
    failing_t failing = {.call = AC_CALL_WATCH, .error = ENOSPC};
    config.inline_housekeeping = 0;
    close_writer(open_writer(check_path("queue"), &config));
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    ac_os_set_hook(fail_hook, &failing);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL);
    ac_os_set_hook(NULL, NULL);
    CHECK(failing.failed);
    uint64_t deadline = ac_os_monotonic_ns() + 5000000000u;
    while (ac_reader_park(reader, &err) != AC_PARKED) /* as soon as it can, it parks again */
        CHECK(ac_os_monotonic_ns() < deadline);
    ac_reader_free(reader);
}

TEST(a_reader_without_a_lock_file_to_watch_polls) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    close_writer(open_writer(check_path("queue"), &config));
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
    remove_in(check_path("queue"), "writer.lock");
    while (ac_reader_park(reader, &err) == AC_PARKED)
        ac_os_eventfd_wait(reader->eventfd->fd, UINT64_MAX);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL);
    ac_reader_free(reader);
}

TEST(a_writer_that_cannot_watch_does_not_say_that_it_signals) {
    ac_writer_config_t config = small_queue(SEGMENT);
    failing_t failing = {.call = AC_CALL_WATCH, .error = ENOSPC};
    config.inline_housekeeping = 0;
    ac_os_set_hook(fail_hook, &failing);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_reader_t *reader = open_reader(check_path("queue"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(reader->control->signalling_epoch, 0);
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_POLL);
    ac_os_set_hook(NULL, NULL);
    ac_reader_free(reader);
    close_writer(writer);
}

/* More readers than have a bit of their own, and more than the wake thread signals at once. */
enum { SLEEPERS = 70, WAKE_UPS = 30 };

static void open_sleepers(ac_reader_t *readers[SLEEPERS]) {
    for (int i = 0; i < SLEEPERS; i++) {
        readers[i] = open_reader(check_path("queue"), NULL, AC_START_FIRST);
        CHECK_OK(ac_reader_eventfd(readers[i], &err), err);
    }
    for (int i = 0; i < SLEEPERS; i++)
        CHECK(becomes_attended(readers[i]));
}

/* Also clears eventfds of signals left from connecting. */
static void put_to_sleep(ac_reader_t *const readers[SLEEPERS]) {
    for (int i = 0; i < SLEEPERS; i++) {
        while (ac_os_eventfd_wait(readers[i]->eventfd->fd, 0))
            continue;
        CHECK_EQUAL(ac_reader_park(readers[i], &err), AC_PARKED);
    }
}

static void check_woken(ac_reader_t *const readers[SLEEPERS], int most) {
    ac_message_t message;
    for (int i = 0; i < SLEEPERS; i++) {
        uint64_t signals = 0, deadline = ac_os_monotonic_ns() + 5000000000u;
        while (read(readers[i]->eventfd->fd, &signals, sizeof signals) < 0) {
            CHECK(ac_os_monotonic_ns() < deadline);
            ac_os_sleep_ns(20000);
        }
        CHECK(signals <= (uint64_t)most);
        CHECK_EQUAL(ac_reader_next(readers[i], &message, &err), 1);
        CHECK_EQUAL(ac_reader_next(readers[i], &message, &err), 0);
    }
}

TEST(many_sleepers_are_signalled_once_each) {
    ac_writer_config_t config = small_queue(65536);
    ac_reader_t *readers[SLEEPERS];
    ac_writer_stats_t stats;
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    open_sleepers(readers);
    for (int i = 0; i < WAKE_UPS; i++) {
        put_to_sleep(readers);
        append_numbered(writer, 1);
        check_woken(readers, i == 0 ? 2 : 1); /* one may be left from connecting */
    }
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.wakeups, SLEEPERS * WAKE_UPS);
    for (int i = 0; i < SLEEPERS; i++)
        ac_reader_free(readers[i]);
    close_writer(writer);
}

static int second_signal_fails(void *context, int call, const char *path, int fd, uint64_t offset,
                               uint64_t length) {
    int *signals = context;
    (void)path;
    (void)fd;
    (void)offset;
    (void)length;
    return call == AC_CALL_SIGNAL && ++*signals == 2 ? EIO : 0;
}

/* The second one is meant for the wake thread. */
TEST(many_sleepers_are_signalled_without_the_wake_thread_if_need_be) {
    ac_writer_config_t config = small_queue(65536);
    ac_reader_t *readers[SLEEPERS];
    int signals = 0;
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    open_sleepers(readers);
    put_to_sleep(readers);
    ac_os_set_hook(second_signal_fails, &signals);
    append_numbered(writer, 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(signals, 1 + SLEEPERS);
    check_woken(readers, 2);
    for (int i = 0; i < SLEEPERS; i++)
        ac_reader_free(readers[i]);
    close_writer(writer);
}
