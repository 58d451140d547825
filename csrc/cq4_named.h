/* Named tailers: the committed position of a reader with a name, as Java stores it.
 *
 * It is the value of the key index.NAME in metadata.cq4t: the index of the next message to be read, 0 for a new name.
 * Every reader of that name, Java's or ours, writes it with a plain store; the last one wins. Stale or wrong values are
 * detected when a reader resumes.
 *
 * As in Java, nothing prevents a second reader from using the same name. */
#ifndef AC_CQ4_NAMED_H
#define AC_CQ4_NAMED_H

#include "cq4_table.h"

#define AC_CQ4_KEY_NAMED "index."

typedef struct ac_cq4_named {
    ac_cq4_table_t table; /* writable; not mapped: the reader has no name */
    uint64_t *index;
    uint64_t looked_ns;
} ac_cq4_named_t;

/* Finds the name, or adds it. Refuses names that Java may use and queues of ours may not. AC_E_UNSUPPORTED
 * if the queue has no metadata.cq4t. */
int ac_cq4_named_open(ac_cq4_named_t *named, const ac_directory_t *dir, const char *name,
                      ac_error_t *err);
void ac_cq4_named_close(ac_cq4_named_t *named);

/* Stores a position. AC_E_GONE if the file no longer has a name; this is checked with `sync`, and otherwise
 * once a millisecond. */
int ac_cq4_named_store(ac_cq4_named_t *named, const ac_directory_t *dir, uint64_t index, int sync,
                       ac_error_t *err);

#endif
