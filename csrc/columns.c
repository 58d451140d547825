/* Records into columns: one walk that checks each record and copies it to its place in Arrow's layout. */
#include "cq4_reader.h"
#include "error.h"
#include "reader.h"
#include "trailer.h"

#include <string.h>

/* Copies whole blocks of 64 bytes: the record is padded to them and the column has slack after it, and a
 * length that is known here costs less than a call that must examine it. */
static inline void copy_payload(uint8_t *to, const uint8_t *from, uint32_t length) {
    for (uint32_t done = 0; done < length; done += 64)
        memcpy(to + done, from + done, 64);
}

/* Rows without a trailer end where the previous row ends. Only few rows have one, so this is done when it
 * is needed. */
static void fill_trailer_offsets(ac_columns_t *columns, uint64_t rows) {
    while (columns->trailer_rows < rows)
        columns->trailer_offsets[++columns->trailer_rows] = (int32_t)columns->trailer_bytes;
}

static void drop_trailers(ac_columns_t *columns, uint64_t rows) {
    if (!columns->trailers || columns->trailer_rows <= rows) return;
    columns->trailer_rows = rows;
    columns->trailer_bytes = (uint64_t)columns->trailer_offsets[rows];
}

/* Puts the trailer of a message into the next row: 0 = it does not fit. */
static int put_trailer(ac_columns_t *columns, const ac_message_t *message) {
    uint32_t size = message->trailer;
    if (!columns->trailers) return 1;
    if (size > columns->trailer_bytes_max - columns->trailer_bytes) {
        columns->trailer_bytes_wanted = size;
        return 0;
    }
    const uint8_t *end = message->record + AC_HEADER_SIZE + message->length;
    fill_trailer_offsets(columns, columns->rows);
    memcpy(columns->trailers + columns->trailer_bytes, end - size, size);
    columns->trailer_bytes += size;
    fill_trailer_offsets(columns, columns->rows + 1);
    return 1;
}

/* Puts a message into the next row: 0 = its payload or trailer does not fit. After the last message of a
 * Java queue there may be nothing readable. */
static inline int put(ac_columns_t *columns, const ac_message_t *message, int is_padded) {
    uint64_t row = columns->rows;
    uint32_t length = message->length;
    if (AC_UNLIKELY(message->flags & AC_FLAG_TRAILER)) {
        if (!put_trailer(columns, message)) return 0;
        length -= message->trailer;
    }
    if (columns->payload) {
        uint64_t at = columns->payload_bytes;
        if (AC_UNLIKELY(length > columns->payload_bytes_max - at)) {
            columns->payload_bytes_wanted = length;
            drop_trailers(columns, row);
            return 0;
        }
        const uint8_t *payload = message->record + AC_HEADER_SIZE;
        if (is_padded)
            copy_payload(columns->payload + at, payload, length);
        else
            memcpy(columns->payload + at, payload, length);
        columns->payload_bytes = at + length;
        columns->payload_offsets[row + 1] = (int32_t)(at + length);
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

/* Prefetches what lies a few records further on while this one is processed; the processor's own
 * prefetching stops at every page. Of long records the beginning is enough to start it. */
static inline void look_ahead(const ac_message_t *message, int payload) {
    enum { RECORDS_AHEAD = 8, LINES_MAX = 8 };
    uint64_t size = ac_record_size(message->length);
    uint64_t lines = payload ? size / 64 : 1;
    const uint8_t *ahead = message->record + size * RECORDS_AHEAD;
    for (uint64_t i = 0; i < lines && i < LINES_MAX; i++)
        __builtin_prefetch(ahead + i * 64);
}

static inline int is_wanted(const ac_columns_t *columns, uint16_t type_id) {
    return columns->types[type_id / 8] >> type_id % 8 & 1;
}

static inline void count(ac_columns_t *columns, const ac_message_t *message) {
    if (AC_UNLIKELY(columns->messages == 0)) columns->first_seq = message->seq;
    columns->end_seq = message->seq + 1;
    columns->messages++;
}

/* How messages are checked once it is known that their type is wanted. */
typedef struct demand {
    enum ac_check check;
    int bytes; /* payload or trailer */
} demand_t;

/* The checks and lookups that a reader which reads only headers leaves out. */
static inline int is_sound(const ac_reader_t *reader, ac_message_t *message,
                           const demand_t *demand) {
    const uint8_t *payload = message->record + AC_HEADER_SIZE;
    if (reader->java || !demand->bytes) return 1;
    if (demand->check == AC_CHECK_PAYLOAD &&
        AC_UNLIKELY(ac_crc32(payload, message->length) != ac_record_load_checksum(message->record)))
        return 0;
    if (AC_LIKELY(!(message->flags & AC_FLAG_TRAILER))) return 1;
    message->trailer = ac_trailer_find(payload, message->length);
    return message->trailer > 0;
}

/* While records simply follow each other in the current segment; AC_FILL_END: they do not. */
static int fill_run(ac_reader_t *reader, ac_columns_t *columns) {
    ac_message_t message;
    while (columns->rows < columns->rows_max) {
        if (ac_reader_try_next(reader, &message) != 1) return AC_FILL_END;
        look_ahead(&message, columns->payload != NULL);
        if (AC_UNLIKELY(!put(columns, &message, 1))) {
            ac_reader_unread(reader, &message);
            return AC_FILL_BYTES;
        }
        count(columns, &message);
    }
    return AC_FILL_ROWS;
}

/* The same for messages of some types. */
static int fill_run_of_types(ac_reader_t *reader, ac_columns_t *columns, const demand_t *demand) {
    ac_message_t message;
    while (columns->rows < columns->rows_max) {
        if (ac_reader_try_next(reader, &message) != 1) return AC_FILL_END;
        if (is_wanted(columns, message.type_id)) {
            int sound = is_sound(reader, &message, demand);
            if (AC_UNLIKELY(!sound || !put(columns, &message, 1))) {
                ac_reader_unread(reader, &message);
                return sound ? AC_FILL_BYTES : AC_FILL_END;
            }
        }
        count(columns, &message);
    }
    return AC_FILL_ROWS;
}

/* How far columns are filled, and what that changes in a reader. */
typedef struct before {
    uint64_t rows, bytes, counted, first_seq, end_seq;
    uint64_t offset, expected_seq, last_timestamp_ns, messages, payload_bytes;
    uint32_t continued;
} before_t;

static before_t state_of(const ac_reader_t *reader, const ac_columns_t *columns) {
    return (before_t){.rows = columns->rows,
                      .bytes = columns->payload_bytes,
                      .counted = columns->messages,
                      .first_seq = columns->first_seq,
                      .end_seq = columns->end_seq,
                      .offset = reader->offset,
                      .expected_seq = reader->expected_seq,
                      .last_timestamp_ns = reader->last_timestamp_ns,
                      .messages = reader->messages,
                      .payload_bytes = reader->payload_bytes,
                      .continued = reader->continued};
}

static void drop_rows(ac_columns_t *columns, const before_t *before) {
    for (uint64_t row = before->rows; columns->cause_valid && row < columns->rows; row++)
        columns->cause_valid[row / 8] &= (uint8_t)~(1u << row % 8);
    columns->rows = before->rows;
    columns->payload_bytes = before->bytes;
    columns->messages = before->counted;
    columns->first_seq = before->first_seq;
    columns->end_seq = before->end_seq;
    drop_trailers(columns, before->rows);
}

static void go_back(ac_reader_t *reader, const before_t *before) {
    reader->offset = before->offset;
    reader->expected_seq = before->expected_seq;
    reader->last_timestamp_ns = before->last_timestamp_ns;
    reader->messages = before->messages;
    reader->payload_bytes = before->payload_bytes;
    reader->continued = before->continued;
}

static int fail_cut(ac_reader_t *reader, const ac_columns_t *columns, ac_error_t *err) {
    return columns->messages > 0 ? AC_FILL_TROUBLE : ac_reader_fail_cut(reader, err);
}

/* The next message, checked as much as its type requires. */
static int next_of_types(ac_reader_t *reader, const ac_columns_t *columns, const demand_t *demand,
                         ac_message_t *out, ac_error_t *err) {
    ac_mark_t mark = ac_reader_mark(reader);
    int rc = ac_reader_next(reader, out, err);
    if (rc != 1 || !is_wanted(columns, out->type_id) || is_sound(reader, out, demand)) return rc;
    ac_reader_return(reader, &mark, out);
    reader->check = demand->check;
    reader->ignores_trailers = 0;
    rc = ac_reader_next(reader, out, err); /* which reports the fault, or skips it */
    reader->check = AC_CHECK_HEADER;
    reader->ignores_trailers = 1;
    return rc;
}

/* One record by the slow path. AC_FILL_ROWS: it is in a row, or of another type; continue. */
static int fill_one(ac_reader_t *reader, ac_columns_t *columns, const demand_t *demand,
                    ac_error_t *err) {
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(reader);
    before_t before = state_of(reader, columns);
    int rc = columns->types ? next_of_types(reader, columns, demand, &message, err)
                            : ac_reader_next(reader, &message, err);
    if (rc == 0) return AC_FILL_END;
    if (rc < 0) return columns->messages > 0 ? AC_FILL_TROUBLE : rc;
    int outcome = AC_FILL_ROWS;
    if (columns->ends_at_gap && columns->messages > 0 && message.seq != columns->end_seq)
        outcome = AC_FILL_GAP;
    else if (columns->types && !is_wanted(columns, message.type_id))
        count(columns, &message);
    else if (put(columns, &message, !reader->java))
        count(columns, &message);
    else
        outcome = AC_FILL_BYTES;
    int is_cut = outcome != AC_FILL_BYTES && ac_map_is_cut(reader->map);
    if (outcome == AC_FILL_ROWS && !is_cut) return AC_FILL_ROWS;
    drop_rows(columns, &before);
    ac_reader_return(reader, &mark, &message);
    return is_cut ? fail_cut(reader, columns, err) : outcome;
}

/* Pages are touched without a prior check: if one cannot be read, the SIGBUS handler marks the mapping, and
 * that mark is checked before the rows are returned. If it is set, they count as not read. */
static int fill(ac_reader_t *reader, ac_columns_t *columns, const demand_t *demand,
                ac_error_t *err) {
    for (;;) {
        before_t before = state_of(reader, columns);
        int outcome = AC_FILL_END;
        if (!reader->java) {
            reader->window_end = ac_reader_is_behind_end(reader) ? 0 : ac_reader_fast_limit(reader);
            outcome = columns->types ? fill_run_of_types(reader, columns, demand)
                                     : fill_run(reader, columns);
        }
        if (reader->map && ac_map_is_cut(reader->map)) {
            drop_rows(columns, &before);
            go_back(reader, &before);
            return fail_cut(reader, columns, err);
        }
        if (outcome == AC_FILL_END) outcome = fill_one(reader, columns, demand, err);
        if (outcome != AC_FILL_ROWS || columns->rows == columns->rows_max) return outcome;
    }
}

int ac_reader_fill(ac_reader_t *reader, ac_columns_t *columns, ac_error_t *err) {
    demand_t demand = {reader->check, columns->payload || columns->trailers};
    int rc = ac_reader_check_open(reader, err);
    if (rc != AC_OK) return rc;
    columns->payload_bytes_wanted = columns->trailer_bytes_wanted = 0;
    if (columns->payload) columns->payload_offsets[columns->rows] = (int32_t)columns->payload_bytes;
    if (columns->trailers) columns->trailer_offsets[0] = 0;
    if (!demand.bytes || columns->types) {
        reader->check = AC_CHECK_HEADER;
        reader->ignores_trailers = 1;
    }
    rc = fill(reader, columns, &demand, err);
    if (columns->trailers) fill_trailer_offsets(columns, columns->rows);
    reader->check = demand.check;
    reader->ignores_trailers = 0;
    reader->window_end = 0; /* other ways of reading may have to check the pages */
    return rc;
}

/* ---- trailers ---- */

/* Appends bytes to a column, whose last offset so far is at `offsets[count]`. */
static void add_bytes(int32_t *offsets, uint8_t *bytes, uint64_t count, const ac_slice_t *more) {
    int32_t at = offsets[count];
    if (more->length > 0) memcpy(bytes + at, more->data, more->length);
    offsets[count + 1] = at + (int32_t)more->length;
}

/* Adds the headers of one row to the `count` headers of the rows before it. Returns the new count, or an
 * error. */
static int64_t add_headers(ac_trailer_columns_t *out, ac_trailer_t *trailer, int64_t count) {
    ac_header_t header;
    int rc;
    while ((rc = ac_trailer_next(trailer, &header)) == 1) {
        add_bytes(out->name_offsets, out->names, (uint64_t)count, &header.name);
        add_bytes(out->value_offsets, out->values, (uint64_t)count, &header.value);
        count++;
    }
    return rc < 0 ? AC_E_ARGUMENT : count;
}

int64_t ac_trailer_columns(const uint8_t *trailers, const int32_t *offsets, uint64_t rows,
                           ac_trailer_columns_t *out) {
    int64_t headers = 0;
    out->key_offsets[0] = out->header_offsets[0] = 0;
    out->name_offsets[0] = out->value_offsets[0] = 0;
    for (uint64_t row = 0; row < rows; row++) {
        ac_trailer_t trailer = {.count = 0};
        int32_t size = offsets[row + 1] - offsets[row];
        if (size > 0 && !ac_trailer_open(&trailer, trailers + offsets[row], (uint32_t)size))
            return AC_E_ARGUMENT;
        if (trailer.key.data) out->key_valid[row / 8] |= (uint8_t)(1u << row % 8);
        add_bytes(out->key_offsets, out->keys, row, &trailer.key);
        headers = add_headers(out, &trailer, headers);
        if (headers < 0) return headers;
        out->header_offsets[row + 1] = (int32_t)headers;
    }
    return headers;
}
