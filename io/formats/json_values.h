/* json_values.h - a check on JSON from untrusted files. */
#ifndef TC_JSON_VALUES_H
#define TC_JSON_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* Local. An upper bound of the number of values in a JSON text: parsed JSON needs many times the memory of
 * its text, so the number is checked first. */
int64_t tc_json_values(const char *text, size_t bytes);

#endif
