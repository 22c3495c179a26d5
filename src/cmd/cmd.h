/* cmd.h - the commands, one file each; main.c has their table and is to be read first; those with several files have a
 * folder, whose main header is of its name.
 *
 * In: the command line. Out: an exit status, and text on stdout or one sentence on stderr. */
#ifndef TC_CMD_H
#define TC_CMD_H

#include "src/run/trained.h"

struct tc_stop;
struct tc_cmd {
  const char *name, *usage, *help, *example;
  int (*run)(int argc, char **argv);   /* argv[0] is the command; returns an exit status. NULL: main.c has another */
};
/* How a flag is read into a field of its command's struct: a bool, a const char *, an int64_t or a double.
 * TC_FLAG_HELP: the table only explains it. */
enum tc_flag_kind { TC_FLAG_HELP, TC_FLAG_YES, TC_FLAG_NO, TC_FLAG_TEXT, TC_FLAG_WHOLE, TC_FLAG_REAL, TC_FLAG_CALL };

/* A flag; a list of them ends with form NULL. Help, man page, usage and completion print it, tc_flag_read reads it. */
struct tc_flag {
  const char *form, *help;       /* as in "--json", "--iters N", "-o OUT" or, of one value or more, "--data FILE ..." */
  const char *takes;             /* the valid values, for error sentences; NULL: it has no value */
  enum tc_flag_kind kind;
  size_t field;                  /* offset in the command's struct */
  double least, most;            /* of a number */
  bool (*set)(void *fields, const struct tc_flag *f, const char *value);   /* TC_FLAG_CALL; false: not a valid value */
};
/* flag_help.c, cmd_eval.c, cmd_sample.c */
extern const struct tc_flag tc_flags_plan[], tc_flags_place[], tc_flags_graph[], tc_flags_comm[], tc_flags_report[],
  tc_flags_save[], tc_flags_eval[], tc_flags_sample[];
/* read_flags.c. Local. Reads argv[*i] if it is the flag f, as "--iters 3", "--iters=3" or "-j8", into a field of
 * `fields`, a command's struct, which borrows texts of argv; *i becomes its last word. 1: it is; 0: it is not.
 * TC_EUSER: its value is not valid; the sentence begins with `command`. */
int tc_flag_read(const struct tc_flag *f, void *fields, int argc, char **argv, int *i, const char *command,
                 struct tc_err *err);
/* The same for the first flag of a list that argv[*i] is. */
int tc_flags_read(const struct tc_flag *flags, void *fields, int argc, char **argv, int *i, const char *command,
                  struct tc_err *err);
/* Rows of struct tc_flag for a command's struct with a struct tc_trained m. */
#define TC_CMD_MODEL_FLAGS(command, tokenizer_help) \
  { "--tokenizer FILE", tokenizer_help "; e.g. --tokenizer tokenizer.json", "the path of a tokenizer.json", \
    TC_FLAG_TEXT, offsetof(struct command, m.tokenizer_file), 0, 0, NULL }, \
  { "--rope ORDER", "order of rotary pairs in the files of FOLDER: half (default, Hugging Face's) or interleaved " \
    "(Meta's); e.g. --rope interleaved", "half or interleaved", TC_FLAG_TEXT, offsetof(struct command, m.rope), \
    0, 0, NULL }
/* read_flags.c. Local. argv[*i] is none of the command's own flags: the model, or an option of the run file, of which
 * *i becomes the last word. TC_EUSER. */
int tc_cmd_model_arg(struct tc_trained *m, int argc, char **argv, int *i, struct tc_err *err);
int tc_cmd_train(int argc, char **argv, struct tc_stop *stop);    /* signals are requests to it (launch/stop.h) */
int tc_cmd_eval(int argc, char **argv);
int tc_cmd_sample(int argc, char **argv);
int tc_cmd_place(int argc, char **argv);
int tc_cmd_graph(int argc, char **argv);
int tc_cmd_ckpt(int argc, char **argv);
int tc_cmd_data(int argc, char **argv, struct tc_stop *stop);     /* ... and to it */
int tc_cmd_report(int argc, char **argv);
int tc_cmd_save(int argc, char **argv);
int tc_cmd_comm(int argc, char **argv);
/* The commands of `tercio ckpt` as a section of the man page. */
void tc_cmd_ckpt_man(FILE *f);
/* flag_help.c. Local. The man page's section on the keys of metrics.jsonl, by metrics.def. */
void tc_cmd_metrics_man(void);
int tc_cmd_plan(int argc, char **argv);

#endif
