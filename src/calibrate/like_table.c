/* like_table.c - measured runs of a table: settings, then columns.
 *
 *   # where the figures are from
 *   model.family = gpt2                         holds for the rows below it
 *   row  nodes  model.layers  train.micro_batch  tokens_per_s_per_gpu
 *   7B   1      32            6                  4641
 *
 * A line that begins with "row" names the columns of those below it. A column or setting is an option of run files, a key of
 * device files as device.KEY (device.link.network.send), or one of `keys`. "-": as if there were no such column; "any", of a
 * layout's option: the plan chooses it, and with it those that are not given. */
#include "src/calibrate/like.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FILE_BYTES = 1 << 20, WORDS = 48, MOST_NODES = 1 << 20 };

struct pair { const char *key, *value; };
struct table {
  const char *path, *device;
  int line, n_set, n_columns;                    /* n_columns < 0: no line "row" yet */
  struct pair set[WORDS];
  const char *column[WORDS];
};

enum key { NODES, DEVICES, DEVICE, TOKENS, TFLOPS, COUNTED, MEMORY, DOUBTFUL, KEYS };
static const char *const keys[KEYS] = { "nodes", "gpus_per_node", "device", "tokens_per_s_per_gpu", "tflops_per_gpu",
                                        "tflops_counted", "memory", "doubtful" };

static int bad(const struct table *t, const char *key, const char *value, const char *fits, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "%.300s:%d: %s = %s; %s would fit", t->path, t->line, key, value, fits);
}

/* Operations of a training step for each token as a publication counts them. */
static double flops_model(const struct tc_model *m) { return tc_model_flops(m); }
/* D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, equation 3: with
 * all activations recomputed, GPT's MLP of 4 x hidden, all scores computed. */
static double flops_megatron(const struct tc_model *m)
{
  const double L = (double)m->layers, C = (double)m->hidden, T = (double)m->context, V = (double)m->vocab;
  return 96 * L * C * C * (1 + T / (6 * C) + V / (16 * L * C));
}
static const struct { const char *name; double (*flops)(const struct tc_model *m); } counted[] = {
  { "model", flops_model }, { "megatron", flops_megatron } };

/* The row's pairs: the settings, but those that a column replaces, then the columns. */
static int list_pairs(const struct table *t, char **word, struct pair *pair)
{
  int n = 0;
  for (int i = 0; i < t->n_set; i++) {
    bool replaced = false;
    for (int c = 0; c < t->n_columns; c++) replaced |= !strcmp(t->set[i].key, t->column[c]) && strcmp(word[c + 1], "-");
    for (int j = i + 1; j < t->n_set; j++) replaced |= !strcmp(t->set[i].key, t->set[j].key);
    if (!replaced) pair[n++] = t->set[i];
  }
  for (int c = 0; c < t->n_columns; c++)
    if (strcmp(word[c + 1], "-")) pair[n++] = (struct pair){ t->column[c], word[c + 1] };
  return n;
}

static const char *value_of(const struct pair *pair, int n, enum key key)
{
  for (int i = 0; i < n; i++)
    if (!strcmp(pair[i].key, keys[key])) return pair[i].value;
  return NULL;
}

/* A number above 0, whole of nodes and GPUs; 0 where it is not given. */
static int number(const struct table *t, const struct pair *pair, int n, enum key key, double most, double *out, struct tc_err *err)
{
  const char *text = value_of(pair, n, key);
  char *end;
  *out = text ? key == MEMORY ? tc_parse_bytes(text) : strtod(text, &end) : 0;
  const bool whole = key == NODES || key == DEVICES;
  if (!text || (*out > 0 && *out <= most && (key == MEMORY || !*end) && (!whole || *out == floor(*out)))) return 0;
  return bad(t, keys[key], text, key == MEMORY ? "bytes, such as 80GB," : whole ? "a whole number above 0" : "a number above 0", err);
}

static int make_config(const struct table *t, struct tc_like_row *r, const struct pair *pair, int n, struct tc_err *err)
{
  char *arg[2 * WORDS + 1] = { tc_sprintf("plan") };
  unsigned given = 0, any = 0;
  int n_args = 1, rc = 0;
  struct tc_err why = { 0 };
  for (int i = 0; i < n; i++) {
    if (!strchr(pair[i].key, '.') || !strncmp(pair[i].key, "device.", 7)) continue;
    const bool is_any = !strcmp(pair[i].value, "any");
    bool known = false;
    for (int k = 0; k < TC_KEYS; k++) {
      if (strcmp(pair[i].key, tc_plan_key_name[k])) continue;
      known = true;
      *(is_any ? &any : &given) |= 1u << k;
    }
    if (is_any && !known) rc = bad(t, pair[i].key, "any", "a value (the plan chooses options of layouts alone)", err);
    if (!is_any) arg[n_args++] = tc_sprintf("--%s=%s", pair[i].key, pair[i].value);
  }
  const bool is_bad = rc < 0;
  if (!is_bad) rc = tc_config_new(&r->cfg, n_args, arg, &why);
  for (int i = 0; i < n_args; i++) free(arg[i]);
  if (is_bad) return rc;
  if (rc < 0) return tc_fail(err, TC_EUSER, "%.300s:%d: %s", t->path, t->line, why.text);
  r->searched = any ? ~given & ((1u << TC_KEYS) - 1) : 0;
  return 0;
}

static int make_cluster(const struct table *t, struct tc_like_row *r, const struct pair *pair, int n, struct tc_err *err)
{
  const char *device = t->device ? t->device : value_of(pair, n, DEVICE);
  struct tc_err why = { 0 };
  double nodes, devices;
  TC_TRY(number(t, pair, n, NODES, MOST_NODES, &nodes, err));
  TC_TRY(number(t, pair, n, DEVICES, MOST_NODES, &devices, err));
  if (nodes * devices > MOST_NODES) return bad(t, "nodes x gpus_per_node", "(more than 1048576)", "at most so many ranks", err);
  if (!device) return bad(t, "device", "(none)", "the name of a device, or a device file,", err);
  if (tc_cluster_read(&r->cluster, device, &why) < 0) return tc_fail(err, TC_EUSER, "%.300s:%d: %s", t->path, t->line, why.text);
  r->cluster.nodes = (int)TC_MAX(nodes, 1);
  r->cluster.devices = (int)TC_MAX(devices, 1);
  for (int i = 0; i < n; i++) {
    char key[80];
    if (strncmp(pair[i].key, "device.", 7)) continue;
    snprintf(key, sizeof key, "%s", pair[i].key + 7);
    for (char *c = key; !strncmp(key, "link", 4) && *c; c++)         /* link.network.send: such keys are of words */
      if (*c == '.') *c = ' ';
    TC_TRY(tc_cluster_set(&r->cluster, key, pair[i].value, t->path, t->line, err));
  }
  if (tc_cluster_check(&r->cluster, t->path, &why) < 0) return tc_fail(err, TC_EUSER, "line %d of %s", t->line, why.text);
  tc_cluster_run(&r->cluster, r->cfg);
  tc_setup_precision(r->cfg, !tc_plan_is_cpu(&r->cluster.device) && r->cluster.device.flops[TC_BF16] > 0);
  return 0;
}

static int read_measured(const struct table *t, struct tc_like_row *r, const struct pair *pair, int n, struct tc_err *err)
{
  const char *how = value_of(pair, n, COUNTED), *doubtful = value_of(pair, n, DOUBTFUL);
  const double world = (double)r->cluster.nodes * r->cluster.devices;
  double tokens, tflops;
  struct tc_model m;
  TC_TRY(number(t, pair, n, TOKENS, 1e18, &tokens, err));
  TC_TRY(number(t, pair, n, TFLOPS, 1e6, &tflops, err));
  TC_TRY(number(t, pair, n, MEMORY, 1e18, &r->memory_bytes, err));
  if (doubtful && strcmp(doubtful, "yes") && strcmp(doubtful, "no")) return bad(t, keys[DOUBTFUL], doubtful, "yes or no", err);
  r->doubtful = doubtful && !strcmp(doubtful, "yes");
  if ((tokens > 0) == (tflops > 0))
    return tc_fail(err, TC_EUSER, "%.300s:%d: row %s: one of tokens_per_s_per_gpu and tflops_per_gpu would fit", t->path, t->line,
                   r->name);
  TC_TRY(tc_setup_model(r->cfg, &m, err));
  for (size_t i = 0; tflops > 0 && i < sizeof counted / sizeof *counted; i++)
    if (!strcmp(how ? how : "model", counted[i].name)) tokens = tflops * 1e12 / counted[i].flops(&m);
  if (!(tokens > 0)) return bad(t, keys[COUNTED], how, "model or megatron", err);
  r->tokens_per_s = tokens * world;
  return 0;
}

static int read_row(struct tc_like *l, const struct table *t, char **word, int n, struct tc_err *err)
{
  struct pair pair[2 * WORDS];
  if (n != t->n_columns + 1)
    return tc_fail(err, TC_EUSER, "%.300s:%d: row %s has %d values; %d, as the line \"row\" above has columns, would fit", t->path,
                   t->line, word[0], n - 1, t->n_columns);
  TC_GROW(l->row, l->n, l->cap);
  struct tc_like_row *r = &l->row[l->n++];
  *r = (struct tc_like_row){ .where = tc_sprintf("%s:%d", t->path, t->line) };
  snprintf(r->name, sizeof r->name, "%.63s", word[0]);
  const int n_pairs = list_pairs(t, word, pair);
  TC_TRY(make_config(t, r, pair, n_pairs, err));
  TC_TRY(make_cluster(t, r, pair, n_pairs, err));
  return read_measured(t, r, pair, n_pairs, err);
}

/* An option, a key of device files, or one of this file's. Options and the device's are checked when a row has them. */
static int check_key(const struct table *t, const char *key, struct tc_err *err)
{
  if (strchr(key, '.') || tc_word_index(key, keys, KEYS) >= 0) return 0;
  const int near = tc_nearest(key, keys, KEYS);
  return tc_fail(err, TC_EUSER, "%.300s:%d: \"%s\" is not known; %s, an option such as model.layers, or device.KEY would fit",
                 t->path, t->line, key, near >= 0 ? keys[near] : "tokens_per_s_per_gpu");
}

static int read_setting(struct table *t, char **word, int n, struct tc_err *err)
{
  if (n != 3 || t->n_set == WORDS)
    return tc_fail(err, TC_EUSER, "%.300s:%d: \"%s = ...\": one word after the =, of at most %d settings, would fit", t->path,
                   t->line, word[0], WORDS);
  t->set[t->n_set++] = (struct pair){ word[0], word[2] };
  return check_key(t, word[0], err);
}

static int read_line(struct tc_like *l, struct table *t, char *line, struct tc_err *err)
{
  char *word[WORDS], *at = NULL;
  int n = 0;
  line[strcspn(line, "#")] = 0;
  for (char *w = strtok_r(line, " \t\r", &at); w; w = strtok_r(NULL, " \t\r", &at)) {
    if (n == WORDS) return tc_fail(err, TC_EUSER, "%.300s:%d: at most %d columns would fit", t->path, t->line, WORDS - 1);
    word[n++] = w;
  }
  if (n == 0) return 0;
  if (n > 1 && !strcmp(word[1], "=")) return read_setting(t, word, n, err);
  if (strcmp(word[0], "row")) {
    if (t->n_columns >= 0) return read_row(l, t, word, n, err);
    return tc_fail(err, TC_EUSER, "%.300s:%d: \"%.60s\": a setting \"key = value\", or first a line \"row COLUMN ...\", would fit",
                   t->path, t->line, word[0]);
  }
  t->n_columns = n - 1;
  for (int c = 1; c < n; c++) {
    for (int i = 1; i < c; i++)
      if (!strcmp(word[i], word[c])) return tc_fail(err, TC_EUSER, "%.300s:%d: column %.60s is there twice; once would fit", t->path, t->line, word[c]);
    t->column[c - 1] = word[c];
    TC_TRY(check_key(t, word[c], err));
  }
  return 0;
}

int tc_like_table(struct tc_like *l, const char *path, const char *device, struct tc_err *err)
{
  struct table t = { .path = path, .device = device, .n_columns = -1 };
  char *text, *next;
  size_t bytes;
  const int before = l->n;
  TC_TRY(tc_read_text(&text, &bytes, path, "table of measured runs", MOST_FILE_BYTES, err));
  int rc = 0;
  if (memchr(text, 0, bytes)) rc = tc_fail(err, TC_EUSER, "%s is not a table of measured runs: it contains bytes of value 0", path);
  for (char *line = text; !rc && line < text + bytes; line = next) {
    next = line + strcspn(line, "\n") + 1;
    next[-1] = '\0';
    t.line++;
    rc = read_line(l, &t, line, err);
  }
  free(text);
  if (!rc && l->n == before)
    rc = tc_fail(err, TC_EUSER, "%s has no rows; examples/measured has tables of measured runs", path);
  return rc;
}
