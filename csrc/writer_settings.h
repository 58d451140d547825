/* The settings that may change while a writer is open: what was asked for last, and how it gets to who goes by it.
 *
 * `settings` of the writer, under its mutex, is what was asked for; the housekeeper goes by it. The appender must not
 * lock anything on its way, so it has a copy in `config`: a change of the settings sets `settings_changed`,
 * and then takes its fast path away; off that, it takes the new ones over. */
#ifndef AC_WRITER_SETTINGS_H
#define AC_WRITER_SETTINGS_H

#include "aiochronicle.h"

void ac_settings_of(const ac_writer_config_t *config, ac_settings_t *out);
int ac_settings_check(const char *path, const ac_settings_t *settings, ac_error_t *err);

#endif
