/* Records into columns: one walk that checks each record and copies it to where Arrow wants it. */
#include "cq4_reader.h"
#include "error.h"
#include "reader.h"

#include <string.h>

/* Whole blocks of 64 bytes: the record is padded to them and the column has slack behind it, and a length
 * that is known here costs less than a call that has to look at it. */
static inline void copy_payload(uint8_t *to, const uint8_t *from, uint32_t length) {
    for (uint32_t done = 0; done < length; done += 64)
        memcpy(to + done, from + done, 64);
}

/* Puts a message into the next row: 0 = its payload does not fit. After the last one of a Java queue there may be
 * nothing to read. */
static inline int put(ac_columns_t *columns, const ac_message_t *message, int is_padded) {
    uint64_t row = columns->rows;
    if (columns->payload) {
        uint64_t at = columns->payload_bytes;
        if (AC_UNLIKELY(message->length > columns->payload_bytes_max - at)) {
            columns->payload_bytes_wanted = message->length;
            return 0;
        }
        const uint8_t *payload = message->record + AC_HEADER_SIZE;
        if (is_padded)
            copy_payload(columns->payload + at, payload, message->length);
        else
            memcpy(columns->payload + at, payload, message->length);
        columns->payload_bytes = at + message->length;
        columns->payload_offsets[row + 1] = (int32_t)(at + message->length);
    }
    if (columns->seq) columns->seq[row] = (int64_t)message->seq;
    if (columns->timestamp_ns) columns->timestamp_ns[row] = (int64_t)message->timestamp_ns;
    if (columns->timestamp_us) columns->timestamp_us[row] = (int64_t)(message->timestamp_ns / 1000);
    if (columns->type_id) columns->type_id[row] = message->type_id;
    if (columns->cause_valid) {
        int caused = (message->flags & AC_FLAG_CAUSE) != 0;
        columns->cause_valid[row / 8] |= (uint8_t)(caused << row % 8);
        columns->cause_queue_id[row] = caused ? (int64_t)message->cause_source : 0;
        columns->cause_seq[row] = caused ? (int64_t)message->cause_seq : 0;
    }
    columns->rows = row + 1;
    return 1;
}

/* Asks for what lies a few records further on while this one is being worked on, the processor's own
 * prefetching stops at every page. Of long records the beginning is enough to set it going. */
static inline void look_ahead(const ac_message_t *message, int payload) {
    enum { RECORDS_AHEAD = 8, LINES_MAX = 8 };
    uint64_t size = ac_record_size(message->length);
    uint64_t lines = payload ? size / 64 : 1;
    const uint8_t *ahead = message->record + size * RECORDS_AHEAD;
    for (uint64_t i = 0; i < lines && i < LINES_MAX; i++)
        __builtin_prefetch(ahead + i * 64);
}

/* As far as records simply follow each other in the segment at hand; AC_FILL_END: they do not. */
static int fill_run(ac_reader_t *reader, ac_columns_t *columns) {
    ac_message_t message;
    while (columns->rows < columns->rows_max) {
        if (ac_reader_try_next(reader, &message) != 1) return AC_FILL_END;
        look_ahead(&message, columns->payload != NULL);
        if (AC_UNLIKELY(!put(columns, &message, 1))) {
            ac_reader_unread(reader, &message);
            return AC_FILL_BYTES;
        }
    }
    return AC_FILL_ROWS;
}

static void drop_rows(ac_columns_t *columns, uint64_t rows, uint64_t payload_bytes) {
    for (uint64_t row = rows; columns->cause_valid && row < columns->rows; row++)
        columns->cause_valid[row / 8] &= (uint8_t)~(1u << row % 8);
    columns->rows = rows;
    columns->payload_bytes = payload_bytes;
}

static int fail_cut(ac_reader_t *reader, const ac_columns_t *columns, ac_error_t *err) {
    return columns->rows > 0 ? AC_FILL_TROUBLE : ac_reader_fail_cut(reader, err);
}

/* One record by the long way. AC_FILL_ROWS: it is in a row, go on. */
static int fill_one(ac_reader_t *reader, ac_columns_t *columns, ac_error_t *err) {
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(reader);
    uint64_t rows = columns->rows, payload_bytes = columns->payload_bytes;
    int rc = ac_reader_next(reader, &message, err);
    if (rc == 0) return AC_FILL_END;
    if (rc < 0) return columns->rows > 0 ? AC_FILL_TROUBLE : rc;
    int fits = put(columns, &message, !reader->java);
    if (fits && !ac_map_is_cut(reader->map)) return AC_FILL_ROWS;
    drop_rows(columns, rows, payload_bytes);
    ac_reader_return(reader, &mark, &message);
    return fits ? fail_cut(reader, columns, err) : AC_FILL_BYTES;
}

/* What a run changes in a reader. */
typedef struct before {
    uint64_t offset, expected_seq, last_timestamp_ns, messages, payload_bytes;
    uint32_t continued;
} before_t;

static void go_back(ac_reader_t *reader, const before_t *before) {
    reader->offset = before->offset;
    reader->expected_seq = before->expected_seq;
    reader->last_timestamp_ns = before->last_timestamp_ns;
    reader->messages = before->messages;
    reader->payload_bytes = before->payload_bytes;
    reader->continued = before->continued;
}

/* Pages are touched without asking for them first: if one cannot be had, the SIGBUS handler notes it on the
 * mapping, and that is looked at before the rows are handed out. If so, they were not read. */
static int fill(ac_reader_t *reader, ac_columns_t *columns, ac_error_t *err) {
    for (;;) {
        uint64_t rows = columns->rows, payload_bytes = columns->payload_bytes;
        before_t before = {reader->offset,   reader->expected_seq,  reader->last_timestamp_ns,
                           reader->messages, reader->payload_bytes, reader->continued};
        int outcome = AC_FILL_END;
        if (!reader->java) {
            reader->window_end =
                ac_reader_is_behind_end(reader) ? 0 : ac_reader_sound_limit(reader);
            outcome = fill_run(reader, columns);
        }
        if (reader->map && ac_map_is_cut(reader->map)) {
            drop_rows(columns, rows, payload_bytes);
            go_back(reader, &before);
            return fail_cut(reader, columns, err);
        }
        if (outcome == AC_FILL_END) outcome = fill_one(reader, columns, err);
        if (outcome != AC_FILL_ROWS || columns->rows == columns->rows_max) return outcome;
    }
}

int ac_reader_fill(ac_reader_t *reader, ac_columns_t *columns, ac_error_t *err) {
    enum ac_check check = reader->check;
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    if (columns->payload)
        columns->payload_offsets[columns->rows] = (int32_t)columns->payload_bytes;
    else
        reader->check = AC_CHECK_HEADER;
    rc = fill(reader, columns, err);
    reader->check = check;
    reader->window_end = 0; /* other ways of reading may have to ask for the pages */
    return rc;
}
