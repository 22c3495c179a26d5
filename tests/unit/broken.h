/* broken.h - programs in which one thing is wrong, one after the other: what a check says of each, as digests
 * (digest.h). What is broken is put back before the next. A line is PASS RANKS RANK FLAGS. */
#ifndef TC_BROKEN_H
#define TC_BROKEN_H

#include "src/program/setup.h"
#include "tests/unit/digest.h"

/* The program at hand, and what a check says of it. */
struct bench {
  FILE *f;
  const char *pass;
  struct tc_mesh *m;
  struct tc_program *p;
  int rank;
};

/* `field` is `value` while the check looks; not if it is that already. */
#define TRY(say, b, i, field, value)                                                               \
  do {                                                                                             \
    const __typeof__(field) was_ = (field);                                                        \
    if ((field) != (__typeof__(field))(value)) {                                                   \
      (field) = (__typeof__(field))(value);                                                        \
      say(b, #field, i, (int64_t)(value));                                                         \
      (field) = was_;                                                                              \
    }                                                                                              \
  } while (0)

/* What is said of a program that is broken in field `what` of its i-th part, or in a value k of it. */
static void say(struct bench *b, const char *what, int32_t i, int64_t k, int rc, const struct tc_err *err)
{
  fprintf(b->f, "%s %d %lld: %d %s\n", what, i, (long long)k, rc, rc < 0 ? err->text : "");
}

/* What the test breaks of a program. */
static void break_all(struct bench *b);

static char *make_broken(const char *line)
{
  char *text = NULL, pass[20] = "";
  size_t bytes = 0;
  int world = 0, flags = 0;
  int32_t node[64] = { 0 };
  struct tc_err err = { 0 };
  struct bench b = { .f = open_memstream(&text, &bytes), .pass = pass };
  struct tc_config *c = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  sscanf(line, "%19s %d %d %n", pass, &world, &b.rank, &flags);
  int rc = read_config(&c, line + flags, &err);
  if (!rc) rc = tc_setup_mesh(&b.m, c, world, node, 0, &err);
  if (!rc) rc = tc_setup_program(&o, c, b.m, &rows, &err);
  if (!rc) rc = tc_program_new(&b.p, &o, b.m, b.rank, NULL, pass, &err);
  if (!rc) break_all(&b);
  tc_program_free(b.p);
  tc_annotations_free(rows);
  tc_mesh_free(b.m);
  tc_config_free(c);
  fclose(b.f);
  if (rc >= 0) return text;
  free(text);
  return tc_sprintf("status %d: %s", rc, err.text);
}

/* ---- invariants: of each there is a program that is refused with its sentence ---------- */

enum { MOST_INVARIANTS = 32 };
static bool invariant_met[MOST_INVARIANTS];

static void note_invariant(const char *(*sentence)(int i), const char *error)
{
  const char *s;
  for (int i = 0; (s = sentence(i)); i++) {
    const size_t n = strlen(error), m = strlen(s);
    invariant_met[i] |= n > m && !strcmp(error + n - m, s) && error[n - m - 1] == ' ';
  }
}

/* The digests of NAME.txt, then the invariants. */
static int test_broken(int argc, char **argv, const char *name, const char *(*sentence)(int i))
{
  const int rc = compare_digests(argc, argv, name, make_broken);
  if (rc || argc > 2) return rc;                 /* it has only shown a line */
  for (int i = 0; sentence(i); i++)
    ok(invariant_met[i], "a program is refused since something \"%s\"", sentence(i));
  return done_testing();
}

#endif
