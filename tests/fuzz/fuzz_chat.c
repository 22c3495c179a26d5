/* fuzz_chat.c - lines of conversations, whole and damaged. One that is accepted has the ids of a text that is put together here,
 * and weights by the bytes of its tokens, which are those of the text, since the tokenizer is of bytes; any other gets a sentence
 * with file and line, and leaves nothing behind. Templates themselves are compared by tests/oracle/chat.py. */
#include "src/shards/impl.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/chat_fixture.h"

enum { MOST = 1 << 14, MOST_TURNS = 40 };

static const char *const rows[] = { "chatml", "mistral" };
enum { CHATML, MISTRAL, ROWS };

struct setup { struct tc_tokenizer *t; struct tc_encoder *e; struct tc_chat *chat[ROWS]; };

/* ---- lines --------------------------------------------------------------------------- */

static const char *const words[] = { "", " ", "a", "the", "\\n", "\\n\\n", "\\u00e9", "\xf0\x9f\x98\x80", "<|im_end|>", "</s>",
  "<s>", "[INST]", "\\\"", "\\\\", "\\u0000", "\\ud83d\\ude00", "\xe4\xb8\xad", "123", "<|im_start|>assistant\\n" };

static void put_text(struct fuzz *f, FILE *to)
{
  fputc('"', to);
  for (size_t n = fuzz_below(f, 8); n > 0; n--) fputs(words[fuzz_below(f, sizeof words / sizeof *words)], to);
  fputc('"', to);
}

/* What a turn has beside its text, and roles, which are read or not. */
static const struct { const char *text; bool refused; } odd[] = { { ",\"weight\":0", false }, { ",\"weight\":1.0", false },
  { ",\"weight\":false", false }, { ",\"weight\":true", false }, { ",\"weight\":null", false }, { ",\"weight\":\"0\"", true },
  { ",\"weight\":[]", true }, { ",\"weight\":0.5", true }, { ",\"weight\":-1", true }, { ",\"name\":\"a\"", false },
  { ",\"train\":false", true }, { ",\"thinking\":\"a\"", true }, { ",\"tool_calls\":null", false } };
enum { ODD = sizeof odd / sizeof *odd };

/* count turns from number `first` on, alternating if need be. Returns whether they can be read. */
static bool put_turns(struct fuzz *f, FILE *to, int row, const char *role_key, const char *key, const char *const role[4],
                      int first, int count)
{
  bool good = true;
  fputc('[', to);
  for (int i = first; i < first + count; i++) {
    const int r = row == MISTRAL ? 1 + i % 2 : i + 1 == first + count ? 2 : (int)fuzz_below(f, 4);
    const bool nul = fuzz_below(f, 200) == 0;
    fprintf(to, "%s{\"%s\":\"%s%s\",\"%s\":", i > first ? "," : "", role_key, role[r], nul ? "\\u0000" : "", key);
    put_text(f, to);
    const size_t k = fuzz_below(f, 20 * ODD);
    if (k < ODD) fputs(odd[k].text, to);
    fputc('}', to);
    good &= !nul && (k >= ODD || !odd[k].refused);
  }
  fputc(']', to);
  return good;
}

/* What a line has before its turns or tokens, (of two members with one name the second is read), and whether it is then refused. */
static const struct { const char *text; bool of_turns, of_tokens; } beside[] = { { "\"prompt\":null,", false, false },
  { "\"tokens\":null,", false, false }, { "\"messages\":null,", false, false }, { "\"mask\":null,", false, false },
  { "\"id\":1,", false, true }, { "\"mask\":[1],", true, false }, { "\"weights\":[1],", false, true },
  { "\"weight\":false,", true, true } };
enum { BESIDE = sizeof beside / sizeof *beside };

/* Returns its bytes; *good: whether it can be read. */
static size_t make_line(struct fuzz *f, char *text, int row, bool *good)
{
  static const char *const plain[] = { "system", "user", "assistant", "tool" };
  static const char *const other[] = { "system", "human", "gpt", "tool" };
  FILE *to = fmemopen(text, MOST, "w");
  const int n = 2 * (1 + (int)fuzz_below(f, 4));
  const size_t form = fuzz_below(f, 5), k = fuzz_below(f, 8 * BESIDE);
  bool read = true;
  fprintf(to, "{%s", k < BESIDE ? beside[k].text : "");
  switch (form) {
  case 0: fputs("\"messages\":", to), read = put_turns(f, to, row, "role", "content", plain, 0, n); break;
  case 1: fputs("\"conversations\":", to), read = put_turns(f, to, row, "from", "value", other, 0, n); break;
  case 2:
    fputs("\"prompt\":", to), read = put_turns(f, to, row, "role", "content", plain, 0, n - 1);
    fputs(",\"completion\":", to), read &= put_turns(f, to, row, "role", "content", plain, n - 1, 1);
    break;
  case 3: fputs("\"prompt\":", to), put_text(f, to), fputs(",\"completion\":", to), put_text(f, to); break;
  default:
    fputs("\"tokens\":[1", to);
    for (int i = 1; i < n; i++) fprintf(to, ",%d", (int)fuzz_below(f, 300));
    fputs("],\"mask\":[0", to);
    for (int i = 1; i < n; i++) fprintf(to, ",%d", i + 1 == n || fuzz_below(f, 2));
    fputc(']', to);
  }
  fputc('}', to);
  *good = read && (k >= BESIDE || !(form < 4 ? beside[k].of_turns : beside[k].of_tokens));
  const size_t bytes = (size_t)ftell(to);
  fclose(to);
  return bytes;
}

/* ---- what a line means --------------------------------------------------------------- */

struct turn { const char *role; const json_t *text; bool counts; };
struct meaning { struct turn turn[MOST_TURNS]; int n; const json_t *tokens, *mask; };

static void add_turns(struct meaning *m, const json_t *list, const char *role, const char *text, bool counts)
{
  const json_t *x;
  size_t i;
  json_array_foreach(list, i, x) {
    const json_t *weight = json_object_get(x, "weight");
    const bool out = json_is_false(weight) || (json_is_number(weight) && json_number_value(weight) == 0);
    TC_ASSERT(m->n < MOST_TURNS);
    m->turn[m->n++] = (struct turn){ json_string_value(json_object_get(x, role)), json_object_get(x, text),
                                     counts && !out };
  }
}

static const json_t *get(const json_t *line, const char *key)
{
  const json_t *x = json_object_get(line, key);
  return json_is_null(x) ? NULL : x;
}

static void find_meaning(struct meaning *m, const json_t *line)
{
  const json_t *prompt = json_object_get(line, "prompt"), *completion = json_object_get(line, "completion");
  *m = (struct meaning){ .tokens = get(line, "tokens"), .mask = get(line, "mask") };
  if (m->tokens) return;
  add_turns(m, json_object_get(line, "messages"), "role", "content", true);
  add_turns(m, json_object_get(line, "conversations"), "from", "value", true);
  if (json_is_string(prompt)) m->turn[m->n++] = (struct turn){ "user", prompt, false };
  else add_turns(m, prompt, "role", "content", false);
  if (json_is_string(completion)) m->turn[m->n++] = (struct turn){ "assistant", completion, true };
  else add_turns(m, completion, "role", "content", true);
}

static bool is_answer(const char *role) { return !strcmp(role, "assistant") || !strcmp(role, "gpt"); }

/* The text, and of each byte whether it counts. *counts is owned by the caller, as is the text. */
static char *render(const struct meaning *m, int row, size_t *n, char **counts)
{
  char *text = NULL, *of = NULL;
  size_t bytes;
  FILE *to = open_memstream(&text, n), *weights = open_memstream(&of, &bytes);
  if (row == MISTRAL) fputs("<s>", to);
  for (int i = 0; i < m->n; i++) {
    const struct turn *x = &m->turn[i];
    const bool answer = is_answer(x->role);
    const char *role = !strcmp(x->role, "human") ? "user" : answer ? "assistant" : x->role;
    if (row == CHATML) fprintf(to, "<|im_start|>%s\n", role);
    else if (!answer) fputs("[INST] ", to);
    const long begin = ftell(to);
    fwrite(json_string_value(x->text), 1, json_string_length(x->text), to);
    fputs(row == CHATML ? "<|im_end|>" : answer ? "</s>" : " [/INST]", to);
    const long end = ftell(to);
    if (row == CHATML) fputc('\n', to);
    for (long at = ftell(weights); at < ftell(to); at++) fputc(at >= begin && at < end && answer && x->counts, weights);
  }
  TC_ASSERT(fclose(to) == 0 && fclose(weights) == 0);
  *counts = of;
  return text;
}

/* What is wrong with an accepted line; NULL: nothing. */
static const char *compare(struct setup *s, const struct tc_text_unit *u, const json_t *line, int row)
{
  struct meaning m;
  const char *wrong = NULL;
  find_meaning(&m, line);
  if (!(u->weight[0] & TC_WEIGHT_BEGINS) || u->documents != 1) return "no sample begins";
  for (size_t i = 0; m.tokens && i < u->ids.n; i++) {
    const json_t *x = json_array_get(m.mask, i);
    const bool counts = !m.mask || json_is_true(x) || (json_is_number(x) && json_number_value(x) == 1);
    if (u->ids.id[i] != json_number_value(json_array_get(m.tokens, i))) wrong = "another token";
    if ((u->weight[i] & TC_WEIGHT_COUNTS) != counts) wrong = "another mask";
  }
  if (m.tokens) return u->ids.n == json_array_size(m.tokens) ? wrong : "another number of tokens";
  size_t n, at = 0;
  char *counts, *text = render(&m, row, &n, &counts);
  struct tc_ids ids = { 0 };
  struct tc_err err;
  TC_ASSERT(tc_encode(s->e, text, n, TC_INVALID_REFUSE, &ids, NULL, &err) == 0);
  if (ids.n != u->ids.n || memcmp(ids.id, u->ids.id, n ? ids.n * sizeof *ids.id : 0) != 0) wrong = "other ids";
  for (size_t i = 0; i < ids.n && !wrong; i++) {
    size_t bytes;
    bool any = false;
    TC_ASSERT(tc_tokenizer_bytes(s->t, ids.id[i], &bytes) && at + bytes <= n);
    for (size_t k = at; k < at + bytes; k++) any |= counts[k];
    if (any != (u->weight[i] & TC_WEIGHT_COUNTS)) wrong = "another weight";
    at += bytes;
  }
  if (!wrong && at != n) wrong = "tokens of other bytes";
  tc_ids_free(&ids);
  TC_FREE(text, counts);
  return wrong;
}

/* ---- cases --------------------------------------------------------------------------- */

static int one_case(struct fuzz *f, struct setup *s, char *text)
{
  static char name[] = "lines.jsonl";
  char *const names[] = { name };
  const int row = (int)fuzz_below(f, ROWS);
  const struct tc_shards_opts o = { .text = names, .n_texts = 1, .chat = "" };
  const struct tc_shards_job job = { .o = &o, .t = s->t, .chat = s->chat[row], .eod = -1 };
  bool good;
  size_t n = make_line(f, text, row, &good), times = fuzz_below(f, 4);
  for (size_t i = times; i > 0 && n > 1; i--) fuzz_damage(f, text, &n, 0, MOST);
  for (size_t i = 0; i < n; i++)
    if (text[i] == '\n') text[i] = ' ';
  struct tc_text_unit u = { .at.line = 7, .text = text, .n = n, .jsonl = true };
  tc_text_unit_encode(&u, &job, s->e);
  const char *wrong = NULL;
  if (u.err.status == TC_OK && u.ids.n > 0) {
    json_t *line = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    wrong = line ? compare(s, &u, line, row) : "accepted, though it is no JSON";
    f->accepted += times > 0;
    json_decref(line);
  } else if (u.err.status == TC_OK) wrong = strspn(text, " \t\r") < n ? "accepted without tokens" : NULL;
  else if (u.ids.n || u.documents || u.counted || u.special) wrong = "refused, but something is left";
  else if (strncmp(u.err.text, "text 'lines.jsonl', line 7: ", 28) || !u.err.text[28]) wrong = "refused without a sentence";
  if (times == 0 && !good && u.err.status == TC_OK) wrong = "accepted, though it can't be read";
  if (times == 0 && good && u.err.status < 0 && !strstr(u.err.text, "is to be trained on")) wrong = u.err.text;
  const int faults = wrong ? fuzz_fault(f, wrong) : 0;
  if (wrong) printf("#   %s: %.*s\n", rows[row], (int)n, text);
  tc_ids_free(&u.ids);
  free(u.weight);
  return faults;
}

int main(int argc, char **argv)
{
  struct fuzz f;
  struct setup s;
  struct tc_err err = { 0 };
  char dir[] = "/tmp/fuzz_chat-XXXXXX", *top = realpath(getenv("srcdir") ? getenv("srcdir") : ".", NULL), *text = tc_malloc(MOST);
  fuzz_start(&f, argc, argv);
  TC_ASSERT(top && mkdtemp(dir) && chdir(dir) == 0);
  json_t *added = json_pack("[s, s, s, s]", "<|im_start|>", "<|im_end|>", "<s>", "</s>");
  json_t *config = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
  write_tokenizer(top, "gpt2", added);
  TC_ASSERT(json_dump_file(config, "tokenizer_config.json", 0) == 0);
  TC_ASSERT(tc_tokenizer_load(&s.t, "tokenizer.json", &err) == 0 && tc_encoder_new(&s.e, s.t, &err) == 0);
  for (int i = 0; i < ROWS; i++) TC_ASSERT(tc_chat_new(&s.chat[i], rows[i], "tokenizer.json", s.t, &err) == 0);
  const int64_t rss_kb = fuzz_rss_kb();
  int faults = 0;
  while (fuzz_more(&f)) faults += one_case(&f, &s, text);
  is_int(faults, 0, "no faults");
  ok(f.accepted > f.cases / 50, "some damaged lines are accepted");
  for (int i = 0; i < ROWS; i++) tc_chat_free(s.chat[i]);
  tc_encoder_free(s.e);
  tc_tokenizer_free(s.t);
  json_decref(added);
  json_decref(config);
  unlink("tokenizer.json");
  unlink("tokenizer_config.json");
  TC_ASSERT(chdir("/") == 0 && rmdir(dir) == 0);
  TC_FREE(text, top);
  return fuzz_end(&f, "fuzz_chat", rss_kb);
}
