/* choices.h - an enum for each option whose value is one of a list of words (CHOICE in options.def), with
 * the words of its enumerators. The folders above include it where they compare or store such a value. */
#ifndef TC_CHOICES_H
#define TC_CHOICES_H

#include <stdbool.h>

#include "src/base/dtype.h"

enum tc_switch { TC_SWITCH_AUTO, TC_ON, TC_OFF };      /* of CHOICE_OF: as something else says, yes, no */

#define WORD(word, enumerator) enumerator,
#define AUTO(enumerator) enumerator = -1,
#define CHOICE(section, key, tag, dflt, words, ...) enum tag { words };
#define CHOICE_OF(...)
#include "src/config/options.def"

/* Local. *value <- that of a word of the option of this name ("parallel.data"), which is a choice; false: it
 * has no such word, and *value is as it was. */
bool tc_choice_parse(const char *option, const char *word, int *value);
/* Local. The word of a value of the option of this name. */
const char *tc_choice_word(const char *option, int value);
/* Local. tc_word_parallel_data(TC_DATA_ZERO1) is "zero1". */
#define CHOICE(section, key, tag, ...) const char *tc_word_##section##_##key(enum tag value);
#include "src/config/options.def"

#endif
