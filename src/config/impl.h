/* impl.h - the options as a table, for the files of src/config. */
#ifndef TC_CONFIG_IMPL_H
#define TC_CONFIG_IMPL_H

#include "src/config/config.h"

enum tc_opt_type { T_INT, T_REAL, T_FLOAT, T_STR, T_FILE, T_DIR, T_BOOL, T_LIST, T_CHOICE };

/* A word of a choice, or in place of a number. Lists end with word NULL. */
struct tc_word { const char *word; int value; };

struct tc_opt {
  const char *section, *key, *name;      /* name: "section.key" */
  enum tc_opt_type type;
  size_t offset;                         /* of the field in struct tc_config */
  const char *dflt, *unit, *values;
  enum tc_resume resume;
  const char *help;
  const struct tc_word *words;           /* of a CHOICE, whose field has the size of an int */
};

struct tc_section { const char *name, *help; };

enum {
  TC_N_OPTS = 0
#define OPT(...) + 1
#define CHOICE(...) + 1
#include "src/config/options.def"
  ,
  TC_N_SECTIONS = 0
#define SECTION(name, help) + 1
#include "src/config/options.def"
};
#define CHOICE(section, key, ...) extern const struct tc_word tc_words_##section##_##key[];
#include "src/config/options.def"
extern const struct tc_word tc_number_words[];
extern const struct tc_opt tc_opts[TC_N_OPTS];
extern const struct tc_section tc_sections[TC_N_SECTIONS];

static inline void *tc_opt_field(const struct tc_config *c, const struct tc_opt *o)
{
  return (char *)c + o->offset;
}

/* Local. The word of a value, which has one. */
const char *tc_word_of(const struct tc_word *words, int value);
/* Local. *value <- that of the word; false: there is no such word, and *value is as it was. */
bool tc_word_parse(const struct tc_word *words, const char *word, int *value);

/* Local. NULL: there is none of this name. */
const struct tc_opt *tc_opt_find(const char *name);

/* config_stages.c. Local. The number in "stage 2", or "stage2" before `after`; 0: not a number from 1 on; -1: no stage is
 * meant. */
int tc_stage_number(const char *name, char after);
/* What stands before a key of a stage in a sentence: "--stage2." of a flag, whose where is "--", else "run.ini:12: [stage 2] ". */
void tc_stage_name(char *text, size_t size, int number, const char *where);
/* Sets key `from`, or an option by its full name, of a stage; append: words more for a LIST. TC_EUSER. */
int tc_stage_set(struct tc_config *c, int number, const char *key, const char *value, bool append, const char *where,
                 struct tc_err *err);
/* TC_EUSER: a stage has no begin, or something is to be after each stage of one. */
int tc_stages_check(const struct tc_config *c, struct tc_err *err);
/* The sections as they stand in a run file; what differs, as tc_config_next_change, from 0 on. */
void tc_stages_print(FILE *f, const struct tc_config *c);
int tc_stages_next_change(const struct tc_config *was, const struct tc_config *is, int from, struct tc_config_change *out);
/* describe.c. Local. The value of an option; owned by the caller. */
char *tc_opt_text(const struct tc_config *c, const struct tc_opt *o);

/* Local. The parts of an option's values, one per call: *at is o->values first, and NULL after the
 * last; the part's length into *len. */
const char *tc_opt_part(const char **at, size_t *len);

/* Local. Sets the option to what `value` says; TC_EUSER, and nothing is changed, if it is not
 * one of its values. `where` begins the sentence: "run.ini:12: ", "--" or "". */
int tc_opt_set(struct tc_config *c, const struct tc_opt *o, const char *value, const char *where,
               struct tc_err *err);
/* Local. Words more for a LIST; otherwise the same. */
int tc_opt_append(struct tc_config *c, const struct tc_opt *o, const char *value,
                  const char *where, struct tc_err *err);
/* Local. TC_EUSER: there is no option `name`, with the nearest one that there is. */
int tc_opt_unknown(const char *name, const char *dashes, const char *where, struct tc_err *err);

/* Local. *out <- the value with its words in braces replaced ({array}, {job}, {ranks}), owned by the caller; NULL: it has no
 * braces. TC_EUSER: a word
 * that is not known, or that the launcher says nothing of; `where` and `name` begin the sentence. */
int tc_expand(char **out, const char *value, const char *where, const char *name, struct tc_err *err);

/* Local. Sets what a run file's text[bytes] says; path stands for it in sentences. saved: the text
 * is a configuration that was written once: lines that would be refused today are passed over. */
int tc_ini_read(struct tc_config *c, const char *text, size_t bytes, const char *path, bool saved,
                struct tc_err *err);

#endif
