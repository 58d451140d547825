/* Pages: made ready ahead of the appender by the housekeeper, and given back before they are synced. */
#include "writer.h"

#include "queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SEGMENT = 16 << 10 };

static ac_error_t err;
static ac_writer_stats_t stats;

/* KiB of a segment that are in our page table. */
static long mapped_kib(const char *name) {
    char line[1024];
    long found = 0, kib;
    unsigned long from, to;
    int in_file = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx", &from, &to) == 2) in_file = strstr(line, name) != NULL;
        if (in_file && sscanf(line, "Rss: %ld kB", &kib) == 1) found += kib;
    }
    fclose(maps);
    return found;
}

static long mapped_while_synced_kib = -1;

static int look_at_the_page_table(void *context, int call, const char *path, int fd,
                                  uint64_t offset, uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)offset;
    if (call == AC_CALL_SYNC_MAP && length > AC_SEGMENT_DATA && mapped_while_synced_kib < 0)
        mapped_while_synced_kib = mapped_kib("/000000000.q");
    return 0;
}

/* Write-protecting the pages one by one would interrupt the appender for each. */
TEST(a_segment_left_behind_is_synced_outside_the_page_table) {
    ac_writer_config_t config = small_queue(SEGMENT);
    for (config.memlock = 0; config.memlock < 2; config.memlock++) {
        ac_writer_t *writer = open_writer(check_path(config.memlock ? "locked" : "queue"), &config);
        append_numbered(writer, 10);
        CHECK(mapped_kib("/000000000.q") >= 4);
        mapped_while_synced_kib = -1;
        ac_os_set_hook(look_at_the_page_table, NULL);
        append_numbered(writer, 100);
        ac_os_set_hook(NULL, NULL);
        ac_writer_stats(writer, &stats);
        CHECK(stats.rolls >= 1);
        CHECK_EQUAL(mapped_while_synced_kib, 0);
        close_writer(writer);
    }
}

TEST(much_that_is_flushed_is_synced_outside_the_page_table_too) {
    ac_writer_config_t config = small_queue(6 << 20); /* as much as may be locked */
    for (config.memlock = 0; config.memlock < 2; config.memlock++) {
        ac_writer_t *writer = open_writer(check_path(config.memlock ? "locked" : "queue"), &config);
        append_numbered(writer, 20000);
        long before_kib = mapped_kib("/000000000.q");
        CHECK(before_kib > 4000);
        mapped_while_synced_kib = -1;
        ac_os_set_hook(look_at_the_page_table, NULL);
        CHECK_EQUAL(ac_writer_flush(writer, &err), 20000);
        ac_os_set_hook(NULL, NULL);
        ac_writer_stats(writer, &stats);
        CHECK_EQUAL(stats.rolls, 0);
        /* The pages ahead stay, and those of the header and of the last record; locked pages all stay. */
        long ahead_kib = (long)(writer->populated - writer->offset) / 1024;
        CHECK(mapped_while_synced_kib >= (config.memlock ? before_kib : ahead_kib));
        CHECK(config.memlock || mapped_while_synced_kib <= ahead_kib + 16);
        append_numbered(writer, 100);
        close_writer(writer);
        CHECK_EQUAL(count_numbered(check_path(config.memlock ? "locked" : "queue")), 20100);
    }
}

static void *seal_one(void *context) {
    ac_error_t why;
    CHECK_EQUAL(ac_writer_seal_next(context, &why), 1);
    return NULL;
}

/* The walk for the index brings the pages of a segment back into the page table. */
TEST(the_walk_for_an_index_keeps_nobody_from_flushing) {
    pthread_t thread;
    ac_writer_config_t config = small_queue(SEGMENT);
    config.inline_housekeeping = 2;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 100);
    CHECK(writer->sealing);
    ac_os_unpopulate(writer->sealing->map->base, 0, SEGMENT);
    CHECK_EQUAL(mapped_kib("/000000000.q"), 0);
    pthread_mutex_lock(&writer->sync_mutex);
    CHECK_EQUAL(pthread_create(&thread, NULL, seal_one, writer), 0);
    for (int waits = 0; mapped_kib("/000000000.q") == 0; waits++) {
        CHECK(waits < 5000);
        ac_os_sleep_ns(1000000);
    }
    pthread_mutex_unlock(&writer->sync_mutex);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    close_writer(writer);
}

static int note_longest_write(void *context, int call, const char *path, int fd, uint64_t offset,
                              uint64_t length) {
    uint64_t *longest = context;
    (void)path;
    (void)fd;
    (void)offset;
    if (call == AC_CALL_WRITE && length > *longest) *longest = length;
    return 0;
}

/* Appends over several steps, with a flush after every `every` records; returns the longest write that filled
 * pages. */
static uint64_t longest_fill(const char *path, int flush_mode, int every) {
    static uint8_t payload[60000];
    ac_writer_config_t config = small_queue(16 << 20);
    config.flush_mode = flush_mode;
    uint64_t longest = 0;
    ac_os_set_hook(note_longest_write, &longest);
    ac_writer_t *writer = open_writer(path, &config);
    for (int i = 1; i <= 100; i++) {
        CHECK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err) >= 0);
        if (i % every == 0) CHECK(ac_writer_flush(writer, &err) >= 0);
    }
    ac_os_set_hook(NULL, NULL);
    close_writer(writer);
    return longest;
}

/* A sync writes each folio that it meets as a whole, and folios are as large as the writes that filled
 * them. */
TEST(pages_are_filled_in_small_pieces_for_whoever_flushes_little) {
    CHECK_EQUAL(longest_fill(check_path("never"), AC_FLUSH_ASYNC, 1000), AC_PIECE);
    CHECK_EQUAL(longest_fill(check_path("much"), AC_FLUSH_ASYNC, 20), AC_PIECE);
    CHECK_EQUAL(longest_fill(check_path("little"), AC_FLUSH_ASYNC, 1), AC_PIECE_SYNCED);
    CHECK_EQUAL(longest_fill(check_path("sync"), AC_FLUSH_SYNC, 1000), AC_PIECE_SYNCED);
}

static void append_large(ac_writer_t *writer) {
    static uint8_t payload[60000];
    CHECK(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err) >= 0);
}

/* Up to the middle of a segment of 16 MiB, where the next one is wanted, with few pages left. */
static ac_writer_t *open_half_full(void) {
    ac_writer_config_t config = small_queue(16 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    while (!writer->want_next)
        append_large(writer);
    CHECK(writer->populated < 12 << 20);
    return writer;
}

static struct {
    ac_writer_t *writer;
    int filled, next_is_there, filled_before_it;
} order;

/* The next segment is requested while the first step is being filled. */
static int note_order(void *context, int call, const char *path, int fd, uint64_t offset,
                      uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)offset;
    (void)length;
    if (call == AC_CALL_POPULATE && order.filled++ == 0) order.writer->want_next = 1;
    if (call == AC_CALL_ALLOCATE && order.next_is_there++ == 0)
        order.filled_before_it = order.filled;
    return 0;
}

TEST(the_housekeeper_makes_the_next_segment_before_it_fills_the_rest_of_this_one) {
    ac_writer_t *writer = open_half_full();
    order.writer = writer;
    writer->want_next = 0;
    writer->ahead = 16 << 20;
    ac_os_set_hook(note_order, NULL);
    CHECK_EQUAL(ac_writer_housekeep_pages(&writer->pages, 0), UINT64_MAX);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(order.next_is_there, 1);
    CHECK_EQUAL(order.filled_before_it, 1);
    CHECK(order.filled > 4);
    CHECK_EQUAL(writer->populated, 16 << 20);
    close_writer(writer);
}

static struct {
    uint64_t held_at;
    uint32_t filling, released, given_up;
} beside;

static __thread int is_housekeeper;

/* The housekeeper is stopped before it fills the pages from there on. */
static int hold_while_filling(void *context, int call, const char *path, int fd, uint64_t offset,
                              uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)length;
    if (call != AC_CALL_WRITE || offset != beside.held_at || !is_housekeeper) return 0;
    ac_store_release_u32(&beside.filling, 1);
    for (int waits = 0; !ac_load_acquire_u32(&beside.released); waits++) {
        if (waits == 5000) ac_store_release_u32(&beside.given_up, 1);
        if (waits >= 5000) break;
        ac_os_sleep_ns(1000000);
    }
    return 0;
}

static void *keep_house(void *context) {
    ac_writer_t *writer = context;
    is_housekeeper = 1;
    ac_writer_housekeep_pages(&writer->pages, 0);
    return NULL;
}

/* Returns when the housekeeper has stopped. */
static pthread_t start_filling_until(ac_writer_t *writer, uint64_t held_at) {
    pthread_t thread;
    memset(&beside, 0, sizeof beside);
    beside.held_at = held_at;
    writer->ahead = 16 << 20;
    ac_os_set_hook(hold_while_filling, NULL);
    CHECK_EQUAL(pthread_create(&thread, NULL, keep_house, writer), 0);
    for (int waits = 0; !ac_load_acquire_u32(&beside.filling); waits++) {
        CHECK(waits < 50000);
        ac_os_sleep_ns(100000);
    }
    return thread;
}

/* From the twelfth mebibyte of the active segment on. */
static pthread_t start_filling(ac_writer_t *writer) {
    return start_filling_until(writer, 12 << 20);
}

static void release(pthread_t thread) {
    ac_store_release_u32(&beside.released, 1);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    ac_os_set_hook(NULL, NULL);
    CHECK(!beside.given_up);
}

static void close_and_verify(ac_writer_t *writer) {
    uint64_t records;
    ac_writer_stats(writer, &stats);
    close_writer(writer);
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 0);
    CHECK_EQUAL(records, stats.next_seq);
}

TEST(an_appender_whose_pages_are_there_does_not_wait_for_more_of_them) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling(writer);
    while (writer->offset < 11 << 20) /* it asks for room more than once */
        append_large(writer);
    release(thread);
    CHECK_EQUAL(writer->populated, 16 << 20);
    while (writer->offset < 15 << 20)
        append_large(writer);
    close_and_verify(writer);
}

static void *append_into_the_fourteenth(void *context) {
    ac_writer_t *writer = context;
    while (writer->offset < 13 << 20)
        append_large(writer);
    return NULL;
}

/* Pages filled twice would lose what the appender has written in between. */
TEST(an_appender_gets_the_pages_that_are_just_being_filled) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling(writer), appender;
    CHECK_EQUAL(pthread_create(&appender, NULL, append_into_the_fourteenth, writer), 0);
    ac_os_sleep_ns(50000000); /* as far as it gets */
    CHECK(ac_load_relaxed_u64(&writer->offset) <= 12 << 20);
    release(thread);
    CHECK_EQUAL(pthread_join(appender, NULL), 0);
    close_and_verify(writer);
}

static uint64_t next_populated(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    uint64_t populated = writer->next_populated;
    pthread_mutex_unlock(&writer->mutex);
    return populated;
}

/* One thread that makes pages is slower than one that fills them with records. */
TEST(an_appender_that_waits_for_pages_fills_those_of_the_next_segment) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling(writer), appender;
    pthread_mutex_lock(&writer->mutex);
    writer->step_ns = 0; /* whatever the timing was */
    pthread_mutex_unlock(&writer->mutex);
    CHECK_EQUAL(next_populated(writer), AC_POPULATE_STEP);
    CHECK_EQUAL(pthread_create(&appender, NULL, append_into_the_fourteenth, writer), 0);
    for (int waits = 0; next_populated(writer) < 16 << 20; waits++) {
        CHECK(waits < 30000);
        ac_os_sleep_ns(1000000);
    }
    CHECK(ac_load_relaxed_u64(&writer->offset) <= 12 << 20);
    release(thread);
    CHECK_EQUAL(pthread_join(appender, NULL), 0);
    ac_writer_stats(writer, &stats);
    for (uint32_t first = stats.segment; stats.segment == first;) {
        append_large(writer);
        ac_writer_stats(writer, &stats);
    }
    CHECK_EQUAL(writer->populated, 16 << 20);
    for (int i = 0; i < 100; i++)
        append_large(writer);
    close_and_verify(writer);
}

/* The appender would wait for the same disk. */
TEST(an_appender_does_not_help_where_the_disk_is_what_takes_so_long) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling(writer), appender;
    pthread_mutex_lock(&writer->mutex);
    writer->step_ns = UINT64_MAX;
    pthread_mutex_unlock(&writer->mutex);
    CHECK_EQUAL(pthread_create(&appender, NULL, append_into_the_fourteenth, writer), 0);
    while (ac_load_relaxed_u64(&writer->offset) + 62000 < 12 << 20)
        ac_os_sleep_ns(1000000);
    ac_os_sleep_ns(20000000); /* as far as it gets */
    CHECK_EQUAL(next_populated(writer), AC_POPULATE_STEP);
    release(thread);
    CHECK_EQUAL(pthread_join(appender, NULL), 0);
    close_and_verify(writer);
}

/* An appender that rolls finds them in place, even if the disk is busy by then. */
TEST(the_housekeeper_fills_half_of_the_next_segment_when_this_one_has_its_pages) {
    ac_writer_t *writer = open_half_full();
    writer->ahead = 16 << 20;
    CHECK_EQUAL(ac_writer_housekeep_pages(&writer->pages, 0), UINT64_MAX);
    CHECK_EQUAL(writer->populated, 16 << 20);
    CHECK_EQUAL(next_populated(writer), 8 << 20);
    close_writer(writer);
}

TEST(of_the_next_segment_no_more_is_filled_than_of_this_one_ahead_of_the_writer) {
    ac_writer_t *writer = open_half_full();
    writer->ahead = 2 << 20;
    CHECK_EQUAL(ac_writer_housekeep_pages(&writer->pages, 0), UINT64_MAX);
    CHECK(writer->populated < 13 << 20);
    CHECK_EQUAL(next_populated(writer), 2 << 20);
    close_writer(writer);
}

/* Making a segment takes syncs, and a fast writer fills half of one in less time. */
TEST(a_writer_that_had_to_wait_for_a_segment_wants_the_next_one_at_once) {
    ac_writer_config_t config = small_queue(4 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_large(writer);
    CHECK(!writer->want_next);
    while (writer->rolls == 0)
        append_large(writer);
    CHECK_EQUAL(writer->rolls_unprepared, 1);
    CHECK(writer->offset < 1 << 20);
    CHECK(writer->want_next);
    ac_writer_housekeep_pages(&writer->pages, 0);
    CHECK(writer->next && !writer->want_next);
    while (writer->rolls == 1)
        append_large(writer);
    CHECK_EQUAL(writer->rolls_unprepared, 1);
    close_and_verify(writer);
}

static void *append_into_the_sixth_after_a_roll(void *context) {
    ac_writer_t *writer = context;
    writer->seq_limit = writer->seq;
    ac_store_relaxed_u64(&writer->limit, 0);
    append_large(writer);
    while (writer->offset < 5 << 20)
        append_large(writer);
    return NULL;
}

/* Pages filled twice, or beside the appender, would lose what it has written. */
TEST(an_appender_that_rolls_waits_for_pages_that_are_just_being_filled) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling_until(writer, 4 << 20), appender;
    CHECK_EQUAL(next_populated(writer), 4 << 20);
    CHECK_EQUAL(pthread_create(&appender, NULL, append_into_the_sixth_after_a_roll, writer), 0);
    ac_os_sleep_ns(100000000); /* as far as it gets */
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.segment, 1);
    CHECK(ac_load_relaxed_u64(&writer->offset) <= 4 << 20);
    release(thread);
    CHECK_EQUAL(pthread_join(appender, NULL), 0);
    for (int i = 0; i < 100; i++)
        append_large(writer);
    close_and_verify(writer);
}

TEST(pages_of_a_segment_that_was_left_meanwhile_are_not_those_of_the_next) {
    ac_writer_t *writer = open_half_full();
    pthread_t thread = start_filling(writer);
    writer->seq_limit = writer->seq;
    append_large(writer);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 1);
    pthread_mutex_lock(&writer->mutex);
    writer->ahead = 0;
    pthread_mutex_unlock(&writer->mutex);
    release(thread);
    CHECK_EQUAL(writer->populated, AC_POPULATE_STEP);
    for (int i = 0; i < 200; i++)
        append_large(writer);
    close_and_verify(writer);
}

static int refuse_to_fill(void *context, int call, const char *path, int fd, uint64_t offset,
                          uint64_t length) {
    (void)context;
    (void)path;
    (void)fd;
    (void)offset;
    return call == AC_CALL_WRITE && length >= 4096 ? ENOSPC : 0;
}

/* They would be written into pages that are filled with zeros later, when there is room again. */
TEST(without_pages_nothing_is_appended_behind_a_roll) {
    static uint8_t payload[60000];
    ac_writer_config_t config = small_queue(4 << 20);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    while (writer->offset + 62000 < config.segment_size)
        append_large(writer);
    uint64_t next_seq = writer->seq;
    ac_os_set_hook(refuse_to_fill, NULL);
    for (int i = 0; i < 20; i++)
        CHECK_FAILS(ac_writer_append(writer, payload, sizeof payload, 0, AC_NOW, &err), err,
                    AC_E_NO_SPACE);
    ac_os_set_hook(NULL, NULL);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.rolls, 1);
    CHECK_EQUAL(stats.next_seq, next_seq);
    for (int i = 0; i < 100; i++)
        append_large(writer);
    close_and_verify(writer);
}

/* ---- pages that were written back before the appender reached them ---- */

/* Writes pages back as the kernel does when the disk is busy. */
static void write_back(const ac_writer_t *writer) {
    CHECK_EQUAL(fdatasync(writer->map->fd), 0);
}

static long faults_of(ac_writer_t *writer, int records) {
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    append_numbered(writer, records);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
}

enum { RECORDS_OF_A_PAGE = 4096 / 64, PAGES = 16 };

/* With a sanitizer, whose own memory faults as often. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HAS_SANITIZER = 1 };
#else
enum { HAS_SANITIZER = 0 };
#endif

static ac_writer_t *open_with_pages_ahead(uint64_t segment_size) {
    ac_writer_config_t config = small_queue(segment_size);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_error_t why;
    append_numbered(writer, 10 * RECORDS_OF_A_PAGE);
    writer->piece = AC_PIECE; /* as if the writer had appended much without a sync */
    while (ac_writer_populate_ahead(writer) == 1)
        continue;
    CHECK_OK(ac_writer_prepare_next(writer, &why), why);
    CHECK(ac_writer_refresh_pages(writer) != UINT64_MAX);
    return writer;
}

TEST(pages_that_were_written_back_can_be_stored_into_before_the_appender_is_there) {
    if (HAS_SANITIZER) return;
    ac_writer_t *writer = open_with_pages_ahead(16 << 20);
    append_numbered(writer, 1);
    write_back(writer);
    long control = faults_of(writer, PAGES * RECORDS_OF_A_PAGE);
    write_back(writer);
    CHECK(ac_writer_refresh_pages(writer) != UINT64_MAX);
    long faults = faults_of(writer, (PAGES - 1) * RECORDS_OF_A_PAGE);
    /* On tmpfs nothing is written back. */
    CHECK(control == 0 || control >= PAGES / 2);
    CHECK(faults <= control / 4);
    close_writer(writer);
}

TEST(so_can_those_at_the_beginning_of_the_next_segment) {
    if (HAS_SANITIZER) return;
    ac_writer_t *writer = open_with_pages_ahead(256 << 10);
    while (writer->segment_size - writer->offset > 2 * 4096)
        append_numbered(writer, 1);
    CHECK_EQUAL(fdatasync(writer->next->fd), 0);
    CHECK(ac_writer_refresh_pages(writer) != UINT64_MAX);
    uint64_t rolls = writer->rolls;
    while (writer->rolls == rolls)
        append_numbered(writer, 1);
    CHECK(faults_of(writer, 8 * RECORDS_OF_A_PAGE) <= 2);
    close_writer(writer);
}

TEST(a_writer_at_rest_is_looked_at_once_and_again_when_it_moved) {
    ac_writer_t *writer = open_with_pages_ahead(1 << 20);
    CHECK_EQUAL(ac_writer_refresh_pages(writer), UINT64_MAX);
    append_numbered(writer, 1);
    uint64_t now_ns = ac_os_monotonic_ns(), next_ns = ac_writer_refresh_pages(writer);
    CHECK(next_ns > now_ns && next_ns <= ac_os_monotonic_ns() + 1000000000);
    CHECK_EQUAL(ac_writer_refresh_pages(writer), UINT64_MAX);
    close_writer(writer);
}

TEST(the_pages_of_a_writer_that_syncs_every_few_records_are_left_alone) {
    ac_writer_t *writer = open_with_pages_ahead(1 << 20);
    writer->piece = AC_PIECE_SYNCED;
    append_numbered(writer, 1);
    CHECK_EQUAL(ac_writer_refresh_pages(writer), UINT64_MAX);
    close_writer(writer);
}

/* The heartbeat starts the work, because an idle appender does not call. */
TEST(the_heartbeat_has_the_pages_of_a_writer_looked_at_that_has_moved) {
    ac_writer_config_t config = small_queue(1 << 20);
    config.inline_housekeeping = 0;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 1);
    for (int waits = 0; ac_load_relaxed_u64(&writer->refreshed_offset) != writer->offset; waits++) {
        CHECK(waits < 5000);
        ac_os_sleep_ns(1000000);
    }
    append_numbered(writer, 1);
    for (int waits = 0; ac_load_relaxed_u64(&writer->refreshed_offset) != writer->offset; waits++) {
        CHECK(waits < 5000);
        ac_os_sleep_ns(1000000);
    }
    close_writer(writer);
}
