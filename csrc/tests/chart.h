/* The place of each record of a queue, as walk.h found it, to look up what a position means. */
#ifndef AC_TEST_CHART_H
#define AC_TEST_CHART_H

#include <stddef.h>
#include <stdint.h>

enum { CHART_SEGMENTS_MAX = 1024, CHART_RECORDS_MAX = 1024 };

typedef struct chart_record {
    uint64_t offset;
    uint64_t seq; /* of padding: the seq of the next record */
    uint64_t timestamp_ns;
    uint32_t length;
    uint32_t type_id;
} chart_record_t;

typedef struct chart_segment {
    uint64_t end; /* after its last record */
    uint32_t first;
    uint32_t count;
    int sealed;
} chart_segment_t;

typedef struct chart {
    uint64_t first_segment; /* of `segments` that follow each other */
    uint32_t segments;
    uint32_t records;
    uint64_t next_seq; /* of the next record to be appended */
    chart_segment_t segment[CHART_SEGMENTS_MAX];
    chart_record_t record[CHART_RECORDS_MAX];
} chart_t;

static inline const chart_segment_t *chart_find(const chart_t *chart, uint64_t id) {
    if (id < chart->first_segment || id - chart->first_segment >= chart->segments) return NULL;
    return &chart->segment[id - chart->first_segment];
}

/* Returns the seq of a record by its number; a record that is not there yet will be the next one. */
static inline uint64_t chart_seq(const chart_t *chart, uint32_t record) {
    return record < chart->records ? chart->record[record].seq : chart->next_seq;
}

/* The seq that a reader gets next at a position; -1: no record begins or ends there. */
static inline int64_t chart_locate(const chart_t *chart, uint64_t id, uint64_t offset) {
    const chart_segment_t *segment = chart_find(chart, id);
    if (!segment) return -1;
    for (uint32_t i = segment->first; i < segment->first + segment->count; i++)
        if (chart->record[i].offset == offset) return (int64_t)chart->record[i].seq;
    return offset == segment->end ? (int64_t)chart_seq(chart, segment->first + segment->count) : -1;
}

#endif
