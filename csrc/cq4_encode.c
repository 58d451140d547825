#include "cq4_encode.h"

#include <string.h>

void ac_cq4_put(ac_cq4_builder_t *builder, const void *bytes, size_t length) {
    if (builder->at <= builder->size && length <= builder->size - builder->at)
        memcpy(builder->base + builder->at, bytes, length);
    builder->at += length;
}

void ac_cq4_put_byte(ac_cq4_builder_t *builder, unsigned byte) {
    ac_cq4_put(builder, &(uint8_t){(uint8_t)byte}, 1);
}

static void put_named(ac_cq4_builder_t *builder, unsigned code, const char *text) {
    size_t length = strlen(text);
    ac_cq4_put_byte(builder, code);
    if (length > 127) ac_cq4_put_byte(builder, 0x80 | (length & 127));
    ac_cq4_put_byte(builder, (unsigned)(length > 127 ? length >> 7 : length));
    ac_cq4_put(builder, text, length);
}

void ac_cq4_put_field(ac_cq4_builder_t *builder, const char *name) {
    ac_cq4_put_byte(builder, 0xC0 + (unsigned)strlen(name));
    ac_cq4_put(builder, name, strlen(name));
}

void ac_cq4_put_event(ac_cq4_builder_t *builder, const char *name) {
    put_named(builder, 0xB9, name);
}

void ac_cq4_put_type(ac_cq4_builder_t *builder, const char *name) {
    put_named(builder, 0xB6, name);
}

void ac_cq4_put_text(ac_cq4_builder_t *builder, const char *text) {
    if (strlen(text) > 31) {
        put_named(builder, 0xB8, text);
        return;
    }
    ac_cq4_put_byte(builder, 0xE0 + (unsigned)strlen(text));
    ac_cq4_put(builder, text, strlen(text));
}

void ac_cq4_put_number(ac_cq4_builder_t *builder, int64_t value) {
    static const struct {
        int64_t least, most;
        unsigned code, width;
    } forms[] = {{0, UINT8_MAX, 0xA1, 1},         {INT8_MIN, -1, 0xA4, 1},
                 {INT16_MIN, INT16_MAX, 0xA5, 2}, {0, UINT16_MAX, 0xA2, 2},
                 {INT32_MIN, INT32_MAX, 0xA6, 4}, {0, UINT32_MAX, 0xA3, 4},
                 {INT64_MIN, INT64_MAX, 0xA7, 8}};
    size_t form = 0;
    while (value < forms[form].least || value > forms[form].most)
        form++;
    ac_cq4_put_byte(builder, forms[form].code);
    ac_cq4_put(builder, &value, forms[form].width);
}

/* Pads so that what comes after the next byte is aligned. */
static void pad(ac_cq4_builder_t *builder, uint64_t align) {
    static const uint8_t zeros[16];
    uint64_t after = builder->offset + builder->at + 1;
    uint32_t count = (uint32_t)((align - after % align) % align);
    if (count >= 5) {
        uint32_t more = count - 5;
        ac_cq4_put_byte(builder, 0x8E);
        ac_cq4_put(builder, &more, sizeof more);
        ac_cq4_put(builder, zeros, more);
        return;
    }
    while (count-- > 0)
        ac_cq4_put_byte(builder, 0x8F);
}

uint64_t ac_cq4_put_bound(ac_cq4_builder_t *builder, uint64_t value) {
    pad(builder, sizeof value);
    ac_cq4_put_byte(builder, 0xA7);
    ac_cq4_put(builder, &value, sizeof value);
    return builder->offset + builder->at - sizeof value;
}

uint64_t ac_cq4_put_array(ac_cq4_builder_t *builder, uint64_t capacity, uint64_t used,
                          uint64_t align) {
    pad(builder, align);
    ac_cq4_put_byte(builder, 0x8D);
    ac_cq4_put(builder, &capacity, sizeof capacity);
    ac_cq4_put(builder, &used, sizeof used);
    return builder->offset + builder->at;
}

size_t ac_cq4_begin_block(ac_cq4_builder_t *builder) {
    ac_cq4_put_byte(builder, 0x82);
    ac_cq4_put(builder, &(uint32_t){0}, sizeof(uint32_t));
    return builder->at;
}

void ac_cq4_end_block(ac_cq4_builder_t *builder, size_t begin) {
    uint32_t length = (uint32_t)(builder->at - begin);
    if (!ac_cq4_builder_is_full(builder))
        memcpy(builder->base + begin - sizeof length, &length, sizeof length);
}
