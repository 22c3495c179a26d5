/* list.h - a list of files as text: words between blanks. A word with a blank in it is put between double quotes, after its
 * weight if it has one, and a quote within the quotes is written twice:
 *
 *   a.txt "my text.txt" 0.7:"web pages/" 0.3:b*.bin     """quoted"".txt"
 *
 * A quote anywhere else is a character of the name. */
#ifndef TC_CONFIG_LIST_H
#define TC_CONFIG_LIST_H

#include <stddef.h>
#include <stdio.h>

/* Local. The length of the weight that a word begins with, colon included: 4 of "0.7:NAME"; 0: it has none. */
size_t tc_list_weight_size(const char *word);
/* Local. The next word from *at on, without its quotes, into word, which has room for what is left of the text. Returns 1,
 * 0 at the end, or -1: a quote is not closed, or something follows the closing one. */
int tc_list_next(const char **at, char *word);
/* Local. The word as tc_list_next reads it. */
void tc_list_put(FILE *f, const char *word);

#endif
