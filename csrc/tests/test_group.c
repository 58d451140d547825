/* Groups: claims, leases, the mark, and members that die. */
#include "queue.h"

#include "group.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SEGMENT = 1 << 16, LEASE_MS = 60000 };

typedef struct member {
    ac_reader_t *walker, *again;
    ac_group_t *group;
} member_t;

static ac_group_config_t settings(void) {
    return (ac_group_config_t){.name = "work", .lease_ms = LEASE_MS, .limit = 100};
}

static int try_join(member_t *member, const char *path, const ac_group_config_t *config,
                    ac_error_t *err) {
    *member = (member_t){.walker = open_reader(path, NULL, AC_START_FIRST),
                         .again = open_reader(path, NULL, AC_START_FIRST)};
    int rc = ac_group_open(member->walker, member->again, config, &member->group, err);
    if (rc == AC_OK) return rc;
    ac_reader_free(member->walker);
    ac_reader_free(member->again);
    return rc;
}

static member_t join_with(const char *path, ac_group_config_t config) {
    member_t member;
    ac_error_t err;
    CHECK_OK(try_join(&member, path, &config, &err), err);
    return member;
}

static member_t join(const char *path) {
    return join_with(path, settings());
}

static void leave(member_t *member) {
    ac_group_free(member->group);
    ac_reader_free(member->walker);
    ac_reader_free(member->again);
}

/* Returns the seq of the next message, or -1; *word settles it. */
static int64_t take(member_t *member, uint64_t *word) {
    ac_message_t message;
    ac_error_t err;
    ac_reader_t *from;
    int rc = ac_group_next(member->group, 0, &message, word, &from, &err);
    CHECK_OK(rc, err);
    if (rc == 0) return -1;
    check_payload(&message);
    return (int64_t)message.seq;
}

static uint32_t attempt_of(uint64_t word) {
    return ac_word_unpack(word).attempt;
}

static const char *make_queue(int messages) {
    static char path[1024];
    ac_writer_config_t config = small_queue(SEGMENT);
    snprintf(path, sizeof path, "%s", check_path("queue"));
    ac_writer_t *writer = open_writer(path, &config);
    append_numbered(writer, messages);
    close_writer(writer);
    return path;
}

static ac_group_info_t inspect(const char *path) {
    static ac_group_info_t info;
    ac_error_t err;
    CHECK_OK(ac_group_inspect(path, "work", &info, &err), err);
    return info;
}

/* Returns the message at the position of the group. */
static uint64_t committed(const char *path) {
    ac_reader_t *reader = open_reader(path, "work", AC_START_COMMITTED);
    ac_message_t message;
    ac_error_t err;
    int rc = ac_reader_next(reader, &message, &err);
    CHECK_OK(rc, err);
    ac_reader_free(reader);
    return rc ? message.seq : UINT64_MAX;
}

static void sleep_ms(unsigned ms) {
    ac_os_sleep_ns(ms * 1000000ull);
}

TEST(each_message_goes_to_one_member_and_the_position_follows) {
    const char *path = make_queue(1000);
    member_t a = join(path), b = join(path);
    uint64_t word, next_of_a = 0, next_of_b = 0;
    for (int i = 0; i < 500; i++) {
        int64_t seq = take(&a, &word);
        CHECK_EQUAL(attempt_of(word), 1);
        CHECK((uint64_t)seq >= next_of_a);
        next_of_a = (uint64_t)seq + 1;
        CHECK(ac_group_ack(a.group, (uint64_t)seq, word));
        seq = take(&b, &word);
        CHECK((uint64_t)seq >= next_of_b && (uint64_t)seq != next_of_a - 1);
        next_of_b = (uint64_t)seq + 1;
        CHECK(ac_group_ack(b.group, (uint64_t)seq, word));
    }
    CHECK_EQUAL(take(&a, &word), -1);
    CHECK_EQUAL(take(&b, &word), -1);
    CHECK_EQUAL(inspect(path).pending, 0);
    CHECK_EQUAL(inspect(path).members, 2);
    leave(&a);
    leave(&b);
    CHECK_EQUAL(committed(path), UINT64_MAX);
}

TEST(acks_out_of_order_move_the_mark_when_the_gap_closes) {
    const char *path = make_queue(10);
    member_t a = join(path);
    uint64_t words[10];
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(take(&a, &words[i]), i);
    for (uint64_t i = 9; i > 0; i--)
        CHECK(ac_group_ack(a.group, i, words[i]));
    CHECK_EQUAL(inspect(path).low, 0);
    CHECK_EQUAL(inspect(path).pending, 1);
    CHECK(ac_group_ack(a.group, 0, words[0]));
    CHECK_EQUAL(inspect(path).low, 10);
    leave(&a);
}

TEST(what_is_acknowledged_twice_or_by_another_is_refused) {
    const char *path = make_queue(3);
    member_t a = join(path), b = join(path);
    uint64_t word, other;
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK_EQUAL(take(&b, &other), 1);
    CHECK(!ac_group_ack(b.group, 0, other));
    CHECK(ac_group_ack(a.group, 0, word));
    CHECK(!ac_group_ack(a.group, 0, word));
    CHECK(!ac_group_nack(a.group, 0, word, 0));
    CHECK(!ac_group_extend(a.group, 0, &word, 1000));
    CHECK_EQUAL(inspect(path).low, 1);
    leave(&a);
    leave(&b);
}

TEST(what_is_given_back_comes_again_after_its_delay) {
    const char *path = make_queue(2);
    member_t a = join(path), b = join(path);
    uint64_t word;
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK(ac_group_nack(a.group, 0, word, 0));
    CHECK_EQUAL(take(&b, &word), 0);
    CHECK_EQUAL(attempt_of(word), 2);
    CHECK(ac_group_nack(b.group, 0, word, 3000));
    CHECK_EQUAL(inspect(path).delayed, 1);
    CHECK_EQUAL(take(&a, &word), 1);
    CHECK(ac_group_ack(a.group, 1, word));
    CHECK_EQUAL(take(&a, &word), -1);
    sleep_ms(3020);
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK_EQUAL(attempt_of(word), 3);
    CHECK(ac_group_ack(a.group, 0, word));
    CHECK_EQUAL(inspect(path).pending, 0);
    leave(&a);
    leave(&b);
}

TEST(a_lease_that_is_over_goes_to_another_and_the_late_ack_is_refused) {
    const char *path = make_queue(1);
    ac_group_config_t config = settings();
    config.lease_ms = 50;
    member_t a = join_with(path, config), b = join_with(path, config);
    uint64_t word, again;
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK_EQUAL(take(&b, &again), -1);
    sleep_ms(40);
    CHECK(ac_group_extend(a.group, 0, &word, 100));
    sleep_ms(40);
    CHECK_EQUAL(take(&b, &again), -1);
    sleep_ms(90);
    CHECK_EQUAL(take(&b, &again), 0);
    CHECK_EQUAL(attempt_of(again), 2);
    CHECK(!ac_group_ack(a.group, 0, word));
    CHECK(!ac_group_extend(a.group, 0, &word, 100));
    CHECK(ac_group_ack(b.group, 0, again));
    CHECK_EQUAL(inspect(path).member[0].refused, 1);
    leave(&a);
    leave(&b);
}

TEST(the_window_bounds_what_is_claimed) {
    const char *path = make_queue(300);
    member_t a = join(path), b = join(path);
    uint64_t first, word, rest[100];
    CHECK_EQUAL(take(&a, &first), 0);
    for (int i = 1; i < 100; i++)
        CHECK_EQUAL(take(&b, &rest[i]), i);
    CHECK_EQUAL(take(&b, &word), -1);
    for (uint64_t i = 1; i < 100; i++)
        CHECK(ac_group_ack(b.group, i, rest[i]));
    CHECK_EQUAL(take(&b, &word), -1);
    CHECK(ac_group_ack(a.group, 0, first));
    CHECK_EQUAL(take(&b, &word), 100);
    leave(&a);
    leave(&b);
}

TEST(what_a_member_had_when_it_left_is_delivered_again) {
    const char *path = make_queue(4);
    member_t a = join(path), b = join(path);
    uint64_t word;
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK_EQUAL(take(&a, &word), 1);
    leave(&a);
    CHECK_EQUAL(take(&b, &word), 0);
    CHECK_EQUAL(attempt_of(word), 2);
    leave(&b);
    member_t c = join(path);
    CHECK_EQUAL(take(&c, &word), 0);
    CHECK_EQUAL(attempt_of(word), 3);
    CHECK(ac_group_ack(c.group, 0, word));
    CHECK_EQUAL(take(&c, &word), 1);
    leave(&c);
    member_t d = join(path); /* the state outlives all members */
    CHECK_EQUAL(take(&d, &word), 1);
    CHECK_EQUAL(attempt_of(word), 3);
    leave(&d);
}

/* Members in processes of their own run one of the tests below in this program; in the parent these tests do
 * nothing. */
static pid_t start_member(const char *test, const char *path, int answers) {
    char fd[16];
    pid_t child = fork();
    if (child != 0) return child;
    snprintf(fd, sizeof fd, "%d", answers);
    setenv("GROUP_QUEUE", path, 1);
    setenv("GROUP_ANSWERS", fd, 1);
    execl("/proc/self/exe", "test_group", test, (char *)NULL);
    _exit(9);
}

TEST(member_that_claims_one_and_waits) {
    const char *path = getenv("GROUP_QUEUE");
    uint64_t word;
    if (!path) return;
    member_t b = join(path);
    CHECK_EQUAL(take(&b, &word), 0);
    CHECK(write(atoi(getenv("GROUP_ANSWERS")), "x", 1) == 1);
    pause();
}

TEST(a_killed_member_is_noticed_long_before_its_lease_ends) {
    const char *path = make_queue(3);
    uint64_t word;
    int answers[2];
    char byte;
    CHECK(pipe(answers) == 0);
    member_t a = join(path);
    pid_t child = start_member("member_that_claims_one_and_waits", path, answers[1]);
    close(answers[1]);
    CHECK(read(answers[0], &byte, 1) == 1);
    CHECK_EQUAL(take(&a, &word), 1);
    CHECK(ac_group_ack(a.group, 1, word));
    CHECK_EQUAL(inspect(path).member[1].in_flight, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    sleep_ms(20);
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK_EQUAL(attempt_of(word), 2);
    leave(&a);
    close(answers[0]);
}

/* The holder of each message, and how often it was acknowledged: shared by all processes. */
enum { KILL_MESSAGES = 200000, KILL_MEMBERS = 3 };

typedef struct shares {
    uint32_t stop;
    uint32_t holder[KILL_MESSAGES]; /* pid, 0 = none */
    uint32_t acked[KILL_MESSAGES];
} shares_t;

static shares_t *map_shares(const char *path) {
    char name[1100];
    snprintf(name, sizeof name, "%s/shares", path);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(shares_t)) == 0);
    shares_t *shares = mmap(NULL, sizeof *shares, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shares != MAP_FAILED);
    close(fd);
    return shares;
}

TEST(member_that_works_until_it_is_killed) {
    const char *path = getenv("GROUP_QUEUE");
    if (!path) return;
    shares_t *shares = map_shares(path);
    uint64_t word, state = (uint64_t)getpid() * 2654435761u + 1;
    uint32_t me = (uint32_t)getpid();
    member_t member = join(path);
    while (!ac_load_acquire_u32(&shares->stop)) {
        int64_t seq = take(&member, &word);
        if (seq < 0) {
            ac_os_sleep_ns(100000);
            continue;
        }
        uint32_t before = __atomic_exchange_n(&shares->holder[seq], me, __ATOMIC_SEQ_CST);
        CHECK(before == 0 || ac_os_process_start((int)before) == 0 ||
              ac_os_process_ends((int)before));
        __atomic_store_n(&shares->holder[seq], 0, __ATOMIC_SEQ_CST);
        if (check_random(&state) % 32 == 0) {
            CHECK(ac_group_nack(member.group, (uint64_t)seq, word, 0));
        } else {
            CHECK(ac_group_ack(member.group, (uint64_t)seq, word));
            __atomic_fetch_add(&shares->acked[seq], 1, __ATOMIC_SEQ_CST);
        }
    }
    leave(&member);
}

/* AIOCHRONICLE_GROUP_KILLS says how many, for longer campaigns. */
TEST(members_are_killed_anywhere_and_no_message_is_lost_or_has_two_owners) {
    const char *given = getenv("AIOCHRONICLE_GROUP_KILLS");
    int kills = given ? atoi(given) : 40;
    const char *path = make_queue(0);
    ac_writer_config_t config = small_queue(1 << 20);
    ac_writer_t *writer = open_writer(path, &config);
    shares_t *shares = map_shares(path);
    uint64_t state = check_seed() | 1, appended = 0;
    pid_t members[KILL_MEMBERS];
    for (int i = 0; i < KILL_MEMBERS; i++)
        members[i] = start_member("member_that_works_until_it_is_killed", path, 0);
    for (int i = 0; i < kills; i++) {
        for (int j = 0; j < 400 && appended < KILL_MESSAGES; j++, appended++)
            append_numbered(writer, 1);
        ac_os_sleep_ns(check_random(&state) % 30000000);
        int which = (int)(check_random(&state) % KILL_MEMBERS), status;
        kill(members[which], SIGKILL);
        waitpid(members[which], &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        members[which] = start_member("member_that_works_until_it_is_killed", path, 0);
    }
    for (int i = 0; i < 20000 && inspect(path).pending > 0; i++)
        sleep_ms(1);
    ac_store_release_u32(&shares->stop, 1);
    for (int i = 0; i < KILL_MEMBERS; i++) {
        int status;
        waitpid(members[i], &status, 0);
        CHECK_EQUAL(status, 0);
    }
    CHECK_EQUAL(inspect(path).low, appended);
    /* If a member was killed right after an acknowledgement, its note may be missing. */
    uint64_t unnoted = 0;
    for (uint64_t i = 0; i < appended; i++) {
        CHECK(shares->acked[i] <= 1);
        unnoted += shares->acked[i] == 0;
    }
    CHECK(unnoted <= (uint64_t)kills);
    close_writer(writer);
    munmap(shares, sizeof *shares);
}

TEST(a_forked_child_has_a_closed_group) {
    const char *path = make_queue(3);
    member_t a = join(path);
    uint64_t word;
    CHECK_EQUAL(take(&a, &word), 0);
    pid_t child = fork();
    if (child == 0) {
        ac_message_t message;
        ac_reader_t *from;
        ac_error_t err;
        int rc = ac_group_next(a.group, 0, &message, &word, &from, &err);
        leave(&a);
        _exit(rc == AC_E_FORKED ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQUAL(status, 0);
    CHECK(ac_group_ack(a.group, 0, word));
    leave(&a);
}

TEST(settings_must_agree_while_members_are_there) {
    const char *path = make_queue(200);
    member_t a = join(path), b;
    uint64_t words[80], word;
    ac_error_t err;
    ac_group_config_t config = settings();
    config.limit = 64;
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_GROUP);
    config = settings();
    config.lease_ms = 5;
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_GROUP);
    config = settings();
    config.by_key = 1;
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_GROUP);
    config = settings();
    config.dead_letter = 7;
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_GROUP);
    for (int i = 0; i < 80; i++)
        CHECK_EQUAL(take(&a, &words[i]), i);
    CHECK(ac_group_ack(a.group, 2, words[2]));
    CHECK(ac_group_ack(a.group, 79, words[79]));
    leave(&a);
    /* A single member may choose the window again, larger or smaller, and keeps what is done. */
    config = settings();
    config.limit = 1000;
    b = join_with(path, config);
    CHECK_EQUAL(inspect(path).pending, 198);
    CHECK_EQUAL(take(&b, &word), 0);
    CHECK_EQUAL(attempt_of(word), 2);
    CHECK(ac_group_ack(b.group, 0, word));
    leave(&b);
    config.limit = 10;
    b = join_with(path, config);
    CHECK_EQUAL(take(&b, &word), 1);
    CHECK(ac_group_ack(b.group, 1, word));
    CHECK_EQUAL(take(&b, &word), 3);
    leave(&b);
}

TEST(a_name_is_a_readers_or_a_groups) {
    const char *path = make_queue(5);
    ac_group_config_t config = settings();
    ac_error_t err;
    member_t a;
    uint64_t word;
    ac_message_t message;
    ac_reader_config_t named;
    ac_reader_t *reader = open_reader(path, "work", AC_START_COMMITTED), *other;
    CHECK_FAILS(try_join(&a, path, &config, &err), err, AC_E_READER_BUSY);
    config.adopt = 1;
    CHECK_FAILS(try_join(&a, path, &config, &err), err, AC_E_READER_BUSY);
    CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
    uint64_t segment, offset;
    ac_reader_position(reader, &segment, &offset);
    CHECK_OK(ac_reader_commit(reader, segment, offset, 0, &err), err);
    ac_reader_free(reader);
    CHECK(!exists(path, "readers/work.group"));
    config.adopt = 0;
    CHECK_FAILS(try_join(&a, path, &config, &err), err, AC_E_READER_BUSY);
    config.adopt = 1;
    a = join_with(path, config);
    CHECK_EQUAL(take(&a, &word), 1);
    ac_reader_defaults(&named);
    named.name = "work";
    CHECK_FAILS(ac_reader_open(path, &named, &other, &err), err, AC_E_READER_BUSY);
    CHECK_FAILS(ac_queue_forget_reader(path, "work", &err), err, AC_E_READER_BUSY);
    leave(&a);
    CHECK_OK(ac_queue_forget_reader(path, "work", &err), err);
    CHECK(!exists(path, "readers/work.group"));
    CHECK_FAILS(ac_group_inspect(path, "work", &(ac_group_info_t){0}, &err), err,
                AC_E_READER_NOT_FOUND);
    a = join(path);
    CHECK_EQUAL(take(&a, &word), 0);
    leave(&a);
}

TEST(after_a_power_cut_the_position_decides) {
    const char *path = make_queue(20);
    member_t a = join(path);
    uint64_t word, words[20];
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(take(&a, &words[i]), i);
    for (uint64_t i = 0; i < 5; i++)
        CHECK(ac_group_ack(a.group, i, words[i]));
    CHECK(ac_group_ack(a.group, 10, words[10]));
    leave(&a);
    ac_group_header_t header;
    peek(path, "readers/work.group", 0, &header, sizeof header);
    header.boot++;
    header.checksum = ac_checksum(&header, offsetof(ac_group_header_t, checksum));
    poke(path, "readers/work.group", 0, &header, sizeof header);
    a = join(path);
    for (int i = 5; i < 20; i++) {
        CHECK_EQUAL(take(&a, &word), i);
        CHECK_EQUAL(attempt_of(word), 1);
    }
    leave(&a);
}

TEST(members_with_another_clock_are_refused_and_bad_state_is_not_believed) {
    const char *path = make_queue(20);
    ac_group_config_t config = settings();
    ac_error_t err;
    member_t a = join(path), b;
    uint64_t word;
    ac_group_header_t header;
    CHECK_EQUAL(take(&a, &word), 0);
    CHECK(ac_group_ack(a.group, 0, word));
    peek(path, "readers/work.group", 0, &header, sizeof header);
    ac_group_header_t other = header;
    other.clock++;
    other.checksum = ac_checksum(&other, offsetof(ac_group_header_t, checksum));
    poke(path, "readers/work.group", 0, &other, 128);
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_GROUP);
    other.checksum++;
    poke(path, "readers/work.group", 0, &other, 128);
    CHECK_FAILS(try_join(&b, path, &config, &err), err, AC_E_CORRUPT);
    leave(&a);
    a = join(path);
    CHECK_EQUAL(take(&a, &word), 1);
    leave(&a);
    /* A mark beyond the end of the queue. */
    uint64_t mark = 1000;
    poke(path, "readers/work.group", offsetof(ac_group_header_t, low), &mark, sizeof mark);
    a = join(path);
    CHECK_EQUAL(take(&a, &word), 1);
    leave(&a);
}

TEST(words_of_any_content_harm_nobody) {
    const char *path = make_queue(500);
    uint64_t state = check_seed() | 1, word;
    member_t a = join(path);
    for (int round = 0; round < 200; round++) {
        uint64_t words[128], seq = 0;
        for (int i = 0; i < 128; i++)
            words[i] = check_random(&state);
        poke(path, "readers/work.group", AC_GROUP_SLOTS_AT, words, sizeof words);
        for (int i = 0; i < 20; i++) {
            int64_t got = take(&a, &word);
            if (got < 0) break;
            seq = (uint64_t)got;
            if (i % 3) ac_group_ack(a.group, seq, word);
        }
        inspect(path);
    }
    leave(&a);
}

/* By key: seqs that are equal mod 3. */
static int by_three(void *context, const ac_message_t *message, uint64_t *after) {
    (void)context;
    *after = message->seq < 3 ? 0 : message->seq - 3 + 1;
    return 0;
}

TEST(messages_of_a_key_wait_for_each_other) {
    const char *path = make_queue(9);
    ac_group_config_t config = settings();
    config.by_key = 1;
    member_t a = join_with(path, config), b = join_with(path, config);
    a.group->key = b.group->key = by_three;
    uint64_t words[9], word;
    CHECK_EQUAL(take(&a, &words[0]), 0);
    CHECK_EQUAL(take(&b, &words[1]), 1);
    CHECK_EQUAL(take(&a, &words[2]), 2);
    CHECK_EQUAL(take(&a, &word), -1);
    CHECK_EQUAL(take(&b, &word), -1);
    CHECK(ac_group_ack(b.group, 1, words[1]));
    CHECK_EQUAL(take(&a, &words[4]), 4);
    CHECK(ac_group_nack(a.group, 4, words[4], 0));
    CHECK_EQUAL(take(&b, &words[4]), 4);
    CHECK_EQUAL(take(&a, &word), -1);
    CHECK(ac_group_ack(b.group, 4, words[4]));
    CHECK_EQUAL(take(&b, &words[7]), 7);
    leave(&a);
    leave(&b);
}

/* ---- threads: while no member dies, each message is acknowledged exactly once, whatever is given back
 * ---- */

enum { THREADS = 4, SHARED = 20000 };

static uint8_t acked[SHARED];
static const char *shared_path;

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument, word;
    member_t member = join(shared_path);
    int idle = 0;
    while (idle < 200) {
        int64_t seq = take(&member, &word);
        if (seq < 0) {
            idle++;
            ac_os_sleep_ns(100000);
            continue;
        }
        idle = 0;
        if (check_random(&state) % 16 == 0)
            CHECK(ac_group_nack(member.group, (uint64_t)seq, word, 0));
        else if (ac_group_ack(member.group, (uint64_t)seq, word))
            CHECK_EQUAL(__atomic_fetch_add(&acked[seq], 1, __ATOMIC_RELAXED), 0);
        else
            CHECK(0);
    }
    leave(&member);
    return NULL;
}

TEST(threads_share_a_queue_and_each_message_is_done_once) {
    shared_path = make_queue(SHARED);
    pthread_t threads[THREADS];
    memset(acked, 0, sizeof acked);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i * 7919 + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; i++)
        CHECK_EQUAL(acked[i], 1);
    CHECK_EQUAL(inspect(shared_path).pending, 0);
}
