/* left_out.c - what a Hugging Face folder says and a checkpoint does not keep.
 *
 * A checkpoint keeps the model, tokenizer.json and the files of beside.c. Of every other member of config.json and every other
 * file an import says that it is left out: the table lists what is not, and what it does not list is. */
#include "src/foreign/impl.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"

enum { MOST_BYTES = 16 << 20 };

enum keep { READ, WRITTEN, NOTHING, LEFT, BEGIN_ID, END_ID };      /* how a member is kept: hf_members.def */

#define CONFIG "config.json"
#define NO_EFFECT "no effect"
static const struct { const char *member; enum keep keep; } members[] = {
#define MEMBER(name, keep) { name, keep },
#include "src/model/hf_members.def"
};

/* Files that are read, or of the same weights in another form. */
static const char *const read_files[] = { CONFIG, "tokenizer.json", "*.safetensors", "model.safetensors.index.json",
                                          "pytorch_model*", ".*", "README*", "LICENSE*" };

/* Whether a value says nothing: null, false, or nothing in it. */
static bool is_empty(const json_t *v)
{
  return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !*json_string_value(v))
         || (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

/* How a member with this value is kept; an id is WRITTEN or LEFT. */
static enum keep fate(const char *member, const json_t *v, struct tc_hf_ids ids)
{
  for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
    if (strcmp(members[i].member, member)) continue;
    const enum keep k = members[i].keep;
    if (k != BEGIN_ID && k != END_ID) return k;
    return json_is_integer(v) && json_integer_value(v) == (k == BEGIN_ID ? ids.begin : ids.end) ? WRITTEN : LEFT;
  }
  return LEFT;
}

/* Adds to `left` what is left out of config.json, short values with the member; to `harmless` what has no effect. */
static void find_members(json_t *left, json_t *harmless, const char *dir, struct tc_hf_ids ids)
{
  enum { MOST_SHOWN = 60 };
  char *path = tc_sprintf("%s/" CONFIG, dir);
  const char *member;
  json_t *o = NULL, *v;
  struct tc_err why;
  if (tc_is_there(path) && tc_read_loose_json(&o, path, CONFIG, MOST_BYTES, &why) < 0)
    json_array_append_new(left, json_string("all of it, as it can't be read"));
  json_object_foreach(o, member, v) {
    const enum keep keep = is_empty(v) ? READ : fate(member, v, ids);
    if (keep == NOTHING) json_array_append_new(harmless, json_string(member));
    if (keep != LEFT) continue;
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    const bool is_short = text && strlen(text) <= MOST_SHOWN && !json_is_string(v);
    json_t *entry = is_short ? json_sprintf("%s = %s", member, text) : json_string(member);
    json_array_append_new(left, entry);
    free(text);
  }
  json_decref(o);
  free(path);
}

static bool is_read(const char *name)
{
  if (tc_beside_is(name)) return true;
  for (size_t i = 0; i < sizeof read_files / sizeof *read_files; i++)
    if (fnmatch(read_files[i], name, 0) == 0) return true;
  return false;
}

/* The other files, in the order of their names. */
static void find_files(json_t *list, const char *dir)
{
  struct tc_err why;
  char **name = NULL;
  const int n = tc_folder_scan(dir, "", &name, &why);
  if (n > 0) qsort(name, (size_t)n, sizeof *name, tc_order_text);
  for (int i = 0; i < n; i++)
    if (!is_read(name[i])) json_array_append_new(list, tc_text_json(name[i]));
  if (n >= 0) tc_names_free(name, n);
}

json_t *tc_left_out(const char *dir, struct tc_hf_ids ids)
{
  json_t *members_left = json_array(), *files = json_array(), *harmless = json_array();
  find_members(members_left, harmless, dir, ids);
  find_files(files, dir);
  json_t *all = json_object(), *lists[] = { members_left, files, harmless };
  static const char *const name[] = { CONFIG, "files", NO_EFFECT };
  for (int i = 0; i < 3; i++) {
    if (json_array_size(lists[i])) json_object_set(all, name[i], lists[i]);
    json_decref(lists[i]);
  }
  return all;
}

void tc_left_out_say(const char *dir, const json_t *all)
{
  const char *file;
  json_t *list, *entry;
  size_t i;
  json_object_foreach((json_t *)(uintptr_t)all, file, list) {
    char text[1000] = "";
    if (strcmp(file, NO_EFFECT) == 0) continue;
    json_array_foreach(list, i, entry)
      tc_text_add(text, sizeof text, "%s%.200s", i ? ", " : "", json_string_value(entry) ? json_string_value(entry) : "?");
    if (strcmp(file, "files") == 0) tc_log("%s: files that are left out: %s", dir, text);
    else tc_log("%s/%s: left out: %s", dir, file, text);
  }
}
