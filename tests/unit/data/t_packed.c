/* t_packed.c - data with weights: packed windows have each sample once an epoch, whole, with its own begin, and targets only
 * where weights count; windows of the stream have the same targets; counts are those of the targets; what is cut or left out;
 * the same on a rank that was sent the table; weights, all of them, are part of what identifies data; files that do not fit. */
#include "src/config/config.h"
#include "src/data/impl.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <sys/stat.h>
#include <unistd.h>

enum { T = 24, MOST_SAMPLES = 400, MOST = MOST_SAMPLES * 60, FILE_TOKENS = 1000, BATCH = 4 };

/* Drawn samples, as a naive reader has them: token i is i % 251, so that a place can be told. */
static uint8_t weight[MOST], token[MOST];
static int64_t begin[MOST_SAMPLES + 1];
static int n_samples, n_files;

static uint32_t draw(uint64_t seed, uint64_t n, uint32_t below)
{
  uint32_t r[4];
  tc_philox(r, seed, n, 7);
  return r[0] % below;
}

static void write_weights(const char *shard, const uint8_t *w, int64_t n)
{
  char header[TC_WEIGHTS_BYTES], *path = tc_weights_path(shard);
  tc_weights_pack(n, header);
  FILE *f = fopen(path, "wb");
  TC_ASSERT(f && fwrite(header, 1, sizeof header, f) == sizeof header && fwrite(w, 1, (size_t)n, f) == (size_t)n &&
            fclose(f) == 0);
  free(path);
}

static void write_shard(const char *name, const uint8_t *t, int64_t n)
{
  int32_t header[TC_SHARD_INTS];
  tc_shard_pack(&(struct tc_shard_header){ .width = 2, .n_tokens = n, .vocab = 256, .eod = -1, .hash = 5 }, header);
  FILE *f = fopen(name, "wb");
  TC_ASSERT(f && fwrite(header, 1, sizeof header, f) == sizeof header);
  for (int64_t i = 0; i < n; i++) TC_ASSERT(fwrite(&(uint16_t){ t[i] }, 2, 1, f) == 1);
  TC_ASSERT(fclose(f) == 0);
}

static void remove_files(void)
{
  for (int i = 0; i < n_files; i++) {
    char name[20], *w;
    snprintf(name, sizeof name, "p/s%02d.bin", i);
    w = tc_weights_path(name);
    unlink(name), unlink(w);
    free(w);
  }
}

/* Samples that cross the borders of files; some have one token, some none that counts, some are longer than a window. */
static void make(uint64_t seed)
{
  int64_t n = 0;
  remove_files();
  n_samples = MOST_SAMPLES / 2 + (int)draw(seed, 0, MOST_SAMPLES / 2);
  for (int s = 0; s < n_samples; s++) {
    const int64_t size = 1 + draw(seed, 1 + (uint64_t)s, s % 9 == 0 ? 58 : 18);
    begin[s] = n;
    for (int64_t i = 0; i < size; i++, n++) {
      token[n] = (uint8_t)(n % 251);
      weight[n] = s % 13 && draw(seed, 1000 + (uint64_t)n, 3) == 0 ? TC_WEIGHT_COUNTS : 0;
      if (i == 0) weight[n] |= TC_WEIGHT_BEGINS;
    }
  }
  begin[n_samples] = n;
  n_files = 0;
  for (int64_t at = 0; at < n; at += FILE_TOKENS, n_files++) {
    char name[20];
    snprintf(name, sizeof name, "p/s%02d.bin", n_files);
    write_shard(name, token + at, TC_MIN(n - at, FILE_TOKENS));
    write_weights(name, weight + at, TC_MIN(n - at, FILE_TOKENS));
  }
}

static int open_set(struct tc_data **d, int part, bool pack, bool cut, struct tc_err *err)
{
  static char name[] = "p";
  char *word = name;
  const struct tc_data_opts o = { .word = &word, .n = 1, .format = TC_FORMAT_BIN, .part = part, .context = T, .vocab = 256,
                                  .pack = pack, .cut = cut };
  return tc_data_open(d, &o, err);
}

/* The naive fate of a sample. */
static int64_t places_of(int s, bool cut, int64_t *counted)
{
  const int64_t size = begin[s + 1] - begin[s], n = TC_MIN(size, T + 1);
  *counted = 0;
  if (size > T + 1 && !cut) return 0;
  for (int64_t i = 1; i < n; i++) *counted += weight[begin[s] + i] & TC_WEIGHT_COUNTS;
  return *counted ? n - 1 : 0;
}

/* The sample of which the run of tokens that begins at `at` of a row is; -1: none, or it is not as it should be. */
static int find_sample(const int32_t *x, const int32_t *y, int64_t places, const uint8_t *seen, bool cut)
{
  for (int s = 0; s < n_samples; s++) {
    int64_t counted, i = 0;
    if (seen[s] || places_of(s, cut, &counted) != places) continue;
    while (i < places && x[i] == token[begin[s] + i] &&
           y[i] == (weight[begin[s] + i + 1] & TC_WEIGHT_COUNTS ? token[begin[s] + i + 1] : -1)) i++;
    if (i == places) return s;
  }
  return -1;
}

/* All windows of an epoch, by the steps of a run. */
static void check_epoch(const struct tc_data *d, bool cut, uint64_t seed, int from, int to, const char *what)
{
  const struct tc_samples how = { TC_ORDER_PERMUTATION, seed, BATCH };
  const struct tc_data_stage stage = { .d = d };
  const int64_t windows = tc_data_windows(d, 0);
  uint8_t seen[MOST_SAMPLES] = { 0 };
  int wrong = 0, missing = 0, miscounted = 0;
  int64_t used = 0;
  for (int64_t w = 0; w < windows; w++) {
    int32_t x[T], y[T], starts[T];
    struct tc_err err = { 0 };
    TC_ASSERT(tc_data_train_stage(&stage, NULL, &how, 1 + w / BATCH, w % BATCH, &(struct tc_batch){ x, y, starts }, &err) == 0);
    for (int64_t at = 0, end; at < T; at = end) {
      for (end = at + 1; end < T && starts[end] == at; end++) ;
      bool empty = true;
      for (int64_t i = at; i < end; i++) empty &= y[i] == -1 && x[i] == 0;
      const int s = starts[at] == at ? find_sample(x + at, y + at, end - at, seen, cut) : -1;
      if (s >= 0) seen[s] = 1, used += end - at;
      else wrong += !empty || end < T;
    }
  }
  for (int64_t step = 1; step <= windows / BATCH; step++) {
    int64_t n, want = 0;
    int32_t x[BATCH * T], y[BATCH * T], starts[BATCH * T];
    struct tc_err err = { 0 };
    TC_ASSERT(tc_data_counted(&stage, NULL, &how, step, &n, &err) == 0);
    TC_ASSERT(tc_data_train(d, NULL, &how, step, 0, BATCH, &(struct tc_batch){ x, y, starts }, &err) == 0);
    for (int i = 0; i < BATCH * T; i++) want += y[i] >= 0;
    miscounted += n != want || n == 0;
  }
  int64_t counted;
  for (int s = 0; s < n_samples; s++) missing += seen[s] != (s >= from && s < to && places_of(s, cut, &counted) > 0);
  ok(!wrong && !missing && !miscounted && used == tc_data_tally(d, 0)->tokens,
     "%s: each sample once, whole, in %lld windows; counts are those of the targets", what, (long long)windows);
}

static void test_packed(uint64_t seed)
{
  struct tc_data *d, *sent;
  struct tc_err err = { 0 };
  void *bytes;
  int64_t n;
  make(seed);
  for (int cut = 0; cut < 2; cut++) {
    int64_t left = 0, is_cut = 0, silent = 0, counted;
    for (int s = 0; s < n_samples; s++) {
      const bool is_long = begin[s + 1] - begin[s] > T + 1, used = places_of(s, cut, &counted) > 0;
      left += is_long && !cut;
      is_cut += is_long && used;
      silent += !used && !(is_long && !cut);
    }
    TC_ASSERT(open_set(&d, 0, true, cut, &err) == 0);
    const struct tc_pack_tally *t = tc_data_tally(d, 0);
    ok(t->samples == n_samples && t->cut == is_cut && t->left_out == left && t->silent == silent,
       "%d samples: %lld cut, %lld left out, %lld silent", n_samples, (long long)t->cut, (long long)t->left_out,
           (long long)t->silent);
    check_epoch(d, cut, seed, 0, n_samples, cut ? "long ones cut" : "long ones left out");
    tc_data_pack(d, &bytes, &n);
    TC_ASSERT(tc_data_unpack(&sent, bytes, n, 0, &err) == 0);
    free(bytes);
    check_epoch(sent, cut, seed + 1, 0, n_samples, "another rank");
    tc_data_free(d);
    tc_data_free(sent);
  }
  const int64_t total = begin[n_samples], border = total / 100 * 95 + total % 100 * 95 / 100;
  int first = 0;
  while (begin[first] < border) first++;
  for (int part = 1; part <= 2; part++) {
    TC_ASSERT(open_set(&d, part, true, true, &err) == 0);
    check_epoch(d, true, seed, part == 1 ? 0 : first, part == 1 ? first : n_samples,
                part == 1 ? "training part" : "validation part");
    tc_data_free(d);
  }
}

static void test_stream(void)
{
  struct tc_data *d;
  struct tc_err err = { 0 };
  int wrong = 0;
  TC_ASSERT(open_set(&d, 0, false, false, &err) == 0);
  for (int64_t w = 0; w < tc_data_windows(d, 0); w++) {
    int32_t x[T], y[T];
    int64_t n = 0, want = 0;
    TC_ASSERT(tc_data_window(d, NULL, 0, w, &(struct tc_batch){ x, y, NULL }, &err) == 0);
    TC_ASSERT(tc_data_window_counted(d, NULL, 0, w, &n, &err) == 0);
    for (int i = 0; i < T; i++) {
      const int64_t at = w * T + i;
      wrong += x[i] != token[at] || y[i] != (weight[at + 1] & TC_WEIGHT_COUNTS ? token[at + 1] : -1);
      want += y[i] >= 0;
    }
    wrong += n != want;
  }
  ok(wrong == 0 && tc_data_weighted(d), "windows of the stream have targets where weights count");
  enum { AT = FILE_TOKENS - 2 * T, N = 4 * T + 7, GUARD = 77 };
  int32_t x[N + 1] = { [N] = GUARD };
  for (int i = 0; i < N; i++) x[i] = token[AT + i];
  TC_ASSERT(tc_data_mask(d, NULL, 0, AT, N, x, &err) == 0);
  for (int i = 0; i < N; i++) wrong += x[i] != (weight[AT + i] & TC_WEIGHT_COUNTS ? token[AT + i] : -1);
  ok(wrong == 0 && x[N] == GUARD, "... as have tokens of several windows and files");
  tc_data_free(d);
}

static uint64_t identity(bool pack)
{
  struct tc_data *d;
  struct tc_data_identity id;
  struct tc_err err = { 0 };
  TC_ASSERT(open_set(&d, 0, pack, true, &err) == 0 && tc_data_identity(d, &id, &err) == 0 && id.tokens == begin[n_samples]);
  tc_data_free(d);
  return id.hash;
}

/* The same tokens with other weights are other data; and a change under a run is noticed. */
static void test_identity(void)
{
  const uint64_t was = identity(true);
  struct tc_data *d;
  struct tc_err err = { 0 };
  ok(identity(false) == was, "packed or not, the data are the same");
  TC_ASSERT(open_set(&d, 0, true, true, &err) == 0);
  ok(tc_data_check(d, true, &err) == 0, "nothing changes under a run");
  weight[1] ^= TC_WEIGHT_COUNTS;
  write_weights("p/s00.bin", weight, FILE_TOKENS);
  ok(identity(true) != was, "one weight differs: another identity");
  ok(tc_data_check(d, true, &err) == TC_EUSER && strstr(err.text, "'p/s00.weights.npy'"), "... and a run notices: %s", err.text);
  tc_data_free(d);
  weight[1] ^= TC_WEIGHT_COUNTS;
  write_weights("p/s00.bin", weight, FILE_TOKENS);
  ok(identity(true) == was, "as before: the first identity");
}

/* Calls, of which the one after `left` others fails. */
struct calls { int n, left; };

static int count_call(void *ctx, struct tc_err *err)
{
  struct calls *x = ctx;
  x->n++;
  return x->left-- ? 0 : tc_fail(err, TC_EPEER, "call %d", x->n);
}

/* A weight far from the tokens that are hashed is part of the identity, too; and whoever waits hears of each file and block. */
static void test_all_weights(void)
{
  enum { N = 40000, AT = 20010, BLOCKS = 1 };
  static uint8_t w[N], x[N];
  static char name[] = "q.bin";
  char *word = name;
  uint64_t hash[3];
  w[0] = TC_WEIGHT_BEGINS;
  for (int i = 0; i < N; i++) w[i] |= i % 3 ? TC_WEIGHT_COUNTS : i % 10 ? 0 : TC_WEIGHT_BEGINS;
  write_shard(name, x, N);
  for (int pack = 0; pack < 2; pack++) {
    const struct tc_data_opts o = { .word = &word, .n = 1, .format = TC_FORMAT_BIN, .context = T, .vocab = 256, .pack = pack,
                                    .cut = true };
    for (int i = 0; i < 3; i++) {
      struct tc_data *d;
      struct tc_data_identity id;
      struct tc_err err = { 0 };
      w[AT] ^= i == 1 ? TC_WEIGHT_BEGINS : i == 2 ? TC_WEIGHT_BEGINS | TC_WEIGHT_COUNTS : 0;
      write_weights(name, w, N);
      TC_ASSERT(tc_data_open(&d, &o, &err) == 0 && tc_data_identity(d, &id, &err) == 0);
      hash[i] = id.hash;
      for (int left = 0; left < 3 && i == 0; left++) {
        struct calls x = { .left = left };
        struct tc_data *other = NULL;
        const int calls = 1 + pack * BLOCKS, rc = tc_data_open_between(&other, &o, &(struct tc_between){ count_call, &x }, &err);
        ok(x.n == TC_MIN(calls, left + 1) && rc == (left < calls ? TC_EPEER : 0), "opening, %s: call %d of %d",
           pack ? "packed" : "plain", left + 1, calls);
        tc_data_free(other);
      }
      struct calls of_id = { .left = 0 };
      ok(tc_data_identity_between(d, &id, &(struct tc_between){ count_call, &of_id }, &err) == TC_EPEER && of_id.n == 1,
         "the identity: a call after a block");
      tc_data_free(d);
    }
    w[AT] ^= TC_WEIGHT_COUNTS;
    ok(hash[0] != hash[1] && hash[0] != hash[2] && hash[1] != hash[2], "a begin and a weight between the tokens that are hashed");
  }
  unlink(name);
  unlink("q.weights.npy");
}

/* A stage goes on in the windows of the last one, if they are packed alike. */
static void test_stages(void)
{
  static const struct { bool pack, cut, goes_on; } next[] = {
    { true, true, true }, { true, false, false }, { false, false, false } };
  for (int i = 0; i < 3; i++) {
    struct tc_origin origin[2] = { { 0 } };
    struct tc_data_stage s[2] = { { .origin = &origin[0] }, { .origin = &origin[1] } };
    struct tc_data *d[2];
    struct tc_err err = { 0 };
    TC_ASSERT(open_set(&d[0], 0, true, true, &err) == 0 && open_set(&d[1], 0, next[i].pack, next[i].cut, &err) == 0);
    s[0].d = d[0], s[1].d = d[1];
    tc_data_origins(s, (const int64_t[]){ 7, 0 }, 0);
    tc_data_origins(s, (const int64_t[]){ 7, 0 }, 1);
    ok(origin[1].taken == (next[i].goes_on ? 7 : 0) && origin[1].number == !next[i].goes_on, "%s windows%s: %s",
       next[i].pack ? "packed" : "plain", next[i].cut ? ", cut" : "", next[i].goes_on ? "they go on" : "they begin");
    tc_data_free(d[0]);
    tc_data_free(d[1]);
  }
}

/* Each shard with the first weights. */
static void write_same(void)
{
  for (int i = 0; i < n_files; i++) {
    char name[20];
    snprintf(name, sizeof name, "p/s%02d.bin", i);
    write_weights(name, weight, TC_MIN(begin[n_samples] - i * FILE_TOKENS, FILE_TOKENS));
  }
}

/* Files of another program, of uint16 without a header, with weights; `first`: those of the first tokens of each file. */
static int open_others(struct tc_data **d, const int first[2], int part, struct tc_err *err)
{
  static char name[2][8] = { "o0.u16", "o1.u16" };
  char *word[2] = { name[0], name[1] };
  const struct tc_data_opts o = { .word = word, .n = 2, .format = TC_FORMAT_UINT16, .part = part, .context = T, .vocab = 256,
                                  .pack = true, .cut = true };
  enum { N = 100 };
  for (int k = 0; k < 2; k++) {
    uint8_t w[N];
    memset(w, TC_WEIGHT_COUNTS, N);
    w[0] = (uint8_t)first[k];
    FILE *f = fopen(name[k], "wb");
    TC_ASSERT(f && fwrite(w, 2, N / 2, f) == N / 2 && fwrite(w, 2, N / 2, f) == N / 2 && fclose(f) == 0);
    write_weights(name[k], w, N);
  }
  return tc_data_open(d, &o, err);
}

static void test_begins(void)
{
  struct tc_data *d;
  struct tc_err err = { 0 };
  ok(open_others(&d, (const int[]){ 1, 3 }, 0, &err) == TC_EUSER &&
     strstr(err.text, "'o0.u16.weights.npy' does not say that a sample begins with the first token of 'o0.u16'"),
     "a mask of 0 and 1: %s", err.text);
  ok(open_others(&d, (const int[]){ 3, 1 }, 0, &err) == TC_EUSER && strstr(err.text, "first token of 'o1.u16'"),
     "... in the second file: %s", err.text);
  ok(open_others(&d, (const int[]){ 3, 3 }, 2, &err) == TC_EUSER &&
     strstr(err.text, "no sample begins in the validation part (the last 5 %): name validation data by data.val"),
     "a part without a sample: %s", err.text);
  TC_ASSERT(open_others(&d, (const int[]){ 3, 3 }, 0, &err) == 0);
  is_int(tc_data_tally(d, 0)->samples, 2, "a sample each");
  tc_data_free(d);
  unlink("o0.u16"), unlink("o1.u16"), unlink("o0.u16.weights.npy"), unlink("o1.u16.weights.npy");
}

static void test_refused(void)
{
  struct tc_data *d;
  struct tc_err err = { 0 };
  memset(weight, TC_WEIGHT_BEGINS, 1);
  write_weights("p/s00.bin", weight, FILE_TOKENS - 1);
  ok(open_set(&d, 0, false, false, &err) == TC_EUSER && strstr(err.text,
     "'p/s00.weights.npy' does not have the weights of its shard's"),
     "too few weights: %s", err.text);
  write_weights("p/s00.bin", weight, FILE_TOKENS);
  FILE *f = fopen("p/s00.weights.npy", "r+b");
  TC_ASSERT(f && fseek(f, 23, SEEK_SET) == 0 && fputc('2', f) == '2' && fclose(f) == 0);      /* '|u2' */
  ok(open_set(&d, 0, false, false, &err) == TC_EUSER && strstr(err.text, "what np.save writes of as many uint8"),
     "another type: %s", err.text);
  weight[5] = 4;
  write_weights("p/s00.bin", weight, FILE_TOKENS);
  ok(open_set(&d, 0, true, false, &err) == TC_EUSER && strstr(err.text, "has 4 at place 5; a weight is 0 or 1"), "no weight: %s",
     err.text);
  TC_ASSERT(open_set(&d, 0, false, false, &err) == 0);
  int32_t x[T], y[T];
  ok(tc_data_window(d, NULL, 0, 0, &(struct tc_batch){ x, y, NULL }, &err) == TC_EUSER && strstr(err.text, "has 4 at place 5"),
     "... of the stream, too");
  tc_data_free(d);
  TC_ASSERT(unlink("p/s00.weights.npy") == 0);
  ok(open_set(&d, 0, true, false, &err) == TC_EUSER && strstr(err.text, "'p/s00.weights.npy' does not lie beside 'p/s00.bin'"),
     "no weights: %s", err.text);
  memset(weight, 0, FILE_TOKENS);
  write_same();
  ok(open_set(&d, 0, true, true, &err) == TC_EUSER && strstr(err.text, "no weight of data 'p' says where a sample begins"),
     "nothing begins: %s", err.text);
  weight[0] = TC_WEIGHT_BEGINS;
  write_same();
  ok(open_set(&d, 0, true, true, &err) == TC_EUSER && strstr(err.text, "none of the first 25 tokens of its "), "nothing counts: %s",
     err.text);
  ok(open_set(&d, 0, true, false, &err) == TC_EUSER && strstr(err.text, "samples ") && strstr(err.text, "data.long = cut"),
     "... or is short enough: %s", err.text);
  TC_ASSERT(open_set(&d, 0, false, false, &err) == 0);
  const struct tc_data_stage stage = { .d = d };
  const struct tc_samples how = { TC_ORDER_PERMUTATION, 1, BATCH };
  int64_t n;
  ok(tc_data_counted(&stage, NULL, &how, 3, &n, &err) == 0 && n == 0, "a step without a token that counts");
  ok(tc_data_fail_silent(&stage, &how, 3, &err) == TC_EUSER && strstr(err.text,
     "step 3: none of the tokens of its 4 samples counts") &&
     strstr(err.text, "of 'p/s"), "... is a sentence: %s", err.text);
  tc_data_free(d);
}

static void put_note(const char *text)
{
  FILE *f = fopen("p/data.json", "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Shards of conversations whose weights were lost would be trained on at every token. */
static void test_lost(void)
{
  struct tc_data *d;
  struct tc_err err = { 0 };
  int32_t end;
  TC_ASSERT(open_set(&d, 0, false, false, &err) == 0);
  ok(tc_documents_end(&end, TC_AUTO, d, &err) == TC_EUSER && strstr(err.text, "which data.documents = pack takes"),
     "no mask, but pack: %s", err.text);
  tc_data_free(d);
  unlink("p/s01.weights.npy");
  ok(open_set(&d, 0, false, false, &err) == TC_EUSER &&
     strstr(err.text, "'p/s01.weights.npy' does not lie beside 'p/s01.bin', though 'p/s00.bin' has weights"),
     "one file without weights: %s", err.text);
  for (int i = 0; i < n_files; i++) {
    char name[30];
    snprintf(name, sizeof name, "p/s%02d.weights.npy", i);
    unlink(name);
  }
  put_note("{\"command\": {\"chat\": \"chatml\"}, \"complete\": true}");
  ok(open_set(&d, 0, false, false, &err) == TC_EUSER && strstr(err.text, "which `tercio data --chat` made with weights"),
     "all without weights: %s", err.text);
  put_note("{\"command\": {}, \"complete\": true}");
  ok(open_set(&d, 0, false, false, &err) == 0 && !tc_data_weighted(d), "... where there never were any");
  tc_data_free(d);
  unlink("p/data.json");
}

int main(void)
{
  char dir[] = "/tmp/t_packed-XXXXXX";
  const uint64_t seed = test_seed(false);
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0 && mkdir("p", 0777) == 0);
  for (uint64_t i = 0; i < 4; i++) test_packed(seed + i);
  test_stream();
  test_identity();
  test_all_weights();
  test_stages();
  test_begins();
  test_refused();
  test_lost();
  remove_files();
  rmdir("p");
  return chdir("/") || rmdir(dir) || done_testing();
}
