/* config.h - the run file and the command line, as one struct with a field per option.
 *
 * In: a run file and flags. Out: struct tc_config, and the help of all options. Files in reading order: options.def
 * (every option); stage.def (those that may differ between stages); choices.[ch] (words and their enumerators); list.[ch]
 * (lists of files); impl.h; options.c (the table, values and limits); config_stages.c (stages of a run); expand.c (words in
 * braces); ini.c (run files); describe.c (the configuration as text, help); config.c (flags, all together).
 *
 * Field of section "train", key "lr": cfg->train_lr. INT is int64_t, REAL double (either may hold a word,
 * enum tc_number_word), STR, FILE and DIR char *, BOOL bool, LIST struct tc_list, a choice its enum (choices.h).
 * Flags override the run file. */
#ifndef TC_CONFIG_H
#define TC_CONFIG_H

#include "src/base/base.h"
#include "src/config/choices.h"

/* The words that options.def accepts in place of a number. No option takes a number below 0. */
enum tc_number_word { TC_AUTO = -1, TC_NO = -2, TC_DEFAULT = -3, TC_EPOCH = -4, TC_STAGE = -5 };
enum { TC_MOST_CONFIG = 1 << 20 };     /* bytes of tc_config_text: what a manifest holds */
struct tc_list { char **item; int n; };

#define TC_FIELD_INT int64_t
#define TC_FIELD_REAL double
#define TC_FIELD_FLOAT double
#define TC_FIELD_STR char *
#define TC_FIELD_FILE char *
#define TC_FIELD_DIR char *
#define TC_FIELD_BOOL bool
#define TC_FIELD_LIST struct tc_list
struct tc_config {
#define OPT(section, key, type, ...) TC_FIELD_##type section##_##key;
#define CHOICE(section, key, tag, ...) enum tag section##_##key;
#include "src/config/options.def"
  struct tc_pool *pool;          /* owns the strings, and the next three */
  uint8_t *source;               /* enum tc_config_source_kind of each option */
  char *file;                    /* the run file; "": none */
  struct tc_config_stage *stage; /* [n_stages] of the sections [stage 2], [stage 3], ...; all else is the first stage */
  int n_stages;
  bool expanded;                 /* a value had words in braces: it is that of one task or job */
};

enum {
  TC_STAGE_KEYS = 0
#define STAGE_KEY(...) + 1
#include "src/config/stage.def"
};
enum { TC_MOST_STAGES = 64 };
/* A stage after the first: what it changes, from its first step on. given: first `from`, then the keys of stage.def. */
struct tc_config_stage {
  int64_t from;                  /* its first step; tokens: the tokens of all steps before it, rounded up to whole steps */
  bool tokens, given[TC_STAGE_KEYS + 1];
  struct tc_config *values;      /* of which the given ones count */
};
/* Local. *out <- c as it is in stage k, from 0 to c->n_stages; it borrows from c. */
void tc_config_at_stage(struct tc_config *out, const struct tc_config *c, int k);
/* Local. Whether [stage NUMBER] gives a key, such as "data.train". */
bool tc_stage_has(const struct tc_config *c, int number, const char *key);
/* "data.train, train.lr": what stage `number`, from 2 on, changes; what a stage can change if it is 0. Returns text. */
const char *tc_stage_changes(const struct tc_config *c, int number, char *text, size_t size);

/* Local. Defaults, then argv's first argument without dashes as a run file (INI), then
 * --section.key=value (or --section.key value) flags in order. An unknown key fails
 * with TC_EUSER and names the nearest known one; a wrong value says file:line, the key and
 * what would be right. *out is owned by the caller; NULL on error. */
int tc_config_new(struct tc_config **out, int argc, char **argv, struct tc_err *err);
/* Local. The same from a text that tc_config_text made, maybe of another version, and flags.
 * What it says that would be refused today is left as the default: a checkpoint may be older
 * than a limit. Where it has no data.order, that is draws, as in runs from before the option. Flags have to be
 * options; they are checked. */
int tc_config_saved(struct tc_config **out, const char *text, int argc, char **argv,
                    struct tc_err *err);
/* Local. The same without flags; owned by the caller. */
struct tc_config *tc_config_as_saved(const char *text);
void tc_config_free(struct tc_config *c);
/* The configuration as INI text, every key; owned by the caller. It reads back as it is, but for
 * strings that were put into *c without tc_config_is_plain. */
char *tc_config_text(const struct tc_config *c);
/* Local. The same of some options: note() returns NULL to leave an option out, else the text of a comment above
 * it, "" for none. `arg` is for note. */
char *tc_config_text_of(const struct tc_config *c, const char *(*note)(const void *arg, const char *name),
                        const void *arg);
/* Local. Where a value came from. A copy of a configuration has the sources of its original, even where a field
 * was changed since. */
enum tc_config_source_kind { TC_FROM_DEFAULT, TC_FROM_FILE, TC_FROM_FLAG };
/* Local. The value of an option of type INT, such as "mesh.pp". */
int64_t tc_config_int(const struct tc_config *c, const char *name);
void tc_config_set_int(struct tc_config *c, const char *name, int64_t value);      /* Local. Its limits are not checked */
enum tc_config_source_kind tc_config_source(const struct tc_config *c, const char *name);
/* Local. The first option, from number `from` on, that was given and names a file or a folder; its number, or -1: none.
 * *name and *path are borrowed. */
int tc_config_next_path(const struct tc_config *c, int from, const char **name, const char **path);
/* Local. Where the values of all options whose names begin with `prefix` came from, as text: "run.ini, --model.layers",
 * or "" if all are defaults. */
void tc_config_sources(const struct tc_config *c, const char *prefix, char *text, size_t size);
/* Local. Whether a run file can hold the text as a value: UTF-8 without control characters,
 * blanks at an end, or a ";" after a blank or at the begin. */
bool tc_config_is_plain(const char *text);

/* What happens if a resumed run has another value than its checkpoint: see options.def. */
enum tc_resume { TC_RESUME_FREE, TC_RESUME_SAMPLES, TC_RESUME_RATE, TC_RESUME_MATH, TC_RESUME_BEGIN,
                 TC_RESUME_REFUSED, TC_RESUME_MODEL };
struct tc_config_change {
  const char *name;                    /* "train.lr", "stage2.train.lr" */
  enum tc_resume resume;
  bool names_files;                    /* its values are names of files or folders */
  int stage;                           /* of the section [stage N]: there is no option of this name; 0: an option */
  char stage_name[40];
  char was[100], is[100];              /* cut off if they are longer */
};
/* Local. Index of the first option >= from whose value differs, those of stages after all others, of each stage `from` first;
 * -1: none. `from` changes no more than the rate where the stage gives nothing else. */
int tc_config_next_change(const struct tc_config *was, const struct tc_config *is, int from,
                          struct tc_config_change *out);
/* Local. Option number `option` of *to becomes that of *from, which stays its owner. */
void tc_config_copy(struct tc_config *to, const struct tc_config *from, int option);
/* The options as words for a shell's completion, one per line: "--section.key=a|b|c", with N, X, TEXT, FILE,
 * DIR or FILES for what a value is. */
void tc_config_words(FILE *f);
/* All options with types, defaults and help, as text (for --help) or man page source. */
void tc_config_help(FILE *f, bool man);
/* The sections, a line each; the options of one section, or TC_EUSER: there is none of this name. */
void tc_config_help_sections(FILE *f);
int tc_config_help_section(FILE *f, const char *name, struct tc_err *err);

#endif
