/* The directory of a Java Chronicle Queue.
 *
 *   <cycle name>.cq4              data file of one cycle, see cq4_cycle.h
 *   metadata.cq4t                 table store, since 5.16.9
 *   directory-listing.cq4t        table store of 4.x and 5.16.0 to 5.16.8; the latter also have queue-lock.cq4t
 *   <cycle name>.precreated, .cq4-<ms>.discard, .*.tmp.*   ignored
 *
 * The directory says which cycles exist, never the listing in the table store: that is a hint, kept by Java in
 * lexicographic order of the names. Here each name is converted to its cycle, and names of no cycle are skipped. Cycles
 * may be missing anywhere. */
#ifndef AC_CQ4_QUEUE_H
#define AC_CQ4_QUEUE_H

#include "cq4_cycle.h"
#include "cq4_table.h"

typedef enum ac_cq4_dialect {
    AC_CQ4_DIALECT_V4,       /* 4.x: directory-listing.cq4t, or no table store at all */
    AC_CQ4_DIALECT_EARLY_V5, /* 5.16.0 to 5.16.8: two table stores */
    AC_CQ4_DIALECT_V5,       /* metadata.cq4t */
} ac_cq4_dialect_t;

typedef struct ac_cq4_queue {
    ac_directory_t dir;
    ac_cq4_dialect_t dialect;
    ac_cq4_roll_t roll;   /* with shift 0 while it is unknown: see ac_cq4_queue_learn */
    ac_cq4_table_t table; /* metadata or listing; not mapped: there is none */
    ac_cq4_table_t lock;  /* queue-lock.cq4t */
    const uint64_t *highest, *mod_count, *write_lock; /* values in them; NULL: there is none */
} ac_cq4_queue_t;

/* 1 = there is a Chronicle Queue in this directory, 0 = none, or no such directory; or a negated errno. */
int ac_cq4_is_queue(const char *path);

/* AC_E_NOT_FOUND if there is no directory, or its queue is being created (EAGAIN); AC_E_NOT_A_QUEUE if
 * something else is there; AC_E_VERSION if its roll cycle is not supported. */
int ac_cq4_queue_open(const char *path, ac_cq4_queue_t *out, ac_error_t *err);
/* The same for callers that have found the directory already. */
int ac_cq4_is_queue_in(int dir_fd);
int ac_cq4_queue_open_in(const ac_directory_t *dir, ac_cq4_queue_t *out, ac_error_t *err);
void ac_cq4_queue_close(ac_cq4_queue_t *queue);

/* Determines what only a data file, or a complete table store, can say. 1 = the roll cycle is known; 0 =
 * there is no data file yet. */
int ac_cq4_queue_learn(ac_cq4_queue_t *queue, ac_error_t *err);

/* The cycles that have a file, in ascending order; the caller frees them. None while the roll cycle is
 * unknown. */
int ac_cq4_queue_cycles(ac_cq4_queue_t *queue, uint32_t **cycles, size_t *count, ac_error_t *err);

/* See ac_cq4_cycle_open. */
int ac_cq4_queue_open_cycle(const ac_cq4_queue_t *queue, uint32_t number, ac_cq4_cycle_t *out,
                            ac_error_t *err);

/* Whether a live process holds the write lock. */
int ac_cq4_queue_is_locked(const ac_cq4_queue_t *queue);

#endif
