/* note.c - data.json: which command made the shards of a folder, and where it goes on.
 *
 * It is written anew after each shard. A command is identified by all that the ids depend on: the tokenizer's hash,
 * the names, sizes and times of the files, options (so not --threads). Shards that were made with --invalid refuse have
 * nothing invalid in them: they are those of the other values too, with which a call may therefore go on. So it is with
 * --bad-lines. */
#include "src/shards/impl.h"

#include <jansson.h>
#include <string.h>

const char *const tc_invalid_words[3] = { "refuse", "replace", "bytes" };
const char *const tc_train_on_words[3] = { "answers", "last", "all" };

enum { MOST_BYTES = 1 << 28 };

/* One file of the command: name, and what would change with its contents. */
static json_t *input_json(const char *path, const struct stat *was)
{
  if (!S_ISREG(was->st_mode)) return json_pack("{s:o}", "path", tc_text_json(path));
  return json_pack("{s:o, s:I, s:I}", "path", tc_text_json(path), "bytes", (json_int_t)was->st_size, "mtime",
                   (json_int_t)was->st_mtim.tv_sec);
}

static json_t *hash_json(uint64_t hash)
{
  char text[20];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
  return json_string(text);
}

/* What the ids depend on; owned by the caller. */
static json_t *command_json(const struct tc_shards_job *job)
{
  const struct tc_shards_opts *o = job->o;
  const char *invalid = tc_invalid_words[o->invalid], *field = o->field ? o->field : "text";
  json_t *inputs = json_array();
  for (int i = 0; i < o->n_texts; i++) json_array_append_new(inputs, input_json(o->text[i], &job->was[i]));
  json_t *j = json_pack("{s:o, s:I, s:b, s:b, s:o, s:s, s:I, s:o}", "tokenizer", hash_json(tc_tokenizer_hash(job->t)),
                        "eod", (json_int_t)job->eod, "begin_token", o->begin_token, "jsonl", o->jsonl, "field", tc_text_json(field),
                        "invalid", invalid, "shard_tokens", (json_int_t)o->shard_tokens, "inputs", inputs);
  TC_ASSERT(j);
  if (job->chat) json_object_set_new(j, "chat", json_string(job->chat->row->name));
  if (job->chat) json_object_set_new(j, "template", hash_json(tc_chat_identity(job->chat)));
  if (job->chat) json_object_set_new(j, "train_on", json_string(tc_train_on_words[o->train_on]));
  if (o->skip_bad) json_object_set_new(j, "bad_lines", json_string("skip"));
  return j;
}

int tc_shards_note_write(const struct tc_shards_note *n, const struct tc_shards_job *job, struct tc_err *err)
{
  json_t *j = json_pack("{s:O, s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:i, s:I, s:I, s:I}}", "command", n->command,
                        "complete", n->complete, "shards", n->shards, "tokens", (json_int_t)n->tokens, "vocabulary",
                        (json_int_t)tc_tokenizer_vocab(job->t), "documents", (json_int_t)n->documents, "empty",
                        (json_int_t)n->empty, "invalid", (json_int_t)n->invalid, "bad_lines",
                        (json_int_t)n->bad, "next", "source", n->at.source, "offset", (json_int_t)n->at.offset, "line",
                        (json_int_t)n->at.line, "skip", (json_int_t)n->skip);
  TC_ASSERT(j);
  if (job->chat) json_object_set_new(j, "counted", json_integer(n->counted));
  if (job->chat) json_object_set_new(j, "special", json_integer(n->special));
  static const struct tc_output_kind kind = { "a note of tercio data", { "{\n  \"command\"" } };
  const struct tc_output_opts o = { .kind = &kind };
  char *text = json_dumps(j, JSON_INDENT(2)), *path = tc_sprintf("%s/%s", job->o->out, TC_SHARDS_NOTE);
  const int status = tc_output_text(path, &o, text, err);
  TC_FREE(path, text);
  json_decref(j);
  return status;
}

/* The part of `a` in which `b` differs, in words; NULL: none. */
static const char *difference(const json_t *a, const json_t *b)
{
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)a, key, value)
    if (!json_equal(value, json_object_get(b, key)))
      return strcmp(key, "inputs") == 0 ? "text files (names, sizes or times)"
             : strcmp(key, "invalid") == 0 ? "--invalid" : strcmp(key, "bad_lines") == 0 ? "--bad-lines" : key;
  return NULL;
}

/* What such a number is added to can't overflow. */
static bool fits(json_int_t x) { return x >= 0 && x < INT64_MAX / 4; }

static int unpack(struct tc_shards_note *n, json_t *j, const char *path, struct tc_err *err)
{
  json_int_t tokens, documents, empty, invalid, bad = 0, counted = 0, special = 0, offset, line, skip;
  int complete;
  if (json_unpack(j, "{s:b, s:i, s:I, s:I, s:I, s:I, s?I, s?I, s?I, s:{s:i, s:I, s:I, s:I}}", "complete", &complete, "shards",
                  &n->shards, "tokens", &tokens, "documents", &documents, "empty", &empty, "invalid", &invalid,
                  "bad_lines", &bad, "counted", &counted, "special", &special, "next", "source", &n->at.source, "offset",
                  &offset, "line", &line, "skip", &skip) != 0 ||
      n->shards < 0 || tokens > n->shards * (json_int_t)INT32_MAX || n->at.source < 0 || !fits(tokens) ||
      !fits(documents) || !fits(empty) || !fits(invalid) || !fits(bad) || !fits(counted) || !fits(special) ||
      !fits(offset) || !fits(line) || !fits(skip))
    return tc_fail(err, TC_EUSER, "note '%s' is damaged; remove the folder, or name another", path);
  n->complete = complete;
  n->tokens = tokens;
  n->documents = documents;
  n->empty = empty;
  n->invalid = invalid;
  n->bad = bad;
  n->counted = counted;
  n->special = special;
  n->at.offset = offset;
  n->at.line = line;
  n->skip = skip;
  return TC_OK;
}

/* A command that refused what is invalid, or bad lines, has made the same shards as `now`. */
static void allow_more(json_t *was, const json_t *now)
{
  const char *invalid = json_string_value(json_object_get(was, "invalid"));
  if (json_object_get(now, "bad_lines")) json_object_set(was, "bad_lines", json_object_get(now, "bad_lines"));
  if (invalid && strcmp(invalid, tc_invalid_words[TC_INVALID_REFUSE]) == 0)
    json_object_set(was, "invalid", json_object_get(now, "invalid"));
}

static int compare(json_t *note, const json_t *now, const char *out, struct tc_err *err)
{
  json_t *was = json_object_get(note, "command");
  allow_more(was, now);
  if (json_equal(was, now)) return TC_OK;
  const char *part = difference(now, was);
  if (!part) part = difference(was, now);
  return tc_fail(err, TC_EUSER, "folder '%s' has shards of another command, with other %s; name another folder, or "
                 "remove it", out, part ? part : "parts");
}

/* A folder without a note must not have shards. */
static int check_empty(const char *dir, struct tc_err *err)
{
  char **names;
  const int n = tc_folder_scan(dir, "shard-", &names, err);
  if (n < 0) return n;
  bool shards = false;
  for (int i = 0; i < n; i++) shards |= tc_ends_with(names[i], ".bin") || tc_ends_with(names[i], ".npy");
  tc_names_free(names, n);
  return shards ? tc_fail(err, TC_EUSER, "folder '%s' has shards but no %s, which says where they came from; name "
                          "another folder", dir, TC_SHARDS_NOTE) : TC_OK;
}

static void note_clear(struct tc_shards_note *n)
{
  *n = (struct tc_shards_note){ .at.line = 1, .command = n->command };
}

int tc_shards_note_read(struct tc_shards_note *n, bool *found, const struct tc_shards_job *job, struct tc_err *err)
{
  const struct tc_shards_opts *o = job->o;
  char *path = tc_sprintf("%s/%s", o->out, TC_SHARDS_NOTE), *text = NULL;
  size_t bytes;
  n->command = command_json(job);
  note_clear(n);
  *found = tc_is_there(path) != 0;
  int status = *found ? tc_read_text(&text, &bytes, path, "note", MOST_BYTES, err) : check_empty(o->out, err);
  if (*found && status == TC_OK) {
    json_t *j = json_loadb(text, bytes, 0, NULL);
    status = unpack(n, j, path, err);
    *found = n->shards > 0 || n->complete;       /* a command that has made nothing yet binds no other */
    if (status == TC_OK && *found) status = compare(j, n->command, o->out, err);
    else note_clear(n);
    if (status == TC_OK && n->at.source > o->n_texts)
      status = tc_fail(err, TC_EUSER, "note '%s' is damaged; remove the folder, or name another", path);
    json_decref(j);
  }
  TC_FREE(text, path);
  return status;
}

void tc_shards_note_free(struct tc_shards_note *n)
{
  json_decref(n->command);
  n->command = NULL;
}
