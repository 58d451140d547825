/* statistics.meta: what a writer publishes about itself, for other processes.
 *
 * Two slots of 8192 bytes, each
 *
 *   0 u32 magic   4 u32 CRC-32 of what follows   8 u32 version   12 u32 zero   16 u64 generation   24 ac_published_t
 *
 * The housekeeper of the writer's process writes it, about once a second, by stores into a mapping: an append does nothing
 * for it. A store goes into the older slot, so a process killed half-way leaves the other one intact. Any process may read
 * it: it copies the file and takes the valid slot of the higher generation. It is neither synced nor needed: the queue
 * has all its messages without it, and a writer that cannot create it continues without it.
 *
 * It outlives its writer, and is copied with the queue. So it says whose it is: the epoch of the writer, and which
 * directory and control.meta it belongs to (ac_control_home). A slot with other values is not used. */
#ifndef AC_WRITER_PUBLISHED_H
#define AC_WRITER_PUBLISHED_H

#include "control.h"
#include "directory.h"
#include "segment_map.h"

#define AC_PUBLISHED_FILE "statistics.meta"
#define AC_PUBLISHED_MAGIC 0x54415453u
#define AC_PUBLISHED_VERSION 1u
enum { AC_PUBLISHED_SLOT = 8192, AC_PUBLISHED_SIZE = 2 * AC_PUBLISHED_SLOT, AC_COUNTERS = 29 };

/* Fields of a version never move: any change of these structures is a new version. */
typedef struct ac_published {
    uint64_t epoch;
    uint64_t home;
    uint64_t time_ns;      /* when this was stored */
    uint64_t monotonic_ns; /* likewise */
    uint64_t opened_ns;
    uint64_t closed_ns; /* 0 = it is open */
    int32_t pid;
    uint32_t user;
    char command[256];
    uint64_t counters[AC_COUNTERS]; /* those of ac_writer_stats_t, in the same order */
    ac_recovery_t recovery;
    uint64_t samples, slow_appends,
        errors; /* how many there have been: number N is at N modulo the size */
    ac_sample_t sample[AC_SAMPLES];
    ac_slow_append_t slow_append[AC_SLOW_APPENDS];
    ac_slow_total_t slow_total[AC_SLOW_CAUSES];
    ac_recent_error_t error[AC_RECENT_ERRORS];
    ac_settings_t settings;
} ac_published_t;

typedef struct ac_published_slot {
    uint32_t magic;
    uint32_t checksum;
    uint32_t version;
    uint32_t zero;
    uint64_t generation;
    ac_published_t content;
} ac_published_slot_t;

_Static_assert(offsetof(ac_published_slot_t, content) == 24, "statistics.meta");
_Static_assert(offsetof(ac_published_t, counters) == 312, "statistics.meta");
_Static_assert(sizeof(ac_recovery_t) == 80, "statistics.meta");
_Static_assert(sizeof(ac_sample_t) == 48, "statistics.meta");
_Static_assert(sizeof(ac_slow_append_t) == 40, "statistics.meta");
_Static_assert(sizeof(ac_recent_error_t) == 256, "statistics.meta");
_Static_assert(sizeof(ac_settings_t) == 1192, "statistics.meta");
_Static_assert(sizeof(ac_published_slot_t) == 5744, "statistics.meta");
_Static_assert(sizeof(ac_published_slot_t) <= AC_PUBLISHED_SLOT, "statistics.meta");
_Static_assert(offsetof(ac_writer_stats_t, last_error_errno) == AC_COUNTERS * 8, "counters");

/* The file of a writer, and its next content. */
typedef struct ac_publisher {
    ac_map_t *map;
    ac_published_slot_t draft;
} ac_publisher_t;

/* Creates or reuses the file, and maps it. */
int ac_publisher_open(ac_publisher_t **out, const ac_directory_t *dir, int dir_fd, ac_error_t *err);
/* Stores the draft. One thread at a time. */
void ac_publisher_store(ac_publisher_t *publisher, uint64_t time_ns, uint64_t monotonic_ns);
void ac_publisher_close(ac_publisher_t *publisher); /* NULL is allowed */

/* 1 = *out is the newest valid slot of these bytes, with every text terminated and every count within its
 * limit; 0 = there is none. */
int ac_published_decode(const uint8_t bytes[AC_PUBLISHED_SIZE], ac_published_t *out);

/* The same from the file. Also 0 if its owner is not trusted: see ac_file_open. */
int ac_published_read(const ac_directory_t *dir, int dir_fd, ac_published_t *out);

#endif
