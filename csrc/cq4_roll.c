#include "cq4_roll.h"

#include <stdio.h>
#include <string.h>

enum { SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR };

const ac_cq4_known_roll_t ac_cq4_known_rolls[] = {
    {"FIVE_MINUTELY", "yyyyMMdd-HHmm'V'", 5 * MINUTE, 2048, 256},
    {"TEN_MINUTELY", "yyyyMMdd-HHmm'X'", 10 * MINUTE, 2048, 256},
    {"TWENTY_MINUTELY", "yyyyMMdd-HHmm'XX'", 20 * MINUTE, 2048, 256},
    {"HALF_HOURLY", "yyyyMMdd-HHmm'H'", 30 * MINUTE, 2048, 256},
    {"FAST_HOURLY", "yyyyMMdd-HH'F'", HOUR, 4096, 256},
    {"TWO_HOURLY", "yyyyMMdd-HH'II'", 2 * HOUR, 4096, 256},
    {"FOUR_HOURLY", "yyyyMMdd-HH'IV'", 4 * HOUR, 4096, 256},
    {"SIX_HOURLY", "yyyyMMdd-HH'VI'", 6 * HOUR, 4096, 256},
    {"FAST_DAILY", "yyyyMMdd'F'", DAY, 4096, 256},
    {"MINUTELY", "yyyyMMdd-HHmm", MINUTE, 2048, 16},
    {"HOURLY", "yyyyMMdd-HH", HOUR, 4096, 16},
    {"DAILY", "yyyyMMdd", DAY, 8192, 64},
    {"LARGE_HOURLY", "yyyyMMdd-HH'L'", HOUR, 8192, 64},
    {"LARGE_DAILY", "yyyyMMdd'L'", DAY, 32768, 128},
    {"XLARGE_DAILY", "yyyyMMdd'X'", DAY, 32768, 256},
    {"HUGE_DAILY", "yyyyMMdd'H'", DAY, 32768, 1024},
    {"SMALL_DAILY", "yyyyMMdd'S'", DAY, 8192, 8},
    {"LARGE_HOURLY_SPARSE", "yyyyMMdd-HH'LS'", HOUR, 4096, 1024},
    {"LARGE_HOURLY_XSPARSE", "yyyyMMdd-HH'LX'", HOUR, 2048, 1048576},
    {"HUGE_DAILY_XSPARSE", "yyyyMMdd'HX'", DAY, 16384, 1048576},
    {"TEST_SECONDLY", "yyyyMMdd-HHmmss'T'", SECOND, 32768, 4},
    {"TEST4_SECONDLY", "yyyyMMdd-HHmmss'T4'", SECOND, 32, 4},
    {"TEST_HOURLY", "yyyyMMdd-HH'T'", HOUR, 16, 4},
    {"TEST_DAILY", "yyyyMMdd'T1'", DAY, 8, 1},
    {"TEST2_DAILY", "yyyyMMdd'T2'", DAY, 16, 2},
    {"TEST4_DAILY", "yyyyMMdd'T4'", DAY, 32, 4},
    {"TEST8_DAILY", "yyyyMMdd'T8'", DAY, 128, 8},
};
const int ac_cq4_known_roll_count = sizeof ac_cq4_known_rolls / sizeof *ac_cq4_known_rolls;

const ac_cq4_known_roll_t *ac_cq4_roll_by_format(const char *format) {
    for (int i = 0; i < ac_cq4_known_roll_count; i++)
        if (strcmp(ac_cq4_known_rolls[i].format, format) == 0) return &ac_cq4_known_rolls[i];
    return NULL;
}

const ac_cq4_known_roll_t *ac_cq4_roll_by_name(const char *name) {
    for (int i = 0; i < ac_cq4_known_roll_count; i++)
        if (strcmp(ac_cq4_known_rolls[i].name, name) == 0) return &ac_cq4_known_rolls[i];
    return NULL;
}

const char *ac_roll_cycle_name(int number) {
    return number >= 0 && number < ac_cq4_known_roll_count ? ac_cq4_known_rolls[number].name : NULL;
}

uint32_t ac_cq4_log2(uint64_t value) {
    return value ? 63 - (uint32_t)__builtin_clzll(value) : 0;
}

uint32_t ac_cq4_shift(uint32_t index_count, uint32_t index_spacing) {
    uint32_t shift = 2 * ac_cq4_log2(index_count) + ac_cq4_log2(index_spacing);
    return shift > 32 ? shift : 32;
}

/* ---- the pattern ---- */

/* The fields of a date, each with its number of digits. */
enum { YEAR, MONTH, MONTH_DAY, HOUR_OF_DAY, MINUTE_OF_HOUR, SECOND_OF_MINUTE, FIELDS };

typedef struct date {
    int value[FIELDS];
} date_t;

/* One step through a pattern: a field, or one character of text. */
typedef struct step {
    int field; /* -1: text */
    int digits;
    char text;
} step_t;

static int field_of_letter(char letter) {
    switch (letter) {
    case 'y':
    case 'u':
        return YEAR;
    case 'M':
        return MONTH;
    case 'd':
        return MONTH_DAY;
    case 'H':
        return HOUR_OF_DAY;
    case 'm':
        return MINUTE_OF_HOUR;
    case 's':
        return SECOND_OF_MINUTE;
    default:
        return -1;
    }
}

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* 1 = a step, 0 = the end, -1 = something unknown. */
static int next_step(const char **at, int *quoted, step_t *out) {
    while (**at == '\'') {
        if ((*at)[1] == '\'') { /* a quote, inside of quotes and outside */
            *out = (step_t){-1, 0, '\''};
            *at += 2;
            return 1;
        }
        *quoted = !*quoted;
        ++*at;
    }
    char c = **at;
    if (c == 0) return *quoted ? -1 : 0;
    if (*quoted || !is_letter(c)) {
        /* A name with a slash would lead out of the directory; the other characters have a meaning in
         * patterns. */
        if (c == '/' || (signed char)c < ' ' || (!*quoted && strchr("[]{}#", c))) return -1;
        *out = (step_t){-1, 0, c};
        ++*at;
        return 1;
    }
    int run = 0;
    while ((*at)[run] == c)
        run++;
    *out = (step_t){field_of_letter(c), run, 0};
    *at += run;
    return out->field >= 0 && run == (out->field == YEAR ? 4 : 2) ? 1 : -1;
}

/* What distinguishes the names of files: each field needs the larger units above it. */
static uint64_t name_unit_ms(int fields) {
    if (!(fields & 1 << HOUR_OF_DAY)) return AC_CQ4_DAY_MS;
    if (!(fields & 1 << MINUTE_OF_HOUR)) return HOUR;
    return fields & 1 << SECOND_OF_MINUTE ? SECOND : MINUTE;
}

const char *ac_cq4_roll_problem(const ac_cq4_roll_t *roll) {
    const char *at = roll->format;
    int quoted = 0, rc, fields = 0;
    step_t step;
    while ((rc = next_step(&at, &quoted, &step)) == 1)
        if (step.field >= 0) fields |= 1 << step.field;
    if (rc < 0) return "the format of its file names is not supported";
    if ((fields & 7) != 7) return "the format of its file names has no full date";
    if (roll->length_ms == 0 || roll->length_ms > (uint64_t)AC_CQ4_DAY_MS * 36525)
        return "the length of its roll cycle is not possible";
    if (roll->length_ms < name_unit_ms(fields))
        return "its roll cycle is so short that several cycles would have one file";
    if (roll->epoch_ms > INT64_MAX / 4 || roll->epoch_ms < INT64_MIN / 4)
        return "the epoch of its roll cycle is not possible";
    return NULL;
}

/* ---- days and dates, in the proleptic Gregorian calendar ---- */

/* In years that begin in March the leap day comes last, and 400 of them have 146097 days. */
static int64_t days_of_date(const date_t *date) {
    int64_t year = date->value[YEAR] - (date->value[MONTH] <= 2);
    int64_t era = year / 400, year_of_era = year % 400;
    int64_t month = (date->value[MONTH] + 9) % 12;
    int64_t day_of_year = (153 * month + 2) / 5 + date->value[MONTH_DAY] - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year -
           719468;
}

static void date_of_days(int64_t days, date_t *date) {
    days += 719468;
    int64_t era = days / 146097, day_of_era = days % 146097;
    int64_t year =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    date->value[MONTH_DAY] = (int)(day_of_year - (153 * month + 2) / 5 + 1);
    date->value[MONTH] = (int)(month < 10 ? month + 3 : month - 9);
    date->value[YEAR] = (int)(year + era * 400 + (date->value[MONTH] <= 2));
}

static int64_t floor_to_days(int64_t epoch_ms) {
    int64_t rest = epoch_ms % AC_CQ4_DAY_MS;
    return epoch_ms - (rest < 0 ? rest + AC_CQ4_DAY_MS : rest);
}

/* ---- names ---- */

int ac_cq4_roll_file_name(const ac_cq4_roll_t *roll, uint32_t cycle, char out[AC_CQ4_NAME_MAX]) {
    static const int64_t first_ms = -62135596800000, end_ms = 253402300800000; /* years 1 to 9999 */
    int64_t time_ms, length_ms = (int64_t)roll->length_ms;
    if (cycle > AC_CQ4_CYCLE_MAX || __builtin_mul_overflow((int64_t)cycle, length_ms, &time_ms) ||
        __builtin_add_overflow(time_ms, floor_to_days(roll->epoch_ms), &time_ms) ||
        time_ms < first_ms || time_ms >= end_ms)
        return AC_E_ARGUMENT;
    int64_t day_ms = floor_to_days(time_ms);
    int seconds = (int)((time_ms - day_ms) / 1000);
    date_t date = {.value = {[HOUR_OF_DAY] = seconds / 3600,
                             [MINUTE_OF_HOUR] = seconds / 60 % 60,
                             [SECOND_OF_MINUTE] = seconds % 60}};
    date_of_days(day_ms / AC_CQ4_DAY_MS, &date);
    const char *at = roll->format;
    int quoted = 0, rc;
    size_t length = 0;
    step_t step;
    while ((rc = next_step(&at, &quoted, &step)) == 1) {
        if (length + 8 + sizeof AC_CQ4_SUFFIX > AC_CQ4_NAME_MAX) return AC_E_ARGUMENT;
        if (step.field < 0)
            out[length++] = step.text;
        else
            length +=
                (size_t)snprintf(out + length, 8, "%0*d", step.digits, date.value[step.field]);
    }
    memcpy(out + length, AC_CQ4_SUFFIX, sizeof AC_CQ4_SUFFIX);
    return rc == 0 ? AC_OK : AC_E_ARGUMENT;
}

static int read_digits(const char **name, int digits) {
    int value = 0;
    for (int i = 0; i < digits; i++, ++*name) {
        if (**name < '0' || **name > '9') return -1;
        value = value * 10 + (**name - '0');
    }
    return value;
}

static int parse_date(const char *format, const char *name, date_t *date) {
    int quoted = 0, rc;
    step_t step;
    while ((rc = next_step(&format, &quoted, &step)) == 1) {
        if (step.field < 0) {
            if (*name++ != step.text) return 0;
        } else {
            date->value[step.field] = read_digits(&name, step.digits);
            if (date->value[step.field] < 0) return 0;
        }
    }
    return rc == 0 && strcmp(name, AC_CQ4_SUFFIX) == 0;
}

int64_t ac_cq4_roll_cycle_of_name(const ac_cq4_roll_t *roll, const char *name) {
    date_t date = {0};
    char again[AC_CQ4_NAME_MAX];
    if (roll->length_ms == 0 || !parse_date(roll->format, name, &date)) return -1;
    int64_t time_ms = days_of_date(&date) * AC_CQ4_DAY_MS +
                      date.value[HOUR_OF_DAY] * (int64_t)HOUR +
                      date.value[MINUTE_OF_HOUR] * (int64_t)MINUTE +
                      date.value[SECOND_OF_MINUTE] * (int64_t)SECOND;
    int64_t since_ms = time_ms - floor_to_days(roll->epoch_ms);
    if (since_ms < 0) return -1;
    uint64_t cycle = (uint64_t)since_ms / roll->length_ms;
    /* The 31st of February, an hour of 25, a time at which no cycle begins: its name is another one, or
     * none. */
    if (cycle > AC_CQ4_CYCLE_MAX || ac_cq4_roll_file_name(roll, (uint32_t)cycle, again) != AC_OK ||
        strcmp(name, again) != 0)
        return -1;
    return (int64_t)cycle;
}

int64_t ac_cq4_roll_cycle_at(const ac_cq4_roll_t *roll, int64_t time_ms) {
    int64_t since_ms;
    if (__builtin_sub_overflow(time_ms, roll->epoch_ms, &since_ms) || since_ms < 0 ||
        roll->length_ms == 0)
        return -1;
    uint64_t cycle = (uint64_t)since_ms / roll->length_ms;
    return cycle <= AC_CQ4_CYCLE_MAX ? (int64_t)cycle : -1;
}

uint64_t ac_cq4_roll_moment_ns(const ac_cq4_roll_t *roll, uint32_t cycle) {
    int64_t time_ms;
    if (__builtin_mul_overflow((int64_t)cycle, (int64_t)roll->length_ms, &time_ms) ||
        __builtin_add_overflow(time_ms, roll->epoch_ms, &time_ms) || time_ms > INT64_MAX / 1000000)
        return UINT64_MAX;
    return time_ms < 0 ? 0 : (uint64_t)time_ms * 1000000;
}
