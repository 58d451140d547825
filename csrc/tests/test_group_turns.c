/* Order by key over the queues of a topic: turns, queues that come and go, hostile bytes. */
#include "queue.h"

#include "group_turns.h"

#include <pthread.h>
#include <sys/stat.h>

enum { SEGMENT = 1 << 16, QUEUES = 3, KEYS = 5 };

typedef struct member {
    ac_turns_t *turns;
    ac_reader_t *walker[QUEUES], *again[QUEUES];
    ac_group_t *group[QUEUES];
} member_t;

static char topic[1024];
static ac_writer_t *writers[QUEUES];

static const char *queue_path(int queue) {
    static _Thread_local char path[1100];
    snprintf(path, sizeof path, "%s/%d", topic, queue);
    return path;
}

static void make_topic(void) {
    char readers[1100];
    ac_writer_config_t config = small_queue(SEGMENT);
    snprintf(topic, sizeof topic, "%s", check_path("topic"));
    snprintf(readers, sizeof readers, "%s/readers", topic);
    CHECK(mkdir(topic, 0700) == 0 && mkdir(readers, 0700) == 0);
    for (int i = 0; i < QUEUES; i++)
        writers[i] = open_writer(queue_path(i), &config);
}

static void close_writers(void) {
    for (int i = 0; i < QUEUES; i++)
        close_writer(writers[i]);
}

static void append(int queue, uint64_t time_ns, unsigned key) {
    ac_error_t err;
    int64_t seq = ac_writer_append(writers[queue], "", 0, key, time_ns, &err);
    CHECK_OK(seq, err);
}

static int key_of(void *context, const ac_message_t *message, uint64_t *after) {
    (void)context;
    *after = message->type_id;
    return 0;
}

static void join_queue(member_t *member, int queue) {
    ac_error_t err;
    ac_group_config_t config = {.name = "work", .lease_ms = 60000, .limit = 50, .by_key = 2};
    member->walker[queue] = open_reader(queue_path(queue), NULL, AC_START_FIRST);
    member->again[queue] = open_reader(queue_path(queue), NULL, AC_START_FIRST);
    CHECK_OK(ac_group_open(member->walker[queue], member->again[queue], &config,
                           &member->group[queue], &err),
             err);
    member->group[queue]->key = key_of;
    CHECK_OK(ac_turns_join(member->turns, member->group[queue], &err), err);
}

static void leave_queue(member_t *member, int queue) {
    ac_group_free(member->group[queue]);
    ac_reader_free(member->walker[queue]);
    ac_reader_free(member->again[queue]);
    member->group[queue] = NULL;
}

static member_t join(int queues) {
    member_t member = {0};
    ac_error_t err;
    CHECK_OK(ac_turns_open(topic, "work", 0600, &member.turns, &err), err);
    for (int i = 0; i < queues; i++)
        join_queue(&member, i);
    return member;
}

static void leave(member_t *member) {
    for (int i = 0; i < QUEUES; i++)
        if (member->group[i]) leave_queue(member, i);
    ac_turns_free(member->turns);
}

/* Returns the time of the delivered message, 0 = none. */
static uint64_t take(member_t *member, int queue, ac_message_t *message, uint64_t *word) {
    ac_reader_t *from;
    ac_error_t err;
    int rc = ac_group_next(member->group[queue], 0, message, word, &from, &err);
    CHECK_OK(rc, err);
    return rc ? message->timestamp_ns : 0;
}

TEST(the_oldest_of_all_queues_comes_next_and_one_at_a_time) {
    ac_message_t message;
    uint64_t word;
    make_topic();
    append(1, 10, 3);
    append(0, 20, 3);
    append(2, 30, 3);
    member_t a = join(QUEUES), b = join(QUEUES);
    CHECK_EQUAL(take(&a, 0, &message, &word), 0);
    CHECK_EQUAL(take(&b, 2, &message, &word), 0);
    CHECK_EQUAL(take(&a, 1, &message, &word), 10);
    for (int i = 0; i < QUEUES; i++)
        CHECK(!take(&a, i, &message, &word) && !take(&b, i, &message, &word));
    leave(&a); /* which gives it back */
    CHECK_EQUAL(take(&b, 1, &message, &word), 10);
    CHECK(ac_group_ack(b.group[1], message.seq, word));
    CHECK_EQUAL(take(&b, 2, &message, &word), 0);
    CHECK_EQUAL(take(&b, 0, &message, &word), 20);
    CHECK(ac_group_ack(b.group[0], message.seq, word));
    CHECK_EQUAL(take(&b, 2, &message, &word), 30);
    leave(&b);
    close_writers();
}

TEST(a_key_goes_on_when_the_queue_of_its_last_message_is_not_joined) {
    ac_message_t message;
    ac_error_t err;
    uint64_t word, ids[AC_TURNS_QUEUES];
    make_topic();
    append(1, 10, 3);
    append(0, 20, 3);
    member_t knows = join(2), other = join(1);
    CHECK_EQUAL(ac_turns_queues(knows.turns, ids), 2);
    CHECK_EQUAL(take(&knows, 1, &message, &word), 10);
    CHECK_EQUAL(take(&other, 0, &message, &word), 0);
    CHECK_EQUAL(ac_turns_unknown(other.turns, ids), 1);
    CHECK_OK(ac_turns_settle(other.turns, queue_path(1), "work", &err), err);
    CHECK_EQUAL(take(&other, 0, &message, &word), 0); /* it is not done yet */
    leave_queue(&knows, 1);
    join_queue(&knows, 1);
    CHECK_EQUAL(take(&knows, 1, &message, &word), 10);
    CHECK(ac_group_ack(knows.group[1], message.seq, word));
    CHECK_OK(ac_turns_settle(other.turns, queue_path(1), "work", &err), err);
    CHECK_EQUAL(take(&other, 0, &message, &word), 20);
    leave(&knows);
    leave(&other);
    close_writers();
}

TEST(a_queue_that_is_gone_is_forgotten) {
    ac_message_t message;
    ac_error_t err;
    uint64_t word, ids[AC_TURNS_QUEUES];
    make_topic();
    append(1, 10, 3);
    append(0, 20, 3);
    member_t member = join(2);
    CHECK_EQUAL(take(&member, 1, &message, &word), 10);
    uint64_t id = ac_load_relaxed_u64(&member.group[1]->walker->control->queue_id);
    leave_queue(&member, 1);
    CHECK_EQUAL(take(&member, 0, &message, &word), 0);
    ac_turns_forget(member.turns, id);
    CHECK_EQUAL(ac_turns_queues(member.turns, ids), 1);
    CHECK_EQUAL(take(&member, 0, &message, &word), 20);
    CHECK_EQUAL(ac_turns_remove(topic, "work", &err), AC_E_READER_BUSY);
    leave(&member);
    CHECK_OK(ac_turns_remove(topic, "work", &err), err);
    CHECK_OK(ac_turns_remove(topic, "work", &err), err);
    close_writers();
}

TEST(whatever_is_in_the_file_crashes_nobody) {
    ac_message_t message;
    uint64_t word, state = check_seed(), ids[AC_TURNS_QUEUES];
    make_topic();
    for (int i = 0; i < 300; i++)
        append(i % QUEUES, (uint64_t)i + 1, (unsigned)i % KEYS);
    member_t member = join(QUEUES);
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < KEYS; i++)
            ac_store_relaxed_u64(&member.turns->heads[i], check_random(&state));
        ac_store_relaxed_u64(&member.turns->queues[check_random(&state) % AC_TURNS_QUEUES],
                             check_random(&state));
        for (int i = 0; i < QUEUES; i++)
            if (take(&member, i, &message, &word)) ac_group_ack(member.group[i], message.seq, word);
        ac_turns_unknown(member.turns, ids);
    }
    leave(&member);
    close_writers();
}

/* ---- threads ---- */

enum { THREADS = 4, SHARED = 1500 };

static int held[KEYS], done;
static uint64_t last[KEYS]; /* the time of the message of each key that was done last */

static void handle(member_t *member, int queue, uint64_t *state) {
    ac_message_t message;
    uint64_t word, time_ns = take(member, queue, &message, &word);
    if (time_ns == 0) return;
    unsigned key = message.type_id;
    CHECK_EQUAL(__atomic_exchange_n(&held[key], 1, __ATOMIC_SEQ_CST), 0);
    CHECK_EQUAL(time_ns, __atomic_load_n(&last[key], __ATOMIC_SEQ_CST) + KEYS);
    if (check_random(state) % 8 == 0) {
        __atomic_store_n(&held[key], 0, __ATOMIC_SEQ_CST);
        CHECK(ac_group_nack(member->group[queue], message.seq, word, 0));
        return;
    }
    __atomic_store_n(&last[key], time_ns, __ATOMIC_SEQ_CST);
    __atomic_store_n(&held[key], 0, __ATOMIC_SEQ_CST);
    CHECK(ac_group_ack(member->group[queue], message.seq, word));
    __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
}

static void *work(void *seed) {
    uint64_t state = (uintptr_t)seed;
    member_t member = join(QUEUES);
    while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < SHARED) {
        handle(&member, (int)(check_random(&state) % QUEUES), &state);
        if (check_random(&state) % 500 == 0) {
            leave(&member);
            member = join(QUEUES);
        }
    }
    leave(&member);
    return NULL;
}

TEST(threads_share_a_topic_and_each_key_keeps_its_order) {
    pthread_t threads[THREADS];
    uint64_t state = check_seed();
    make_topic();
    member_t stays = join(QUEUES); /* so that no member is ever alone, which would start over */
    done = 0;
    /* Message i has time i and key i mod KEYS: the first of a key comes KEYS after its `last`. */
    for (uint64_t key = 0; key < KEYS; key++)
        last[key] = key;
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i * 7919 + 1)) == 0);
    for (uint64_t i = KEYS; i < KEYS + SHARED; i++)
        append((int)(check_random(&state) % QUEUES), i, (unsigned)(i % KEYS));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    leave(&stays);
    close_writers();
}
