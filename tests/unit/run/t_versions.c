/* t_versions.c - the line that names the compiler and the libraries. */
#include "src/run/run.h"
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <ctype.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int wrong;

/* HDF5, one of the libraries, is not made for threads, and ranks may be threads. */
static void *ask(void *text)
{
  for (int i = 0; i < 500; i++) {
    char *again = tc_versions_text();
    if (strcmp(again, text)) atomic_fetch_add(&wrong, 1);
    free(again);
  }
  return NULL;
}

int main(void)
{
  static const char *const library[] = { "Open MPI v", "PMIx ", "HDF5 ", "oneDNN " };
  alarm(300);
  char *text = tc_versions_text();
  ok(!strncmp(text, "gcc ", 4) || !strncmp(text, "clang ", 6), "the compiler: %s", text);
  for (int i = 0; i < 4; i++) {
    const char *at = strstr(text, library[i]);
    ok(at && isdigit((unsigned char)at[strlen(library[i])]), "%s and a number", library[i]);
  }
  ok(!strstr(text, ", ,") && !strchr(text, '\n') && !strchr(text, '('), "nothing else");
  pthread_t thread[4];
  struct tc_err err;
  for (int i = 0; i < 4; i++) TC_ASSERT(tc_thread_start(&thread[i], ask, text, &err) == 0);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  is_int(wrong, 0, "the same for four threads at once");
  free(text);
  return done_testing();
}
