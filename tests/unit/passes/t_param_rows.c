/* t_param_rows.c - rows for parameters: what each sets, which of two counts, what is refused; drawn rows beside a plain reading. */
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "tests/unit/program_text.h"
#include "tests/unit/seed.h"

#include <fnmatch.h>

static const char program[] = "param wte.weight [4,4]\nparam h.0.ln_1.weight [4]\nparam h.0.mlp.fc.weight [4,4]\n"
                              "param h.0.mlp.fc.bias [4]\nparam h.1.mlp.fc.weight [4,4]\n";
enum { PARAMS = 5 };
static const char *const name[PARAMS] = { "wte.weight", "h.0.ln_1.weight", "h.0.mlp.fc.weight", "h.0.mlp.fc.bias",
                                          "h.1.mlp.fc.weight" };

/* The parameters of a model: a gain and a bias, and matrices that begin with a deviation of 0.5. */
static struct tc_graph *parameters(void)
{
  struct tc_graph *g = read_program(program);
  for (int i = 0; i < PARAMS; i++) {
    const bool matrix = i != 1 && i != 3;
    g->param[i].decay = matrix;
    g->param[i].init_std = matrix ? 0.5f : 0;
  }
  return g;
}

/* "NAME lr decay init kind", or "NAME frozen", of those that are not as the model has them. */
static void changed(const struct tc_graph *g, char *text, size_t size)
{
  struct tc_graph *was = parameters();
  *text = 0;
  for (int i = 0; i < PARAMS; i++) {
    const struct tc_param *p = &g->param[i], *q = &was->param[i];
    if (p->frozen) tc_text_add(text, size, "%s frozen\n", p->name);
    if (p->frozen || (p->lr == q->lr && p->decay == q->decay && p->init_std == q->init_std && p->kind == q->kind)) continue;
    tc_text_add(text, size, "%s %g %g %g %d\n", p->name, (double)p->lr, (double)p->decay, (double)p->init_std, p->kind);
  }
  tc_graph_free(was);
}

#define FORM "PATTERN lr=X decay=X init=X optimizer=WORD frozen=yes, with one key or more"
static void test_rows(void)
{
  static const struct { const char *rows, *want; } row[] = {
    { "", "" }, { "* lr=1", "" },
    { "wte.* lr=0.25", "wte.weight 0.25 1 0.5 0\n" },
    { "*.bias decay=1", "h.0.mlp.fc.bias 1 1 0 0\n" },
    { "*.weight decay=0, h.* decay=2", "wte.weight 1 0 0.5 0\nh.0.ln_1.weight 1 2 0 0\nh.0.mlp.fc.weight 1 2 0.5 0\n"
      "h.0.mlp.fc.bias 1 2 0 0\nh.1.mlp.fc.weight 1 2 0.5 0\n" },
    { "*.fc.* init=0.5 lr=2", "h.0.mlp.fc.weight 2 1 0.25 0\nh.0.mlp.fc.bias 2 0 0 0\nh.1.mlp.fc.weight 2 1 0.25 0\n" },
    { "h.[01].mlp.fc.weight optimizer=lion", "h.0.mlp.fc.weight 1 1 0.5 3\nh.1.mlp.fc.weight 1 1 0.5 3\n" },
    { " wte.weight   optimizer=sgd  lr=3 ,", "wte.weight 3 1 0.5 2\n" },
    { "wte.* frozen=yes", "wte.weight frozen\n" }, { "*.bias frozen=no", "" },
    { "* frozen=yes lr=2, h.* frozen=no, h.0.* lr=1", "wte.weight frozen\nh.1.mlp.fc.weight 2 1 0.5 0\n" },
    { "* frozen=yes", "train.rows freezes all parameters, so that nothing is trained; a row of frozen=no for some would fit" },
    { "wte.* frozen=1", "train.rows: \"frozen=1\": the value has to be yes or no" },
    { "x.* lr=1", "train.rows: x.* matches no parameter of this model; tercio graph --after build lists them" },
    { "wte.weight", "train.rows: \"wte.weight\" is not a row: " FORM },
    { "wte.weight rate=1", "train.rows: \"rate=1\" is not a key of a row: " FORM },
    { "wte.weight lr", "train.rows: \"lr\" is not a key of a row: " FORM },
    { "wte.weight lr=", "train.rows: \"lr=\": the value has to be a number from 0 to 1e6" },
    { "wte.weight lr=-1", "train.rows: \"lr=-1\": the value has to be a number from 0 to 1e6" },
    { "wte.weight lr=nan", "train.rows: \"lr=nan\": the value has to be a number from 0 to 1e6" },
    { "wte.weight optimizer=adam", "train.rows: \"optimizer=adam\": the value has to be one of those of train.optimizer" },
    { "*.bias init=2", "train.rows: *.bias init=2 has no effect: these begin with constants, not with random numbers" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = parameters();
    struct tc_err err = { 0 };
    char got[1000];
    if (tc_param_rows(g, row[i].rows, 0.9, &err) < 0) snprintf(got, sizeof got, "%s", err.text);
    else changed(g, got, sizeof got);
    is_str(got, row[i].want, "\"%s\"", row[i].rows);
    tc_graph_free(g);
  }
}

/* muP is for updates whose size does not depend on the gradient's. */
static void test_width(void)
{
  static const struct { const char *rows, *want; } row[] = {
    { "", "" }, { "* optimizer=lion", "" }, { "h.* optimizer=sgd, wte.* optimizer=lion, * optimizer=adamw", "" },
    { "h.0.mlp.fc.weight optimizer=sgd frozen=yes", "" }, { "wte.* optimizer=sgd", "" },
    { "h.0.mlp.* optimizer=sgd", "model.mup is for updates whose size does not depend on the gradient's, but h.0.mlp.fc.weight is "
      "updated by sgd: train.optimizer = adamw would fit, or lion, or model.mup = no" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = parameters();
    struct tc_err err = { .text = "" };
    g->param[2].width = g->param[4].width = 4;
    tc_param_rows(g, row[i].rows, 0.9, &err);
    is_str(err.text, row[i].want, "by width, \"%s\"", row[i].rows);
    tc_graph_free(g);
  }
}

/* A model with adapters: what stands beside them does not train. */
static void test_beside(void)
{
#define NONE " has no effect: with train.lora adapters alone train; *.lora_b would match some"
  static const struct { const char *rows, *want; } row[] = {
    { "* lr=2", "" }, { "h.0.* decay=3", "" }, { "wte.* init=2", "" }, { "wte.* frozen=yes", "" },
    { "wte.* lr=2", "train.rows: wte.* lr=2" NONE }, { "wte.* init=2 decay=0", "train.rows: wte.* decay=0" NONE },
    { "wte.* optimizer=lion", "train.rows: wte.* optimizer=lion" NONE } };
#undef NONE
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_graph *g = parameters();
    struct tc_err err = { .text = "" };
    g->param[0].base = g->param[0].frozen = true;
    tc_param_rows(g, row[i].rows, 0.9, &err);
    is_str(err.text, row[i].want, "beside adapters, \"%s\"", row[i].rows);
    tc_graph_free(g);
  }
}

static uint64_t drawn(uint64_t seed, uint64_t at, uint64_t below)
{
  uint32_t x[4];
  tc_philox(x, seed, at, 3);
  return x[0] % below;
}

/* Lists of drawn rows: the last row that matches and has the key counts; of init all count. */
static void test_drawn(void)
{
  enum { LISTS = 2000, ROWS = 4 };
  static const char *const pattern[] = { "*", "h.*", "*.weight", "wte.weight", "h.?.mlp.*" }, *const key[] = { "lr", "decay", "init", "frozen" };
  const uint64_t seed = test_seed(false);
  int wrong = 0;
  for (uint64_t i = 0; i < LISTS; i++) {
    struct tc_graph *g = parameters(), *want = parameters();
    struct tc_err err;
    char text[400] = "";
    for (uint64_t r = 0; r < ROWS; r++) {
      const char *p = pattern[drawn(seed, i * 32 + r * 4, 5)];
      const uint64_t k = drawn(seed, i * 32 + r * 4 + 1, 4);
      const double x = (double)drawn(seed, i * 32 + r * 4 + 2, 8) / 4;
      tc_text_add(text, sizeof text, "%s%s %s=", r ? ", " : "", p, key[k]);
      if (k == 3) tc_text_add(text, sizeof text, "%s", x < 1 ? "yes" : "no");
      else tc_text_add(text, sizeof text, "%g", x);
      for (int n = 0; n < PARAMS; n++) {
        if (fnmatch(p, name[n], 0)) continue;
        if (k == 0) want->param[n].lr = (float)x;
        if (k == 1) want->param[n].decay = (float)x;
        if (k == 2) want->param[n].init_std *= (float)x;
        if (k == 3) want->param[n].frozen = x < 1;
      }
    }
    const int rc = tc_param_rows(g, text, 0, &err);
    for (int n = 0; n < PARAMS && rc == 0; n++)
      wrong += g->param[n].lr != want->param[n].lr || g->param[n].decay != want->param[n].decay
               || g->param[n].init_std != want->param[n].init_std || g->param[n].frozen != want->param[n].frozen;
    int frozen = 0;
    for (int n = 0; n < PARAMS; n++) frozen += want->param[n].frozen;
    wrong += rc < 0 && !strstr(err.text, "begin with constants") && !(frozen == PARAMS && strstr(err.text, "freezes all"));
    wrong += rc == 0 && frozen == PARAMS;
    tc_graph_free(g);
    tc_graph_free(want);
  }
  is_int(wrong, 0, "%d drawn lists", LISTS);
}

int main(void)
{
  test_rows();
  test_width();
  test_beside();
  test_drawn();
  return done_testing();
}
