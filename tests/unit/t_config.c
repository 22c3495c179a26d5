/* t_config.c - the run file and the flags: types, overriding, and every sentence a user can
 * get from them, with the file and line it names. */
#include "src/config.h"
#include "tests/unit/tap.h"

#include <unistd.h>

enum { MAX_ARGS = 8 };

/* Run file `text` (NULL: none) and the flags, as a command would give them. */
static int config(struct tc_config **c, const char *text, char *const *flags,
                  const char *const *extra, const char **value, struct tc_err *err)
{
  char path[] = "t_config-XXXXXX", name[] = "train";
  char *argv[MAX_ARGS + 3] = { name };
  int argc = 1;
  if (text) {
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs(text, f);
    fclose(f);
  }
  for (int i = 0; flags && flags[i]; i++) argv[argc++] = flags[i];
  if (text) argv[argc++] = path;
  err->text[0] = '\0';
  int status = tc_config_new(c, argc, argv, extra, value, err);
  if (text) {
    unlink(path);
    char *at = strstr(err->text, path);        /* the name is random: put FILE for it */
    if (at) {
      memmove(at + 4, at + strlen(path), strlen(at + strlen(path)) + 1);
      memcpy(at, "FILE", 4);
    }
  }
  return status;
}

static struct tc_config *good(const char *text, char *const *flags)
{
  struct tc_config *c;
  struct tc_err err;
  if (config(&c, text, flags, NULL, NULL, &err) != 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return c;
}

static void test_defaults(void)
{
  struct tc_config *c = good(NULL, NULL);
  is_int(c->train_steps, 100, "default of an INT");
  is_int(c->mesh_dp, TC_AUTO, "default auto");
  near_f(c->train_lr, 1e-3, 0, "default of a REAL");
  is_str(c->train_schedule, "cosine", "default of a STR");
  ok(!c->run_poison && c->parallel_overlap, "defaults of BOOLs");
  is_int(c->data_train.n, 0, "default of a LIST");
  tc_config_free(c);
  tc_config_free(NULL);
}

static void test_file(void)
{
  struct tc_config *c = good("; a comment\n"
                             "# another\n"
                             "[train]\n"
                             "steps = 7     ; blanks and a comment\n"
                             "  lr=2.5e-4\n"                    /* indented, not a continuation */
                             "\tschedule = linear\n"
                             "[data]\n"
                             "train = a.txt b.txt\n"
                             "   c.txt\n"
                             "\td.txt  e.txt\n"
                             "val: v.txt\n"
                             "[run]\n"
                             "poison = yes\n"
                             "threads = auto\n"
                             "[mesh]\n"
                             "  dp = 2\n"
                             "  [ckpt]\n"
                             "dir =\n"
                             "every = 5", NULL);
  is_int(c->train_steps, 7, "INT");
  near_f(c->train_lr, 2.5e-4, 0, "REAL, indented");
  is_str(c->train_schedule, "linear", "STR, indented by a tab");
  is_int(c->data_train.n, 5, "a LIST over three lines");
  is_str(c->data_train.item[0], "a.txt", "... its first");
  is_str(c->data_train.item[2], "c.txt", "... its third");
  is_str(c->data_train.item[4], "e.txt", "... its last");
  is_int(c->data_val.n, 1, "a LIST of one");
  ok(c->run_poison, "BOOL");
  is_int(c->run_threads, TC_AUTO, "auto");
  is_int(c->mesh_dp, 2, "an INT in place of auto");
  is_str(c->ckpt_dir, "", "an empty STR");
  is_int(c->ckpt_every, 5, "a last line without its newline");
  tc_config_free(c);
}

static void test_flags(void)
{
  char a[] = "--train.steps=9", b[] = "--train.lr", v[] = "0.5", d[] = "--train.steps=11",
       e[] = "--data.train=x y", o[] = "--run.out=a=b";
  struct tc_config *c = good("[train]\nsteps = 7\nlr = 1\nseed = 3\n[data]\ntrain = f\n",
                             (char *[]){ a, b, v, d, e, o, NULL });
  is_int(c->train_steps, 11, "the last flag counts, though the file stands behind it");
  near_f(c->train_lr, 0.5, 0, "--flag value");
  is_int(c->train_seed, 3, "the file where no flag is given");
  is_int(c->data_train.n, 2, "a flag's LIST takes the place of the file's");
  is_str(c->run_out, "a=b", "a value with an equal sign");
  tc_config_free(c);

  static const char *const extra[] = { "json", "after=", "dot", "rank=", NULL };
  const char *value[4] = { "x", "x", "x", "x" };
  char j[] = "--json", k[] = "--after=grad", r[] = "--rank", three[] = "3";
  struct tc_err err;
  is_int(config(&c, NULL, (char *[]){ j, k, r, three, a, NULL }, extra, value, &err), 0,
         "a command's own flags");
  is_str(value[0], "yes", "--json");
  is_str(value[1], "grad", "--after=grad");
  ok(value[2] == NULL, "not given");
  is_str(value[3], "3", "--rank 3");
  is_int(c->train_steps, 9, "... beside an option");
  tc_config_free(c);
}

/* The sentence that a run file, or one flag (text NULL), fails with. */
static void test_errors(void)
{
  static const struct { const char *text, *flag, *want; } bad[] = {
    { "[train]\nstpes = 5\n", 0, "FILE:2: there is no option train.stpes; did you mean train.steps?" },
    { "[train]\n\nlr = fast\n", 0, "FILE:3: train.lr is \"fast\"; it has to be a number, 0 or more" },
    { "[train]\nsteps = 5x\n", 0, "FILE:2: train.steps is \"5x\"; it has to be a whole number, 0 or more" },
    { "[train]\nsteps = -5\n", 0, "FILE:2: train.steps is \"-5\"; it has to be a whole number, 0 or more" },
    { "[train]\nsteps = 99999999999999999999\n", 0, "FILE:2: train.steps is \"99999999999999999999\"; it has to be a whole number, 0 or more" },
    { "[train]\nsteps = auto\n", 0, "FILE:2: train.steps is \"auto\"; it has to be a whole number, 0 or more" },
    { "[mesh]\ndp = all\n", 0, "FILE:2: mesh.dp is \"all\"; it has to be a whole number, 0 or more, or auto" },
    { "[train]\nsteps =\n", 0, "FILE:2: train.steps is \"\"; it has to be a whole number, 0 or more" },
    { "[train]\nlr = nan\n", 0, "FILE:2: train.lr is \"nan\"; it has to be a number, 0 or more" },
    { "[train]\nlr = inf\n", 0, "FILE:2: train.lr is \"inf\"; it has to be a number, 0 or more" },
    { "[train]\nschedule = step\n", 0, "FILE:2: train.schedule is \"step\"; it has to be one of cosine|linear|constant" },
    { "[train]\nschedule = cos\n", 0, "FILE:2: train.schedule is \"cos\"; it has to be one of cosine|linear|constant" },
    { "[run]\npoison = true\n", 0, "FILE:2: run.poison is \"true\"; it has to be yes or no" },
    { "[trian]\nsteps = 5\n", 0, "FILE:2: there is no section [trian]; did you mean [train]?" },
    { "steps = 5\n", 0, "FILE:1: \"steps\" stands before the first [section]" },
    { "[train]\nsteps = 5\nhello\nlr = x\n", 0, "FILE:3: neither \"key = value\" nor \"[section]\"" },
    { "[train]\nlr = x\nhello\n", 0, "FILE:2: train.lr is \"x\"; it has to be a number, 0 or more" },
    { "[train]\nsteps = 5\nsteps = 6\n", 0, "FILE:3: train.steps was given in line 2 already" },
    { "[train]\nsteps = 5\n  6\n", 0, "FILE:3: train.steps takes one line; only lists of files go on on indented lines" },
    { "[train]\ncontext = 5\n", 0, "FILE:2: there is no option train.context; did you mean model.context?" },
    { NULL, "--train.stpes=5", "there is no option --train.stpes; did you mean --train.steps?" },
    { NULL, "--lr=5", "there is no option --lr; did you mean --train.lr?" },
    { NULL, "--xyzzyplugh=5", "there is no option --xyzzyplugh; tercio train --help lists them" },
    { NULL, "--train.lr=", "--train.lr is \"\"; it has to be a number, 0 or more" },
    { NULL, "--train.lr", "--train.lr takes a value: --train.lr=..." },
    { NULL, "--run.device=gpu", "--run.device is \"gpu\"; it has to be one of auto|cpu|cuda|ref" },
    { NULL, "-x", "there is no option -x; options are --section.key=value" },
    { NULL, "--json=1", "--json takes no value" },
    { NULL, "--after", "--after takes a value: --after=..." },
    { NULL, "no-such.ini", "cannot open run file no-such.ini: No such file or directory" },
    { NULL, "/", "cannot read run file /: Is a directory" },
  };
  static const char *const extra[] = { "json", "after=", NULL };
  const char *value[2];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_config *c;
    struct tc_err err;
    char *flag = bad[i].flag ? tc_strdup(bad[i].flag) : NULL;
    int status = config(&c, bad[i].text, (char *[]){ flag, NULL }, extra, value, &err);
    is_str(status == TC_EUSER && !c ? err.text : "no error", bad[i].want, "refused: %s", bad[i].want);
    free(flag);
  }
  char *text = tc_calloc(1, 1000);
  strcpy(text, "[data]\ntrain = ");
  memset(text + strlen(text), 'x', 300);
  struct tc_config *c;
  struct tc_err err;
  config(&c, text, NULL, NULL, NULL, &err);
  ok(strstr(err.text, "FILE:2: the line is longer than 198 characters") == err.text,
     "a line that is too long is not cut silently: %.60s", err.text);
  free(text);
  char a[] = "one.ini", b[] = "two.ini";
  config(&c, NULL, (char *[]){ a, b, NULL }, NULL, NULL, &err);
  ok(strstr(err.text, "two.ini: unexpected"), "one run file only");
}

static void test_text(void)
{
  char lr[] = "--train.lr=0.1", beta[] = "--train.beta2=0.3333333333333333",
       files[] = "--data.train=a b c", out[] = "--run.out=here", dp[] = "--mesh.dp=3",
       poison[] = "--run.poison=yes";
  struct tc_config *c = good(NULL, (char *[]){ lr, beta, files, out, dp, poison, NULL });
  char *text = tc_config_text(c);
  ok(strstr(text, "lr = 0.1\n"), "the shortest number that reads back");
  ok(strstr(text, "warmup = auto\n"), "auto stays auto");
  struct tc_config *again = good(text, NULL);
  char *text2 = tc_config_text(again);
  is_str(text2, text, "the text reads back as the same configuration");
  ok(again->train_beta2 == c->train_beta2, "to the last bit");
  is_int(again->data_train.n, 3, "with its lists");
  free(text);
  free(text2);
  tc_config_free(c);
  tc_config_free(again);
}

static char *help(bool man)
{
  char *text;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  tc_config_help(f, man);
  fclose(f);
  return text;
}

static void test_help(void)
{
  char *text = help(false), *man = help(true);
  static const char *const names[] = {
#define SECTION(name, help)
#define OPT(s, k, t, d, u, c, h) "--" #s "." #k "=",
#include "src/options.def"
#undef SECTION
#undef OPT
  };
  bool all = true;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) all = all && strstr(text, names[i]);
  ok(all, "--help has every option");
  ok(strstr(text, "--train.schedule=cosine|linear|constant"), "--help has the choices");
  ok(strstr(text, "(default 1e-3)"), "--help has the defaults");
  ok(strstr(man, "\\-\\-train.steps=N"), "man: dashes are escaped");
  ok(!strstr(man, "--"), "man: none is left");
  free(text);
  free(man);
}

int main(void)
{
  test_defaults();
  test_file();
  test_flags();
  test_errors();
  test_text();
  test_help();
  return done_testing();
}
