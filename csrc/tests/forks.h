/* For tests whose children map files and start threads: ThreadSanitizer has to be asked for the latter, and takes mutexes
 * that a child initialises again for held ones. */
#ifndef AC_TESTS_FORKS_H
#define AC_TESTS_FORKS_H

__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "die_after_fork=0:detect_deadlocks=0";
}

#endif
