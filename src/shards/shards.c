/* shards.c - text to shards by several threads.
 *
 * Units pass through a ring of slots: the reader fills them in the order of the input, encoders take the next one
 * that is read, the calling thread writes the next one that is encoded. A slot's state says whose it is:
 *   FREE (the reader's) -> READ (any encoder's) -> BUSY (one encoder's) -> DONE (the writer's) -> FREE.
 * Invariants: slot i % n_slots has unit i; written <= taken <= read <= written + n_slots, all under the lock. */
#include "src/shards/impl.h"
#include "src/launch/stop.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t PROGRESS_NS = INT64_C(2000000000), LOOK_NS = INT64_C(200000000);
enum { SLOTS_EACH = 4 };

enum state { FREE, READ, BUSY, DONE };

struct pipeline {
  struct tc_shards_job job;
  struct tc_text_units *units;
  struct tc_text_unit *slot;           /* [n_slots] */
  enum state *state;
  int n_slots;
  int64_t read, taken, written;   /* units */
  bool ended;                     /* the reader is done: by the end of the input, or by read_err */
  struct tc_err read_err;
  atomic_bool quit;
  pthread_mutex_t lock;
  pthread_cond_t change;
  pthread_t reader, *encoder;     /* [n_encoders] */
  int n_encoders;
  bool reader_runs;
};

struct maker {
  const struct tc_shards_opts *o;
  struct pipeline p;
  struct tc_shard_files shards;
  struct tc_shards_note note;
  struct stat *was;               /* [n_texts] the texts when the call began, zero of pipes; owned */
  struct tc_output_kept *kept;    /* [n_texts] the texts, which no shard replaces; owned */
  char *tokenizer;                /* the text of tokenizer.json, which is read once: it may come from a pipe; owned */
  size_t tokenizer_bytes;
  struct tc_err first_bad;        /* the first line that was left out by this call */
  int64_t total_bytes;            /* -1: not known */
  int64_t told_ns;
  int64_t started_ns, begun;      /* when the first unit was begun, after so many bytes; begun < 0: not yet */
};

/* ---- threads --------------------------------------------------------------------------- */

static bool asked_to_quit(void *arg)
{
  const struct pipeline *p = arg;
  return atomic_load(&p->quit);
}

static void *read_units(void *arg)
{
  struct pipeline *p = arg;
  int more = 1;
  while (more > 0) {
    pthread_mutex_lock(&p->lock);
    struct tc_text_unit *u = &p->slot[p->read % p->n_slots];
    enum state *state = &p->state[p->read % p->n_slots];
    while (*state != FREE && !atomic_load(&p->quit)) pthread_cond_wait(&p->change, &p->lock);
    pthread_mutex_unlock(&p->lock);
    more = atomic_load(&p->quit) ? 0 : tc_text_units_next(p->units, u, &p->read_err);
    pthread_mutex_lock(&p->lock);
    if (more > 0) {
      *state = READ;
      p->read++;
    } else p->ended = true;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->lock);
  }
  return NULL;
}

/* The next unit to encode; NULL: there are no more. */
static struct tc_text_unit *take(struct pipeline *p)
{
  struct tc_text_unit *u = NULL;
  pthread_mutex_lock(&p->lock);
  while (p->taken == p->read && !p->ended && !atomic_load(&p->quit)) pthread_cond_wait(&p->change, &p->lock);
  if (p->taken < p->read && !atomic_load(&p->quit)) {
    const int64_t i = p->taken++ % p->n_slots;
    p->state[i] = BUSY;
    u = &p->slot[i];
  }
  pthread_mutex_unlock(&p->lock);
  return u;
}

static void set_state(struct pipeline *p, const struct tc_text_unit *u, enum state state)
{
  pthread_mutex_lock(&p->lock);
  p->state[u - p->slot] = state;
  pthread_cond_broadcast(&p->change);
  pthread_mutex_unlock(&p->lock);
}

static void *encode_units(void *arg)
{
  struct pipeline *p = arg;
  struct tc_encoder *e = NULL;
  struct tc_err err = { 0 };
  struct tc_text_unit *u;
  tc_encoder_new(&e, p->job.t, &err);
  while ((u = take(p))) {
    if (e) tc_text_unit_encode(u, &p->job, e);
    else u->err = err;
    set_state(p, u, DONE);
  }
  tc_encoder_free(e);
  return NULL;
}

static int start_threads(struct pipeline *p, int n, struct tc_err *err)
{
  TC_TRY(tc_thread_start(&p->reader, read_units, p, err));
  p->reader_runs = true;
  for (; p->n_encoders < n; p->n_encoders++)
    TC_TRY(tc_thread_start(&p->encoder[p->n_encoders], encode_units, p, err));
  return TC_OK;
}

static void stop_threads(struct pipeline *p)
{
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->quit, true);
  pthread_cond_broadcast(&p->change);
  pthread_mutex_unlock(&p->lock);
  if (p->reader_runs) pthread_join(p->reader, NULL);
  for (int i = 0; i < p->n_encoders; i++) pthread_join(p->encoder[i], NULL);
}

static int pipeline_new(struct pipeline *p, const struct tc_shards_note *from, struct tc_err *err)
{
  const struct tc_shards_opts *o = p->job.o;
  const int n = o->threads ? o->threads : tc_cpus();
  atomic_init(&p->quit, false);
  pthread_mutex_init(&p->lock, NULL);
  tc_cond_init(&p->change);
  p->n_slots = SLOTS_EACH * n;
  p->slot = tc_calloc((size_t)p->n_slots, sizeof *p->slot);
  p->state = tc_calloc((size_t)p->n_slots, sizeof *p->state);
  p->encoder = tc_calloc((size_t)n, sizeof *p->encoder);
  p->units = tc_text_units_new(&p->job, from->at, asked_to_quit, p);
  return start_threads(p, n, err);
}

static void pipeline_free(struct pipeline *p)
{
  if (!p->slot) return;
  stop_threads(p);
  tc_text_units_free(p->units);
  for (int i = 0; i < p->n_slots; i++) {
    free(p->slot[i].text);
    tc_ids_free(&p->slot[i].ids);
    free(p->slot[i].weight);
  }
  TC_FREE(p->slot, p->state, p->encoder);
  pthread_cond_destroy(&p->change);
  pthread_mutex_destroy(&p->lock);
}

/* ---- progress -------------------------------------------------------------------------- */

static void say_left(char *text, size_t size, double seconds)
{
  if (seconds < 100) snprintf(text, size, "%.0f s left", seconds);
  else if (seconds < 6000) snprintf(text, size, "%.0f min left", seconds / 60);
  else snprintf(text, size, "%.1f h left", seconds / 3600);
}

/* A line every two seconds, so none for short work. */
static void say_progress(struct maker *m)
{
  const int64_t now_ns = tc_now_ns();
  int64_t begun;
  const double done = (double)tc_text_units_done(m->p.units, &begun);
  if (m->begun < 0) m->started_ns = now_ns;      /* so that the speed is that of encoding */
  if (m->begun < 0 && begun >= 0) m->told_ns = now_ns;
  m->begun = begun;
  if (now_ns - m->told_ns < PROGRESS_NS) return;
  m->told_ns = now_ns;
  if (begun < 0) {
    char passed[32];
    tc_say("tercio data: ", "\n", "passing over what the shards have already: %s",
           tc_human_bytes(passed, sizeof passed, done));
    return;
  }
  const double seconds = (double)(now_ns - m->started_ns) * 1e-9, rate = (done - (double)begun) / seconds;
  const double tokens = (double)(m->note.tokens + m->shards.header.n_tokens);
  char a[32], b[32], c[32], of[80] = "", left[40] = "";
  if (m->total_bytes > 0) {
    if (rate > 0) say_left(left, sizeof left, ((double)m->total_bytes - done) / rate);
    snprintf(of, sizeof of, " of %s (%d %%)", tc_human_bytes(b, sizeof b, (double)m->total_bytes),
             (int)(100 * done / (double)m->total_bytes));
  }
  tc_say("tercio data: ", "\n", "%s%s, %.4g M tokens, %s/s%s%s", tc_human_bytes(a, sizeof a, done), of, tokens * 1e-6,
         tc_human_bytes(c, sizeof c, rate), *left ? ", " : "", left);
}

/* ---- writing --------------------------------------------------------------------------- */

static void fail_asked(const struct maker *m, int asked, struct tc_err *err)
{
  const int status = asked == TC_STOP_REQUEUE ? TC_STOPPED : TC_ENDED;
  if (m->shards.single) tc_fail(err, status, "stopped on request; run the same command to make %s", m->o->out);
  else
    tc_fail(err, status, "stopped on request; %d shard%s complete in %s; run the same command to go on", m->note.shards,
            m->note.shards == 1 ? " is" : "s are", m->o->out);
}

/* Waits for the next encoded unit; NULL: the input has ended, or (in err) something failed. */
static struct tc_text_unit *next_unit(struct maker *m, struct tc_err *err)
{
  struct pipeline *p = &m->p;
  struct tc_text_unit *u = NULL;
  pthread_mutex_lock(&p->lock);
  while (!u) {
    const int64_t i = p->written % p->n_slots;
    const int asked = tc_stop_asked(m->o->stop);
    if (asked) {
      fail_asked(m, asked, err);
      break;
    }
    if (p->written < p->read && p->state[i] == DONE) u = &p->slot[i];
    else if (p->ended && p->written == p->read) break;
    else tc_cond_wait_until(&p->change, &p->lock, tc_now_ns() + LOOK_NS);
    say_progress(m);
  }
  if (!u && !err->status && p->read_err.status) *err = p->read_err;
  pthread_mutex_unlock(&p->lock);
  return u;
}

/* The open shard is finished, and the note says that the tokens after the first `skip` of the unit at `at` come
 * next. */
static int finish_shard(struct maker *m, struct tc_text_place at, int64_t skip, struct tc_err *err)
{
  m->note.tokens += m->shards.header.n_tokens;
  TC_TRY(tc_shard_files_finish(&m->shards, err));
  m->shards.header.n_tokens = 0;
  m->note.shards = m->shards.number;
  m->note.at = at;
  m->note.skip = skip;
  return m->shards.single ? TC_OK : tc_shards_note_write(&m->note, &m->p.job, err);
}

static int fail_size(struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "the texts have more than %d bytes, and a shard holds at most as many tokens; make several "
                 "shards and name them all in data.train", INT32_MAX);
}

/* skip: tokens of it that earlier shards have. */
static int write_unit(struct maker *m, const struct tc_text_unit *u, int64_t skip, struct tc_err *err)
{
  const int64_t n = (int64_t)u->ids.n;
  if (u->err.status < 0) return *err = u->err, u->err.status;
  if (skip > n)
    return tc_fail(err, TC_EUSER, "text '%s' is not what it was when the shards in %s were begun",
                   m->o->text[u->at.source], m->o->out);
  for (int64_t at = skip; at < n;) {
    const int64_t put = tc_shard_files_put(&m->shards, u->ids.id + at, m->shards.weighted ? u->weight + at : NULL, n - at, err);
    if (put < 0) return (int)put;
    if (put == 0) return fail_size(err);                    /* the one file is full */
    at += put;
    if (tc_shard_files_full(&m->shards) && !m->shards.single) TC_TRY(finish_shard(m, u->at, at, err));
  }
  if (u->bad && !m->first_bad.status) m->first_bad = u->first_bad;
  m->note.documents += u->documents;
  m->note.empty += u->empty;
  m->note.invalid += u->invalid;
  m->note.bad += u->bad;
  m->note.counted += u->counted;
  m->note.special += u->special;
  return TC_OK;
}

static int write_units(struct maker *m, struct tc_err *err)
{
  struct tc_text_unit *u;
  int64_t skip = m->note.skip;
  while ((u = next_unit(m, err))) {
    TC_TRY(write_unit(m, u, skip, err));
    skip = 0;
    pthread_mutex_lock(&m->p.lock);
    m->p.written++;
    pthread_mutex_unlock(&m->p.lock);
    set_state(&m->p, u, FREE);
  }
  if (err->status < 0) return err->status;
  m->note.complete = true;
  return finish_shard(m, (struct tc_text_place){ m->o->n_texts, 0, 1 }, 0, err);
}

/* ---- all of it ----------------------------------------------------------------------- */

/* The byte between documents, which only JSONL needs: nothing else parts its texts. */
static int find_eod_byte(struct tc_shards_job *job, const struct tc_shards_opts *o, struct tc_err *err)
{
  char *end;
  const long byte = o->eod ? strtol(o->eod, &end, 10) : -1;
  if (o->eod && (end == o->eod || *end || byte < 0 || byte > 255))
    return tc_fail(err, TC_EUSER, "--eod %.60s: without a tokenizer a token is a byte: give its number, 0 to 255", o->eod);
  for (int i = 0; i < o->n_texts && byte < 0; i++)
    if (tc_text_is_jsonl(o, i))
      return tc_fail(err, TC_EUSER, "text '%s' is JSONL: without a tokenizer give the byte between its texts, such as "
                     "--eod 10, a new line, or --eod 0", o->text[i]);
  job->eod = byte;
  return TC_OK;
}

static int find_eod(struct tc_shards_job *job, const struct tc_shards_opts *o, struct tc_err *err)
{
  if (!o->tokenizer) return find_eod_byte(job, o, err);
  if (o->chat) return job->eod = -1, TC_OK;               /* templates end turns, not documents */
  const int64_t id = o->eod ? tc_tokenizer_find(job->t, o->eod) : tc_tokenizer_end_of_text(job->t);
  if (id < 0 && o->eod)
    return tc_fail(err, TC_EUSER, "--eod %.60s: tokenizer '%s' has no such token", o->eod, o->tokenizer);
  if (id < 0)
    return tc_fail(err, TC_EUSER, "tokenizer '%s' has neither <|endoftext|>, <|end_of_text|>, </s> nor <eos>; name "
                   "the token between documents by --eod TOKEN", o->tokenizer);
  job->eod = id;
  return TC_OK;
}

/* Every text can be opened, before anything is written; notes its size and time. */
static int check_texts(struct maker *m, struct tc_err *err)
{
  const struct tc_shards_opts *o = m->o;
  bool jsonl = false;
  for (int i = 0; i < o->n_texts; i++) {
    struct tc_text_input *in;
    TC_TRY(tc_text_input_open(&in, o->text[i], o->invalid == TC_INVALID_REFUSE, err));
    const bool pipe = tc_text_input_is_pipe(in);
    tc_text_input_free(in);
    m->kept[i] = (struct tc_output_kept){ o->text[i], "one of the texts" };
    jsonl |= tc_text_is_jsonl(o, i);
    if (pipe) m->total_bytes = -1;
    else if (stat(o->text[i], &m->was[i]) != 0)
      return tc_fail(err, TC_EUSER, "text file '%s': %s", o->text[i], strerror(errno));
    else if (m->total_bytes >= 0 && __builtin_add_overflow(m->total_bytes, m->was[i].st_size, &m->total_bytes))
      return tc_fail(err, TC_EUSER, "text file '%s': the texts have more bytes than can be counted", o->text[i]);
  }
  return m->shards.single && !jsonl && m->total_bytes > INT32_MAX ? fail_size(err) : TC_OK;
}

/* What the folder has, and what has to be in it before the first shard. Nothing is left to do if m->note.complete. */
static int begin_folder(struct maker *m, struct tc_err *err)
{
  const struct tc_shards_opts *o = m->o;
  bool found;
  TC_TRY(tc_shards_note_read(&m->note, &found, &m->p.job, err));
  TC_TRY(tc_shard_files_check(&m->shards, m->note.shards, m->note.tokens, err));
  if (m->note.complete) return TC_OK;
  if (!found) TC_TRY(tc_shards_folder_tokenizer(o, m->tokenizer, m->tokenizer_bytes, err));
  if (!found) TC_TRY(tc_shards_note_write(&m->note, &m->p.job, err));
  if (m->note.shards) printf("%s: going on after %d shards\n", o->out, m->note.shards);
  return TC_OK;
}

static int run(struct maker *m, struct tc_err *err)
{
  const struct tc_shards_opts *o = m->o;
  const int64_t vocab = tc_tokenizer_vocab(m->p.job.t);
  struct tc_shard_files *s = &m->shards;
  s->header = (struct tc_shard_header){ .width = vocab <= 65536 ? 2 : 4, .hash = tc_tokenizer_hash(m->p.job.t),
                                        .vocab = vocab, .eod = m->p.job.eod };
  s->shard_tokens = s->single ? INT32_MAX : o->shard_tokens;
  s->kept = m->kept;
  s->weighted = o->chat != NULL;
  s->n_kept = o->n_texts;
  m->note.at.line = 1;
  TC_TRY(s->single ? tc_shard_files_check_single(s, err) : begin_folder(m, err));
  if (m->note.complete) return TC_OK;
  s->number = m->note.shards;
  tc_stop_run(o->stop, NULL);
  m->started_ns = m->told_ns = tc_now_ns();
  m->begun = -1;
  TC_TRY(pipeline_new(&m->p, &m->note, err));
  TC_TRY(write_units(m, err));
  if (!s->single || m->note.tokens) return TC_OK;
  return tc_fail(err, TC_EUSER, "the text%s empty: there is nothing to make %s of", o->n_texts == 1 ? " is" : "s are", o->out);
}

static int load_tokenizer(struct maker *m, struct tc_tokenizer **t, struct tc_err *err)
{
  const char *path = m->o->tokenizer;
  if (!path) return *t = tc_tokenizer_of_bytes(), TC_OK;
  TC_TRY(tc_tokenizer_read(&m->tokenizer, &m->tokenizer_bytes, path, err));
  return tc_tokenizer_parse(t, m->tokenizer, m->tokenizer_bytes, path, err);
}

/* o has files as texts. */
static int make(struct tc_shards_made *made, const struct tc_shards_opts *o, struct tc_err *err)
{
  struct tc_tokenizer *t = NULL;
  struct tc_chat *chat = NULL;
  struct maker m = { .o = o, .shards = { .out = o->out, .single = !o->tokenizer } };
  int lock = -1, status = load_tokenizer(&m, &t, err);
  m.was = tc_calloc((size_t)o->n_texts, sizeof *m.was);
  m.kept = tc_calloc((size_t)o->n_texts, sizeof *m.kept);
  if (status == TC_OK && o->chat) status = tc_chat_new(&chat, o->chat, o->tokenizer, t, err);
  m.p.job = (struct tc_shards_job){ .o = o, .t = t, .was = m.was, .chat = chat };
  if (status == TC_OK) status = find_eod(&m.p.job, o, err);
  if (status == TC_OK) status = check_texts(&m, err);
  if (status == TC_OK) status = tc_shards_folder_open(o, &lock, err);
  if (status == TC_OK) status = run(&m, err);
  if (status == TC_OK)
    *made = (struct tc_shards_made){ .tokens = m.note.tokens, .documents = m.note.documents, .empty = m.note.empty,
                                     .invalid = m.note.invalid, .bad = m.note.bad, .counted = m.note.counted,
                                     .special = m.note.special, .first_bad = m.first_bad,
                                     .shards = m.note.shards, .texts = o->n_texts, .vocab = tc_tokenizer_vocab(t) };
  pipeline_free(&m.p);
  tc_shard_files_end(&m.shards);
  tc_shards_note_free(&m.note);
  TC_FREE(m.was, m.kept, m.tokenizer);
  if (lock >= 0) close(lock);
  tc_chat_free(chat);
  tc_tokenizer_free(t);
  return status;
}

int tc_shards_make(struct tc_shards_made *made, const struct tc_shards_opts *o, struct tc_err *err)
{
  struct tc_texts texts = { 0 };
  struct tc_shards_opts of_files = *o;
  int status = tc_texts_find(&texts, o->text, o->n_texts, err);
  of_files.text = texts.name;
  of_files.n_texts = (int)texts.n;
  if (status == TC_OK) status = make(made, &of_files, err);
  tc_texts_free(&texts);
  return status;
}
