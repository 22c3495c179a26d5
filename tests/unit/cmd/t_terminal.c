/* t_terminal.c - what reaches the terminal (TERCIO, the program) of a checkpoint by others: every string of its manifest in
 * turn has control characters in it, and each command that reads manifests prints none of them. Its JSON stays JSON. */
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <sys/wait.h>
#include <wchar.h>

#include "tests/unit/ckpt_fixture.h"

/* Escape, C1 as UTF-8, right-to-left override, DEL, carriage return, bell. */
#define HOSTILE "x\033[2J\xc2\x9b" "31m\xe2\x80\xae\x7f\r\a"

static const char *const commands[] = {
  "ckpt ls D", "ckpt ls D --json", "ckpt show D", "ckpt show D --json", "ckpt show D --owners",
  "ckpt show D --owners --json", "ckpt tensors D", "ckpt tensors D --json", "ckpt verify D", "ckpt verify D --json",
  "ckpt diff D D", "ckpt diff D D --json", "ckpt plan D --world 1", "ckpt plan D --world 1 --json", "ckpt latest D",
  "ckpt dump D wte.weight --rows 0:1 --json", "ckpt export D -o D/export", "eval D --data D/x", "sample D --prompt x",
  "train --ckpt.from=D --data.train=D/x --run.out=D/out",
};
enum { COMMANDS = sizeof commands / sizeof *commands, MOST = 200 };

static struct { json_t *at; char *path; } string[MOST];
static int n_strings;

/* All strings, but of a list's members only those of the first and the last. */
static void collect(json_t *j, const char *path)
{
  const char *key;
  json_t *v;
  if (json_is_string(j)) {
    TC_ASSERT(n_strings < MOST);
    string[n_strings].at = j;
    string[n_strings++].path = tc_strdup(path);
  }
  json_object_foreach(j, key, v) {
    char *longer = tc_sprintf("%s.%s", path, key);
    collect(v, longer);
    free(longer);
  }
  for (size_t i = 0, n = json_array_size(j); i < n; i += i + 1 < n ? TC_MAX(n - 1 - i, 1) : 1) {
    char *longer = tc_sprintf("%s[%zu]", path, i);
    collect(json_array_get(j, i), longer);
    free(longer);
  }
}

static void put_manifest(const char *path, const json_t *j)
{
  char *text = json_dumps(j, JSON_ENSURE_ASCII);
  size_t bytes;
  char *sealed = tc_manifest_seal(text, strlen(text), &bytes);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(sealed, 1, bytes, f) == bytes && fclose(f) == 0);
  free(text);
  free(sealed);
}

/* The first character that a terminal obeys, or a byte that is no character; -1: none. By the C library's UTF-8. */
static long bad_character(const char *text, size_t n)
{
  mbstate_t state = { 0 };
  for (size_t at = 0; at < n;) {
    wchar_t c;
    const size_t used = mbrtowc(&c, text + at, n - at, &state);
    if (used == (size_t)-1 || used == (size_t)-2) return 0x1000000 | (unsigned char)text[at];
    if (c != '\n' && c != '\t' && (c < 32 || (c >= 0x7f && c < 0xa0) || c == 0x202e)) return c;
    at += TC_MAX(used, 1);
  }
  return -1;
}

static char *read_back(const char *path, size_t *n)
{
  FILE *f = fopen(path, "r");
  char *text = tc_calloc(1, 1 << 20);
  TC_ASSERT(f);
  *n = fread(text, 1, (1 << 20) - 1, f);
  fclose(f);
  return text;
}

/* Runs a command with D as the folder; its exit status. */
static int run(const char *command, const char *dir, const char *out, const char *err)
{
  const pid_t child = fork();
  if (child == 0) {
    char *words = tc_strdup(command), *argv[20] = { (char *)(uintptr_t)"tercio" }, *save = NULL;
    int argc = 1;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
      char *d = strchr(w, 'D');
      argv[argc++] = d && (d == w || d[-1] == '=') ? tc_sprintf("%.*s%s%s", (int)(d - w), w, dir, d + 1) : w;
    }
    dup2(open(out, O_RDWR | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err, O_RDWR | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    alarm(300);
    execv(getenv("TERCIO"), argv);
    _exit(99);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int main(void)
{
  if (!getenv("TERCIO")) skip_all("TERCIO is not set");
  if (!setlocale(LC_CTYPE, "C.UTF-8")) skip_all("the C library has no C.UTF-8");
  const char *dir = fx_folder();
  char *manifest = tc_sprintf("%s/step-00000007/manifest.json", dir);
  char *out = tc_sprintf("%s/stdout", dir), *err = tc_sprintf("%s/stderr", dir), *data = tc_sprintf("%s/x", dir);
  FILE *f = fopen(data, "w");
  if (f) fputs("some text to read", f);
  if (f) fclose(f);
  is_int(fx_save(dir, 7, 1, 2, 0), 0, "a checkpoint");
  json_t *j = json_load_file(manifest, 0, NULL);
  json_object_del(j, "crc32c");
  collect(j, "");
  ok(n_strings > 15, "its manifest has %d strings", n_strings);
  int shown = 0;
  for (int i = 0; i < n_strings; i++) {
    char *was = tc_strdup(json_string_value(string[i].at)), *is = tc_sprintf("%s" HOSTILE, was), *bad = NULL;
    bool seen = false;
    json_string_set(string[i].at, is);
    put_manifest(manifest, j);
    for (int k = 0; k < COMMANDS && !bad; k++) {
      size_t n_out, n_err;
      const int status = run(commands[k], dir, out, err);
      char *text = read_back(out, &n_out), *said = read_back(err, &n_err);
      const long c = bad_character(text, n_out), d = bad_character(said, n_err);
      if (status > 99 || c >= 0 || d >= 0)
        bad = tc_sprintf("%s: status %d, stdout %lx, stderr %lx", commands[k], status, (unsigned long)c, (unsigned long)d);
      json_t *parsed = json_loadb(text, n_out, JSON_DECODE_ANY, NULL);
      if (strstr(commands[k], "--json") && status == 0 && !parsed) bad = tc_sprintf("%s: not JSON", commands[k]);
      json_decref(parsed);
      seen |= strstr(text, "\\u001b") || strstr(said, "\\u001b");
      free(text);
      free(said);
    }
    ok(!bad, "%s: nothing that a terminal obeys", string[i].path);
    if (bad) printf("# %s\n", bad);
    shown += seen;
    json_string_set(string[i].at, was);
    free(was);
    free(is);
    free(bad);
  }
  ok(shown >= 10, "%d of %d strings are shown by some command", shown, n_strings);
  for (int i = 0; i < n_strings; i++) free(string[i].path);
  json_decref(j);
  free(manifest);
  free(data);
  free(out);
  free(err);
  fx_clean();
  return done_testing();
}
