/* t_read_flags.c - flags of a command, read by their table. */
#include "src/cmd/cmd.h"
#include "tests/unit/tap.h"

struct fields {
  bool yes, no;
  const char *text;
  int64_t whole;
  double real;
  const char *list[8];
  int n;
};

static bool add(void *fields, const struct tc_flag *f, const char *value)
{
  struct fields *x = fields;
  (void)f;
  x->list[x->n++] = value;
  return *value != '\0';
}

#define FIELD(f) offsetof(struct fields, f)
static const struct tc_flag flags[] = {
  { "--yes", "", NULL, TC_FLAG_YES, FIELD(yes), 0, 0, NULL },
  { "--no", "", NULL, TC_FLAG_NO, FIELD(no), 0, 0, NULL },
  { "--text WORD", "", "a word", TC_FLAG_TEXT, FIELD(text), 0, 0, NULL },
  { "-w N", "", "1 to 9", TC_FLAG_WHOLE, FIELD(whole), 1, 9, NULL },
  { "--real X", "", "0 to 1", TC_FLAG_REAL, FIELD(real), 0, 1, NULL },
  { "--list FILE ...", "", "one or more files", TC_FLAG_CALL, 0, 0, 0, add },
  { NULL, NULL, NULL, TC_FLAG_HELP, 0, 0, 0, NULL } };

/* Reads the words of a line from the first on. Returns the result of the first flag; *taken: the words that it took. */
static int read_line(struct fields *x, const char *line, int *taken, char *copy, struct tc_err *err)
{
  char *argv[12], *save = NULL;
  int argc = 0, i = 0;
  strcpy(copy, line);
  for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
  if (strcmp(line, "--text ") == 0) argv[argc++] = copy + strlen(copy);     /* an empty word */
  *x = (struct fields){ .no = true };
  const int rc = tc_flags_read(flags, x, argc, argv, &i, "cmd", err);
  *taken = i + 1;
  return rc;
}

int main(void)
{
  static const struct { const char *line; int rc, taken; const char *says; } row[] = {
    { "--yes more", 1, 1, "" }, { "--yes=1", 0, 1, "" }, { "--yess", 0, 1, "" }, { "--ye", 0, 1, "" },
    { "--no", 1, 1, "" }, { "word", 0, 1, "" },
    { "--text a b", 1, 2, "" }, { "--text=a b", 1, 1, "" }, { "--text --yes", 1, 2, "" }, { "--texta", 0, 1, "" },
    { "--text", TC_EUSER, 1, "cmd: --text takes a word, not ''" },
    { "--text ", TC_EUSER, 2, "cmd: --text takes a word, not ''" },
    { "--text=", TC_EUSER, 1, "cmd: --text takes a word, not ''" },
    { "-w 9", 1, 2, "" }, { "-w9", 1, 1, "" }, { "-w=9", 1, 1, "" },
    { "-w 0", TC_EUSER, 2, "cmd: -w takes 1 to 9, not '0'" }, { "-w 10", TC_EUSER, 2, "cmd: -w takes 1 to 9, not '10'" },
    { "-w 1x", TC_EUSER, 2, "cmd: -w takes 1 to 9, not '1x'" },
    { "-w 99999999999999999999", TC_EUSER, 2, "cmd: -w takes 1 to 9, not '99999999999999999999'" },
    { "--real 0.5", 1, 2, "" }, { "--real 1.5", TC_EUSER, 2, "cmd: --real takes 0 to 1, not '1.5'" },
    { "--real nan", TC_EUSER, 2, "cmd: --real takes 0 to 1, not 'nan'" },
    { "--real", TC_EUSER, 1, "cmd: --real takes 0 to 1, not ''" },
    { "--list a b --yes c", 1, 3, "" }, { "--list=a b", 1, 1, "" },
    { "--list", TC_EUSER, 1, "cmd: --list takes one or more files, not ''" },
    { "--list --yes", TC_EUSER, 1, "cmd: --list takes one or more files, not ''" } };
  char copy[100];
  struct fields x;
  int taken;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_err err = { .text = "" };
    is_int(read_line(&x, row[i].line, &taken, copy, &err), row[i].rc, "'%s'", row[i].line);
    is_int(taken, row[i].taken, "... takes %d words", row[i].taken);
    is_str(err.text, row[i].says, "... says '%s'", row[i].says);
  }
  read_line(&x, "--yes", &taken, copy, NULL);
  ok(x.yes && x.no, "--yes sets its field alone");
  read_line(&x, "--no", &taken, copy, NULL);
  ok(!x.yes && !x.no, "--no clears its own");
  read_line(&x, "--text=a=b", &taken, copy, NULL);
  is_str(x.text, "a=b", "a text with '='");
  read_line(&x, "-w7", &taken, copy, NULL);
  is_int(x.whole, 7, "a whole number");
  read_line(&x, "--real=0.25", &taken, copy, NULL);
  near_f(x.real, 0.25, 0, "a real number");
  read_line(&x, "--list a b --yes", &taken, copy, NULL);
  ok(x.n == 2 && !strcmp(x.list[0], "a") && !strcmp(x.list[1], "b"), "two files");
  return done_testing();
}
