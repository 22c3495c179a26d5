/* sample.h - text from a model: prompts are read, then each sequence grows by one token at a time.
 *
 * Keys and values of all tokens so far are state of the program (op ATTN_CACHE), so a new token costs one pass over
 * the weights. Every rank chooses the next tokens itself, from logits that are the same on all ranks, with random
 * numbers that depend on the seed, the sequence and the position alone: so a layout changes nothing but rounding. */
#ifndef TC_SAMPLE_H
#define TC_SAMPLE_H

#include "src/forward/forward.h"
#include "src/run/trained.h"

struct tc_sampling {
  double temperature;            /* 0: the most likely token, always */
  int64_t top_k;                 /* only the k most likely tokens; 0: all */
  double top_p;                  /* only the most likely tokens that together have this probability; 1: all */
  uint64_t seed;
  int64_t tokens;                /* new ones of each sequence, at most; 1 or more */
  int32_t end[2];                /* [n_ends]: a sequence ends after each of these tokens, which is not part of its text */
  int n_ends;
  bool window;                   /* a text that exceeds the context goes on from its last half; false: TC_EUSER */
  int64_t known;                 /* ids below this may be chosen; 0: the model's vocabulary */
};

/* Local, pure. The first of logits[n] that no probabilities can be made of: one that is NaN or +inf, or number 0 where
 * all are -inf, which is the probability 0; -1: none. */
int64_t tc_sample_bad_logit(const float *logits, int64_t n);

/* Local, pure. The next token by logits[n], of which none is bad, and a random number `u` in [0, 1). `order` has room
 * for n. Of equal logits the lower id comes first. */
int32_t tc_sample_pick(const struct tc_sampling *s, const float *logits, int64_t n, double u, int32_t *order);

/* Local, pure. Whether a sequence ends after this token. */
bool tc_sample_ends(const struct tc_sampling *s, int32_t token);

/* A sequence's prompt, of 1 token or more. */
struct tc_prompt { const int32_t *token; int64_t n; };

/* Local, pure. tc_forward_args.prefill for prompts[n] of a model of this context (tc_setup_prompt_at_once). */
int64_t tc_sample_prefill(const struct tc_sampling *s, const struct tc_prompt *prompts, int64_t n, int64_t context);

/* A new token of sequence i. */
typedef void tc_sample_token_fn(void *ctx, int64_t i, int32_t token);

/* Collective. prompts[n], n = tc_forward_sequences: the same on all ranks. `token` is called on every rank. TC_EUSER: a
 * prompt and its new tokens exceed the model's context. TC_EDIVERGED: a logit is bad. */
int tc_sample(struct tc_forward *x, const struct tc_sampling *s, const struct tc_prompt *prompts, int64_t n,
              tc_sample_token_fn *token, void *ctx, struct tc_err *err);

/* ---- prompts.c: text as prompts ---- */

enum { TC_PROMPTS = 256 };             /* sequences at once */
struct tc_prompts {
  struct tc_prompt *prompt;            /* [n] as tc_sample takes them; owned, as their tokens are */
  int64_t n, cap;
  int64_t copies;                      /* set before: sequences of each prompt, one after the other */
};

/* Local. Adds the prompt `text` or, if that is NULL, those of `file`, one a line; and sets what sampling knows of the
 * model's tokens, and how many are new, if *how does not say. chat: each is what the user says, or if the file's name ends in
 * .jsonl a conversation (shards/chat.h), in the text of the chat template of this name, "" for that of the model's tokenizer; NULL:
 * plain text. TC_EUSER: none, too many, empty ones, tokens beyond the model's vocabulary, no such template or conversation. To be
 * freed even after an error. */
int tc_prompts_read(struct tc_prompts *out, struct tc_sampling *how, const struct tc_trained *m, const char *chat, const char *text,
                    const char *file, struct tc_err *err);
void tc_prompts_free(struct tc_prompts *p);

#endif
