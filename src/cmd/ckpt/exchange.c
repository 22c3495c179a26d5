/* exchange.c - `tercio ckpt export` and `import`: checkpoints and files of other programs. */
#include "src/cmd/ckpt/ckpt.h"
#include "src/config/config.h"
#include "src/foreign/foreign.h"

#include <stdlib.h>
#include <string.h>

static const char *const forms[] = { [TC_FORM_OURS] = "safetensors", [TC_FORM_HF] = "hf", [TC_FORM_LLMC] = "llmc",
                                     [TC_FORM_PEFT] = "peft" };
enum { FORMS = sizeof forms / sizeof *forms };

/* Says what was written, on stdout. */
static void say_exported(const struct ckpt_args *a, const struct tc_exported *x, enum tc_form form)
{
  char size[32], files[40] = "";
  if (a->json) {
    ckpt_print_json(tc_out_object("from=%s step=%lld path=%s format=%s tensors=%d bytes=%lld tokenizer!=%d", x->from,
      (long long)x->step, a->out, forms[form], x->n_tensors, (long long)x->bytes, x->tokenizer));
    return;
  }
  if (x->files > 1) snprintf(files, sizeof files, " in %d files", x->files);
  tc_human_bytes(size, sizeof size, (double)x->bytes);
  printf("%s: %d tensors%s, %s, of step %lld%s\n", a->out, x->n_tensors, files, size, (long long)x->step,
         x->tokenizer ? ", with tokenizer.json" : "");
  if (form == TC_FORM_HF && x->end < 0)
    printf("%s: the end token is unknown: set eos_token_id in config.json, so that texts end there\n", a->out);
  if (x->tokenizer && !x->beside)
    tc_log("%s has no chat template, no other ends of turns than eos_token_id and no settings of generate(), which the checkpoint "
           "does not have: copy them from the folder of the model that this one began with, if it has them", a->out);
}

int ckpt_cmd_export(const struct ckpt_args *a, struct tc_err *err)
{
  const char *name = a->format ? a->format : "hf";
  struct tc_export_opts o = { .path = a->path[0], .out = a->out, .dtype = a->dtype ? tc_dtype_parse(a->dtype) : TC_F32,
                              .optimizer = a->optimizer, .merge = a->merge, .base = a->base, .shard_bytes = a->shard_bytes };
  int form = 0;
  while (form < FORMS && strcmp(forms[form], name)) form++;
  o.form = (enum tc_form)form;
  if (form == FORMS) return tc_fail(err, TC_EUSER, "ckpt export: --format %s: give hf, safetensors, llmc or peft", name);
  if (!a->out) return tc_fail(err, TC_EUSER, "ckpt export: -o OUT, the file or folder to write, is missing");
  if (o.dtype != TC_F32 && o.dtype != TC_BF16)
    return tc_fail(err, TC_EUSER, "ckpt export: --dtype %s: give f32 or bf16", a->dtype);
  if (a->optimizer && o.form != TC_FORM_OURS)
    return tc_fail(err, TC_EUSER, "ckpt export: format %s can't store the optimizer's state (--optimizer); --format "
                   "safetensors can", name);
  if (a->shard_bytes && o.form != TC_FORM_HF)
    return tc_fail(err, TC_EUSER, "ckpt export: format %s is one file; --shard-size is for --format hf", name);
  if (a->merge && (o.form == TC_FORM_OURS || o.form == TC_FORM_PEFT))
    return tc_fail(err, TC_EUSER, "ckpt export: --merge is for --format hf and llmc, which have a whole model");
  struct tc_exported x;
  TC_TRY(tc_foreign_export(&x, &o, err));
  say_exported(a, &x, o.form);
  free(x.from);
  return 0;
}

int ckpt_cmd_import(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_import_opts o = { .path = a->path[0], .rope = a->rope, .out = a->out };
  struct tc_imported x = { 0 };
  if (!a->out)
    return tc_fail(err, TC_EUSER, "ckpt import: -o DIR, the folder of checkpoints, is missing");
  int rc = tc_config_new(&o.cfg, a->n_flags, a->flag, err);
  if (rc == 0) rc = tc_foreign_import(&x, &o, err);
  if (rc == 0 && a->json)
    ckpt_print_json(json_pack("{s:o, s:o, s:s, s:I, s:s, s:O*}", "from", tc_text_json(x.from), "path",
      tc_text_json(x.path), "format", forms[x.form], "step", (json_int_t)x.step, "model", x.model,
      "left_out", x.left_out));
  else if (rc == 0)
    printf("%s: %s\n", x.path, x.model);
  if (x.left_out) tc_left_out_say(a->path[0], x.left_out);
  tc_imported_free(&x);
  tc_config_free(o.cfg);
  return rc;
}
