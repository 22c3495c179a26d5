/* json_values.c - counting without parsing: each value but the first follows a bracket or a comma. */
#include "io/formats/json_values.h"

#include <stdbool.h>

int64_t tc_json_values(const char *text, size_t bytes)
{
  int64_t values = 1;
  bool quoted = false;
  for (size_t i = 0; i < bytes; i++) {
    if (quoted && text[i] == '\\') i++;
    else if (text[i] == '"') quoted = !quoted;
    else if (!quoted && (text[i] == ',' || text[i] == '[' || text[i] == '{')) values++;
  }
  return values;
}
