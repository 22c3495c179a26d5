/* t_server.c - whether the launcher's PMIx server accepts a connection: sockets of the test's own that
 * listen, that are closed, and a host that does not answer. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* Of a host that does not answer: `interrupts` calls of poll are cut short after a tenth of their time. */
static struct { bool silent; int interrupts, polls; int64_t now_ns; } host;

static int64_t f_now(void) { return host.silent ? host.now_ns : tc_now_ns(); }

static int f_connect(int fd, const struct sockaddr *a, socklen_t n)
{
  if (!host.silent) return connect(fd, a, n);
  errno = EINPROGRESS;
  return -1;
}

static int f_poll(struct pollfd *p, nfds_t n, int ms)
{
  if (!host.silent) return poll(p, n, ms);
  const bool cut = host.polls++ < host.interrupts;
  host.now_ns += INT64_C(1000000) * ms / (cut ? 10 : 1);
  errno = EINTR;
  return cut ? -1 : 0;
}

static const char *pmix_version = "OpenPMIX 4.2.2, made up (PMIx Standard: 5.0)";

#define connect f_connect
#define poll f_poll
#define tc_now_ns f_now
#include "src/launch/server.c"
#undef connect
#undef poll

static int connections;            /* that the listening socket has got */
static int listening = -1;

/* A socket that listens on the loopback interface; *port <- its port. -1: there is no such interface. */
static int listen_on(int family, int *port)
{
  struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
  struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  struct sockaddr *a = family == AF_INET6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
  socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
  int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind(fd, a, size) != 0 || listen(fd, 5) != 0 || getsockname(fd, a, &size) != 0) {
    if (fd >= 0) close(fd);
    return -1;
  }
  *port = ntohs(family == AF_INET6 ? six.sin6_port : four.sin_port);
  return fd;
}

static void count_connections(void)
{
  for (int fd; listening >= 0 && (fd = accept(listening, NULL, NULL)) >= 0; connections++) close(fd);
}

static void forget_uris(void)
{
  for (char **e = environ; *e;) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
    if (strncmp(name, URI, strlen(URI)) == 0 && unsetenv(name) == 0) e = environ;
    else e++;
  }
}

/* Status with this address of version 4 and another one, and the sentence in `text`. */
static int with(const char *uri4, const char *name, const char *uri, char *text, size_t size)
{
  struct tc_err err = { 0 };
  forget_uris();
  if (uri4) setenv(URI "4", uri4, 1);
  if (name) setenv(name, uri, 1);
  connections = 0;
  int rc = tc_server_answers(pmix_version, &err);
  count_connections();
  snprintf(text, size, "%s", err.text);
  return rc;
}

/* %d in an address is a port that listens, %e one that does not. */
static char *address(const char *pattern, int port, int closed)
{
  char number[16];
  const char *at = pattern ? strchr(pattern, '%') : NULL;
  if (!at) return pattern ? tc_sprintf("%s", pattern) : NULL;
  snprintf(number, sizeof number, "%d", at[1] == 'd' ? port : closed);
  return tc_sprintf("%.*s%s%s", (int)(at - pattern), pattern, number, at + 2);
}

static void test_addresses(int port, int closed)
{
#define LIVE "srv.18;tcp4://127.0.0.1:%d"
#define DEAD "srv.18;tcp4://127.0.0.1:%e"
#define NONE "PMIX_NAMESPACE = job.7 is a launcher's, but PMIX_SERVER_URI*"
  static const struct { const char *what, *uri4, *name, *uri; int status, connections; const char *text; } rows[] = {
    { "a server", LIVE, NULL, NULL, TC_OK, 1, "" },
    { "a server that has ended", DEAD, NULL, NULL, TC_EPEER, 0, ": Connection refused)" },
    { "a newer version that PMIx knows", DEAD, URI "41", LIVE, TC_OK, 1, "" },
    { "... of a server that has ended", LIVE, URI "41", DEAD, TC_EPEER, 0, "(PMIX_SERVER_URI41=srv.18;" },
    { "an older version", LIVE, URI "3", DEAD, TC_OK, 1, "" },
    { "... of two digits", LIVE, URI "21", DEAD, TC_OK, 1, "" },
    { "... alone", NULL, URI "21", LIVE, TC_OK, 1, "" },
    { "a version that PMIx does not know", LIVE, URI "51", DEAD, TC_OK, 1, "" },
    { "... alone", NULL, URI "51", LIVE, TC_EPEER, 0, NONE },
    { "without a version, which PMIx does not read", NULL, URI, LIVE, TC_EPEER, 0, NONE },
    { "another variable", LIVE, URI "41_OF_MINE", DEAD, TC_OK, 1, "" },
    { "a number that is no version", LIVE, URI "411", DEAD, TC_OK, 1, "" },
    { "none", NULL, NULL, NULL, TC_EPEER, 0, NONE },
    { "no port", "srv.18;tcp4://127.0.0.1", NULL, NULL, TC_EPEER, 0, "it is not HOST:PORT" },
    { "an empty port", "srv.18;tcp4://127.0.0.1:", NULL, NULL, TC_EPEER, 0, "it is not HOST:PORT" },
    { "no address", "srv.18;tcp4://", NULL, NULL, TC_EPEER, 0, "it is not HOST:PORT" },
    { "a name of a host", "srv.18;tcp4://localhost:%d", NULL, NULL, TC_EPEER, 0, "it is not HOST:PORT" },
    { "another kind of address", "srv.18:/tmp/socket", NULL, NULL, TC_OK, 0, "" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[1000], *uri = address(rows[i].uri, port, closed), *uri4 = address(rows[i].uri4, port, closed);
    is_int(with(uri4, rows[i].name, uri, text, sizeof text), rows[i].status, "%s", rows[i].what);
    ok(strstr(text, rows[i].text), "... says: %s", text);
    ok(!*text || strstr(text, "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_*"),
       "... and what to do");
    is_int(connections, rows[i].connections, "... connections");
    free(uri);
    free(uri4);
  }
}

/* The versions that PMIx knows are those of the loaded library. */
static void test_known(int port)
{
  static const struct { const char *version; int status; } rows[] = {
    { "OpenPMIX 4.2.2", TC_EPEER }, { "OpenPMIx 5.0.1, ...", TC_OK }, { "PMIx", TC_OK }, { "PMIx 2026", TC_OK } };
  const char *const usual = pmix_version;
  char text[1000], *uri = address(LIVE, port, 0);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pmix_version = rows[i].version;
    is_int(with(NULL, URI "51", uri, text, sizeof text), rows[i].status, "version 5.1 with %s", pmix_version);
  }
  pmix_version = usual;
  free(uri);
}

static void test_silent(void)
{
  char text[1000];
  host.silent = true;
  host.interrupts = 3;
  is_int(with("s;tcp4://10.1.1.1:9", NULL, NULL, text, sizeof text), TC_EPEER, "a host that is silent");
  ok(strstr(text, "(PMIX_SERVER_URI4=s;tcp4://10.1.1.1:9: Connection timed out)"), "... says: %s", text);
  is_int(host.polls, 4, "... asked again after each signal");
  is_int(host.now_ns, INT64_C(1000000) * CONNECT_MS, "... after this time in all");
  host.silent = false;
}

int main(void)
{
  int port = 0, six = 0, closed = 0;
  setenv("PMIX_NAMESPACE", "job.7", 1);
  close(listen_on(AF_INET, &closed));
  listening = listen_on(AF_INET, &port);
  if (!ok(listening >= 0, "a socket listens")) return done_testing();
  test_addresses(port, closed);
  test_known(port);
  close(listening);
  if ((listening = listen_on(AF_INET6, &six)) < 0) {
    skip("this machine has no IPv6");
  } else {
    char text[1000], *plain = tc_sprintf("s;tcp6://::1:%d", six), *bracketed = tc_sprintf("s;tcp6://[::1]:%d", six);
    ok(with(plain, NULL, NULL, text, sizeof text) == TC_OK && connections == 1, "IPv6 %s", text);
    ok(with(bracketed, NULL, NULL, text, sizeof text) == TC_OK && connections == 1, "... in brackets %s", text);
    free(plain);
    free(bracketed);
    close(listening);
  }
  test_silent();
  return done_testing();
}
