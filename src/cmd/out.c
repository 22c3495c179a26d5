/* out.c - reads the descriptions of out.h. */
#include "src/cmd/out.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/err.h"
#include "src/base/figure.h"

/* A description that is being read, and the value that it is at. */
struct form {
  const char *at;                 /* what is left of the description */
  json_t *object;                 /* NULL: columns */
  bool hidden;                    /* within braces */
  char key[40], mark;             /* '?', '!' or another */
  const char *head;
  int head_len, width, precision; /* negative: to the left; the default one */
  bool wide;                      /* ll */
  char conv;
};

/* Reads what describes the next value, and prints what is before it; false: there is none. A width of "-*" is taken of
 * *args. */
static bool next(struct form *f, va_list *args)
{
  char *end;
  for (; *f->at && *f->at != ':' && !isalpha((unsigned char)*f->at); f->at++)
    if (*f->at == '{' || *f->at == '}') f->hidden = *f->at == '{';
    else if (!f->object && !f->hidden) putchar(*f->at);
  if (!*f->at) return false;
  const size_t key = strcspn(f->at, "?!:="), to = strcspn(f->at, "="), head = strcspn(f->at, ":=");
  TC_ASSERT(key < sizeof f->key && f->at[to + 1] == '%');
  snprintf(f->key, sizeof f->key, "%.*s", (int)key, f->at);
  f->mark = f->at[key];
  f->head = f->at + (head < to ? head + 1 : 0);
  f->head_len = (int)(head < to ? to - head - 1 : key);
  f->at += to + 2;
  if (strncmp(f->at, "-*", 2) == 0) f->width = -va_arg(*args, int), f->at += 2;
  else f->width = (int)strtol(f->at, &end, 10), f->at = end;
  f->precision = *f->at == '.' ? (int)strtol(f->at + 1, &end, 10) : -1;
  if (*f->at == '.') f->at = end;
  f->wide = *f->at == 'l';
  f->at += f->wide ? 2 : 0;
  f->conv = *f->at++;
  return true;
}

/* Prints the value, or sets it in the object. Where there is none, or no key, jansson only frees the value. */
static void take(const struct form *f, va_list *args)
{
  json_t *object = *f->key ? f->object : NULL, *value;
  char number[400], *json = NULL;
  const char *text = number;
  const bool may_lack = f->mark == '?';
  double figure = 0;
  bool lacks = false;
  if (f->conv == 'd') {
    const long long x = f->wide ? va_arg(*args, long long) : va_arg(*args, int);
    lacks = may_lack && x < 0;
    snprintf(number, sizeof number, "%lld", x);
    value = f->mark == '!' ? json_boolean(x) : json_integer(x);
  } else if (f->conv == 's') {
    text = va_arg(*args, const char *);
    lacks = !text || (may_lack && !*text);
    value = tc_text_json(text);
  } else if (f->conv == 'p') {
    value = va_arg(*args, void *);
    if (!f->object && !f->hidden) text = json = json_dumps(value, JSON_ENCODE_ANY);
  } else {
    figure = va_arg(*args, double);
    lacks = may_lack && figure < 0;
    snprintf(number, sizeof number, f->conv == 'f' ? "%.*f" : "%.*g", f->precision, tc_unsigned_nan(figure));
    value = json_null();
  }
  if (!f->object && !f->hidden) printf("%*s", f->width, lacks ? "-" : text);
  if (lacks && may_lack) json_object_set_new(object, f->key, json_null()), json_decref(value);
  else json_object_set_new(object, f->key, value);
  if (object && !lacks && strchr("fg", f->conv)) tc_figure(object, f->key, figure);
  free(json);
}

static json_t *object_of(const char *form, va_list *args)
{
  struct form f = { .at = form, .object = json_object() };
  while (next(&f, args)) take(&f, args);
  json_t *reasons = json_incref(json_object_get(f.object, "not_finite"));   /* they come last */
  json_object_del(f.object, "not_finite");
  json_object_set_new(f.object, "not_finite", reasons);
  return f.object;
}

void tc_out_head(const char *form, ...)
{
  struct form f = { .at = form };
  va_list args;
  va_start(args, form);
  while (next(&f, &args))
    if (!f.hidden) printf("%*.*s", f.width, f.head_len, f.head);
  va_end(args);
  putchar('\n');
}

void tc_out_row(json_t *list, const char *form, ...)
{
  struct form f = { .at = form };
  va_list args;
  va_start(args, form);
  if (list) json_array_append_new(list, object_of(form, &args));
  else while (next(&f, &args)) take(&f, &args);
  va_end(args);
  if (!list) putchar('\n');
}

void *tc_out_object(const char *form, ...)
{
  va_list args;
  va_start(args, form);
  json_t *o = object_of(form, &args);
  va_end(args);
  return o;
}

void tc_out_json(json_t *j, size_t flags)
{
  TC_ASSERT(j != NULL);
  json_dumpf(j, stdout, flags);
  putchar('\n');
  json_decref(j);
}
