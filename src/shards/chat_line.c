/* chat_line.c - what a line of JSON has: a conversation, or tokens with their weights.
 *
 * What a line has and no template renders is refused, not dropped: tools, calls of them, contents that are no text; so is what
 * other programs have for weights. A member that is null is as none, and names and such are passed over. */
#include "src/shards/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The words for roles; those of ShareGPT too. */
static const struct { const char *word; enum tc_chat_role role; } words[] = {
  { "system", TC_CHAT_SYSTEM }, { "user", TC_CHAT_USER }, { "assistant", TC_CHAT_ASSISTANT }, { "tool", TC_CHAT_TOOL },
  { "human", TC_CHAT_USER }, { "gpt", TC_CHAT_ASSISTANT } };
enum { WORDS = sizeof words / sizeof *words, PLAIN_WORDS = 4 };

/* How the turns of a list are written. */
struct keys { const char *role, *content; int n_words; };
static const struct keys messages = { "role", "content", PLAIN_WORDS }, conversations = { "from", "value", WORDS };

static void put(struct tc_chat_line *l, enum tc_chat_role role, bool counts, const json_t *text)
{
  TC_APPEND(l->turn, l->n, l->cap, ((struct tc_chat_turn){ role, counts, json_string_value(text), json_string_length(text) }));
}

/* A member; NULL: it is not there, or null. */
static const json_t *get(const json_t *object, const char *key)
{
  const json_t *x = json_object_get(object, key);
  return json_is_null(x) ? NULL : x;
}

/* Whether there is something in a member: not null, "", [] or {}. */
static bool has(const json_t *object, const char *key)
{
  const json_t *x = get(object, key);
  return x && (json_array_size(x) || json_object_size(x) || json_string_length(x) || json_is_number(x) || json_is_boolean(x));
}

/* 0 or 1; -1: it is neither, nor false or true. */
static int weight_of(const json_t *x)
{
  if (json_is_boolean(x)) return json_is_true(x);
  if (!json_is_number(x)) return -1;
  return json_number_value(x) == 0 ? 0 : json_number_value(x) == 1 ? 1 : -1;
}

/* The role of a turn, of the first words of the table; NULL: it is none of them. A role is its bytes, of which 0 may be one. */
static const enum tc_chat_role *find_role(const json_t *x, int n_words)
{
  for (int i = 0; i < n_words; i++)
    if (json_string_length(x) == strlen(words[i].word) && strcmp(words[i].word, json_string_value(x)) == 0) return &words[i].role;
  return NULL;
}

/* Members that say something which is not read there, and what would fit. */
struct unread { const char *key, *why; };
static const struct unread of_turn[] = {
  { "tool_calls", "which no known template renders; write them into its text" },
  { "function_call", "which no known template renders; write it into its text" },
  { "reasoning_content", "write it into its text, between <think> and </think>" },
  { "thinking", "write it into its text, between <think> and </think>" },
  { "train", "\"weight\" says whether an answer counts, by 0 or 1" }, { NULL, NULL } };
static const struct unread of_line[] = {
  { "tools", "which no known template renders; write it into a turn" },
  { "functions", "which no known template renders; write it into a turn" },
  { "system", "which no known template renders; write it into a turn" },
  { "weight", "which is read in a turn" }, { "mask", "which is read beside \"tokens\"" }, { NULL, NULL } };

/* The first of them that is there; NULL: none. */
static const struct unread *find_unread(const json_t *x, const struct unread *u)
{
  while (u->key && !has(x, u->key)) u++;
  return u->key ? u : NULL;
}

static int read_turn(struct tc_chat_line *l, const json_t *x, const struct keys *k, size_t i, struct tc_err *err)
{
  const json_t *role = json_object_get(x, k->role), *text = json_object_get(x, k->content), *weight = get(x, "weight");
  const enum tc_chat_role *found = find_role(role, k->n_words);
  const struct unread *unread = find_unread(x, of_turn);
  if (!json_is_string(role)) return tc_fail(err, TC_EUSER, "turn %zu has no text in \"%s\"", i + 1, k->role);
  if (!found)
    return tc_fail(err, TC_EUSER, "turn %zu is of role '%.40s'%s; known are system, user, assistant%s", i + 1,
                   json_string_value(role), strlen(json_string_value(role)) < json_string_length(role) ? " and a byte 0" : "",
                   k == &messages ? " and tool" : ", tool, human and gpt");
  if (unread) return tc_fail(err, TC_EUSER, "turn %zu has \"%s\": %s", i + 1, unread->key, unread->why);
  if (!json_is_string(text)) return tc_fail(err, TC_EUSER, "turn %zu has no text in \"%s\"", i + 1, k->content);
  const int counts = weight ? weight_of(weight) : 1;
  if (counts < 0) return tc_fail(err, TC_EUSER, "turn %zu has a \"weight\" that is neither 0 nor 1", i + 1);
  put(l, *found, counts, text);
  return TC_OK;
}

static int read_turns(struct tc_chat_line *l, const json_t *list, const char *key, const struct keys *k, struct tc_err *err)
{
  if (!json_is_array(list)) return tc_fail(err, TC_EUSER, "its \"%s\" is no list of turns", key);
  for (size_t i = 0; i < json_array_size(list); i++) TC_TRY(read_turn(l, json_array_get(list, i), k, i, err));
  return TC_OK;
}

static int read_messages(struct tc_chat_line *l, const json_t *x, int64_t vocab, struct tc_err *err)
{
  (void)vocab;
  return read_turns(l, json_object_get(x, "messages"), "messages", &messages, err);
}

static int read_conversations(struct tc_chat_line *l, const json_t *x, int64_t vocab, struct tc_err *err)
{
  (void)vocab;
  return read_turns(l, json_object_get(x, "conversations"), "conversations", &conversations, err);
}

/* Two texts: a turn of the user and the answer; or two lists of turns. */
static int read_prompt(struct tc_chat_line *l, const json_t *x, int64_t vocab, struct tc_err *err)
{
  static const char *const key[] = { "prompt", "completion" };
  (void)vocab;
  for (int i = 0; i < 2; i++) {
    const json_t *part = get(x, key[i]);
    if (!part && i == 1 && l->asks) break;
    if (json_is_string(part)) put(l, i == 0 ? TC_CHAT_USER : TC_CHAT_ASSISTANT, true, part);
    else if (json_is_array(part)) TC_TRY(read_turns(l, part, key[i], &messages, err));
    else return tc_fail(err, TC_EUSER, "its \"%s\" is neither a text nor a list of turns", key[i]);
    for (size_t k = 0; k < l->n && i == 0; k++) l->turn[k].counts = false;
  }
  return TC_OK;
}

/* Element i of a list, if it is a whole number below `end`; -1: it is not. */
static int64_t whole_at(const json_t *list, size_t i, int64_t end)
{
  const json_t *x = json_array_get(list, i);
  const double number = json_is_number(x) ? json_number_value(x) : -1;
  return number >= 0 && number < (double)end && number == (double)(int64_t)number ? (int64_t)number : -1;
}

/* Beside tokens all that is there has to be known: another word for the mask would leave all tokens to count. */
static int check_beside_tokens(const json_t *line, struct tc_err *err)
{
  const char *key;
  json_t *x;
  json_object_foreach((json_t *)(uintptr_t)line, key, x)
    if (!json_is_null(x) && strcmp(key, "tokens") != 0 && strcmp(key, "mask") != 0)
      return tc_fail(err, TC_EUSER, "it has \"%.40s\" beside \"tokens\", where only \"mask\" is read", key);
  return TC_OK;
}

/* Without a mask all tokens count. */
static int read_tokens(struct tc_chat_line *l, const json_t *x, int64_t vocab, struct tc_err *err)
{
  const json_t *tokens = json_object_get(x, "tokens"), *mask = get(x, "mask");
  const size_t n = json_array_size(tokens);
  TC_TRY(check_beside_tokens(x, err));
  if (n == 0) return tc_fail(err, TC_EUSER, "its \"tokens\" is no list of tokens");
  if (mask && json_array_size(mask) != n)
    return tc_fail(err, TC_EUSER, "its \"mask\" has %zu elements, but \"tokens\" %zu", json_array_size(mask), n);
  l->raw = true;
  l->weight = tc_realloc(l->weight, n);
  tc_ids_reserve(&l->ids, n);
  for (size_t i = 0; i < n; i++) {
    const int64_t id = whole_at(tokens, i, vocab), weight = mask ? weight_of(json_array_get(mask, i)) : 1;
    if (id < 0)
      return tc_fail(err, TC_EUSER, "token %zu is no whole number below %lld, the size of the vocabulary", i + 1,
                     (long long)vocab);
    if (weight < 0) return tc_fail(err, TC_EUSER, "element %zu of \"mask\" is neither 0 nor 1", i + 1);
    l->ids.id[l->ids.n++] = (uint32_t)id;
    l->weight[i] = (uint8_t)weight;
  }
  return TC_OK;
}

/* By the key that a line has. */
static const struct { const char *key; int (*read)(struct tc_chat_line *, const json_t *, int64_t, struct tc_err *); } forms[] = {
  { "messages", read_messages }, { "conversations", read_conversations }, { "prompt", read_prompt }, { "tokens", read_tokens } };
enum { FORMS = sizeof forms / sizeof *forms };

/* Whether the line has the form. A prompt without a completion is none beside turns, of which it is the first again. */
static bool has_form(const json_t *line, int i, int found)
{
  if (!get(line, forms[i].key)) return false;
  return forms[i].read != read_prompt || found < 0 || !json_is_string(get(line, "prompt")) || get(line, "completion");
}

int tc_chat_line_read(struct tc_chat_line *l, const json_t *line, int64_t vocab, struct tc_err *err)
{
  int form = -1;
  l->n = l->ids.n = 0;
  l->raw = false;
  for (int i = 0; i < FORMS; i++) {
    if (!has_form(line, i, form)) continue;
    if (form >= 0)
      return tc_fail(err, TC_EUSER, "it has \"%s\" and \"%s\": which is the conversation?", forms[form].key, forms[i].key);
    form = i;
  }
  if (form < 0)
    return tc_fail(err, TC_EUSER, "it has none of \"messages\", \"conversations\", \"prompt\" and \"tokens\"");
  const struct unread *unread = forms[form].read == read_tokens ? NULL : find_unread(line, of_line);
  if (unread) return tc_fail(err, TC_EUSER, "it has \"%s\" beside its turns, %s", unread->key, unread->why);
  return forms[form].read(l, line, vocab, err);
}

void tc_chat_line_free(struct tc_chat_line *l)
{
  TC_FREE(l->turn, l->weight);
  tc_ids_free(&l->ids);
}
