/* Accessors for shared memory. The ordering is in the name; nothing else touches a shared word. */
#ifndef AC_ATOMICS_H
#define AC_ATOMICS_H

#include <stdint.h>

#define AC_LIKELY(x) __builtin_expect(!!(x), 1)
#define AC_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define AC_ACCESSORS(bits)                                                                         \
    static inline uint##bits##_t ac_load_relaxed_u##bits(const uint##bits##_t *p) {                \
        return __atomic_load_n(p, __ATOMIC_RELAXED);                                               \
    }                                                                                              \
    static inline uint##bits##_t ac_load_acquire_u##bits(const uint##bits##_t *p) {                \
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);                                               \
    }                                                                                              \
    static inline uint##bits##_t ac_load_seq_cst_u##bits(const uint##bits##_t *p) {                \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    static inline void ac_store_relaxed_u##bits(uint##bits##_t *p, uint##bits##_t v) {             \
        __atomic_store_n(p, v, __ATOMIC_RELAXED);                                                  \
    }                                                                                              \
    static inline void ac_store_release_u##bits(uint##bits##_t *p, uint##bits##_t v) {             \
        __atomic_store_n(p, v, __ATOMIC_RELEASE);                                                  \
    }                                                                                              \
    static inline uint##bits##_t ac_fetch_add_relaxed_u##bits(uint##bits##_t *p,                   \
                                                              uint##bits##_t v) {                  \
        return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    static inline uint##bits##_t ac_fetch_add_seq_cst_u##bits(uint##bits##_t *p,                   \
                                                              uint##bits##_t v) {                  \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    static inline uint##bits##_t ac_exchange_seq_cst_u##bits(uint##bits##_t *p,                    \
                                                             uint##bits##_t v) {                   \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }

AC_ACCESSORS(32)
AC_ACCESSORS(64)
#undef AC_ACCESSORS

/* A counter that one thread writes and any thread may read: no locked instruction needed. */
static inline void ac_count_u64(uint64_t *counter, uint64_t more) {
    ac_store_relaxed_u64(counter, *counter + more);
}

static inline void ac_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
