/* completion.h - the tables of bash's completion (tercio --completion). */
#ifndef TC_COMPLETION_H
#define TC_COMPLETION_H

#include <stdio.h>

/* Local. What all commands share: the options of run files, and words of values. */
void tc_completion_begin(FILE *f);
/* Local. What a command ("train", "ckpt ls") takes, by its usage: arguments as their names in capitals,
 * flags as "--flag" or "--flag=VALUE". Arguments come before flags in a usage. */
void tc_completion_command(FILE *f, const char *name, const char *usage);
/* ckpt.c: the same for each command of `tercio ckpt`. */
void tc_cmd_ckpt_completion(FILE *f);

#endif
