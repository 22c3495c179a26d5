/* t_chat.c - conversations: ids and weights as transformers' apply_chat_template gave them (tests/oracle/chat.py), which row a
 * folder has, what --train-on counts, and what is refused. tests/fuzz/fuzz_chat.c has damaged lines. */
#include "src/shards/impl.h"
#include "tests/unit/chat_fixture.h"
#include "tests/unit/tap.h"

#include <unistd.h>

static size_t asked;              /* places, of the last conversation */

static int my_encode_places(struct tc_encoder *e, const char *text, size_t n, struct tc_id_place *place, size_t n_places,
                            struct tc_ids *out, struct tc_err *err)
{
  asked = n_places;
  return tc_encode_places(e, text, n, place, n_places, out, err);
}

#define tc_encode_places my_encode_places
#include "src/shards/encode_chat.c"
#undef tc_encode_places

static char *top;

/* What encodes: tokenizer.json here, and a template. */
struct setup {
  struct tc_tokenizer *t;
  struct tc_chat *chat;
  struct tc_encoder *e;
  struct tc_shards_opts o;
  struct tc_shards_job job;
  struct tc_text_unit u;
};

static int set_up(struct setup *s, const char *name, struct tc_err *err)
{
  memset(s, 0, sizeof *s);
  TC_ASSERT(tc_tokenizer_load(&s->t, "tokenizer.json", err) == 0 && tc_encoder_new(&s->e, s->t, err) == 0);
  s->job = (struct tc_shards_job){ .o = &s->o, .t = s->t };
  const int rc = tc_chat_new(&s->chat, name, "tokenizer.json", s->t, err);
  s->job.chat = s->chat;
  return rc;
}

static void tear_down(struct setup *s)
{
  tc_encoder_free(s->e);
  tc_chat_free(s->chat);
  tc_tokenizer_free(s->t);
  tc_ids_free(&s->u.ids);
  free(s->u.weight);
}

/* A line alone; its ids and weights are those of s->u. */
static int encode(struct setup *s, const json_t *line)
{
  s->u.ids.n = 0;
  s->u.documents = s->u.counted = s->u.special = 0;
  s->u.err = (struct tc_err){ 0 };
  return tc_text_unit_chat(&s->u, &s->job, s->e, line);
}

static int encode_text(struct setup *s, const char *text)
{
  json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL);
  TC_ASSERT(line);
  const int rc = encode(s, line);
  json_decref(line);
  return rc;
}

/* ---- stored figures ----------------------------------------------------------------- */

static uint64_t hash_of(const struct tc_text_unit *u)
{
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < 2 * u->ids.n; i++)
    h = (h ^ (i % 2 ? u->weight[i / 2] & TC_WEIGHT_COUNTS : u->ids.id[i / 2])) * UINT64_C(1099511628211);
  return h;
}

/* The ids of a question: the turns before the last answers, and what is before another one. */
static bool same_asked(struct setup *s, const json_t *x)
{
  struct tc_chat_line l = { 0 };
  struct tc_chat_text text = { 0 };
  struct tc_ids ids = { 0 };
  uint64_t h = UINT64_C(14695981039346656037);
  char hash[20];
  int rc = tc_chat_line_read(&l, json_object_get(x, "line"), tc_tokenizer_vocab(s->t), &s->u.err);
  while (l.n > 1 && l.turn[l.n - 1].role == TC_CHAT_ASSISTANT) l.n--;
  if (rc == 0) rc = tc_chat_ask(s->chat, l.turn, l.n, &text, &s->u.err);
  if (rc == 0) rc = tc_encode(s->e, text.s, text.n, TC_INVALID_REFUSE, &ids, NULL, &s->u.err);
  for (size_t i = 0; i < ids.n; i++) h = (h ^ ids.id[i]) * UINT64_C(1099511628211);
  snprintf(hash, sizeof hash, "%016" PRIx64, h);
  tc_chat_line_free(&l);
  tc_chat_text_free(&text);
  tc_ids_free(&ids);
  return rc == 0 && strcmp(hash, json_string_value(json_object_get(x, "asked"))) == 0;
}

static bool same(struct setup *s, const json_t *x)
{
  char hash[20] = "";
  int64_t counted = 0;
  const int rc = encode(s, json_object_get(x, "line"));
  for (size_t i = 0; i < s->u.ids.n; i++) counted += s->u.weight[i] & TC_WEIGHT_COUNTS;
  snprintf(hash, sizeof hash, "%016" PRIx64, hash_of(&s->u));
  return rc == 0 && (int64_t)s->u.ids.n == json_integer_value(json_object_get(x, "tokens")) && counted == s->u.counted &&
         counted == json_integer_value(json_object_get(x, "counted")) && counted > 0 && s->u.weight[0] & TC_WEIGHT_BEGINS &&
         strcmp(hash, json_string_value(json_object_get(x, "hash"))) == 0;
}

static void test_stored(void)
{
  char *path = tc_sprintf("%s/tests/oracle/chat.jsonl", top), *line = NULL;
  FILE *f = fopen(path, "r");
  size_t cap = 0;
  struct setup s = { 0 };
  struct tc_err err = { 0 };
  int wrong = 0, lines = 0, groups = 0;
  TC_ASSERT(f);
  while (getline(&line, &cap, f) > 0) {
    json_t *x = json_loads(line, 0, NULL), *config = json_object_get(x, "config");
    const char *row = json_string_value(json_object_get(x, "row")), *name = json_string_value(json_object_get(x, "tokenizer"));
    if (json_is_object(config)) {
      if (groups++) tear_down(&s);
      TC_ASSERT(json_dump_file(config, "tokenizer_config.json", 0) == 0);
      write_tokenizer(top, name, json_object_get(x, "added"));
      ok(set_up(&s, "", &err) == 0 && strcmp(s.chat->row->name, row) == 0, "%s, %s: the row is found by the text", row, name);
    }
    lines++;
    if (!s.chat || (same(&s, x) && same_asked(&s, x))) {
      json_decref(x);
      continue;
    }
    if (wrong++ < 3) printf("# %s, %s: %s # %s\n", row, name, s.u.err.text, line);
    json_decref(x);
  }
  ok(wrong == 0 && lines >= 100, "%d conversations, and their questions, have the ids and weights of apply_chat_template", lines);
  tear_down(&s);
  TC_FREE(line, path);
  fclose(f);
}

/* The page's table has the rows, in their order. */
static void test_page(void)
{
  char *path = tc_sprintf("%s/docs/tuning.md", top), *text, *at;
  size_t bytes, n = 0;
  struct tc_err err;
  TC_ASSERT(tc_read_text(&text, &bytes, path, "page", 1 << 20, &err) == 0);
  static const char *const name[] = {
#define CHAT(word, ...) "\n| `" word "` |",
#include "src/shards/chat.def"
#undef CHAT
  };
  enum { ROWS = sizeof name / sizeof *name };
  TC_ASSERT((at = strstr(text, "| `--chat` |")));
  at = strstr(at, "\n|---");
  while (n < ROWS && at && (at = strchr(at + 1, '\n')) && !strncmp(at, name[n], strlen(name[n]))) n++;
  ok(n == ROWS && !strncmp(strchr(at + 1, '\n'), "\n\n", 2), "docs/tuning.md has the %d rows of chat.def, and no other", (int)ROWS);
  TC_FREE(text, path);
}

/* ---- rows by text and by name ------------------------------------------------------------ */

static void write_text(const char *name, const char *text)
{
  FILE *f = fopen(name, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void config(const char *text) { write_text("tokenizer_config.json", text); }

/* The sentence, or the row's name. */
static const char *row_of(const char *name, const char *text, struct tc_err *err)
{
  static char row[20];
  struct setup s;
  config(text);
  if (set_up(&s, name, err) == 0) snprintf(row, sizeof row, "%s", s.chat->row->name);
  else snprintf(row, sizeof row, "-");
  tear_down(&s);
  return row;
}

#define CHATML "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'" \
  " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static void test_rows(void)
{
  struct tc_err e = { 0 };
  json_t *added = json_pack("[s, s]", "<|im_start|>", "<|im_end|>");
  write_tokenizer(top, "gpt2", added);
  is_str(row_of("", "{\"chat_template\": \"" CHATML "\"}", &e), "chatml", "a known text");
  is_str(row_of("", "{\"chat_template\": \" \\n" CHATML "\\n\\n\"}", &e), "chatml", "with white space at its ends");
  is_str(row_of("", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"name\": \"default\", "
                "\"template\": \"" CHATML "\"}]}", &e), "chatml", "the default one of several");
  is_str(row_of("", "{\"chat_template\": \"" CHATML "x\"}", &e), "-", "another text is refused");
  ok(strstr(e.text, "name it: --chat chatml, qwen2, qwen2.5") != NULL, "with the command: %s", e.text);
  is_str(row_of("", "{}", &e), "-", "no text is refused");
  ok(strstr(e.text, "'tokenizer_config.json' has no chat_template; name one by --chat") != NULL, "with the command: %s", e.text);
  write_text("chat_template.jinja", "{{ x }}");
  is_str(row_of("", "{\"chat_template\": \"" CHATML "\"}", &e), "-", "a file chat_template.jinja goes before it");
  ok(strstr(e.text, "the chat_template of 'chat_template.jinja' (hash ") != NULL, "... by name: %s", e.text);
  TC_ASSERT(unlink("chat_template.jinja") == 0);
  is_str(row_of("qwen2", "{\"chat_template\": \"x\"}", &e), "qwen2", "a named row takes any text");
  is_str(row_of("qwen2", "{", &e), "-", "... but not a file that is not JSON");
  is_str(row_of("vicuna", "{}", &e), "-", "an unknown name is refused");
  ok(strstr(e.text, "the name of a template, chatml, ") && strstr(e.text, "'vicuna' is no such name"),
     "with those that are known: %s", e.text);
  is_str(row_of("tokenizer.json", "{}", &e), "-", "a file is no name");
  ok(strstr(e.text, "'tokenizer.json' is a file: give files before --chat") != NULL, "by a sentence: %s", e.text);
  is_str(row_of("zephyr", "{\"eos_token\": {\"content\": \"<|im_end|>\"}}", &e), "zephyr", "a token as an object");
  is_str(row_of("zephyr", "{\"eos_token\": \"nope\"}", &e), "-", "the token that ends answers has to be one");
  ok(strstr(e.text, "needs the token 'nope', which tokenizer") != NULL, "by name: %s", e.text);
  is_str(row_of("mistral", "{\"eos_token\": null}", &e), "-", "... and to be there");
  TC_ASSERT(unlink("tokenizer_config.json") == 0);
  struct setup s;
  ok(set_up(&s, "zephyr", &e) == 0 && !strcmp(s.chat->tail[TC_CHAT_ASSISTANT], "<|endoftext|>"),
     "without a tokenizer_config.json it is the tokenizer's usual one");
  tear_down(&s);
  write_tokenizer(top, "llama2", NULL);
  ok(set_up(&s, "zephyr", &e) == 0 && !strcmp(s.chat->tail[TC_CHAT_ASSISTANT], "</s>"), "... of those that are added");
  tear_down(&s);
  write_tokenizer(top, "gpt2", added);
  is_str(row_of("llama3", "{\"bos_token\": \"<|im_start|>\"}", &e), "-", "llama3 has tokens that this tokenizer has not");
  json_decref(added);
}

static uint64_t identity(const char *name, const char *text)
{
  struct setup s;
  struct tc_err err;
  config(text);
  TC_ASSERT(set_up(&s, name, &err) == 0);
  const uint64_t id = tc_chat_identity(s.chat);
  tear_down(&s);
  return id;
}

static void test_identity(void)
{
  static const char *const eos[] = { "{\"eos_token\": \"<|im_end|>\"}", "{\"eos_token\": \"<|endoftext|>\"}" };
  ok(identity("zephyr", eos[0]) == identity("zephyr", eos[0]), "a template has one identity");
  ok(identity("zephyr", eos[0]) != identity("zephyr", eos[1]), "... and another with another token");
  ok(identity("zephyr", eos[0]) != identity("chatml", eos[0]), "... as has another template");
}

/* ---- what counts ------------------------------------------------------------------------- */

#define TURN(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define TWO "{\"messages\": [" TURN("user", "a b") "," TURN("assistant", "c") "," TURN("user", "d") "," \
  TURN("assistant", "e f") "]}"

static void test_train_on(void)
{
  static const struct { const char *line; int on; int64_t counted, special; } cases[] = {
    { TWO, TC_TRAIN_ANSWERS, 2 + 3, 0 }, { TWO, TC_TRAIN_LAST, 3, 0 },
    { "{\"messages\": [" TURN("user", "a") "," TURN("assistant", "") "]}", TC_TRAIN_ANSWERS, 1, 0 },
    { "{\"messages\": [" TURN("user", "<|im_end|> <|im_start|>") "," TURN("assistant", "b<|im_end|>") "]}",
      TC_TRAIN_ANSWERS, 3, 3 },
    { "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0},"
      TURN("assistant", "c") "]}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": false},"
      "{\"role\": \"assistant\", \"content\": \"b\", \"weight\": true},"
      "{\"role\": \"assistant\", \"content\": \"b\", \"weight\": null}]}", TC_TRAIN_ANSWERS, 2 + 2, 0 },
    { "{\"prompt\": [" TURN("user", "a") "," TURN("assistant", "b") "," TURN("user", "c") "], \"completion\": ["
          TURN("assistant", "d")
      "]}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
      TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\", \"content\": \"b\", \"tool_calls\": [], "
      "\"function_call\": {}}], \"tools\": null, \"functions\": [], \"system\": \"\"}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"tokens\": [1, 2, 3], \"mask\": [1, 0, 1]}", TC_TRAIN_ANSWERS, 1, 0 },
    { "{\"messages\": [" TURN("user", "a") "," TURN("assistant", "b") "], \"prompt\": null, \"tokens\": null, "
      "\"mask\": null, \"weight\": null}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"prompt\": \"a\", \"prompt_id\": \"1\", \"messages\": [" TURN("user", "a") "," TURN("assistant", "b") ","
      TURN("user", "a") "," TURN("assistant", "b") "]}", TC_TRAIN_ANSWERS, 4, 0 },
    { "{\"messages\": null, \"prompt\": \"a\", \"completion\": \"b\"}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\", \"name\": \"c\", \"train\": null, \"thinking\": \"\"}], "
      "\"id\": 7}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"tokens\": [1, 2, 3], \"mask\": null, \"weights\": null}", TC_TRAIN_ANSWERS, 2, 0 },
    { "{\"tokens\": [1, 2, 3]}", TC_TRAIN_LAST, 2, 0 },
    { "{\"tokens\": [1, 2, 3], \"mask\": [false, false, true]}", TC_TRAIN_ALL, 2, 0 } };
  struct setup s;
  struct tc_err err = { 0 };
  config("{}");
  TC_ASSERT(set_up(&s, "chatml", &err) == 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    s.o.train_on = cases[i].on;
    const int rc = encode_text(&s, cases[i].line);
    ok(rc == 0 && s.u.counted == cases[i].counted && s.u.special == cases[i].special,
       "%s, %s: %lld tokens count, %lld special ones", cases[i].line, tc_train_on_words[cases[i].on], (long long)s.u.counted,
       (long long)s.u.special);
  }
  s.o.train_on = TC_TRAIN_ALL;
  ok(encode_text(&s, TWO) == 0 && s.u.counted == (int64_t)s.u.ids.n - 1, "all: everything but the first, which nothing predicts");
  tear_down(&s);
  TC_ASSERT(set_up(&s, "qwen3", &err) == 0);
  ok(encode_text(&s, "{\"messages\": [" TURN("assistant", "a") "]}") == 0 && s.u.counted == 2,
     "without a question nothing is thought");
  tear_down(&s);
}

/* Many answers of tools, which the template joins: only the places of answers, and of turns with special tokens, are asked for,
 * since each takes as long as all that is before it. */
static void test_joined(void)
{
  enum { TOOLS = 300 };
  json_t *turns = json_array(), *line = json_pack("{s:o}", "messages", turns);
  struct setup s;
  struct tc_err err = { 0 };
  config("{}");
  TC_ASSERT(set_up(&s, "qwen2.5", &err) == 0);
  json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "user", "content", "a b"));
  for (int i = 0; i < TOOLS; i++)
    json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "tool", "content", i == 7 ? "<|im_end|> 7" : "7 8"));
  json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "assistant", "content", "e f"));
  ok(encode(&s, line) == 0 && s.u.counted == 3 && s.u.special == 1,
     "%d joined answers of tools: 3 tokens count, 1 special one", TOOLS);
  is_int((long)asked, 3 * 2, "... and the places of 2 turns are asked for");
  s.o.train_on = TC_TRAIN_LAST;
  json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "assistant", "content", "e"));
  ok(encode(&s, line) == 0 && s.u.counted == 2 && asked == 3 * 2, "of the last answer alone, if only that counts");
  json_decref(line);
  tear_down(&s);
}

static const struct { const char *row, *line, *want; } refused[] = {
  { "chatml", "[]", "none of \"messages\"" }, { "chatml", "{\"text\": \"a\"}", "none of \"messages\"" },
  { "chatml", "{\"messages\": []}", "no turns" }, { "chatml", "{\"messages\": \"a\"}", "no list of turns" },
  { "chatml", "{\"messages\": [1]}", "turn 1 has no text in \"role\"" },
  { "chatml", "{\"messages\": [" TURN("developer", "a") "]}", "role 'developer'" },
  { "chatml", "{\"messages\": [" TURN("human", "a") "]}", "role 'human'" },
  { "chatml", "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "turn 1 has no text in \"content\"" },
  { "chatml", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
        "turn 1 has no text in \"content\"" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [1]}]}",
        "turn 1 has \"tool_calls\": which" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"weight\": 0.5}]}", "neither 0 nor 1" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"weight\": \"0\"}]}", "neither 0 nor 1" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"weight\": [0]}]}", "neither 0 nor 1" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"weight\": false}]}", "none of its " },
  { "chatml", "{\"messages\": [" TURN("assistant\\u0000x", "a") "]}", "role 'assistant' and a byte 0; known" },
  { "chatml", "{\"messages\": [" TURN("\\u0000", "a") "]}", "role '' and a byte 0; known" },
  { "qwen3", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"b\"}]}",
    "between <think> and </think>" },
  { "chatml", "{\"messages\": [" TURN("user", "a") "]}", "none of its " },
  { "chatml", "{\"messages\": [], \"tokens\": [1]}", "which is" },
  { "chatml", "{\"messages\": [], \"tools\": [1]}", "\"tools\" beside" },
  { "chatml", "{\"messages\": [], \"system\": \"a\"}", "\"system\" beside" },
  { "chatml", "{\"messages\": [], \"tools\": {\"a\": 1}}", "\"tools\" beside" },
  { "chatml", "{\"messages\": [], \"functions\": true}", "\"functions\" beside" },
  { "chatml", "{\"messages\": [], \"weight\": 0}", "\"weight\" beside its turns, which is read in a turn" },
  { "chatml", "{\"prompt\": \"a\", \"completion\": \"b\", \"weight\": false}", "\"weight\" beside its turns" },
  { "chatml", "{\"prompt\": \"a\", \"completion\": \"b\", \"mask\": [1]}",
        "\"mask\" beside its turns, which is read beside" },
  { "chatml", "{\"messages\": [], \"prompt\": \"a\", \"completion\": \"b\"}", "which is" },
  { "chatml", "{\"messages\": [], \"prompt\": []}", "which is" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"train\": false}]}",
        "turn 1 has \"train\": \"weight\"" },
  { "chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"thinking\": \"b\"}]}",
        "between <think> and" },
  { "chatml", "{\"tokens\": [1, 2], \"masks\": [0, 1]}", "it has \"masks\" beside \"tokens\", where only" },
  { "chatml", "{\"tokens\": [1, 2], \"weights\": [0, 1]}", "it has \"weights\" beside \"tokens\"" },
  { "chatml", "{\"messages\": null, \"tokens\": null}", "none of \"messages\"" },
  { "chatml", "{\"prompt\": \"a\"}", "its \"completion\" is neither" },
  { "chatml", "{\"tokens\": [1, 2], \"mask\": [1]}", "\"mask\" has 1 elements, but \"tokens\" 2" },
  { "chatml", "{\"tokens\": [1, 1000000]}", "token 2 is no whole number below" },
  { "chatml", "{\"tokens\": [1, 1.5]}", "token 2 is" },
  { "chatml", "{\"tokens\": [1, -1]}", "token 2 is" },
  { "chatml", "{\"tokens\": [1, 2], \"mask\": [0, 2]}", "element 2 of \"mask\"" },
  { "chatml", "{\"tokens\": [1, 2], \"mask\": [1, 0]}", "none of its 2 tokens" },
  { "chatml", "{\"tokens\": 1}", "no list of tokens" },
  { "mistral", "{\"messages\": [" TURN("system", "a") "]}", "role 'system', which chat template mistral" },
  { "mistral", "{\"messages\": [" TURN("assistant", "a") "]}", "turn 1 is of role 'assistant', but" },
  { "mistral", "{\"messages\": [" TURN("user", "a") "," TURN("user", "a") "]}", "turn 2 is of role 'user', but" },
  { "none", "{\"messages\": [" TURN("user", "a") "]}", "role 'user', which chat template none" } };

static void test_refused(void)
{
  struct tc_err err = { 0 };
  config("{\"eos_token\": \"<|im_end|>\"}");
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    struct setup s;
    TC_ASSERT(set_up(&s, refused[i].row, &err) == 0);
    const int rc = encode_text(&s, refused[i].line);
    ok(rc == TC_EUSER && strstr(s.u.err.text, refused[i].want) && s.u.ids.n == 0, "%s: %s", refused[i].line, s.u.err.text);
    tear_down(&s);
  }
}

/* What is asked, by the files of a folder, and by those that are members of an object. */
static void test_asked(void)
{
  static const struct tc_chat_turn turn[] = { { TC_CHAT_SYSTEM, false, "be", 2 }, { TC_CHAT_USER, false, " hi", 3 },
                                              { TC_CHAT_ASSISTANT, false, "yo", 2 } };
  struct tc_chat_text text = { 0 };
  struct tc_err err = { 0 };
  struct tc_chat *beside;
  struct setup s;
  json_t *files = json_pack("{s:s}", "tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\", \"chat_template\": \"" CHATML "\"}");
  json_t *jinja = json_pack("{s:s, s:s}", "tokenizer_config.json", "{}", "chat_template.jinja", "x");
  config("{\"eos_token\": \"<|im_end|>\"}");
  TC_ASSERT(set_up(&s, "zephyr", &err) == 0);
  static const char want[] = "<|system|>\nbe<|im_end|>\n<|user|>\n hi<|im_end|>\n<|assistant|>\n";
  ok(tc_chat_ask(s.chat, turn, 2, &text, &err) == 0 && text.n == strlen(want) && !memcmp(text.s, want, text.n), "what is asked: %.*s",
     (int)text.n, text.s);
  is_int(tc_chat_end(s.chat, s.t), tc_tokenizer_find(s.t, "<|im_end|>"), "... and the token that ends the answer");
  ok(tc_chat_ask(s.chat, turn, 3, &text, &err) == TC_EUSER && strstr(err.text, "its last turn is an answer"), "not an answer");
  ok(tc_chat_ask(s.chat, turn, 1, &text, &err) == TC_EUSER && strstr(err.text, "last turn is the system's"), "not the system's");
  ok(tc_chat_ask(s.chat, turn, 0, &text, &err) == TC_EUSER && strstr(err.text, "no turns"), "not nothing");
  ok(tc_chat_beside(&beside, "", files, "CKPT", s.t, &err) == 0 && !strcmp(beside->row->name, "chatml"), "files of an object");
  tc_chat_free(beside);
  ok(tc_chat_beside(&beside, "", jinja, "CKPT", s.t, &err) == TC_EUSER && strstr(err.text, "the chat_template of 'CKPT' (hash "),
     "... of which a chat_template.jinja goes first: %s", err.text);
  ok(tc_chat_beside(&beside, "", NULL, "CKPT", s.t, &err) == TC_EUSER && strstr(err.text, "'CKPT' has no chat_template; name one"),
     "... none: %s", err.text);
  ok(tc_chat_beside(&beside, "zephyr", NULL, "CKPT", s.t, &err) == 0 && !strcmp(beside->tail[TC_CHAT_ASSISTANT], "<|endoftext|>"),
     "... but a name");
  tc_chat_free(beside);
  tc_chat_text_free(&text);
  json_decref(files);
  json_decref(jinja);
  tear_down(&s);
}

int main(void)
{
  char dir[] = "/tmp/t_chat-XXXXXX";
  top = realpath(getenv("srcdir") ? getenv("srcdir") : ".", NULL);
  TC_ASSERT(top && mkdtemp(dir) && chdir(dir) == 0);
  test_stored();
  test_page();
  test_rows();
  test_identity();
  test_train_on();
  test_joined();
  test_refused();
  test_asked();
  unlink("tokenizer.json");
  unlink("tokenizer_config.json");
  free(top);
  return chdir("/") || rmdir(dir) || done_testing();
}
