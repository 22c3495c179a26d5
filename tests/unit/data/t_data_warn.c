/* t_data_warn.c - warnings of shards that are not finished, of files that are read twice, and of bytes for
 * a model with a larger vocabulary. */
#include "tests/unit/data_fixture.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

static char warned[2000];
static int warnings;

TAP_FORMAT(1, 2)
static void warn_here(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  const size_t n = strlen(warned);
  vsnprintf(warned + n, sizeof warned - n, fmt, ap);
  va_end(ap);
  warnings++;
}

#define tc_warn warn_here
#include "src/data/data_warn.c"
#undef tc_warn

enum { CONTEXT = 4, N = 20, VOCAB = 300 };

static void put_note(const char *folder, bool complete)
{
  char *name = tc_sprintf("%s/data.json", folder);
  char *text = tc_sprintf("{\"command\": {\"inputs\": [{\"path\": \"a.txt\"}, {\"path\": \"b.txt\"}]}, \"complete\": %s}",
                          complete ? "true" : "false");
  put(name, text, strlen(text));
  free(name);
  free(text);
}

static struct tc_data *open_words(const char *const *word)
{
  int n = 0;
  while (n < 4 && word[n]) n++;
  return n ? must_open((char *const *)(uintptr_t)word, n, TC_FORMAT_AUTO, 0, CONTEXT, VOCAB) : NULL;
}

static const char twice[] = "its text counts more than once", both[] = "the validation loss is also of text that is trained on";

static const struct { const char *train[4], *val[4]; int warnings; const char *says[2]; } rows[] = {
  { { "whole" }, { NULL }, 0, { NULL } },
  { { "whole" }, { "other" }, 0, { NULL } },
  { { "part" }, { NULL }, 1, { "data folder 'part' has only a part of its shards", "(tercio data a.txt b.txt -o part, with" } },
  { { "part/*" "0.bin" }, { NULL }, 1, { "data folder 'part' has" } },
  { { "part" }, { "part/s1.bin" }, 2, { "data folder 'part' has", both } },
  { { "whole" }, { "part" }, 1, { "data folder 'part' has" } },
  { { "foreign" }, { NULL }, 0, { NULL } },
  { { "whole", "whole/s1.bin" }, { NULL }, 1,
    { "data file 'whole/s1.bin' (data.train = whole whole/s1.bin) is also 'whole/s1.bin'", twice } },
  { { "1:whole", "2:other", "1:./whole/s0.bin" }, { NULL }, 1,
    { "data file 'whole/s0.bin' (data.train = whole) is also './whole/s0.bin' (data.train = ./whole/s0.bin)", twice } },
  { { "whole", "whole" }, { NULL }, 1, { "(and 1 more so)", twice } },
  { { "whole" }, { "other", "whole/s0.bin" }, 1,
    { "data file 'whole/s0.bin' (data.train = whole) is also 'whole/s0.bin' (data.val = other whole/s0.bin): ", both } },
  { { "whole", "whole" }, { "whole" }, 2, { twice, both } },
  { { "other" }, { "link.bin" }, 1, { "'link.bin' (data.val", both } },
  { { "text.txt" }, { NULL }, 1, { "a token of data.train = text.txt is a byte, below 256, but model.vocab = 300: " } },
  { { "1:bytes.bin", "1:text.txt" }, { NULL }, 1, { "a token of data.train = bytes.bin is a byte, below 256, but" } },
};

static void tests(const char *dir)
{
  static const char *const folder[] = { "whole", "part", "other", "foreign" };
  const uint16_t tokens[N] = { 0 };
  if (chdir(dir) != 0) exit(1);
  for (int i = 0; i < 4; i++) {
    mkdir(folder[i], 0755);
    for (int k = 0; k < 2; k++) {
      char *name = tc_sprintf("%s/s%d.bin", folder[i], k);
      if (i < 3) put_shard(name, 9, VOCAB, 0, tokens, N);
      else put_bin(name, 20240520, 1, N, tokens, N);
      free(name);
    }
  }
  put_note("whole", true);
  put_note("part", false);
  put_note("foreign", false);                    /* of another program: its shards do not bear tercio's mark */
  put("text.txt", "a text of bytes", 15);
  put_shard("bytes.bin", 0, 256, -1, tokens, N);
  if (link("other/s0.bin", "link.bin") != 0) perror("link");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_data *train = open_words(rows[i].train), *val = open_words(rows[i].val);
    *warned = '\0';
    warnings = 0;
    tc_data_warn(train, val);
    is_int(warnings, rows[i].warnings, "%s, validated by %s: %s", rows[i].train[0], rows[i].val[0] ? rows[i].val[0] : "(none)",
           warned);
    for (int k = 0; k < 2 && rows[i].says[k]; k++) ok(strstr(warned, rows[i].says[k]), "... says: %s", rows[i].says[k]);
    tc_data_free(train);
    tc_data_free(val);
  }
  if (chdir("..") != 0) exit(1);
}

int main(void)
{
  return in_folder("t_data_warn", tests);
}
