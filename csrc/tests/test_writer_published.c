/* What a writer publishes about itself, read from outside, whatever happened to the writer and the file. */
#include "writer_published.h"

#include "crc32.h"
#include "log.h"
#include "queue.h"
#include "writer.h"

#include <signal.h>
#include <sys/wait.h>

enum { SEGMENT = 64 << 10 };

static ac_error_t err;
static ac_queue_writer_t seen;
static ac_published_t content;

static const ac_queue_writer_t *look(const char *name) {
    memset(&seen, 0xa5, sizeof seen);
    CHECK_OK(ac_queue_writer(check_path(name), &seen, &err), err);
    return &seen;
}

static ac_writer_t *open_small(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    return open_writer(check_path("queue"), &config);
}

TEST(an_open_writer_is_seen_with_its_counters) {
    ac_writer_stats_t stats;
    uint64_t before_ns = ac_os_now_ns();
    ac_writer_t *writer = open_small();
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    CHECK_EQUAL(seen.pid, getpid());
    CHECK_EQUAL(seen.published, 1);
    CHECK_EQUAL(seen.user, geteuid());
    CHECK(seen.since_ns >= before_ns && seen.since_ns <= ac_os_now_ns());
    CHECK(strstr(seen.command, "test_writer_published") != NULL);
    CHECK_EQUAL(seen.statistics.messages, 0);
    append_numbered(writer, 400);
    ac_writer_report(writer, ac_os_monotonic_ns(), 1);
    ac_writer_stats(writer, &stats);
    look("queue");
    CHECK(memcmp(&seen.statistics, &stats, offsetof(ac_writer_stats_t, last_error_errno)) == 0);
    CHECK_EQUAL(seen.statistics.messages, 400);
    CHECK(seen.statistics.rolls > 0);
    CHECK_EQUAL(seen.samples, 2);
    CHECK_EQUAL(seen.sample[0].messages, 0);
    CHECK_EQUAL(seen.sample[1].messages, 400);
    CHECK(seen.sample[1].monotonic_ns > seen.sample[0].monotonic_ns);
    close_writer(writer);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_CLOSED);
    CHECK(seen.closed_ns >= seen.since_ns);
    CHECK_EQUAL(seen.statistics.messages, 400);
}

TEST(samples_are_the_last_ones_in_their_order) {
    ac_writer_t *writer = open_small();
    for (uint64_t i = 1; i < 3 * AC_SAMPLES; i++)
        ac_writer_report(writer, i, 1);
    CHECK_EQUAL(look("queue")->samples, AC_SAMPLES);
    for (uint64_t i = 0; i < AC_SAMPLES; i++)
        CHECK_EQUAL(seen.sample[i].monotonic_ns, 2 * AC_SAMPLES + i);
    close_writer(writer);
}

TEST(the_housekeeper_reports_by_itself) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 10);
    for (int i = 0; i < 50 && look("queue")->statistics.messages != 10; i++)
        ac_os_sleep_ns(100000000);
    CHECK_EQUAL(seen.statistics.messages, 10);
    close_writer(writer);
}

#ifndef __SANITIZE_THREAD__ /* which does not let a child of a process with threads start one */
static pid_t start_victim(void) {
    int ready[2];
    char one;
    CHECK_EQUAL(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        append_numbered(open_small(), 3);
        _exit(write(ready[1], "x", 1) == 1 ? pause() : 1);
    }
    close(ready[1]);
    CHECK_EQUAL(read(ready[0], &one, 1), 1);
    close(ready[0]);
    return child;
}

TEST(a_killed_writer_is_known_as_dead_before_anybody_has_waited_for_it) {
    pid_t child = start_victim();
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    CHECK_EQUAL(seen.pid, child);
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_DIED);
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_DIED);
    CHECK_EQUAL(seen.pid, child);
    CHECK(seen.command[0] != 0);
    close_writer(open_small());
    CHECK_EQUAL(look("queue")->state, AC_WRITER_CLOSED);
    CHECK_EQUAL(seen.pid, getpid());
    CHECK_EQUAL(seen.recovery.records_scanned, 3);
}
#endif

TEST(a_pid_that_another_process_has_by_now_is_not_the_writer) {
    ac_writer_t *writer = open_small();
    char text[64];
    int length = snprintf(text, sizeof text, "%d 1 %llu\n", (int)getpid(),
                          (unsigned long long)writer->control->writer_epoch);
    poke(check_path("queue"), "writer.lock", 0, text, (size_t)length);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_DIED);
    close_writer(writer);
}

TEST(a_writer_of_an_earlier_boot_is_dead) {
    ac_writer_t *writer = open_small();
    writer->control->writer_boot ^= 1;
    CHECK_EQUAL(look("queue")->state, AC_WRITER_DIED);
    writer->control->writer_boot ^= 1;
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    close_writer(writer);
}

TEST(a_writer_of_another_container_is_judged_by_its_heartbeat) {
    ac_writer_t *writer = open_small();
    writer->control->writer_namespace ^= 1;
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    writer->control->writer_heartbeat_ns -= 10000000000u;
    CHECK_EQUAL(look("queue")->state, AC_WRITER_DIED);
    CHECK(seen.command[0] != 0); /* by its own statement */
    close_writer(writer);
}

TEST(a_copy_of_an_open_queue_has_no_writer) {
    ac_writer_t *writer = open_small();
    append_numbered(writer, 3);
    copy_queue_as_copy(check_path("queue"), check_path("restored"));
    CHECK_EQUAL(look("restored")->state, AC_WRITER_NONE);
    CHECK_EQUAL(seen.published, 0);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    close_writer(writer);
}

TEST(what_another_epoch_published_is_not_used) {
    ac_writer_t *writer = open_small();
    writer->publisher->draft.content.epoch--;
    ac_writer_report(writer, 1, 1);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    CHECK_EQUAL(seen.published, 0);
    CHECK_EQUAL(seen.samples, 0);
    close_writer(writer);
}

TEST(a_queue_that_nobody_ever_wrote_to_has_no_writer) {
    ac_writer_t *writer = open_small();
    close_writer(writer);
    remove_in(check_path("queue"), "writer.lock");
    CHECK_EQUAL(look("queue")->state, AC_WRITER_NONE);
    remove_in(check_path("queue"), AC_PUBLISHED_FILE);
    CHECK_EQUAL(look("queue")->published, 0);
    CHECK_FAILS(ac_queue_writer(check_path("none"), &seen, &err), err, AC_E_NOT_FOUND);
}

TEST(a_writer_that_cannot_have_the_file_goes_on_without) {
    ac_log_entry_t entry;
    while (ac_log_next(&entry))
        continue;
    CHECK_EQUAL(mkdir(check_path("queue"), 0700), 0);
    CHECK_EQUAL(symlink("/dev/null", check_path("queue/" AC_PUBLISHED_FILE)), 0);
    ac_writer_t *writer = open_small();
    CHECK(writer->publisher == NULL);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK(strstr(entry.text, "statistics") && strstr(entry.text, "symbolic link"));
    append_numbered(writer, 3);
    ac_writer_report(writer, 1, 1);
    CHECK_EQUAL(look("queue")->state, AC_WRITER_OPEN);
    CHECK_EQUAL(seen.published, 0);
    CHECK_EQUAL(seen.pid, getpid());
    close_writer(writer);
}

TEST(a_file_that_is_cut_or_removed_under_the_writer_costs_no_message) {
    ac_writer_t *writer = open_small();
    CHECK_EQUAL(truncate(check_path("queue/" AC_PUBLISHED_FILE), 0), 0);
    ac_writer_report(writer, 1, 1);
    ac_writer_report(writer, 2, 1);
    CHECK_EQUAL(look("queue")->published, 0);
    remove_in(check_path("queue"), AC_PUBLISHED_FILE);
    ac_writer_report(writer, 3, 1);
    append_numbered(writer, 100);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 100);
}

static ac_published_slot_t valid_slot(uint64_t generation) {
    ac_published_slot_t slot;
    memset(&slot, 0, sizeof slot);
    slot.magic = AC_PUBLISHED_MAGIC;
    slot.version = AC_PUBLISHED_VERSION;
    slot.generation = generation;
    slot.content.epoch = 100 + generation;
    return slot;
}

static void put_slot(uint8_t *bytes, int number, ac_published_slot_t *slot) {
    size_t from = offsetof(ac_published_slot_t, version);
    slot->checksum = ac_crc32((uint8_t *)slot + from, sizeof *slot - from);
    memcpy(bytes + (size_t)number * AC_PUBLISHED_SLOT, slot, sizeof *slot);
}

TEST(the_newer_valid_slot_counts_and_a_torn_one_does_not) {
    static uint8_t bytes[AC_PUBLISHED_SIZE];
    ac_published_slot_t older = valid_slot(6), newer = valid_slot(7);
    memset(bytes, 0, sizeof bytes);
    CHECK_EQUAL(ac_published_decode(bytes, &content), 0);
    put_slot(bytes, 0, &older);
    put_slot(bytes, 1, &newer);
    CHECK_EQUAL(ac_published_decode(bytes, &content), 1);
    CHECK_EQUAL(content.epoch, 107);
    for (size_t i = 0; i < sizeof newer; i += 7) {
        uint8_t *at = bytes + AC_PUBLISHED_SLOT + i;
        *at ^= 0x10;
        CHECK_EQUAL(ac_published_decode(bytes, &content), 1);
        CHECK_EQUAL(content.epoch, 106);
        *at ^= 0x10;
    }
    newer.version++;
    put_slot(bytes, 1, &newer);
    CHECK_EQUAL(ac_published_decode(bytes, &content), 1);
    CHECK_EQUAL(content.epoch, 106);
}

TEST(random_content_with_a_good_checksum_is_harmless) {
    uint64_t random = check_seed() | 1;
    ac_writer_t *writer = open_small();
    uint64_t epoch = writer->control->writer_epoch, home = writer->home;
    ac_publisher_close(writer->publisher);
    writer->publisher = NULL;
    for (int round = 0; round < 300; round++) {
        static uint8_t bytes[AC_PUBLISHED_SIZE];
        ac_published_slot_t slot = valid_slot((uint64_t)round + 1);
        uint8_t *at = (uint8_t *)&slot.content;
        for (size_t i = 0; i < sizeof slot.content; i++)
            at[i] = round % 3 == 0 ? 0xff : (uint8_t)check_random(&random);
        slot.content.epoch = epoch;
        slot.content.home = home;
        slot.content.pid = (int32_t)getpid();
        put_slot(bytes, round & 1, &slot);
        poke(check_path("queue"), AC_PUBLISHED_FILE, 0, bytes, sizeof bytes);
        CHECK_EQUAL(look("queue")->published, 1);
        CHECK(seen.samples <= AC_SAMPLES && seen.slow_appends <= AC_SLOW_APPENDS);
        CHECK(seen.errors <= AC_RECENT_ERRORS);
        CHECK(memchr(seen.command, 0, sizeof seen.command) != NULL);
        CHECK(memchr(seen.settings.archive, 0, sizeof seen.settings.archive) != NULL);
        CHECK(memchr(seen.settings.wait_for, 0, sizeof seen.settings.wait_for) != NULL);
        for (uint32_t i = 0; i < seen.errors; i++)
            CHECK(memchr(seen.error[i].text, 0, sizeof seen.error[i].text) != NULL);
        for (uint32_t i = 0; i < seen.slow_appends; i++)
            CHECK(seen.slow_append[i].cause < AC_SLOW_CAUSES);
    }
    close_writer(writer);
}

/* A hook that delays calls of one kind. */
typedef struct slowing {
    int call;
    uint64_t ns;
} slowing_t;

static int slow_hook(void *context, int call, const char *path, int fd, uint64_t offset,
                     uint64_t length) {
    const slowing_t *slowing = context;
    (void)path, (void)fd, (void)offset, (void)length;
    if (call == slowing->call) ac_os_sleep_ns(slowing->ns);
    return 0;
}

static const ac_slow_append_t *last_slow(ac_writer_t *writer) {
    ac_writer_report(writer, 1, 1);
    look("queue");
    CHECK(seen.slow_appends > 0);
    return &seen.slow_append[seen.slow_appends - 1];
}

TEST(an_append_that_waits_for_a_segment_is_slow_by_the_roll) {
    static uint8_t payload[SEGMENT - 1000];
    slowing_t slowing = {AC_CALL_ALLOCATE, 20000000};
    ac_writer_t *writer = open_small();
    CHECK_OK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err);
    ac_os_set_hook(slow_hook, &slowing);
    CHECK_OK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err);
    ac_os_set_hook(NULL, NULL);
    const ac_slow_append_t *slow = last_slow(writer);
    CHECK_EQUAL(slow->cause, AC_SLOW_ROLL);
    CHECK_EQUAL(slow->seq, 1);
    CHECK(slow->duration_ns >= slowing.ns && slow->time_ns <= ac_os_now_ns());
    CHECK(seen.slow_total[AC_SLOW_ROLL].count >= 1);
    CHECK(seen.slow_total[AC_SLOW_ROLL].longest_ns >= slowing.ns);
    CHECK(seen.statistics.slow_appends >= 1);
    close_writer(writer);
}

TEST(an_append_that_waits_for_the_disk_is_slow_by_the_sync) {
    slowing_t slowing = {AC_CALL_SYNC_MAP, 20000000};
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = AC_FLUSH_SYNC;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_os_set_hook(slow_hook, &slowing);
    append_numbered(writer, 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(last_slow(writer)->cause, AC_SLOW_SYNC);
    CHECK_EQUAL(seen.slow_append[seen.slow_appends - 1].seq, 0);
    close_writer(writer);
}

TEST(an_append_that_waits_for_pages_is_slow_by_page_faults) {
    slowing_t slowing = {AC_CALL_POPULATE, 20000000};
    ac_writer_t *writer = open_small();
    ac_os_set_hook(slow_hook, &slowing);
    append_numbered(writer, 1);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(last_slow(writer)->cause, AC_SLOW_PAGE_FAULT);
    close_writer(writer);
}

TEST(what_no_part_of_the_way_explains_is_judged_by_the_kernel) {
    ac_slow_t slow;
    ac_slow_append_t append;
    ac_slow_begin(&slow);
    CHECK_EQUAL(ac_slow_end(&slow, 1000000000u, &append), 0);
    ac_slow_begin(&slow);
    ac_os_sleep_ns(2000000); /* as behind a lock */
    CHECK_EQUAL(ac_slow_end(&slow, AC_SLOW_NS, &append), 1);
    CHECK_EQUAL(append.cause, AC_SLOW_LOCK);
}

TEST(the_same_error_again_is_counted_and_not_listed_again) {
    ac_writer_t *writer = open_small();
    char path[1200];
    snprintf(path, sizeof path, "%s/000000001.q", check_path("queue"));
    pthread_mutex_lock(&writer->mutex);
    for (int i = 0; i < 3; i++)
        ac_writer_keep_error(writer, ENOSPC, path, "no room");
    ac_writer_keep_error(writer, EIO, "/elsewhere", "broken");
    pthread_mutex_unlock(&writer->mutex);
    ac_writer_report(writer, 1, 1);
    CHECK_EQUAL(look("queue")->errors, 2);
    CHECK(strcmp(seen.error[0].text, "000000001.q: no room") == 0);
    CHECK_EQUAL(seen.error[0].count, 3);
    CHECK_EQUAL(seen.error[0].sys_errno, ENOSPC);
    CHECK(strcmp(seen.error[1].text, "/elsewhere: broken") == 0);
    CHECK(strcmp(seen.statistics.last_error, "/elsewhere: broken") == 0);
    close_writer(writer);
}
