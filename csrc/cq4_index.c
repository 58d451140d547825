#include "cq4_index.h"

#include "cq4_encode.h"

#include <string.h>

enum { PAGE_HEAD_MAX = 64, PADDING = 3 };

static uint64_t *number_at(const ac_cq4_cycle_t *cycle, uint64_t offset) {
    return (uint64_t *)(void *)(cycle->map->base + offset);
}

static void store_max(uint64_t *number, uint64_t value) {
    if (ac_load_relaxed_u64(number) < value) ac_store_release_u64(number, value);
}

static uint64_t page_of(const ac_cq4_cycle_t *cycle, uint64_t seq) {
    return seq / cycle->roll.index_spacing / cycle->roll.index_count;
}

/* Whether index2index is there, and has a place for the page. */
static int has_place(ac_cq4_cycle_t *cycle, uint64_t page) {
    return ac_cq4_cycle_load_page(cycle, page) || /* which looks for index2index */
           (cycle->index2index.at % sizeof(uint64_t) == 0 && page < cycle->index2index.capacity);
}

uint64_t ac_cq4_index_page_bytes(ac_cq4_cycle_t *cycle, uint64_t seq) {
    uint64_t page = page_of(cycle, seq);
    if (ac_cq4_cycle_load_page(cycle, page) || !has_place(cycle, page)) return 0;
    return PAGE_HEAD_MAX + (uint64_t)cycle->roll.index_count * sizeof(uint64_t) + sizeof(uint64_t);
}

/* Returns the offset after it. */
static uint64_t add_page(ac_cq4_cycle_t *cycle, uint64_t page, uint64_t offset) {
    uint8_t bytes[PAGE_HEAD_MAX], *base = cycle->map->base;
    uint64_t count = cycle->roll.index_count;
    ac_cq4_builder_t head = {.base = bytes, .size = sizeof bytes, .offset = offset};
    ac_cq4_put(&head, &(uint32_t){0}, sizeof(uint32_t));
    ac_cq4_put_event(&head, "index");
    uint64_t numbers = ac_cq4_put_array(&head, count, 0, sizeof(uint64_t));
    uint64_t end = numbers + count * sizeof(uint64_t);
    uint64_t zeroed =
        end + sizeof(uint64_t) < cycle->map->size ? end + sizeof(uint64_t) : cycle->map->size;
    if (end > cycle->map->size || ac_cq4_load_header(base + offset) != 0) return offset;
    memcpy(base + offset + AC_CQ4_HEADER_BYTES, bytes + AC_CQ4_HEADER_BYTES,
           head.at - AC_CQ4_HEADER_BYTES);
    memset(base + numbers, 0, zeroed - numbers);
    if (ac_map_is_cut(cycle->map)) return offset;
    ac_store_release_u32((uint32_t *)(void *)(base + offset),
                         AC_CQ4_META_BIT | (uint32_t)(end - offset - AC_CQ4_HEADER_BYTES));
    ac_store_release_u64(number_at(cycle, cycle->index2index.at + page * sizeof(uint64_t)), offset);
    store_max(number_at(cycle, cycle->index2index.at - sizeof(uint64_t)), page + 1);
    return (end + PADDING) & ~(uint64_t)PADDING;
}

uint64_t ac_cq4_index_add(ac_cq4_cycle_t *cycle, uint64_t seq, uint64_t position,
                          uint64_t free_offset) {
    uint64_t page = page_of(cycle, seq), *last_index = number_at(cycle, cycle->last_index_at);
    if (seq < ac_load_relaxed_u64(last_index)) return free_offset;
    if (!ac_cq4_cycle_load_page(cycle, page) && has_place(cycle, page))
        free_offset = add_page(cycle, page, free_offset);
    uint64_t slot = seq / cycle->roll.index_spacing % cycle->roll.index_count;
    /* A page at an odd place, or a short one, was made by no program we know: it stays as it is. */
    if (!ac_cq4_cycle_load_page(cycle, page) || cycle->page.at % sizeof(uint64_t) != 0 ||
        slot >= cycle->page.capacity)
        return free_offset;
    ac_store_release_u64(number_at(cycle, cycle->page.at + slot * sizeof(uint64_t)), position);
    store_max(number_at(cycle, cycle->page.at - sizeof(uint64_t)), slot + 1);
    ac_store_release_u64(last_index, seq + cycle->roll.index_spacing);
    return free_offset;
}
