#include "cq4_ends.h"

#include "cq4_create.h"
#include "cq4_grow.h"
#include "error.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int has_end(const ac_cq4_queue_t *queue, uint32_t number) {
    ac_cq4_cycle_t cycle;
    ac_error_t err;
    int rc = ac_cq4_queue_open_cycle(queue, number, &cycle, &err);
    if (rc == AC_E_NOT_FOUND) return err.sys_errno != EAGAIN; /* removed; or never completed */
    if (rc != AC_OK) return 1;
    rc = ac_cq4_cycle_end(&cycle).kind == AC_CQ4_END;
    ac_cq4_cycle_close(&cycle);
    return rc;
}

int ac_cq4_ends_find(ac_cq4_queue_t *queue, uint32_t limit, uint64_t up_to, ac_cq4_ends_t *out,
                     ac_error_t *err) {
    uint32_t *cycles;
    size_t count, kept = 0;
    int is_unbroken = 0;
    *out = (ac_cq4_ends_t){.before = -1, .newest = -1, .oldest = -1};
    int rc = ac_cq4_queue_cycles(queue, &cycles, &count, err);
    if (rc < 0 || count == 0) {
        free(cycles);
        return rc;
    }
    out->oldest = cycles[0];
    out->newest = cycles[count - 1];
    for (size_t i = count; i-- > 0;) {
        uint32_t number = cycles[i];
        if (number >= limit) continue;
        if (out->before < 0) out->before = number;
        if (number <= up_to && is_unbroken) break;
        is_unbroken = has_end(queue, number);
        /* From the end of the list, whose cycles have all been checked. */
        if (!is_unbroken) cycles[count - ++kept] = number;
    }
    memmove(cycles, cycles + count - kept, kept * sizeof *cycles);
    out->missing = cycles;
    out->count = kept;
    return AC_OK;
}

static int write_end(ac_cq4_cycle_t *cycle, ac_error_t *err) {
    static const uint8_t text[4] = {0xC3, 'E', 'O', 'F'};
    uint64_t written = ac_cq4_cycle_write_position(cycle);
    ac_cq4_place_t end = ac_cq4_cycle_end(cycle);
    if (written >= end.offset) { /* what remains after the damage stays readable */
        ac_log(AC_LOG_WARNING, cycle->dir->path,
               "%s: messages at its end were lost, so it gets no end mark: Java stops there",
               cycle->name);
        return 0;
    }
    if (end.kind == AC_CQ4_BEYOND || end.offset + 8 > cycle->map->size) {
        int rc = ac_cq4_grow(cycle, end.offset, err);
        if (rc != AC_OK) return rc;
        end = ac_cq4_cycle_end(cycle);
    }
    if (end.kind != AC_CQ4_NONE && end.kind != AC_CQ4_BUSY) return 0;
    uint8_t *at = cycle->map->base + end.offset;
    int rc = ac_os_populate(cycle->map->base, end.offset, 8, 1);
    if (rc < 0)
        return ac_fail_os_in(err, rc == -EFAULT ? -ENOSPC : rc, cycle->dir->path, cycle->name,
                             "cannot write the end mark of");
    ac_store_release_u32((uint32_t *)(void *)at, AC_CQ4_END_OF_FILE);
    memcpy(at + 4, text, sizeof text);
    return 1;
}

int ac_cq4_ends_write(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int rc = ac_cq4_grow_open(queue, dir_fd, number, &cycle, err);
    if (rc == AC_E_NOT_FOUND && err->sys_errno == EAGAIN) {
        rc = ac_cq4_create_complete(queue, dir_fd, number, err);
        if (rc == AC_OK) rc = ac_cq4_grow_open(queue, dir_fd, number, &cycle, err);
    }
    if (rc == AC_E_NOT_FOUND) return 0;
    if (rc != AC_OK) {
        ac_log_error(AC_LOG_WARNING, err, "cannot write the end mark of a file: Java stops there");
        return 0;
    }
    rc = write_end(&cycle, err);
    ac_cq4_cycle_close(&cycle);
    return rc;
}
