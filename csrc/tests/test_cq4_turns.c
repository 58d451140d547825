/* Our writers on a Java queue leave JVMs their share. */
#include "cq4_turns.h"

#include "check.h"

#include <string.h>

static const uint64_t US = 1000, MS = 1000000, SHORT = 3000, LONG = 20000;

static ac_cq4_turns_t turns, other;
static uint64_t word, seq, now_ns;

static void begin(void) {
    memset(&turns, 0, sizeof turns);
    memset(&other, 0, sizeof other);
    word = 1000; /* of those before us */
    seq = 70;
    now_ns = 5000 * MS;
    turns.shared = other.shared = &word;
    ac_cq4_turns_enter(&turns, seq);
    ac_cq4_turns_enter(&other, seq);
}

/* One of our writers appends this many times; it first sees what others have appended. */
static void append(ac_cq4_turns_t *writer, uint64_t count) {
    for (uint64_t i = 0; i < count; i++, seq++) {
        uint64_t foreign = seq - writer->seen_seq - (writer->appended_ours - writer->seen_ours);
        if (writer->appended_ours == 0) foreign = seq - writer->seen_seq;
        if (foreign > 0) ac_cq4_turns_meet(writer, seq, now_ns);
        ac_cq4_turns_count(writer, now_ns);
        now_ns += 100;
    }
}

static void java(uint64_t count) {
    seq += count;
}

static uint64_t pause_of(ac_cq4_turns_t *writer) {
    return ac_cq4_turns_pause_ns(writer, writer->appended_ns);
}

TEST(a_writer_that_is_alone_never_waits) {
    begin();
    append(&turns, 100000);
    CHECK_EQUAL(pause_of(&turns), 0);
    CHECK(ac_cq4_turns_is_free(&turns, 0));
    CHECK_EQUAL(turns.java, 0);
}

TEST(a_writer_that_is_not_alone_waits_a_little_and_not_for_long) {
    begin();
    append(&turns, 10);
    java(1);
    append(&turns, 1);
    CHECK(!ac_cq4_turns_is_free(&turns, 0));
    CHECK(ac_cq4_turns_is_free(&turns, 1));
    CHECK_EQUAL(pause_of(&turns), SHORT);
    CHECK(ac_cq4_turns_may_go(&turns, 1));
    CHECK(!ac_cq4_turns_may_go(&turns, 0));
    append(&turns, 62);
    CHECK_EQUAL(pause_of(&turns), SHORT);
    append(&turns, 1);
    CHECK(!ac_cq4_turns_is_free(&turns, 0));
    CHECK_EQUAL(pause_of(&turns), 0);
    CHECK(ac_cq4_turns_is_free(&turns, 0)); /* for some appends; then it must ask again */
    append(&turns, 31);
    CHECK(ac_cq4_turns_is_free(&turns, 0));
    append(&turns, 1);
    CHECK(!ac_cq4_turns_is_free(&turns, 0));
    CHECK_EQUAL(ac_cq4_turns_pause_ns(&turns, now_ns + 30 * MS), 0);
    CHECK(ac_cq4_turns_is_free(&turns, 0));
}

TEST(a_pause_that_the_caller_made_counts) {
    begin();
    java(1);
    append(&turns, 1);
    uint64_t appended_ns = turns.appended_ns;
    CHECK_EQUAL(ac_cq4_turns_pause_ns(&turns, appended_ns + US), SHORT - US);
    CHECK_EQUAL(ac_cq4_turns_pause_ns(&turns, appended_ns + SHORT), 0);
}

TEST(ours_together_get_no_more_than_three_for_two_of_the_jvms) {
    begin();
    java(1000);
    append(&turns, 1);
    CHECK_EQUAL(turns.java, 1000);
    CHECK_EQUAL(pause_of(&turns), 0); /* a JVM had more */
    append(&turns, 1499);
    CHECK(pause_of(&turns) < LONG);
    CHECK(!turns.is_ahead);
    append(&other, 1); /* another of ours */
    CHECK_EQUAL(pause_of(&turns), LONG);
    CHECK(!ac_cq4_turns_is_free(&turns, 1));
    CHECK(!ac_cq4_turns_may_go(&turns, 1)); /* it was the other one */
    append(&turns, 1);
    CHECK(ac_cq4_turns_may_go(&turns, 1)); /* a JVM has appended */
    java(100);
    append(&turns, 1);
    CHECK(pause_of(&turns) < LONG);
    CHECK_EQUAL(turns.java, 1100);
}

TEST(jvms_that_append_little_hold_nobody_back) {
    begin();
    for (int i = 0; i < 1000; i++, now_ns += MS) { /* 1000 a second */
        java(1);
        append(&turns, 500);
        CHECK(pause_of(&turns) < LONG);
    }
}

/* Returns the total wait for JVMs that append nothing. */
static uint64_t wait_in_vain(uint64_t appends) {
    uint64_t waited_ns = 0;
    for (uint64_t i = 0; i < appends; i++) {
        if (!ac_cq4_turns_is_free(&turns, 0)) waited_ns += pause_of(&turns);
        append(&turns, 1);
    }
    return waited_ns;
}

TEST(jvms_that_went_are_not_waited_for_but_find_their_part_when_they_return) {
    begin();
    java(10000);
    append(&turns, 15100);
    CHECK_EQUAL(pause_of(&turns), LONG);
    uint64_t waited_ns = LONG + wait_in_vain(20000);
    CHECK(waited_ns >= 200 * US && waited_ns < 300 * US);
    CHECK(!turns.is_ahead && turns.is_owing);
    java(10);
    append(&turns, 1);
    CHECK(!ac_cq4_turns_is_free(&turns, 0));
    CHECK_EQUAL(pause_of(&turns), LONG);
    uint64_t later_ns = now_ns + 21 * MS;
    turns.appended_ns = later_ns;
    CHECK_EQUAL(ac_cq4_turns_pause_ns(&turns, later_ns), 0);
    CHECK(ac_cq4_turns_is_free(&turns, 0));
    CHECK(!turns.is_shared);
    now_ns = later_ns + 2000 * MS; /* long ago */
    append(&turns, 1);
    java(1);
    append(&turns, 1);
    CHECK_EQUAL(turns.java, 1);
    CHECK_EQUAL(pause_of(&turns), SHORT);
}

TEST(a_word_that_is_wrong_and_a_clock_that_is_set_back_are_harmless) {
    begin();
    java(1000);
    append(&turns, 100);
    word = 0;
    java(10);
    append(&turns, 1);
    CHECK(turns.ours <= seq && turns.java <= seq);
    CHECK(pause_of(&turns) <= LONG);
    word = UINT64_MAX;
    CHECK(pause_of(&turns) <= LONG);
    CHECK_EQUAL(ac_cq4_turns_pause_ns(&turns, 0), 0);
    turns.shared = NULL; /* no shared word */
    ac_cq4_turns_enter(&turns, seq);
    java(5);
    append(&turns, 3);
    CHECK_EQUAL(turns.own, 3);
}
