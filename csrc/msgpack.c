/* MessagePack into columns, without an object in between.
 *
 * This decodes maps of plain values, of lists and of structs of them, and gives up at everything else. A full decoder
 * would read the same values from whatever is decoded here. The full decoder judges the rest: whether it is valid, and
 * if not, what is wrong. So nothing here gives reasons, and nothing is ever corrected. */
#include "aiochronicle.h"

#include <string.h>

/* Values that are not wanted may be nested; a full decoder has a limit of its own, beyond this one. */
enum { DEPTH_MAX = 16 };

enum {
    TAG_NIL = 0xc0,
    TAG_FALSE = 0xc2,
    TAG_TRUE = 0xc3,
    TAG_BYTES = 0xc4, /* with a length of 1, 2, 4 bytes: so are the next two, and below */
    TAG_EXTENSION = 0xc7,
    TAG_FLOAT = 0xca,
    TAG_DOUBLE = 0xcb,
    TAG_UNSIGNED = 0xcc, /* of 1, 2, 4, 8 bytes */
    TAG_SIGNED = 0xd0,
    TAG_FIXED_EXTENSION = 0xd4, /* of 1, 2, 4, 8, 16 bytes */
    TAG_TEXT = 0xd9,
    TAG_ARRAY = 0xdc, /* with a count of 2, 4 bytes */
    TAG_MAP = 0xde,
    TAG_NEGATIVE = 0xe0 /* from here on it is a number by itself, as below 0x80 */
};

/* Whether a message is what msgspec's encoder makes of its values is determined on the way: `varied` is set
 * where it would have chosen other bytes, or where that is uncertain. */
typedef struct input {
    const uint8_t *at, *end;
    int varied;
} input_t;

static inline int has(const input_t *in, uint64_t size) {
    return (uint64_t)(in->end - in->at) >= size;
}

static inline int take_tag(input_t *in, uint8_t *tag) {
    if (!has(in, 1)) return 0;
    *tag = *in->at++;
    return 1;
}

/* A number of this many bytes, 1 to 8, highest first. Where eight can be read, no loop is needed. */
static inline int take_number(input_t *in, uint32_t size, uint64_t *out) {
    uint64_t number = 0;
    if (has(in, 8)) {
        memcpy(&number, in->at, 8);
        *out = __builtin_bswap64(number) >> (64 - 8 * size);
        in->at += size;
        return 1;
    }
    if (!has(in, size)) return 0;
    for (uint32_t i = 0; i < size; i++)
        number = number << 8 | in->at[i];
    in->at += size;
    *out = number;
    return 1;
}

/* A number after a tag that encoders use only if shorter ones do not fit. */
static inline int take_length(input_t *in, uint32_t size, uint64_t shorter, uint64_t *out) {
    if (!take_number(in, size, out)) return 0;
    in->varied |= *out < shorter;
    return 1;
}

static inline int pass(input_t *in, uint64_t size) {
    if (!has(in, size)) return 0;
    in->at += size;
    return 1;
}

static int skip(input_t *in, int depth);

static int skip_items(input_t *in, uint64_t count, int depth) {
    if (depth == DEPTH_MAX) return 0;
    for (; count > 0; count--)
        if (!skip(in, depth + 1)) return 0;
    return 1;
}

static int skip(input_t *in, int depth) {
    uint8_t tag;
    uint64_t size;
    if (!take_tag(in, &tag)) return 0;
    if (tag < 0x80 || tag >= TAG_NEGATIVE) return 1;
    if (tag < 0x90) return skip_items(in, 2 * (tag & 15u), depth);
    if (tag < 0xa0) return skip_items(in, tag & 15u, depth);
    if (tag < 0xc0) return pass(in, tag & 31u);
    if (tag == TAG_NIL || tag == TAG_FALSE || tag == TAG_TRUE) return 1;
    if (tag < TAG_BYTES) return 0; /* the one tag without a meaning */
    if (tag < TAG_EXTENSION)
        return take_number(in, 1u << (tag - TAG_BYTES), &size) && pass(in, size);
    if (tag < TAG_FLOAT)
        return take_number(in, 1u << (tag - TAG_EXTENSION), &size) && pass(in, size + 1);
    if (tag < TAG_UNSIGNED) return pass(in, tag == TAG_FLOAT ? 4 : 8);
    if (tag < TAG_SIGNED) return pass(in, 1u << (tag - TAG_UNSIGNED));
    if (tag < TAG_FIXED_EXTENSION) return pass(in, 1u << (tag - TAG_SIGNED));
    if (tag < TAG_TEXT) return pass(in, 1 + (1u << (tag - TAG_FIXED_EXTENSION)));
    if (tag < TAG_ARRAY) return take_number(in, 1u << (tag - TAG_TEXT), &size) && pass(in, size);
    if (tag < TAG_MAP)
        return take_number(in, 2u << (tag - TAG_ARRAY), &size) && skip_items(in, size, depth);
    return take_number(in, 2u << (tag - TAG_MAP), &size) && skip_items(in, 2 * size, depth);
}

static inline int take_entries(input_t *in, uint64_t *count) {
    uint8_t tag;
    if (!take_tag(in, &tag)) return 0;
    *count = tag & 15u;
    if (tag >= 0x80 && tag < 0x90) return 1;
    return tag >= TAG_MAP && tag < TAG_NEGATIVE &&
           take_length(in, 2u << (tag - TAG_MAP), tag == TAG_MAP ? 16 : 1u << 16, count);
}

static inline int take_text(input_t *in, const uint8_t **text, uint64_t *length) {
    uint8_t tag;
    if (!take_tag(in, &tag)) return 0;
    *length = tag & 31u;
    if (tag < 0xa0 || tag >= 0xc0) {
        if (tag < TAG_TEXT || tag >= TAG_ARRAY) return 0;
        uint64_t shorter = tag == TAG_TEXT ? 32 : UINT64_C(1) << 8 * (tag - TAG_TEXT);
        if (!take_length(in, 1u << (tag - TAG_TEXT), shorter, length)) return 0;
    }
    *text = in->at;
    return pass(in, *length);
}

static inline int take_bytes(input_t *in, const uint8_t **bytes, uint64_t *length) {
    uint8_t tag;
    if (!take_tag(in, &tag) || tag < TAG_BYTES || tag >= TAG_EXTENSION) return 0;
    uint64_t shorter = tag == TAG_BYTES ? 0 : UINT64_C(1) << 8 * (tag - TAG_BYTES);
    if (!take_length(in, 1u << (tag - TAG_BYTES), shorter, length)) return 0;
    *bytes = in->at;
    return pass(in, *length);
}

static inline int take_int(input_t *in, int64_t *out) {
    uint8_t tag;
    uint64_t number;
    if (!take_tag(in, &tag)) return 0;
    if (tag < 0x80 || tag >= TAG_NEGATIVE) {
        *out = (int8_t)tag;
        return 1;
    }
    if (tag < TAG_UNSIGNED || tag >= TAG_FIXED_EXTENSION) return 0;
    uint32_t size = 1u << (tag & 3u);
    if (!take_number(in, size, &number)) return 0;
    uint32_t unused = 64 - 8 * size;
    if (tag < TAG_SIGNED) {
        *out = (int64_t)number;
        in->varied |= number < (size == 1 ? 1u << 7 : UINT64_C(1) << 4 * size);
        return number <= INT64_MAX;
    }
    *out = (int64_t)(number << unused) >> unused;
    in->varied |= *out >= (size == 1 ? -32 : -(INT64_C(1) << (4 * size - 1)));
    return 1;
}

/* Accepts a whole number, too. */
static inline int take_float(input_t *in, double *out) {
    uint64_t bits;
    int64_t whole;
    if (!has(in, 1)) return 0;
    if (*in->at == TAG_DOUBLE) {
        in->at++;
        if (!take_number(in, 8, &bits)) return 0;
        memcpy(out, &bits, 8);
        return 1;
    }
    in->varied = 1;
    if (*in->at == TAG_FLOAT) {
        float narrow;
        in->at++;
        if (!take_number(in, 4, &bits)) return 0;
        uint32_t narrow_bits = (uint32_t)bits;
        memcpy(&narrow, &narrow_bits, 4);
        *out = (double)narrow;
        return 1;
    }
    if (!take_int(in, &whole)) return 0;
    *out = (double)whole;
    return 1;
}

static inline void set_bit(uint8_t *bits, uint64_t row) {
    bits[row / 8] |= (uint8_t)(1u << row % 8);
}

static inline int is_content(const ac_field_t *field) {
    return field->kind == AC_FIELD_TEXT || field->kind == AC_FIELD_BYTES;
}

static inline int is_struct(const ac_field_t *field) {
    return field->kind == AC_FIELD_ARRAY || field->kind == AC_FIELD_MAP;
}

static inline int has_offsets(const ac_field_t *field) {
    return is_content(field) || field->kind == AC_FIELD_LIST;
}

static inline int is_column(const ac_field_t *field) {
    return field->kind != AC_FIELD_TAG && field->kind != AC_FIELD_SKIPPED;
}

static void put_null(ac_field_t *field, uint64_t row) {
    if (!is_column(field)) return;
    field->nulls++;
    if (has_offsets(field))
        field->offsets[row + 1] = field->offsets[row];
    else if (is_struct(field))
        for (uint32_t i = 0; i < field->part_count; i++)
            put_null(&field->parts[i], row);
    else if (field->kind != AC_FIELD_BOOL)
        ((int64_t *)field->values)[row] = 0;
}

static inline void put_content(ac_field_t *field, uint64_t row, const uint8_t *from,
                               uint64_t length) {
    int32_t at = field->offsets[row];
    memcpy((uint8_t *)field->values + at, from, length);
    field->offsets[row + 1] = at + (int32_t)length;
}

static int take_entries_of(input_t *in, ac_field_t *fields, uint32_t count, uint64_t row);
static int take_value(input_t *in, ac_field_t *field, uint64_t row);

static inline int take_items(input_t *in, uint64_t *count) {
    uint8_t tag;
    if (!take_tag(in, &tag)) return 0;
    *count = tag & 15u;
    if (tag >= 0x90 && tag < 0xa0) return 1;
    return tag >= TAG_ARRAY && tag < TAG_MAP &&
           take_length(in, 2u << (tag - TAG_ARRAY), tag == TAG_ARRAY ? 16 : 1u << 16, count);
}

/* As take_value, with a shortcut for numbers of eight bytes, which order books are full of. */
static inline int take_part(input_t *in, ac_field_t *field, uint64_t row) {
    if (field->kind == AC_FIELD_FLOAT && has(in, 9) && *in->at == TAG_DOUBLE) {
        uint64_t bits;
        memcpy(&bits, in->at + 1, 8);
        bits = __builtin_bswap64(bits);
        memcpy((double *)field->values + row, &bits, 8);
        in->at += 9;
        set_bit(field->valid, row);
        return 1;
    }
    return take_value(in, field, row);
}

static int take_list(input_t *in, ac_field_t *field, uint64_t row) {
    ac_field_t *item = field->parts;
    uint64_t count;
    if (!take_items(in, &count) || count > item->items_max - item->items) return 0;
    for (; count > 0; count--) {
        if (!take_value(in, item, item->items)) return 0;
        item->items++;
    }
    field->offsets[row + 1] = (int32_t)item->items;
    return 1;
}

static int take_array(input_t *in, ac_field_t *field, uint64_t row) {
    uint64_t count;
    if (!take_items(in, &count)) return 0;
    in->varied |= count != field->part_count;
    for (uint32_t i = 0; i < field->part_count; i++) {
        ac_field_t *part = &field->parts[i];
        if (i < count) {
            if (!take_part(in, part, row)) return 0;
        } else if (part->may_be_missing) {
            put_null(part, row);
        } else {
            return 0;
        }
    }
    for (uint64_t i = field->part_count; i < count; i++)
        if (!skip(in, 0)) return 0;
    return 1;
}

static int take_tag_text(input_t *in, const ac_field_t *field) {
    const uint8_t *text;
    uint64_t length;
    return take_text(in, &text, &length) && length == field->items_max &&
           memcmp(text, field->values, length) == 0;
}

static int take_value(input_t *in, ac_field_t *field, uint64_t row) {
    const uint8_t *content;
    uint64_t length;
    uint8_t tag;
    if (has(in, 1) && *in->at == TAG_NIL) {
        in->at++;
        put_null(field, row);
        return field->may_be_nil;
    }
    switch (field->kind) {
    case AC_FIELD_BOOL:
        if (!take_tag(in, &tag) || (tag != TAG_FALSE && tag != TAG_TRUE)) return 0;
        if (tag == TAG_TRUE) set_bit(field->values, row);
        break;
    case AC_FIELD_INT:
        if (!take_int(in, (int64_t *)field->values + row)) return 0;
        break;
    case AC_FIELD_FLOAT:
        if (!take_float(in, (double *)field->values + row)) return 0;
        break;
    case AC_FIELD_TEXT:
        if (!take_text(in, &content, &length)) return 0;
        put_content(field, row, content, length);
        break;
    case AC_FIELD_BYTES:
        if (!take_bytes(in, &content, &length)) return 0;
        put_content(field, row, content, length);
        break;
    case AC_FIELD_TAG:
        return take_tag_text(in, field);
    case AC_FIELD_LIST:
        if (!take_list(in, field, row)) return 0;
        break;
    case AC_FIELD_ARRAY:
        if (!take_array(in, field, row)) return 0;
        break;
    case AC_FIELD_MAP:
        if (!take_entries_of(in, field->parts, field->part_count, row)) return 0;
        break;
    default:
        return 0;
    }
    set_bit(field->valid, row);
    return 1;
}

/* Names are short, and most differ at their beginning. */
static inline int is_named(const ac_field_t *field, const uint8_t *name, uint64_t length) {
    if (field->name_length != length) return 0;
    if (length == 0) return 1;
    if ((uint8_t)field->name[0] != name[0]) return 0;
    return length == 1 || memcmp(field->name + 1, name + 1, length - 1) == 0;
}

/* Messages of a type mostly have their fields in order, so `guess` is mostly right. */
static inline uint32_t find(const ac_field_t *fields, uint32_t count, uint32_t guess,
                            const uint8_t *name, uint64_t length) {
    if (guess < count && is_named(&fields[guess], name, length)) return guess;
    uint32_t i = 0;
    while (i < count && !is_named(&fields[i], name, length))
        i++;
    return i;
}

static int take_entries_of(input_t *in, ac_field_t *fields, uint32_t count, uint64_t row) {
    uint64_t entries, length, seen = 0;
    uint32_t next = 0;
    const uint8_t *name;
    if (!take_entries(in, &entries)) return 0;
    in->varied |= entries != count;
    for (; entries > 0; entries--) {
        if (!take_text(in, &name, &length)) return 0;
        uint32_t i = find(fields, count, next, name, length);
        if (i == count) {
            in->varied = 1;
            if (!skip(in, 0)) return 0;
            continue;
        }
        /* Each field at most once: so no column gets more bytes than the payloads have. */
        if (seen >> i & 1) return 0;
        if (fields[i].kind == AC_FIELD_SKIPPED ? !skip(in, 0) : !take_part(in, &fields[i], row))
            return 0;
        in->varied |= i != next;
        seen |= UINT64_C(1) << i;
        next = i + 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (seen >> i & 1) continue;
        if (!fields[i].may_be_missing) return 0;
        put_null(&fields[i], row);
    }
    return 1;
}

/* A struct has at most as many fields as there are bits to record which were seen; a list has one kind of
 * item. */
static int prepare(ac_field_t *fields, uint32_t count) {
    if (count > AC_FIELDS_MAX) return 0;
    for (uint32_t i = 0; i < count; i++) {
        ac_field_t *field = &fields[i];
        field->nulls = field->items = 0;
        if (has_offsets(field)) field->offsets[0] = 0;
        if (field->kind == AC_FIELD_LIST && field->part_count != 1) return 0;
        if (field->part_count && !prepare(field->parts, field->part_count)) return 0;
    }
    return 1;
}

uint64_t ac_msgpack_columns(const uint8_t *payload, const int32_t *offsets, uint64_t rows,
                            ac_field_t *fields, uint32_t count, uint8_t *usual) {
    if (!prepare(fields, count)) return 0;
    for (uint64_t row = 0; row < rows; row++) {
        input_t in = {payload + offsets[row], payload + offsets[row + 1], 0};
        if (in.at > in.end || !take_entries_of(&in, fields, count, row) || in.at != in.end)
            return row;
        if (usual && !in.varied) set_bit(usual, row);
    }
    return rows;
}
