#include "cq4_cycle.h"

#include "cq4_wire.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { HEADER_MAX = 4096, ENTRIES_MAX = 1 << 15, SPACING_MAX = 1 << 20 };

int ac_cq4_cycle_fail(const ac_cq4_cycle_t *cycle, int code, int sys_errno, uint64_t offset,
                      const char *why, ac_error_t *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", cycle->dir->path, cycle->name);
    return ac_fail(err, code, sys_errno, path, offset, "%s", why);
}

/* ---- the header ---- */

static uint64_t in_file(uint32_t where) {
    return where ? where + AC_CQ4_HEADER_BYTES : 0;
}

static int parse_indexing(ac_cq4_wire_t *wire, ac_cq4_cycle_t *cycle) {
    static const char *const order[] = {"indexCount", "indexSpacing", "index2Index", "lastIndex",
                                        NULL};
    char name[AC_CQ4_WIRE_NAME_MAX];
    int rc, place = 0;
    while ((rc = ac_cq4_wire_name_in(wire, order, &place, name, sizeof name)) == 1) {
        int64_t number;
        uint32_t where;
        if (ac_cq4_wire_i64(wire, &number, &where) != 1) {
            if (ac_cq4_wire_skip(wire) != 1) return -1;
        } else if (strcmp(name, "indexCount") == 0) {
            cycle->roll.index_count = number > 0 && number <= UINT32_MAX ? (uint32_t)number : 0;
        } else if (strcmp(name, "indexSpacing") == 0) {
            cycle->roll.index_spacing = number > 0 && number <= UINT32_MAX ? (uint32_t)number : 0;
        } else if (strcmp(name, "index2Index") == 0) {
            cycle->index2index_at = in_file(where);
        } else if (strcmp(name, "lastIndex") == 0) {
            cycle->last_index_at = in_file(where);
        }
    }
    return rc;
}

static int parse_roll(ac_cq4_wire_t *wire, ac_cq4_roll_t *roll) {
    char name[AC_CQ4_WIRE_NAME_MAX];
    int64_t number;
    uint32_t where;
    int rc;
    while ((rc = ac_cq4_wire_name(wire, name, sizeof name)) == 1) {
        if (strcmp(name, "format") == 0) {
            if (ac_cq4_wire_text(wire, roll->format, sizeof roll->format) != 1) return -1;
        } else if (ac_cq4_wire_i64(wire, &number, &where) != 1) {
            if (ac_cq4_wire_skip(wire) != 1) return -1;
        } else if (strcmp(name, "length") == 0) {
            roll->length_ms = number > 0 ? (uint64_t)number : 0;
        } else if (strcmp(name, "epoch") == 0) {
            roll->epoch_ms = number;
        }
    }
    return rc;
}

static int parse_write_position(ac_cq4_wire_t *wire, ac_cq4_cycle_t *cycle) {
    ac_cq4_array_t array;
    int64_t number;
    uint32_t where = 0;
    int rc = ac_cq4_wire_array(wire, 0, &array);
    if (rc == 1) {
        where = array.where;
        cycle->write_positions = array.capacity >= 2 ? 2 : (uint32_t)array.capacity;
    } else if (rc == 0) {
        rc = ac_cq4_wire_i64(wire, &number, &where);
        cycle->write_positions = 1;
    }
    cycle->write_position_at = cycle->write_positions ? in_file(where) : 0;
    return rc == 1 ? 1 : -1;
}

static int parse_store(ac_cq4_wire_t *wire, ac_cq4_cycle_t *cycle) {
    static const char *const order[] = {"writePosition", "indexing", "dataFormat", NULL};
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_wire_t inside;
    int64_t number;
    uint32_t where;
    int rc, place = 0;
    while ((rc = ac_cq4_wire_name_in(wire, order, &place, name, sizeof name)) == 1) {
        if (strcmp(name, "writePosition") == 0) {
            rc = parse_write_position(wire, cycle);
        } else if (strcmp(name, "indexing") == 0) {
            rc = ac_cq4_wire_block(wire, &inside) == 1 ? parse_indexing(&inside, cycle) : -1;
        } else if (strcmp(name, "roll") == 0) {
            rc = ac_cq4_wire_block(wire, &inside) == 1 ? parse_roll(&inside, &cycle->roll) : -1;
        } else if (strcmp(name, "dataFormat") == 0) {
            rc = ac_cq4_wire_i64(wire, &number, &where) == 1 ? 0 : -1;
            if (rc == 0 && number != 0 && number != 1) return -2;
            cycle->padding = rc == 0 && number == 1 ? 3 : 0;
        } else {
            rc = ac_cq4_wire_skip(wire) == 1 ? 0 : -1;
        }
        if (rc < 0) return -1;
    }
    return rc;
}

static int is_power_of_two(uint32_t value, uint32_t max) {
    return value > 0 && value <= max && (value & (value - 1)) == 0;
}

static int parse_header(ac_cq4_cycle_t *cycle, uint32_t length, ac_error_t *err) {
    uint8_t copy[HEADER_MAX];
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_wire_t wire = {copy, 0, length}, inside;
    if (length > sizeof copy)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, 0, "the header is too long", err);
    memcpy(copy, cycle->map->base + AC_CQ4_HEADER_BYTES, length);
    if (ac_cq4_wire_name(&wire, name, sizeof name) != 1 || strcmp(name, "header") != 0 ||
        ac_cq4_wire_type(&wire, name, sizeof name) != 1 || strcmp(name, "SCQStore") != 0)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, 0, "is not a data file of Chronicle Queue",
                                 err);
    int rc = ac_cq4_wire_block(&wire, &inside) == 1 ? parse_store(&inside, cycle) : -1;
    if (rc == -2)
        return ac_cq4_cycle_fail(cycle, AC_E_VERSION, 0, 0, "has an unknown data format", err);
    if (rc < 0)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, AC_CQ4_HEADER_BYTES + inside.at,
                                 "the header is malformed", err);
    /* 4.x had roll cycles with up to 512 Ki entries in a page. */
    if (!is_power_of_two(cycle->roll.index_count, ENTRIES_MAX << 4) ||
        !is_power_of_two(cycle->roll.index_spacing, SPACING_MAX))
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, 0,
                                 "index count or spacing is not possible", err);
    return AC_OK;
}

/* ---- opening ---- */

static int map_file(ac_cq4_cycle_t *cycle, int fd, uint64_t size, int writable, ac_map_t **out,
                    ac_error_t *err) {
    int error;
    *out = ac_map_new(fd, size, writable, &error);
    if (!*out) return ac_fail_os_in(err, error, cycle->dir->path, cycle->name, "cannot map");
    (*out)->segment = cycle->number;
    return AC_OK;
}

static int is_being_created(const ac_cq4_cycle_t *cycle, ac_error_t *err) {
    return ac_cq4_cycle_fail(cycle, AC_E_NOT_FOUND, EAGAIN, 0,
                             "its creator has not finished it, or was killed", err);
}

static int read_header(ac_cq4_cycle_t *cycle, uint32_t shift, ac_error_t *err) {
    uint32_t length;
    ac_cq4_kind_t kind = ac_cq4_inspect(cycle->map->base, cycle->map->size, 0, &length);
    if (kind == AC_CQ4_NONE || kind == AC_CQ4_BUSY || kind == AC_CQ4_END)
        return is_being_created(cycle, err);
    if (kind != AC_CQ4_META)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, 0, "is not a data file of Chronicle Queue",
                                 err);
    int rc = parse_header(cycle, length, err);
    if (rc != AC_OK) return rc;
    cycle->first = ac_cq4_after(0, length, cycle->padding);
    cycle->roll.shift = ac_cq4_shift(cycle->roll.index_count, cycle->roll.index_spacing);
    cycle->shift = shift ? shift : cycle->roll.shift;
    /* Messages are returned as if a record header of 64 bytes stood before each. */
    if (cycle->first + AC_CQ4_HEADER_BYTES < 64)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, 0, "the header is too short", err);
    return AC_OK;
}

int ac_cq4_cycle_open_fd(const ac_directory_t *dir, int fd, int writable, const char *name,
                         uint32_t number, uint32_t shift, ac_cq4_cycle_t *out, ac_error_t *err) {
    struct stat info;
    memset(out, 0, sizeof *out);
    out->dir = dir;
    out->number = number;
    snprintf(out->name, sizeof out->name, "%s", name);
    int rc = ac_os_stat(fd, &info);
    if (rc < 0) return ac_fail_os_in(err, rc, dir->path, name, "cannot examine");
    out->device = info.st_dev;
    out->inode = info.st_ino;
    rc = info.st_size < (off_t)AC_CQ4_HEADER_BYTES
             ? is_being_created(out, err)
             : map_file(out, fd, (uint64_t)info.st_size, writable, &out->map, err);
    if (rc == AC_OK) rc = read_header(out, shift, err);
    if (rc != AC_OK)
        ac_cq4_cycle_close(out);
    else if (writable)
        out->map->fd = fd;
    return rc;
}

int ac_cq4_cycle_open(const ac_directory_t *dir, int dir_fd, const char *name, uint32_t number,
                      uint32_t shift, ac_cq4_cycle_t *out, ac_error_t *err) {
    struct stat info;
    memset(out, 0, sizeof *out);
    int fd = ac_file_open(dir, dir_fd, name, O_RDONLY, &info, err);
    if (fd < 0) return fd;
    int rc = ac_cq4_cycle_open_fd(dir, fd, 0, name, number, shift, out, err);
    ac_os_close(fd);
    return rc;
}

int ac_cq4_cycle_remap(ac_cq4_cycle_t *cycle, ac_error_t *err) {
    struct stat info;
    ac_map_t *map, *before = cycle->map;
    int rc = ac_os_stat(before->fd, &info);
    if (rc < 0) return ac_fail_os_in(err, rc, cycle->dir->path, cycle->name, "cannot examine");
    if ((uint64_t)info.st_size < cycle->first)
        return ac_cq4_cycle_fail(cycle, AC_E_GONE, 0, (uint64_t)info.st_size, "was cut", err);
    rc = map_file(cycle, before->fd, (uint64_t)info.st_size, 1, &map, err);
    if (rc != AC_OK) return rc;
    map->fd = before->fd;
    before->fd = -1;
    cycle->index2index.at = cycle->page.at = cycle->page_confirmed = 0;
    cycle->map = map;
    ac_map_release(before);
    return AC_OK;
}

void ac_cq4_cycle_close(ac_cq4_cycle_t *cycle) {
    ac_map_release(cycle->map);
    cycle->map = NULL;
}

int ac_cq4_cycle_refresh(ac_cq4_cycle_t *cycle, ac_error_t *err) {
    struct stat info;
    ac_map_t *map;
    int dir_fd = ac_directory_open(cycle->dir, err);
    if (dir_fd < 0) return dir_fd;
    int fd = ac_file_open(cycle->dir, dir_fd, cycle->name, O_RDONLY, &info, err);
    ac_os_close(dir_fd);
    if (fd == AC_E_NOT_FOUND) return 0;
    if (fd < 0) return fd;
    uint64_t size = (uint64_t)info.st_size;
    int rc = 0;
    if (info.st_dev != cycle->device || info.st_ino != cycle->inode)
        rc = ac_cq4_cycle_fail(cycle, AC_E_GONE, 0, 0, "was replaced while it was being read", err);
    else if (size < cycle->first)
        rc = ac_cq4_cycle_fail(cycle, AC_E_GONE, 0, size, "was cut while it was being read", err);
    else if (size > cycle->map->size || ac_map_is_cut(cycle->map))
        rc = 1;
    if (rc == 1) {
        rc = map_file(cycle, fd, size, 0, &map, err);
        if (rc == AC_OK) {
            /* What remains of a truncated file may lack these. */
            if (size < cycle->map->size)
                cycle->index2index.at = cycle->page.at = cycle->page_confirmed = 0;
            ac_map_release(cycle->map);
            cycle->map = map;
            rc = 1;
        }
    }
    ac_os_close(fd);
    return rc;
}

/* ---- records ---- */

uint64_t ac_cq4_cycle_write_position(const ac_cq4_cycle_t *cycle) {
    if (cycle->write_position_at == 0) return 0;
    return ac_cq4_load_u64(cycle->map->base + cycle->write_position_at);
}

/* Walks over complete records, to message `seq`, or to `offset`, or to where none follows, whichever comes
 * first; or until *budget, if given, is used up. */
static ac_cq4_place_t walk_some(const ac_cq4_cycle_t *cycle, ac_cq4_place_t from, uint64_t seq,
                                uint64_t offset, int64_t *budget) {
    uint32_t length;
    for (;;) {
        from.kind = ac_cq4_inspect(cycle->map->base, cycle->map->size, from.offset, &length);
        if (from.offset >= offset || (from.kind != AC_CQ4_DATA && from.kind != AC_CQ4_META) ||
            (from.kind == AC_CQ4_DATA && from.seq >= seq) || (budget && --*budget < 0))
            return from;
        from.seq += from.kind == AC_CQ4_DATA;
        from.offset = ac_cq4_after(from.offset, length, cycle->padding);
    }
}

static ac_cq4_place_t walk(const ac_cq4_cycle_t *cycle, ac_cq4_place_t from, uint64_t seq,
                           uint64_t offset) {
    return walk_some(cycle, from, seq, offset, NULL);
}

ac_cq4_place_t ac_cq4_cycle_walk(const ac_cq4_cycle_t *cycle, ac_cq4_place_t from) {
    return walk(cycle, from, UINT64_MAX, UINT64_MAX);
}

static ac_cq4_place_t start_of(const ac_cq4_cycle_t *cycle) {
    return (ac_cq4_place_t){cycle->first, 0, AC_CQ4_NONE};
}

int ac_cq4_cycle_has_message(const ac_cq4_cycle_t *cycle) {
    return walk(cycle, start_of(cycle), 0, UINT64_MAX).kind == AC_CQ4_DATA;
}

/* ---- the index ---- */

/* A search that would look at more slots or records than this faces a hostile index, and does without it. */
enum { ARRAY_HEAD = 64, SEARCH_MAX = 1 << 24 };

/* The array in the metadata record at `offset`, if it is one of that event and all of it is mapped. */
static int find_array(const ac_cq4_cycle_t *cycle, uint64_t offset, const char *event,
                      ac_cq4_page_t *out) {
    uint8_t copy[ARRAY_HEAD];
    char name[AC_CQ4_WIRE_NAME_MAX];
    ac_cq4_array_t array;
    uint32_t length;
    if (offset < cycle->first || (offset & cycle->padding) ||
        ac_cq4_inspect(cycle->map->base, cycle->map->size, offset, &length) != AC_CQ4_META)
        return 0;
    uint32_t copied = length < sizeof copy ? length : sizeof copy;
    memcpy(copy, cycle->map->base + offset + AC_CQ4_HEADER_BYTES, copied);
    ac_cq4_wire_t wire = {copy, 0, copied};
    if (ac_cq4_wire_name(&wire, name, sizeof name) != 1 || strcmp(name, event) != 0 ||
        ac_cq4_wire_array(&wire, length - copied, &array) != 1)
        return 0;
    out->at = offset + AC_CQ4_HEADER_BYTES + array.where;
    out->capacity = array.capacity;
    return 1;
}

static uint64_t array_value(const ac_cq4_cycle_t *cycle, const ac_cq4_page_t *page, uint64_t at) {
    return at < page->capacity ? ac_cq4_load_u64(cycle->map->base + page->at + at * 8) : 0;
}

/* Pages never move: once found, a page is not searched for again. */
int ac_cq4_cycle_load_page(ac_cq4_cycle_t *cycle, uint64_t number) {
    if (cycle->page.at && cycle->page.number == number) return 1;
    if (cycle->index2index.at == 0) {
        uint64_t offset =
            cycle->index2index_at ? ac_cq4_load_u64(cycle->map->base + cycle->index2index_at) : 0;
        if (!find_array(cycle, offset, "index2index", &cycle->index2index)) return 0;
    }
    ac_cq4_page_t page = {.number = number};
    uint64_t offset = array_value(cycle, &cycle->index2index, number);
    if (offset == 0 || !find_array(cycle, offset, "index", &page)) return 0;
    cycle->page = page;
    return 1;
}

typedef struct slot {
    uint64_t number;
    uint64_t offset; /* 0: there is none */
} slot_t;

/* A slot of the page that was loaded last, if it is plausible. */
static slot_t slot_of_page(const ac_cq4_cycle_t *cycle, uint64_t number, uint64_t limit) {
    uint32_t length;
    uint64_t offset = array_value(cycle, &cycle->page, number % cycle->roll.index_count);
    if (offset >= cycle->first && offset <= limit && !(offset & cycle->padding) &&
        ac_cq4_inspect(cycle->map->base, cycle->map->size, offset, &length) == AC_CQ4_DATA)
        return (slot_t){number, offset};
    return (slot_t){0, 0};
}

/* The nearest plausible slot at or before `number`, within `budget` searches. */
static slot_t slot_before(ac_cq4_cycle_t *cycle, uint64_t number, uint64_t limit, int64_t *budget) {
    uint64_t count = cycle->roll.index_count;
    for (;; number--) {
        if (--*budget < 0) return (slot_t){0, 0};
        uint64_t page = number / count, place = number % count;
        /* If a page begins too far on, so do all its entries */
        if (!ac_cq4_cycle_load_page(cycle, page) ||
            (place > 0 && array_value(cycle, &cycle->page, 0) > limit)) {
            if (page == 0) return (slot_t){0, 0};
            number = page * count; /* the previous page ends where this one begins */
            continue;
        }
        slot_t slot = slot_of_page(cycle, number, limit);
        if (slot.offset) return slot;
        if (number == 0) return (slot_t){0, 0};
    }
}

static int is_confirmed(const ac_cq4_cycle_t *cycle, slot_t slot, ac_cq4_place_t from,
                        int64_t *budget) {
    uint64_t seq = slot.number * cycle->roll.index_spacing;
    if (from.offset > slot.offset) return 0;
    ac_cq4_place_t there = walk_some(cycle, from, seq, slot.offset + 1, budget);
    return there.kind == AC_CQ4_DATA && there.offset == slot.offset && there.seq == seq;
}

static ac_cq4_place_t place_of(const ac_cq4_cycle_t *cycle, slot_t slot) {
    return slot.offset ? (ac_cq4_place_t){slot.offset, slot.number * cycle->roll.index_spacing, 0}
                       : start_of(cycle);
}

/* Whether the page of `slot` is where it should be among the messages: slots of another page agree with
 * each other as well. One of its first slots has to follow what is before the page. */
static int is_page_confirmed(ac_cq4_cycle_t *cycle, slot_t slot, uint64_t limit, int64_t *budget) {
    enum { TRIES = 4 };
    slot_t before = {0, 0};
    uint64_t count = cycle->roll.index_count, page = slot.number / count;
    if (cycle->page_confirmed == page + 1) return 1;
    if (page > 0) before = slot_before(cycle, page * count - 1, limit, budget);
    if (!ac_cq4_cycle_load_page(cycle, page)) return 0;
    int tries = TRIES;
    for (uint64_t number = page * count; number <= slot.number && tries > 0; number++) {
        slot_t candidate = slot_of_page(cycle, number, limit);
        if (!candidate.offset) continue;
        if (is_confirmed(cycle, candidate, place_of(cycle, before), budget)) {
            cycle->page_confirmed = page + 1;
            return 1;
        }
        tries--;
    }
    return 0;
}

/* The best place from which to walk to message `seq`, not after offset `limit`. */
static ac_cq4_place_t nearest(ac_cq4_cycle_t *cycle, uint64_t seq, uint64_t limit) {
    uint64_t count = cycle->roll.index_count, number = seq / cycle->roll.index_spacing;
    uint64_t written = ac_cq4_cycle_write_position(cycle);
    int64_t budget = SEARCH_MAX;
    if (written < limit) limit = written;
    if (number > count * count - 1) number = count * count - 1;
    slot_t slot = slot_before(cycle, number, limit, &budget);
    while (slot.offset) {
        slot_t before = {0, 0};
        if (slot.number > 0) before = slot_before(cycle, slot.number - 1, limit, &budget);
        if (is_confirmed(cycle, slot, place_of(cycle, before), &budget)) {
            if (is_page_confirmed(cycle, slot, limit, &budget)) return place_of(cycle, slot);
            uint64_t page = slot.number / count; /* none of its slots is better */
            if (page == 0) break;
            before = slot_before(cycle, page * count - 1, limit, &budget);
        }
        slot = before;
    }
    return start_of(cycle);
}

ac_cq4_place_t ac_cq4_cycle_find(ac_cq4_cycle_t *cycle, uint64_t seq) {
    return walk(cycle, nearest(cycle, seq, UINT64_MAX), seq, UINT64_MAX);
}

ac_cq4_place_t ac_cq4_cycle_place_at(ac_cq4_cycle_t *cycle, uint64_t offset) {
    return walk(cycle, nearest(cycle, UINT64_MAX, offset), UINT64_MAX, offset);
}

/* ---- the end ---- */

/* The seq of the message at writePosition, if the pair fits with this shift. */
static int seq_of_pair(uint64_t position, uint64_t both, uint32_t shift, uint64_t *seq) {
    *seq = both & (((uint64_t)1 << shift) - 1);
    return both >> shift == (position & (UINT64_MAX >> shift));
}

static int load_pair(const ac_cq4_cycle_t *cycle, uint64_t pair[2]) {
    enum { RETRIES = 128 };
    const uint8_t *at = cycle->map->base + cycle->write_position_at;
    uint64_t seq;
    if (cycle->write_position_at == 0 || cycle->write_positions < 2) return 0;
    for (int i = 0; i < RETRIES; i++) {
        pair[1] = ac_cq4_load_u64(at + 8);
        pair[0] = ac_cq4_load_u64(at);
        if (seq_of_pair(pair[0], pair[1], cycle->shift, &seq) ||
            seq_of_pair(pair[0], pair[1], cycle->roll.shift, &seq))
            return 1;
        ac_cpu_relax();
    }
    return 0;
}

/* Both shifts may seem to fit: the index decides. */
static int last_message(ac_cq4_cycle_t *cycle, ac_cq4_place_t *out) {
    uint64_t pair[2], seq;
    uint32_t shifts[2] = {cycle->shift, cycle->roll.shift};
    if (!load_pair(cycle, pair) || pair[0] < cycle->first) return 0;
    for (int i = 0; i < 2; i++) {
        if (!seq_of_pair(pair[0], pair[1], shifts[i], &seq)) continue;
        *out = ac_cq4_cycle_find(cycle, seq);
        if (out->kind == AC_CQ4_DATA && out->seq == seq && out->offset == pair[0]) return 1;
    }
    return 0;
}

int ac_cq4_cycle_last(const ac_cq4_cycle_t *cycle, uint64_t *offset, uint64_t *seq) {
    const uint8_t *at = cycle->map->base + cycle->write_position_at;
    if (cycle->write_positions < 2 || cycle->shift != cycle->roll.shift) return 0;
    *offset = ac_cq4_load_u64(at);
    return *offset >= cycle->first && !(*offset & cycle->padding) &&
           seq_of_pair(*offset, ac_cq4_load_u64(at + 8), cycle->shift, seq);
}

/* As its writer recorded it. */
static int newest_message(const ac_cq4_cycle_t *cycle, ac_cq4_place_t *out) {
    uint64_t pair[2];
    uint32_t length;
    if (!load_pair(cycle, pair) || (pair[0] & cycle->padding) || pair[0] < cycle->first) return 0;
    out->offset = pair[0];
    out->kind = ac_cq4_inspect(cycle->map->base, cycle->map->size, pair[0], &length);
    return seq_of_pair(pair[0], pair[1], cycle->shift, &out->seq) ||
           seq_of_pair(pair[0], pair[1], cycle->roll.shift, &out->seq);
}

ac_cq4_place_t ac_cq4_cycle_end(ac_cq4_cycle_t *cycle) {
    ac_cq4_place_t from, newest;
    if (last_message(cycle, &from)) return walk(cycle, from, UINT64_MAX, UINT64_MAX);
    from = walk(cycle, nearest(cycle, UINT64_MAX, UINT64_MAX), UINT64_MAX, UINT64_MAX);
    /* A damaged record ends the walk before the newest message, or leads out of the file. */
    if (newest_message(cycle, &newest) && newest.kind == AC_CQ4_DATA &&
        ((newest.offset >= from.offset && newest.seq >= from.seq) || from.kind == AC_CQ4_BEYOND))
        from = walk(cycle, newest, UINT64_MAX, UINT64_MAX);
    return from;
}

/* ---- damage ---- */

/* The order matters: the second look sees what was appended here before the newest message. Old files have
 * several writers at a time. */
int ac_cq4_cycle_is_hole(const ac_cq4_cycle_t *cycle, uint64_t offset) {
    ac_cq4_place_t newest;
    uint32_t length;
    return cycle->padding && newest_message(cycle, &newest) && newest.kind == AC_CQ4_DATA &&
           newest.offset > offset &&
           ac_cq4_inspect(cycle->map->base, cycle->map->size, offset, &length) == AC_CQ4_NONE;
}

ac_cq4_place_t ac_cq4_cycle_after_damage(ac_cq4_cycle_t *cycle, ac_cq4_place_t damage) {
    ac_cq4_place_t place = {0, 0, AC_CQ4_NONE};
    uint64_t count = cycle->roll.index_count, limit = ac_cq4_cycle_write_position(cycle);
    uint64_t number = damage.seq / cycle->roll.index_spacing + 1;
    for (int64_t budget = SEARCH_MAX; budget > 0 && number < count * count; budget--, number++) {
        if (!ac_cq4_cycle_load_page(cycle, number / count)) break;
        slot_t slot = slot_of_page(cycle, number, limit);
        if (slot.offset <= damage.offset) continue;
        place = place_of(cycle, slot);
        place.kind = AC_CQ4_DATA;
        return place;
    }
    if (newest_message(cycle, &place) && place.offset > damage.offset && place.seq > damage.seq)
        return place;
    return (ac_cq4_place_t){0, 0, AC_CQ4_NONE};
}
