#include "cq4_roll.h"

#include "check.h"
#include "cq4_files.h"

static ac_cq4_roll_t roll_of(const char *format, uint64_t length_ms, int64_t epoch_ms) {
    ac_cq4_roll_t roll = {.length_ms = length_ms, .epoch_ms = epoch_ms, .shift = 32};
    snprintf(roll.format, sizeof roll.format, "%s", format);
    return roll;
}

static const char *name_of(const ac_cq4_roll_t *roll, uint32_t cycle) {
    static char name[AC_CQ4_NAME_MAX];
    return ac_cq4_roll_file_name(roll, cycle, name) == AC_OK ? name : "";
}

/* Java's output about each of its roll cycles, and about files of all of them under several epochs. The Makefile runs
 * tests in the root of the tree. */
TEST(cycles_and_names_are_those_of_java) {
    FILE *file = fopen("tests/data/cq4/roll-cycles.txt", "r");
    char line[256], name[64], format[64], expected[64];
    int cycles = 0, names = 0;
    unsigned count, spacing, cycle, again;
    long long length_ms, epoch_ms, time_ms;
    unsigned long long index;
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "cycle %63s %63s %lld %u %u %llx", name, format, &length_ms, &count,
                   &spacing, &index) == 6) {
            const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(name);
            CHECK_EQUAL(ac_cq4_log2(index), ac_cq4_shift(count, spacing));
            cycles++;
            if (strcmp(name, "WEEKLY") == 0) { /* see cq4_roll.h */
                CHECK(!known);
                continue;
            }
            CHECK(known && strcmp(known->format, format) == 0);
            CHECK(known->length_ms == length_ms && known->index_count == count);
            CHECK_EQUAL(known->index_spacing, spacing);
        } else if (sscanf(line, "name %63s %lld %lld %u %63s %u", name, &epoch_ms, &time_ms, &cycle,
                          expected, &again) == 6) {
            const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(name);
            ac_cq4_roll_t roll = roll_of(known->format, known->length_ms, epoch_ms);
            CHECK_EQUAL(ac_cq4_roll_cycle_at(&roll, time_ms), cycle);
            CHECK(strcmp(name_of(&roll, cycle), expected) == 0);
            CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&roll, expected), cycle);
            CHECK_EQUAL(again, cycle);
            names++;
        }
    }
    fclose(file);
    CHECK_EQUAL(cycles, ac_cq4_known_roll_count + 1);
    CHECK(names > 300);
}

TEST(shifts_are_those_of_java) {
    CHECK_EQUAL(ac_cq4_shift(4096, 256), 32);
    CHECK_EQUAL(ac_cq4_shift(32768, 128), 37);
    CHECK_EQUAL(ac_cq4_shift(32768, 1024), 40);
    CHECK_EQUAL(ac_cq4_shift(16384, 1048576), 48);
    CHECK_EQUAL(ac_cq4_shift(524288, 1024), 48); /* HUGE_DAILY of 4.x */
}

TEST(every_name_leads_back_to_its_cycle) {
    static const int64_t epochs[] = {0, 61200000, 1600000123456, -3600000, -86400001};
    uint64_t random = check_seed() | 1;
    for (int i = 0; i < ac_cq4_known_roll_count; i++) {
        const ac_cq4_known_roll_t *known = &ac_cq4_known_rolls[i];
        CHECK(ac_cq4_roll_by_format(known->format) == known);
        CHECK(ac_cq4_roll_by_name(known->name) == known);
        for (int round = 0; round < 400; round++) {
            ac_cq4_roll_t roll = roll_of(known->format, known->length_ms, epochs[round % 5]);
            uint32_t cycle =
                (uint32_t)(check_random(&random) % (4000000000000ull / known->length_ms)) &
                AC_CQ4_CYCLE_MAX;
            CHECK(ac_cq4_roll_problem(&roll) == NULL);
            const char *name = name_of(&roll, cycle);
            CHECK(name[0] != 0);
            CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&roll, name), cycle);
        }
    }
}

TEST(formats_in_any_order_and_with_quotes) {
    ac_cq4_roll_t roll = roll_of("'it''s' dd.MM.yyyy''HH", 3600000, 0);
    CHECK(ac_cq4_roll_problem(&roll) == NULL);
    CHECK(strcmp(name_of(&roll, 472222), "it's 14.11.2023'22.cq4") == 0);
    CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&roll, "it's 14.11.2023'22.cq4"), 472222);
}

TEST(formats_that_cannot_be_followed_are_refused) {
    static const char *const formats[] = {"YYYY'W'ww", "yyyyMMdd'open", "yyMMdd",   "yyyyMMdd/HH",
                                          "yyyyDDD",   "HHmmss",        "",         "yyyyMd",
                                          "yyyyMM",    "yyyyMMdd[HH]",  "yyyyMMdda"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        ac_cq4_roll_t roll = roll_of(formats[i], 86400000, 0);
        CHECK(ac_cq4_roll_problem(&roll) != NULL);
    }
    ac_cq4_roll_t none = roll_of("yyyyMMdd", 0, 0), endless = roll_of("yyyyMMdd", UINT64_MAX, 0);
    CHECK(ac_cq4_roll_problem(&none) && ac_cq4_roll_problem(&endless));
    ac_cq4_roll_t far = roll_of("yyyyMMdd", 86400000, INT64_MIN);
    CHECK(ac_cq4_roll_problem(&far));
}

TEST(cycles_that_would_share_a_file_are_refused) {
    static const struct {
        const char *format;
        uint64_t length_ms;
        int is_refused;
    } cases[] = {{"yyyyMMdd", 86399999, 1},   {"yyyyMMdd", 86400000, 0},
                 {"yyyyMMdd-HH", 3599999, 1}, {"yyyyMMdd-HHmm", 59999, 1},
                 {"yyyyMMdd-HHmm", 90000, 0}, {"yyyyMMdd-HHmmss", 999, 1},
                 {"yyyyMMdd-HHss", 60000, 1}, {"yyyyMMdd-mmss", 3600000, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ac_cq4_roll_t roll = roll_of(cases[i].format, cases[i].length_ms, 0);
        CHECK_EQUAL(ac_cq4_roll_problem(&roll) != NULL, cases[i].is_refused);
    }
}

TEST(names_that_are_no_cycle_s_are_none) {
    static const char *const names[] = {
        "20230231F.cq4",           "20231301F.cq4", "2023111F.cq4",  "20231114F",
        "20231114F.cq4t",          "20231114G.cq4", "metadata.cq4",  ".cq4",
        "20231114F.cq4-1.discard", "00000101F.cq4", "19691231F.cq4", ""};
    ac_cq4_roll_t roll = roll_of("yyyyMMdd'F'", 86400000, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&roll, names[i]), -1);
    CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&roll, "20231114F.cq4"), 19675);
    ac_cq4_roll_t minutes = roll_of("yyyyMMdd-HHmm'V'", 300000, 0);
    CHECK_EQUAL(ac_cq4_roll_cycle_of_name(&minutes, "20231114-2212V.cq4"), -1); /* within a cycle */
    CHECK(ac_cq4_roll_cycle_of_name(&minutes, "20231114-2210V.cq4") > 0);
}

TEST(a_moment_belongs_to_the_cycle_that_began_last) {
    ac_cq4_roll_t roll = roll_of("yyyyMMdd", 86400000, 61200000);
    CHECK_EQUAL(ac_cq4_roll_cycle_at(&roll, 61200000 + 86399999), 0);
    CHECK_EQUAL(ac_cq4_roll_cycle_at(&roll, 61200000 + 86400000), 1);
    CHECK_EQUAL(ac_cq4_roll_cycle_at(&roll, 61199999), -1);
    CHECK_EQUAL(ac_cq4_roll_cycle_at(&roll, INT64_MAX), -1);
    CHECK_EQUAL(ac_cq4_roll_moment_ns(&roll, 1), (61200000ull + 86400000) * 1000000);
    CHECK(strcmp(name_of(&roll, 1), "19700102.cq4") == 0);
    roll.epoch_ms = -86400001;
    CHECK_EQUAL(ac_cq4_roll_moment_ns(&roll, 0), 0);
    roll = roll_of("yyyyMMdd", (uint64_t)86400000 * 36525, INT64_MAX / 8);
    CHECK(ac_cq4_roll_moment_ns(&roll, INT32_MAX) == UINT64_MAX);
    CHECK(name_of(&roll, INT32_MAX)[0] == 0);
}
