/* The part of Java's BinaryWire that the headers of Chronicle Queue's files need, and the search for a field.
 *
 * A wire is a row of names and values, without a length of its own. The first byte says what follows:
 *
 *   00-7F  the number itself                  80 81 82  block: u8, u16 or u32 length, then a wire or bytes
 *   8D     i64 array: i64 capacity, i64 used, capacity * i64
 *   8E     padding: u32 n, n bytes            8F        padding: this byte
 *   90 91  f32, f64                           A0        UUID, 16 bytes
 *   92 94 96  stop-bit number of hundredths, ten thousandths, millionths
 *   A1 A2 A3  u8, u16, u32                    A8 A9     u8, u16, of a set
 *   A4-A7  i8, i16, i32, i64                  AF        i64
 *   B0 B1  false, true                        B2-B5     time, date …: stop-bit length, text
 *   B6     type of the value that follows     BB        null
 *   B7 B9  name of a field, of an event: stop-bit length, text
 *   BA     name that is a number, stop-bit    B8        text: stop-bit length, bytes
 *   BC     type literal, as text              BE        comment: stop-bit length, text; means nothing
 *   C0-DF  name of 0 to 31 bytes              E0-FF     text of 0 to 31 bytes
 *
 * A stop-bit number has seven bits in each byte, the lowest first, and bit 7 set in all but the last byte. If the last
 * byte is 0, and not the only one, it stands for the complement. Names and types are Latin-1. Padding may stand before
 * any name or value.
 *
 * The wire of a header is a copy in private memory, so that each value is read from the file once. That of a payload is
 * read where it lies: every byte is checked when it is read, so one that changes leads to a wrong answer at worst.
 * Nothing is allocated, and a block is skipped by its length, so that depth costs nothing. */
#ifndef AC_CQ4_WIRE_H
#define AC_CQ4_WIRE_H

#include <stddef.h>
#include <stdint.h>

typedef struct ac_cq4_wire {
    const uint8_t *base; /* of the record, so that `at` says where in it a value is */
    uint32_t at, end;
} ac_cq4_wire_t;

enum { AC_CQ4_WIRE_NAME_MAX = 128, AC_CQ4_WIRE_END = -1, AC_CQ4_WIRE_MALFORMED = -2 };

/* The code that comes next, after padding; or one of the two. */
int ac_cq4_wire_code(ac_cq4_wire_t *wire);

/* All return 1 = done, 0 = there is none (see each), -1 = malformed or truncated; the wire's place is then
 * undefined. */

/* The name of a field or an event; a number becomes its digits. 0 at the end of the wire. A name that is
 * too long is truncated; so is one at its first NUL. */
int ac_cq4_wire_name(ac_cq4_wire_t *wire, char *out, size_t size);

/* The same in a wire that may have been written without names (FIELDLESS_BINARY): if a value comes first,
 * its name is the next of `order`, a list that ends with NULL; *place counts them. -1 if it has no more. */
int ac_cq4_wire_name_in(ac_cq4_wire_t *wire, const char *const order[], int *place, char *out,
                        size_t size);

/* The type before a value. 0 if it has none; *out is then empty. */
int ac_cq4_wire_type(ac_cq4_wire_t *wire, char *out, size_t size);

/* A block, with or without type, as a wire of its own; this one continues after it. 0: there is another
 * value, whose type, if any, was consumed. */
int ac_cq4_wire_block(ac_cq4_wire_t *wire, ac_cq4_wire_t *inside);

/* A whole number of any code. *where is the offset in the record of an i64 that was written as eight bytes,
 * which is how Java writes numbers that are changed in place; otherwise 0. 0: there is another value. */
int ac_cq4_wire_i64(ac_cq4_wire_t *wire, int64_t *out, uint32_t *where);

/* A number of the other codes. 0: there is another value. */
int ac_cq4_wire_real(ac_cq4_wire_t *wire, double *out);

/* Of an i64 array: its capacity, its used count, and the offset of its first number. The numbers themselves
 * may lie after the end of the wire if `beyond` gives their number of bytes in the record. */
typedef struct ac_cq4_array {
    uint64_t capacity, used;
    uint32_t where;
} ac_cq4_array_t;
int ac_cq4_wire_array(ac_cq4_wire_t *wire, uint64_t beyond, ac_cq4_array_t *out);

/* Text, a time or a date, as bytes. 0: there is another value. -1 also if it does not fit. */
int ac_cq4_wire_text(ac_cq4_wire_t *wire, char *out, size_t size);

/* Any value, with its type. 0 at the end of the wire. */
int ac_cq4_wire_skip(ac_cq4_wire_t *wire);

#endif
