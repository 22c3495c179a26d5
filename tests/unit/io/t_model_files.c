/* t_model_files.c - what is refused in files of other programs, safetensors and llm.c's, in whole
 * sentences, and where exactly the limits are; where each tensor lies. */
#include <unistd.h>

#include "io/formats/json_values.h"
#include "io/formats/llmc.h"
#include "io/formats/safetensors.h"
#include "tests/unit/tap.h"

static void write_file(const void *data, size_t bytes)
{
  FILE *f = fopen("x", "w");
  TC_ASSERT(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

static int lowest_free(void)
{
  int fd = dup(1);
  close(fd);
  return fd;
}

/* ---- safetensors ------------------------------------------------------------------- */

/* Opens a file of this header, of `length` bytes by its own account (-1: as long as it is), and
 * `data` bytes behind it. */
static int open_text(struct tc_st **s, const char *text, int64_t length, int data,
                     struct tc_err *err)
{
  size_t n = strlen(text);
  uint64_t raw = length < 0 ? n : (uint64_t)length;
  char *all = tc_calloc(n + 8 + (size_t)data, 1);
  memcpy(all, &raw, 8);
  memcpy(all + 8, text, n);
  write_file(all, n + 8 + (size_t)data);
  free(all);
  return tc_st_open(s, "x", err);
}

/* A file of one tensor, t; a tensor of bytes. */
#define ONE(dtype, shape, a, b) \
  "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}}"
#define BYTES(name, n, a, b) \
  "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #a "," #b "]}"
#define SHAPE "x: tensor t has an impossible shape"
#define OUTSIDE "x: tensor t lies outside of the file"
#define NUMBER "x: tensor t has another number of bytes than its shape needs"
#define OFFSETS "x: tensor t does not have two data_offsets"

static const struct { const char *text; int64_t length; int data; const char *says; } header[] = {
  { "{}", -1, 0, "" }, { "{", -1, 0, "x: not a safetensors file: it has 9 bytes" },
  { "{}", 3, 0, "x: its header is 3 bytes according to the file, which has only 10: truncated, or not a "
    "safetensors file" },
  { "[]", -1, 0, "x: not a safetensors file: its header is not a JSON object" },
  { "{\"__metadata__\": 7}", -1, 0, "x: __metadata__ is not an object" },
  { "{\"t\": 3}", -1, 0, "x: tensor t is not an object" },
  { ONE("F33", "[2]", 0, 8), -1, 8, "x: tensor t has an unknown dtype" },
  { ONE("F32", "[2]", 0, 8), -1, 8, "" }, { ONE("F32", "2", 0, 8), -1, 8, SHAPE },
  { ONE("F32", "[]", 0, 4), -1, 4, "" }, { ONE("F32", "[0]", 0, 0), -1, 0, "" },
  { ONE("F32", "[1,1,1,1,1,2]", 0, 8), -1, 8, "" },
  { ONE("F32", "[1,1,1,1,1,1,2]", 0, 8), -1, 8, SHAPE },
  { ONE("F32", "[-1]", 0, 4), -1, 4, SHAPE }, { ONE("F32", "[2,\"1\"]", 0, 8), -1, 8, SHAPE },
  { ONE("U8", "[288230376151711744]", 0, 1), -1, 1, NUMBER },
  { ONE("U8", "[288230376151711745]", 0, 1), -1, 1, SHAPE },
  { ONE("U8", "[1073741824,268435456]", 0, 1), -1, 1, NUMBER },
  { ONE("U8", "[1073741824,268435457]", 0, 1), -1, 1, SHAPE },
  { ONE("U8", "[0,288230376151711744,3]", 0, 0), -1, 0, "" },
  { ONE("U8", "[288230376151711744,0]", 0, 0), -1, 0, "" },
  { ONE("F32", "[2]", 0, 7), -1, 8, NUMBER }, { ONE("F32", "[2]", 0, 8), -1, 7, OUTSIDE },
  { ONE("F32", "[2]", 8, 0), -1, 8, OUTSIDE }, { ONE("F32", "[2]", -1, 7), -1, 8, OUTSIDE },
  { ONE("F32", "[2]", 0, 8), -1, 9, "x: its tensors have 8 bytes, but 9 follow the header" },
  { ONE("F32", "[2]", 4, 12), -1, 12, "x: tensor t begins at byte 4 of the data instead of 0: "
    "there is a gap" },
  { "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0]}}", -1, 2, OFFSETS },
  { "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2,2]}}", -1, 2, OFFSETS },
  { "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[\"0\",2]}}", -1, 2, OFFSETS },
  { "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,\"2\"]}}", -1, 2, OFFSETS },
  { "{" BYTES("b", 4, 2, 6) "," BYTES("a", 4, 0, 4) "}", -1, 6, "x: tensor b begins at byte 2 of "
    "the data instead of 4: two tensors overlap" },
  { "{" BYTES("b", 4, 5, 9) "," BYTES("a", 4, 0, 4) "}", -1, 9, "x: tensor b begins at byte 5 of "
    "the data instead of 4: there is a gap" },
};

static void test_headers(void)
{
  const int fd = lowest_free();
  for (size_t i = 0; i < sizeof header / sizeof *header; i++) {
    struct tc_err err = { .text = "" };
    struct tc_st *s = NULL;
    int rc = open_text(&s, header[i].text, header[i].length, header[i].data, &err);
    is_int(rc, *header[i].says ? TC_EUSER : 0, "%s", header[i].text);
    is_str(err.text, header[i].says, "... in these words");
    ok((s != NULL) == (rc == 0), "... and is open or not");
    tc_st_close(s);
  }
  static const char *const odd[][2] = { { "none", "none: No such file or directory" },
                                        { ".", ".: not a file" } };
  for (size_t i = 0; i < 2; i++) {
    struct tc_err err;
    struct tc_st *s;
    is_int(tc_st_open(&s, odd[i][0], &err), TC_EUSER, "safetensors: %s", odd[i][0]);
    is_str(err.text, odd[i][1], "... in these words");
  }
  is_int(lowest_free(), fd, "no descriptor stays open");
}

/* Types in the file: what they are here, and their bytes. */
static void test_types(void)
{
  static const struct { const char *name; int dtype, bytes; } t[] = {
    { "F32", TC_F32, 4 }, { "BF16", TC_BF16, 2 }, { "F16", TC_ST_F16, 2 }, { "F64", TC_F64, 8 },
    { "I32", TC_I32, 4 }, { "U8", TC_U8, 1 }, { "BOOL", TC_ST_OTHER, 1 }, { "I8", TC_ST_OTHER, 1 },
    { "I16", TC_ST_OTHER, 2 }, { "U16", TC_ST_OTHER, 2 }, { "U32", TC_ST_OTHER, 4 },
    { "I64", TC_ST_OTHER, 8 }, { "U64", TC_ST_OTHER, 8 }, { "F8_E4M3", TC_ST_OTHER, 1 },
    { "F8_E5M2", TC_ST_OTHER, 1 } };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    struct tc_st *s;
    struct tc_err err;
    char *text = tc_sprintf("{\"t\":{\"dtype\":\"%s\",\"shape\":[2,3],\"data_offsets\":[0,%d]}}",
                            t[i].name, 6 * t[i].bytes);
    if (is_int(open_text(&s, text, -1, 6 * t[i].bytes, &err), 0, "type %s", t[i].name)) {
      const struct tc_st_tensor *x = tc_st_at(s, 0);
      ok(x->dtype == t[i].dtype && x->rank == 2 && x->dim[0] == 2 && x->dim[1] == 3 &&
         x->offset == 0 && x->bytes == 6 * t[i].bytes, "... of this many bytes");
      tc_st_close(s);
    }
    free(text);
  }
}

/* Tensors come in the order of their data, empty ones first, then by name; any is found. */
static void test_order(void)
{
  static const char *const name[] = { "d", "e", "c", "b", "f", "a" };
  struct tc_st *s;
  struct tc_err err = { .text = "" };
  char got[10] = "";
  is_int(open_text(&s, "{" BYTES("a", 1, 5, 6) "," BYTES("e", 0, 0, 0) "," BYTES("b", 2, 3, 5) ","
                   BYTES("d", 0, 0, 0) "," BYTES("c", 3, 0, 3) ",\"__metadata__\":{\"k\":\"v\","
                   "\"n\":7}," BYTES("f", 0, 5, 5) "}", -1, 6, &err), 0, "six tensors");
  is_int(tc_st_n(s), 6, "... and notes");
  for (int i = 0; i < tc_st_n(s); i++) strcat(got, tc_st_at(s, i)->name);
  is_str(got, "decbfa", "... in the order of their data");
  for (int i = 0; i < 6; i++) is_int(tc_st_find(s, name[i]), i, "%s is found", name[i]);
  is_int(tc_st_find(s, "g"), -1, "g is not");
  is_str(tc_st_note(s, "k"), "v", "a note");
  ok(!tc_st_note(s, "n") && !tc_st_note(s, "m"), "no notes");
  TC_ASSERT(truncate("x", 8) == 0);
  is_int(tc_st_read(s, 5, 0, 1, got, &err), TC_EUSER, "data that were cut off");
  is_str(err.text, "x: tensor a can't be read: the file ends too early", "... in these words");
  tc_st_close(s);
}

static int open_name(int n, struct tc_err *err)
{
  char *name = tc_calloc((size_t)n + 1, 1);
  struct tc_st *s = NULL;
  memset(name, 'n', (size_t)n);
  char *text = tc_sprintf("{\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", name);
  int rc = open_text(&s, text, -1, 1, err);
  ok(rc < 0 || tc_st_find(s, name) == 0, "a name of %d bytes", n);
  tc_st_close(s);
  free(text);
  free(name);
  return rc;
}

static int open_values(int n, struct tc_err *err)
{
  char *text = tc_calloc(2 * (size_t)n + 20, 1), *at = text + sprintf(text, "{\"a\":[0");
  struct tc_st *s;
  for (int i = 3; i < n; i++, at += 2) memcpy(at, ",0", 2);
  strcpy(at, "]}");
  int rc = open_text(&s, text, -1, 0, err);
  free(text);
  return rc;
}

/* The longest of names, headers and lists that are read, and one more. */
static void test_limits(void)
{
  struct tc_err err = { .text = "" };
  struct tc_st *s;
  is_int(open_name(1000, &err), 0, "... is good");
  is_int(open_name(1001, &err), TC_EUSER, "... is not");
  char *words = tc_sprintf("x: tensor %.100s has too long a name", strstr(err.text, "nnn"));
  is_str(err.text, words, "... in these words");
  free(words);
  is_int(open_values(1 << 20, &err), TC_EUSER, "as many values as are taken");
  is_str(err.text, "x: tensor a is not an object", "... are looked at");
  is_int(open_values((1 << 20) + 1, &err), TC_EUSER, "one more");
  is_str(err.text, "x: its header has more values than a model's could", "... is not");
  for (int more = 0; more <= 1; more++) {
    uint64_t n = (uint64_t)TC_ST_HEADER_BYTES + (uint64_t)more;
    write_file(&n, 8);
    TC_ASSERT(truncate("x", 8 + (off_t)n) == 0);
    is_int(tc_st_open(&s, "x", &err), TC_EUSER, "a header of zeros, %d", more);
    static const char *const says[] = { "x: not a safetensors file: its header is not a JSON object: ",
      "x: a header of 67108865 bytes is more than the 67108864 that are read" };
    ok(!strncmp(err.text, says[more], strlen(says[more])), "%s", err.text);
  }
}

static void test_values(void)
{
  static const struct { const char *text; int64_t n; } c[] = {
    { "", 1 }, { "7", 1 }, { "[]", 2 }, { "[1,2]", 3 }, { "{\"a\":1,\"b\":[]}", 4 },
    { "\",[{\"", 1 }, { "\"\\\",[{\"", 1 }, { "\"a\",\"b\"", 2 }, { "\\\",\"", 1 } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    is_int(tc_json_values(c[i].text, strlen(c[i].text)), c[i].n, "values of %s", c[i].text);
  is_int(tc_json_values("[1,2", 2), 2, "no further than it goes");
}

/* ---- llm.c ------------------------------------------------------------------------- */

static const struct tc_llmc_sizes sizes = { .context = 5, .vocab = 130, .layers = 3, .heads = 2,
                                            .hidden = 8, .padded_vocab = 256 };

/* Rows and columns of each tensor, and where that of layers 0 and 2 is. */
static void test_places(void)
{
  static const int64_t shape[][2] = {
    { 256, 8 }, { 5, 8 }, { 8, 1 }, { 8, 1 }, { 24, 8 }, { 24, 1 }, { 8, 8 }, { 8, 1 }, { 8, 1 },
    { 8, 1 }, { 32, 8 }, { 32, 1 }, { 8, 32 }, { 8, 1 }, { 8, 1 }, { 8, 1 } };
  int64_t at = 0;
  for (int k = 0; k < TC_LLMC_TENSORS; k++) {
    int64_t rows = 0, cols = 0, n = shape[k][0] * shape[k][1];
    tc_llmc_shape(&sizes, k, &rows, &cols);
    ok(rows == shape[k][0] && cols == shape[k][1], "shape of tensor %d", k);
    is_int(tc_llmc_place(&sizes, k, 0), at, "its place");
    is_int(tc_llmc_place(&sizes, k, 2), at + 2 * n, "that of layer 2");
    at += k > 1 && k < 14 ? 3 * n : n;
  }
  is_int(tc_llmc_place(&sizes, TC_LLMC_TENSORS, 2), at, "the end");
  static const int64_t pad[][2] = { { 1, 128 }, { 128, 128 }, { 129, 256 }, { 50257, 50304 } };
  for (int i = 0; i < 4; i++) is_int(tc_llmc_padded(pad[i][0]), pad[i][1], "padded");
}

static int open_llmc(struct tc_llmc **l, const int32_t *head, int64_t bytes, struct tc_err *err)
{
  write_file(head, TC_LLMC_HEADER_BYTES);
  TC_ASSERT(truncate("x", bytes) == 0);
  return tc_llmc_open(l, "x", err);
}

#define NO_MODEL(number, value) \
  "x: number " #number " of its header is " #value ", which is impossible"
#define CONTRADICT(what) "x: its sizes contradict each other: vocabulary " what
#define NOT_BYTES(n, layers, hidden) "x: has " n " bytes, not as many as a model of " layers \
  " layers and hidden size " hidden " needs: truncated or damaged"

static void test_llmc(void)
{
  static const struct { int at; int32_t value; const char *says; } c[] = {
    { 0, 7, "x: not a model file of llm.c: it begins with 7, not 20240326" },
    { 1, 4, "x: version 4 of llm.c's model files; 3 (fp32) and 5 (bf16) can be read" },
    { 2, 0, NO_MODEL(2, 0) }, { 3, -1, NO_MODEL(3, -1) }, { 4, 0, NO_MODEL(4, 0) },
    { 5, 0, NO_MODEL(5, 0) }, { 6, 0, NO_MODEL(6, 0) }, { 7, 0, NO_MODEL(7, 0) },
    { 2, 16777217, NO_MODEL(2, 16777217) }, { 7, 16777217, NO_MODEL(7, 16777217) },
    { 2, 16777216, NOT_BYTES("19904", "3", "8") }, { 7, 16777216, NOT_BYTES("19904", "3", "8") },
    { 7, 129, CONTRADICT("130 padded to 129, hidden size 8 in 2 heads") },
    { 5, 3, CONTRADICT("130 padded to 256, hidden size 8 in 3 heads") },
    { 7, 130, NOT_BYTES("19904", "3", "8") }, { 4, 2, NOT_BYTES("19904", "2", "8") },
    { 6, 16, NOT_BYTES("19904", "3", "16") }, { 4, 1 << 24, NOT_BYTES("19904", "16777216", "8") },
    { 3, 256, "" }, { 5, 8, "" }, { 1, 3, "" } };
  int32_t head[TC_LLMC_HEADER_BYTES / 4];
  const int64_t bytes = TC_LLMC_HEADER_BYTES + 4 * tc_llmc_place(&sizes, TC_LLMC_TENSORS, 0);
  const int fd = lowest_free();
  is_int(bytes, 19904, "bytes of the model");
  tc_llmc_header(head, &sizes, TC_F32);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_err err = { .text = "" };
    struct tc_llmc *l = NULL;
    int32_t was = head[c[i].at];
    head[c[i].at] = c[i].value;
    is_int(open_llmc(&l, head, bytes, &err), *c[i].says ? TC_EUSER : 0, "llm.c: %d at %d",
           (int)c[i].value, c[i].at);
    is_str(err.text, c[i].says, "... in these words");
    head[c[i].at] = was;
    tc_llmc_close(l);
  }
  static const char *const odd[][2] = { { "none", "none: No such file or directory" },
    { ".", ".: not a file" }, { "x", "x: too short for a model file of llm.c" } };
  TC_ASSERT(truncate("x", TC_LLMC_HEADER_BYTES - 1) == 0);
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    struct tc_err err;
    struct tc_llmc *l;
    is_int(tc_llmc_open(&l, odd[i][0], &err), TC_EUSER, "llm.c: %s", odd[i][0]);
    is_str(err.text, odd[i][1], "... in these words");
    ok(!l, "... and is not open");
  }
  is_int(lowest_free(), fd, "no descriptor stays open");
}

/* The elements that were asked for, in either type. */
static void test_llmc_read(void)
{
  for (int k = 0; k < 2; k++) {
    const int dtype = k ? TC_BF16 : TC_F32, elem = k ? 2 : 4;
    int32_t head[TC_LLMC_HEADER_BYTES / 4];
    const int64_t bytes = TC_LLMC_HEADER_BYTES + elem * tc_llmc_place(&sizes, TC_LLMC_TENSORS, 0);
    struct tc_err err = { .text = "" };
    struct tc_llmc *l;
    char got[8] = "", data[] = "abcdefghijklmnop";
    tc_llmc_header(head, &sizes, dtype);
    if (!is_int(open_llmc(&l, head, bytes, &err), 0, "a model %s", err.text)) continue;
    FILE *f = fopen("x", "r+");
    TC_ASSERT(f && fseek(f, TC_LLMC_HEADER_BYTES, SEEK_SET) == 0 && fputs(data, f) > 0 &&
              fclose(f) == 0);
    is_int(tc_llmc_dtype(l), dtype, "its type");
    ok(!memcmp(tc_llmc_sizes(l), &sizes, sizeof sizes), "its sizes");
    is_int(tc_llmc_read(l, 2, 1, got, &err), 0, "its third element");
    is_str(got, k ? "ef" : "ijkl", "... is this");
    TC_ASSERT(truncate("x", TC_LLMC_HEADER_BYTES + elem) == 0);
    is_int(tc_llmc_read(l, 0, 1, got, &err), 0, "cut off behind the first");
    is_int(tc_llmc_read(l, 0, 2, got, &err), TC_EUSER, "... the second can't be read");
    is_str(err.text, "x: can't be read: the file ends too early", "... in these words");
    tc_llmc_close(l);
  }
}

int main(void)
{
  char dir[100];
  const char *tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.60s/t_model_files.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  alarm(300);
  test_headers();
  test_types();
  test_order();
  test_limits();
  test_values();
  test_places();
  test_llmc();
  test_llmc_read();
  TC_ASSERT(unlink("x") == 0 && rmdir(dir) == 0);
  return done_testing();
}
