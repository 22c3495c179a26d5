/* cmd.h - the commands, one file each; main.c has their table.
 *
 * In: the command line. Out: an exit status, and text on stdout or one sentence on stderr. */
#ifndef TC_CMD_H
#define TC_CMD_H

#include "src/config/config.h"

struct tc_cmd {
  const char *name, *usage, *help, *example;
  int (*run)(int argc, char **argv);   /* argv[0] is the command; returns an exit status */
};
/* A flag, as in "--iters N", and its explanation. A list ends with form NULL. */
struct tc_flag { const char *form, *help; };
/* flags.c */
extern const struct tc_flag tc_flags_eval[], tc_flags_sample[];
extern const struct tc_flag tc_flags_plan[], tc_flags_place[], tc_flags_graph[], tc_flags_comm[], tc_flags_report[],
  tc_flags_save[];
int tc_cmd_train(int argc, char **argv);
int tc_cmd_eval(int argc, char **argv);
int tc_cmd_sample(int argc, char **argv);
int tc_cmd_place(int argc, char **argv);
int tc_cmd_graph(int argc, char **argv);
int tc_cmd_ckpt(int argc, char **argv);
int tc_cmd_data(int argc, char **argv);
int tc_cmd_report(int argc, char **argv);
int tc_cmd_save(int argc, char **argv);
int tc_cmd_comm(int argc, char **argv);
/* The commands of `tercio ckpt` as a section of the man page. */
void tc_cmd_ckpt_man(FILE *f);
int tc_cmd_plan(int argc, char **argv);

/* share.c. Local. The program's own path, "" if it is not known; owned by the caller. */
char *tc_cmd_program(void);
/* Local. The folder of train.sbatch, where an installed program also has its examples; NULL: not found.
 * Owned by the caller. */
char *tc_cmd_share(void);

#endif
