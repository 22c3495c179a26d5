/* import_weights.c - the weights of an import: which tensor of the file is which part of ours.
 *
 * They are in an unlinked, mapped file beside the checkpoint, so that little memory is used. */
#include "src/cmd/ckpt/import.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/model/hf.h"

enum { BATCH = 1 << 18 };         /* elements read at a time */
#define HEAD "lm_head.weight"     /* in Hugging Face's files */

static float value_of(const void *buf, int dtype, int64_t i)
{
  if (dtype == TC_F32) return ((const float *)buf)[i];
  uint16_t h = ((const uint16_t *)buf)[i];
  return dtype == TC_BF16 ? tc_bf16_to_f32(h) : names_half_to_f32(h);
}

/* The position of a tensor in the file. */
struct place { int index, dtype; int64_t from; };

static bool has_shape(const struct import *x, const struct part *t, const struct tc_st_tensor *s)
{
  int64_t dim[2], elems = 1;
  part_hf_shape(t, dim);
  for (int d = 0; d < s->rank; d++) elems *= s->dim[d];
  if (x->form == NAMES_OURS) return elems == t->elems;
  return s->rank == t->rank && s->dim[0] == dim[0] && (t->rank == 1 || s->dim[1] == dim[1]);
}

static int find_place(const struct import *x, const struct part *t, struct place *p, struct tc_err *err)
{
  if (x->form == NAMES_LLMC) {
    *p = (struct place){ .dtype = tc_llmc_dtype(x->llmc),
                         .from = tc_llmc_place(tc_llmc_sizes(x->llmc), t->llmc, t->layer) };
    return 0;
  }
  const char *name = x->form == NAMES_HF ? t->hf : t->ours;
  p->index = import_find(x, name);
  if (p->index < 0) return tc_fail(err, TC_EUSER, "%s: tensor %s is missing", x->file, name);
  const struct tc_st_tensor *s = tc_shards_at(x->st, p->index);
  if (!has_shape(x, t, s))
    return tc_fail(err, TC_EUSER, "%s: tensor %s has another shape than a model of hidden size "
                   "%lld needs", x->file, name, (long long)x->model.hidden);
  p->dtype = s->dtype;
  if (p->dtype == TC_F32 || p->dtype == TC_BF16 || p->dtype == TC_ST_F16) return 0;
  return tc_fail(err, TC_EUSER, "%s: tensor %s is not of type F32, BF16 or F16", x->file, name);
}

/* Reads a tensor of the file into its rows of ours, or compares it with them: 1 if it differs. */
static int read_part(const struct import *x, const struct part *t, bool compare, struct tc_err *err)
{
  struct place p = {0};
  TC_TRY(find_place(x, t, &p, err));
  const int64_t elems = part_elems(t), size = p.dtype == TC_F32 ? 4 : 2;
  float *ours = x->weights + t->first;
  char *buf = tc_malloc((size_t)(BATCH * size));
  struct part_walk w = { .t = t, .form = x->form };
  int rc = 0;
  for (int64_t at = 0; at < elems && rc == 0; at += BATCH) {
    int64_t n = TC_MIN(BATCH, elems - at);
    rc = x->st ? tc_shards_read(x->st, p.index, at * size, n * size, buf, err)
               : tc_llmc_read(x->llmc, p.from + at, n, buf, err);
    for (int64_t i = 0; i < n && rc == 0; i++) {
      const float value = value_of(buf, p.dtype, i);
      float *to = &ours[part_next(&w)];
      if (!compare) *to = value;
      else if (memcmp(to, &value, sizeof value) != 0) rc = 1;
    }
  }
  free(buf);
  return rc;
}

/* A tied model's file may have the head, too: if it is not the embedding, the model is not tied. */
static int check_tied_head(const struct import *x, struct tc_err *err)
{
  if (x->form != NAMES_HF || x->model.tied != TC_ON || import_find(x, HEAD) < 0) return 0;
  struct part head = x->part[0];                /* the embedding is the first tensor of every model */
  snprintf(head.hf, sizeof head.hf, HEAD);
  const int rc = read_part(x, &head, true, err);
  if (rc <= 0) return rc;
  return tc_fail(err, TC_EUSER, "%s: tensor " HEAD " differs from %s, but the model's head is tied to its embedding%s",
                 x->file, x->part[0].hf, x->model.rope_theta > 0 ?
                 "; \"tie_word_embeddings\": false in config.json makes it a tensor of its own" : "");
}

/* Whether tensor i is optional: optimizer state or, in Hugging Face's files, the tied head (check_tied_head), and
 * masks and frequencies, which follow from the sizes. */
static bool is_optional(const struct import *x, int i)
{
  const char *const gpt2[] = { ".attn.bias", ".attn.masked_bias" }, *const rotary[] = { ".rotary_emb.inv_freq" };
  const bool is_rotary = x->model.rope_theta > 0;
  const char *const *ends = is_rotary ? rotary : gpt2, *name = tc_shards_at(x->st, i)->name;
  if (x->form == NAMES_OURS) return strncmp(name, "optim.", 6) == 0;
  if (i == import_find(x, HEAD)) return true;
  size_t len = strlen(name);
  for (int k = 0; k < (is_rotary ? 1 : 2); k++)
    if (len >= strlen(ends[k]) && strcmp(name + len - strlen(ends[k]), ends[k]) == 0) return true;
  return false;
}

/* Checks that all of the model's tensors are in the file with their shapes, and that each tensor of the file is
 * used or known to be unnecessary: nothing is ignored silently. */
static int check_tensors(struct import *x, struct tc_err *err)
{
  bool *used = tc_calloc(x->st ? (size_t)tc_shards_n(x->st) + 1 : 1, sizeof *used);
  int rc = 0;
  for (int i = 0; i < x->n && rc == 0; i++) {
    struct place p = {0};
    rc = find_place(x, &x->part[i], &p, err);
    x->elems = x->part[i].first + x->part[i].elems;
    if (rc == 0) used[x->st ? p.index : 0] = true;
  }
  for (int i = 0; x->st && i < tc_shards_n(x->st) && rc == 0; i++)
    if (!used[i] && !is_optional(x, i))
      rc = tc_fail(err, TC_EUSER, "%s: tensor %.100s does not belong to %s: another model", x->file,
                   tc_shards_at(x->st, i)->name,
                   x->model.rope_theta < 0 ? "GPT-2" : tc_hf_architecture(&x->model, err));
  free(used);
  return rc;
}

/* Maps an unlinked file in the folder of the checkpoints. */
static int map_weights(struct import *x, struct tc_err *err)
{
  char *path = tc_sprintf("%s/.import-XXXXXX", x->args->out);
  size_t bytes = (size_t)x->elems * sizeof *x->weights;
  int fd = mkstemp(path), why = fd < 0 ? errno : 0;
  if (fd >= 0) unlink(path);
  if (fd >= 0) why = posix_fallocate(fd, 0, (off_t)bytes);
  void *map = why ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!why && map == MAP_FAILED) why = errno;
  if (fd >= 0) close(fd);
  free(path);
  if (why)
    return tc_fail(err, TC_EUSER, "%s: no space for %zu bytes: %s", x->args->out, bytes,
                   strerror(why));
  x->weights = map;
  return 0;
}

int import_read_weights(struct import *x, struct tc_err *err)
{
  if (x->st && x->model.layers > tc_shards_n(x->st))
    return tc_fail(err, TC_EUSER, "%s has %d tensors, fewer than a model of %lld layers", x->file,
                   tc_shards_n(x->st), (long long)x->model.layers);
  x->n = names_list(&x->part, &x->model, x->form, x->interleaved);
  TC_TRY(check_tensors(x, err));
  TC_TRY(map_weights(x, err));
  for (int i = 0; i < x->n; i++) TC_TRY(read_part(x, &x->part[i], false, err));
  return check_tied_head(x, err);
}
