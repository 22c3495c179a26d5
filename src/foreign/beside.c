/* beside.c - files of a Hugging Face folder that a checkpoint takes along as they are: the chat template, settings of
 * generate(), and what its tokenizer says beside tokenizer.json.
 *
 * Nothing in Tercio reads them. In a checkpoint they are one file, a JSON object of their names and texts; names that are not
 * in the list are not written. */
#include "src/foreign/impl.h"

#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"

enum { MOST_BYTES = 16 << 20 };

static const char *const names[TC_BESIDE] = { "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
                                              "chat_template.jinja" };

void tc_special_add(struct tc_special *s, const char *name, char *text, int64_t bytes)
{
  s->file[s->n_files++] = (struct tc_beside){ name, text, bytes };
}

bool tc_beside_is(const char *name)
{
  for (int i = 0; i < TC_BESIDE; i++)
    if (strcmp(name, names[i]) == 0) return true;
  return false;
}

/* The text of a file as JSON; those that should be JSON must be. TC_EUSER. */
static int read_beside(json_t **text, const char *path, struct tc_err *err)
{
  char *s;
  size_t bytes;
  json_t *o = NULL;
  const int rc = tc_ends_with(path, ".json") ? tc_read_loose_json(&o, path, "file", MOST_BYTES, err) : 0;
  json_decref(o);
  TC_TRY(rc);
  TC_TRY(tc_read_text(&s, &bytes, path, "file", MOST_BYTES, err));
  *text = memchr(s, 0, bytes) ? NULL : json_stringn(s, bytes);
  free(s);
  return *text ? 0 : tc_fail(err, TC_EUSER, "%s is not UTF-8, or has a zero byte", path);
}

char *tc_beside_take(const char *dir)
{
  json_t *all = json_object(), *text = NULL;
  for (int i = 0; i < TC_BESIDE; i++) {
    char *path = tc_sprintf("%s/%s", dir, names[i]);
    struct tc_err why;
    if (tc_is_there(path)) {
      if (read_beside(&text, path, &why) == 0) json_object_set_new(all, names[i], text);
      else tc_warn("%s: the checkpoint goes without it", why.text);
    }
    free(path);
  }
  char *s = json_object_size(all) ? json_dumps(all, JSON_INDENT(1)) : NULL;
  json_decref(all);
  return s;
}

int tc_beside_put(struct tc_special *s, const struct tc_ckpt *c, struct tc_err *err)
{
  char *text;
  int64_t bytes;
  TC_TRY(tc_ckpt_attached(c, TC_BESIDE_FILE, &text, &bytes, err));
  json_t *all = text ? json_loadb(text, (size_t)bytes, 0, NULL) : NULL;
  if (text && !all) tc_warn("%s/" TC_BESIDE_FILE " is not JSON: the files in it are left out", tc_ckpt_path(c));
  for (int i = 0; i < TC_BESIDE; i++) {
    const json_t *x = json_object_get(all, names[i]);
    if (i > 0 && !s->tokenizer) continue;        /* but for the first they are of a tokenizer, which is not there */
    if (json_is_string(x)) tc_special_add(s, names[i], tc_strdup(json_string_value(x)), (int64_t)json_string_length(x));
  }
  s->beside = json_object_size(all) > 0;
  json_decref(all);
  free(text);
  return 0;
}
