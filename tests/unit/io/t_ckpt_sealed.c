/* t_ckpt_sealed.c - `tercio ckpt export` and `plan` of checkpoints whose manifests have the right
 * checksum, but a model, a tensor or a mesh that this program would not have written. */
#include "io/ckpt/manifest.h"
#include "tests/unit/ckpt_cmd.h"

#define MODEL "layers 1 hidden 2 heads 1 context 2 vocab 2"
#define WPE "\"wpe.weight\", \"dtype\": "

/* Everywhere in text (freed), `from` becomes `to`. Owned. */
static char *changed(char *text, const char *from, const char *to)
{
  char *made = tc_strdup("");
  const char *at = text;
  for (const char *next; *from && (next = strstr(at, from)); at = next + strlen(from)) {
    char *more = tc_sprintf("%s%.*s%s", made, (int)(next - at), at, to);
    free(made);
    made = more;
  }
  char *whole = tc_sprintf("%s%s", made, at);
  free(made);
  free(text);
  return whole;
}

static char *manifest_path(const char *dir)
{
  return tc_sprintf("%s/step-00000000/manifest.json", dir);
}

/* Owned. */
static char *read_manifest(const char *dir)
{
  char *path = manifest_path(dir), *text = tc_calloc(1 << 17, 1);
  FILE *f = fopen(path, "r");
  TC_ASSERT(f && fread(text, 1, (1 << 17) - 1, f) > 0);
  fclose(f);
  free(path);
  return text;
}

static void write_manifest(const char *dir, const char *text)
{
  const char *crc = strstr(text, ",\n\"crc32c\": \"");
  TC_ASSERT(crc != NULL);
  size_t bytes;
  char *bare = tc_sprintf("%.*s\n}\n", (int)(crc - text), text);
  char *sealed = tc_manifest_seal(bare, strlen(bare), &bytes), *path = manifest_path(dir);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes);
  fclose(f);
  free(path);
  free(sealed);
  free(bare);
}

/* Imports a model of one layer, whose weights are zero. */
static void make(const char *root, const char *dir)
{
  const int32_t head[256] = { 20240326, 3, 2, 2, 1, 1, 2, 128 };
  char *file = tc_sprintf("%s/model.bin", root);
  FILE *f = fopen(file, "w");
  TC_ASSERT(f && fwrite(head, sizeof head, 1, f) == 1 && ftruncate(fileno(f), 1024 + 4 * 338) == 0);
  fclose(f);
  if (!is_int(run("import %s -o %s", file, dir), 0, "a checkpoint of a small model"))
    printf("# %s", err_text);
  free(file);
}

/* ---- another model ----------------------------------------------------------------- */

static const struct { const char *what, *from, *to, *command, *sentence; } fault[] = {
  { "no GPT", "\"" MODEL, "\"mlp of two layers", "export --format hf -o",
    " is not of a model that this version knows, but of 'mlp of two layers'\n" },
  { "more than a GPT", "\"" MODEL, "\"" MODEL " and more", "export --format llmc -o",
    " is not of a model that this version knows, but of '" MODEL " and more'\n" },
  { "more layers than it has", "layers 1", "layers 49", "export --format hf -o",
    " has 48 tensors, fewer than a model of 49 layers\n" },
  { "one layer for each tensor", "layers 1", "layers 48", "export --format hf -o",
    " has no tensor h.1.ln_1.weight: not a checkpoint of this program's GPT\n" },
  { "a tensor of another name", "wpe.weight\"", "wpx.weight\"", "export --format llmc -o",
    " has no tensor wpe.weight: not a checkpoint of this program's GPT\n" },
  { "tensors that are too small", "hidden 2", "hidden 4", "export --format hf -o",
    ": tensor wte.weight is not the f32 tensor of 8 elements that its model (layers 1 hidden 4 "
    "heads 1 context 2 vocab 2) has\n" },
  { "a tensor of another type", WPE "\"f32\"", WPE "\"i32\"",
    "export --format llmc -o",
    ": tensor wpe.weight is not the f32 tensor of 4 elements that its model (" MODEL ") has\n" },
  { "a tensor of another type", WPE "\"f32\"", WPE "\"i32\"",
    "plan", ": tensor wpe.weight has another shape or type than this model's\n" },
  { "a tensor of fewer rows", "context 2 vocab 2", "context 3 vocab 2", "plan --model.context=3",
    ": tensor wpe.weight has another shape or type than this model's\n" },
  { "a tensor of shorter rows", "hidden 2", "hidden 4", "plan --model.hidden=4",
    ": tensor wte.weight has another shape or type than this model's\n" },
  { "a tensor of another name", "optim.m.ln_f.bias\"", "optim.m.ln_f.bios\"", "plan",
    " has no tensor optim.m.ln_f.bias (was it saved with another train.optimizer?)\n" },
  { "more layers than it has", "layers 1 ", "layers 49 ", "plan --model.layers=49",
    " has 48 tensors, fewer than a model of 49 layers\n" },
  { "one layer for each tensor", "layers 1 ", "layers 48 ", "plan --model.layers=48",
    " has no tensor h.1.ln_1.weight (was it saved with another train.optimizer?)\n" },
  { "another model", "", "", "plan --model.layers=2",
    " is of another model: " MODEL "; the requested layout is of layers 2 hidden 2 heads 1 "
    "context 2 vocab 2\n" },
};

static void test_faults(const char *root, const char *dir, const char *whole)
{
  for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
    bool export = strncmp(fault[i].command, "export", 6) == 0;
    char *text = changed(tc_strdup(whole), fault[i].from, fault[i].to), verb[8] = "";
    char *out = tc_sprintf("%s/out%zu", root, i);
    char *want = tc_sprintf("tercio: %s/step-00000000%s", dir, fault[i].sentence);
    write_manifest(dir, text);
    sscanf(fault[i].command, "%7s", verb);
    is_int(run("%s %s %s", fault[i].command, export ? out : "", dir), 2, "%s: %s", verb,
           fault[i].what);
    is_str(err_text, want, "... the message");
    is_str(out_text, "", "... and nothing on stdout");
    ok(access(out, F_OK) < 0, "... and nothing is made");
    free(want);
    free(out);
    free(text);
  }
}

/* ---- the mesh that saved it -------------------------------------------------------- */

static void test_mesh(const char *dir, const char *whole)
{
  static const struct { const char *mesh, *opts; int pp, dp, tp; } row[] = {
    { "pp1 dp1 tp1", "", 1, 1, 1 },
    { "pp1 dp2 tp1", "", 1, 2, 1 },
    { "pp1 dp2 tp1", "--world 4", 1, 4, 1 },
    { "pp1 dp2 tp1", "--dp 8", 1, 8, 1 },
    { "pp1 dp2 tp1x", "--world 1", 1, 1, 1 },    /* not as this program writes it: ignored */
    { "pp1 dp2", "--world 2", 1, 2, 1 },
    { "", "--world 1", 1, 1, 1 },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char from[60], to[60];
    snprintf(from, sizeof from, "\"mesh\": \"%s\"", row[i].mesh);
    char *text = changed(tc_strdup(whole), "\"mesh\": \"pp1 dp1 tp1\"", from);
    write_manifest(dir, text);
    if (!is_int(run("plan %s %s", dir, row[i].opts), 0, "saved by '%s', %s", row[i].mesh,
                row[i].opts))
      printf("# %s", err_text);
    snprintf(to, sizeof to, "\nto pp%d dp%d tp%d ddp, %d ranks\n", row[i].pp, row[i].dp, row[i].tp,
             row[i].pp * row[i].dp * row[i].tp);
    ok(says(to), "... is planned for pp%d dp%d tp%d", row[i].pp, row[i].dp, row[i].tp);
    free(text);
  }
  char *text = changed(tc_strdup(whole), "\"mesh\": \"pp1 dp1 tp1\"", "\"mesh\": \"pp1 dp1 tp1x\"");
  write_manifest(dir, text);
  is_int(run("plan %s", dir), 2, "without a mesh, and without a number of ranks");
  is_str(err_text, "tercio: ckpt plan: mesh.dp = auto needs --world N, or --simulate CLUSTER\n",
         "... the message");
  is_int(run("plan %s --dp 1 --tp auto", dir), 2, "... the other axis");
  is_str(err_text, "tercio: ckpt plan: mesh.tp = auto needs --world N, or --simulate CLUSTER\n",
         "... the message");
  free(text);
}

int main(void)
{
  alarm(600);
  const char *root = fx_folder();
  char *dir = tc_sprintf("%s/ckpt", root);
  snprintf(out_path, sizeof out_path, "%s/out", root);
  make(root, dir);
  char *whole = read_manifest(dir);
  test_faults(root, dir, whole);
  test_mesh(dir, whole);
  free(whole);
  free(dir);
  free(out_text);
  fx_clean();
  return done_testing();
}
