/* The trailer: key and headers of a message, after its payload (AC_FLAG_TRAILER).
 *
 * A record's length and checksum cover payload and trailer, so a program that does not know the flag still reads
 * the record, with the trailer as the last bytes of its payload. The size of the trailer is at its end, because only
 * the end can be found from the length of the record.
 *
 *   u16 length, key                                   only with AC_TRAILER_KEY
 *   u8 length of name, u16 length of value, name, value      per header, in the order they were given
 *   u16 size of the whole trailer, u8 number of headers, u8 bits     the last four bytes
 *
 * Names are UTF-8, from 1 to 255 bytes, each once. A trailer says something: there is a key or a header. Bits that are
 * not known make it malformed. It is at most 65535 bytes long.
 *
 * Written with its record by the one writer. Readers read memory that others may write to: each length is
 * loaded once and compared with what is left before it is used. */
#ifndef AC_TRAILER_H
#define AC_TRAILER_H

#include "aiochronicle.h"

enum { AC_TRAILER_KEY = 1 };
enum { AC_TRAILER_END_SIZE = 4, AC_TRAILER_KEY_SIZE = 2, AC_TRAILER_HEADER_SIZE = 3 };

typedef struct ac_header {
    ac_slice_t name;
    ac_slice_t value;
} ac_header_t;

/* The number of bytes they take; `key` may be NULL. 0 = there is neither. AC_E_ARGUMENT, or AC_E_TOO_LARGE,
 * with *why. */
int64_t ac_trailer_measure(const ac_slice_t *key, const ac_header_t *headers, size_t count,
                           const char **why);
/* Writes exactly as many bytes as ac_trailer_measure returned. */
void ac_trailer_write(uint8_t *to, const ac_slice_t *key, const ac_header_t *headers, size_t count);

/* The size of the trailer that ends at `area + length`, after checking all of it; 0 = it is malformed. */
uint32_t ac_trailer_find(const uint8_t *area, uint32_t length);

/* Iterates over a trailer of a known size. Reads nothing outside of it, whatever it contains by now. */
typedef struct ac_trailer {
    ac_slice_t key; /* data NULL = there is none */
    uint32_t count; /* headers that remain */
    const uint8_t *at, *end;
} ac_trailer_t;

/* 1, or 0 = malformed. */
int ac_trailer_open(ac_trailer_t *trailer, const uint8_t *from, uint32_t size);
/* 1 = *out is the next header; 0 = no more headers; -1 = malformed. Does not check that names are UTF-8 and
 * unique. */
int ac_trailer_next(ac_trailer_t *trailer, ac_header_t *out);

#endif
