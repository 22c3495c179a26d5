/* prove.h - what the files of `tercio prove` share: cmd_prove.c (flags, proofs), prove_print.c (tables and JSON),
 * prove_mark.c (--once), ticker.c (a line of progress). */
#ifndef TC_CMD_PROVE_H
#define TC_CMD_PROVE_H

#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/prove/prove.h"

/* The flags. */
struct tc_prove_ask {
  const char *world, *file;
  int against;                   /* an index of its words; -1: it was not given */
  int steps, number;
  int64_t seed, fuzz;
  bool json, full_width, as_is, once;
};

/* A line each second, of what is being done, by a thread of its own: programs take a while to make, too. */
struct tc_ticker {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stopped;
  bool stop, terminal;
  char what[200];
  int64_t begin_ns;
};
/* ticker.c. Local, all. _clear: before something else is printed. */
int tc_ticker_start(struct tc_ticker *t, struct tc_err *err);
void tc_ticker_stop(struct tc_ticker *t);
void tc_ticker_say(void *ticker, const char *what);
void tc_ticker_clear(struct tc_ticker *t);

struct tc_proving {
  struct tc_prove_ask ask;
  struct tc_ticker ticker;
  struct tc_config *cfg;         /* as given, complete */
  struct tc_scaled scaled;
  struct tc_mesh *mesh;
  int world;
  int32_t *node;
  char title[200];               /* of what runs, for progress */
  json_t *out;
  int status;                    /* the first that is not 0: 1 */
};

/* prove_print.c. Local, all. The mesh, and what was made small; unless JSON is asked for. */
void tc_prove_print_scaled(const struct tc_proving *p);
void tc_prove_print(const struct tc_proof *f);
/* Owned by the caller. */
json_t *tc_prove_json(const struct tc_proof *f, const char *precision, const char *device, const struct tc_blame *b);
/* The mesh and the sizes that are proved, in p->out. */
void tc_prove_json_run(const struct tc_proving *p);

/* prove_mark.c: OUT/proved, "proved " and a hash of the run, the nodes and the rows of annotations. Local. *path and *text
 * are owned by the caller. TC_EUSER. */
int tc_prove_mark_of(char **path, char **text, const struct tc_proving *p, struct tc_err *err);
bool tc_prove_is_marked(const char *path, const char *text);
int tc_prove_mark(const struct tc_proving *p, const char *path, const char *text, struct tc_err *err);

#endif
