/* choices.h - an enum for each option whose value is one of a list of words (CHOICE in options.def), with
 * the words of its enumerators. The folders above include it where they compare or store such a value. */
#ifndef TC_CHOICES_H
#define TC_CHOICES_H

#include "src/base/dtype.h"

#define WORD(word, enumerator) enumerator,
#define AUTO(enumerator) enumerator = -1,
#define CHOICE(section, key, tag, dflt, words, ...) enum tag { words };
#define CHOICE_OF(...)
#include "src/config/options.def"

/* Local. tc_word_parallel_data(TC_DATA_ZERO1) is "zero1". */
#define CHOICE(section, key, tag, ...) const char *tc_word_##section##_##key(enum tag value);
#include "src/config/options.def"

#endif
