/* For tests whose children map files and start threads: ThreadSanitizer needs an option for threads after a fork, and
 * it takes mutexes that a child initialises again for held ones. */
#ifndef AC_TESTS_FORKS_H
#define AC_TESTS_FORKS_H

__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "die_after_fork=0:detect_deadlocks=0";
}

#endif
