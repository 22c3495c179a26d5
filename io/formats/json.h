/* json.h - JSON that somebody else may have made up. */
#ifndef TC_JSON_H
#define TC_JSON_H

#include <stddef.h>
#include <stdint.h>

/* Local. At most how many values a JSON text has: it takes many times its text in memory once it
 * is parsed, so the number is looked at before. */
int64_t tc_json_values(const char *text, size_t bytes);

#endif
