/* Payloads of any content, searched for a field. The first byte chooses the unit, the second the name. */
#include "fuzz.h"

#include "cq4_field.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"t", "at", "transactTime", "5"};
    static const uint64_t units[] = {1, 1000, 1000000, 1000000000};
    if (size < 2) return 0;
    ac_cq4_field_t field = {.unit_ns = units[data[0] % 4]};
    uint64_t found;
    FUZZ_CHECK(ac_cq4_field_name(&field, names[data[1] % 4]) == NULL);
    uint8_t *payload = malloc(size - 2 ? size - 2 : 1);
    memcpy(payload, data + 2, size - 2);
    if (ac_cq4_field_time(&field, payload, (uint32_t)(size - 2), &found) == NULL)
        FUZZ_CHECK(found <= INT64_MAX);
    char *text = calloc(1, size);
    memcpy(text, data + 2, size - 2);
    if (ac_cq4_parse_time(text, &found)) FUZZ_CHECK(found <= INT64_MAX);
    char narrow[16], wide[16];
    if (ac_cq4_to_latin1(text, narrow, sizeof narrow))
        ac_cq4_from_latin1(narrow, wide, sizeof wide);
    free(text);
    free(payload);
    return 0;
}
