/* plain.h - text of others on a terminal: names in files, what Slurm and other programs say, tokens of a model. A
 * terminal obeys control characters in it. So they are printed as \u001b is written here.
 *
 * All that is printed passes here once: stdout by tc_plain_stdout, stderr by the functions of err.h. */
#ifndef TC_PLAIN_H
#define TC_PLAIN_H

#include <stdbool.h>
#include <stddef.h>

/* Local, pure, safe in a signal handler. Copies as much of the text as `size` has room for, and a 0. Control characters
 * (C0 but \n and \t, DEL, C1 as UTF-8), characters that reverse or hide what follows (bidirectional controls, U+FEFF,
 * line separators) become \uXXXX, which in a JSON text means the same; bytes that are not UTF-8 become \xXX. lines:
 * false: \n and \t as well. Returns `to`. */
char *tc_plain(char *to, size_t size, const char *text, bool lines);

/* Local, once, before anything is printed. From now on stdout is a stream that does so. */
void tc_plain_stdout(void);

#endif
