/* The merge of several queues: its order, its heap as sources come and go, how idle sources are polled,
 * when strict order releases a message, and what happens to a source that fails. */
#include "fanin.h"
#include "queue.h"

enum { SEGMENT = 1 << 16, QUEUES_MAX = 24, MESSAGES_MAX = 4000 };

static ac_error_t err;

/* Queues and their readers; a source is attached while its slot is known. */
typedef struct hall {
    ac_fanin_t *fanin;
    int queues;
    ac_writer_t *writers[QUEUES_MAX];
    ac_reader_t *readers[QUEUES_MAX];
    uint32_t slots[QUEUES_MAX], ids[QUEUES_MAX];
    uint64_t next_seq[QUEUES_MAX]; /* of the next message to be delivered */
    uint64_t last_ns[QUEUES_MAX];
} hall_t;

enum { DETACHED = UINT32_MAX };

static int halls; /* each has queues of its own */

static const char *queue_path(int queue) {
    char name[32];
    snprintf(name, sizeof name, "%d-%d", halls, queue);
    return check_path(name);
}

static void attach(hall_t *hall, int queue) {
    CHECK_OK(ac_fanin_attach(hall->fanin, hall->readers[queue], &hall->slots[queue],
                             &hall->ids[queue], &err),
             err);
}

static void detach(hall_t *hall, int queue) {
    ac_fanin_detach(hall->fanin, hall->slots[queue]);
    hall->slots[queue] = DETACHED;
}

static void open_hall(hall_t *hall, int queues, int strict, uint64_t max_wait_ns) {
    ac_writer_config_t config = small_queue(SEGMENT);
    memset(hall, 0, sizeof *hall);
    halls++;
    hall->queues = queues;
    CHECK_OK(ac_fanin_new(strict, max_wait_ns, &hall->fanin, &err), err);
    for (int i = 0; i < queues; i++) {
        hall->writers[i] = open_writer(queue_path(i), &config);
        hall->readers[i] = open_reader(queue_path(i), "merge", AC_START_COMMITTED);
        attach(hall, i);
    }
}

static void close_hall(hall_t *hall) {
    CHECK_EQUAL(ac_fanin_check(hall->fanin), 0);
    ac_fanin_free(hall->fanin);
    for (int i = 0; i < hall->queues; i++) {
        ac_reader_free(hall->readers[i]);
        if (hall->writers[i]) close_writer(hall->writers[i]);
    }
}

static void append_at(hall_t *hall, int queue, uint64_t timestamp_ns) {
    uint8_t payload[PAYLOAD_MAX];
    ac_writer_stats_t stats;
    ac_writer_stats(hall->writers[queue], &stats);
    size_t length = payload_of(stats.next_seq, payload);
    CHECK_OK(ac_writer_append(hall->writers[queue], payload, length, 7, timestamp_ns, &err), err);
    hall->last_ns[queue] = timestamp_ns;
}

static int queue_in(const hall_t *hall, uint32_t slot) {
    for (int i = 0; i < hall->queues; i++)
        if (hall->slots[i] == slot) return i;
    CHECK(!"a slot that nobody has");
    return -1;
}

/* Returns the queue that the next message comes from, -1 = no message; each queue delivers all messages in
 * order. */
static int take(hall_t *hall, ac_message_t *message, int *late) {
    uint32_t slot;
    int rc = ac_fanin_next(hall->fanin, message, &slot, late, &err);
    CHECK_OK(rc, err);
    CHECK_EQUAL(ac_fanin_check(hall->fanin), 0);
    if (rc == 0) return -1;
    int queue = queue_in(hall, slot);
    CHECK_EQUAL(message->seq, hall->next_seq[queue]);
    check_payload(message);
    hall->next_seq[queue]++;
    return queue;
}

static void expect(hall_t *hall, int queue, uint64_t timestamp_ns) {
    ac_message_t message;
    int late;
    CHECK_EQUAL(take(hall, &message, &late), queue);
    CHECK_EQUAL(message.timestamp_ns, timestamp_ns);
    CHECK_EQUAL(late, 0);
}

static void expect_nothing(hall_t *hall) {
    ac_message_t message;
    int late;
    CHECK_EQUAL(take(hall, &message, &late), -1);
}

/* ---- order ---- */

typedef struct sort_key {
    uint64_t timestamp_ns;
    int queue;
} sort_key_t;

static int by_key(const void *a, const void *b) {
    const sort_key_t *left = a, *right = b;
    if (left->timestamp_ns != right->timestamp_ns)
        return left->timestamp_ns < right->timestamp_ns ? -1 : 1;
    return left->queue - right->queue;
}

/* Few different timestamps, so that most of them occur several times. */
static void check_merge_against_sort(uint64_t *dice, int strict) {
    static sort_key_t keys[MESSAGES_MAX];
    hall_t hall;
    int queues = 1 + (int)(check_random(dice) % QUEUES_MAX);
    int count = (int)(check_random(dice) % MESSAGES_MAX);
    open_hall(&hall, queues, strict, UINT64_MAX);
    for (int i = 0; i < count; i++) {
        int queue = (int)(check_random(dice) % (uint64_t)queues);
        uint64_t step = check_random(dice) % 4 == 0 ? check_random(dice) % 50 : 0;
        append_at(&hall, queue, hall.last_ns[queue] + step);
        keys[i] = (sort_key_t){hall.last_ns[queue], queue};
    }
    for (int i = 0; i < queues; i++) { /* strict order no longer waits for closed queues */
        close_writer(hall.writers[i]);
        hall.writers[i] = NULL;
    }
    qsort(keys, (size_t)count, sizeof *keys, by_key);
    for (int i = 0; i < count; i++)
        expect(&hall, keys[i].queue, keys[i].timestamp_ns);
    expect_nothing(&hall);
    close_hall(&hall);
}

TEST_IN_MEMORY(a_merge_is_a_sort_by_time_and_source) {
    uint64_t dice = check_seed() | 1;
    for (int round = 0; round < 8; round++)
        check_merge_against_sort(&dice, round & 1);
}

TEST_IN_MEMORY(coming_and_going_loses_and_repeats_nothing) {
    hall_t hall;
    ac_message_t message;
    int late;
    uint64_t dice = check_seed() | 1, now_ns = 1000, appended = 0, taken = 0;
    open_hall(&hall, 12, 0, UINT64_MAX);
    for (int step = 0; step < 20000; step++) {
        int queue = (int)(check_random(&dice) % 12);
        switch (check_random(&dice) % 8) {
        case 0:
            if (hall.slots[queue] != DETACHED) detach(&hall, queue);
            break;
        case 1:
            if (hall.slots[queue] == DETACHED) attach(&hall, queue);
            break;
        case 2:
        case 3:
        case 4:
            append_at(&hall, queue, now_ns += check_random(&dice) % 3);
            appended++;
            break;
        default:
            taken += take(&hall, &message, &late) >= 0;
        }
        CHECK_EQUAL(ac_fanin_check(hall.fanin), 0);
    }
    for (int i = 0; i < 12; i++)
        if (hall.slots[i] == DETACHED) attach(&hall, i);
    while (take(&hall, &message, &late) >= 0)
        taken++;
    CHECK_EQUAL(taken, appended);
    close_hall(&hall);
}

TEST(a_detached_reader_stands_behind_what_was_delivered) {
    hall_t hall;
    ac_message_t message;
    uint64_t segment, offset;
    open_hall(&hall, 2, 0, UINT64_MAX);
    for (uint64_t i = 0; i < 4; i++)
        append_at(&hall, 0, 10 * i);
    append_at(&hall, 1, 15);
    expect(&hall, 0, 0);
    expect(&hall, 0, 10);
    expect(&hall, 1, 15); /* and the third of queue 0 is read ahead by now */
    CHECK_OK(ac_fanin_commit(hall.fanin, hall.slots[0], &err), err);
    CHECK_OK(ac_reader_committed(hall.readers[0], &segment, &offset, &err), err);
    detach(&hall, 0);
    uint64_t stands_segment, stands_offset;
    ac_reader_position(hall.readers[0], &stands_segment, &stands_offset);
    CHECK_EQUAL(stands_segment, segment);
    CHECK_EQUAL(stands_offset, offset);
    CHECK_EQUAL(ac_reader_next(hall.readers[0], &message, &err), 1);
    CHECK_EQUAL(message.seq, 2);
    close_hall(&hall);
}

TEST(a_source_goes_back_and_delivers_again_without_being_late) {
    hall_t hall;
    uint64_t segment, offset;
    open_hall(&hall, 2, 0, UINT64_MAX);
    for (uint64_t i = 0; i < 4; i++) {
        append_at(&hall, 0, 10 * i);
        append_at(&hall, 1, 10 * i + 5);
    }
    expect(&hall, 0, 0);
    ac_reader_position(hall.readers[0], &segment, &offset);
    for (int round = 0; round < 3;
         round++) { /* with its next message read ahead, or just delivered */
        expect(&hall, round == 0, round == 0 ? 5 : 10);
        if (round == 0) expect(&hall, 0, 10);
        CHECK_OK(ac_fanin_go_back(hall.fanin, hall.slots[0], segment, offset, 5, &err), err);
        hall.next_seq[0] = 1;
        CHECK_EQUAL(ac_fanin_check(hall.fanin), 0);
    }
    expect(&hall, 0, 10);
    expect(&hall, 1, 15);
    expect(&hall, 0, 20);
    ac_fanin_stats_t stats;
    ac_fanin_stats(hall.fanin, &stats);
    CHECK_EQUAL(stats.late, 0);
    CHECK_EQUAL(ac_fanin_go_back(hall.fanin, 77, segment, offset, 0, &err), AC_E_ARGUMENT);
    close_hall(&hall);
}

/* ---- idle sources ---- */

TEST_IN_MEMORY(of_few_idle_sources_each_is_asked_at_every_message) {
    hall_t hall;
    open_hall(&hall, 8, 0, UINT64_MAX);
    for (uint64_t i = 0; i < 7; i++) {
        int woken = (int)i + 1;
        append_at(&hall, 0, 100 * i + 10);
        append_at(&hall, 0, 100 * i + 20);
        append_at(&hall, woken, 100 * i + 5); /* the oldest, in a source that was idle so far */
        expect(&hall, woken, 100 * i + 5);
        expect(&hall, 0, 100 * i + 10);
        append_at(&hall, woken, 100 * i + 10); /* as old as the last, of a source after it */
        expect(&hall, woken, 100 * i + 10);
        expect(&hall, 0, 100 * i + 20);
    }
    close_hall(&hall);
}

TEST_IN_MEMORY(of_many_idle_sources_one_is_asked_per_message_and_all_when_the_bell_rang) {
    hall_t hall;
    ac_message_t message;
    int late, waited = 0;
    open_hall(&hall, QUEUES_MAX, 0, UINT64_MAX);
    expect_nothing(&hall);
    for (uint64_t i = 0; i < 3 * QUEUES_MAX; i++)
        append_at(&hall, 0, 1000 + i);
    expect(&hall, 0, 1000);
    append_at(&hall, 5, 1000);
    while (take(&hall, &message, &late) == 0)
        waited++;
    CHECK(late);
    CHECK(waited < QUEUES_MAX);
    append_at(&hall, 9, 1000);
    CHECK_EQUAL(ac_fanin_ready(hall.fanin, &err), 1);
    CHECK_EQUAL(take(&hall, &message, &late), 9);
    close_hall(&hall);
}

/* ---- strict order ---- */

static int blocked_by(const hall_t *hall) {
    ac_fanin_stats_t stats;
    ac_fanin_stats(hall->fanin, &stats);
    return stats.blocked ? (int)stats.blocked_by : -1;
}

TEST(strict_order_waits_for_a_promise) {
    hall_t hall;
    open_hall(&hall, 2, 1, UINT64_MAX);
    append_at(&hall, 0, 100);
    expect_nothing(&hall);
    CHECK_EQUAL(blocked_by(&hall), hall.ids[1]);
    CHECK_OK(ac_writer_heartbeat(hall.writers[1], 100, &err), err);
    expect(&hall, 0, 100); /* a message of source 1 at 100 would come after it */
    CHECK_EQUAL(blocked_by(&hall), -1);
    append_at(&hall, 1, 100);
    expect_nothing(&hall); /* but a message of source 0 at 100 before it … */
    append_at(&hall, 0, 101);
    expect(&hall, 1, 100);
    close_hall(&hall);
}

TEST(strict_order_does_not_wait_for_a_closed_queue_until_it_is_opened_again) {
    hall_t hall;
    ac_writer_config_t config = small_queue(SEGMENT);
    open_hall(&hall, 2, 1, UINT64_MAX);
    append_at(&hall, 0, 100);
    append_at(&hall, 0, 200);
    expect_nothing(&hall);
    close_writer(hall.writers[1]);
    expect(&hall, 0, 100);
    hall.writers[1] = open_writer(queue_path(1), &config);
    expect_nothing(&hall);
    append_at(&hall, 1, 150);
    expect(&hall, 1, 150);
    expect_nothing(&hall);
    append_at(&hall, 1, 300);
    expect(&hall, 0, 200);
    close_hall(&hall);
}

/* More idle sources than are checked for every message. */
TEST(strict_order_sees_each_of_many_closed_queues_that_is_opened_again) {
    enum { QUEUES = 20 };
    hall_t hall;
    ac_writer_config_t config = small_queue(SEGMENT);
    open_hall(&hall, QUEUES, 1, UINT64_MAX);
    for (uint64_t i = 1; i <= 2 * QUEUES; i++)
        append_at(&hall, 0, i * 100);
    for (int i = 1; i < QUEUES; i++) {
        close_writer(hall.writers[i]);
        hall.writers[i] = NULL;
    }
    for (int i = 1; i < QUEUES; i++) {
        uint64_t now = (uint64_t)i * 100;
        expect(&hall, 0, now);
        hall.writers[i] = open_writer(queue_path(i), &config);
        expect_nothing(&hall); /* it may append something older */
        append_at(&hall, i, now + 50);
        append_at(&hall, i, now + 60);
        expect(&hall, i, now + 50);
        close_writer(hall.writers[i]);
        hall.writers[i] = NULL;
        expect(&hall, i, now + 60);
    }
    close_hall(&hall);
}

/* The owner may close the reader, which unmaps its segments; the fan-in must not rely on them. */
TEST(strict_order_outlives_readers_of_closed_queues) {
    enum { QUEUES = 20 };
    hall_t hall;
    ac_message_t message;
    uint32_t slot;
    int late, failed = 0;
    open_hall(&hall, QUEUES, 1, UINT64_MAX);
    for (uint64_t i = 1; i <= 100; i++)
        append_at(&hall, 0, i * 100);
    for (int i = 1; i < QUEUES; i++) {
        close_writer(hall.writers[i]);
        hall.writers[i] = NULL;
    }
    expect(&hall, 0, 100);
    ac_reader_close(hall.readers[5]);
    detach(&hall, 6);
    for (uint64_t i = 2; i <= 100; i++) {
        int rc = ac_fanin_next(hall.fanin, &message, &slot, &late, &err);
        if (rc == AC_E_CLOSED) {
            CHECK_EQUAL(slot, hall.slots[5]);
            failed++;
            i--;
            continue;
        }
        CHECK_EQUAL(rc, 1);
        CHECK_EQUAL(message.timestamp_ns, i * 100);
        hall.next_seq[0]++;
    }
    CHECK_EQUAL(failed, 1);
    close_hall(&hall);
}

TEST(strict_order_goes_on_when_the_silent_source_is_detached) {
    hall_t hall;
    open_hall(&hall, 3, 1, UINT64_MAX);
    append_at(&hall, 0, 100);
    append_at(&hall, 2, 50);
    expect_nothing(&hall);
    CHECK_EQUAL(blocked_by(&hall), hall.ids[1]);
    detach(&hall, 1);
    expect(&hall, 2, 50);
    expect_nothing(&hall); /* for source 2, whose last was at 50 */
    CHECK_EQUAL(blocked_by(&hall), hall.ids[2]);
    close_hall(&hall);
}

TEST(what_comes_after_the_longest_wait_is_delivered_and_marked) {
    hall_t hall;
    ac_message_t message;
    ac_fanin_stats_t stats;
    int late;
    open_hall(&hall, 2, 1, 0);
    append_at(&hall, 0, 100);
    expect(&hall, 0, 100);
    ac_fanin_stats(hall.fanin, &stats);
    CHECK_EQUAL(stats.left_out, 1);
    append_at(&hall, 1, 50);
    CHECK_EQUAL(take(&hall, &message, &late), 1);
    CHECK_EQUAL(late, 1);
    append_at(&hall, 1, 100); /* equal, but of a later source: not late */
    expect(&hall, 1, 100);
    ac_fanin_stats(hall.fanin, &stats);
    CHECK_EQUAL(stats.late, 1);
    CHECK_EQUAL(stats.delivered, 3);
    close_hall(&hall);
}

/* ---- failures and refusals ---- */

static void damage(int queue, uint64_t offset) {
    uint8_t byte = 0xEE;
    poke(queue_path(queue), "000000000.q", offset + AC_HEADER_SIZE + 1, &byte, 1);
}

TEST(a_source_that_fails_is_reported_once_and_set_aside) {
    hall_t hall;
    ac_message_t message;
    ac_fanin_stats_t stats;
    ac_source_stats_t source;
    uint32_t slot;
    int late;
    open_hall(&hall, 3, 0, UINT64_MAX);
    for (uint64_t i = 0; i < 3; i++)
        for (int queue = 0; queue < 3; queue++)
            append_at(&hall, queue, 100 * i + (uint64_t)queue);
    damage(1, AC_SEGMENT_DATA + ac_record_size(0)); /* its second message */
    for (int queue = 0; queue < 3; queue++) {
        if (queue == 2) { /* the replacement of what source 1 delivered is read now */
            CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CORRUPT);
            CHECK_EQUAL(slot, hall.slots[1]);
            CHECK_EQUAL(ac_fanin_check(hall.fanin), 0);
        }
        expect(&hall, queue, (uint64_t)queue);
    }
    for (uint64_t i = 1; i < 3; i++) {
        expect(&hall, 0, 100 * i);
        expect(&hall, 2, 100 * i + 2);
    }
    expect_nothing(&hall);
    ac_fanin_stats(hall.fanin, &stats);
    CHECK_EQUAL(stats.failed, 1);
    CHECK_EQUAL(stats.idle, 2);
    CHECK_OK(ac_fanin_source_stats(hall.fanin, hall.slots[1], &source, &err), err);
    CHECK_EQUAL(source.failed, 1);
    CHECK_EQUAL(source.delivered, 1);
    detach(&hall, 1);
    ac_fanin_stats(hall.fanin, &stats);
    CHECK_EQUAL(stats.failed, 0);
    close_hall(&hall);
}

TEST(a_source_that_failed_goes_on_behind_the_damage) {
    hall_t hall;
    ac_message_t message;
    uint32_t slot;
    int late;
    for (int strict = 0; strict <= 1; strict++) {
        open_hall(&hall, 2, strict, UINT64_MAX);
        for (uint64_t i = 0; i < 4; i++)
            for (int queue = 0; queue < 2; queue++)
                append_at(&hall, queue, 100 * i + (uint64_t)queue);
        damage(1, AC_SEGMENT_DATA + ac_record_size(0)); /* its second message */
        expect(&hall, 0, 0);
        expect(&hall, 1, 1);
        CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CORRUPT);
        CHECK_OK(ac_fanin_resume(hall.fanin, slot, &err), err);
        CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CORRUPT);
        CHECK_OK(ac_reader_step_over(hall.readers[1], &err), err);
        CHECK_OK(ac_fanin_resume(hall.fanin, slot, &err), err);
        CHECK_OK(ac_fanin_resume(hall.fanin, slot, &err), err); /* it did not fail again */
        CHECK_EQUAL(ac_fanin_check(hall.fanin), 0);
        hall.next_seq[1]++; /* the damaged one */
        expect(&hall, 0, 100);
        expect(&hall, 0, 200);
        expect(&hall, 1, 201);
        expect(&hall, 0, 300);
        CHECK_EQUAL(ac_fanin_check(hall.fanin), 0);
        CHECK_FAILS(ac_fanin_resume(hall.fanin, 7, &err), err, AC_E_ARGUMENT);
        close_hall(&hall);
    }
}

TEST(a_failed_source_does_not_hold_strict_order_up) {
    hall_t hall;
    ac_message_t message;
    uint32_t slot;
    int late;
    open_hall(&hall, 2, 1, UINT64_MAX);
    append_at(&hall, 0, 100);
    append_at(&hall, 1, 10);
    append_at(&hall, 1, 20);
    damage(1, AC_SEGMENT_DATA + ac_record_size(0));
    expect(&hall, 1, 10);
    CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CORRUPT);
    expect(&hall, 0, 100);
    close_hall(&hall);
}

TEST(a_reader_closed_while_attached_is_an_error_of_its_source) {
    hall_t hall;
    ac_message_t message;
    uint32_t slot;
    int late;
    open_hall(&hall, 2, 0, UINT64_MAX);
    append_at(&hall, 0, 100);
    append_at(&hall, 1, 200);
    expect(&hall, 0, 100);
    ac_reader_close(hall.readers[1]); /* its message has been read ahead */
    CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CLOSED);
    CHECK_EQUAL(slot, hall.slots[1]);
    append_at(&hall, 0, 300);
    expect(&hall, 0, 300);
    close_hall(&hall);
}

TEST(a_reader_of_a_closed_queue_may_be_closed_while_attached) {
    hall_t hall;
    ac_message_t message;
    uint32_t slot;
    int late;
    open_hall(&hall, 2, 1, UINT64_MAX);
    close_writer(hall.writers[1]);
    hall.writers[1] = NULL;
    append_at(&hall, 0, 100);
    expect(&hall, 0, 100); /* by now the other source is known to be at its end */
    ac_reader_close(hall.readers[1]);
    append_at(&hall, 0, 200);
    CHECK_FAILS(ac_fanin_next(hall.fanin, &message, &slot, &late, &err), err, AC_E_CLOSED);
    CHECK_EQUAL(slot, hall.slots[1]);
    expect(&hall, 0, 200);
    close_hall(&hall);
}

TEST(what_cannot_be_is_refused) {
    hall_t hall;
    ac_source_stats_t source;
    uint32_t slot, id;
    open_hall(&hall, 1, 0, UINT64_MAX);
    ac_reader_t *twin = open_reader(queue_path(0), NULL, AC_START_FIRST);
    CHECK_FAILS(ac_fanin_attach(hall.fanin, twin, &slot, &id, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_fanin_commit(hall.fanin, 5, &err), err, AC_E_ARGUMENT);
    CHECK_FAILS(ac_fanin_source_stats(hall.fanin, 5, &source, &err), err, AC_E_ARGUMENT);
    detach(&hall, 0);
    CHECK_FAILS(ac_fanin_commit(hall.fanin, 0, &err), err, AC_E_ARGUMENT);
    CHECK_OK(ac_fanin_attach(hall.fanin, twin, &slot, &id, &err), err);
    CHECK_EQUAL(slot, 0);
    CHECK_EQUAL(id, 1); /* ids are not reused */
    ac_reader_t *closed = open_reader(queue_path(0), NULL, AC_START_FIRST);
    ac_reader_close(closed);
    CHECK_FAILS(ac_fanin_attach(hall.fanin, closed, &slot, &id, &err), err, AC_E_CLOSED);
    ac_reader_free(closed);
    ac_fanin_detach(hall.fanin, 0);
    ac_reader_free(twin);
    close_hall(&hall);
}
