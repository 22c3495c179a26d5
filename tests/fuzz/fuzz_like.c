/* fuzz_like.c - tables of measured runs (tercio plan --like): drawn ones, whose rows must be what this test makes of the same
 * settings and columns by flags, and damaged copies of those in examples/measured, which are read or refused with a sentence.
 *
 * usage: fuzz_like.t [--cases N | --seconds S] [--seed N] [--only CASE] */
#include "src/calibrate/like.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

enum { KEYS = 12, ROWS = 3, MOST = 1 << 16 };

/* What may be drawn; the first two of them are what a row needs, and are always given. */
static const struct { const char *key, *values[4]; } known[KEYS] = {
  { "model.layers", { "2", "3", "4" } }, { "tokens_per_s_per_gpu", { "1000", "2.5e3", "77" } }, { "nodes", { "1", "2", "4" } },
  { "gpus_per_node", { "1", "2", "8" } }, { "device", { "h100", "a100-80", "cpu" } }, { "train.micro_batch", { "1", "2" } },
  { "mesh.tp", { "1", "2" } }, { "device.eff_flops", { "0.5", "0.625" } }, { "device.link.node.all", { "1e-6,2e9", "1e-5,3e10" } },
  { "doubtful", { "yes", "no" } }, { "memory", { "10GB", "77GB" } }, { "train.recompute", { "none", "full" } } };
/* Without which nothing can be read. */
static const char base[] = "model.hidden = 16\nmodel.heads = 2\nmodel.context = 16\nmodel.vocab = 256\ndevice = h100\n"
                           "tokens_per_s_per_gpu = 5\nmodel.layers = 1\n";

struct drawn {
  const char *setting[KEYS];                     /* the value that holds for all rows; NULL: none */
  bool column[KEYS];
  const char *cell[ROWS][KEYS];                  /* "-": none */
  int rows;
};

static const char *draw_value(struct fuzz *f, int key)
{
  int n = 0;
  while (n < 4 && known[key].values[n]) n++;
  return known[key].values[fuzz_below(f, (size_t)n)];
}

/* A table in any order of settings and columns; returns its length. */
static size_t draw(struct fuzz *f, struct drawn *d, char *text)
{
  char *end = text + sprintf(text, "# drawn\n%s", base);
  *d = (struct drawn){ .rows = 1 + (int)fuzz_below(f, ROWS) };
  for (int n = (int)fuzz_below(f, 2 * KEYS); n > 0; n--) {
    const int key = (int)fuzz_below(f, KEYS);
    d->setting[key] = draw_value(f, key);        /* the last one counts */
    end += sprintf(end, "%s%s  =\t%s%s\n", fuzz_below(f, 4) ? "" : "  ", known[key].key, d->setting[key],
                   fuzz_below(f, 4) ? "" : "   # why");
  }
  int order[KEYS], n = 0;
  for (int key = 0; key < KEYS; key++) {
    d->column[key] = fuzz_below(f, 2);
    if (d->column[key]) order[n++] = key;
  }
  for (int i = n - 1; i > 0; i--) {
    const int k = (int)fuzz_below(f, (size_t)i + 1), was = order[i];
    order[i] = order[k];
    order[k] = was;
  }
  end += sprintf(end, "row");
  for (int i = 0; i < n; i++) end += sprintf(end, "  %s", known[order[i]].key);
  for (int r = 0; r < d->rows; r++) {
    end += sprintf(end, "\nR%d", r);
    for (int i = 0; i < n; i++) {
      const char *cell = fuzz_below(f, 3) ? draw_value(f, order[i]) : "-";
      d->cell[r][order[i]] = cell;
      end += sprintf(end, " %s", cell);
    }
  }
  return (size_t)(end + sprintf(end, "\n") - text);
}

/* What holds in a row; NULL: nothing. */
static const char *value_in(const struct drawn *d, int row, int key)
{
  const char *cell = d->column[key] ? d->cell[row][key] : "-";
  return strcmp(cell, "-") ? cell : d->setting[key];
}

/* Whether the row is what flags give. */
static const char *compare(const struct drawn *d, int row, const struct tc_like_row *is)
{
  char *arg[KEYS + 8] = { tc_sprintf("plan"), tc_sprintf("--model.hidden=16"), tc_sprintf("--model.heads=2"),
                          tc_sprintf("--model.context=16"), tc_sprintf("--model.vocab=256") };
  const char *of[KEYS], *wrong = NULL;
  int n = 5;
  struct tc_config *c = NULL;
  struct tc_cluster k;
  struct tc_err err = { 0 };
  for (int key = 0; key < KEYS; key++) of[key] = value_in(d, row, key);
  if (!of[0]) of[0] = "1";
  if (!of[1]) of[1] = "5";
  for (int key = 0; key < KEYS; key++)
    if (of[key] && strchr(known[key].key, '.') && strncmp(known[key].key, "device", 6)) arg[n++] = tc_sprintf("--%s=%s", known[key].key, of[key]);
  TC_ASSERT(tc_config_new(&c, n, arg, &err) == 0 && tc_cluster_read(&k, of[4] ? of[4] : "h100", &err) == 0);
  tc_setup_precision(c, !tc_plan_is_cpu(&k.device));
  const double nodes = of[2] ? atof(of[2]) : 1, each = of[3] ? atof(of[3]) : 1, eff = of[7] ? atof(of[7]) : k.device.eff_flops;
  char *want = tc_config_text(c), *got = tc_config_text(is->cfg);
  if (strcmp(want, got)) wrong = "another configuration";
  if (is->cluster.nodes != nodes || is->cluster.devices != each) wrong = "another cluster";
  if (strcmp(is->cluster.device.name, k.device.name) || is->cluster.device.eff_flops != eff) wrong = "another device";
  const double rate = of[8] ? (of[8][3] == '6' ? 2e9 : 3e10) : k.link[TC_WIRE_NODE].bytes_per_s[TC_ALL_REDUCE];
  if (is->cluster.link[TC_WIRE_NODE].bytes_per_s[TC_ALL_REDUCE] != rate) wrong = "another link";
  if (fabs(is->tokens_per_s - atof(of[1]) * nodes * each) > 1e-9 * is->tokens_per_s) wrong = "other tokens per second";
  if (is->doubtful != (of[9] && !strcmp(of[9], "yes"))) wrong = "doubtful";
  if (is->memory_bytes != (of[10] ? atof(of[10]) * 1e9 : 0)) wrong = "another memory";
  for (int i = 0; i < n; i++) free(arg[i]);
  TC_FREE(want, got);
  tc_config_free(c);
  tc_cluster_done(&k);
  return wrong;
}

static int drawn_case(struct fuzz *f, char *text)
{
  struct drawn d;
  struct tc_like l = { .n = 0 };
  struct tc_err err = { 0 };
  int faults = 0;
  fuzz_write(f, text, draw(f, &d, text));
  if (tc_like_table(&l, f->path, NULL, &err) < 0 || l.n != d.rows) faults += fuzz_fault(f, *err.text ? err.text : "rows");
  for (int r = 0; r < l.n && !faults; r++) {
    const char *wrong = compare(&d, r, &l.row[r]);
    if (wrong) faults += fuzz_fault(f, wrong);
  }
  f->accepted += !faults;
  tc_like_done(&l);
  return faults;
}

static int damaged_case(struct fuzz *f, const char *valid, size_t n, char *text)
{
  struct tc_like l = { .n = 0 };
  struct tc_err err = { 0 };
  int faults = 0;
  memcpy(text, valid, n);
  for (size_t k = 1 + fuzz_below(f, 3); k > 0 && n > 1; k--) fuzz_damage(f, text, &n, 0, MOST);
  fuzz_write(f, text, n);
  if (tc_like_table(&l, f->path, NULL, &err) < 0) {
    if (!*err.text || strchr(err.text, '\n')) faults += fuzz_fault(f, "refused without a sentence of one line");
  } else {
    f->accepted++;
    for (int i = 0; i < l.n; i++) {
      const struct tc_like_row *r = &l.row[i];
      const bool sound = r->cfg && r->tokens_per_s > 0 && isfinite(r->tokens_per_s) && r->cluster.nodes > 0 && r->cluster.devices > 0 &&
                         r->memory_bytes >= 0 && r->cluster.device.eff_flops > 0;
      if (!sound) faults += fuzz_fault(f, "accepted, but not sound");
    }
  }
  tc_like_done(&l);
  return faults;
}

int main(int argc, char **argv)
{
  static const char *const tables[] = { "llm-foundry.txt", "megatron.txt", "tercio.txt" };
  enum { TABLES = sizeof tables / sizeof *tables };
  struct fuzz f;
  char *valid[TABLES], *text = tc_calloc(MOST + 4096, 1);
  size_t n[TABLES];
  int wrong = 0, unsound = 0;
  const char *src = getenv("srcdir");
  for (int i = 0; i < TABLES; i++) {
    char *path = tc_sprintf("%s/examples/measured/%s", src ? src : ".", tables[i]);
    struct tc_err err = { 0 };
    if (tc_read_text(&valid[i], &n[i], path, "table", MOST / 2, &err) < 0) return fprintf(stderr, "%s\n", err.text), 1;
    free(path);
  }
  fuzz_start(&f, argc, argv);
  if (f.most_cases == 3000) f.most_cases = 1500;
  const int64_t rss = fuzz_rss_kb();
  while (fuzz_more(&f)) {
    const size_t i = fuzz_below(&f, TABLES);
    if (fuzz_below(&f, 2)) wrong += drawn_case(&f, text);
    else unsound += damaged_case(&f, valid[i], n[i], text);
  }
  is_int(wrong, 0, "a drawn table's rows are what flags give");
  is_int(unsound, 0, "what is accepted of damaged tables is sound, what is refused has a sentence");
  for (int i = 0; i < TABLES; i++) free(valid[i]);
  free(text);
  return fuzz_end(&f, "tables of measured runs", rss);
}
