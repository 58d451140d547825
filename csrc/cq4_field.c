#include "cq4_field.h"

#include <string.h>

/* ---- Latin-1 ---- */

int ac_cq4_to_latin1(const char *text, char *out, size_t size) {
    const uint8_t *at = (const uint8_t *)text;
    size_t length = 0;
    for (; *at; at++) {
        unsigned c = *at;
        if (c >= 0x80) {
            if ((c != 0xC2 && c != 0xC3) || (at[1] & 0xC0) != 0x80) return 0;
            c = (c & 3) << 6 | (*++at & 0x3F);
        }
        if (length + 1 >= size) return 0;
        out[length++] = (char)c;
    }
    out[length] = 0;
    return 1;
}

void ac_cq4_from_latin1(const char *text, char *out, size_t size) {
    size_t length = 0;
    for (const uint8_t *at = (const uint8_t *)text; *at && length + 2 < size; at++) {
        if (*at >= 0x80) {
            out[length++] = (char)(0xC0 | *at >> 6);
            out[length++] = (char)(0x80 | (*at & 0x3F));
        } else {
            out[length++] = (char)*at;
        }
    }
    out[length] = 0;
}

const char *ac_cq4_field_name(ac_cq4_field_t *field, const char *name) {
    if (!name[0]) return "the name of the timestamp field is empty";
    if (!ac_cq4_to_latin1(name, field->name, sizeof field->name))
        return "the name of the timestamp field is too long, or has characters that Java's names "
               "cannot have";
    return NULL;
}

/* ---- dates ---- */

enum { TIME_MAX = 96 };
#define SECOND_NS 1000000000ull

static int digits(const char **text, int count, int64_t *out) {
    *out = 0;
    for (; count > 0; count--, ++*text) {
        if (**text < '0' || **text > '9') return 0;
        *out = *out * 10 + (**text - '0');
    }
    return 1;
}

static int skip(const char **text, char expected) {
    if (**text != expected) return 0;
    ++*text;
    return 1;
}

static int64_t days_of(int64_t year, int64_t month, int64_t day) {
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t past = month > 2 ? year : year - 1; /* the leap days up to there */
    return year * 365 + past / 4 - past / 100 + past / 400 + before[month - 1] + day - 719528;
}

/* The time of day: hours and minutes, then seconds and their fraction, if given. */
static int parse_clock(const char **text, int64_t *seconds, uint64_t *ns) {
    int64_t hour, minute, second = 0, digit;
    *ns = 0;
    if (!digits(text, 2, &hour) || !skip(text, ':') || !digits(text, 2, &minute)) return 0;
    if (skip(text, ':') && !digits(text, 2, &second)) return 0;
    if (skip(text, '.'))
        for (uint64_t unit = SECOND_NS / 10; unit > 0 && digits(text, 1, &digit); unit /= 10)
            *ns += (uint64_t)digit * unit;
    *seconds = hour * 3600 + minute * 60 + second;
    return hour < 24 && minute < 60 && second < 60;
}

static int parse_offset(const char **text, int64_t *seconds) {
    int64_t hour, minute, second = 0;
    int is_negative = **text == '-';
    *seconds = 0;
    if (!skip(text, '+') && !skip(text, '-')) return skip(text, 'Z') || **text == 0;
    if (!digits(text, 2, &hour) || !skip(text, ':') || !digits(text, 2, &minute)) return 0;
    if (skip(text, ':') && !digits(text, 2, &second)) return 0;
    *seconds = hour * 3600 + minute * 60 + second;
    if (is_negative) *seconds = -*seconds;
    return 1;
}

int ac_cq4_parse_time(const char *text, uint64_t *timestamp_ns) {
    int64_t year, month, day, clock, offset;
    uint64_t ns;
    if (!digits(&text, 4, &year) || !skip(&text, '-') || !digits(&text, 2, &month) ||
        !skip(&text, '-') || !digits(&text, 2, &day) || !skip(&text, 'T'))
        return 0;
    if (month < 1 || month > 12 || day < 1 || day > 31 || year < 1) return 0;
    if (!parse_clock(&text, &clock, &ns) || !parse_offset(&text, &offset)) return 0;
    if (*text && *text != '[') return 0; /* the name of the zone adds nothing */
    int64_t seconds = days_of(year, month, day) * 86400 + clock - offset;
    if (seconds < 0 || (uint64_t)seconds >= INT64_MAX / SECOND_NS) return 0;
    *timestamp_ns = (uint64_t)seconds * SECOND_NS + ns;
    return 1;
}

/* ---- the field ---- */

static const char *const missing = "is missing";
static const char *const malformed = "cannot be found: the message is not in Java's binary format";
static const char *const unusable = "is no number of this unit, and no date and time, between 1970 "
                                    "and 2262";

static const char *take_whole(int64_t number, uint64_t unit_ns, uint64_t *out) {
    if (number < 0 || (uint64_t)number > INT64_MAX / unit_ns) return unusable;
    *out = (uint64_t)number * unit_ns;
    return NULL;
}

static const char *take_real(double number, uint64_t unit_ns, uint64_t *out) {
    double ns = number * (double)unit_ns;
    if (!(ns >= 0 && ns < 9.2e18)) return unusable;
    *out = (uint64_t)ns;
    return NULL;
}

/* The next value. */
static const char *take_time(ac_cq4_wire_t *wire, uint64_t unit_ns, uint64_t *out) {
    char text[TIME_MAX];
    int64_t whole;
    double real;
    uint32_t where;
    if (ac_cq4_wire_type(wire, text, sizeof text) < 0) return malformed;
    int rc = ac_cq4_wire_i64(wire, &whole, &where);
    if (rc == 1) return take_whole(whole, unit_ns, out);
    if (rc == 0) rc = ac_cq4_wire_real(wire, &real);
    if (rc == 1) return take_real(real, unit_ns, out);
    int code = ac_cq4_wire_code(wire);
    if (rc < 0 || (code != 0xB4 && code != 0xB5)) return unusable;
    if (ac_cq4_wire_text(wire, text, sizeof text) != 1) return unusable;
    return ac_cq4_parse_time(text, out) ? NULL : unusable;
}

static int is_name(int code) {
    return code == 0xB7 || code == 0xB9 || code == 0xBA || (code >= 0xC0 && code <= 0xDF);
}

/* Searches the names of one wire. */
static const char *find_among(ac_cq4_wire_t wire, const ac_cq4_field_t *field, uint64_t *out) {
    char name[AC_CQ4_WIRE_NAME_MAX];
    int code;
    while ((code = ac_cq4_wire_code(&wire)) >= 0) {
        if (!is_name(code)) return missing;
        if (ac_cq4_wire_name(&wire, name, sizeof name) != 1) return malformed;
        if (strcmp(name, field->name) == 0) return take_time(&wire, field->unit_ns, out);
        if (ac_cq4_wire_skip(&wire) != 1) return malformed;
    }
    return code == AC_CQ4_WIRE_END ? missing : malformed;
}

/* Searches the arguments of a call: its only one is an object, or some of several are. What cannot be
 * parsed there counts as no match. */
static const char *find_in_arguments(ac_cq4_wire_t arguments, const ac_cq4_field_t *field,
                                     uint64_t *out) {
    const char *wrong = find_among(arguments, field, out);
    ac_cq4_wire_t inside;
    while (wrong == missing && ac_cq4_wire_code(&arguments) >= 0) {
        int rc = ac_cq4_wire_block(&arguments, &inside);
        if (rc == 1)
            wrong = find_among(inside, field, out);
        else if (rc < 0 || ac_cq4_wire_skip(&arguments) != 1)
            break;
    }
    return wrong;
}

const char *ac_cq4_field_time(const ac_cq4_field_t *field, const uint8_t *payload, uint32_t length,
                              uint64_t *timestamp_ns) {
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_wire_t wire = {payload, 0, length}, inside;
    int code = ac_cq4_wire_code(&wire);
    if (code < 0) return code == AC_CQ4_WIRE_END ? missing : malformed;
    if (!is_name(code)) {
        if (ac_cq4_wire_block(&wire, &inside) == 1) return find_among(inside, field, timestamp_ns);
        return missing;
    }
    const char *wrong = find_among(wire, field, timestamp_ns);
    if (wrong != missing || (code != 0xB9 && code != 0xBA)) return wrong;
    while (ac_cq4_wire_name(&wire, name, sizeof name) == 1) {
        int rc = ac_cq4_wire_block(&wire, &inside);
        if (rc < 0 || (rc == 0 && ac_cq4_wire_skip(&wire) != 1)) return malformed;
        if (rc == 0 || strcmp(name, "history") == 0 || strcmp(name, "-1") == 0) continue;
        const char *found = find_in_arguments(inside, field, timestamp_ns);
        if (found != missing && found != malformed) return found;
    }
    return missing;
}
