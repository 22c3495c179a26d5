/* chat_fixture.h - what tests of conversations share: a stored tokenizer with further special tokens. */
#ifndef TC_CHAT_FIXTURE_H
#define TC_CHAT_FIXTURE_H

#include <jansson.h>

#include "src/base/base.h"

/* tokenizer.json here: tests/oracle/tokens/NAME.json of the source's folder, with the strings of `added` behind its tokens. */
static inline void write_tokenizer(const char *top, const char *name, const json_t *added)
{
  char *path = tc_sprintf("%s/tests/oracle/tokens/%s.json", top, name);
  json_t *j = json_load_file(path, 0, NULL), *list = json_object_get(j, "added_tokens"), *x;
  const char *key;
  json_int_t first = 0;
  size_t i;
  json_object_foreach(json_object_get(json_object_get(j, "model"), "vocab"), key, x)
    first = TC_MAX(first, json_integer_value(x) + 1);
  json_array_foreach(list, i, x) first = TC_MAX(first, json_integer_value(json_object_get(x, "id")) + 1);
  json_array_foreach(added, i, x)
    json_array_append_new(list, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", first + (json_int_t)i, "content", x,
                                          "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
  TC_ASSERT(json_dump_file(j, "tokenizer.json", 0) == 0);
  json_decref(j);
  free(path);
}

#endif
