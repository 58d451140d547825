/* A thread checks Java queues on behalf of sleeping readers, and wakes them. */
#include "cq4_watch.h"

#include "cq4_files.h"
#include "forks.h"
#include "queue.h"
#include "reader.h"

#include <pthread.h>
#include <sys/wait.h>

enum { SIZE = 256 << 10, FIRST_CYCLE = 1700000000, READERS = 20, THREADS = 4 };

static ac_error_t err;
static ac_cq4_roll_t roll;
static cq4_table_t table;
static char path[600];

static cq4_file_t create_queue(void) {
    roll = cq4_known_roll("TEST4_SECONDLY");
    snprintf(path, sizeof path, "%s", check_path("queue"));
    CHECK_EQUAL(mkdir(path, 0700), 0);
    table = cq4_create_table(path, &roll);
    cq4_file_t file = cq4_create_cycle(path, &roll, FIRST_CYCLE, SIZE, 0);
    cq4_add_to_listing(&table, FIRST_CYCLE);
    return file;
}

/* Returns whether the reader is woken within this many milliseconds. */
static int is_rung(ac_reader_t *reader, uint64_t within_ms) {
    return ac_os_eventfd_wait(reader->eventfd->fd, within_ms * 1000000);
}

static void park(ac_reader_t *reader) {
    CHECK_EQUAL(ac_reader_park(reader, &err), AC_PARKED);
}

TEST(the_longer_it_is_silent_the_less_often_it_is_looked_at) {
    static const uint64_t cases[][2] = {/* silent, interval; us */
                                        {0, 50},        {200, 50},        {400, 100},
                                        {2000, 300},    {99999, 300},     {100000, 1000},
                                        {200000, 2000}, {1000000, 10000}, {9000000, 20000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_EQUAL(ac_cq4_watch_interval_ns(cases[i][0] * 1000, 20000000), cases[i][1] * 1000);
    CHECK_EQUAL(ac_cq4_watch_interval_ns(9000000000, 70000), 70000);
}

TEST(every_sleeping_reader_is_rung_for_a_message) {
    ac_reader_t *readers[READERS];
    ac_message_t message;
    cq4_file_t file = create_queue();
    for (int i = 0; i < READERS; i++)
        readers[i] = open_reader(path, NULL, AC_START_FIRST);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < READERS; i++)
            park(readers[i]);
        cq4_append(&file, "x", 1);
        for (int i = 0; i < READERS; i++) {
            CHECK(is_rung(readers[i], 900)); /* before the check once a second */
            CHECK_EQUAL(ac_reader_next(readers[i], &message, &err), 1);
        }
    }
    for (int i = 0; i < READERS; i++)
        ac_reader_free(readers[i]);
    cq4_close_file(&file.out);
}

TEST(a_new_file_and_an_end_mark_ring) {
    ac_message_t message;
    cq4_file_t file = create_queue();
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    cq4_append(&file, "x", 1);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    park(reader);
    cq4_finish(&file);
    CHECK(is_rung(reader, 900));
    park(reader);
    cq4_file_t next = cq4_create_cycle(path, &roll, FIRST_CYCLE + 1, SIZE, 0);
    cq4_append(&next, "y", 1);
    cq4_add_to_listing(&table, FIRST_CYCLE + 1);
    CHECK(is_rung(reader, 900));
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_free(reader);
    cq4_close_file(&file.out);
    cq4_close_file(&next.out);
}

TEST(what_no_word_shows_is_looked_at_once_a_second) {
    ac_message_t message;
    cq4_file_t file = create_queue();
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    cq4_finish(&file);
    park(reader);
    cq4_file_t next = cq4_create_cycle(path, &roll, FIRST_CYCLE + 1, SIZE, 0); /* not listed */
    cq4_append(&next, "y", 1);
    CHECK(is_rung(reader, 5000));
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    ac_reader_free(reader);
    cq4_close_file(&file.out);
    cq4_close_file(&next.out);
}

TEST(a_reader_may_go_on_or_be_closed_while_it_is_watched) {
    ac_message_t message;
    cq4_file_t file = create_queue();
    cq4_append(&file, "x", 1);
    for (int round = 0; round < 200; round++) {
        ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        park(reader);
        if (round % 2) CHECK_OK(ac_reader_seek_first(reader, &err), err);
        ac_reader_free(reader);
    }
    cq4_close_file(&file.out);
}

TEST(a_forked_child_watches_for_itself) {
    cq4_file_t file = create_queue();
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    park(reader);
    pid_t child = fork();
    if (child == 0) {
        ac_reader_free(reader);
        ac_reader_t *own = open_reader(path, NULL, AC_START_FIRST);
        int is_parked = ac_reader_park(own, &err) == AC_PARKED;
        cq4_append(&file, "x", 1);
        _exit(is_parked && is_rung(own, 900) ? 0 : 1);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(is_rung(reader, 900));
    ac_reader_free(reader);
    cq4_close_file(&file.out);
}

static uint32_t is_over;

/* Opens, sleeps, is woken, continues, closes: beside other threads that do the same. */
static void *come_and_go(void *argument) {
    ac_message_t message;
    ac_error_t why;
    uint64_t rounds = 0;
    (void)argument;
    while (!ac_load_relaxed_u32(&is_over)) {
        ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
        for (int i = 0; i < 5; i++) {
            while (ac_reader_next(reader, &message, &why) == 1)
                continue;
            int rc = ac_reader_park(reader, &why);
            CHECK(rc == AC_PARKED || rc == AC_READY);
            if (rounds++ % 4 == 0) is_rung(reader, 1);
        }
        ac_reader_free(reader);
    }
    return NULL;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    CAN_FORK = 0
}; /* what one of several threads forks cannot allocate, or start threads, with them */
#else
enum { CAN_FORK = 1 };
#endif

/* A child that was forked during this must not inherit a locked mutex. */
static int forked_child_is_rung(cq4_file_t *file) {
    int status = -1, ready[2];
    char byte;
    CHECK_EQUAL(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ac_error_t why;
        ac_reader_t *own = open_reader(path, NULL, AC_START_FIRST);
        CHECK_OK(ac_reader_seek_last(own, &why), why);
        int is_told = ac_reader_park(own, &why) == AC_PARKED && write(ready[1], "p", 1) == 1 &&
                      is_rung(own, 20000);
        ac_reader_free(own);
        _exit(is_told ? 0 : 1);
    }
    close(ready[1]);
    int is_parked = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    cq4_append(file, "x", 1);
    return is_parked && waitpid(child, &status, 0) == child && status == 0;
}

TEST(threads_come_and_go_while_the_process_forks) {
    pthread_t threads[THREADS];
    cq4_file_t file = create_queue();
    ac_store_relaxed_u32(&is_over, 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 20; i++) {
        if (CAN_FORK) CHECK(forked_child_is_rung(&file));
        cq4_append(&file, "x", 1);
        ac_os_sleep_ns(2000000); /* for those who sleep */
    }
    ac_store_relaxed_u32(&is_over, 1);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    cq4_close_file(&file.out);
}

/* The first reader that sleeps starts the thread: a child that is forked at that moment must be able to start its
 * own. */
static void *park_first(void *argument) {
    ac_error_t why;
    ac_reader_park(argument, &why);
    return NULL;
}

TEST(a_fork_while_the_thread_is_started_is_harmless) {
    cq4_file_t file = create_queue();
    for (int round = 0; CAN_FORK && round < 30; round++) {
        int status = -1;
        pid_t middle = fork(); /* a process that has no such thread yet */
        if (middle == 0) {
            pthread_t thread;
            ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
            CHECK_OK(ac_reader_seek_last(reader, &err), err);
            pthread_create(&thread, NULL, park_first, reader);
            int is_fine = forked_child_is_rung(&file);
            pthread_join(thread, NULL);
            ac_reader_free(reader);
            _exit(is_fine ? 0 : 1);
        }
        CHECK_EQUAL(waitpid(middle, &status, 0), middle);
        CHECK_EQUAL(status, 0);
        cq4_append(&file, "x", 1); /* what the process has appended: the place is known here, too */
    }
    cq4_close_file(&file.out);
}

TEST(a_bell_that_is_given_back_is_not_rung_any_more) {
    int error;
    cq4_file_t file = create_queue();
    ac_eventfd_t *eventfd = ac_eventfd_new(&error);
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    ac_reader_use_eventfd(reader, eventfd); /* as of a fan-in */
    park(reader);
    CHECK_EQUAL(eventfd->refs, 3);
    ac_reader_use_eventfd(reader, NULL);
    CHECK_EQUAL(eventfd->refs, 1);
    cq4_append(&file, "x", 1);
    CHECK(!ac_os_eventfd_wait(eventfd->fd, 50000000));
    ac_eventfd_release(eventfd);
    ac_reader_free(reader);
    cq4_close_file(&file.out);
}

static int refuse_threads(void *context, int call, const char *name, int fd, uint64_t offset,
                          uint64_t length) {
    (void)context, (void)name, (void)fd, (void)offset, (void)length;
    return call == AC_CALL_THREAD ? EAGAIN : 0;
}

/* In a process of its own, which has no such thread yet. */
TEST(without_a_thread_the_reader_polls) {
    cq4_file_t file = create_queue();
    pid_t child = fork();
    if (child == 0) {
        ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
        ac_os_set_hook(refuse_threads, NULL);
        int without = ac_reader_park(reader, &err);
        ac_os_set_hook(NULL, NULL);
        int with = ac_reader_park(reader, &err);
        ac_reader_free(reader);
        _exit(without == AC_POLL && with == AC_PARKED ? 0 : 1);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    cq4_close_file(&file.out);
}
