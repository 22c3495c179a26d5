/* token_names.c - the words of data.train and data.val as sources with their files.
 *
 *   A.bin B.bin           one source
 *   0.7:A*.bin 0.3:B/     a blend: each weight begins a source; words without one belong to the source before
 *   DIR                   its files *.bin in the order of their names, or, if it has none, its files *.txt
 *   A*.bin                the files that match; a name that exists is taken as it is
 *
 * A folder that a pattern would look into and can't is a failure: its files would be left out silently. The order of
 * files is that of strcmp, so that it is the same on every node. */
#include "src/config/list.h"
#include "src/data/impl.h"
#include "src/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_file(struct tc_source *s, char *name)
{
  if ((s->n_files & (s->n_files - 1)) == 0)        /* room for a power of two */
    s->file = tc_realloc(s->file, (size_t)TC_MAX(2 * s->n_files, 1) * sizeof *s->file);
  s->file[s->n_files++] = (struct tc_data_file){ .name = name };
}

/* ---- folders and patterns ------------------------------------------------------------------ */

static int add_ending(struct tc_source *s, const char *dir, char *const *name, size_t n, const char *ending)
{
  const int before = s->n_files;
  for (size_t i = 0; i < n; i++)
    if (name[i][0] != '.' && tc_ends_with(name[i], ending))
      add_file(s, tc_sprintf("%s%s%s", dir, tc_ends_with(dir, "/") ? "" : "/", name[i]));
  return s->n_files - before;
}

static int add_folder(struct tc_source *s, const char *dir, struct tc_err *err)
{
  char **name;
  int rc = TC_OK;
  const int n = tc_folder_scan(dir, "", &name, err);
  if (n < 0) return n;
  if (n) qsort(name, (size_t)n, sizeof *name, tc_order_text);
  if (!add_ending(s, dir, name, (size_t)n, ".bin") && !add_ending(s, dir, name, (size_t)n, ".txt"))
    rc = tc_fail(err, TC_EUSER, "data folder '%s' has no files *.bin or *.txt", dir);
  tc_names_free(name, n);
  return rc;
}

/* Whether the first n characters of a match and this ending are a match, too. The matches are sorted. */
static bool has_match(const glob_t *g, const char *name, size_t n, const char *ending)
{
  char *other = tc_sprintf("%.*s%s", (int)n, name, ending);
  const bool has = bsearch(&other, g->gl_pathv, g->gl_pathc, sizeof *g->gl_pathv, tc_order_text) != NULL;
  free(other);
  return has;
}

static bool has_ending(const glob_t *g, const char *ending)
{
  bool has = false;
  for (size_t i = 0; i < g->gl_pathc && !has; i++) has = tc_ends_with(g->gl_pathv[i], ending);
  return has;
}

/* Whether a match lies beside files of tokens and is not one: Megatron's index, the weights of a shard, and what `tercio data`
 * writes and copies into a folder. */
static bool is_beside(const glob_t *g, const char *name)
{
  static const struct { const char *ending, *of; bool any; } rows[] = {
    { ".idx", ".bin", false }, { ".weights.npy", ".bin", false }, { ".weights.npy", "", false },
    { ".json", ".bin", true }, { ".jinja", ".bin", true } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const size_t n = strlen(name) - TC_MIN(strlen(rows[i].ending), strlen(name));
    if (tc_ends_with(name, rows[i].ending) && (rows[i].any ? has_ending(g, rows[i].of) : has_match(g, name, n, rows[i].of)))
      return true;
  }
  return false;
}

/* What glob could not read, and why, since its functions take no argument of the caller's: NULL outside of
 * match_pattern. */
struct unread { struct tc_err err; int why; };
static _Thread_local struct unread *unread;

/* Whether a pattern may have matches that this failure hides. A name that is not there, or no folder, has none. */
static bool hides(int why) { return why != ENOENT && why != ENOTDIR; }

/* Ends glob at a folder that can't be listed. */
static int fail_folder(const char *dir, int why)
{
  if (!hides(why)) return 0;
  unread->why = why;
  return tc_fail(&unread->err, TC_EUSER, "data folder '%s' can't be read: %s; see its owner and mode", dir, strerror(why));
}

/* Names without * in a folder that can be listed but not searched, or not even listed: glob asks for their state, and
 * takes a failure as no match. */
static int note_state(int rc, const char *name)
{
  if (rc == 0 || !hides(errno) || unread->err.status < 0) return rc;
  unread->why = errno;
  tc_fail(&unread->err, TC_EUSER, "data file '%s' can't be read: %s; see owner and mode of its folders", name,
          strerror(errno));
  return rc;
}

static int get_state(const char *name, struct stat *st) { return note_state(stat(name, st), name); }
static int get_link_state(const char *name, struct stat *st) { return note_state(lstat(name, st), name); }
static void *open_folder(const char *dir) { return opendir(dir); }
static struct dirent *read_folder(void *dir) { return readdir(dir); }
static void close_folder(void *dir) { closedir(dir); }

/* glob's matches, to be freed by globfree. Returns what glob does. */
static int match_pattern(glob_t *g, const char *pattern, struct unread *why)
{
  *why = (struct unread){ 0 };
  *g = (glob_t){ .gl_opendir = open_folder, .gl_readdir = read_folder, .gl_closedir = close_folder,
                 .gl_stat = get_state, .gl_lstat = get_link_state };
  unread = why;
  const int rc = glob(pattern, GLOB_NOSORT | GLOB_ALTDIRFUNC, fail_folder, g);
  unread = NULL;
  if (rc == GLOB_NOSPACE) tc_out_of_memory(0);
  return rc;
}

static int add_pattern(struct tc_source *s, const char *pattern, struct tc_err *err)
{
  struct tc_again again = { 0 };
  glob_t g;
  struct unread why;
  const int before = s->n_files;
  int rc = match_pattern(&g, pattern, &why);
  while (why.err.status < 0 && tc_again(&again, why.why)) {
    globfree(&g);
    rc = match_pattern(&g, pattern, &why);
  }
  if (rc == 0) qsort(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, tc_order_text);
  for (size_t i = 0; rc == 0 && why.err.status == 0 && i < g.gl_pathc; i++)
    if (!is_beside(&g, g.gl_pathv[i])) add_file(s, tc_strdup(g.gl_pathv[i]));
  globfree(&g);
  if (why.err.status < 0) return tc_fail(err, TC_EUSER, "data files '%s': %s", pattern, why.err.text);
  return s->n_files > before ? TC_OK
                             : tc_fail(err, TC_EUSER, "no data file matches '%s'; names are relative to the "
                                       "folder the run starts in", pattern);
}

static int add_word(struct tc_source *s, const char *word, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct stat st;
  int rc;
  do rc = stat(word, &st);
  while (rc < 0 && tc_again(&again, errno));
  const bool exists = rc == 0;
  if (exists && S_ISDIR(st.st_mode)) return add_folder(s, word, err);
  if (!exists && strpbrk(word, "*?[")) return add_pattern(s, word, err);
  add_file(s, tc_strdup(word));
  return TC_OK;
}

/* ---- weights ------------------------------------------------------------------------------- */

/* "0.7:A*.bin": the weight and the name after it; false: a name alone. */
static int split_weight(const char *word, double *weight, const char **name, struct tc_err *err)
{
  const size_t n = tc_list_weight_size(word);
  char *end;
  if (!n) return 0;
  *weight = strtod(word, &end);
  *name = end + 1;
  if (end != word + n - 1 || !isfinite(*weight) || *weight <= 0)
    return tc_fail(err, TC_EUSER, "data '%s': a weight is a number above 0, such as 0.7:FILE", word);
  if (!**name) return tc_fail(err, TC_EUSER, "data '%s': a file, folder or pattern must follow the weight", word);
  return 1;
}

static struct tc_source *add_source(struct tc_source **list, int *n, double weight)
{
  *list = tc_realloc(*list, (size_t)(*n + 1) * sizeof **list);
  struct tc_source *s = &(*list)[(*n)++];
  *s = (struct tc_source){ .weight = weight, .name = tc_strdup("") };
  return s;
}

static int add_words(struct tc_source **list, int *n, char *const *word, int n_words, struct tc_err *err)
{
  struct tc_source *s = NULL;
  bool blend = false;
  for (int i = 0; i < n_words; i++) {
    const char *name = word[i];
    double weight = 1;
    const int weighted = split_weight(word[i], &weight, &name, err);
    if (weighted < 0) return weighted;
    if (weighted && s && !blend)
      return tc_fail(err, TC_EUSER, "data '%s' has a weight, and '%s' before it has none: in a blend the first "
                     "word needs one, too", word[i], word[0]);
    blend |= weighted;
    if (weighted || !s) s = add_source(list, n, weight);
    char *longer = tc_sprintf("%s%s%s", s->name, *s->name ? " " : "", name);
    free(s->name);
    s->name = longer;
    TC_TRY(add_word(s, name, err));
  }
  return TC_OK;
}

int tc_sources_new(struct tc_source **out, char *const *word, int n_words, struct tc_err *err)
{
  int n = 0;
  *out = NULL;
  const int rc = add_words(out, &n, word, n_words, err);
  if (rc == TC_OK) return n;
  tc_sources_free(*out, n);
  *out = NULL;
  return rc;
}

void tc_sources_free(struct tc_source *s, int n)
{
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < s[i].n_files; k++) TC_FREE(s[i].file[k].name, s[i].weights ? s[i].weights[k].name : NULL);
    tc_packed_free(&s[i].packed);
    TC_FREE(s[i].file, s[i].weights, s[i].name);
  }
  free(s);
}
