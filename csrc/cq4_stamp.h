/* When a message of a Java queue was written. Its record does not say so. A field of the message does, or a
 * function of the caller's; otherwise its cycle does, and all messages of a cycle have the same time. */
#ifndef AC_CQ4_STAMP_H
#define AC_CQ4_STAMP_H

#include "cq4_field.h"
#include "cq4_tail.h"

enum { AC_CQ4_BY_CYCLE = 0, AC_CQ4_BY_FIELD, AC_CQ4_BY_FUNCTION };

typedef struct ac_cq4_stamp {
    int how;
    ac_cq4_field_t field;
    ac_timestamp_t function;
    void *context;
} ac_cq4_stamp_t;

int ac_cq4_stamp_init(ac_cq4_stamp_t *stamp, const ac_reader_config_t *config, const char *path,
                      ac_error_t *err);

/* The time of the message with this index: AC_OK; or AC_E_STAMP, with an offset and a sentence that says
 * what is wrong. A function may do anything, including calls on the reader. */
int ac_cq4_stamp_find(const ac_cq4_stamp_t *stamp, const ac_cq4_cycle_t *cycle, uint64_t index,
                      const uint8_t *payload, uint32_t length, uint64_t *timestamp_ns,
                      ac_error_t *err);

/* Places the tail at the first message of this time or later, assuming that times do not decrease; if there
 * is none, at the end. A binary search: it opens a number of files logarithmic in their count, and likewise
 * messages in the last one. */
int ac_cq4_seek_time(ac_cq4_tail_t *tail, const ac_cq4_stamp_t *stamp, uint64_t timestamp_ns,
                     ac_error_t *err);

#endif
