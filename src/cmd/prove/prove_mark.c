/* prove_mark.c - whether a run was proved before. */
#include "ac_config.h"
#include "src/cmd/prove/prove.h"
#include "src/coll/selection.h"
#include "src/files/files.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

static const struct tc_output_kind mark_kind = { "the mark of an earlier proof", { "proved " } };

int tc_prove_mark_of(char **path, char **text, const struct tc_proving *p, struct tc_err *err)
{
  struct tc_config c = *p->cfg;
  struct tc_model m;
  char *rows = NULL;
  size_t bytes = 0;
  TC_TRY(tc_setup_model(&c, &m, err));           /* what model.config says is the model, wherever it stands */
  tc_setup_fill_model(&c, &m);
  if (*c.parallel_annotations)
    TC_TRY(tc_read_text(&rows, &bytes, c.parallel_annotations, "annotation file", TC_MOST_CONFIG, err));
  struct tc_selection *selection = NULL;
  if (*c.run_collectives) {
    const int rc = tc_selection_read(&selection, c.run_collectives, err);
    if (rc < 0) free(rows);
    TC_TRY(rc);
  }
  char *run = tc_config_text(&c), *all = tc_sprintf("%s %s", PACKAGE_VERSION, run);
  uint64_t h = tc_hash64(all);
  for (int i = 0; i < p->world; i++) h = tc_hash64_add(h, (uint64_t)p->node[i]);
  for (size_t i = 0; i < bytes; i++) h = tc_hash64_add(h, (unsigned char)rows[i]);
  if (selection) h = tc_hash64_add(h, tc_selection_hash(selection, false));
  tc_selection_free(selection);
  *path = tc_sprintf("%s/proved", c.run_out);
  *text = tc_sprintf("proved %016llx\n", (unsigned long long)h);
  TC_FREE(run, all, rows);
  return 0;
}

bool tc_prove_is_marked(const char *path, const char *text)
{
  char *was = NULL;
  size_t bytes;
  struct tc_err none;
  const bool is = tc_read_text(&was, &bytes, path, "mark", 100, &none) == 0 && !strcmp(was, text);
  free(was);
  return is;
}

int tc_prove_mark(const struct tc_proving *p, const char *path, const char *text, struct tc_err *err)
{
  const struct tc_output_opts o = { .kind = &mark_kind };
  TC_TRY(tc_folder_make(p->cfg->run_out, err));
  return tc_output_text(path, &o, text, err);
}
