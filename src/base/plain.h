/* plain.h - text of others on a terminal: names in files, what Slurm and other programs say, tokens of a model. A
 * terminal obeys control characters in it. So they are printed as \u001b is written here.
 *
 * All that is printed passes here once: stdout by tc_plain_stdout, stderr by the functions of err.h. */
#ifndef TC_PLAIN_H
#define TC_PLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Local, pure, safe in a signal handler. Copies as much of the text as `size` has room for, and a 0. Control characters
 * (C0 but \n and \t, DEL, C1 as UTF-8), characters that reverse or hide what follows (bidirectional controls, U+FEFF,
 * line separators) become \uXXXX, which in a JSON text means the same; bytes that are not UTF-8 become \xXX. lines:
 * false: \n and \t as well. Returns `to`. */
char *tc_plain(char *to, size_t size, const char *text, bool lines);

/* Local, pure. The bytes of the character that text[n] begins with, in UTF-8 without overlong forms and surrogates, and
 * its number; 0: a byte that is none begins it; -1: it may be one whose other bytes are still to come. n > 0. */
int tc_utf8(const char *text, size_t n, uint32_t *code);

/* Local, once, before anything is printed. From now on stdout is a stream that does so. */
void tc_plain_stdout(void);

#endif
