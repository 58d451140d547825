#include "cq4_wire.h"

#include <stdio.h>
#include <string.h>

static uint32_t left(const ac_cq4_wire_t *wire) {
    return wire->end - wire->at;
}

static int take(ac_cq4_wire_t *wire, uint32_t width, uint64_t *out) {
    if (left(wire) < width) return 0;
    *out = 0;
    memcpy(out, wire->base + wire->at, width);
    wire->at += width;
    return 1;
}

static int pass(ac_cq4_wire_t *wire, uint64_t bytes) {
    if (bytes > left(wire)) return 0;
    wire->at += (uint32_t)bytes;
    return 1;
}

static int take_signed_stop_bit(ac_cq4_wire_t *wire, int64_t *out) {
    uint64_t byte, number = 0;
    for (int bits = 0; bits < 63; bits += 7) {
        if (!take(wire, 1, &byte)) return 0;
        number |= (byte & 0x7F) << bits;
        if (byte & 0x80) continue;
        *out = byte == 0 && bits > 0 ? ~(int64_t)number : (int64_t)number;
        return 1;
    }
    return 0;
}

/* A length. */
static int take_stop_bit(ac_cq4_wire_t *wire, uint64_t *out) {
    int64_t number;
    if (!take_signed_stop_bit(wire, &number) || number < 0) return 0;
    *out = (uint64_t)number;
    return 1;
}

/* 1 = a code that is not padding comes next, 0 = the end, -1 = malformed. */
static int at_code(ac_cq4_wire_t *wire) {
    uint64_t n;
    while (left(wire) > 0) {
        uint8_t code = wire->base[wire->at];
        if (code != 0x8E && code != 0x8F && code != 0xBE) return 1;
        wire->at++;
        if (code == 0x8E && (!take(wire, 4, &n) || !pass(wire, n))) return -1;
        if (code == 0xBE && (!take_stop_bit(wire, &n) || !pass(wire, n))) return -1;
    }
    return 0;
}

int ac_cq4_wire_code(ac_cq4_wire_t *wire) {
    int rc = at_code(wire);
    if (rc != 1) return rc == 0 ? AC_CQ4_WIRE_END : AC_CQ4_WIRE_MALFORMED;
    return wire->base[wire->at];
}

static int take_bytes(ac_cq4_wire_t *wire, uint64_t length, char *out, size_t size) {
    uint32_t from = wire->at;
    if (!pass(wire, length)) return 0;
    size_t fits = length < size ? (size_t)length : size - 1;
    memcpy(out, wire->base + from, fits);
    out[fits] = 0;
    return 1;
}

int ac_cq4_wire_name(ac_cq4_wire_t *wire, char *out, size_t size) {
    uint64_t length;
    int64_t number;
    int rc = at_code(wire);
    if (rc <= 0) return rc;
    uint8_t code = wire->base[wire->at++];
    if (code == 0xB7 || code == 0xB9) {
        if (!take_stop_bit(wire, &length)) return -1;
    } else if (code == 0xBA) {
        if (!take_signed_stop_bit(wire, &number)) return -1;
        snprintf(out, size, "%lld", (long long)number);
        return 1;
    } else if (code >= 0xC0 && code <= 0xDF) {
        length = code - 0xC0u;
    } else {
        return -1;
    }
    return take_bytes(wire, length, out, size) ? 1 : -1;
}

static int is_name(uint8_t code) {
    return code == 0xB7 || code == 0xB9 || code == 0xBA || (code >= 0xC0 && code <= 0xDF);
}

int ac_cq4_wire_name_in(ac_cq4_wire_t *wire, const char *const order[], int *place, char *out,
                        size_t size) {
    int rc = at_code(wire);
    if (rc <= 0) return rc;
    if (is_name(wire->base[wire->at])) return ac_cq4_wire_name(wire, out, size);
    if (!order[*place]) return -1;
    snprintf(out, size, "%s", order[(*place)++]);
    return 1;
}

int ac_cq4_wire_type(ac_cq4_wire_t *wire, char *out, size_t size) {
    uint64_t length;
    int rc = at_code(wire);
    *out = 0;
    if (rc <= 0 || wire->base[wire->at] != 0xB6) return rc < 0 ? -1 : 0;
    wire->at++;
    return take_stop_bit(wire, &length) && take_bytes(wire, length, out, size) ? 1 : -1;
}

int ac_cq4_wire_block(ac_cq4_wire_t *wire, ac_cq4_wire_t *inside) {
    char type[2];
    uint64_t length;
    if (ac_cq4_wire_type(wire, type, sizeof type) < 0) return -1;
    int rc = at_code(wire);
    if (rc <= 0) return rc;
    uint8_t code = wire->base[wire->at];
    if (code < 0x80 || code > 0x82) return 0;
    wire->at++;
    if (!take(wire, 1u << (code - 0x80), &length)) return -1;
    *inside = *wire;
    if (!pass(wire, length)) return -1;
    inside->end = wire->at;
    return 1;
}

int ac_cq4_wire_i64(ac_cq4_wire_t *wire, int64_t *out, uint32_t *where) {
    uint64_t raw = 0;
    int rc = at_code(wire);
    *where = 0;
    if (rc <= 0) return rc;
    uint8_t code = wire->base[wire->at];
    static const uint8_t widths[] = {[0xA1 - 0xA1] = 1, [0xA2 - 0xA1] = 2, [0xA3 - 0xA1] = 4,
                                     [0xA4 - 0xA1] = 1, [0xA5 - 0xA1] = 2, [0xA6 - 0xA1] = 4,
                                     [0xA7 - 0xA1] = 8};
    uint32_t width = code >= 0xA1 && code <= 0xA7 ? widths[code - 0xA1] : code == 0xAF ? 8 : 0;
    if (code > 0x7F && width == 0) return 0;
    wire->at++;
    if (code <= 0x7F) {
        *out = code;
        return 1;
    }
    if (code == 0xA7) *where = wire->at;
    if (!take(wire, width, &raw)) return -1;
    if (code == 0xA4)
        *out = (int8_t)raw;
    else if (code == 0xA5)
        *out = (int16_t)raw;
    else if (code == 0xA6)
        *out = (int32_t)raw;
    else
        *out = (int64_t)raw;
    return 1;
}

int ac_cq4_wire_real(ac_cq4_wire_t *wire, double *out) {
    float single;
    int64_t number;
    int rc = at_code(wire);
    if (rc <= 0) return rc;
    uint8_t code = wire->base[wire->at];
    if (code == 0x90 || code == 0x91) {
        uint64_t raw;
        wire->at++;
        if (!take(wire, code == 0x90 ? 4 : 8, &raw)) return -1;
        memcpy(&single, &raw, sizeof single);
        memcpy(out, &raw, sizeof *out);
        if (code == 0x90) *out = (double)single;
        return 1;
    }
    if (code != 0x92 && code != 0x94 && code != 0x96) return 0;
    wire->at++;
    if (!take_signed_stop_bit(wire, &number)) return -1;
    *out = (double)number / (code == 0x92 ? 1e2 : code == 0x94 ? 1e4 : 1e6);
    return 1;
}

int ac_cq4_wire_array(ac_cq4_wire_t *wire, uint64_t beyond, ac_cq4_array_t *out) {
    int rc = at_code(wire);
    if (rc <= 0 || wire->base[wire->at] != 0x8D) return rc < 0 ? -1 : 0;
    wire->at++;
    if (!take(wire, 8, &out->capacity) || !take(wire, 8, &out->used)) return -1;
    out->where = wire->at;
    if (out->capacity > (left(wire) + beyond) / 8) return -1;
    uint64_t bytes = out->capacity * 8;
    return pass(wire, bytes < left(wire) ? bytes : left(wire)) ? 1 : -1;
}

int ac_cq4_wire_text(ac_cq4_wire_t *wire, char *out, size_t size) {
    uint64_t length;
    int rc = at_code(wire);
    if (rc <= 0) return rc;
    uint8_t code = wire->base[wire->at];
    if (code < 0xE0 && code != 0xB8 && (code < 0xB2 || code > 0xB5)) return 0;
    wire->at++;
    if (code >= 0xE0)
        length = code - 0xE0u;
    else if (!take_stop_bit(wire, &length))
        return -1;
    return length < size && take_bytes(wire, length, out, size) ? 1 : -1;
}

/* The bytes after the code of a value that is neither block nor array nor text; -1 if the code is unknown. */
static int width_after(uint8_t code) {
    if (code <= 0x7F || code == 0xB0 || code == 0xB1 || code == 0xBB) return 0;
    switch (code) {
    case 0xA1:
    case 0xA4:
    case 0xA8:
        return 1;
    case 0xA2:
    case 0xA5:
    case 0xA9:
        return 2;
    case 0xA3:
    case 0xA6:
        return 4;
    case 0xA7:
    case 0xAF:
        return 8;
    case 0xA0:
        return 16;
    default:
        return -1;
    }
}

int ac_cq4_wire_skip(ac_cq4_wire_t *wire) {
    ac_cq4_wire_t inside;
    ac_cq4_array_t array;
    uint64_t length;
    int rc = ac_cq4_wire_block(wire, &inside); /* also takes the type of any other value */
    if (rc != 0) return rc;
    rc = ac_cq4_wire_array(wire, 0, &array);
    if (rc != 0 || left(wire) == 0) return rc;
    double ignored;
    rc = ac_cq4_wire_real(wire, &ignored);
    if (rc != 0 || left(wire) == 0) return rc;
    uint8_t code = wire->base[wire->at++];
    int width = width_after(code);
    if (width >= 0) return pass(wire, (uint64_t)width) ? 1 : -1;
    if (code >= 0xE0) return pass(wire, code - 0xE0u) ? 1 : -1;
    if (code == 0xB8 || (code >= 0xB2 && code <= 0xB5) || code == 0xBC)
        return take_stop_bit(wire, &length) && pass(wire, length) ? 1 : -1;
    return -1;
}
