/* choices.c - the words of options, and their enumerators. */
#include "src/config/impl.h"

#include <string.h>

#define WORD(word, enumerator) { word, enumerator },
#define AUTO(enumerator) { "auto", enumerator },
#define CHOICE(section, key, tag, dflt, words, ...) \
  const struct tc_word tc_words_##section##_##key[] = { words { NULL, 0 } };
#include "src/config/options.def"

const struct tc_word tc_number_words[] = {
  { "auto", TC_AUTO }, { "no", TC_NO }, { "default", TC_DEFAULT }, { "epoch", TC_EPOCH }, { "stage", TC_STAGE }, { NULL, 0 }
};

const char *tc_word_of(const struct tc_word *words, int value)
{
  while (words->word && words->value != value) words++;
  TC_ASSERT(words->word);
  return words->word;
}

bool tc_word_parse(const struct tc_word *words, const char *word, int *value)
{
  while (words->word && strcmp(words->word, word) != 0) words++;
  if (words->word) *value = words->value;
  return words->word != NULL;
}

#define CHOICE(section, key, tag, ...) \
  const char *tc_word_##section##_##key(enum tag value) \
  { \
    return tc_word_of(tc_words_##section##_##key, (int)value); \
  }
#include "src/config/options.def"
