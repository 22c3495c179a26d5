/* ckpt.c - `tercio ckpt`: inspects checkpoints, for example on a login node: no MPI, no device.
 *
 * This file has the table of commands and those for whole checkpoints; ckpt_flags.c the options; keep.c
 * verify, prune and quarantine; tensors.c the commands for tensors; ckpt_plan.c what another layout
 * would read; exchange.c files of other programs. A DIR may be a checkpoint or the folder of checkpoints: then
 * a command for one checkpoint takes the newest. A reader that closes the pipe (head) is not an error. */
#include "src/cmd/ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

#include "io/folder.h"
#include "src/cmd/cmd.h"
#include "src/cmd/completion.h"
#include "src/program/setup.h"

/* ---- steps ------------------------------------------------------------------------ */

static const char step_form[] = "{path=%s }step=%-10lld  time:written=%-20s  {bytes=%lld}:size=%9s  mesh=%-14s  "
  "system=%-10s  {state=%s reason=%s}:state=%s:=%s:=%s:=%s:=%s";

/* Prints a checkpoint's line, or appends its object to `list`. */
static void list_one(json_t *list, const char *path, bool aside)
{
  struct tc_err e = { 0 };
  struct tc_ckpt *c = NULL;
  int64_t size = 0;
  char size_text[32];
  const char *name = tc_base_name(path);
  const int rc = tc_ckpt_look(&c, path, &size, &e);
  if (rc == TC_STEP_GONE) return;
  if (rc == 0) *e.text = 0;                          /* of an earlier look */
  int64_t step = c ? c->m->meta.step : tc_step_of_name(name + (aside ? strlen(TC_ASIDE) : 0));
  const char *state = aside ? "aside" : rc == 0 ? "ok" : rc == TC_EINCOMPLETE ? "incomplete"
                      : rc == TC_EUSER ? "unreadable" : "damaged";
  tc_human_bytes(size_text, sizeof size_text, (double)size);
  tc_out_row(list, step_form, path, (long long)step, c ? c->m->meta.time : NULL, (long long)size, c ? size_text : NULL,
             c ? c->m->meta.mesh : NULL, c ? c->m->meta.system : NULL, state, e.text, state, aside ? ", " : "",
             aside ? name : "", rc < 0 ? ": " : "", e.text);
  tc_ckpt_close(c);
}

/* Checkpoints that a run has set aside, since it went on from an earlier one, may be many. */
static void count_superseded(const char *dir)
{
  char **name;
  const int n = tc_folder_scan(dir, "superseded-", &name, NULL);
  if (n <= 0) return;
  qsort(name, (size_t)n, sizeof *name, tc_order_text);
  char *last = tc_sprintf("%s/%s", dir, name[n - 1]), *word = tc_shell_word(last);
  printf("%d superseded checkpoint%s not listed: a run went on from an earlier one. To see the last: "
         "tercio ckpt show %s\n", n, n == 1 ? " is" : "s are", word);
  TC_FREE(word, last);
  tc_names_free(name, n);
}

static int cmd_ls(const struct ckpt_args *a, struct tc_err *err)
{
  char **path, **aside = NULL;
  const char *dir = a->path[0];
  int n = tc_ckpt_step_paths(&path, dir, err), n_aside;
  if (n < 0) return n;
  n_aside = tc_folder_scan(dir, TC_ASIDE, &aside, NULL);
  if (n_aside > 0) qsort(aside, (size_t)n_aside, sizeof *aside, tc_order_text);
  json_t *list = a->json ? json_array() : NULL;
  if (!a->json) tc_out_head(step_form);
  for (int i = 0; i < n; i++) list_one(list, path[i], false);
  for (int i = 0; i < n_aside; i++) {
    char *there = tc_sprintf("%s/%s", dir, aside[i]);
    list_one(list, there, true);
    free(there);
  }
  if (a->json) ckpt_print_json(list);
  else count_superseded(dir);
  tc_names_free(path, n);
  if (n_aside > 0) tc_names_free(aside, n_aside);
  return 0;
}

/* The line "KEY = ..." of the section [model] that `line` is of, in a text of tc_config_text, which begins with it. */
static const char *model_line(const char *text, const char *line)
{
  const size_t key = strcspn(line, "=\n") + 1;
  for (const char *at = text; (at = strchr(at, '\n')) != NULL && at[1] != '[';)
    if (strncmp(++at, line, key) == 0) return at;
  return line;
}

/* The saved options, with the model's as the run had them: those that model.preset or model.config set, and defaults,
 * were saved as 0, auto or nothing. As they were saved if they can't be read. Owned by the caller. */
static char *used_config(const struct tc_ckpt_meta *t, const char *path)
{
  struct tc_err why;
  struct tc_model model;
  struct tc_config *c;
  char *all, *text = NULL;
  size_t size;
  bool in_model = false;
  if (tc_model_parse(&model, t->model, path, &why) < 0) return tc_strdup(t->config);
  c = tc_config_as_saved(t->config);
  tc_setup_fill_model(c, &model);
  all = tc_config_text(c);
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  for (const char *at = t->config; *at;) {
    const size_t len = strcspn(at, "\n");
    const char *value = at + strcspn(at, "=\n"), *line = at;
    if (*at == '[') in_model = strncmp(at, "[model]", 7) == 0;
    else if (in_model && (strncmp(value, "= \n", 3) == 0 || strncmp(value, "= 0\n", 4) == 0 ||
                          strncmp(value, "= auto\n", 7) == 0)) line = model_line(all, at);
    fprintf(f, "%.*s\n", (int)strcspn(line, "\n"), line);
    at += len + (at[len] == '\n');
  }
  if (fclose(f)) TC_ASSERT(!"out of memory for a configuration");
  tc_config_free(c);
  free(all);
  return text;
}

static json_t *attached_json(const struct tc_ckpt_attached *a)
{
  return a->name ? tc_out_object("name=%s size=%lld", a->name, (long long)a->bytes) : json_null();
}

static json_t *show_json(const struct tc_manifest *m, const char *path, const char *config)
{
  const struct tc_ckpt_meta *t = &m->meta;
  json_t *names = json_array(), *files = json_array();
  for (int i = 0; i < m->world; i++) json_array_append_new(names, json_string(t->rank_names[i]));
  for (int i = 0; i < m->n_files; i++)
    tc_out_row(files, "name=%s writer=%d size=%lld", m->file[i].name, (int)m->file[i].writer,
               (long long)m->file[i].size);
  json_t *all = tc_out_object("path=%s", path);
  for (int i = 0; i < TC_ROW_version; i++)
    if (tc_meta_rows[i].shown) json_object_set_new(all, tc_meta_rows[i].name, tc_meta_json(t, &tc_meta_rows[i]));
  json_object_update_new(all, tc_out_object("config=%s tensors=%d pieces=%d files=%p attached=%p attached2=%p who=%p",
                                            config, m->n_tensors, m->n_pieces, (void *)files,
                                            (void *)attached_json(&t->attached[0]), (void *)attached_json(&t->attached[1]),
                                            (void *)names));
  return all;
}

/* Rows of meta.def for people; what may be missing and is empty is left out. */
static void print_rows(const struct tc_ckpt_meta *t, int first, int end)
{
  for (int i = first; i < end; i++) {
    const struct tc_meta_row *row = &tc_meta_rows[i];
    if (!row->shown) continue;
    json_t *value = tc_meta_json(t, row);
    const char *text = json_string_value(value);
    if (json_is_integer(value)) printf("%s%lld", row->shown, (long long)json_integer_value(value));
    else if (text && (*text || row->missing == TC_MISSING_FAULT))
      printf("%s%s", row->shown, *text || row->kind != TC_KIND_WORD ? text : "-");
    json_decref(value);
  }
}

static int cmd_show(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  if (a->owners) return ckpt_cmd_owners(a, err);
  TC_TRY(tc_ckpt_open(&c, a->path[0], err));
  const struct tc_manifest *m = c->m;
  const struct tc_ckpt_meta *t = &m->meta;
  char size[32], *config = used_config(t, c->path);
  if (a->json) {
    ckpt_print_json(show_json(m, c->path, config));
    free(config);
    tc_ckpt_close(c);
    return 0;
  }
  printf("path     %s", c->path);
  print_rows(t, 0, TC_ROW_version);
  printf("\ntensors  %d in %d pieces", m->n_tensors, m->n_pieces);
  print_rows(t, TC_ROW_version, TC_META_ROWS);
  printf("\nfiles\n");
  for (int i = 0; i < m->n_files && !ferror(stdout); i++) {
    const struct tc_ckpt_file *f = &m->file[i];
    printf("  %-16s %9s  %s\n", f->name,
           tc_human_bytes(size, sizeof size, (double)f->size),
           f->writer < m->world ? t->rank_names[f->writer] : "");
  }
  for (int i = 0; i < TC_ATTACHED; i++)
    if (t->attached[i].name)
      printf("  %-16s %9s\n", t->attached[i].name, tc_human_bytes(size, sizeof size, (double)t->attached[i].bytes));
  printf("config\n");
  for (const char *at = config; *at;) {
    size_t len = strcspn(at, "\n");
    printf("  %.*s\n", (int)len, at);
    at += len + (at[len] == '\n');
  }
  free(config);
  tc_ckpt_close(c);
  return 0;
}

static int cmd_latest(const struct ckpt_args *a, struct tc_err *err)
{
  struct tc_ckpt *c;
  TC_TRY(tc_ckpt_newest(&c, a->path[0], err));
  if (a->json)
    ckpt_print_json(tc_out_object("path=%s step=%lld", c->path, (long long)c->m->meta.step));
  else
    printf("%s\n", c->path);
  tc_ckpt_close(c);
  return 0;
}

/* ---- the command line ------------------------------------------------------------- */

static const struct ckpt_sub subs[] = {
  { "ls", "[DIR] [--json]", 0, 1, cmd_ls,
    "lists the checkpoints of a folder: step, time, size, mesh, system, and whether all files exist; quarantined "
    "ones last; superseded checkpoints are only counted",
    "tercio ckpt ls run/ckpt" },
  { "show", "[DIR] [--owners [--tensor PATTERN]] [--json]", 0, 1, cmd_show,
    "prints the metadata of a checkpoint: run, model, files, the ranks that wrote them, the resolved configuration",
    "tercio ckpt show run/ckpt --owners --tensor '*.attn.*'" },
  { "tensors", "[DIR] [--json]", 0, 1, ckpt_cmd_tensors,
    "prints name, type, shape, minimum, maximum, mean, number of NaNs and 2-norm of each tensor",
    "tercio ckpt tensors run/ckpt | grep attn" },
  { "dump", "DIR NAME [--rows A:B] [--json]", 2, 2, ckpt_cmd_dump,
    "prints the values of a tensor, one line per row of its last dimension",
    "tercio ckpt dump run/ckpt wte.weight --rows 0:4" },
  { "verify", "[DIR] [--deep|--quick] [-j N] [--json]", 0, 1, ckpt_cmd_verify,
    "checks every byte of one or all checkpoints, and reports file and tensor of each error; exit status 3: "
    "incomplete, 4: wrong checksum",
    "tercio ckpt verify run/ckpt -j 8" },
  { "diff", "A B [--rtol X] [--atol Y] [--only PATTERN] [--json]", 2, 2, ckpt_cmd_diff,
    "compares two checkpoints of any layouts: prints ||A-B|| / ||B|| of each tensor; exit status 1 if a tensor "
    "exceeds the tolerances",
    "tercio ckpt diff run1/ckpt run2/ckpt --rtol 1e-5 --only 'optim.m.*'" },
  { "plan", "[DIR] [--pp N] [--dp N] [--shard N] [--cp N] [--tp N] [--world N | --simulate CLUSTER] "
    "[--section.key=value ...] [--json]", 0, 1, ckpt_cmd_plan,
    "prints the bytes, pieces and files that each rank of another layout would read, without running it; "
    "defaults are the saved run's options; exit status 6: the layout is impossible",
    "tercio ckpt plan run/ckpt --pp 2 --dp 4 --parallel.data=zero3" },
  { "export", "[DIR] -o OUT [--format hf|safetensors|llmc|peft] [--dtype f32|bf16] "
    "[--shard-size SIZE] [--optimizer] [--merge] [--base CKPT] [--json]", 0, 1, ckpt_cmd_export,
    "writes the weights for other programs: hf, a folder with model.safetensors, config.json (with the end token, if "
    "it is known) and the checkpoint's tokenizer.json, if it has one, which Hugging Face's transformers loads as "
    "any class that import knows; llmc, a model file of llm.c (GPT-2); safetensors, one file with Tercio's tensor names; peft, a "
    "folder of PEFT with the adapters of a run with train.lora, which --merge adds to the weights beside them instead",
    "tercio ckpt export run/ckpt -o gpt2 --format hf" },
  { "import", "FILE|FOLDER -o DIR [--rope half|interleaved] [--section.key=value ...] [--json]", 1, 1, ckpt_cmd_import,
    "converts a file or folder in one of export's formats into a checkpoint from which a run can start, with the "
    "tokenizer.json of a Hugging Face folder; the optimizer's state is zero unless the file has it; give the options "
    "that the run will have (model.context of a model with rotary positions is at most 8192 unless given); no run may be using DIR",
    "tercio ckpt import gpt2 -o run/ckpt" },
  { "latest", "[DIR] [--json]", 0, 1, cmd_latest,
    "prints the path of the newest complete checkpoint; exit status 5: there is none",
    "cp -r $(tercio ckpt latest run/ckpt) /archive" },
  { "prune", "[DIR] --keep N [--dry-run] [-j N] [--json]", 0, 1, ckpt_cmd_prune,
    "deletes all checkpoints older than the newest N that verify completely; none if fewer do",
    "tercio ckpt prune run/ckpt --keep 2 --dry-run" },
  { "quarantine", "DIR STEP [--release] [--json]", 2, 2, ckpt_cmd_quarantine,
    "renames a checkpoint to quarantine-step-*, so that no run resumes from it or deletes it",
    "tercio ckpt quarantine run/ckpt 300" },
};
enum { N_SUBS = sizeof subs / sizeof *subs };

static const char where[] = "DIR is a checkpoint or a folder of checkpoints, of which the newest is taken; if it may "
                            "be omitted, the\ndefault is run/ckpt.";

static void usage(FILE *f, const struct ckpt_sub *only)
{
  fprintf(f, "usage:\n");
  for (int i = 0; i < N_SUBS; i++) {
    const struct ckpt_sub *s = &subs[i];
    if (only && s != only) continue;
    fprintf(f, "%s  tercio ckpt %s %s\n      %s\n", i && !only ? "\n" : "", s->name, s->args, s->help);
    ckpt_args_help(f, s, "      ", 22);
    fprintf(f, "      example: %s\n", s->example);
  }
  fprintf(f, "\n%s\n", where);
}

void tc_cmd_ckpt_man(FILE *f)
{
  for (int i = 0; i < N_SUBS; i++) {
    fprintf(f, ".TP\n.B tercio ckpt %s\n.br\n", subs[i].name);
    tc_roff_line(f, "", subs[i].args);
    char *help = tc_sprintf("%s.", subs[i].help);
    tc_roff_line(f, ".br\n", help);
    free(help);
    fputs(".RS\n", f);
    ckpt_args_help(f, &subs[i], NULL, 0);
    fputs(".RE\n.IP\n.EX\n", f);
    tc_roff_line(f, "", subs[i].example);
    fputs(".EE\n", f);
  }
  fprintf(f, ".PP\n%s\n", where);
}

void tc_cmd_ckpt_completion(FILE *f)
{
  for (int i = 0; i < N_SUBS; i++) {
    char name[40];
    snprintf(name, sizeof name, "ckpt %s", subs[i].name);
    tc_completion_command(f, name, subs[i].args);
  }
}

static bool is_help(const char *s)
{
  return strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0 || strcmp(s, "help") == 0;
}

int tc_cmd_ckpt(int argc, char **argv)
{
  const struct ckpt_sub *s = NULL;
  struct ckpt_args a;
  struct tc_err err = {0};
  for (int i = 0; i < N_SUBS && argc > 1; i++)
    if (strcmp(argv[1], subs[i].name) == 0) s = &subs[i];
  for (int i = 1; i < argc; i++) {
    if (!is_help(argv[i])) continue;
    for (int k = 0; k < N_SUBS && !s && i + 1 < argc; k++)
      if (strcmp(argv[i + 1], subs[k].name) == 0) s = &subs[k];
    usage(stdout, s);
    return 0;
  }
  if (!s) {
    usage(stderr, NULL);
    tc_fail(&err, TC_EUSER, argc > 1 ? "ckpt: there is no command '%s'"
                                     : "ckpt: a command is missing%s", argc > 1 ? argv[1] : "");
    return tc_say_failure(&err);
  }
  int rc = ckpt_args_parse(&a, s, argc - 1, argv + 1, &err);
  if (rc == 0) rc = s->run(&a, &err);
  ckpt_args_free(&a);
  fflush(stdout);                      /* what it printed comes before what is wrong; main looks for errors */
  if (rc == TC_DIFFERS) return -rc;
  return rc < 0 ? tc_say_failure(&err) : 0;
}
