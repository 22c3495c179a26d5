/* digest.h - tests whose results are long: what is made of each line of a file, as a digest beside the
 * one that is stored behind the line; what is refused, with its status and sentence.
 *
 * After an intended change `t_X.t --update` stores what is made now; `--show LINE` prints what is made of
 * a line in full, to be compared with what an older build prints. */
#ifndef TC_DIGEST_H
#define TC_DIGEST_H

#include "src/config/config.h"
#include "src/files/input.h"
#include "tests/unit/tap.h"

#include <unistd.h>

/* The options in `flags`, of a small model, with rows of annotations behind " | ", ";" between them. */
TAP_UNUSED static int read_config(struct tc_config **c, const char *flags, struct tc_err *err)
{
  char text[700], *args[40] = { "train" }, *rest = text, *rows;
  int n = 1;
  snprintf(text, sizeof text,
           "--model.layers=4 --model.hidden=32 --model.heads=4 --model.context=16 "
           "--model.vocab=64 --data.train=x --data.format=bin %s",
           flags);
  if ((rows = strstr(text, " | "))) {
    FILE *f = fopen("rows.txt", "w");
    *rows = '\0';
    for (rows += 3; *rows; rows++) fputc(*rows == ';' ? '\n' : *rows, f);
    fclose(f);
    args[n++] = "--parallel.annotations=rows.txt";
  }
  for (char *a; (a = strtok_r(rest, " ", &rest)) && n < 40;) args[n++] = a;
  return tc_config_new(c, n, args, err);
}

static char *digest(char *text)
{
  uint64_t h = UINT64_C(14695981039346656037);
  if (!strncmp(text, "status ", 7)) return text;
  for (const char *c = text; *c; c++) h = (h ^ (uint8_t)*c) * UINT64_C(1099511628211);
  free(text);
  return tc_sprintf("%016" PRIx64, h);
}

/* --show LINE: what it makes, in full. */
static int show(char *(*make)(const char *line), const char *line)
{
  char *text = make(line);
  puts(text);
  free(text);
  return 0;
}

/* All lines of the file; a test that has more to say calls this, and done_testing. */
static int compare_digests(int argc, char **argv, const char *file, char *(*make)(const char *line))
{
  const char *src = getenv("srcdir"), *tmp = getenv("TMPDIR");
  char *path = tc_sprintf("%s/tests/unit/%s.txt", src ? src : ".", file), *stored, *now = NULL,
       dir[100];
  size_t bytes;
  struct tc_err err;
  if (tc_read_text(&stored, &bytes, path, "digests", 1 << 20, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  char *real = realpath(path, NULL), *rest = stored;
  snprintf(dir, sizeof dir, "%.70s/t_digest.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0); /* sentences name a file there */
  if (argc > 2 && !strcmp(argv[1], "--show")) return show(make, argv[2]);
  FILE *out = open_memstream(&now, &bytes);
  for (char *line; (line = strsep(&rest, "\n")) && *line;) {
    fprintf(out, "%s\n", line);
    if (*line == '#') continue;
    const char *want = strsep(&rest, "\n");
    char *got = digest(make(line));
    is_str(got, want, "%s", line);
    fprintf(out, "%s\n", got);
    free(got);
  }
  fclose(out);
  unlink("rows.txt");
  TC_ASSERT(chdir("/") == 0 && rmdir(dir) == 0);
  if (argc > 1 && !strcmp(argv[1], "--update") && (out = fopen(real, "w"))) {
    fputs(now, out);
    fclose(out);
  }
  free(real);
  free(now);
  free(stored);
  free(path);
  return 0;
}

TAP_UNUSED static int digests(int argc, char **argv, const char *file, char *(*make)(const char *line))
{
  const int rc = compare_digests(argc, argv, file, make);
  return rc || (argc > 2 && !strcmp(argv[1], "--show")) ? rc : done_testing();
}

#endif
