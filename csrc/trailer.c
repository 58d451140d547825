#include "trailer.h"

#include <string.h>

_Static_assert(AC_TRAILER_MAX == UINT16_MAX, "the size of a trailer is 16 bits wide");
_Static_assert(AC_HEADERS_MAX <= UINT8_MAX, "the number of headers is 8 bits wide");

static uint32_t load_u8(const uint8_t *at) {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static uint32_t load_u16(const uint8_t *at) {
    return load_u8(at) | load_u8(at + 1) << 8;
}

/* ---- UTF-8 ---- */

/* The length of the character at `at`, with `left` bytes available; 0 = it is invalid. */
static size_t character(const uint8_t *at, size_t left) {
    uint32_t first = load_u8(at);
    if (first < 0x80) return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || left < length) return 0;
    uint32_t second = load_u8(at + 1);
    /* No overlong forms, no surrogates, nothing above U+10FFFF. */
    uint32_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint32_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (second < lowest || second > highest) return 0;
    for (size_t i = 2; i < length; i++)
        if (load_u8(at + i) >> 6 != 2) return 0;
    return length;
}

static int is_utf8(const ac_slice_t *text) {
    const uint8_t *at = text->data;
    size_t left = text->length, length;
    for (; left > 0; at += length, left -= length)
        if ((length = character(at, left)) == 0) return 0;
    return 1;
}

static int has_name(const ac_header_t *headers, size_t count, const ac_slice_t *name) {
    for (size_t i = 0; i < count; i++)
        if (headers[i].name.length == name->length &&
            memcmp(headers[i].name.data, name->data, name->length) == 0)
            return 1;
    return 0;
}

/* ---- writing ---- */

static int64_t refuse(int code, const char *what, const char **why) {
    *why = what;
    return code;
}

int64_t ac_trailer_measure(const ac_slice_t *key, const ac_header_t *headers, size_t count,
                           const char **why) {
    uint64_t size = AC_TRAILER_END_SIZE;
    if (!key && count == 0) return 0;
    if (count > AC_HEADERS_MAX)
        return refuse(AC_E_TOO_LARGE, "a message has at most 64 headers", why);
    if (key && key->length > AC_TRAILER_MAX)
        return refuse(AC_E_TOO_LARGE, "key and headers take at most 65535 bytes", why);
    if (key) size += AC_TRAILER_KEY_SIZE + key->length;
    for (size_t i = 0; i < count; i++) {
        const ac_slice_t *name = &headers[i].name;
        if (name->length == 0 || name->length > AC_HEADER_NAME_MAX)
            return refuse(AC_E_ARGUMENT, "the name of a header has 1 to 255 bytes", why);
        if (!is_utf8(name)) return refuse(AC_E_ARGUMENT, "the name of a header is UTF-8", why);
        if (has_name(headers, i, name))
            return refuse(AC_E_ARGUMENT, "each name of a header is there once", why);
        if (headers[i].value.length > AC_TRAILER_MAX)
            return refuse(AC_E_TOO_LARGE, "key and headers take at most 65535 bytes", why);
        size += AC_TRAILER_HEADER_SIZE + name->length + headers[i].value.length;
    }
    if (size > AC_TRAILER_MAX)
        return refuse(AC_E_TOO_LARGE, "key and headers take at most 65535 bytes", why);
    return (int64_t)size;
}

static uint8_t *put_u16(uint8_t *to, size_t value) {
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    return to + 2;
}

static uint8_t *put_bytes(uint8_t *to, const ac_slice_t *bytes) {
    if (bytes->length > 0) memcpy(to, bytes->data, bytes->length);
    return to + bytes->length;
}

void ac_trailer_write(uint8_t *to, const ac_slice_t *key, const ac_header_t *headers,
                      size_t count) {
    const uint8_t *from = to;
    if (key) to = put_bytes(put_u16(to, key->length), key);
    for (size_t i = 0; i < count; i++) {
        *to++ = (uint8_t)headers[i].name.length;
        to = put_u16(to, headers[i].value.length);
        to = put_bytes(put_bytes(to, &headers[i].name), &headers[i].value);
    }
    to = put_u16(to, (size_t)(to - from) + AC_TRAILER_END_SIZE);
    to[0] = (uint8_t)count;
    to[1] = key ? AC_TRAILER_KEY : 0;
}

/* ---- reading ---- */

/* The next `length` bytes, if there are that many. */
static int take(ac_trailer_t *trailer, uint32_t length, ac_slice_t *out) {
    if ((size_t)(trailer->end - trailer->at) < length) return 0;
    *out = (ac_slice_t){trailer->at, length};
    trailer->at += length;
    return 1;
}

int ac_trailer_open(ac_trailer_t *trailer, const uint8_t *from, uint32_t size) {
    ac_slice_t length;
    if (size < AC_TRAILER_END_SIZE) return 0;
    trailer->key = (ac_slice_t){NULL, 0};
    trailer->at = from;
    trailer->end = from + size - AC_TRAILER_END_SIZE;
    trailer->count = load_u8(trailer->end + 2);
    uint32_t bits = load_u8(trailer->end + 3);
    if (trailer->count > AC_HEADERS_MAX || bits & ~(uint32_t)AC_TRAILER_KEY) return 0;
    if (!(bits & AC_TRAILER_KEY)) return trailer->count > 0;
    return take(trailer, AC_TRAILER_KEY_SIZE, &length) &&
           take(trailer, load_u16(length.data), &trailer->key);
}

int ac_trailer_next(ac_trailer_t *trailer, ac_header_t *out) {
    ac_slice_t lengths;
    if (trailer->count == 0) return trailer->at == trailer->end ? 0 : -1;
    trailer->count--;
    if (!take(trailer, AC_TRAILER_HEADER_SIZE, &lengths)) return -1;
    const uint8_t *at = lengths.data;
    uint32_t name = load_u8(at), value = load_u16(at + 1);
    return name > 0 && take(trailer, name, &out->name) && take(trailer, value, &out->value) ? 1
                                                                                            : -1;
}

uint32_t ac_trailer_find(const uint8_t *area, uint32_t length) {
    ac_header_t header, headers[AC_HEADERS_MAX];
    ac_trailer_t trailer;
    size_t count = 0; /* stays below the limit: ac_trailer_open has checked the number of headers */
    int rc;
    if (length < AC_TRAILER_END_SIZE) return 0;
    uint32_t size = load_u16(area + length - AC_TRAILER_END_SIZE);
    if (size > length || !ac_trailer_open(&trailer, area + length - size, size)) return 0;
    while ((rc = ac_trailer_next(&trailer, &header)) == 1) {
        if (!is_utf8(&header.name) || has_name(headers, count, &header.name)) return 0;
        headers[count++] = header;
    }
    return rc == 0 ? size : 0;
}
