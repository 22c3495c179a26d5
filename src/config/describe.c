/* describe.c - the configuration as a run file, what differs between two, and the paths in it. */
#include "src/config/impl.h"
#include "src/config/list.h"

#include <stdlib.h>
#include <string.h>

/* The shortest decimal that reads back as x. */
static void print_real(FILE *f, double x)
{
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, x);
    if (strtod(text, NULL) == x) break;
  }
  fputs(text, f);
}

static void print_value(FILE *f, const struct tc_config *c, const struct tc_opt *o)
{
  const void *p = tc_opt_field(c, o);
  switch (o->type) {
  case T_INT:
    if (*(const int64_t *)p < 0) fputs(tc_word_of(tc_number_words, (int)*(const int64_t *)p), f);
    else fprintf(f, "%lld", (long long)*(const int64_t *)p);
    break;
  case T_REAL:
  case T_FLOAT:
    if (*(const double *)p < 0) fputs(tc_word_of(tc_number_words, (int)*(const double *)p), f);
    else print_real(f, *(const double *)p);
    break;
  case T_BOOL: fputs(*(const bool *)p ? "yes" : "no", f); break;
  case T_STR:
  case T_FILE:
  case T_DIR: fputs(*(char *const *)p, f); break;
  case T_CHOICE: fputs(tc_word_of(o->words, *(const int *)p), f); break;
  case T_LIST: {
    const struct tc_list *l = p;
    for (int i = 0; i < l->n; i++) {
      if (i) fputc(' ', f);
      tc_list_put(f, l->item[i]);
    }
    break;
  }
  }
}

enum tc_config_source_kind tc_config_source(const struct tc_config *c, const char *name)
{
  const struct tc_opt *o = tc_opt_find(name);
  TC_ASSERT(o);
  return c->source[o - tc_opts];
}

void tc_config_sources(const struct tc_config *c, const char *prefix, char *text, size_t size)
{
  bool file = false;
  *text = '\0';
  for (int i = 0; i < TC_N_OPTS; i++)
    file |= c->source[i] == TC_FROM_FILE && strncmp(tc_opts[i].name, prefix, strlen(prefix)) == 0;
  if (file) tc_text_add(text, size, "%s", c->file);
  for (int i = 0; i < TC_N_OPTS; i++)
    if (c->source[i] == TC_FROM_FLAG && strncmp(tc_opts[i].name, prefix, strlen(prefix)) == 0)
      tc_text_add(text, size, "%s--%s", *text ? ", " : "", tc_opts[i].name);
}

/* ---- what differs ----------------------------------------------------------------------- */

char *tc_opt_text(const struct tc_config *c, const struct tc_opt *o)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  print_value(f, c, o);
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for an option's text");
  return text;
}

void tc_config_copy(struct tc_config *to, const struct tc_config *from, int option)
{
  static const size_t size[] = { [T_INT] = sizeof(int64_t), [T_REAL] = sizeof(double),
                                 [T_FLOAT] = sizeof(double), [T_STR] = sizeof(char *),
                                 [T_FILE] = sizeof(char *), [T_DIR] = sizeof(char *),
                                 [T_BOOL] = sizeof(bool), [T_LIST] = sizeof(struct tc_list),
                                 [T_CHOICE] = sizeof(int) };
  const struct tc_opt *o = &tc_opts[option];
  memcpy(tc_opt_field(to, o), tc_opt_field(from, o), size[o->type]);
}

int tc_config_next_path(const struct tc_config *c, int from, const char **name, const char **path)
{
  for (int i = from; i < TC_N_OPTS; i++) {
    const struct tc_opt *o = &tc_opts[i];
    if ((o->type != T_FILE && o->type != T_DIR) || c->source[i] == TC_FROM_DEFAULT) continue;
    *name = o->name;
    *path = *(char *const *)tc_opt_field(c, o);
    if (**path) return i;
  }
  return -1;
}
