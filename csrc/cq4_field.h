/* The time of a message, from one of its fields.
 *
 * A message is a wire (cq4_wire.h). The field is searched for
 *
 *   1. among the fields of the document, or of the one object that the message consists of,
 *   2. in the arguments of a method call: among the fields of its only argument, or of those of its arguments that are
 *      objects; of several calls in one message, the first that has the field.
 *
 * Its value is a number of any code, in the caller's unit, or a date and time as text (codes B4 and B5); a date and
 * time without an offset is UTC.
 *
 * A payload may be anything: every length is checked, nothing is allocated, and values are skipped by their length. It
 * is read in place, and may change meanwhile; the answer may then be wrong, but nothing worse happens. */
#ifndef AC_CQ4_FIELD_H
#define AC_CQ4_FIELD_H

#include "cq4_wire.h"

typedef struct ac_cq4_field {
    char name[AC_CQ4_WIRE_NAME_MAX]; /* Latin-1 */
    uint64_t unit_ns;                /* of a number */
} ac_cq4_field_t;

/* From UTF-8. Returns NULL, or what is wrong with the name. */
const char *ac_cq4_field_name(ac_cq4_field_t *field, const char *name);

/* Returns NULL and the time, or what is wrong with the field: a sentence without its subject. */
const char *ac_cq4_field_time(const ac_cq4_field_t *field, const uint8_t *payload, uint32_t length,
                              uint64_t *timestamp_ns);

/* The time in a text such as 2026-01-31T12:30:00.5+01:00[Europe/Paris]: 1, or 0 if there is none, or it
 * does not fit. */
int ac_cq4_parse_time(const char *text, uint64_t *timestamp_ns);

/* UTF-8 to Latin-1: 1, or 0 if it has other characters, is malformed, or does not fit; and back, truncated
 * if necessary. */
int ac_cq4_to_latin1(const char *text, char *out, size_t size);
void ac_cq4_from_latin1(const char *text, char *out, size_t size);

#endif
