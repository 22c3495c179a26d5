/* chat.h - conversations as the text that a model's chat template makes of them.
 *
 * In: a line of JSON with a conversation, and the template of the tokenizer's folder or one that is named. Out: the text, and
 * where its turns are. A template is a row of chat.def, which is known to give what the published text gives; texts of
 * templates are not run. All is Local, and fails with TC_EUSER. */
#ifndef TC_SHARDS_CHAT_H
#define TC_SHARDS_CHAT_H

#include "src/token/token.h"

struct json_t;                    /* jansson's */

enum tc_chat_role { TC_CHAT_SYSTEM, TC_CHAT_USER, TC_CHAT_ASSISTANT, TC_CHAT_TOOL, TC_CHAT_ROLES };

struct tc_chat_row {
  const char *name;
  const char *bos;                /* where the tokenizer's folder does not say it */
  const char *begin;              /* before the first turn */
  const char *no_system;          /* ... if that is not the system's */
  const char *first_system;       /* before its content, if it is */
  /* What is before and after the content of a turn; the latter ends an answer. NULL: the template has no such turns. */
  struct { const char *head, *tail; } role[TC_CHAT_ROLES];
  const char *after;              /* each turn */
  const char *tool_join;          /* between two turns of tools, instead of what is behind the one and before the other */
  bool strips;                    /* white space at the ends of a content is left out */
  bool thinks;                    /* <think> in answers is as in Qwen3's template */
  bool alternates;                /* a turn is the user's where its number is odd, and only there */
  uint64_t hash[4];               /* of texts; 0: no more */
};

/* A row, and its texts in which tokens of the tokenizer stand. */
struct tc_chat {
  const struct tc_chat_row *row;
  char *begin, *tail[TC_CHAT_ROLES];      /* owned; NULL: as in the row */
  struct tc_ids control;          /* the added tokens of these texts */
};
/* The row `name`, or, if that is "", the one that has the text of the chat template in the folder of tokenizer.json, whose path
 * is `path`. Owned by the caller. */
int tc_chat_new(struct tc_chat **out, const char *name, const char *path, const struct tc_tokenizer *t, struct tc_err *err);
/* The same of files that are not in a folder, but members of a JSON object, with their texts; path is for sentences. */
int tc_chat_beside(struct tc_chat **out, const char *name, const struct json_t *files, const char *path,
                   const struct tc_tokenizer *t, struct tc_err *err);
void tc_chat_free(struct tc_chat *c);
/* Differs where the row does, or a token of the tokenizer that it begins or ends with. */
uint64_t tc_chat_identity(const struct tc_chat *c);
/* The hash of a template's text, FNV-1a. */
uint64_t tc_chat_hash(const char *text, size_t n);

/* A turn of a conversation; content[n] is borrowed. */
struct tc_chat_turn { enum tc_chat_role role; bool counts; const char *content; size_t n; };
/* What a line has: turns, or (raw) tokens with their weights. All owned but what the turns borrow of the line. */
struct tc_chat_line {
  struct tc_chat_turn *turn;
  size_t n, cap;
  bool raw;
  bool asks;                      /* set by the caller: what is read is to be answered, so that a prompt needs no completion */
  struct tc_ids ids;
  uint8_t *weight;                /* [ids.n] 0 or 1 */
};
/* chat_line.c. Reads {"messages": ...}, {"conversations": ...}, {"prompt": ..., "completion": ...} or {"tokens": ...}. Begins
 * anew in *l, which is zero but for `asks`, or was read before. vocab: of tokens. */
int tc_chat_line_read(struct tc_chat_line *l, const struct json_t *line, int64_t vocab, struct tc_err *err);
void tc_chat_line_free(struct tc_chat_line *l);

/* A text, and where its turns are, in bytes: a turn's content is at [content, tail), what ends it at [tail, end). */
struct tc_chat_text {
  char *s;
  size_t n, cap;
  struct tc_chat_span { size_t content, tail, end; } *span;      /* [n_spans] one of each turn */
  size_t n_spans, spans_cap;
};
/* Renders turns. TC_EUSER: the template has no such conversation. Begins anew in *to. */
int tc_chat_render(const struct tc_chat *c, const struct tc_chat_turn *turn, size_t n, struct tc_chat_text *to,
                   struct tc_err *err);
/* The same and what is before an answer, as apply_chat_template has it with add_generation_prompt. TC_EUSER: also where the last
 * turn is an answer. */
int tc_chat_ask(const struct tc_chat *c, const struct tc_chat_turn *turn, size_t n, struct tc_chat_text *to, struct tc_err *err);
/* The token that ends an answer. */
int32_t tc_chat_end(const struct tc_chat *c, const struct tc_tokenizer *t);
void tc_chat_text_free(struct tc_chat_text *x);

#endif
