/* The settings that may change while a writer is open, and how a change reaches its users.
 *
 * `settings` of the writer, under its mutex, is what was requested last; the housekeeper uses it. The appender must not
 * take a lock on its fast path, so it has a copy in `config`: a change of the settings sets `settings_changed`, and then
 * disables the fast path; on the slow path, the appender adopts the new ones. */
#ifndef AC_WRITER_SETTINGS_H
#define AC_WRITER_SETTINGS_H

#include "aiochronicle.h"

void ac_settings_of(const ac_writer_config_t *config, ac_settings_t *out);
int ac_settings_check(const char *path, const ac_settings_t *settings, ac_error_t *err);

#endif
