#include "position.h"

#include "crc32.h"
#include "error.h"
#include "lock_holder.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { SLOT_CHECKED = 32, FILE_NAME_MAX = 128, DECODE_TRIES = 100 };

int ac_reader_name_valid(const char *name) {
    size_t length = strlen(name);
    if (length == 0 || length > AC_READER_NAME_MAX) return 0;
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        int plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!plain && (i == 0 || (c != '.' && c != '_' && c != '-'))) return 0;
    }
    return 1;
}

int ac_reader_name_check(const char *name, const char *path, ac_error_t *err) {
    if (ac_reader_name_valid(name)) return AC_OK;
    return ac_fail(err, AC_E_NAME, 0, path, 0,
                   "reader name '%.80s' must match [A-Za-z0-9][A-Za-z0-9._-]{0,63}", name);
}

static int slot_valid(const ac_slot_t *slot) {
    return slot->checksum == ac_crc32(slot, SLOT_CHECKED);
}

int ac_position_decode(const uint8_t bytes[AC_POSITION_SIZE], ac_slot_t *out) {
    ac_slot_t slots[2];
    memcpy(slots, bytes, sizeof slots);
    int valid0 = slot_valid(&slots[0]), valid1 = slot_valid(&slots[1]);
    if (!valid0 && !valid1) return -1;
    int winner = valid1 && (!valid0 || slots[1].generation > slots[0].generation);
    *out = slots[winner];
    return winner;
}

static int is_position(const char *file) {
    size_t length = strlen(file);
    return length > 5 && length - 5 <= AC_READER_NAME_MAX &&
           strcmp(file + length - 5, ".meta") == 0;
}

static int count_position(void *context, const char *file) {
    *(int *)context += is_position(file);
    return 0;
}

/* Each check of a writer on its readers costs some system calls per name, used or not. Processes that
 * create the last ones at the same time may exceed the limit: nothing but this refusal depends on it. */
static int check_count(const ac_directory_t *readers, int readers_fd, ac_error_t *err) {
    int count = 0;
    int rc = ac_os_list(readers_fd, count_position, &count);
    if (rc < 0) return ac_fail_os(err, rc, readers->path, "cannot list readers");
    if (count < AC_READERS_MAX) return AC_OK;
    return ac_fail(err, AC_E_TOO_MANY_READERS, 0, readers->path, 0,
                   "has %d reader names; a new one is let in below %d", count, AC_READERS_MAX);
}

/* An fd of the new file, locked and claimed before it has its name: otherwise retention would take it for a
 * reader that is away, and another process could lock it first. -EEXIST: another process was first. */
static int create(const ac_directory_t *readers, int readers_fd, const char *file, uint64_t segment,
                  uint64_t offset) {
    char temporary[FILE_NAME_MAX + 32];
    uint64_t unique = 0; /* threads, and containers, may have the same pid */
    ac_slot_t slots[2] = {{0}};
    slots[0] = (ac_slot_t){
        .segment = segment, .offset = offset, .heartbeat_ns = ac_os_now_ns(), .generation = 1};
    slots[0].checksum = ac_crc32(&slots[0], SLOT_CHECKED);
    if (ac_os_random(&unique, sizeof unique) < 0) unique = ac_os_monotonic_ns();
    snprintf(temporary, sizeof temporary, "%s.%016llx.tmp", file, (unsigned long long)unique);
    int fd = ac_file_create(readers_fd, temporary, readers->mode);
    if (fd < 0) return fd;
    int rc = ac_os_write_at(fd, slots, sizeof slots, 0);
    if (rc == 0) rc = ac_os_sync(fd);
    if (rc == 0) rc = ac_os_flock(fd);
    if (rc == 0) rc = ac_os_claim(fd);
    if (rc == 0) rc = ac_os_rename_new(readers_fd, temporary, file);
    if (rc == 0) rc = ac_os_sync_dir(readers_fd);
    if (rc == 0) return fd;
    ac_os_unlink(readers_fd, temporary);
    ac_os_close(fd);
    return rc;
}

static int open_or_create(const ac_directory_t *readers, int readers_fd, const char *file,
                          uint64_t segment, uint64_t offset, int *created, struct stat *info,
                          ac_error_t *err) {
    int fd = ac_file_open(readers, readers_fd, file, O_RDWR, info, err);
    if (fd != AC_E_NOT_FOUND) return fd;
    int rc = check_count(readers, readers_fd, err);
    if (rc != AC_OK) return rc;
    fd = create(readers, readers_fd, file, segment, offset);
    if (fd == -EEXIST) { /* the lock decides which of us has it */
        *created = 1;
        return ac_file_open(readers, readers_fd, file, O_RDWR, info, err);
    }
    rc = fd < 0 ? fd : ac_os_stat(fd, info);
    if (rc < 0) {
        ac_os_close(fd);
        return ac_fail_os_in(err, rc, readers->path, file, "cannot create the position of reader");
    }
    *created = 1;
    return fd;
}

static int fail_busy(int fd, const char *path, ac_error_t *err) {
    char who[160];
    struct stat info;
    ac_holder_describe(fd, who, sizeof who);
    int rc = ac_fail(err, AC_E_READER_BUSY, 0, path, 0,
                     "this reader is open (%s); choose another name, or close that one", who);
    if (!err || ac_os_stat(fd, &info) < 0) return rc;
    err->holder_pid = ac_holder_pid(&info);
    if (err->holder_pid > 0)
        ac_os_process_command(err->holder_pid, err->holder_command, sizeof err->holder_command);
    return rc;
}

static int load(ac_position_t *position, int fd, const char *path, ac_error_t *err) {
    int error;
    int rc = ac_lock_take(&position->lock, fd);
    if (rc == -EWOULDBLOCK) return fail_busy(fd, path, err);
    if (rc == 0) {
        rc = ac_os_claim(fd); /* shows writers that the reader lives */
        if (rc < 0) ac_lock_release(&position->lock);
    }
    if (rc < 0) return ac_fail_os(err, rc, path, "cannot lock");
    position->map = ac_map_new(fd, AC_POSITION_MAPPED, 1, &error);
    /* A mapping keeps the lock's open file alive: a child must not have it. */
    if (position->map) error = ac_os_map_dontfork(position->map->base, AC_POSITION_MAPPED);
    if (!position->map || error < 0) {
        ac_map_release(position->map);
        position->map = NULL;
        ac_lock_release(&position->lock);
        return ac_fail_os(err, error, path, "cannot map");
    }
    position->slot = ac_position_decode(position->map->base, &position->current);
    if (position->slot < 0) {
        int unreadable = ac_map_is_cut(position->map);
        ac_map_release(position->map);
        ac_lock_release(&position->lock);
        position->map = NULL;
        if (unreadable) return ac_fail_os(err, -EIO, path, "cannot be read");
        return ac_fail(err, AC_E_POSITION_CORRUPT, 0, path, 0,
                       "neither slot is valid; forget the reader to start it afresh");
    }
    /* A store that never ended has the generation that the next one will have: its remains could make that
     * one look complete half-way. */
    ac_slot_t *other = (ac_slot_t *)(void *)position->map->base + (position->slot ^ 1);
    if (!slot_valid(other)) memset(other, 0, sizeof *other);
    pthread_mutex_init(&position->mutex, NULL);
    return AC_OK;
}

/* Its file, opened and locked. AC_E_NOT_FOUND: it was removed just now. */
static int open_locked(ac_position_t *position, const ac_directory_t *readers, int readers_fd,
                       const char *file, uint64_t segment, uint64_t offset, int *created,
                       ac_error_t *err) {
    char path[1300];
    struct stat info;
    int fd = open_or_create(readers, readers_fd, file, segment, offset, created, &info, err);
    if (fd < 0) return fd;
    snprintf(path, sizeof path, "%s/%s", readers->path, file);
    int rc;
    if (info.st_size < AC_POSITION_SIZE)
        rc = ac_fail(err, AC_E_POSITION_CORRUPT, 0, path, (uint64_t)info.st_size,
                     "%lld bytes long instead of 80; forget the reader to start it afresh",
                     (long long)info.st_size);
    else
        rc = load(position, fd, path, err);
    /* Removing it needs the lock, so from now on it either has its name, or never will again. */
    if (rc == AC_OK && ac_os_stat(fd, &info) == 0 && info.st_nlink == 0) {
        ac_position_close(position);
        rc = ac_fail(err, AC_E_NOT_FOUND, ENOENT, path, 0, "was removed while it was being opened");
    }
    ac_os_close(fd);
    position->device = info.st_dev;
    position->inode = info.st_ino;
    position->looked_ns = 0;
    return rc;
}

enum { OPEN_TRIES = 100 };

int ac_position_open(ac_position_t *position, const ac_directory_t *dir, int dir_fd,
                     const char *name, uint64_t segment, uint64_t offset, int *created,
                     ac_error_t *err) {
    char file[FILE_NAME_MAX];
    ac_directory_t readers;
    int rc = ac_reader_name_check(name, dir->path, err);
    if (rc != AC_OK) return rc;
    int readers_fd = ac_directory_readers(dir, dir_fd, 1, &readers, err);
    if (readers_fd < 0) return readers_fd;
    snprintf(file, sizeof file, "%s.meta", name);
    *created = 0;
    rc = AC_E_NOT_FOUND;
    for (int tries = 0; tries < OPEN_TRIES && rc == AC_E_NOT_FOUND; tries++)
        rc = open_locked(position, &readers, readers_fd, file, segment, offset, created, err);
    ac_os_close(readers_fd);
    return rc;
}

int ac_position_has_name(const ac_position_t *position, const ac_directory_t *dir,
                         const char *name) {
    char path[1300];
    struct stat info;
    snprintf(path, sizeof path, "%s/readers/%s.meta", dir->path, name);
    int rc = ac_os_stat_path(path, &info);
    if (rc < 0) return rc != -ENOENT && rc != -ENOTDIR;
    return info.st_dev == position->device && info.st_ino == position->inode;
}

static int fail_unknown(const ac_directory_t *dir, const char *name, ac_error_t *err) {
    return ac_fail(err, AC_E_READER_NOT_FOUND, ENOENT, dir->path, 0, "has no reader '%s'", name);
}

/* With its lock held, and durably; otherwise a power cut would bring the reader back without its data. */
static int remove_files(const ac_directory_t *readers, int readers_fd, const char *name,
                        ac_error_t *err) {
    char file[FILE_NAME_MAX];
    snprintf(file, sizeof file, "%s.group", name);
    ac_os_unlink(readers_fd, file); /* first: without a position it would be trusted */
    snprintf(file, sizeof file, "%s.group.tmp", name);
    ac_os_unlink(readers_fd, file); /* of a member that was killed, or nothing */
    snprintf(file, sizeof file, "%s.meta", name);
    int rc = ac_os_unlink(readers_fd, file);
    if (rc < 0) return ac_fail_os_in(err, rc, readers->path, file, "cannot remove");
    snprintf(file, sizeof file, "%s.efd", name);
    ac_os_unlink(readers_fd, file); /* of a reader that was killed, or nothing */
    rc = ac_os_sync_dir(readers_fd);
    return rc < 0 ? ac_fail_os(err, rc, readers->path, "cannot sync") : AC_OK;
}

int ac_position_remove(const ac_directory_t *dir, int dir_fd, const char *name, ac_error_t *err) {
    char file[FILE_NAME_MAX], path[1300];
    ac_directory_t readers;
    struct stat info;
    int readers_fd = ac_directory_readers(dir, dir_fd, 0, &readers, err);
    if (readers_fd == AC_E_NOT_FOUND) return fail_unknown(dir, name, err);
    if (readers_fd < 0) return readers_fd;
    snprintf(file, sizeof file, "%s.meta", name);
    snprintf(path, sizeof path, "%s/%s", readers.path, file);
    int fd = ac_file_open(&readers, readers_fd, file, O_RDONLY, &info, err);
    int rc = fd < 0 ? fd : ac_os_flock(fd);
    if (fd == AC_E_NOT_FOUND)
        rc = fail_unknown(dir, name, err);
    else if (fd >= 0 && rc == -EWOULDBLOCK)
        rc = fail_busy(fd, path, err);
    else if (fd >= 0 && rc == 0 && ac_os_stat(fd, &info) == 0 && info.st_nlink == 0)
        rc = fail_unknown(dir, name, err); /* another process was working on it */
    else if (fd >= 0)
        rc = rc < 0 ? ac_fail_os(err, rc, path, "cannot lock")
                    : remove_files(&readers, readers_fd, name, err);
    ac_os_close(fd);
    ac_os_close(readers_fd);
    return rc;
}

static void store_locked(ac_position_t *position, uint64_t segment, uint64_t offset, uint32_t epoch,
                         uint64_t now_ns) {
    ac_slot_t *slot = &position->current;
    slot->segment = segment;
    slot->offset = offset;
    slot->heartbeat_ns = now_ns;
    slot->generation++;
    slot->checksum = ac_crc32(slot, SLOT_CHECKED);
    slot->epoch = epoch;
    position->slot ^= 1; /* never over the slot that is valid now */
    memcpy(position->map->base + (size_t)position->slot * sizeof *slot, slot, sizeof *slot);
}

void ac_position_store(ac_position_t *position, uint64_t segment, uint64_t offset, uint32_t epoch,
                       uint64_t now_ns) {
    pthread_mutex_lock(&position->mutex);
    store_locked(position, segment, offset, epoch, now_ns);
    pthread_mutex_unlock(&position->mutex);
}

void ac_position_heartbeat(ac_position_t *position, uint64_t now_ns) {
    pthread_mutex_lock(&position->mutex);
    store_locked(position, position->current.segment, position->current.offset,
                 position->current.epoch, now_ns);
    pthread_mutex_unlock(&position->mutex);
}

int ac_position_store_shared(uint8_t *base, uint64_t segment, uint64_t offset, uint32_t epoch,
                             uint64_t now_ns) {
    uint8_t bytes[AC_POSITION_SIZE];
    ac_slot_t slot, other;
    memcpy(bytes, base, sizeof bytes);
    int winner = ac_position_decode(bytes, &slot);
    if (winner < 0) return 0;
    if (segment > slot.segment || (segment == slot.segment && offset > slot.offset)) {
        slot.segment = segment;
        slot.offset = offset;
        slot.epoch = epoch;
    }
    slot.heartbeat_ns = now_ns;
    slot.generation++;
    slot.checksum = ac_crc32(&slot, SLOT_CHECKED);
    uint8_t *older = base + (size_t)(winner ^ 1) * sizeof slot;
    memcpy(&other, bytes + (size_t)(winner ^ 1) * sizeof slot, sizeof other);
    if (!slot_valid(&other)) memset(older, 0, sizeof slot); /* see load */
    memcpy(older, &slot, sizeof slot);
    return 1;
}

void ac_position_get(ac_position_t *position, uint64_t *segment, uint64_t *offset) {
    pthread_mutex_lock(&position->mutex);
    *segment = position->current.segment;
    *offset = position->current.offset;
    pthread_mutex_unlock(&position->mutex);
}

int ac_position_sync(ac_position_t *position) {
    return ac_os_map_sync(position->map->base, -1, 0, AC_POSITION_SIZE);
}

int ac_position_is_revoked(const ac_position_t *position) {
    const uint8_t *mark = position->map ? position->map->base + AC_POSITION_SIZE : NULL;
    return mark && ac_load_acquire_u64((const uint64_t *)(const void *)mark) == AC_POSITION_REVOKED;
}

void ac_position_close(ac_position_t *position) {
    if (!position->map) return;
    ac_map_release(position->map);
    ac_lock_release(&position->lock);
    pthread_mutex_destroy(&position->mutex);
    position->map = NULL;
}

void ac_position_forked(ac_position_t *position) {
    position->lock.mapping = NULL;
    position->map = NULL;
}

/* Of an existing reader, for reading only. */
static int open_file(const ac_directory_t *dir, int dir_fd, const char *name, ac_error_t *err) {
    char file[FILE_NAME_MAX];
    ac_directory_t readers;
    struct stat info;
    int readers_fd = ac_directory_readers(dir, dir_fd, 0, &readers, err);
    if (readers_fd < 0) return readers_fd;
    snprintf(file, sizeof file, "%s.meta", name);
    int fd = ac_file_open(&readers, readers_fd, file, O_RDONLY, &info, err);
    ac_os_close(readers_fd);
    return fd;
}

void ac_position_describe(const ac_directory_t *dir, int dir_fd, const char *name, char *out,
                          size_t size) {
    int fd = open_file(dir, dir_fd, name, NULL);
    ac_holder_describe(fd, out, size);
    ac_os_close(fd);
}

int ac_position_sync_file(const ac_directory_t *dir, int dir_fd, const char *name,
                          ac_error_t *err) {
    char file[FILE_NAME_MAX + 8];
    int fd = open_file(dir, dir_fd, name, err);
    if (fd < 0) return fd;
    int rc = ac_os_sync(fd);
    ac_os_close(fd);
    snprintf(file, sizeof file, "readers/%s.meta", name);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, file, "cannot sync the position") : AC_OK;
}

int ac_position_sync_names(const ac_directory_t *dir, int dir_fd, ac_error_t *err) {
    ac_directory_t readers;
    int readers_fd = ac_directory_readers(dir, dir_fd, 0, &readers, err);
    if (readers_fd == AC_E_NOT_FOUND) return AC_OK;
    if (readers_fd < 0) return readers_fd;
    int rc = ac_os_sync_dir(readers_fd);
    ac_os_close(readers_fd);
    return rc < 0 ? ac_fail_os(err, rc, readers.path, "cannot sync") : AC_OK;
}

typedef struct each {
    const ac_directory_t *readers;
    int readers_fd;
    ac_position_visit_t visit;
    void *context;
    int strict;         /* a file that cannot be decoded is a failure */
    ac_error_t failure; /* code 0: none */
} each_t;

static int visit_file(void *context, const char *file) {
    each_t *each = context;
    char name[AC_READER_NAME_MAX + 1];
    uint8_t bytes[AC_POSITION_SIZE];
    ac_slot_t slot;
    struct stat info;
    if (!is_position(file)) return 0;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - 5), file);
    ac_error_t err;
    int fd = ac_file_open(each->readers, each->readers_fd, file, O_RDONLY, &info, &err);
    if (fd == AC_E_NOT_FOUND || fd == AC_E_NOT_A_QUEUE) return 0; /* gone, or not a position */
    if (fd < 0) { /* a reader that cannot be read must not be forgotten */
        each->failure = err;
        return 1;
    }
    int got, found = -1, held = ac_os_claimed(fd);
    for (int tries = 0; tries < DECODE_TRIES && found < 0; tries++) {
        got = ac_os_read_at(fd, bytes, sizeof bytes, 0);
        if (got != AC_POSITION_SIZE) break;
        found = ac_position_decode(bytes, &slot); /* -1 also if it was stored to twice meanwhile */
    }
    ac_os_close(fd);
    if (found >= 0 && held >= 0) each->visit(each->context, name, &slot, held);
    int rc = got < 0 ? got : held < 0 ? held : 0;
    if (rc < 0)
        ac_fail_os_in(&each->failure, rc, each->readers->path, file, "cannot read the position");
    if (rc == 0 && found < 0 && each->strict) {
        char path[1300];
        snprintf(path, sizeof path, "%s/%s", each->readers->path, file);
        rc = ac_fail(
            &each->failure, AC_E_POSITION_CORRUPT, 0, path, 0,
            "is damaged, so nobody knows what its reader needs; forget the reader, or restore "
            "the file");
    }
    return rc < 0;
}

static int each_position(const ac_directory_t *dir, int dir_fd, int strict,
                         ac_position_visit_t visit, void *context, ac_error_t *err) {
    ac_error_t ignored;
    ac_directory_t readers;
    int readers_fd = ac_directory_readers(dir, dir_fd, 0, &readers, &ignored);
    if (readers_fd == AC_E_NOT_FOUND) return AC_OK;
    if (readers_fd < 0) {
        if (err) *err = ignored;
        return readers_fd;
    }
    each_t each = {.readers = &readers,
                   .readers_fd = readers_fd,
                   .visit = visit,
                   .context = context,
                   .strict = strict};
    int rc = ac_os_list(readers_fd, visit_file, &each);
    ac_os_close(readers_fd);
    if (rc < 0) return ac_fail_os(err, rc, readers.path, "cannot list readers");
    if (each.failure.code != 0 && err) *err = each.failure;
    return each.failure.code;
}

int ac_position_each(const ac_directory_t *dir, int dir_fd, ac_position_visit_t visit,
                     void *context, ac_error_t *err) {
    return each_position(dir, dir_fd, 0, visit, context, err);
}

int ac_position_each_sound(const ac_directory_t *dir, int dir_fd, ac_position_visit_t visit,
                           void *context, ac_error_t *err) {
    return each_position(dir, dir_fd, 1, visit, context, err);
}

typedef struct pull {
    const ac_directory_t *readers;
    int readers_fd;
    uint64_t segment, offset;
} pull_t;

static int is_beyond(const pull_t *pull, const ac_slot_t *slot) {
    return slot->segment > pull->segment ||
           (slot->segment == pull->segment && slot->offset > pull->offset);
}

/* Into the older slot, as with every store. */
static int pull_file(int fd, const pull_t *pull) {
    uint8_t bytes[AC_POSITION_SIZE];
    ac_slot_t slot;
    int got = ac_os_read_at(fd, bytes, sizeof bytes, 0);
    if (got < 0) return got;
    int winner = got == AC_POSITION_SIZE ? ac_position_decode(bytes, &slot) : -1;
    if (winner < 0 || !is_beyond(pull, &slot)) return 0;
    slot.segment = pull->segment;
    slot.offset = pull->offset;
    slot.epoch = 0;
    slot.generation++;
    slot.checksum = ac_crc32(&slot, SLOT_CHECKED);
    int rc = ac_os_write_at(fd, &slot, sizeof slot, (uint64_t)(winner ^ 1) * sizeof slot);
    return rc < 0 ? rc : ac_os_sync(fd);
}

static int pull_reader(void *context, const char *file) {
    const pull_t *pull = context;
    struct stat info;
    ac_error_t err;
    if (!is_position(file)) return 0;
    int fd = ac_file_open(pull->readers, pull->readers_fd, file, O_RDWR, &info, &err);
    if (fd == AC_E_NOT_FOUND || fd == AC_E_NOT_A_QUEUE) return 0;
    if (fd < 0) return -err.sys_errno;
    int rc = ac_os_claimed(fd);
    if (rc == 0) rc = pull_file(fd, pull);
    ac_os_close(fd);
    return rc < 0 ? rc : 0;
}

int ac_position_pull_back(const ac_directory_t *dir, int dir_fd, uint64_t segment, uint64_t offset,
                          ac_error_t *err) {
    ac_directory_t readers;
    int readers_fd = ac_directory_readers(dir, dir_fd, 0, &readers, err);
    if (readers_fd < 0) return readers_fd == AC_E_NOT_FOUND ? AC_OK : readers_fd;
    pull_t pull = {&readers, readers_fd, segment, offset};
    int rc = ac_os_list(readers_fd, pull_reader, &pull);
    ac_os_close(readers_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "readers", "cannot put positions back")
                  : AC_OK;
}
