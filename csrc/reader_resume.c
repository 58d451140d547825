/* Whether a committed position is still the place where its reader left it.
 *
 * A position is a segment and an offset. If the queue was put back to an older state without the reader noticing, and
 * written to since, the position may be that of other messages. So a commit stores the epoch of the message before the
 * position, or of the one at it: a later writer has another epoch. */
#include "error.h"
#include "os.h"
#include "reader.h"

#include <stdlib.h>

static uint32_t epoch_of(const ac_message_t *message) {
    return ((const ac_record_t *)(const void *)message->record)->epoch;
}

/* The epoch of the record at this offset of the mapped segment; 0 if there is none of ours. */
static uint32_t epoch_at(const ac_reader_t *reader, uint64_t offset, uint64_t *end) {
    ac_message_t message;
    const char *why;
    if (ac_record_inspect(reader->base, reader->size, offset, reader->segment, AC_CHECK_HEADER,
                          &message, &why) != AC_RECORD_GOOD)
        return 0;
    *end = offset + ac_record_size(message.length);
    return message.flags & AC_FLAG_OURS ? epoch_of(&message) : 0;
}

uint32_t ac_reader_epoch_beside(const ac_reader_t *reader, uint64_t segment, uint64_t offset) {
    uint64_t end;
    if (!reader->map || reader->segment != segment) return 0;
    if (reader->last_offset >= AC_SEGMENT_DATA && reader->last_offset < offset) {
        uint32_t epoch = epoch_at(reader, reader->last_offset, &end);
        if (epoch != 0 && end == offset) return epoch;
    }
    return epoch_at(reader, offset, &end);
}

/* Walks to the record that ends at the offset. Its epoch; 0 if there is none. *changed is where the first
 * record of a later epoch than `known` begins, or the offset. */
static uint32_t find_epoch_before(const ac_reader_t *reader, uint64_t offset, uint32_t known,
                                  uint64_t *changed) {
    uint64_t at = AC_SEGMENT_DATA, end = 0;
    uint32_t epoch = 0;
    *changed = offset;
    while (at < offset) {
        epoch = epoch_at(reader, at, &end);
        if (end <= at) return 0; /* damage: unknown */
        if (epoch > known && *changed == offset) *changed = at;
        at = end;
    }
    return at == offset ? epoch : 0;
}

/* The writer's note of its newest record saves the walk to it. */
static int ends_with(const ac_reader_t *reader, uint64_t offset, uint32_t epoch) {
    uint32_t segment;
    uint64_t end, last = ac_load_acquire_u64(&reader->control->last_record), ignored;
    if (!ac_control_position(reader->control, &segment, &ignored) || segment != reader->segment ||
        last < AC_SEGMENT_DATA || last >= offset || last % AC_ALIGNMENT != 0)
        return 0;
    return epoch_at(reader, last, &end) == epoch && end == offset;
}

int ac_reader_confirm_epoch(ac_reader_t *reader, uint32_t epoch, ac_error_t *err) {
    uint64_t end, changed, offset = reader->offset;
    if (epoch == 0 || !reader->map) return AC_OK;
    uint32_t at = epoch_at(reader, offset, &end);
    if (at == epoch || ends_with(reader, offset, epoch)) return AC_OK;
    changed = offset;
    if (at == 0 || at > epoch) { /* a later writer continued right here, or other messages precede
                                    it */
        if (offset == AC_SEGMENT_DATA) return AC_OK;
        uint32_t before = find_epoch_before(reader, offset, epoch, &changed);
        if (before == epoch || before == 0) return AC_OK;
    }
    return ac_reader_position_lost(reader, reader->segment, offset, reader->segment, changed,
                                   "other messages stand at the position than those it was "
                                   "committed for: the queue was put back "
                                   "to an older state",
                                   err);
}
