/* config.c - a configuration from defaults, run file and flags.
 *
 * What is accepted reads back from tc_config_text as it is. Every error says where the value stands:
 * "run.ini:12" or the flag. */
#include "src/config/impl.h"
#include "src/files/input.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FILE_BYTES = 16 << 20 };

/* An option as a flag gave it; of a stage, its number and the key. */
struct flag { const struct tc_opt *opt; const char *value; int stage; char key[64]; };

/* The flag at arg (with its dashes) into *flag. *took_next: the next argument was its value. */
static int parse_flag(struct flag *flag, const char *arg, const char *next, bool *took_next, struct tc_err *err)
{
  *took_next = false;
  if (strncmp(arg, "--", 2) != 0 || !arg[2])
    return tc_fail(err, TC_EUSER, "there is no option %.200s; options are --section.key=value",
                   arg);
  const char *eq = strchr(arg, '='), *value = eq ? eq + 1 : NULL;
  char name[128];
  snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - arg) - 2 : (int)strlen(arg) - 2, arg + 2);
  if (next && strncmp(next, "--", 2) == 0) next = NULL;
  const struct tc_opt *o = tc_opt_find(name);
  const int stage = tc_stage_number(name, '.');
  if (!o && stage < 0) return tc_opt_unknown(name, "--", "", err);
  if (!value) {
    if (!next) return tc_fail(err, TC_EUSER, "--%s takes a value: --%s=...", name, name);
    value = next;
    *took_next = true;
  }
  *flag = (struct flag){ .opt = o, .value = value, .stage = stage };
  if (!o && strchr(name, '.')) snprintf(flag->key, sizeof flag->key, "%s", strchr(name, '.') + 1);
  return 0;
}

int64_t tc_config_int(const struct tc_config *c, const char *name)
{
  const struct tc_opt *o = tc_opt_find(name);
  return *(const int64_t *)tc_opt_field(c, o);
}

void tc_config_set_int(struct tc_config *c, const char *name, int64_t value)
{
  const struct tc_opt *o = tc_opt_find(name);
  *(int64_t *)(uintptr_t)tc_opt_field(c, o) = value;
}

static int read_file(struct tc_config *c, const char *path, struct tc_err *err)
{
  char *text;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, path, "run file", MOST_FILE_BYTES, err));
  int rc = tc_ini_read(c, text, bytes, path, false, err);
  c->file = tc_pool_strdup(c->pool, path);
  free(text);
  return rc;
}

/* Flags override the run file wherever it stands among them, so they are collected first. */
static int read_args(struct tc_config *c, int argc, char **argv, struct tc_err *err)
{
  struct flag *flags = tc_pool_alloc(c->pool, (size_t)TC_MAX(argc, 1) * sizeof *flags);
  int n_flags = 0;
  const char *file = NULL;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') {
      bool took_next;
      TC_TRY(parse_flag(&flags[n_flags++], argv[i], i + 1 < argc ? argv[i + 1] : NULL, &took_next, err));
      i += took_next;
    } else if (file) {
      return tc_fail(err, TC_EUSER, "%.200s: unexpected; the run file is %.200s, and every option "
                     "is --section.key=value", argv[i], file);
    } else {
      file = argv[i];
    }
  }
  for (int i = 0; i < n_flags; i++)
    if (flags[i].opt) c->source[flags[i].opt - tc_opts] = TC_FROM_FLAG;
  if (file) TC_TRY(read_file(c, file, err));
  for (int i = 0; i < n_flags; i++) {
    const struct flag *f = &flags[i];
    char *expanded, where[40] = "--";
    if (!f->opt) tc_stage_name(where, sizeof where, f->stage, "--");
    TC_TRY(tc_expand(&expanded, f->value, where, f->opt ? f->opt->name : f->key, err));
    c->expanded |= expanded && strcmp(expanded, f->value) != 0;
    const char *value = expanded ? expanded : f->value;
    const int rc = f->opt ? tc_opt_set(c, f->opt, value, "--", err) : tc_stage_set(c, f->stage, f->key, value, false, "--", err);
    free(expanded);
    TC_TRY(rc);
  }
  return 0;
}

/* Where train.rows names a file, what it says becomes the value, so that a checkpoint has it. */
static int take_rows(struct tc_config *c, struct tc_err *err)
{
  enum { MOST_BYTES = 1 << 16 };
  char *text, *line, *rest;
  size_t bytes;
  if (!*c->train_rows || strpbrk(c->train_rows, " =")) return 0;
  TC_TRY(tc_read_text(&text, &bytes, c->train_rows, "file of train.rows", MOST_BYTES, err));
  char *rows = tc_pool_alloc(c->pool, 2 * bytes + 2), *to = rows;       /* a line's end becomes two characters */
  for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *words, *word;
    const char *between = to > rows ? ", " : "";
    line[strcspn(line, "#\r")] = 0;
    for (word = strtok_r(line, " \t", &words); word; word = strtok_r(NULL, " \t", &words), between = " ")
      to += sprintf(to, "%s%s", between, word);
  }
  *to = 0;
  const bool plain = tc_config_is_plain(rows);
  if (!plain) tc_fail(err, TC_EUSER, "%.300s: a byte that is no text of rows for parameters", c->train_rows);
  c->train_rows = rows;
  free(text);
  return plain ? 0 : TC_EUSER;
}

/* ---- as text, and what differs ------------------------------------------------------------- */

char *tc_config_text_of(const struct tc_config *c, const char *(*note)(const void *arg, const char *name),
                        const void *arg)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  const char *section = "";
  for (int i = 0; i < TC_N_OPTS; i++) {
    const struct tc_opt *o = &tc_opts[i];
    const char *comment = note(arg, o->name);
    if (!comment) continue;
    if (strcmp(section, o->section) != 0)
      fprintf(f, "%s[%s]\n", *section ? "\n" : "", o->section);
    section = o->section;
    if (*comment) fprintf(f, "# %s\n", comment);
    char *value = tc_opt_text(c, o);
    fprintf(f, "%s = %s\n", o->key, value);
    free(value);
  }
  tc_stages_print(f, c);
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for the configuration's text");
  return text;
}

static const char *no_comment(const void *arg, const char *name)
{
  (void)arg;
  (void)name;
  return "";
}

char *tc_config_text(const struct tc_config *c) { return tc_config_text_of(c, no_comment, NULL); }

int tc_config_next_change(const struct tc_config *was, const struct tc_config *is, int from,
                          struct tc_config_change *out)
{
  for (int i = from; i < TC_N_OPTS; i++) {
    char *a = tc_opt_text(was, &tc_opts[i]), *b = tc_opt_text(is, &tc_opts[i]);
    const bool same = strcmp(a, b) == 0;
    const enum tc_opt_type type = tc_opts[i].type;
    *out = (struct tc_config_change){ .name = tc_opts[i].name, .resume = tc_opts[i].resume,
                                      .names_files = type == T_FILE || type == T_DIR || type == T_LIST };
    snprintf(out->was, sizeof out->was, "%s", a);
    snprintf(out->is, sizeof out->is, "%s", b);
    TC_FREE(a, b);
    if (!same) return i;
  }
  const int i = tc_stages_next_change(was, is, TC_MAX(from - TC_N_OPTS, 0), out);
  return i < 0 ? -1 : TC_N_OPTS + i;
}

/* ---- a new one ------------------------------------------------------------------------------- */

/* Options that exclude each other. */
static int check_together(const struct tc_config *c, struct tc_err *err)
{
  if (c->train_min_lr > c->train_lr)
    return tc_fail(err, TC_EUSER, "train.min_lr is %g, the rate at the end of the decay; it has to "
                   "be at most train.lr, %g", c->train_min_lr, c->train_lr);
  TC_TRY(tc_stages_check(c, err));
  char *text = tc_config_text(c);
  const size_t bytes = strlen(text);
  free(text);
  if (bytes > TC_MOST_CONFIG)
    return tc_fail(err, TC_EUSER, "the options take %zu bytes, and a checkpoint has room for %d: "
                   "name fewer files in data.train and data.val", bytes, TC_MOST_CONFIG);
  return 0;
}

static struct tc_config *defaults(void)
{
  struct tc_config *c = tc_calloc(1, sizeof *c);
  struct tc_err err;
  c->pool = tc_pool_new();
  c->source = tc_pool_alloc(c->pool, TC_N_OPTS);
  memset(c->source, TC_FROM_DEFAULT, TC_N_OPTS);
  c->file = tc_pool_strdup(c->pool, "");
  for (int i = 0; i < TC_N_OPTS; i++)
    TC_ASSERT(tc_opt_set(c, &tc_opts[i], tc_opts[i].dflt, "options.def: ", &err) == 0);
  return c;
}

int tc_config_new(struct tc_config **out, int argc, char **argv, struct tc_err *err)
{
  struct tc_config *c = defaults();
  *out = NULL;
  int rc = read_args(c, argc, argv, err);
  if (rc == 0) rc = take_rows(c, err);
  if (rc == 0) rc = check_together(c, err);
  if (rc == 0) *out = c;
  else tc_config_free(c);
  return rc;
}

struct tc_config *tc_config_as_saved(const char *text)
{
  struct tc_config *c = defaults();
  struct tc_err why;
  c->data_order = TC_ORDER_DRAWS;          /* of runs from before this option was saved */
  tc_ini_read(c, text, strlen(text), "", true, &why);
  return c;
}

int tc_config_saved(struct tc_config **out, const char *text, int argc, char **argv,
                    struct tc_err *err)
{
  struct tc_config *c = tc_config_as_saved(text);
  *out = NULL;
  int rc = read_args(c, argc, argv, err);
  if (rc == 0) *out = c;
  else tc_config_free(c);
  return rc;
}

void tc_config_free(struct tc_config *c)
{
  if (!c) return;
  tc_pool_free(c->pool);
  free(c);
}
