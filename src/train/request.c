/* request.c - both parts of `tercio save`: rank 0 looks for the file, keeps what it asks for, and removes it when that
 * is done; the command writes it and waits for the answer.
 *
 * Invariant: the file is renamed before it is read, so that a request is answered once, and a new
 * one is not lost. */
#include "io/ckpt/ckpt.h"
#include "io/ckpt/owner.h"
#include "src/files/names.h"
#include "src/files/output.h"
#include "src/train/parts.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1000 };
#define LOOK_NS INT64_C(1000000000)
#define POLL_NS INT64_C(100000000)       /* of the command, for the answer */
#define ALIVE_NS INT64_C(5000000000)    /* how often to check that the run is alive */
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
  TC_FREE(from, to);
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

/* ---- the command ---- */

static int64_t newest_step(const struct tc_sent_request *a)
{
  int64_t *steps = NULL;
  int n = tc_ckpt_list_beside(a->ckpt_dir, &steps, NULL);
  const int64_t step = n > 0 ? steps[0] : -1;    /* the newest is the first */
  free(steps);
  return step;
}

static int none_under_way(const struct tc_sent_request *a, const char *when, struct tc_err *err)
{
  const int64_t step = newest_step(a);
  char newest[64] = "it has no checkpoint";
  if (step >= 0)
    snprintf(newest, sizeof newest, "its newest checkpoint is step %lld", (long long)step);
  return tc_fail(err, TC_EUSER, "%s: no run is in progress%s; %s", a->out, when, newest);
}

static int put(const struct tc_sent_request *a, struct tc_err *err)
{
  static const struct tc_output_kind request = { "a request of tercio save", { "checkpoint\n", "requeue\n", "stop\n" } };
  const struct tc_output_opts o = { .kind = &request, .instead = "wait until the run has taken it" };
  char text[32];
  snprintf(text, sizeof text, "%s\n", tc_request_word[a->kind]);
  return tc_output_text(a->file, &o, text, err);
}

static bool pending(const struct tc_sent_request *a)
{
  return tc_is_there(a->file) != 0 || tc_is_there(a->taken) != 0;
}

/* The file is removed after the checkpoint, but also at the next start of a run that crashed. */
static int answered(struct tc_sent_request *a, struct tc_err *err)
{
  a->made = newest_step(a);
  if (a->made < 0 || a->made == a->newest)
    return tc_fail(err, TC_EUSER, "%s: the run ended or was started again before it made the "
                   "checkpoint: request it again", a->out);
  return 0;
}

int tc_request_await(struct tc_sent_request *a, double wait_s, struct tc_err *err)
{
  const int64_t begin = tc_now_ns();
  int64_t looked = begin;
  while (pending(a)) {
    const int64_t now = tc_now_ns();
    if ((double)(now - begin) * 1e-9 > wait_s)
      return tc_fail(err, TC_EUSER, "%s: no checkpoint within %g s; the request stays, see the "
                     "run's log", a->out, wait_s);
    if (now - looked > ALIVE_NS) {
      int alive = tc_owner_alive(a->ckpt_dir, err);
      if (alive < 0) return alive;
      if (!alive && pending(a)) return none_under_way(a, " any more", err);
      looked = tc_now_ns();
    }
    tc_sleep_ns(POLL_NS);
  }
  return answered(a, err);
}

int tc_request_send(struct tc_sent_request *a, const char *out, const char *ckpt_dir, int kind, struct tc_err *err)
{
  *a = (struct tc_sent_request){ .out = out, .ckpt_dir = ckpt_dir, .kind = kind };
  a->file = tc_sprintf("%s/%s", out, TC_REQUEST_FILE);
  a->taken = tc_sprintf("%s/%s", out, TC_REQUEST_TAKEN);
  int alive = tc_owner_alive(ckpt_dir, err);
  if (alive < 0) return alive;
  if (!alive) return none_under_way(a, "", err);
  a->newest = newest_step(a);
  return put(a, err);
}

void tc_request_done(struct tc_sent_request *a)
{
  TC_FREE(a->file, a->taken);
}
