/* Recovery after a kill or a power cut. The tests copy a live queue and change the copy as a disk may:
 * later pages are there and earlier ones are not. */
#include "recovery.h"

#include "position.h"
#include "queue.h"
#include "segment_seekindex.h"

#include <pthread.h>

enum { SEGMENT = 4096 };

static ac_error_t err;
static ac_recovery_t report;

/* Leaves a queue of small segments with `count` records, `flushed` of them durable, in its present
 * state. */
static void leave_by(int flush_mode, int flushed, int count) {
    ac_writer_config_t config = small_queue(SEGMENT);
    config.flush_mode = flush_mode;
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    append_numbered(writer, flushed);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    append_numbered(writer, count - flushed);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
}

static void leave(int flushed, int count) {
    leave_by(AC_FLUSH_ASYNC, flushed, count);
}

static void start_again(void) {
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    nftw(check_path("live"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static int salvage;

/* Opens without consent, which fails and changes nothing that matters. */
static void check_refused(void) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer;
    ac_error_t err;
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_SALVAGE);
}

/* Opens the queue, keeps the report, and returns the next seq. */
static uint64_t recover_with(int verify) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_stats_t stats;
    config.verify = verify;
    config.salvage = salvage;
    alarm(60);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    alarm(0);
    ac_writer_recovery(writer, &report);
    ac_writer_stats(writer, &stats);
    append_numbered(writer, 1);
    close_writer(writer);
    return stats.next_seq;
}

static uint64_t recover(void) {
    return recover_with(0);
}

/* Reads everything from seq 0 to the message that recover appended. */
static void check_whole(uint64_t next_seq) {
    CHECK_EQUAL(count_numbered(check_path("queue")), next_seq + 1);
}

/* Removes the other evidence: an index shows that its segment was durable, too. */
static void set_durable(uint64_t segment, uint64_t offset) {
    uint64_t position[2] = {segment, offset};
    poke(check_path("queue"), "index.meta", 0, position, sizeof position);
    for (uint64_t id = segment; id < segment + 64 && id < 1000; id++) {
        char name[AC_NAME_MAX];
        ac_segment_name(name, (uint32_t)id, ".idx");
        if (exists(check_path("queue"), name)) remove_in(check_path("queue"), name);
    }
}

static void set_sealed(const char *name, uint32_t sealed) {
    poke(check_path("queue"), name, 12, &sealed, sizeof sealed);
}

/* Returns the offset of the record with this seq in the segment; -1 if it is not there. */
static int64_t find(const char *name, uint64_t seq) {
    static uint8_t bytes[SEGMENT] __attribute__((aligned(64)));
    ac_message_t message;
    const char *why;
    uint64_t offset = AC_SEGMENT_DATA;
    peek(check_path("queue"), name, 0, bytes, SEGMENT);
    while (ac_record_inspect(bytes, SEGMENT, offset, (uint32_t)atoi(name), AC_CHECK_HEADER,
                             &message, &why) == AC_RECORD_GOOD) {
        if (message.seq == seq) return (int64_t)offset;
        offset += ac_record_size(message.length);
    }
    return -1;
}

/* Returns the seq of the first record of a segment, which must have one. */
static uint64_t first_of(const char *name) {
    ac_record_t header;
    peek(check_path("queue"), name, AC_SEGMENT_DATA, &header, sizeof header);
    CHECK(header.commit_len != 0);
    return header.seq;
}

static void zero(const char *name, uint64_t from, uint64_t to) {
    static uint8_t zeros[SEGMENT];
    poke(check_path("queue"), name, from, zeros, to - from);
}

TEST(a_closed_queue_is_believed_and_not_walked) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 100);
    close_writer(writer);
    CHECK_EQUAL(recover(), 100);
    CHECK(report.clean);
    CHECK_EQUAL(report.records_scanned, 0);
    check_whole(100);
}

TEST_IN_MEMORY(a_killed_writer_loses_nothing_it_appended) {
    for (int count = 0; count < 60; count += 7) {
        leave(count / 2, count);
        CHECK_EQUAL(recover(), count);
        CHECK(!report.clean);
        CHECK_EQUAL(report.torn_records, 0);
        CHECK_EQUAL(report.corrupt_records, 0);
        check_whole((uint64_t)count);
        start_again();
    }
}

TEST(verification_at_open_walks_everything) {
    leave(50, 100);
    CHECK_EQUAL(recover_with(1), 100);
    CHECK_EQUAL(report.records_scanned, 100);
    check_whole(100);
}

TEST(a_torn_record_ends_the_queue_and_is_kept_aside) {
    uint8_t noise = 0xff;
    leave(2, 9);
    int64_t offset = find("000000000.q", 5);
    CHECK(offset > 0);
    poke(check_path("queue"), "000000000.q", (uint64_t)offset + 64, &noise, 1);
    CHECK_EQUAL(recover(), 5);
    CHECK_EQUAL(report.torn_records, 1);
    CHECK_EQUAL(report.end_offset, offset);
    CHECK(report.bytes_set_aside > 0);
    CHECK(exists(check_path("queue"), "recovered"));
    check_whole(5);
}

TEST(what_lies_behind_the_end_is_zero_afterwards) {
    static uint8_t bytes[SEGMENT];
    leave(2, 9);
    int64_t offset = find("000000000.q", 5);
    zero("000000000.q", (uint64_t)offset, (uint64_t)offset + 64);
    CHECK_EQUAL(recover(), 5);
    peek(check_path("queue"), "000000000.q", 0, bytes, SEGMENT);
    uint64_t end = (uint64_t)find("000000000.q", 5) + ac_record_size(5 * 37 % 300);
    for (uint64_t i = end; i < SEGMENT; i++)
        CHECK_EQUAL(bytes[i], 0);
    check_whole(5);
}

TEST(corruption_before_the_durable_position_is_counted_and_left) {
    uint8_t noise = 0xff;
    leave(9, 9);
    int64_t offset = find("000000000.q", 5);
    poke(check_path("queue"), "000000000.q", (uint64_t)offset + 64, &noise, 1);
    CHECK_EQUAL(recover(), 9);
    CHECK_EQUAL(report.corrupt_records, 1);
    CHECK_EQUAL(report.torn_records, 0);
    uint64_t records;
    CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 1);
    CHECK_EQUAL(err.offset, offset);
    CHECK_EQUAL(records, 9);
}

TEST_IN_MEMORY(an_index_meta_that_points_beyond_everything_is_survived) {
    static const uint64_t positions[][2] = {{0, 1 << 20},          {0, UINT64_MAX}, {1000, 64},
                                            {UINT64_MAX, 0},       {0, 100},        {0, SEGMENT},
                                            {UINT64_MAX, SEGMENT}, {0, 0}};
    leave(4, 9);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        for (int verify = 0; verify < 2; verify++) {
            set_durable(positions[i][0], positions[i][1]);
            salvage = positions[i][0] > 100;
            if (salvage) check_refused();
            uint64_t next_seq = recover_with(verify);
            CHECK_EQUAL(next_seq, 9 + 2 * i + (size_t)verify);
            check_whole(next_seq);
            forget_close();
        }
    }
}

TEST(a_missing_or_short_index_meta_only_costs_a_longer_walk) {
    leave(50, 100);
    remove_in(check_path("queue"), "index.meta");
    CHECK_EQUAL(recover(), 100);
    /* The segments with an index are known to be durable. */
    CHECK(report.records_scanned > 0 && report.records_scanned <= 50);
    check_whole(100);
}

/* The seal of a finished segment was lost, though index.meta is beyond it. */
TEST_IN_MEMORY(a_lost_seal_before_the_durable_position_does_not_stop_readers) {
    for (int verify = 0; verify < 2; verify++) {
        leave(60, 100);
        ac_durable_t durable;
        peek(check_path("queue"), "index.meta", 0, &durable, sizeof durable);
        CHECK(durable.segment > 1);
        set_sealed("000000000.q", 0);
        set_sealed("000000001.q", 0);
        remove_in(check_path("queue"), "000000000.idx");
        remove_in(check_path("queue"), "000000001.idx");
        for (uint64_t id = 2; id < durable.segment; id++) {
            char name[AC_NAME_MAX];
            ac_segment_name(name, (uint32_t)id, ".idx");
            remove_in(check_path("queue"), name);
        }
        CHECK_EQUAL(recover_with(verify), 100);
        CHECK_EQUAL(report.corrupt_records, 0);
        check_whole(100);
        start_again();
    }
}

TEST(a_lost_seal_behind_the_durable_position_is_put_back_if_the_next_segment_continues) {
    leave(1, 40);
    set_durable(0, AC_SEGMENT_DATA);
    set_sealed("000000000.q", 0);
    set_sealed("000000001.q", 0);
    CHECK_EQUAL(recover(), 40);
    check_whole(40);
}

TEST(records_lost_at_the_end_of_an_unsealed_segment_end_the_queue) {
    leave(1, 40);
    set_durable(0, AC_SEGMENT_DATA);
    uint64_t next = first_of("000000001.q");
    int64_t last = find("000000000.q", next - 1);
    zero("000000000.q", (uint64_t)last, SEGMENT);
    set_sealed("000000000.q", 0);
    CHECK_EQUAL(recover(), next - 1);
    CHECK(report.segments_set_aside > 0);
    check_whole(next - 1);
}

TEST_IN_MEMORY(records_lost_at_the_end_of_a_sealed_segment_end_the_queue) {
    leave(1, 40);
    set_durable(0, AC_SEGMENT_DATA);
    uint64_t next = first_of("000000001.q");
    int64_t last = find("000000000.q", next - 1);
    zero("000000000.q", (uint64_t)last, SEGMENT);
    CHECK_EQUAL(recover(), next - 1);
    check_whole(next - 1);
}

static struct {
    int removals, unsynced;
} names;

/* Not with check_path, whose last results are in use while a hook runs. */
static int is_there(uint32_t id) {
    char path[1200];
    snprintf(path, sizeof path, "%s/queue/%09u.q", check_directory, id);
    return access(path, F_OK) == 0;
}

/* Segments are numbered without a gap at each moment, and none is removed before the last removal is synced. */
static int look_for_gaps(void *context, int call, const char *path, int fd, uint64_t offset,
                         uint64_t length) {
    (void)context;
    (void)fd;
    (void)offset;
    (void)length;
    uint32_t id = 0;
    while (is_there(id))
        id++;
    for (uint32_t later = id + 1; later < id + 16; later++)
        CHECK(!is_there(later));
    if (call == AC_CALL_SYNC_DIR && path && strstr(path, "recovered")) return 0;
    if (call == AC_CALL_SYNC_DIR) names.unsynced = 0;
    size_t end = path ? strlen(path) : 0;
    if ((call == AC_CALL_UNLINK || call == AC_CALL_RENAME) && end > 2 &&
        strcmp(path + end - 2, ".q") == 0) {
        CHECK_EQUAL(names.unsynced, 0);
        names.unsynced = 1;
        names.removals++;
    }
    return 0;
}

/* After a kill or a power cut in between, the next process may be a reader, which would report that messages were
 * removed. */
TEST(segments_behind_the_end_go_one_by_one_from_the_last_to_the_first) {
    for (int empty = 0; empty < 2; empty++) {
        leave(1, 200);
        set_durable(0, AC_SEGMENT_DATA);
        uint64_t next = first_of("000000002.q");
        zero("000000002.q", AC_SEGMENT_DATA, AC_SEGMENT_DATA + 64);
        for (int id = 3; empty && id < 6; id++) { /* as if they had never been used */
            char name[AC_NAME_MAX];
            snprintf(name, sizeof name, "%09d.q", id);
            zero(name, AC_SEGMENT_DATA, SEGMENT);
        }
        memset(&names, 0, sizeof names);
        ac_os_set_hook(look_for_gaps, NULL);
        CHECK_EQUAL(recover(), next);
        ac_os_set_hook(NULL, NULL);
        CHECK(names.removals >= 4);
        check_whole(next);
        start_again();
    }
}

/* A flush right after a roll leaves the durable position at the start of a segment. */
TEST(a_sealed_segment_whose_records_are_all_lost_ends_the_queue) {
    leave(1, 60);
    uint64_t first = first_of("000000001.q");
    CHECK(first_of("000000002.q") > first);
    set_durable(1, AC_SEGMENT_DATA);
    zero("000000001.q", AC_SEGMENT_DATA, SEGMENT);
    CHECK_EQUAL(recover(), first);
    check_whole(first);
}

/* Two power cuts: the second finds what was written after the first after a segment without a record. */
TEST(what_is_written_after_such_a_loss_is_not_lost_with_it) {
    leave(1, 40);
    set_durable(0, 0);
    zero("000000000.q", AC_SEGMENT_DATA, SEGMENT);
    CHECK_EQUAL(recover(), 0);
    set_durable(0, 0);
    CHECK_EQUAL(recover_with(1), 1);
    check_whole(1);
}

static void leave_batch(int before, size_t batch, int after) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    uint8_t payloads[8][PAYLOAD_MAX];
    ac_slice_t items[8];
    append_numbered(writer, before);
    CHECK_OK(ac_writer_flush(writer, &err), err);
    for (size_t i = 0; i < batch; i++)
        items[i] = (ac_slice_t){payloads[i], payload_of((uint64_t)before + i, payloads[i])};
    CHECK_EQUAL(ac_writer_append_many(writer, items, batch, 7, NULL, &err), before);
    append_numbered(writer, after);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
}

TEST(part_of_a_batch_is_never_kept) {
    leave_batch(3, 4, 0);
    int64_t third = find("000000000.q", 5);
    zero("000000000.q", (uint64_t)third, (uint64_t)third + 64);
    CHECK_EQUAL(recover(), 3);
    CHECK(report.bytes_set_aside > 0);
    check_whole(3);
}

TEST_IN_MEMORY(part_of_a_batch_in_a_sealed_segment_is_not_kept_either) {
    leave_batch(3, 8, 60);
    CHECK(exists(check_path("queue"), "000000001.q"));
    int64_t third = find("000000000.q", 5);
    set_durable(0, (uint64_t)find("000000000.q", 3));
    zero("000000000.q", (uint64_t)third, SEGMENT);
    CHECK_EQUAL(recover(), 3);
    check_whole(3);
}

TEST(a_batch_whose_first_commit_word_is_missing_never_happened) {
    leave_batch(3, 4, 0);
    int64_t first = find("000000000.q", 3);
    zero("000000000.q", (uint64_t)first, (uint64_t)first + 4);
    CHECK_EQUAL(recover(), 3);
    check_whole(3);
}

TEST(leftovers_are_removed_and_files_of_others_are_not) {
    static const char *const ours[] = {"000000002.q.tmp",
                                       "1000000000.q.tmp",
                                       "000000001.idx.tmp",
                                       "READY.tmp",
                                       "schema.json.tmp",
                                       "control.meta.tmp",
                                       "control.meta.0123456789abcdef.tmp"};
    static const char *const others[] = {"report.tmp",
                                         "q.tmp",
                                         "2024.q.tmp",
                                         "000000002.csv.tmp",
                                         "a000000002.q.tmp",
                                         "000000002.q.tmp.tmp",
                                         "READY.1.tmp",
                                         "control.meta.0123.tmp",
                                         "control.meta.0123456789abcdef.tmp.bak"};
    leave(1, 3);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        poke(check_path("queue"), ours[i], 0, "x", 1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        poke(check_path("queue"), others[i], 0, "x", 1);
    CHECK_EQUAL(recover(), 3);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        CHECK(!exists(check_path("queue"), ours[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK(exists(check_path("queue"), others[i]));
    check_whole(3);
}

TEST(a_prepared_segment_that_was_never_used_is_removed) {
    ac_directory_t dir;
    ac_map_t *map;
    leave(1, 3);
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 0, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(ac_segment_create(&dir, fd, 1, SEGMENT, &map, &err), err);
    ac_map_release(map);
    ac_os_close(fd);
    poke(check_path("queue"), "000000002.q.tmp", 0, "x", 1);
    CHECK_EQUAL(recover(), 3);
    CHECK(!exists(check_path("queue"), "000000001.q"));
    CHECK(!exists(check_path("queue"), "000000002.q.tmp"));
    CHECK_EQUAL(report.segments_set_aside, 0);
    check_whole(3);
}

/* A reader had committed a message that a power cut then removed. */
TEST(a_reader_that_had_committed_beyond_the_end_is_told_even_after_more_was_written) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    append_numbered(writer, 10);
    ac_reader_t *reader = open_reader(check_path("live"), "r", AC_START_COMMITTED);
    CHECK_EQUAL(read_numbered(reader, 0), 10);
    uint64_t segment, offset;
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_commit(reader, segment, offset, 1, &err), err);
    ac_reader_free(reader);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
    int64_t lost = find("000000000.q", 6);
    zero("000000000.q", (uint64_t)lost, SEGMENT);
    writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 12);
    ac_reader_config_t reader_config;
    ac_reader_defaults(&reader_config);
    reader_config.name = "r";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &reader_config, &reader, &err), err,
                AC_E_POSITION_LOST);
    CHECK_EQUAL(err.wanted_segment, segment);
    CHECK_EQUAL(err.wanted_offset, offset);
    CHECK_EQUAL(err.first_offset, lost);
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), 18);
}

/* A queue of which a power cut left the first `kept` records of its first segment, and only the names of
 * the other segments; the reader "r" had committed in segment `ahead`. */
static void leave_reader_ahead(int kept, uint64_t ahead, uint64_t *committed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    ac_message_t message;
    ac_reader_t *reader = open_reader(check_path("live"), "r", AC_START_COMMITTED);
    append_numbered(writer, 100);
    uint64_t segment = 0;
    while (segment < ahead || *committed < 1024) {
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        ac_reader_position(reader, &segment, committed);
    }
    CHECK_EQUAL(segment, ahead);
    CHECK_OK(ac_reader_commit(reader, segment, *committed, 1, &err), err);
    ac_reader_free(reader);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
    zero("000000000.q", (uint64_t)find("000000000.q", (uint64_t)kept), SEGMENT);
    for (uint32_t id = 0; id < 1000; id++) {
        char name[AC_NAME_MAX];
        ac_segment_name(name, id, ".q");
        if (!exists(check_path("queue"), name)) break;
        if (id > 0) zero(name, AC_SEGMENT_DATA, SEGMENT);
        zero(name, offsetof(ac_segment_header_t, flags), AC_SEGMENT_DATA);
        ac_segment_name(name, id, ".idx");
        if (exists(check_path("queue"), name)) remove_in(check_path("queue"), name);
    }
    set_durable(0, AC_SEGMENT_DATA);
}

static void check_reader_is_told(uint64_t segment, uint64_t offset) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_reader_defaults(&config);
    config.name = "r";
    CHECK_FAILS(ac_reader_open(check_path("queue"), &config, &reader, &err), err,
                AC_E_POSITION_LOST);
    CHECK_EQUAL(err.wanted_segment, segment);
    CHECK_EQUAL(err.wanted_offset, offset);
}

/* The same if whole segments were lost, and the reader had read in the last of them: that place is not
 * reused, and no other reader finds a hole in the queue. */
TEST_IN_MEMORY(a_reader_that_had_committed_segments_beyond_the_end_is_told) {
    for (int kept = 0; kept < 6; kept += 5) {
        for (uint64_t ahead = 0; ahead < 5; ahead++) {
            ac_writer_config_t config = small_queue(SEGMENT);
            uint64_t committed = 0;
            leave_reader_ahead(kept, ahead, &committed);
            ac_reader_t *other = open_reader(check_path("queue"), NULL, AC_START_FIRST);
            CHECK_EQUAL(read_numbered(other, 0), kept);
            ac_writer_t *writer = open_writer(check_path("queue"), &config);
            check_reader_is_told(ahead, committed);
            append_numbered(writer, 100);
            check_reader_is_told(ahead, committed);
            CHECK_EQUAL(read_numbered(other, (uint64_t)kept), kept + 100);
            ac_reader_free(other);
            other = open_reader(check_path("queue"), NULL, AC_START_FIRST);
            CHECK_OK(ac_reader_seek_seq(other, (uint64_t)kept + 50, &err), err);
            CHECK_EQUAL(read_numbered(other, (uint64_t)kept + 50), kept + 100);
            ac_reader_free(other);
            uint64_t records;
            CHECK_EQUAL(ac_queue_verify(check_path("queue"), &records, &err), 0);
            CHECK_EQUAL(records, kept + 100);
            close_writer(writer);
            /* Another power cut, which restores index.meta, because it is not synced. */
            forget_close();
            set_durable(0, AC_SEGMENT_DATA);
            CHECK_EQUAL(recover(), kept + 100);
            check_whole((uint64_t)kept + 100);
            check_reader_is_told(ahead, committed);
            start_again();
        }
    }
}

TEST(a_position_that_no_reader_can_have_come_to_is_refused_and_named) {
    static const uint64_t segments[] = {1000000, UINT32_MAX, UINT64_MAX};
    ac_writer_config_t config = small_queue(SEGMENT);
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        uint64_t committed = 0;
        leave_reader_ahead(5, 1, &committed);
        ac_slot_t slots[2] = {{.segment = segments[i], .offset = AC_SEGMENT_DATA}};
        slots[0].generation = 1000;
        slots[0].checksum = ac_checksum(slots, offsetof(ac_slot_t, checksum));
        poke(check_path("queue"), "readers/r.meta", 0, slots, sizeof slots);
        ac_writer_t *writer;
        CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_CORRUPT);
        CHECK(strstr(err.path, "readers/r.meta") != NULL);
        remove_in(check_path("queue"), "readers/r.meta");
        CHECK_EQUAL(recover(), 5);
        check_whole(5);
        start_again();
    }
}

TEST_IN_MEMORY(an_index_that_lies_does_not_change_the_next_seq) {
    leave(60, 100);
    ac_durable_t durable;
    peek(check_path("queue"), "index.meta", 0, &durable, sizeof durable);
    /* No record of ours where the walk starts, so that older segments are checked. */
    for (uint64_t id = durable.segment; id < 1000; id++) {
        char name[AC_NAME_MAX];
        ac_segment_name(name, (uint32_t)id, ".q");
        if (exists(check_path("queue"), name)) zero(name, AC_SEGMENT_DATA, SEGMENT);
    }
    char name[AC_NAME_MAX];
    ac_segment_name(name, (uint32_t)durable.segment, ".q");
    set_sealed(name, 0);
    set_durable(durable.segment, AC_SEGMENT_DATA);
    ac_segment_name(name, (uint32_t)durable.segment - 1, ".q");
    uint64_t last = first_of(name);
    while (find(name, last + 1) > 0)
        last++;
    uint64_t lie = UINT64_MAX;
    poke(check_path("queue"), "000000000.idx", offsetof(ac_index_header_t, max_seq), &lie, 8);
    lie = 1000000;
    poke(check_path("queue"), "000000001.idx", offsetof(ac_index_header_t, max_seq), &lie, 8);
    CHECK_EQUAL(recover(), last + 1);
    check_whole(last + 1);
}

TEST_IN_MEMORY(a_crooked_clean_marker_is_not_believed) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 20);
    close_writer(writer);
    for (uint64_t last_record = 0; last_record < 8192; last_record += 97) {
        ac_control_t control;
        peek(check_path("queue"), "control.meta", 0, &control, sizeof control);
        ac_clean_t clean = control.clean;
        if (last_record == clean.last_record) continue;
        clean.last_record = last_record;
        ac_clean_store(&control, &clean);
        poke(check_path("queue"), "control.meta", 0, &control, sizeof control);
        uint64_t next_seq = recover();
        CHECK(!report.clean);
        check_whole(next_seq);
    }
}

/* Fails every system call of a repairing opening in turn: each causes an error, no crash, and the next
 * opening finds the same queue. Returns how many openings failed. */
static int fail_every_call(uint64_t next) {
    int failures = 0;
    for (int call = 0; call < ac_os_call_count(); call++) {
        for (int skip = 0;; skip++) {
            failing_t failing = {.call = call, .error = EIO, .skip = skip};
            ac_writer_config_t config = small_queue(SEGMENT);
            ac_writer_t *writer = NULL;
            char name[32];
            snprintf(name, sizeof name, "copy%d-%d", call, skip);
            copy_queue(check_path("queue"), check_path(name));
            ac_os_set_hook(fail_hook, &failing);
            int rc = ac_writer_open(check_path(name), &config, &writer, &err);
            ac_os_set_hook(NULL, NULL);
            CHECK(rc == AC_OK || writer == NULL);
            if (rc == AC_OK) ac_writer_free(writer);
            writer = open_writer(check_path(name), &config);
            ac_writer_stats_t stats;
            ac_writer_stats(writer, &stats);
            CHECK_EQUAL(stats.next_seq, next);
            close_writer(writer);
            CHECK_EQUAL(count_numbered(check_path(name)), next);
            nftw(check_path(name), check_remove, 16, FTW_DEPTH | FTW_PHYS);
            if (!failing.failed) break;
            failures += rc != AC_OK;
        }
    }
    return failures;
}

TEST_IN_MEMORY(a_recovery_that_fails_anywhere_can_be_repeated) {
    uint8_t noise = 0xff;
    leave(5, 60);
    uint64_t next = first_of("000000002.q");
    set_durable(0, AC_SEGMENT_DATA);
    poke(check_path("queue"), "000000002.q", AC_SEGMENT_DATA + 64, &noise, 1);
    CHECK(fail_every_call(next) > 30);
}

TEST_IN_MEMORY(one_that_leaves_segments_out_for_a_lost_position_can_be_repeated_too) {
    uint64_t committed = 0;
    leave_reader_ahead(5, 3, &committed);
    CHECK(fail_every_call(5) > 30);
}

/* ---- what a record of sync mode proves ---- */

/* Returns what the record with this seq says about earlier ones; the record must be there. */
static int says_synced(const char *name, uint64_t seq) {
    ac_record_t header;
    int64_t offset = find(name, seq);
    CHECK(offset > 0);
    peek(check_path("queue"), name, (uint64_t)offset, &header, sizeof header);
    return (header.flags & AC_FLAG_SYNCED) != 0;
}

TEST(in_sync_mode_a_record_says_that_everything_before_it_is_on_disk) {
    static const ac_slice_t items[] = {{"a", 1}, {"b", 1}};
    static const int modes[] = {AC_FLUSH_SYNC, AC_FLUSH_ASYNC, AC_FLUSH_BATCH};
    for (size_t i = 0; i < 3; i++) {
        ac_writer_config_t config = small_queue(SEGMENT);
        void *room;
        config.flush_mode = modes[i];
        config.batch_bytes = 1; /* each record is synced before append returns */
        config.batch_ns = UINT64_MAX;
        ac_writer_t *writer = open_writer(check_path("queue"), &config);
        append_numbered(writer, 2);
        CHECK_EQUAL(ac_writer_append_many(writer, items, 2, 0, NULL, &err), 2);
        CHECK_OK(ac_writer_reserve(writer, 10, &room, &err), err);
        CHECK_EQUAL(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), 4);
        close_writer(writer);
        for (uint64_t seq = 0; seq < 5; seq++) /* the second of a batch is synced with the first */
            CHECK_EQUAL(says_synced("000000000.q", seq), modes[i] == AC_FLUSH_SYNC && seq != 3);
        nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* Padding has no seq, and no append waits for it. A power cut may leave the record after it without the padding:
 * treating that as damage would stop readers at a hole. */
TEST(a_record_does_not_say_so_of_padding_that_was_not_synced) {
    ac_writer_config_t config = small_queue(SEGMENT);
    void *room;
    config.flush_mode = AC_FLUSH_SYNC;
    config.inline_housekeeping = 2; /* the segment that is left is not sealed on the way */
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 1);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_OK(ac_writer_reserve(writer, 700, &room, &err), err);
        ac_writer_abandon(writer);
        append_numbered(writer, 2); /* which syncs the padding, too */
        CHECK_EQUAL(says_synced("000000000.q", 2 * i + 1), 0);
        CHECK_EQUAL(says_synced("000000000.q", 2 * i + 2), 1);
    }
    /* At the end of a segment it comes after all of the records. */
    CHECK_OK(ac_writer_reserve(writer, 1000, &room, &err), err);
    ac_writer_abandon(writer);
    static const uint8_t large[2000];
    CHECK_EQUAL(ac_writer_append(writer, large, sizeof large, 0, AC_NOW, &err), 5);
    CHECK_EQUAL(first_of("000000001.q"), 5);
    CHECK_EQUAL(says_synced("000000001.q", 5), 1);
    close_writer(writer);
}

/* What may happen to a record, and to index.meta. */
enum damage { FLIPPED_PAYLOAD, FLIPPED_HEADER, NO_COMMIT_WORD, ZEROED, DAMAGES };
enum mark { MARK_ZERO, MARK_MISSING, MARKS };

static void damage(const char *name, uint64_t seq, enum damage how) {
    uint8_t noise = 0xa5;
    int64_t offset = find(name, seq);
    CHECK(offset > 0);
    uint64_t at = (uint64_t)offset, size = ac_record_size(seq * 37 % 300);
    if (how == FLIPPED_PAYLOAD) poke(check_path("queue"), name, at + AC_HEADER_SIZE, &noise, 1);
    if (how == FLIPPED_HEADER) poke(check_path("queue"), name, at + 9, &noise, 1);
    if (how == NO_COMMIT_WORD) zero(name, at, at + 4);
    if (how == ZEROED) zero(name, at, at + size);
}

static void lose_mark(enum mark how) {
    set_durable(0, 0);
    if (how == MARK_MISSING) remove_in(check_path("queue"), "index.meta");
}

/* Checks that all messages up to `count` can be read, except those from `first_lost` to before `next`. */
static void check_only_lost(uint64_t first_lost, uint64_t next, uint64_t count) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_message_t message;
    ac_reader_defaults(&config);
    config.start = AC_START_FIRST;
    config.verify = 1;
    config.skip_corrupt = 1;
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    for (uint64_t seq = 0; seq < count; seq++) {
        if (seq >= first_lost && seq < next) continue;
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        CHECK_EQUAL(message.seq, seq);
        check_payload(&message);
    }
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 0);
    ac_reader_free(reader);
}

/* Checks that one record was damaged and nothing else was lost. */
static void check_nothing_cut(uint64_t lost, uint64_t next_seq) {
    CHECK_EQUAL(recover(), next_seq);
    CHECK_EQUAL(report.corrupt_records, 1);
    CHECK_EQUAL(report.torn_records, 0);
    CHECK_EQUAL(report.bytes_set_aside, 0);
    CHECK_EQUAL(report.segments_set_aside, 0);
    CHECK(!exists(check_path("queue"), "recovered"));
    check_only_lost(lost, lost + 1, next_seq + 1);
}

TEST_IN_MEMORY(in_sync_mode_damage_before_another_record_is_not_the_end_though_index_meta_is_lost) {
    for (int how = 0; how < DAMAGES; how++)
        for (int mark = 0; mark < MARKS; mark++)
            for (uint64_t seq = 1; seq < 8; seq += 2) {
                leave_by(AC_FLUSH_SYNC, 0, 9);
                damage("000000000.q", seq, (enum damage)how);
                lose_mark((enum mark)mark);
                check_nothing_cut(seq, 9);
                start_again();
            }
}

/* The same if it is the only record, and what it proves is zeros that only its seq shows to have been a
 * record. */
TEST_IN_MEMORY(in_sync_mode_the_first_record_of_a_segment_proves_all_of_the_one_before) {
    leave_by(AC_FLUSH_SYNC, 0, 40);
    int next = (int)first_of("000000001.q");
    start_again();
    for (int how = 0; how < DAMAGES; how++)
        for (int mark = 0; mark < MARKS; mark++)
            for (int sealed = 0; sealed < 2; sealed++)
                for (int more = 0; more < 30; more += 29) {
                    leave_by(AC_FLUSH_SYNC, 0, next + 1 + more);
                    if (!sealed) set_sealed("000000000.q", 0);
                    damage("000000000.q", (uint64_t)next - 1, (enum damage)how);
                    lose_mark((enum mark)mark);
                    check_nothing_cut((uint64_t)next - 1, (uint64_t)next + 1 + (uint64_t)more);
                    start_again();
                }
}

TEST_IN_MEMORY(in_sync_mode_damage_on_both_sides_of_a_roll_is_not_the_end_either) {
    for (int how = 0; how < DAMAGES; how++)
        for (int sealed = 0; sealed < 2; sealed++) {
            leave_by(AC_FLUSH_SYNC, 0, 40);
            uint64_t next = first_of("000000001.q");
            if (!sealed) set_sealed("000000000.q", 0);
            damage("000000000.q", next - 1, (enum damage)how);
            damage("000000001.q", next, (enum damage)how);
            lose_mark(MARK_ZERO);
            CHECK_EQUAL(recover(), 40);
            CHECK(report.corrupt_records > 0);
            CHECK(!exists(check_path("queue"), "recovered"));
            check_only_lost(next - 1, next + 1, 41);
            start_again();
        }
}

TEST_IN_MEMORY(in_async_mode_the_same_damage_ends_the_queue) {
    for (int how = 0; how < DAMAGES; how++)
        for (int mark = 0; mark < MARKS; mark++) {
            leave(0, 40);
            damage("000000000.q", 3, (enum damage)how);
            lose_mark((enum mark)mark);
            CHECK_EQUAL(recover(), 3);
            CHECK_EQUAL(report.corrupt_records, 0);
            CHECK(report.bytes_set_aside > 0);
            CHECK(report.segments_set_aside > 0);
            check_whole(3);
            start_again();
            leave(0, 40);
            uint64_t last = first_of("000000001.q") - 1;
            damage("000000000.q", last, (enum damage)how);
            lose_mark((enum mark)mark);
            CHECK_EQUAL(recover(), last);
            CHECK_EQUAL(report.corrupt_records, 0);
            check_whole(last);
            start_again();
        }
}

/* Gives the record with this seq in the first segment other claims, and a header check that matches
 * them. */
static void forge_proof(uint64_t seq, uint64_t claimed_seq, int epochs_later) {
    static uint8_t bytes[SEGMENT] __attribute__((aligned(64)));
    int64_t offset = find("000000000.q", seq);
    CHECK(offset > 0);
    peek(check_path("queue"), "000000000.q", 0, bytes, SEGMENT);
    ac_record_t header;
    memcpy(&header, bytes + offset, sizeof header);
    ac_stamp_t stamp = {.seq = claimed_seq,
                        .timestamp_ns = header.timestamp_ns,
                        .epoch = header.epoch + (uint32_t)epochs_later,
                        .type_id = header.type_id,
                        .flags = AC_FLAG_SYNCED};
    ac_record_write_header(bytes + offset, header.commit_len - 1, header.checksum, &stamp,
                           ac_crc32c_seed(0, stamp.epoch));
    poke(check_path("queue"), "000000000.q", (uint64_t)offset, bytes + offset, sizeof header);
}

TEST_IN_MEMORY(a_proof_that_cannot_be_of_this_queue_now_proves_nothing) {
    static const struct {
        uint64_t seq;
        int epochs_later;
        int proves;
    } claims[] = {{7, 0, 1}, {7, 1, 0}, {7, 1000000, 0}, {4, 0, 0}, {0, 0, 0}, {7, -1, 0}};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        leave(0, 9);
        damage("000000000.q", 5, FLIPPED_PAYLOAD);
        forge_proof(7, claims[i].seq, claims[i].epochs_later);
        damage("000000000.q", 5, FLIPPED_HEADER); /* find steps by headers, so it comes last */
        lose_mark(MARK_ZERO);
        CHECK_EQUAL(recover(), claims[i].proves ? 9 : 5);
        CHECK_EQUAL(report.corrupt_records, claims[i].proves);
        CHECK_EQUAL(report.torn_records, !claims[i].proves);
        if (!claims[i].proves) check_whole(5);
        start_again();
    }
}

/* ---- consent ---- */

static uint8_t *read_whole(const char *path, size_t *size) {
    struct stat info;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    *size = (size_t)info.st_size;
    uint8_t *bytes = malloc(*size + 1);
    CHECK(bytes != NULL);
    CHECK_EQUAL(ac_os_read_at(fd, bytes, *size, 0), *size);
    close(fd);
    return bytes;
}

static void check_same_file(const char *before, const char *after, int is_control) {
    size_t sizes[2];
    uint8_t *bytes[2] = {read_whole(before, &sizes[0]), read_whole(after, &sizes[1])};
    CHECK_EQUAL(sizes[0], sizes[1]);
    for (int i = 0; i < 2 && is_control; i++) { /* the holder of the lock may be another one */
        memset(bytes[i] + offsetof(ac_control_t, writer_boot), 0, 8);
        memset(bytes[i] + offsetof(ac_control_t, writer_namespace), 0, 8);
    }
    CHECK(memcmp(bytes[0], bytes[1], sizes[0]) == 0);
    free(bytes[0]);
    free(bytes[1]);
}

/* Checks that two directories have the same files with the same bytes, except for the lock's holder. */
static void check_same(const char *before, const char *after) {
    int entries[2] = {0};
    for (int i = 0; i < 2; i++) {
        DIR *stream = opendir(i ? after : before);
        CHECK(stream != NULL);
        struct dirent *entry;
        while ((entry = readdir(stream))) {
            char paths[2][1400];
            struct stat info;
            if (entry->d_name[0] == '.') continue;
            entries[i]++;
            if (i == 1 || strcmp(entry->d_name, "writer.lock") == 0) continue;
            snprintf(paths[0], sizeof paths[0], "%s/%s", before, entry->d_name);
            snprintf(paths[1], sizeof paths[1], "%s/%s", after, entry->d_name);
            CHECK_EQUAL(lstat(paths[0], &info), 0);
            if (S_ISDIR(info.st_mode))
                check_same(paths[0], paths[1]);
            else
                check_same_file(paths[0], paths[1], strcmp(entry->d_name, "control.meta") == 0);
        }
        closedir(stream);
    }
    CHECK_EQUAL(entries[0], entries[1]);
}

/* Without consent nothing is changed, however often the opening is tried. */
static void check_refused_and_unchanged(const char *why) {
    copy_queue(check_path("queue"), check_path("before"));
    for (int i = 0; i < 2; i++) {
        ac_writer_config_t config = small_queue(SEGMENT);
        ac_writer_t *writer = NULL;
        CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_SALVAGE);
        CHECK(strstr(err.detail, why) != NULL);
        CHECK(strstr(err.detail, "salvage") != NULL);
        check_same(check_path("before"), check_path("queue"));
    }
    nftw(check_path("before"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static uint64_t recover_with_consent(void) {
    salvage = 1;
    uint64_t next_seq = recover();
    salvage = 0;
    return next_seq;
}

static uint32_t last_segment(void) {
    uint32_t id = 0;
    for (uint32_t i = 0; i < 100; i++)
        if (is_there(i)) id = i;
    return id;
}

static int count_in(const char *directory, const char *name_end) {
    int count = 0;
    DIR *stream = opendir(directory);
    if (!stream) return 0;
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        size_t have = strlen(entry->d_name), want = strlen(name_end);
        count += have > want && strcmp(entry->d_name + have - want, name_end) == 0;
    }
    closedir(stream);
    return count;
}

static void remove_segment(uint32_t id) {
    char name[AC_NAME_MAX];
    ac_segment_name(name, id, ".q");
    remove_in(check_path("queue"), name);
    ac_segment_name(name, id, ".idx");
    if (exists(check_path("queue"), name)) remove_in(check_path("queue"), name);
}

TEST_IN_MEMORY(what_follows_a_missing_segment_is_set_aside_with_consent_only) {
    for (uint64_t durable = 0; durable < 2; durable++) {
        leave(1, 80);
        uint64_t next = first_of("000000002.q");
        uint32_t last = last_segment();
        CHECK(last >= 4);
        set_durable(durable, AC_SEGMENT_DATA);
        remove_segment(2);
        check_refused_and_unchanged("segment 2 is missing, but segment 3");
        CHECK_EQUAL(recover_with_consent(), next);
        CHECK_EQUAL(report.segments_set_aside, last - 2);
        CHECK_EQUAL(count_in(check_path("queue/recovered"), ".q"), last - 2);
        CHECK_EQUAL(report.end_segment, 1);
        check_whole(next);
        start_again();
    }
}

/* A file without a header counts as missing. */
TEST_IN_MEMORY(what_follows_a_segment_without_a_header_is_set_aside_with_consent_only) {
    leave(1, 80);
    uint64_t next = first_of("000000002.q");
    set_durable(0, AC_SEGMENT_DATA);
    zero("000000002.q", 0, AC_SEGMENT_DATA);
    check_refused_and_unchanged("segment 2 is missing, but segment 3");
    CHECK_EQUAL(recover_with_consent(), next);
    check_whole(next);
}

TEST_IN_MEMORY(an_end_before_the_durable_segment_takes_consent) {
    leave(1, 80);
    uint32_t last = last_segment();
    char name[AC_NAME_MAX];
    ac_segment_name(name, last, ".q");
    uint64_t next = first_of(name);
    set_durable(last, AC_SEGMENT_DATA + 64);
    remove_segment(last);
    check_refused_and_unchanged("index.meta says that segment");
    CHECK_EQUAL(recover_with_consent(), next);
    CHECK_EQUAL(report.segments_set_aside, 0);
    check_whole(next);
}

TEST_IN_MEMORY(the_unsynced_tail_of_a_power_cut_takes_no_consent) {
    for (int how = 0; how < DAMAGES; how++) {
        leave(1, 80);
        uint64_t torn = first_of("000000002.q") + 2;
        uint32_t last = last_segment();
        CHECK(last >= 4);
        set_durable(0, AC_SEGMENT_DATA);
        damage("000000002.q", torn, (enum damage)how);
        CHECK_EQUAL(recover(), torn);
        CHECK_EQUAL(report.segments_set_aside, last - 2);
        CHECK(report.bytes_set_aside > 0);
        check_whole(torn);
        start_again();
    }
}

/* ---- whatever is zeroed is kept elsewhere ---- */

enum { BIG = 4 * SEGMENT, BIG_COUNT = 30 };

static uint64_t offset_of(uint64_t seq) {
    uint64_t offset = AC_SEGMENT_DATA;
    for (uint64_t i = 0; i < seq; i++)
        offset += ac_record_size(i * 37 % 300);
    return offset;
}

/* A queue with one segment of several pages, of which `bytes` is a copy. */
static void leave_big(uint8_t bytes[BIG]) {
    ac_writer_config_t config = small_queue(BIG);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    append_numbered(writer, BIG_COUNT);
    CHECK(offset_of(BIG_COUNT) > BIG / 4 && offset_of(BIG_COUNT) < BIG - SEGMENT);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
    peek(check_path("queue"), "000000000.q", 0, bytes, BIG);
}

static void poke_big(uint8_t bytes[BIG], uint64_t offset, uint8_t byte) {
    bytes[offset] = byte;
    poke(check_path("queue"), "000000000.q", offset, &byte, 1);
}

static void open_big(uint64_t next_seq) {
    ac_writer_config_t config = small_queue(BIG);
    ac_writer_stats_t stats;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_writer_recovery(writer, &report);
    ac_writer_stats(writer, &stats);
    CHECK_EQUAL(stats.next_seq, next_seq);
    close_writer(writer);
}

/* Checks that recovered/ has, of the segment that ends at `end`, the bytes from there to before `tail_end`, as the
 * copy with this number. */
static void check_kept(const uint8_t bytes[BIG], uint64_t end, uint64_t tail_end, int number) {
    ac_control_t control;
    peek(check_path("live"), "control.meta", 0, &control, sizeof control);
    char name[96], suffix[16] = "";
    if (number > 0) snprintf(suffix, sizeof suffix, "-%d", number);
    snprintf(name, sizeof name, "queue/recovered/000000000-%llu-%u%s.bin", (unsigned long long)end,
             (unsigned)control.writer_epoch, suffix);
    size_t size;
    uint8_t *kept = read_whole(check_path(name), &size);
    CHECK_EQUAL(size, tail_end - end);
    CHECK(memcmp(kept, bytes + end, size) == 0);
    free(kept);
}

TEST(every_byte_that_is_zeroed_is_kept_first) {
    static uint8_t bytes[BIG], after[BIG];
    for (int torn = 0; torn < 2; torn++) {
        leave_big(bytes);
        uint64_t next = torn ? 5 : BIG_COUNT, end = offset_of(next);
        if (torn) poke_big(bytes, end + AC_HEADER_SIZE, 0xff);
        poke_big(bytes, offset_of(BIG_COUNT) + 100, 1); /* as of a record that was not committed */
        poke_big(bytes, BIG - 700, 2);
        open_big(next);
        CHECK_EQUAL(report.torn_records, torn);
        CHECK_EQUAL(report.bytes_set_aside, BIG - 699 - end);
        CHECK_EQUAL(count_in(check_path("queue/recovered"), ".bin"), 1);
        check_kept(bytes, end, BIG - 699, 0);
        peek(check_path("queue"), "000000000.q", 0, after, BIG);
        CHECK(memcmp(after + AC_SEGMENT_DATA, bytes + AC_SEGMENT_DATA, end - AC_SEGMENT_DATA) == 0);
        for (uint64_t i = end; i < BIG; i++)
            CHECK_EQUAL(after[i], 0);
        start_again();
    }
}

/* The last byte of a segment counts like any other. */
TEST(a_byte_at_the_end_of_the_segment_is_kept_and_zeros_are_not) {
    static uint8_t bytes[BIG];
    leave_big(bytes);
    open_big(BIG_COUNT);
    CHECK(!exists(check_path("queue"), "recovered"));
    start_again();
    leave_big(bytes);
    poke_big(bytes, BIG - 1, 1);
    open_big(BIG_COUNT);
    check_kept(bytes, offset_of(BIG_COUNT), BIG, 0);
}

/* Fails the calls of one kind on the first segment. */
static int fail_on_segment(void *context, int call, const char *path, int fd, uint64_t offset,
                           uint64_t length) {
    failing_t *failing = context;
    char link[64], name[1400];
    (void)path;
    (void)offset;
    (void)length;
    if (call != failing->call) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, name, sizeof name - 1);
    if (got < 0) return 0;
    name[got] = 0;
    if (!strstr(name, "000000000.q")) return 0;
    failing->failed++;
    return failing->error;
}

static void interrupt_big(int call) {
    failing_t failing = {.call = call, .error = EIO};
    ac_writer_config_t config = small_queue(BIG);
    ac_writer_t *writer = NULL;
    ac_os_set_hook(fail_on_segment, &failing);
    CHECK_FAILS(ac_writer_open(check_path("queue"), &config, &writer, &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(failing.failed, 1);
}

TEST(a_recovery_that_follows_an_interrupted_one_leaves_its_copy_alone) {
    static uint8_t bytes[BIG], left[BIG];
    uint64_t end = offset_of(5), tail_end = offset_of(BIG_COUNT);
    leave_big(bytes);
    poke_big(bytes, end + AC_HEADER_SIZE, 0xff);
    while (bytes[tail_end - 1] == 0)
        tail_end--;
    interrupt_big(AC_CALL_ZERO); /* one page is zeroed by then, the others are not */
    check_kept(bytes, end, tail_end, 0);
    peek(check_path("queue"), "000000000.q", 0, left, BIG);
    CHECK_EQUAL(left[end + AC_HEADER_SIZE], 0);
    CHECK(memcmp(left + SEGMENT, bytes + SEGMENT, BIG - SEGMENT) == 0);
    interrupt_big(AC_CALL_SYNC); /* all of it is zeroed, but a power cut may bring it back */
    check_kept(bytes, end, tail_end, 0);
    check_kept(left, end, tail_end, 1);
    poke(check_path("queue"), "000000000.q", end, bytes + end, BIG - end);
    open_big(5);
    check_kept(bytes, end, tail_end, 0);
    check_kept(left, end, tail_end, 1);
    check_kept(bytes, end, tail_end, 2);
    CHECK_EQUAL(count_in(check_path("queue/recovered"), ".bin"), 3);
    CHECK_EQUAL(count_numbered(check_path("queue")), 5);
}

/* The first page of a segment may be missing on disk, and the others be there. */
TEST(a_segment_whose_first_record_is_missing_is_kept_with_what_else_it_holds) {
    leave(1, 80);
    uint32_t last = last_segment();
    CHECK(last >= 4);
    set_durable(0, AC_SEGMENT_DATA);
    damage("000000000.q", 5, FLIPPED_PAYLOAD);
    zero("000000002.q", AC_SEGMENT_DATA, AC_SEGMENT_DATA + 512);
    CHECK_EQUAL(recover(), 5);
    CHECK_EQUAL(report.segments_set_aside, last);
    CHECK_EQUAL(count_in(check_path("queue/recovered"), ".q"), last);
    check_whole(5);
}

/* ---- where the queue continues ---- */

/* Makes the last writer belong to an earlier boot of the machine. */
static void start_machine_anew(void) {
    uint64_t boot = ac_os_boot_id() + 1;
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, recovered_boot), &boot, 8);
}

/* Opens, appends one, and returns the segment that it went to. */
static uint64_t segment_of_next(int inline_housekeeping) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_stats_t stats;
    config.inline_housekeeping = inline_housekeeping;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    ac_writer_recovery(writer, &report);
    append_numbered(writer, 1);
    ac_writer_stats(writer, &stats);
    close_writer(writer);
    return stats.segment;
}

static ac_segment_header_t header_of(const char *name) {
    ac_segment_header_t header;
    peek(check_path("queue"), name, 0, &header, sizeof header);
    return header;
}

TEST(after_a_power_cut_the_queue_goes_on_in_a_new_segment) {
    leave(5, 9);
    start_machine_anew();
    CHECK_EQUAL(segment_of_next(1), 1);
    CHECK(!report.clean);
    CHECK_EQUAL(report.torn_records, 0);
    CHECK_EQUAL(header_of("000000000.q").flags & AC_SEGMENT_SEALED, AC_SEGMENT_SEALED);
    CHECK_EQUAL(header_of("000000000.q").end, offset_of(9));
    CHECK_EQUAL(first_of("000000001.q"), 9);
    check_whole(9);
    forget_close(); /* another kill, under the boot that has repaired it */
    CHECK_EQUAL(segment_of_next(1), 1);
    check_whole(10);
}

TEST(after_a_kill_the_queue_goes_on_where_it_is) {
    leave(5, 9);
    CHECK_EQUAL(segment_of_next(1), 0);
    CHECK(!report.clean);
    CHECK_EQUAL(header_of("000000000.q").flags, 0);
    CHECK_EQUAL(find("000000000.q", 9), offset_of(9));
    check_whole(9);
}

TEST(after_a_clean_close_the_queue_goes_on_where_it_is_under_any_boot) {
    ac_writer_config_t config = small_queue(SEGMENT);
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    append_numbered(writer, 9);
    close_writer(writer);
    start_machine_anew();
    CHECK_EQUAL(segment_of_next(1), 0);
    CHECK(report.clean);
    CHECK_EQUAL(header_of("000000000.q").flags, 0);
    check_whole(9);
}

TEST(after_something_was_cut_off_the_queue_goes_on_in_a_new_segment) {
    leave(2, 9);
    damage("000000000.q", 5, FLIPPED_PAYLOAD);
    CHECK_EQUAL(segment_of_next(1), 1);
    CHECK_EQUAL(header_of("000000000.q").end, offset_of(5));
    check_whole(5);
}

/* Positions in it were handed out, so it is skipped, and costs no more than a page. */
TEST(a_segment_that_is_left_empty_gives_its_blocks_back_and_stays_sealed) {
    enum { LARGE = 1 << 20 };
    ac_writer_config_t config = small_queue(LARGE);
    ac_writer_t *writer = open_writer(check_path("live"), &config);
    copy_queue(check_path("live"), check_path("queue"));
    close_writer(writer);
    start_machine_anew();
    CHECK_EQUAL(segment_of_next(1), 1);
    for (int verify = 0; verify < 2; verify++) {
        struct stat info;
        CHECK_EQUAL(stat(check_path("queue/000000000.q"), &info), 0);
        CHECK_EQUAL(info.st_size, LARGE);
        CHECK(info.st_blocks * 512 <= 4 * (int64_t)ac_os_page_size());
        CHECK_EQUAL(header_of("000000000.q").flags & AC_SEGMENT_SEALED, AC_SEGMENT_SEALED);
        CHECK_EQUAL(header_of("000000000.q").end, AC_SEGMENT_DATA);
        forget_close();
        set_durable(0, 0); /* walked from the start, too */
        CHECK_EQUAL(recover_with(verify), 1 + verify);
        CHECK_EQUAL(report.corrupt_records, 0);
        CHECK_EQUAL(report.segments_set_aside, 0);
        check_whole(1 + (uint64_t)verify);
    }
}

static struct {
    ac_reader_t *reader;
    uint32_t waiting;
} parked;

static void *wait_for_more(void *unused) {
    ac_error_t why;
    ac_exchange_seq_cst_u32(&parked.waiting, 1);
    CHECK_EQUAL(ac_reader_wait(parked.reader, 30000000000u, 0, &why), 1);
    return unused;
}

TEST(a_reader_that_is_parked_at_the_end_goes_on_in_the_new_segment) {
    for (int housekeeping = 0; housekeeping < 2; housekeeping++) {
        pthread_t thread;
        leave(5, 9);
        parked.reader = open_reader(check_path("queue"), "r", AC_START_FIRST);
        parked.waiting = 0;
        CHECK_EQUAL(read_numbered(parked.reader, 0), 9);
        CHECK_EQUAL(pthread_create(&thread, NULL, wait_for_more, NULL), 0);
        while (!ac_load_acquire_u32(&parked.waiting))
            ac_os_sleep_ns(1000000);
        start_machine_anew();
        CHECK_EQUAL(segment_of_next(housekeeping), 1);
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
        CHECK_EQUAL(read_numbered(parked.reader, 9), 10);
        uint64_t segment, offset;
        ac_reader_position(parked.reader, &segment, &offset);
        CHECK_EQUAL(segment, 1);
        CHECK_OK(ac_reader_commit(parked.reader, segment, offset, 0, &err), err);
        ac_reader_free(parked.reader);
        start_again();
    }
}

/* ---- blocks that do not count as written ---- */

int __real_ac_os_has_unwritten(int fd, uint64_t from, uint64_t to);
int __wrap_ac_os_has_unwritten(int fd, uint64_t from, uint64_t to);

static struct {
    int always, asked;
} unwritten;

/* What a file system may report after a failed sync: see tests/faults/test_device_failed_sync.py. */
int __wrap_ac_os_has_unwritten(int fd, uint64_t from, uint64_t to) {
    unwritten.asked++;
    int rc = __real_ac_os_has_unwritten(fd, from, to); /* which a hook may fail */
    return rc < 0 || !unwritten.always ? rc : 1;
}

static ino_t inode_of(const char *name) {
    struct stat info;
    CHECK_EQUAL(stat(check_path(name), &info), 0);
    return info.st_ino;
}

TEST(records_whose_blocks_are_not_written_go_into_another_file_and_readers_go_on_after_it) {
    leave(5, 9);
    ino_t before = inode_of("queue/000000000.q");
    ac_reader_t *reader = open_reader(check_path("queue"), NULL, AC_START_FIRST);
    CHECK_EQUAL(read_numbered(reader, 0), 9);
    unwritten.always = 1;
    CHECK_EQUAL(segment_of_next(1), 1);
    unwritten.always = 0;
    CHECK(inode_of("queue/000000000.q") != before);
    CHECK(!exists(check_path("queue"), "000000000.q.tmp"));
    CHECK_EQUAL(header_of("000000000.q").flags & AC_SEGMENT_SEALED, AC_SEGMENT_SEALED);
    CHECK_EQUAL(header_of("000000000.q").end, offset_of(9));
    CHECK_EQUAL(read_numbered(reader, 9), 10); /* it has the old file mapped */
    ac_reader_free(reader);
    check_whole(9);
}

TEST(every_segment_that_is_not_known_to_be_durable_is_asked_for_its_blocks) {
    for (int verify = 0; verify < 2; verify++) {
        leave(1, 40);
        set_durable(1, AC_SEGMENT_DATA);
        CHECK_EQUAL(last_segment(), 2);
        uint64_t end = header_of("000000001.q").end;
        ino_t before[3] = {inode_of("queue/000000000.q"), inode_of("queue/000000001.q"),
                           inode_of("queue/000000002.q")};
        unwritten.always = 1;
        unwritten.asked = 0;
        CHECK_EQUAL(recover_with(verify), 40);
        unwritten.always = 0;
        CHECK_EQUAL(unwritten.asked, 2);
        CHECK(inode_of("queue/000000000.q") == before[0]);
        CHECK(inode_of("queue/000000001.q") != before[1]);
        CHECK(inode_of("queue/000000002.q") != before[2]);
        CHECK_EQUAL(header_of("000000001.q").flags & AC_SEGMENT_SEALED, AC_SEGMENT_SEALED);
        CHECK_EQUAL(header_of("000000001.q").end, end);
        check_whole(40);
        start_again();
    }
}

TEST_IN_MEMORY(a_recovery_that_writes_segments_again_can_be_repeated) {
    leave(5, 40);
    set_durable(0, AC_SEGMENT_DATA);
    unwritten.always = 1;
    CHECK(fail_every_call(40) > 30);
    unwritten.always = 0;
}
