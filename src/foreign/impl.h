/* impl.h - what the files of src/foreign share: an open model of another program, the tokens that begin and end a text, and
 * what a checkpoint does not keep. All is Local. */
#ifndef TC_FOREIGN_IMPL_H
#define TC_FOREIGN_IMPL_H

#include "src/foreign/digest.h"
#include "src/foreign/foreign.h"
#include "src/model/hf.h"
#include "src/token/token.h"

struct tc_foreign {
  enum tc_form form;
  char *file, *config_file;       /* config_file NULL: none */
  struct tc_st_files *st;         /* or */
  struct tc_llmc *llmc;
  struct tc_model model;
  bool interleaved;               /* the file's rotary order */
  struct tc_foreign_part *part;
  int n_parts;
  struct tc_ckpt_tensor *tensor;  /* ours; names are the parts' */
  int *first;                     /* tensor i is parts first[i] to first[i + 1] - 1 */
  int n;
  char base[TC_DIGEST + 1];       /* of adapters: tc_adapter_base */
};

/* The index of the file's tensor of this name; -1: none. Names of Hugging Face's GPT-2 may begin with
 * "transformer.". */
int tc_foreign_index(const struct tc_foreign *x, const char *name);
/* Lists parts and tensors of x->model, which is complete, and checks that the file has them. */
int tc_foreign_list(struct tc_foreign *x, struct tc_err *err);
/* Our tensors, of which x->part are. */
void tc_foreign_tensors(struct tc_foreign *x);
/* TC_EUSER: the file has no such tensor of the right shape and a type that is read. */
int tc_foreign_check_part(const struct tc_foreign *x, const struct tc_foreign_part *t, struct tc_err *err);
/* The note of a file of adapters, in the safetensors file, that has the digest of the weights that they belong to. */
#define TC_BASE_NOTE "tercio.base"
/* The files of a folder of PEFT. */
#define TC_ADAPTER_CONFIG "adapter_config.json"
#define TC_ADAPTER_WEIGHTS "adapter_model.safetensors"
/* adapter.c. adapter_config.json of adapters part[n], in pairs; owned by the caller. */
char *tc_adapter_config(const struct tc_foreign_part *part, int n, const struct tc_model *m, const struct tc_config *c);

/* ---- special.c: the tokens that begin and end a text, and the files of an exported model that name them ---- */

/* A file beside config.json and the weights. */
struct tc_beside { const char *name; char *text; int64_t bytes; };      /* text[bytes] is owned */

enum { TC_BESIDE = 4 };
struct tc_special {
  struct tc_hf_ids ids;
  struct tc_beside file[1 + TC_BESIDE]; int n_files;      /* tokenizer.json, and those of beside.c */
  bool tokenizer, beside;                       /* the checkpoint has tokenizer.json; has files of an imported folder */
};
/* Adds a file; text[bytes] is then owned by *s. */
void tc_special_add(struct tc_special *s, const char *name, char *text, int64_t bytes);

/* The ids of such tokens, below 0 where they are not known; t may be NULL. own_vocab: the data name no tokenizer, and none
 * is there, so that a vocabulary of GPT-2's size is GPT-2's. */
struct tc_hf_ids tc_special_ids(const struct tc_tokenizer *t, const struct tc_model *m, bool own_vocab,
                                  int64_t saved_end);

/* Takes the tokenizer.json of the checkpoint, and finds the ids: the end token is that at which `tercio sample` stops,
 * else saved_end, the data.end_token of the run if it was a number (below 0: it was not), else what the headers of its
 * shards said; the begin token is what the tokenizer puts before a text. A GPT-2 begins a text with its end token, which
 * is 50256 if its vocabulary has GPT-2's size and its data name no tokenizer. What tc_ckpt_attached returns. *s is to be
 * freed, also after a failure. */
int tc_special_find(struct tc_special *s, const struct tc_ckpt *c, const struct tc_model *m, int64_t saved_end,
                      struct tc_err *err);
void tc_special_free(struct tc_special *s);

/* ---- beside.c: files of a Hugging Face folder that a checkpoint takes along as they are ---- */

bool tc_beside_is(const char *name);
/* Those of a folder as the text of TC_BESIDE_FILE, owned by the caller; NULL: it has none. Warns of those that can't be
 * read. */
char *tc_beside_take(const char *dir);
/* Adds those that the checkpoint has. What tc_ckpt_attached returns. */
int tc_beside_put(struct tc_special *s, const struct tc_ckpt *c, struct tc_err *err);

/* ---- left_out.c: what the files of a Hugging Face folder say and a checkpoint does not keep ---- */

/* "config.json": a list of its members that the checkpoint does not keep, with short values; "files": other files of the
 * folder; "no effect": members that say nothing of the model or its texts. Each is there if it is not empty. ids: those that
 * an export would write. Owned by the caller. */
json_t *tc_left_out(const char *dir, struct tc_hf_ids ids);

/* ---- export.c, export_adapter.c, export_part.c, merge_adapters.c ---- */

struct tc_export {
  const struct tc_export_opts *o;
  struct tc_ckpt *c;
  struct tc_model model;
  int64_t saved_end;              /* data.end_token of the run; below 0: none */
  struct tc_special special;      /* format hf */
  int n_tensors, files;
  int64_t bytes;                  /* of tensors written */
  float *whole; char whole_is[48];      /* the tensor in memory, and its name; owned */
  char **made; int n_made, cap_made;    /* complete files of the folder, which a later failure removes; owned */
  struct tc_config *cfg;          /* the run's options; owned; NULL: not read yet */
  /* All owned, and NULL without adapters: */
  struct tc_ckpt *base;           /* has the weights beside the adapters; may be c; NULL: not asked for */
  struct tc_foreign_part *hf, *adapter; int n_adapters;      /* of the model; of the adapters, A and B in turn */
  float factor;
};
/* The sizes of the checkpoint's model, which a class of Hugging Face has. TC_EUSER. */
int tc_export_model(struct tc_export *x, struct tc_err *err);
/* The index of the checkpoint's tensor of a part, which must be f32 and of the model's size; TC_EUSER. */
int tc_export_find(const struct tc_export *x, const struct tc_foreign_part *t, struct tc_err *err);
/* Writes n values in the export's type; bf16[n] is scratch. */
int tc_export_values(struct tc_export *x, struct tc_output *f, const float *v, int64_t n, uint16_t *bf16, struct tc_err *err);
/* A tensor of theirs. */
int tc_export_part(struct tc_export *x, struct tc_output *f, const struct tc_foreign_part *t, enum tc_form form,
                   struct tc_err *err);
/* Whether a file may be made at this path: none may be there, nor is one made in a checkpoint. */
int tc_export_free(const struct tc_export *x, const char *path, struct tc_err *err);
/* A file beside the weights: the bytes, then `end`. */
int tc_export_bytes(struct tc_export *x, const char *name, const char *text, int64_t bytes, const char *end, struct tc_err *err);
/* A text, which it frees, as a file of its own. */
int tc_export_text(struct tc_export *x, const char *name, char *text, struct tc_err *err);
/* What the run's options say of adapters, and those that the checkpoint has. */
int tc_export_adapters(struct tc_export *x, struct tc_err *err);
/* Opens what has the weights beside the adapters. TC_EUSER: it is not what they belong to. */
int tc_export_base(struct tc_export *x, struct tc_err *err);
/* known[TC_DIGEST + 1] <- the digest of what the adapters belong to, after tc_export_model: the one that is noted, or that of the
 * checkpoint's own copy. */
int tc_export_known_base(const struct tc_export *x, char *known, struct tc_err *err);
/* Adds the adapters of our tensor of this name to it. */
int tc_export_merge(struct tc_export *x, const char *ours, float *whole, struct tc_err *err);
int tc_export_peft(struct tc_export *x, struct tc_err *err);

#endif
