#include "cq4_reader.h"

#include "cq4_files.h"
#include "queue.h"

enum { SIZE = 256 << 10, FIRST_CYCLE = 1700000000, CYCLES = 5 };

static ac_error_t err;
static ac_cq4_roll_t roll;
static const char *path;

/* Cycles with 3, 0, 5, 7 and 9 messages, and a gap before the last. */
static const uint64_t MESSAGES[CYCLES] = {3, 0, 5, 7, 9};

static uint32_t number_of(int i) {
    return FIRST_CYCLE + (uint32_t)i + (i == CYCLES - 1 ? 10 : 0);
}

static void create_queue(void) {
    static char kept[600];
    roll = cq4_known_roll("TEST4_SECONDLY");
    snprintf(kept, sizeof kept, "%s", check_path("queue"));
    path = kept;
    CHECK_EQUAL(mkdir(path, 0700), 0);
    cq4_table_t table = cq4_create_table(path, &roll);
    for (int i = 0; i < CYCLES; i++) {
        cq4_file_t file = cq4_create_cycle(path, &roll, number_of(i), SIZE, 0);
        cq4_add_to_listing(&table, number_of(i));
        for (uint64_t seq = 0; seq < MESSAGES[i]; seq++)
            cq4_append(&file, "payload", 7);
        cq4_finish(&file);
        cq4_close_file(&file.out);
    }
    cq4_close_file(&table.out);
}

TEST(should_give_a_span_per_cycle_with_messages) {
    create_queue();
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    ac_range_t range;
    ac_span_t spans[CYCLES];
    ac_bound_t none = {AC_BOUND_NONE, 0};
    CHECK_OK(ac_reader_range(reader, none, none, &range, &err), err);
    CHECK_EQUAL(ac_reader_spans(reader, &range, spans, CYCLES, &err), CYCLES - 1);
    int span = 0;
    for (int i = 0; i < CYCLES; i++) {
        if (MESSAGES[i] == 0) continue;
        CHECK_EQUAL(spans[span].first_seq, ac_cq4_index(&roll, number_of(i), 0));
        CHECK_EQUAL(spans[span].end_seq, ac_cq4_index(&roll, number_of(i), MESSAGES[i]));
        CHECK(spans[span].bytes >= MESSAGES[i] * 12);
        span++;
    }
    ac_reader_free(reader);
}

TEST(should_fill_no_more_than_the_room) {
    create_queue();
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    ac_range_t range;
    ac_span_t spans[3] = {{0}};
    ac_bound_t start = {AC_BOUND_SEQ, ac_cq4_index(&roll, number_of(0), 2)};
    ac_bound_t end = {AC_BOUND_SEQ, ac_cq4_index(&roll, number_of(3), 1)};
    CHECK_OK(ac_reader_range(reader, start, end, &range, &err), err);
    CHECK_EQUAL(ac_reader_spans(reader, &range, spans, 2, &err), 3);
    CHECK_EQUAL(spans[0].first_seq, start.value);
    CHECK_EQUAL(spans[0].end_seq, start.value + 1);
    CHECK_EQUAL(spans[1].end_seq - spans[1].first_seq, 5);
    CHECK_EQUAL(spans[2].end_seq, 0);
    CHECK_EQUAL(ac_reader_spans(reader, &range, NULL, 0, &err), 3);
    CHECK_EQUAL(ac_reader_spans(reader, &range, spans, 3, &err), 3);
    CHECK_EQUAL(spans[2].end_seq, end.value);
    CHECK_EQUAL(ac_reader_count(reader, &range, &err), 1 + 5 + 1);
    ac_reader_free(reader);
}
