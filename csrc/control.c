#include "control.h"

#include "crc32.h"
#include "error.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { SEGMENT_MIN = 4096, SEQLOCK_TRIES = 1000 };
#define SEGMENT_MAX (1ull << 32)

ac_control_t ac_control_of_nobody;

int ac_segment_size_valid(uint64_t size) {
    return size >= SEGMENT_MIN && size <= SEGMENT_MAX && size % 64 == 0;
}

static int check(const ac_control_t *control, const char *path, ac_error_t *err) {
    uint32_t magic = ac_load_relaxed_u32(&control->magic);
    uint32_t version = ac_load_relaxed_u32(&control->version);
    uint64_t size = ac_load_relaxed_u64(&control->segment_size);
    if (magic != AC_CONTROL_MAGIC)
        return ac_fail(err, AC_E_NOT_A_QUEUE, 0, path, 0, "magic is 0x%08x, not a control block",
                       magic);
    if (version != AC_CONTROL_VERSION)
        return ac_fail(err, AC_E_VERSION, 0, path, 4, "format version %u; this build knows %u",
                       version, AC_CONTROL_VERSION);
    if (!ac_segment_size_valid(size))
        return ac_fail(err, AC_E_CORRUPT, 0, path, 24, "segment size %llu is impossible",
                       (unsigned long long)size);
    return AC_OK;
}

/* How long a file that is not usable may still become so: a second after it was last modified. */
static uint64_t patience_ns(const struct stat *info) {
    uint64_t most = 1000000000u, now = ac_os_now_ns();
    uint64_t touched =
        (uint64_t)info->st_ctim.tv_sec * 1000000000u + (uint64_t)info->st_ctim.tv_nsec;
    uint64_t age = now > touched ? now - touched : 0;
    return age < most ? most - age : 0;
}

/* Another process may be between creating the file and completing it; that takes microseconds. */
static int wait_until_usable(const ac_control_t *control, uint64_t wait_ns, const char *path,
                             ac_error_t *err) {
    uint64_t deadline = ac_os_monotonic_ns() + wait_ns;
    while (ac_load_acquire_u32(&control->init_state) != AC_CONTROL_READY) {
        if (ac_os_monotonic_ns() > deadline)
            return ac_fail(err, AC_E_CORRUPT, 0, path, 8, "the control block was never completed");
        ac_os_futex_wait(&control->init_state, ac_load_relaxed_u32(&control->init_state), 1000000);
    }
    return AC_OK;
}

static int incomplete(const char *path, ac_error_t *err) {
    return ac_fail(err, AC_E_NOT_FOUND, EAGAIN, path, 0, "is being made");
}

int ac_control_open(const ac_directory_t *dir, int dir_fd, enum ac_control_access access,
                    int patient, ac_map_t **out, ac_error_t *err) {
    struct stat info;
    return ac_control_open_file(dir, dir_fd, access, patient, out, &info, err);
}

int ac_control_open_file(const ac_directory_t *dir, int dir_fd, enum ac_control_access access,
                         int patient, ac_map_t **out, struct stat *info, ac_error_t *err) {
    char path[1200];
    int error;
    snprintf(path, sizeof path, "%s/control.meta", dir->path);
    int fd = ac_file_open(dir, dir_fd, "control.meta",
                          access == AC_CONTROL_READ_ONLY ? O_RDONLY : O_RDWR, info, err);
    if (fd == AC_E_ACCESS && access == AC_CONTROL_WRITABLE_IF_PERMITTED) {
        access = AC_CONTROL_READ_ONLY;
        fd = ac_file_open(dir, dir_fd, "control.meta", O_RDONLY, info, err);
    }
    if (fd == AC_E_NOT_FOUND && ac_os_stat_at(dir_fd, "shared.json", info) == 0)
        return ac_fail(err, AC_E_NOT_A_QUEUE, 0, dir->path, 0,
                       "is a topic with many writers, which a TopicReader reads");
    if (fd < 0) return fd;
    if (info->st_size < (off_t)AC_CONTROL_SIZE) {
        ac_os_close(fd);
        if (!patient) return incomplete(path, err);
        return ac_fail(err, AC_E_CORRUPT, 0, path, (uint64_t)info->st_size,
                       "%lld bytes long, a control block has %u", (long long)info->st_size,
                       AC_CONTROL_SIZE);
    }
    ac_map_t *map = ac_map_new(fd, AC_CONTROL_SIZE, access != AC_CONTROL_READ_ONLY, &error);
    ac_os_close(fd);
    if (!map) return ac_fail_os(err, error, path, "cannot map");
    if (!patient && ac_load_acquire_u32(&ac_control_of(map)->init_state) != AC_CONTROL_READY) {
        ac_map_release(map);
        return incomplete(path, err);
    }
    int rc = wait_until_usable(ac_control_of(map), patience_ns(info), path, err);
    if (ac_map_is_cut(map)) {
        ac_map_release(map);
        return ac_fail_os(err, -EIO, path, "cannot be read");
    }
    if (rc == AC_OK || ac_load_relaxed_u32(&ac_control_of(map)->magic) != AC_CONTROL_MAGIC)
        rc = check(ac_control_of(map), path, err);
    if (rc != AC_OK) {
        ac_map_release(map);
        return rc;
    }
    *out = map;
    return AC_OK;
}

/* What every new block contains. */
static ac_control_t fresh(uint64_t segment_size) {
    ac_control_t control;
    memset(&control, 0, sizeof control);
    control.magic = AC_CONTROL_MAGIC;
    control.version = AC_CONTROL_VERSION;
    control.init_state = AC_CONTROL_READY;
    control.segment_size = segment_size;
    control.write_offset = 64;
    return control;
}

int ac_control_create(const ac_directory_t *dir, int dir_fd, uint64_t segment_size,
                      ac_error_t *err) {
    ac_control_t control = fresh(segment_size);
    while (control.queue_id == 0) {
        int rc = ac_os_random(&control.queue_id, sizeof control.queue_id);
        if (rc < 0) return ac_fail_os(err, rc, dir->path, "cannot get random bytes");
    }
    return ac_file_publish_new(dir, dir_fd, "control.meta", &control, sizeof control, err);
}

int ac_control_copy(const ac_control_t *original, const ac_directory_t *dir, int dir_fd,
                    uint32_t segment, uint64_t next_seq, uint64_t last_timestamp_ns,
                    ac_error_t *err) {
    ac_map_t *there;
    ac_control_t control = fresh(ac_load_relaxed_u64(&original->segment_size));
    control.queue_id = ac_load_relaxed_u64(&original->queue_id);
    memcpy(control.ancestors, original->ancestors, sizeof control.ancestors);
    control.current_segment = segment;
    control.next_seq = next_seq;
    control.last_timestamp_ns = last_timestamp_ns;
    int rc = ac_control_open(dir, dir_fd, 0, 1, &there, err);
    if (rc == AC_OK) {
        uint64_t owner = ac_load_relaxed_u64(&ac_control_of(there)->queue_id);
        ac_map_release(there);
        if (owner != control.queue_id)
            return ac_fail(err, AC_E_NOT_A_QUEUE, EEXIST, dir->path, 0,
                           "belongs to another queue; give each queue an archive of its own");
    } else if (rc != AC_E_NOT_FOUND) {
        return rc;
    }
    return ac_file_publish(dir, dir_fd, "control.meta", &control, sizeof control, err);
}

int ac_control_home(const ac_directory_t *dir, int dir_fd, uint64_t *home, ac_error_t *err) {
    uint64_t born[2][2];
    int rc = ac_os_birth(dir_fd, "", born[0]);
    if (rc == 0) rc = ac_os_birth(dir_fd, "control.meta", born[1]);
    if (rc < 0) return ac_fail_os_in(err, rc, dir->path, "control.meta", "cannot examine");
    *home = (uint64_t)ac_crc32(born, sizeof born) << 32 | ac_crc32(born[1], sizeof born[1]) | 1u;
    return AC_OK;
}

int ac_control_is_copy(const ac_control_t *control, uint64_t home) {
    uint64_t known = ac_load_relaxed_u64(&control->home);
    return known != 0 && known != home && ac_load_relaxed_u64(&control->queue_id) != 0;
}

int ac_control_adopt(ac_control_t *control, uint64_t home, uint64_t first_segment) {
    uint64_t id = 0;
    while (id == 0) {
        int rc = ac_os_random(&id, sizeof id);
        if (rc < 0) return rc;
    }
    ac_ancestor_t *newest = control->ancestors;
    if (newest[AC_ANCESTORS - 1].queue_id != 0)
        ac_log(AC_LOG_WARNING, NULL,
               "a queue was copied %d times in a row: what was done about its oldest messages "
               "(queue id %llu) is not known any more",
               AC_ANCESTORS + 1, (unsigned long long)newest[AC_ANCESTORS - 1].queue_id);
    memmove(newest + 1, newest, (AC_ANCESTORS - 1) * sizeof *newest);
    *newest = (ac_ancestor_t){ac_load_relaxed_u64(&control->queue_id), first_segment};
    ac_store_release_u64(&control->queue_id, id);
    ac_store_release_u64(&control->home, home);
    return 0;
}

uint64_t ac_control_id_of(const ac_control_t *control, uint64_t segment) {
    uint64_t id = ac_load_acquire_u64(&control->queue_id);
    for (int i = 0; i < AC_ANCESTORS; i++) {
        uint64_t ancestor = ac_load_relaxed_u64(&control->ancestors[i].queue_id);
        uint64_t until = ac_load_relaxed_u64(&control->ancestors[i].until_segment);
        if (ancestor == 0 || segment >= until) break;
        id = ancestor;
    }
    return id;
}

/* Seconds tell writers of different days apart. A copy may be opened in the same second as the original, or
 * as another copy of it: the microseconds tell those apart. */
uint64_t ac_control_next_epoch(const ac_control_t *control, int is_copy) {
    uint64_t next = ac_load_relaxed_u64(&control->writer_epoch) + 1;
    uint64_t now_us = ac_os_now_ns() / 1000u, now_s = now_us / 1000000u;
    if (now_s > next && now_s < UINT32_MAX / 2 + UINT32_MAX / 4) next = now_s;
    return is_copy ? next + now_us % 1000000u : next;
}

void ac_control_set_position(ac_control_t *control, uint32_t segment, uint64_t offset) {
    uint32_t generation = ac_load_relaxed_u32(&control->segment_gen) | 1u;
    ac_exchange_seq_cst_u32(&control->segment_gen, generation);
    ac_store_release_u32(&control->current_segment, segment);
    ac_store_release_u64(&control->write_offset, offset);
    ac_exchange_seq_cst_u32(&control->segment_gen, generation + 1u);
}

int ac_control_position(const ac_control_t *control, uint32_t *segment, uint64_t *offset) {
    for (int tries = 0; tries < SEQLOCK_TRIES; tries++) {
        uint32_t before = ac_load_acquire_u32(&control->segment_gen);
        *segment = ac_load_acquire_u32(&control->current_segment);
        *offset = ac_load_acquire_u64(&control->write_offset);
        if (!(before & 1u) && before == ac_load_acquire_u32(&control->segment_gen)) return 1;
        ac_cpu_relax();
    }
    return 0;
}

uint64_t ac_control_next_seq(const ac_control_t *control) {
    uint64_t counting = ac_load_acquire_u64(&control->counting_epoch);
    /* 0: a copy, or a writer of a version without this word. */
    if (counting != 0 && counting != ac_load_acquire_u64(&control->writer_epoch)) return 0;
    return ac_load_acquire_u64(&control->next_seq);
}

static uint32_t removed_checksum(uint64_t seq, uint64_t timestamp_ns) {
    uint64_t words[2] = {seq, timestamp_ns};
    return ac_crc32(words, sizeof words);
}

void ac_control_removed(const ac_control_t *control, uint64_t *seq, uint64_t *timestamp_ns) {
    *seq = ac_load_relaxed_u64(&control->removed_seq);
    *timestamp_ns = ac_load_relaxed_u64(&control->removed_ns);
    if (ac_load_relaxed_u32(&control->removed_check) != removed_checksum(*seq, *timestamp_ns))
        *seq = *timestamp_ns = 0;
}

/* A torn record is not trusted; the segment that it was written for still exists then. */
void ac_control_note_removed(ac_control_t *control, uint64_t seq, uint64_t timestamp_ns) {
    uint64_t known_seq, known_ns;
    ac_control_removed(control, &known_seq, &known_ns);
    if (seq < known_seq) seq = known_seq;
    if (timestamp_ns < known_ns) timestamp_ns = known_ns;
    ac_store_relaxed_u64(&control->removed_seq, seq);
    ac_store_relaxed_u64(&control->removed_ns, timestamp_ns);
    ac_store_relaxed_u32(&control->removed_check, removed_checksum(seq, timestamp_ns));
}
