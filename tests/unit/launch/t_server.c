/* t_server.c - whether the launcher's PMIx server accepts a connection: sockets of the test's own that
 * listen, that are closed, and a host that does not answer. */
#include "tests/unit/tap.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* Of a host that does not answer. */
static struct { bool silent; int interrupts, waited_ms; } host;

static int f_connect(int fd, const struct sockaddr *a, socklen_t n)
{
  if (!host.silent) return connect(fd, a, n);
  errno = EINPROGRESS;
  return -1;
}

static int f_poll(struct pollfd *p, nfds_t n, int ms)
{
  if (!host.silent) return poll(p, n, ms);
  host.waited_ms = ms;
  errno = EINTR;
  return host.interrupts-- > 0 ? -1 : 0;
}

#define connect f_connect
#define poll f_poll
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

/* Status with these addresses, and the sentence in `text`. */
static int with(const char *uri, const char *uri4, char *text, size_t size)
{
  struct tc_err err = { 0 };
  forget_uris();
  if (uri) setenv(URI, uri, 1);
  if (uri4) setenv(URI "4", uri4, 1);
  connections = 0;
  int rc = tc_pmix_server(&err);
  count_connections();
  snprintf(text, size, "%s", err.text);
  return rc;
}

static char file[] = "/tmp/t_server.XXXXXX";

static void write_file(const char *text)
{
  FILE *f = fopen(file, "w");
  if (!f || fputs(text, f) < 0 || fclose(f) != 0) abort();
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
  static const struct { const char *what, *uri, *uri4; int status, connections; const char *text; } rows[] = {
    { "a server", NULL, "srv.18;tcp4://127.0.0.1:%d", TC_OK, 1, "" },
    { "without a version", "srv.18;tcp4://127.0.0.1:%d", NULL, TC_OK, 1, "" },
    { "a server that has ended", NULL, "srv.18;tcp4://127.0.0.1:%e", TC_EPEER, 0, ": Connection refused)" },
    { "one of two", "srv.18;tcp4://127.0.0.1:%e", "srv.18;tcp4://127.0.0.1:%d", TC_OK, 1, "" },
    { "none", NULL, NULL, TC_EPEER, 0, "PMIX_NAMESPACE = job.7 is a launcher's, but PMIX_SERVER_URI*" },
    { "no port", NULL, "srv.18;tcp4://127.0.0.1", TC_EPEER, 0, "it is not HOST:PORT" },
    { "an empty port", NULL, "srv.18;tcp4://127.0.0.1:", TC_EPEER, 0, "it is not HOST:PORT" },
    { "no address", NULL, "srv.18;tcp4://", TC_EPEER, 0, "it is not HOST:PORT" },
    { "a name of a host", NULL, "srv.18;tcp4://localhost:%d", TC_EPEER, 0, "it is not HOST:PORT" },
    { "another kind of address", NULL, "srv.18:/tmp/socket", TC_OK, 0, "" },
    { "... beside a dead one", "srv.18:/tmp/socket", "srv.18;tcp4://127.0.0.1:%e", TC_EPEER, 0, "refused" },
    { "a file that is missing", NULL, "file:/nosuch", TC_EPEER, 0,
      "(PMIX_SERVER_URI4=file:/nosuch: No such file" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[1000], *uri = address(rows[i].uri, port, closed), *uri4 = address(rows[i].uri4, port, closed);
    is_int(with(uri, uri4, text, sizeof text), rows[i].status, "%s", rows[i].what);
    ok(strstr(text, rows[i].text), "... says: %s", text);
    ok(!*text || strstr(text, "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_*"),
       "... and what to do");
    is_int(connections, rows[i].connections, "... connections");
    free(uri);
    free(uri4);
  }
}

static void test_file(int port, int closed)
{
  char text[1000], *name = tc_sprintf("file:%s", file);
  static const struct { const char *line; int status; const char *text; } rows[] = {
    { "srv.18;tcp4://127.0.0.1:%d\n4.2\n", TC_OK, "" },
    { "srv.18;tcp4://127.0.0.1:%e\n4.2\n", TC_EPEER, "refused" },
    { "", TC_EPEER, "the file is empty" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *line = address(rows[i].line, port, closed);
    write_file(line);
    is_int(with(NULL, name, text, sizeof text), rows[i].status, "a session file, row %d", (int)i);
    ok(strstr(text, rows[i].text), "... says: %s", text);
    free(line);
  }
  free(name);
}

static void test_silent(void)
{
  char text[1000];
  host.silent = true;
  host.interrupts = 2;
  is_int(with("s;tcp4://10.1.1.1:9", "s;tcp4://10.1.1.1:9", text, sizeof text), TC_EPEER, "a host that is silent");
  ok(strstr(text, "(PMIX_SERVER_URI=s;tcp4://10.1.1.1:9: Connection timed out)"), "... says: %s", text);
  is_int(host.waited_ms, CONNECT_MS, "... after this time");
  is_int(host.interrupts, -1, "... once, for both variables have the same address");
  host.silent = false;
}

int main(void)
{
  int port = 0, six = 0, closed = 0, fd = mkstemp(file);
  setenv("PMIX_NAMESPACE", "job.7", 1);
  close(fd);
  close(listen_on(AF_INET, &closed));
  listening = listen_on(AF_INET, &port);
  if (!ok(listening >= 0, "a socket listens")) return done_testing();
  test_addresses(port, closed);
  test_file(port, closed);
  close(listening);
  if ((listening = listen_on(AF_INET6, &six)) < 0) {
    skip("this machine has no IPv6");
  } else {
    char text[1000], *plain = tc_sprintf("s;tcp6://::1:%d", six), *bracketed = tc_sprintf("s;tcp6://[::1]:%d", six);
    ok(with(NULL, plain, text, sizeof text) == TC_OK && connections == 1, "IPv6 %s", text);
    ok(with(NULL, bracketed, text, sizeof text) == TC_OK && connections == 1, "... in brackets %s", text);
    free(plain);
    free(bracketed);
    close(listening);
  }
  test_silent();
  unlink(file);
  return done_testing();
}
