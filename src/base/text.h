/* text.h - strings: formatting, paths, "did you mean". */
#ifndef TC_TEXT_H
#define TC_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The value of an environment variable; "" if it is not set. */
const char *tc_env(const char *name);
/* An owned, formatted string. */
char *tc_sprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Local. Appends to `text`, which holds `size` bytes; truncates. */
void tc_text_add(char *text, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. Whether the text is longer than `ending`, and ends with it. */
bool tc_ends_with(const char *text, const char *ending);

/* Local. The index of the word in list[n] nearest to `word` by edit distance (swapping two
 * neighbours counts as one), for "did you mean"; -1 if none is near. */
int tc_nearest(const char *word, const char *const *list, int n);
/* Local. The index of the word itself; -1: it is not there. */
int tc_word_index(const char *word, const char *const *list, int n);

/* Local. The folder that holds `path`, by its text; owned. The last component of a path; borrowed. */
char *tc_folder_of(const char *path);
const char *tc_base_name(const char *path);
/* An owned copy of a file's name as a word for a shell: quoted where it would not read it as one word, and with "./"
 * before a "-", which would begin an option. */
char *tc_shell_word(const char *name);

#endif
