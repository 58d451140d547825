/* Writing the wire of Chronicle Queue's own headers, as Java writes it: see cq4_wire.h for the codes.
 *
 * Encodes into private memory, from where it is copied into a file. Java aligns the numbers that are changed in
 * place, so a builder knows at which offset of the file its bytes will lie. Other numbers have the shortest form:
 *   A1 to 255, A5 to 32767, A2 to 65535, A6, A3, A7; negative ones A4, A5, A6, A7
 * Padding before an aligned number: fewer than five bytes are 8F each, more are 8E, u32 n, n zeros.
 *
 * A builder that has run out of room keeps counting, so one check at the end is enough. */
#ifndef AC_CQ4_ENCODE_H
#define AC_CQ4_ENCODE_H

#include <stddef.h>
#include <stdint.h>

typedef struct ac_cq4_builder {
    uint8_t *base;
    size_t size, at;
    uint64_t offset; /* of `base` in the file */
} ac_cq4_builder_t;

static inline int ac_cq4_builder_is_full(const ac_cq4_builder_t *builder) {
    return builder->at > builder->size;
}

void ac_cq4_put(ac_cq4_builder_t *builder, const void *bytes, size_t length);
void ac_cq4_put_byte(ac_cq4_builder_t *builder, unsigned byte);
void ac_cq4_put_field(ac_cq4_builder_t *builder, const char *name); /* at most 31 bytes */
void ac_cq4_put_event(ac_cq4_builder_t *builder, const char *name); /* at most 16383 */
void ac_cq4_put_type(ac_cq4_builder_t *builder, const char *name);
void ac_cq4_put_text(ac_cq4_builder_t *builder, const char *text);
void ac_cq4_put_number(ac_cq4_builder_t *builder, int64_t value);

/* A number that is changed in place. Returns its offset in the file. */
uint64_t ac_cq4_put_bound(ac_cq4_builder_t *builder, uint64_t value);

/* Code, capacity and used count of an array whose capacity is aligned; the numbers follow. Returns the
 * offset of the first number in the file. */
uint64_t ac_cq4_put_array(ac_cq4_builder_t *builder, uint64_t capacity, uint64_t used,
                          uint64_t align);

/* A block whose length is filled in by ac_cq4_end_block. */
size_t ac_cq4_begin_block(ac_cq4_builder_t *builder);
void ac_cq4_end_block(ac_cq4_builder_t *builder, size_t begin);

#endif
