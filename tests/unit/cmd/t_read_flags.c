/* t_read_flags.c - the words of a command, sorted and read by the table of its flags. */
#include "src/cmd/cmd.h"
#include "tests/unit/tap.h"

struct fields {
  bool yes, no;
  const char *text, *list[8];
  int word, count, n;
  int64_t whole, size;
  double real, amount, bytes, time;
};

static int add(void *fields, const struct tc_flag *f, const char *value, struct tc_err *err)
{
  struct fields *x = fields;
  (void)f;
  x->list[x->n++] = value;
  return strcmp(value, "bad") ? !*value : tc_fail(err, TC_EUSER, "a sentence of its own");
}

#define FIELD(f) .field = offsetof(struct fields, f)
static const struct tc_flag list[] = {
  { "--yes", "", .kind = TC_FLAG_YES, FIELD(yes) },
  { "--no", "", .kind = TC_FLAG_NO, FIELD(no) },
  { "--text WORD", "", "a word", TC_FLAG_TEXT, FIELD(text) },
  { "--any TEXT", "", .kind = TC_FLAG_TEXT, FIELD(text) },
  { "--word WORD", "", "red, green or blue", TC_FLAG_WORD, FIELD(word) },
  { "-w N", "", "1 to 9", TC_FLAG_WHOLE, FIELD(whole), 1, 9 },
  { "--count N", "", "%.0f to %.0f", TC_FLAG_INT, FIELD(count), 1, 1 << 20 },
  { "--real X", "", "0 to 1", TC_FLAG_REAL, FIELD(real), 0, 1 },
  { "--size S", "", " is not a size", TC_FLAG_SIZE, FIELD(size), 4, 1 << 20 },
  { "--amount N", "", "a number", TC_FLAG_AMOUNT, FIELD(amount), TC_FLAG_ABOVE_0, 1e18 },
  { "--bytes N", "", "a number", TC_FLAG_BYTES, FIELD(bytes), TC_FLAG_ABOVE_0, 1e18 },
  { "--time T", "", "a time", TC_FLAG_TIME, FIELD(time), 0, 1e18 },
  { "--list FILE ...", "", "one or more files", TC_FLAG_CALL, .set = add },
  { "--needs N", "", .kind = TC_FLAG_TEXT, FIELD(text), .needs = "--yes or --word red: of which?" },
  { "--against", "", .kind = TC_FLAG_GIVEN, .against = "--no, which is no" },
  { "--own N", "", .kind = TC_FLAG_TEXT, FIELD(text), .needs = "--yes", .says = "%s, and %s again, needs --yes" },
  { "--drops N", "", .kind = TC_FLAG_TEXT, FIELD(text), .drops = "--real --count" },
  { "--excludes", "", .kind = TC_FLAG_GIVEN, .drops = "--real", .says = "leave %s" },
  { "--alone", "", .kind = TC_FLAG_GIVEN, .drops = "*" },
  { "--first", "", .kind = TC_FLAG_YES, FIELD(yes) },
  { "--second", "", .kind = TC_FLAG_YES, FIELD(yes) },
  { .form = NULL } };

#define UNKNOWN .unknown = "%s: no '%s'; use: %s %s"
/* How each kind of command reads: eval, ckpt show, ckpt plan, plan, data, report. */
static const struct tc_flags forms[] = {
  ['e'] = { list, "cmd", .how = TC_FLAGS_OPTIONS | TC_FLAGS_JOINED },
  ['s'] = { list, "cmd show", .takes = "[DIR] [--any|--first]", .how = TC_FLAGS_JOINED | TC_FLAGS_DASH, UNKNOWN },
  ['c'] = { list, "cmd plan", .takes = "--first-of [--second N [-w]]", .how = TC_FLAGS_DOTTED | TC_FLAGS_JOINED,
            UNKNOWN },
  ['p'] = TC_FLAGS_RUN(list, "cmd"),
  ['d'] = { list, "cmd see", .how = TC_FLAGS_END | TC_FLAGS_DASH, .wrong = "%s %s", .missing = "%s is missing" } };

/* Reads a line of words after the letter of its form; "''" is an empty one. *left: what is no flag. */
static int read_line(struct fields *x, const char *line, char *left, char *copy, struct tc_err *err)
{
  char *argv[16], *save = NULL;
  int argc = 0;
  struct tc_args a;
  strcpy(copy, line);
  for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = strcmp(w, "''") ? w : w + 2;
  *x = (struct fields){ .no = true, .word = -1 };
  int rc = tc_args_find(&a, &forms[(unsigned char)*line], argc, argv, err);
  if (!rc) rc = tc_args_check(&a, err);
  if (!rc) rc = tc_args_set(&a, x, err);
  *left = '\0';
  for (int i = 1; i < a.argc; i++) sprintf(left + strlen(left), "%s%s", i > 1 ? " " : "", a.argv[i]);
  if (!rc && a.n_words) is_str(a.word[0], a.argv[1], "the words come first");
  tc_args_free(&a);
  return rc;
}

/* Lines, and the words that are left or, from "!" on, the sentence. */
static const struct { const char *line, *want; } row[] = {
  { "e --yes more", "more" }, { "e --yes=1 x", "x --yes=1" }, { "e --yess x", "--yess x" }, { "e --ye", "--ye" },
  { "e --text a b", "b" }, { "e --text=a b", "b" }, { "e --text --yes", "" }, { "e --texta", "--texta" },
  { "e --text", "!cmd: --text takes a word, not ''" }, { "e --text ''", "!cmd: --text takes a word, not ''" },
  { "e --text=", "!cmd: --text takes a word, not ''" }, { "e --any=", "" },
  { "e --word red", "" }, { "e --word blue", "" }, { "e --word or", "!cmd: --word takes red, green or blue, not 'or'" },
  { "e --word re", "!cmd: --word takes red, green or blue, not 're'" },
  { "e --word reds", "!cmd: --word takes red, green or blue, not 'reds'" },
  { "e -w 9", "" }, { "e -w9", "" }, { "e -w=9", "" },
  { "e -w 0", "!cmd: -w takes 1 to 9, not '0'" }, { "e -w 10", "!cmd: -w takes 1 to 9, not '10'" },
  { "e -w 1x", "!cmd: -w takes 1 to 9, not '1x'" },
  { "e -w 99999999999999999999", "!cmd: -w takes 1 to 9, not '99999999999999999999'" },
  { "e --count 1048577", "!cmd: --count takes 1 to 1048576, not '1048577'" },
  { "e --count 4294967297", "!cmd: --count takes 1 to 1048576, not '4294967297'" },
  { "e --real 0.5", "" }, { "e --real 1.5", "!cmd: --real takes 0 to 1, not '1.5'" },
  { "e --real nan", "!cmd: --real takes 0 to 1, not 'nan'" }, { "e --real", "!cmd: --real takes 0 to 1, not ''" },
  { "e --list a b --yes c", "c" }, { "e --list=a b", "b" },
  { "e --list", "!cmd: --list takes one or more files, not ''" },
  { "e --list --yes", "!cmd: --list takes one or more files, not ''" }, { "e --list a bad", "!a sentence of its own" },
  { "e -- x", "-- x" }, { "e - x", "- x" },
  /* options of the run file */
  { "p a.ini --x.y 1 --z.z=2 b", "a.ini b --x.y 1 --z.z=2" }, { "p --x.y --yes a.ini", "a.ini --x.y" },
  { "p --x.y -1 a.ini", "a.ini --x.y -1" }, { "p -w9", "-w9" },
  { "c --x.y=1 --second", "--x.y=1" }, { "c --x=y.z", "!cmd plan: no '--x=y.z'; use: cmd plan --first-of [--second N [-w]]" },
  { "c -x.y=1", "!cmd plan: no '-x.y=1'; use: cmd plan --first-of [--second N [-w]]" },
  { "c --first", "!cmd plan: no '--first'; use: cmd plan --first-of [--second N [-w]]" },
  { "c --second -w9", "" }, { "s - --first --any x", "-" }, { "s --x.y=1", "!cmd show: no '--x.y=1'; use: cmd show [DIR] [--any|--first]" },
  { "d - -- --yes --", "- --yes --" }, { "d --frob", "!tercio cmd see has no option '--frob'; see tercio cmd --help" },
  { "d -w9", "!tercio cmd see has no option '-w9'; see tercio cmd --help" },
  { "d -w=9", "" }, { "d -w", "!-w is missing" }, { "d --text --yes", "" }, { "d -w 0", "!-w 0: give 1 to 9" },
  /* sentences of a command with a run file */
  { "p --text", "!--text takes a value: --text=..." }, { "p --text --yes", "!--text takes a value: --text=..." },
  { "p --yes=1", "!--yes takes no value" }, { "p --count x", "!--count = x: give 1 to 1048576" },
  { "p --size 1M", "" }, { "p --size 3", "!--size = 3 is not a size" }, { "p --size 1KB", "!--size = 1KB is not a size" },
  { "p --amount 3G", "" }, { "p --amount 0", "!--amount = 0: it must be above 0" },
  { "p --amount 1e19", "!--amount = 1e19: give a number" }, { "p --amount -1", "!--amount = -1: give a number" },
  { "p --bytes 80", "!--bytes = 80 has no unit; 80GB would do" }, { "p --bytes 0", "!--bytes = 0: it must be above 0" },
  { "p --time 0", "" }, { "p --time soon", "!--time = soon: give a time" },
  /* flags beside others */
  { "p --needs 3", "!--needs = 3 has no effect without --yes or --word red: of which?" }, { "p --yes --needs 3", "" },
  { "p --needs 3 --word red", "" }, { "p --against", "" }, { "p --no --against", "!--against has no effect with --no, which is no" },
  { "p --own 3", "!3, and 3 again, needs --yes" }, { "p --own 3 --yes", "" },
  { "p --count 3 --drops it --real 1", "!--real has no effect with --drops it" }, { "p --drops it --yes", "" },
  { "p --excludes --real 1", "!leave --real" }, { "p --alone", "" }, { "p --alone --alone x", "x" },
  { "p --no --yes --alone", "!--yes has no effect with --alone" } };

static struct fields values(const char *line)
{
  static char copy[200];
  char left[200];
  struct fields x;
  struct tc_err err = { .text = "" };
  is_int(read_line(&x, line, left, copy, &err), 0, "%s %s", line, err.text);
  return x;
}

int main(void)
{
  char copy[200], left[200];
  struct fields x;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_err err = { .text = "" };
    const bool refused = *row[i].want == '!';
    is_int(read_line(&x, row[i].line, left, copy, &err), refused ? TC_EUSER : 0, "'%s'", row[i].line);
    is_str(refused ? err.text : left, row[i].want + refused, "... %s '%s'", refused ? "says" : "leaves", row[i].want);
  }
  x = values("e --yes");
  ok(x.yes && x.no, "--yes sets its field alone");
  x = values("e --no");
  ok(!x.yes && !x.no, "--no clears its own");
  is_str(values("e --text=a=b").text, "a=b", "a text with '='");
  is_int(values("e -w7").whole, 7, "a whole number");
  is_int(values("e --count 7 --count 8").count, 8, "the last of two");
  is_int(values("e --word blue").word, 2, "the third word");
  near_f(values("e --real=0.25").real, 0.25, 0, "a real number");
  is_int(values("e --size 16k").size, 16384, "a size");
  near_f(values("e --amount 300G").amount, 300e9, 0, "an amount");
  near_f(values("e --bytes 76GB").bytes, 76e9, 0, "bytes");
  near_f(values("e --time 24:00:00").time, 86400, 0, "a time");
  x = values("e --list a b --yes");
  ok(x.n == 2 && !strcmp(x.list[0], "a") && !strcmp(x.list[1], "b"), "two files");
  return done_testing();
}
