/* fuzz_data.c - data sets of all formats, sizes and blends, some with weights, named as files, folders and patterns. Each sample
 * is compared with a naive reader's, which has all tokens in memory; some files are damaged, some have a token that is too
 * large, some have lost their weights: these are refused by name, and no other sample is; so is what data.format = auto must not
 * take for text, and text beside tokens. `tercio data show`, `check` and `decode` of the set give the tokens that were written,
 * too. */
#include <fcntl.h>

#include "src/cmd/show_data.h"
#include "src/config/list.h"
#include "src/data/prefetch.h"
#include "src/data/order.h"
#include "tests/fuzz/data_draw.h"

/* ---- the naive reader ------------------------------------------------------------------------ */

/* The file that has the bad token, and its place there. */
static const struct token_file *bad_file(const struct set *s, int64_t *place)
{
  const struct source *x = &s->source[s->bad_source];
  int i = x->n_files - 1;
  while (x->file[i].first > s->bad_at) i--;
  *place = s->bad_at - x->file[i].first;
  return &x->file[i];
}

static bool names_bad(const struct set *s, const struct tc_err *err)
{
  int64_t place;
  char where[64];
  const struct token_file *f = bad_file(s, &place);
  snprintf(where, sizeof where, "place %lld (byte %lld)", (long long)place, (long long)(f->header + place * f->width));
  return strstr(err->text, f->name) && strstr(err->text, where);
}

/* Whether the sample is the tokens from `start` of a source, or was refused because it has the bad token. */
static bool is_right(const struct set *s, int k, int64_t start, int rc, const struct tc_batch *got,
                     const struct tc_err *err)
{
  const struct source *x = &s->source[k];
  const bool bad = s->bad_at >= 0 && k == s->bad_source && s->bad_at >= start && s->bad_at <= start + s->context;
  if (start < x->lo || start + s->context >= x->hi) return false;
  if (bad) return rc == TC_EUSER && names_bad(s, err);
  bool same = rc == 0;
  for (int64_t i = start; i < start + s->context && same; i++)
    same = got->tokens[i - start] == x->token[i] && got->targets[i - start] == (x->counts[i + 1] & 1 ? x->token[i + 1] : -1);
  return same;
}

static struct tc_blend blend_of(const struct set *s)
{
  struct tc_blend b;
  double weight[SOURCES];
  for (int k = 0; k < s->n; k++) weight[k] = s->source[k].weight;
  tc_blend_new(&b, weight, s->n);
  return b;
}

static int64_t start_of(const struct set *s, const struct tc_blend *b, const struct tc_samples *how, int64_t step,
                        int64_t seq, int *k)
{
  const int64_t j = tc_blend_at(b, (step - 1) * how->batch + seq, k), n = s->source[*k].hi - s->source[*k].lo;
  const int64_t windows = (n - 1) / s->context;
  if (how->order == TC_ORDER_DRAWS) return s->source[*k].lo + tc_order_draw(how->seed, step, seq, n, s->context);
  return s->source[*k].lo + tc_order_window(how->seed, *k, j / windows, j % windows, windows) * s->context;
}

struct reading { struct tc_data *d; struct tc_samples how; };

static int read_one(void *ctx, struct tc_reader *r, int64_t key, int64_t b, const struct tc_batch *to, struct tc_err *err)
{
  const struct reading *x = ctx;
  return tc_data_train(x->d, r, &x->how, key, b, 1, to, err);
}

static int check_set(struct fuzz *z, const struct set *s, struct tc_data *d)
{
  enum { BATCH = 5, STEPS = 6 };
  int32_t x[60], y[60];
  const struct tc_batch to = { x, y, NULL };
  struct reading r = { d, { fuzz_below(z, 2) ? TC_ORDER_DRAWS : TC_ORDER_PERMUTATION, fuzz_next(z), BATCH } };
  struct tc_blend b = blend_of(s);
  struct tc_prefetch *a = NULL;
  struct tc_err err = { 0 };
  int faults = 0;
  int64_t step = 1 + (int64_t)fuzz_below(z, fuzz_below(z, 2) ? 10 : 1000000000);
  if (z->cases % 4 == 0 && tc_prefetch_new(&a, d, read_one, &r, &err) < 0) return fuzz_fault(z, err.text);
  for (int i = 0; i < STEPS; i++, step += 1 + (fuzz_below(z, 5) == 0))
    for (int seq = 0; seq < BATCH; seq++) {
      int k;
      const int64_t start = start_of(s, &b, &r.how, step, seq, &k);
      err = (struct tc_err){ 0 };
      const int rc = a ? tc_prefetch_take(a, step, step + 1, seq, 1, &to, &err)
                       : tc_data_train(d, NULL, &r.how, step, seq, 1, &to, &err);
      if (!is_right(s, k, start, rc, &to, &err)) faults += fuzz_fault(z, *err.text ? err.text : "another sample");
    }
  for (int k = 0; k < s->n; k++)
    for (int64_t w = 0; w < tc_data_windows(d, k); w += 1 + (int64_t)fuzz_below(z, 9)) {
      err = (struct tc_err){ 0 };
      const int rc = tc_data_window(d, NULL, k, w, &to, &err);
      if (!is_right(s, k, s->source[k].lo + w * s->context, rc, &to, &err))
        faults += fuzz_fault(z, *err.text ? err.text : "another window");
    }
  tc_prefetch_free(a);
  tc_blend_free(&b);
  return faults;
}

/* ---- show, check and decode ---------------------------------------------------------------------- */

/* What a verb prints for the words of the set and these options; *rc: what it returns. Owned by the caller. */
static char *print_set(struct set *s, const char *verb, char *const *option, int n_options,
                       size_t *bytes, int *rc, struct tc_err *err)
{
  char *argv[WORDS + 20] = { (char *)(uintptr_t)verb }, format[40];
  bool is_verb;
  int argc = 1;
  for (int i = 0; i < n_options; i++) argv[argc++] = option[i];
  snprintf(format, sizeof format, "--data.format=%s", tc_word_data_format(s->format));
  argv[argc++] = format;
  char *list;
  size_t list_bytes;
  FILE *f = open_memstream(&list, &list_bytes);
  for (int i = 0; i < s->n_words; i++) {
    if (i) fputc(' ', f);
    tc_list_put(f, s->word[i]);
  }
  fclose(f);
  argv[argc++] = list;
  fflush(stdout);
  const int was = dup(STDOUT_FILENO), to = memfd_create("printed", MFD_CLOEXEC);
  TC_ASSERT(was >= 0 && to >= 0 && dup2(to, STDOUT_FILENO) >= 0);
  *err = (struct tc_err){ 0 };
  *rc = tc_show_data(&is_verb, argc, argv, err);
  free(list);
  fflush(stdout);
  TC_ASSERT(dup2(was, STDOUT_FILENO) >= 0);
  const off_t size = lseek(to, 0, SEEK_END);
  char *text = tc_calloc((size_t)size + 1, 1);
  TC_ASSERT(pread(to, text, (size_t)size, 0) == size);
  close(was);
  close(to);
  *bytes = (size_t)size;
  return text;
}

static int check_check(struct fuzz *z, struct set *s, int64_t tokens, int files)
{
  char vocab[40], threads[40], want[100], *const option[] = { vocab, threads };
  struct tc_err err;
  size_t bytes;
  int rc, faults = 0;
  snprintf(vocab, sizeof vocab, "--vocab=%lld", (long long)s->vocab);
  snprintf(threads, sizeof threads, "--threads=%d", 1 + (int)fuzz_below(z, 3));
  snprintf(want, sizeof want, "%d file%s, %lld tokens", files, files == 1 ? "" : "s", (long long)tokens);
  char *text = print_set(s, "check", option, 2, &bytes, &rc, &err);
  if (s->bad_at >= 0 && (rc != TC_EUSER || !names_bad(s, &err))) faults += fuzz_fault(z, "check does not name the bad token");
  if (s->bad_at < 0 && (rc != 0 || !strstr(text, want))) faults += fuzz_fault(z, rc ? err.text : "check counts otherwise");
  free(text);
  return faults;
}

/* The lines of show that are tokens, from token `from` on, `count` of each file. */
static int check_show(struct fuzz *z, struct set *s, int64_t from, int64_t count)
{
  char skip[40], most[40], *const option[] = { skip, most }, *got, *want = NULL, *save = NULL;
  struct tc_err err;
  size_t bytes, size;
  int rc, faults = 0;
  snprintf(skip, sizeof skip, "--from=%lld", (long long)from);
  snprintf(most, sizeof most, "--tokens=%lld", (long long)count);
  FILE *f = open_memstream(&want, &size);
  for (int k = 0; k < s->n; k++)
    for (int i = 0; i < s->source[k].n_files; i++) {
      const struct token_file *t = &s->source[k].file[i];
      const int64_t at = TC_MIN(from, t->n), n = TC_MIN(count, t->n - at);
      if (n) fprintf(f, " ");
      for (int64_t j = 0; j < n; j++) fprintf(f, " %u", (uint32_t)s->source[k].token[t->first + at + j]);
      if (n) fprintf(f, "\n");
      if (n && s->source[k].weighted) fprintf(f, "  weights");
      for (int64_t j = 0; j < n && s->source[k].weighted; j++) fprintf(f, " %d", s->source[k].counts[t->first + at + j]);
      if (n && s->source[k].weighted) fprintf(f, "\n");
      from -= at;
    }
  fclose(f);
  char *text = print_set(s, "show", option, 2, &bytes, &rc, &err), *line = strtok_r(text, "\n", &save);
  f = open_memstream(&got, &size);
  for (; line; line = strtok_r(NULL, "\n", &save))
    if (line[0] == ' ' && line[2] != '"') fprintf(f, "%s\n", line);
  fclose(f);
  if (rc != 0 || strcmp(got, want)) faults += fuzz_fault(z, rc ? err.text : "show prints other tokens");
  free(text);
  free(got);
  free(want);
  return faults;
}

/* Tokens that are bytes as their text. */
static int check_decode(struct fuzz *z, struct set *s, int64_t from, int64_t count, int64_t tokens)
{
  char skip[40], most[40], *const option[] = { skip, most, "--tokenizer=bytes" };
  struct tc_err err;
  size_t bytes;
  int rc, faults = 0;
  int64_t at = 0;
  bool bad = false, same = true;
  snprintf(skip, sizeof skip, "--from=%lld", (long long)from);
  snprintf(most, sizeof most, "--tokens=%lld", (long long)count);
  char *text = print_set(s, "decode", option, 3, &bytes, &rc, &err);
  const int64_t n = TC_MIN(count, tokens - from);
  for (int k = 0; k < s->n; k++)
    for (int64_t i = 0; i < s->source[k].n; i++, at++) {
      if (at < from || at >= from + n) continue;
      bad |= k == s->bad_source && i == s->bad_at;
      if (!bad) same &= (size_t)(at - from) < bytes && text[at - from] == (char)s->source[k].token[i];
    }
  if (bad ? rc != TC_EUSER || !names_bad(s, &err) : rc != 0 || (int64_t)bytes != n || !same)
    faults += fuzz_fault(z, rc ? err.text : "decode gives another text");
  free(text);
  return faults;
}

static int check_view(struct fuzz *z, struct set *s)
{
  int64_t tokens = 0;
  int files = 0;
  for (int k = 0; k < s->n; k++) {
    tokens += s->source[k].n;
    files += s->source[k].n_files;
  }
  const int64_t from = (int64_t)fuzz_below(z, (size_t)tokens), count = (int64_t)fuzz_below(z, TOKENS);
  int faults = check_check(z, s, tokens, files) + check_show(z, s, from, count);
  if (s->vocab == 256) faults += check_decode(z, s, from, count, tokens);
  return faults;
}

/* ---- damage ------------------------------------------------------------------------------------ */

static void flip(struct fuzz *z, const char *name, size_t bytes)
{
  const long at = (long)fuzz_below(z, bytes);
  FILE *f = fopen(name, "r+b");
  TC_ASSERT(f && fseek(f, at, SEEK_SET) == 0);
  const int was = fgetc(f);
  TC_ASSERT(fseek(f, at, SEEK_SET) == 0 && fputc(was ^ (1 << fuzz_below(z, 8)), f) != EOF && fclose(f) == 0);
}

/* Damages a file that has a header or an index, so that it must be refused; its name in *name. */
static bool damage(struct fuzz *z, const struct set *s, char name[128])
{
  const struct source *x = &s->source[fuzz_below(z, (size_t)s->n)];
  const struct token_file *f = &x->file[fuzz_below(z, (size_t)x->n_files)];
  struct stat st;
  if (!f->header && !f->megatron) return false;
  snprintf(name, 128, "%.*s", (int)strlen(f->name) - 3, f->name);       /* of .bin or .idx */
  char idx[132];
  snprintf(idx, sizeof idx, "%sidx", name);
  const char *which = f->megatron && fuzz_below(z, 2) ? idx : f->name;
  TC_ASSERT(stat(which, &st) == 0);
  if (fuzz_below(z, 2)) {
    const off_t size = fuzz_below(z, 2) ? (off_t)fuzz_below(z, (size_t)st.st_size)
                                        : st.st_size + 1 + (off_t)fuzz_below(z, 9);
    TC_ASSERT(truncate(which, size) == 0);
  } else flip(z, f->megatron ? idx : f->name, f->megatron ? 34 : 12);
  return true;
}

int main(int argc, char **argv)
{
  static struct set s;
  struct fuzz z;
  char top[] = "fuzz_data.XXXXXX", command[200], damaged[128];
  fuzz_start(&z, argc, argv);
  if (argc == 1) z.most_cases = 400;
  if (!mkdtemp(top)) return 1;
  const int64_t rss_kb = fuzz_rss_kb();
  int faults = 0, refused = 0;
  while (fuzz_more(&z)) {
    char *word[WORDS];
    struct tc_err err = { 0 };
    struct tc_data *d = NULL;
    make_set(&z, &s, top);
    for (int i = 0; i < s.n_words; i++) word[i] = s.word[i];
    const bool hurt = fuzz_below(&z, 4) == 0 && damage(&z, &s, damaged);
    const struct tc_data_opts o = { word, s.n_words, s.format, s.part, s.context, s.vocab, 0, false, false, false, false };
    const int rc = tc_data_open(&d, &o, &err);
    const struct token_file *no_text = find_no_text(&s);
    const struct token_file *lost = find_lost(&s);
    const bool mixed = s.has_text && s.has_tokens, wrong = hurt || no_text || mixed || lost;
    const bool named = (hurt && strstr(err.text, damaged)) || (no_text && strstr(err.text, no_text->name)) ||
                       (mixed && strstr(err.text, "does not belong with")) ||
                       (lost && strstr(err.text, lost->name) && strstr(err.text, "weights"));
    if (wrong && (rc != TC_EUSER || !named)) faults += fuzz_fault(&z, *err.text ? err.text : "what is wrong is not named");
    if (!wrong && rc != 0) faults += fuzz_fault(&z, err.text);
    if (rc == 0 && !wrong) faults += check_set(&z, &s, d);
    if (rc == 0 && !wrong && fuzz_below(&z, 3) == 0) faults += check_view(&z, &s);
    refused += rc != 0;
    z.accepted += rc == 0;
    tc_data_free(d);
    snprintf(command, sizeof command, "rm -r '%s'", s.dir);
    if (system(command) != 0) faults += fuzz_fault(&z, "its folder is left");
  }
  is_int(faults, 0, "each sample is the naive reader's, each fault is named");
  ok(z.accepted > 0 && (refused > 0 || z.cases < 100), "%d damaged sets are refused", refused);
  rmdir(top);
  return fuzz_end(&z, "fuzz_data", rss_kb);
}
