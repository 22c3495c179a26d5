/* request.c - rank 0's part of `tercio save`: looks for the file, keeps what it asks for, and
 * removes it when that is done.
 *
 * Invariant: the file is renamed before it is read, so that a request is answered once, and a new
 * one is not lost. */
#include "src/train/request.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1000 };
#define LOOK_NS INT64_C(1000000000)
#define RETRY_NS INT64_C(60000000000)   /* after a checkpoint that failed */

const char *const tc_request_word[TC_ASKS] = { "", "checkpoint", "requeue", "stop" };

static char *path_of(const struct tc_train *t, const char *name)
{
  return tc_sprintf("%s/%s", t->out, name);
}

static int read_request(const char *path)
{
  char *text, word[32] = "";
  size_t bytes;
  struct tc_err err;
  if (tc_read_text(&text, &bytes, path, "request", MOST_BYTES, &err) < 0) {
    tc_warn("%s; taken as %s", err.text, tc_request_word[TC_ASK_SAVE]);
    return TC_ASK_SAVE;
  }
  const bool empty = sscanf(text, "%31s", word) != 1;
  free(text);
  if (empty) return TC_ASK_SAVE;
  for (int k = TC_ASK_SAVE; k < TC_ASKS; k++)
    if (!strcmp(word, tc_request_word[k])) return k;
  tc_warn("%s: '%s' is not a request: give %s, %s or %s; taken as %s", path, word,
          tc_request_word[TC_ASK_SAVE], tc_request_word[TC_ASK_REQUEUE],
          tc_request_word[TC_ASK_END], tc_request_word[TC_ASK_SAVE]);
  return TC_ASK_SAVE;
}

void tc_request_begin(struct tc_train *t)
{
  const char *const name[] = { TC_REQUEST_FILE, TC_REQUEST_TAKEN };
  for (int i = 0; i < 2; i++) {
    char *path = path_of(t, name[i]);
    if (access(path, F_OK) == 0 && tc_unlink(AT_FDCWD, path) == 0)
      tc_log("%s: this request is from before this start: removed", path);
    free(path);
  }
}

/* The request that has come since the last look; TC_ASK_NONE. */
static int take(struct tc_train *t)
{
  char *from = path_of(t, TC_REQUEST_FILE), *to = path_of(t, TC_REQUEST_TAKEN);
  int kind = TC_ASK_NONE;
  tc_at_file("looking for a request", from);
  struct tc_request_state *r = &t->request;
  int why = access(from, F_OK) < 0 ? errno : 0;
  /* What may pass is waited for; so a name that can't be changed is tried seldom. */
  if (!why) why = r->failed_ns && tc_now_ns() - r->failed_ns < RETRY_NS ? EAGAIN : tc_rename(AT_FDCWD, from, to);
  if (!why) {
    kind = read_request(to);
    r->failed_ns = 0;
  } else if (why != ENOENT && why != EAGAIN) {
    if (!r->failed_ns) tc_warn("%s: %s: tercio save does not work here", from, strerror(why));
    r->failed_ns = tc_now_ns();
  }
  free(from);
  free(to);
  return kind;
}

int tc_request_look(struct tc_train *t, int64_t step, bool last)
{
  struct tc_request_state *r = &t->request;
  const int64_t now = tc_now_ns();
  bool due = now - r->begun_ns >= RETRY_NS && !tc_writer_busy(t->ckpt.writer);
  if (last || now - r->looked_ns >= LOOK_NS) {
    int kind = take(t);
    r->looked_ns = now;
    r->kind = TC_MAX(r->kind, kind);
    if (kind) r->step = step;
    due |= kind != TC_ASK_NONE;
  }
  if (!r->kind || !due) return TC_ASK_NONE;
  r->begun_ns = now;
  return r->kind;
}

void tc_request_end(struct tc_train *t)
{
  struct tc_request_state *r = &t->request;
  if (!r->kind || t->ckpt.saved_step < r->step) return;
  char *path = path_of(t, TC_REQUEST_TAKEN);
  tc_log("tercio save: the checkpoint of step %lld is there, as requested",
         (long long)t->ckpt.saved_step);
  const int why = tc_unlink(AT_FDCWD, path);
  if (why) tc_warn("%s: %s", path, strerror(why));
  free(path);
  *r = (struct tc_request_state){ .looked_ns = r->looked_ns, .failed_ns = r->failed_ns };
}
