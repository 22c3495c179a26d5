/* t_config.c - the run file and the flags: types, overriding, and every sentence a user can
 * get from them, with the file and line it names. */
#include "src/config/config.h"
#include "tests/unit/tap.h"

#include <sys/resource.h>
#include <unistd.h>

enum { MAX_ARGS = 8 };

/* Run file `text` (NULL: none) and the flags, as a command would give them. */
static int config(struct tc_config **c, const char *text, char *const *flags, struct tc_err *err)
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
  int status = tc_config_new(c, argc, argv, err);
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
  if (config(&c, text, flags, &err) != 0) {
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
  ok(c->ckpt_every_minutes == TC_DEFAULT && c->run_walltime == TC_AUTO, "words of REALs");
  near_f(c->train_lr, 1e-3, 0, "default of a REAL");
  is_int(c->train_schedule, TC_LR_COSINE, "default of a choice");
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
  is_int(c->train_schedule, TC_LR_LINEAR, "a choice, indented by a tab");
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
}

#define LIST "it has to be names between blanks, in UTF-8 without control characters or \" ;\"; one with blanks in double " \
  "quotes: \"a b.txt\""
#define TEXT "it has to be text in UTF-8 without control characters, blanks at an end, or \" ;\", " \
             "which begins a comment"

/* The sentence that a run file, or one flag (text NULL), fails with. */
static void test_errors(void)
{
  static const struct { const char *text, *flag, *want; } bad[] = {
    { "[train]\nstpes = 5\n", 0, "FILE:2: there is no option train.stpes; did you mean train.steps?" },
    { "[train]\n\nlr = fast\n", 0, "FILE:3: train.lr is \"fast\"; it has to be a number from 0 to 1e30" },
    { "[train]\nsteps = 5x\n", 0, "FILE:2: train.steps is \"5x\"; it has to be a whole number from 1 to 1000000000" },
    { "[train]\nsteps = -5\n", 0, "FILE:2: train.steps is \"-5\"; it has to be a whole number from 1 to 1000000000" },
    { "[train]\nsteps = 99999999999999999999\n", 0, "FILE:2: train.steps is \"99999999999999999999\"; it has to be a whole number from 1 to 1000000000" },
    { "[train]\nsteps = auto\n", 0, "FILE:2: train.steps is \"auto\"; it has to be a whole number from 1 to 1000000000" },
    { "[mesh]\ndp = all\n", 0, "FILE:2: mesh.dp is \"all\"; it has to be auto or a whole number from 1 to 16777216" },
    { "[train]\nsteps =\n", 0, "FILE:2: train.steps is \"\"; it has to be a whole number from 1 to 1000000000" },
    { "[train]\nlr = nan\n", 0, "FILE:2: train.lr is \"nan\"; it has to be a number from 0 to 1e30" },
    { "[train]\nlr = inf\n", 0, "FILE:2: train.lr is \"inf\"; it has to be a number from 0 to 1e30" },
    { "[train]\nschedule = step\n", 0, "FILE:2: train.schedule is \"step\"; it has to be one of cosine|linear|constant|wsd|inverse_sqrt" },
    { "[train]\nschedule = cos\n", 0, "FILE:2: train.schedule is \"cos\"; it has to be one of cosine|linear|constant|wsd|inverse_sqrt" },
    { "[run]\npoison = true\n", 0, "FILE:2: run.poison is \"true\"; it has to be yes or no" },
    { "[trian]\nsteps = 5\n", 0, "FILE:2: there is no section [trian]; did you mean [train]?" },
    { "steps = 5\n", 0, "FILE:1: \"steps\" stands before the first [section]" },
    { "[train]\nsteps = 5\nhello\nlr = x\n", 0, "FILE:3: neither \"key = value\" nor \"[section]\"" },
    { "[train]\nlr = x\nhello\n", 0, "FILE:2: train.lr is \"x\"; it has to be a number from 0 to 1e30" },
    { "[train]\nsteps = 5\nsteps = 6\n", 0, "FILE:3: train.steps was given in line 2 already" },
    { "[train]\nsteps = 5\n  6\n", 0, "FILE:3: train.steps takes one line; only lists of files go on on indented lines" },
    { "[train]\ncontext = 5\n", 0, "FILE:2: there is no option train.context; did you mean model.context?" },
    { NULL, "--train.stpes=5", "there is no option --train.stpes; did you mean --train.steps?" },
    { NULL, "--lr=5", "there is no option --lr; did you mean --train.lr?" },
    { NULL, "--xyzzyplugh=5", "there is no option --xyzzyplugh; --help lists them" },
    { NULL, "--train.lr=", "--train.lr is \"\"; it has to be a number from 0 to 1e30" },
    { NULL, "--train.lr", "--train.lr takes a value: --train.lr=..." },
    { NULL, "--run.device=gpu", "--run.device is \"gpu\"; it has to be one of auto|cpu|cuda|ref" },
    { NULL, "-x", "there is no option -x; options are --section.key=value" },
    { NULL, "--mesh.tp=0", "--mesh.tp is \"0\"; it has to be auto or a whole number from 1 to 65536" },
    { NULL, "--parallel.head_chunk=9223372036854775807", "--parallel.head_chunk is \"9223372036854775807\"; it has to be auto or a whole number from 1 to 2147483647" },
    { NULL, "--train.beta1=0.9999999999999", "--train.beta1 is \"0.9999999999999\", which is 1 as a 32-bit float; it has to be a number from 0 to below 1" },
    { NULL, "--train.beta2=1", "--train.beta2 is \"1\"; it has to be a number from 0 to below 1" },
    { NULL, "--train.eps=1e-300", "--train.eps is \"1e-300\", which is 0 as a 32-bit float; it has to be a number above 0, at most 1" },
    { NULL, "--train.eps=0", "--train.eps is \"0\"; it has to be a number above 0, at most 1" },
    { NULL, "--train.clip=1e-46", "--train.clip is \"1e-46\", which is 0 as a 32-bit float; it has to be a number from 0 to 1e30" },
    { NULL, "--train.lr=1e39", "--train.lr is \"1e39\"; it has to be a number from 0 to 1e30" },
    { NULL, "--train.lr=0x10", "--train.lr is \"0x10\"; it has to be a number from 0 to 1e30" },
    { NULL, "--train.lr= 1", "--train.lr is \" 1\"; it has to be a number from 0 to 1e30" },
    { NULL, "--run.deadline=1e-9", "--run.deadline is \"1e-9\"; it has to be 0 or a number from 0.1 to 1e9" },
    { NULL, "--ckpt.every_minutes=no", "--ckpt.every_minutes is \"no\"; it has to be default, auto or a number from 0 to 1e6" },
    { NULL, "--ckpt.every_minutes=-1", "--ckpt.every_minutes is \"-1\"; it has to be default, auto or a number from 0 to 1e6" },
    { NULL, "--ckpt.resume=default", "--ckpt.resume is \"default\"; it has to be auto, no or a whole number from 0 to 9007199254740992" },
    { NULL, "--run.walltime=1e-999", "--run.walltime is \"1e-999\"; it has to be auto or a number from 0 to 1e7" },
    { NULL, "--ckpt.resume=9223372036854775808", "--ckpt.resume is \"9223372036854775808\"; it has to be auto, no or a whole number from 0 to 9007199254740992" },
    { NULL, "--ckpt.resume=yes", "--ckpt.resume is \"yes\"; it has to be auto, no or a whole number from 0 to 9007199254740992" },
    { NULL, "--train.min_lr=1", "train.min_lr is 1, the rate at the end of the decay; it has to be at most train.lr, 0.001" },
    { NULL, "--run.out=a\xff", "--run.out is \"a?\"; " TEXT },
    { NULL, "--run.out=a\xc0\x80", "--run.out is \"a??\"; " TEXT },
    { NULL, "--run.out=a\xed\xa0\x80", "--run.out is \"a???\"; " TEXT },
    { NULL, "--run.out=a\xe2\x82", "--run.out is \"a??\"; " TEXT },
    { NULL, "--run.out=a\nb", "--run.out is \"a?b\"; " TEXT },
    { NULL, "--run.out= a", "--run.out is \" a\"; " TEXT },
    { NULL, "--run.out=a ", "--run.out is \"a \"; " TEXT },
    { NULL, "--run.out=a ;b", "--run.out is \"a ;b\"; " TEXT },
    { NULL, "--run.out=;b", "--run.out is \";b\"; " TEXT },
    { NULL, "--data.train=a ;b", "--data.train is \"a ;b\"; " LIST },
    { "[run]\nout = a\v\n", 0, "FILE:2: a control character (byte 11) at place 8: not a text file" },
    { "[run]\n\fout = a\n", 0, "FILE:2: a control character (byte 12) at place 1: not a text file" },
    { "[run]\nout = \xfc\n", 0, "FILE:2: run.out is \"?\"; " TEXT },
    { "[run\nout = a\n", 0, "FILE:1: neither \"key = value\" nor \"[section]\"" },
    { "[run] out = a\n", 0, "FILE:1: neither \"key = value\" nor \"[section]\"" },
    { "[data]\n a.txt\n", 0, "FILE:2: neither \"key = value\" nor \"[section]\"" },
    { "[data]\ntrain = a\n b=c\n", 0, "FILE:3: there is no option data.b; tercio train --help lists them" },
    { NULL, "no-such.ini", "cannot open run file no-such.ini: No such file or directory" },
    { NULL, "/", "cannot read run file /: it is a folder; name a file in it" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_config *c;
    struct tc_err err;
    char *flag = bad[i].flag ? tc_strdup(bad[i].flag) : NULL;
    int status = config(&c, bad[i].text, (char *[]){ flag, NULL }, &err);
    is_str(status == TC_EUSER && !c ? err.text : "no error", bad[i].want, "refused: %s", bad[i].want);
    free(flag);
  }
  struct tc_config *c;
  struct tc_err err;
  char a[] = "one.ini", b[] = "two.ini";
  config(&c, NULL, (char *[]){ a, b, NULL }, &err);
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

/* What is at the edge of a range, or of what a run file's line can hold, and is taken. */
static void test_edges(void)
{
  static const char *const taken[] = {
    "--train.beta1=0.99999994", "--train.beta1=0", "--train.eps=1.2e-38", "--train.lr=1e30",
    "--train.min_lr=1e-3", "--train.seed=9223372036854775807", "--train.global_batch=1073741824",
    "--run.deadline=0", "--run.deadline=0.1", "--run.walltime=auto", "--train.clip=0.000",
    "--ckpt.every_minutes=default", "--ckpt.every_minutes=auto", "--ckpt.every_minutes=0", "--ckpt.resume=no",
    "--train.lr=.5", "--train.lr=1.", "--train.weight_decay=0e5", "--mesh.tp=auto",
    "--run.out=a;b", "--run.out=#a", "--run.out=a #b", "--run.out=[a]", "--run.out=a = b: c",
    "--run.out=\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80", "--run.out=\"a\"", "--run.trace=",
    "--data.train=#a b=c [d] e:f g;h", "--ckpt.resume=no", "--ckpt.resume=auto",
    "--ckpt.resume=0", "--ckpt.resume=9007199254740992" };
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
    struct tc_config *c, *again = NULL;
    struct tc_err err = { 0 };
    char *flag = tc_strdup(taken[i]), *text = NULL, *text2 = NULL;
    ok(config(&c, NULL, (char *[]){ flag, NULL }, &err) == 0, "taken: %s %s", flag,
       err.text);
    if (c) text = tc_config_text(c);
    if (c && config(&again, text, NULL, &err) == 0) text2 = tc_config_text(again);
    is_str(text2 ? text2 : err.text, text, "... and reads back");
    tc_config_free(c);
    tc_config_free(again);
    free(flag);
    free(text);
    free(text2);
  }
}

/* Names with blanks and quotes in a list, as flags and run files have them, and back. */
static void test_quoted(void)
{
  static const struct { const char *value; int n; const char *item[3], *text; } rows[] = {
    { "\"a b.txt\" c", 2, { "a b.txt", "c" }, "\"a b.txt\" c" },
    { "0.7:\"my data/*.bin\"  0.3:B/", 2, { "0.7:my data/*.bin", "0.3:B/" }, "0.7:\"my data/*.bin\" 0.3:B/" },
    { "\"plain\" \"\"\"q\"", 2, { "plain", "\"q" }, "plain \"\"\"q\"" },
    { "a\"b c\"d", 2, { "a\"b", "c\"d" }, "a\"b c\"d" },
    { "\"x \"\"y\"\" z\"\t1e0:\"w\"", 2, { "x \"y\" z", "1e0:w" }, "\"x \"\"y\"\" z\" 1e0:w" },
  };
  static const char *const bad[] = { "\"a", "\"a\"b", "\"\"", "a \"b c", "0.7:\"a", "\" a\"", "\"a \"", "\"a ;b\"", "\"a\nb\"" };
  struct tc_err err;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *flag = tc_sprintf("--data.train=%s", rows[i].value), word[] = "train", *argv[] = { word, flag };
    struct tc_config *c = NULL, *again = NULL;
    if (!is_int(tc_config_new(&c, 2, argv, &err), 0, "%s", rows[i].value)) continue;
    is_int(c->data_train.n, rows[i].n, "... its words");
    for (int k = 0; k < rows[i].n && k < c->data_train.n; k++)
      is_str(c->data_train.item[k], rows[i].item[k], "... word %d", k);
    char *text = tc_config_text(c), *line = tc_sprintf("\ntrain = %s\n", rows[i].text);
    ok(strstr(text, line) != NULL, "... as text: %s", rows[i].text);
    is_int(tc_config_saved(&again, text, 1, argv, &err), 0, "... which is read again");
    for (int k = 0; k < rows[i].n && again && k < again->data_train.n; k++)
      is_str(again->data_train.item[k], rows[i].item[k], "... word %d", k);
    tc_config_free(c);
    tc_config_free(again);
    free(text), free(line), free(flag);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *flag = tc_sprintf("--data.train=%s", bad[i]), word[] = "train", *argv[] = { word, flag };
    struct tc_config *c = NULL;
    is_int(tc_config_new(&c, 2, argv, &err), TC_EUSER, "refused: value %zu", i);
    ok(strstr(err.text, "one with blanks in double quotes: \"a b.txt\""), "... says how: %s", err.text);
    tc_config_free(c);
    free(flag);
  }
}

/* A line has any length: a list of a thousand files, and a folder's long name. */
static void test_long(void)
{
  enum { FILES = 1000, DEEP = 40 };
  char *flag = tc_calloc(1, FILES * 20), *out = tc_calloc(1, DEEP * 20);
  strcpy(flag, "--data.train=");
  for (int i = 0; i < FILES; i++) sprintf(flag + strlen(flag), "shard-%09d ", i);
  strcpy(out, "--run.out=");
  for (int i = 0; i < DEEP; i++) sprintf(out + strlen(out), "folder-%d/", i);
  struct tc_config *c = good(NULL, (char *[]){ flag, out, NULL });
  char *text = tc_config_text(c);
  struct tc_config *again = good(text, NULL);
  is_int(again->data_train.n, FILES, "a list longer than any line was");
  is_str(again->data_train.item[FILES - 1], "shard-000000999", "... to its end");
  is_str(again->run_out, out + strlen("--run.out="), "a long name");
  free(text);
  free(flag);
  free(out);
  tc_config_free(c);
  tc_config_free(again);
}

/* A list of many lines takes memory in proportion to them. */
static void test_many_lines(void)
{
  enum { FILES = 10000, MOST_KB = 100000 };
  struct rusage before, after;
  char *text = tc_calloc(1, FILES * 20 + 100), *at = text + sprintf(text, "[data]\ntrain = first\n");
  for (int i = 1; i < FILES; i++) at += sprintf(at, "  shard-%06d\n", i);
  getrusage(RUSAGE_SELF, &before);
  struct tc_config *c = good(text, NULL);
  getrusage(RUSAGE_SELF, &after);
  is_int(c->data_train.n, FILES, "a list of %d lines", FILES);
  is_str(c->data_train.item[FILES - 1], "shard-009999", "... to its end");
  ok(after.ru_maxrss - before.ru_maxrss < MOST_KB, "... takes %ld KB",
     after.ru_maxrss - before.ru_maxrss);
  free(text);
  tc_config_free(c);
}

/* What a checkpoint could not be read back with is refused, to the byte. */
static void test_most_bytes(void)
{
  struct tc_config *c = good(NULL, NULL);
  struct tc_err err = { 0 };
  char *text = tc_config_text(c), *flag = tc_calloc(1, TC_MOST_CONFIG + 100);
  const size_t room = TC_MOST_CONFIG - strlen(text);
  tc_config_free(c);
  free(text);
  size_t n = (size_t)sprintf(flag, "--data.val="), end = n + room;
  for (; n < end; n++) flag[n] = n % 20 == 0 && n + 1 < end ? ' ' : 'x';
  c = good(NULL, (char *[]){ flag, NULL });
  text = tc_config_text(c);
  is_int((int)strlen(text), TC_MOST_CONFIG, "options of as many bytes as a checkpoint holds");
  tc_config_free(c);
  free(text);
  flag[end] = 'x';
  is_int(config(&c, NULL, (char *[]){ flag, NULL }, &err), TC_EUSER, "... and one more");
  is_str(err.text, "the options take 1048577 bytes, and a checkpoint has room for 1048576: name fewer "
         "files in data.train and data.val", "... says what to do");
  free(flag);
}

/* Forms of a line. */
static void test_lines(void)
{
  struct tc_config *c = good("\xef\xbb\xbf[train] # a comment\r\n"
                             "steps=7\r\n"
                             " lr : 0.5 ; really = 1\n"
                             "[data]\n"
                             "train = a ; one\n"
                             "\n"
                             "  ; none\n"
                             "\tb#c d;e ; f = g\n"
                             "  val : v\r\n", NULL);
  is_int(c->train_steps, 7, "a byte order mark, a comment behind a section, CR LF");
  near_f(c->train_lr, 0.5, 0, "a colon, and a comment with an equal sign");
  is_int(c->data_train.n, 3, "a list that goes on behind an empty line and a comment");
  is_str(c->data_train.item[1], "b#c", "# is not a comment within a line");
  is_str(c->data_train.item[2], "d;e", "; is not a comment within a word");
  is_str(c->data_val.n == 1 ? c->data_val.item[0] : "", "v", "an indented key with a colon");
  tc_config_free(c);
}

/* A byte that is 0 hides nothing. */
static void test_zero(void)
{
  static const char text[] = "[run]\nout = a\0b\n";
  char path[] = "t_config-XXXXXX", word[] = "train", *argv[] = { word, path };
  struct tc_config *c;
  struct tc_err err;
  int fd = mkstemp(path);
  ok(write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1, "a run file");
  close(fd);
  is_int(tc_config_new(&c, 2, argv, &err), TC_EUSER, "with a byte that is 0 is refused");
  ok(strstr(err.text, ":2: a control character (byte 0) at place 8"), "... %s", err.text);
  unlink(path);
}

static const char *note_lr(const void *arg, const char *name)
{
  return !strcmp(name, "train.lr") ? arg : !strcmp(name, "mesh.pp") ? "" : NULL;
}

/* Where values come from; and the text of some of them. */
static void test_sources(void)
{
  char lr[] = "--train.lr=0.5", pp[] = "--mesh.pp=2", text[100];
  struct tc_config *c = good("[train]\nlr = 0.25\nsteps = 7\n", (char *[]){ lr, pp, NULL });
  is_int(tc_config_source(c, "train.lr"), TC_FROM_FLAG, "a flag replaces the file's value");
  is_int(tc_config_source(c, "train.steps"), TC_FROM_FILE, "a value of the file");
  is_int(tc_config_source(c, "train.clip"), TC_FROM_DEFAULT, "a default");
  tc_config_sources(c, "train.", text, sizeof text);
  ok(strstr(text, ", --train.lr") && !strstr(text, "mesh") && !strncmp(text, c->file, strlen(c->file)) && *c->file,
     "the sources of a section: %s", text);
  tc_config_sources(c, "mesh.pp", text, sizeof text);
  is_str(text, "--mesh.pp", "... of an option");
  tc_config_sources(c, "ckpt.", text, sizeof text);
  is_str(text, "", "... of defaults");
  char *some = tc_config_text_of(c, note_lr, "CHECK it");
  is_str(some, "[train]\n# CHECK it\nlr = 0.5\n\n[mesh]\npp = 2\n", "two options, one with a comment");
  free(some);
  tc_config_free(c);
}

/* The configuration of a checkpoint of another version, and what changed since. */
static void test_saved(void)
{
  static const char saved[] = "[train]\nsteps = 20\nlr = 0.25\nmin_lr = 0.5\nbeta1 = 1\n"
                              "forgotten = 3\n[gone]\nkey = 1\nnonsense\n[data]\ntrain = a\n  b\n"
                              "[ckpt]\nresume = no\n";
  static const char *const want[] = { "data.train a b|a c", "data.order draws|auto", "train.steps 20|30",
                                      "train.global_batch 8|4", "ckpt.resume no|auto" };
  char word[] = "plan", flag[] = "--mesh.pp=2", *argv[] = { word, flag };
  char steps[] = "--train.steps=30", lr[] = "--train.lr=0.25", min[] = "--train.min_lr=0.1",
       batch[] = "--train.global_batch=4", files[] = "--data.train=a c", bad[] = "--mesh.pp=0";
  struct tc_config *was, *is = good(NULL, (char *[]){ steps, lr, min, batch, files, NULL });
  struct tc_config_change x;
  struct tc_err err;
  is_int(tc_config_saved(&was, saved, 2, argv, &err), 0, "a saved configuration is read");
  ok(was->train_steps == 20 && was->train_lr == 0.25 && was->mesh_pp == 2, "... with flags");
  ok(was->train_beta1 == 0.9 && was->train_min_lr == 0.5, "... a value refused now is the default");
  int n = 0;
  for (int i = 0; (i = tc_config_next_change(was, is, i, &x)) >= 0; i++) {
    char got[300];
    if (!strcmp(x.name, "mesh.pp") || !strcmp(x.name, "train.min_lr")) continue;
    snprintf(got, sizeof got, "%s %s|%s", x.name, x.was, x.is);
    is_str(got, n < 5 ? want[n] : "none", "a change");
    n++;
  }
  is_int(n, 5, "all of them");
  tc_config_free(was);
  argv[1] = bad;
  is_int(tc_config_saved(&was, saved, 2, argv, &err), TC_EUSER, "flags beside it are checked");
  tc_config_free(is);
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
#define OPT(s, k, ...) "--" #s "." #k "=",
#define CHOICE OPT
#include "src/config/options.def"
  };
  bool all = true;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) all = all && strstr(text, names[i]);
  ok(all, "--help has every option");
  ok(strstr(text, "--train.schedule=cosine|linear|constant"), "--help has the choices");
  ok(strstr(text, "(default 1e-3, in [0, 1e30])"), "--help has the defaults");
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
  test_edges();
  test_quoted();
  test_long();
  test_many_lines();
  test_most_bytes();
  test_lines();
  test_zero();
  test_sources();
  test_saved();
  test_help();
  return done_testing();
}
