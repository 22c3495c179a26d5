/* cmd.h - the commands, one file cmd_NAME.c each; main.c has their table and is to be read first; those with many files
 * have a folder, whose main header is of its name. show_data.c and print_pairs.c belong to data and comm.
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
/* How a flag is read into a field of its command's struct: a bool (YES, NO), a const char *, an int (the index of the
 * word in `takes`, "refuse, replace or bytes"), an int, an int64_t, a double, an int64_t of bytes with powers of 1024, a
 * double of a count such as 300G, of bytes with a unit such as 76GB, of seconds such as 24:00:00; or by a function.
 * GIVEN: it is not read; the command asks tc_args_given. */
enum tc_flag_kind { TC_FLAG_YES, TC_FLAG_NO, TC_FLAG_TEXT, TC_FLAG_WORD, TC_FLAG_INT, TC_FLAG_WHOLE, TC_FLAG_REAL,
                    TC_FLAG_SIZE, TC_FLAG_AMOUNT, TC_FLAG_BYTES, TC_FLAG_TIME, TC_FLAG_CALL, TC_FLAG_GIVEN };

/* A flag; a list of them ends with form NULL. Help, man page, usage and completion print it, tc_args_find and tc_args_set
 * read it. */
struct tc_flag {
  const char *form, *help;       /* as in "--json", "--iters N", "-o OUT" or, of one value or more, "--data FILE ..." */
  /* The valid values, for error sentences; "%.0f" are the limits. If it begins with a blank or a colon it is all that
   * follows the value. NULL: no value, or any text. */
  const char *takes;
  enum tc_flag_kind kind;
  size_t field;                  /* offset in the command's struct */
  double least, most;            /* of a number */
  /* TC_FLAG_CALL; 1: not a valid value; or a status with its sentence. */
  int (*set)(void *fields, const struct tc_flag *f, const char *value, struct tc_err *err);
  /* It has no effect without one of these flags, or with one of these: "--nodes or --from-slurm: of how many nodes?", the
   * flags and the end of the sentence. Flags that have no effect with it, with blanks between them; "*": all others. */
  const char *needs, *against, *drops;
  /* The sentence instead; its %s: the value, or the flag that is dropped. Of a flag without these three: that its value
   * is missing. */
  const char *says;
};
#define TC_FLAG_ABOVE_0 2.3e-308 /* as `least` */

/* The flags of a command, and how its words are read. */
struct tc_flags {
  const struct tc_flag *flag;
  const char *command;           /* "plan", "ckpt ls" */
  unsigned how;                  /* of enum tc_flags_how */
  const char *takes;             /* a usage that names the flags of the list that a subcommand takes; NULL: all */
  const char *unknown;           /* "%s: ... '%s' ... %s %s": on command, word, command and `takes`; NULL: it names --help */
  const char *wrong;             /* "%s = %s": how a sentence begins on a value that is not valid; NULL: "COMMAND: " */
  const char *missing;           /* the sentence on a flag without its value; NULL: as if it was empty */
  const char *none, *two;        /* the sentences where no word, or a second one, is given; NULL: any number */
};
enum tc_flags_how {
  TC_FLAGS_OPTIONS = 1,          /* flags that are not in the list are options of the run file */
  TC_FLAGS_DOTTED = 2,           /* ... if they have a dot */
  TC_FLAGS_STRICT = 4,           /* "--nodes --json" has no value, "--json=1" one too many */
  TC_FLAGS_JOINED = 8,           /* "-j8" is a flag */
  TC_FLAGS_DASH = 16,            /* "-" is a word */
  TC_FLAGS_END = 32              /* all after "--" are words */
};
/* The flags of a command that takes a run file. */
#define TC_FLAGS_RUN(list, name) { .flag = list, .command = name, .how = TC_FLAGS_OPTIONS | TC_FLAGS_STRICT, \
                                   .wrong = "%s = %s", .missing = "%s takes a value: %s=..." }

/* The words of a command line. Borrows those of argv. */
struct tc_args {
  const struct tc_flags *flags;
  struct tc_given { const struct tc_flag *flag; const char *value; } *given;   /* [n_given] in order; owned */
  char **argv;                   /* owned; all that are no flags: argv[0], words, options of the run file */
  char **word;                   /* [n_words], in argv */
  int argc, n_words, n_given;
};
/* read_flags.c. Local, as all of these. Whether `takes` has the flag, as above. */
bool tc_flag_is_of(const struct tc_flag *f, const char *takes);
/* Sorts the words. TC_EUSER. To be freed, also after a failure. */
int tc_args_find(struct tc_args *a, const struct tc_flags *flags, int argc, char **argv, struct tc_err *err);
/* Checks what the flags need and exclude. TC_EUSER. */
int tc_args_check(const struct tc_args *a, struct tc_err *err);
void tc_args_free(struct tc_args *a);
/* Reads the values of the flags into `fields`, in the order of the command line. Borrows texts. TC_EUSER. */
int tc_args_set(const struct tc_args *a, void *fields, struct tc_err *err);
/* All three; *word: the one word, or NULL. */
int tc_args_read(const char **word, const struct tc_flags *flags, void *fields, int argc, char **argv, struct tc_err *err);
/* All three, and the run file with its options before the values. */
int tc_args_run(struct tc_config **c, const struct tc_flags *flags, void *fields, int argc, char **argv, struct tc_err *err);
/* The value of the flag, such as "--top"; "" if it takes none, NULL: it is not given. */
const char *tc_args_given(const struct tc_args *a, const char *flag);
/* Local. --world: a number of ranks, all on one node, or nodes and ranks, as in "3x8", "3 nodes x 8" or "2:8,4". *node is
 * owned by the caller. TC_EUSER. */
int tc_args_world(int *world, int32_t **node, const char *text, struct tc_err *err);
extern const struct tc_flag tc_flags_train[], tc_flags_prove[], tc_flags_plan[], tc_flags_place[], tc_flags_graph[], tc_flags_comm[], tc_flags_report[],
  tc_flags_save[], tc_flags_eval[], tc_flags_sample[];

/* Rows of struct tc_flag for a command's struct with a struct tc_trained m. */
#define TC_CMD_MODEL_FLAGS(command, tokenizer_help) \
  { "--adapter PATH", "adapters beside the model: a folder of PEFT, or a checkpoint of a run with train.lora; e.g. --adapter " \
    "tuned/ckpt", "a folder of PEFT, or a checkpoint", TC_FLAG_TEXT, .field = offsetof(struct command, m.adapter) }, \
  { "--tokenizer FILE", tokenizer_help "; e.g. --tokenizer tokenizer.json", "the path of a tokenizer.json", \
    TC_FLAG_TEXT, .field = offsetof(struct command, m.tokenizer_file) }, \
  { "--rope ORDER", "order of rotary pairs in the files of FOLDER: half (default, Hugging Face's) or interleaved " \
    "(Meta's); e.g. --rope interleaved", "half or interleaved", TC_FLAG_TEXT, .field = offsetof(struct command, m.rope) }
/* How eval and sample read. */
#define TC_FLAGS_MODEL(list, name) { .flag = list, .command = name, .how = TC_FLAGS_OPTIONS, \
  .none = "name a checkpoint, a folder of checkpoints or one of Hugging Face's; see tercio " name " --help", \
  .two = "one model at a time: '%s' or '%s'?" }
/* read_flags.c. Local. The flags into `fields`; the word and the options of the run file into *m, of which it is part. */
int tc_args_model(struct tc_trained *m, const struct tc_flags *flags, void *fields, int argc, char **argv,
                  struct tc_err *err);
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
int tc_cmd_plan(int argc, char **argv);
int tc_cmd_prove(int argc, char **argv);
/* The commands of `tercio ckpt` as a section of the man page. */
void tc_cmd_ckpt_man(FILE *f);
/* flag_help.c. Local. The flags of a list, of which `takes` is as above, a line each behind the margin, `width` for its
 * form; margin NULL: for the man page. */
void tc_flags_print(FILE *f, const struct tc_flag *list, const char *takes, const char *margin, int width);
/* Local. A request of roff, such as ".B ", and plain text for it. */
void tc_roff_line(FILE *f, const char *request, const char *text);
/* flag_help.c. Local. The man page's section on the keys of metrics.jsonl, by metrics.def. */
void tc_cmd_metrics_man(void);

#endif
