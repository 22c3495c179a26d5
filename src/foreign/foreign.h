/* foreign.h - models in files of other programs: folders of Hugging Face's transformers, llm.c's
 * GPT-2, and what `tercio ckpt export --format safetensors` wrote.
 *
 * In: a path, and the options of the user. Out: the model's sizes as options, and any box of any weight in fp32, in the
 * names and shapes of our programs. So a rank reads what it holds, and no weight is in memory twice.
 *
 * A file is not trusted: every fault is TC_EUSER with a sentence. Everything here is Local, and an open model may be
 * read by several threads.
 *
 * Files, in reading order: parts.[ch] (which rows of which of our tensors each of theirs is), foreign.c (which file,
 * which model), boxes.c (its tensors); adapter.c (PEFT's adapters), digest.[ch] (what they belong to), stored.[ch] (weights, from a
 * checkpoint or from here); special.c (tokens that begin and end texts), beside.c (files that are kept as they are), left_out.c
 * (what a checkpoint does not keep), import.c (a checkpoint made of it), export.c (of a checkpoint, their files), with
 * export_adapter.c, export_part.c and merge_adapters.c. */
#ifndef TC_FOREIGN_H
#define TC_FOREIGN_H

#include <jansson.h>

#include "io/ckpt/ckpt.h"
#include "io/formats/safetensors.h"
#include "src/config/config.h"
#include "src/foreign/parts.h"

struct tc_foreign;

/* The attached file of a checkpoint that has files of Hugging Face's folder (beside.c): what an import takes, runs that start
 * from it keep, and an export writes. */
#define TC_BESIDE_FILE "huggingface.json"

/* Whether the path is a file, or a folder with a file of Hugging Face's: checkpoints are folders without one. */
bool tc_foreign_is(const char *path);
/* The file of weights beside a config.json, which is given by its path or by that of its folder; also one that cannot be
 * read. Owned by the caller; NULL: there is none. */
char *tc_foreign_weights(const char *config);
/* Opens FILE, or a folder's model.safetensors or its index, with the config.json beside it, and checks that its tensors
 * are those of its model. cfg: the user's options, which must agree with the model and get all of its sizes. Rotary
 * positions have no weights, so the user may choose the context. rope: the order of rotary pairs in the file, "half" or
 * "interleaved"; NULL: not given, half. *out is owned by the caller, and needs cfg no longer. */
int tc_foreign_open(struct tc_foreign **out, const char *path, const char *rope, struct tc_config *cfg,
                    struct tc_err *err);
void tc_foreign_close(struct tc_foreign *f);                                 /* NULL is accepted */

const char *tc_foreign_path(const struct tc_foreign *f);                     /* of its file or index; borrowed */

/* Weights of our program, in its order, all fp32. */
int tc_foreign_n(const struct tc_foreign *f);
const struct tc_ckpt_tensor *tc_foreign_at(const struct tc_foreign *f, int i);   /* borrowed */
int tc_foreign_find(const struct tc_foreign *f, const char *name);           /* -1: none */
/* A box of weight i into dst, dense; after a failure what is in it is undefined. Of the file only rows and columns of
 * the box are read. A tied model's file may have the head, too: TC_EUSER if it differs from the embedding in the
 * box. */
int tc_foreign_read(const struct tc_foreign *f, int i, const int64_t *start, const int64_t *count, float *dst,
                    struct tc_err *err);

/* ---- adapters of PEFT (adapter.c) ---- */

/* Whether the path is a folder with PEFT's adapter_config.json. */
bool tc_adapter_is(const char *path);
/* Opens the adapter of a folder for the model that cfg has the sizes of, and gives cfg its train.lora* (tc_setup_take_lora). Its
 * weights are those of the adapters. TC_EUSER: cfg contradicts, or the folder has what adapters here don't. *out is owned by the
 * caller. */
int tc_adapter_open(struct tc_foreign **out, const char *path, struct tc_config *cfg, struct tc_err *err);
/* The digest of the weights that they belong to (digest.h), which tc_foreign_export notes; "": it is not known. Borrowed. */
const char *tc_adapter_base(const struct tc_foreign *f);

/* ---- a checkpoint from which a run can start, made of another program's model ---- */

struct tc_import_opts {           /* borrowed */
  const char *path, *rope;        /* as for tc_foreign_open */
  const char *out;                /* the folder of checkpoints, which must have none */
  struct tc_config *cfg;          /* options that the run will have; gets all sizes of the model */
};
struct tc_imported {              /* owned: tc_imported_free */
  char *from, *path, *model;      /* the file or index, the step's folder, the model's text */
  enum tc_form form;
  int64_t step;
  json_t *left_out;               /* of a folder of Hugging Face: what it says that is not kept (left_out.c); else NULL */
};
/* Local. Owns the folder of checkpoints until it returns. The optimizer's state is the file's, if it has it, else zero.
 * After a failure *r has nothing, and folders that were made are removed. */
int tc_foreign_import(struct tc_imported *r, const struct tc_import_opts *o, struct tc_err *err);
void tc_imported_free(struct tc_imported *r);
/* A line of the log for each file of which something is left out that has an effect. */
void tc_left_out_say(const char *dir, const json_t *left_out);

/* ---- a checkpoint's weights as files of other programs ---- */

struct tc_export_opts {           /* borrowed */
  const char *path, *out;         /* a checkpoint or a folder of them; the file or, for TC_FORM_HF and _PEFT, folder to write */
  enum tc_form form;
  int dtype;                      /* of fp32 tensors: TC_F32 or TC_BF16 */
  bool merge;                     /* adapters are added to the weights beside them */
  const char *base;               /* ... which are in this checkpoint; NULL: in itself, or in the one that it notes */
  bool optimizer;                 /* TC_FORM_OURS: with the optimizer's state */
  int64_t shard_bytes;            /* TC_FORM_HF: the most of a file; 0: one file */
};
struct tc_exported {
  char *from;                     /* the step's folder; owned by the caller */
  int64_t step, bytes;            /* bytes: of the tensors written */
  int n_tensors, files;
  bool tokenizer;                 /* TC_FORM_HF: the checkpoint's tokenizer.json is among the files */
  bool beside;                    /* TC_FORM_HF: so are those that an import took along */
  int64_t end;                    /* TC_FORM_HF: the end token; below 0: not known */
};
/* Local. A file appears when it is complete; after a failure none is left. What is there is never replaced. *r is set if
 * it returns 0. As tc_ckpt_read; TC_EUSER: also where the form can't store the model, or the output can't be made. */
int tc_foreign_export(struct tc_exported *r, const struct tc_export_opts *o, struct tc_err *err);

#endif
