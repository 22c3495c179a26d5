/* server.c - whether the launcher's PMIx server, whose address is in the environment, accepts connections.
 *
 * Asked before MPI starts: without its server Open MPI 4.1 ends the process in MPI_Init, or starts it as
 * a run of its own, and PMIx waits minutes for a host that does not answer. */
#include "src/launch/pmix.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

enum { CONNECT_MS = 30000, ADDRESS_BYTES = 512 };

#define URI "PMIX_SERVER_URI"               /* and a version: PMIX_SERVER_URI4 */

/* 0, or an errno. */
static int try_connect(const struct addrinfo *a)
{
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), problem = 0;
  if (fd < 0) return errno;
  if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) problem = errno;
  if (problem == EINPROGRESS) {
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    socklen_t size = sizeof problem;
    int n;
    while ((n = poll(&p, 1, CONNECT_MS)) < 0 && errno == EINTR) continue;
    if (n == 0) problem = ETIMEDOUT;
    else if (n < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
  }
  close(fd);
  return problem;
}

/* "HOST:PORT", where an IPv6 HOST may be in brackets. NULL: accepts a connection; else what is wrong. */
static const char *try_address(const char *address)
{
  const struct addrinfo numeric = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                    .ai_socktype = SOCK_STREAM };
  struct addrinfo *found;
  char host[ADDRESS_BYTES];
  snprintf(host, sizeof host, "%s", address + (*address == '['));
  char *port = strrchr(host, ':');
  if (!port) return "it is not HOST:PORT";
  *port++ = 0;
  if (port - 2 >= host && port[-2] == ']') port[-2] = 0;
  if (!*port || getaddrinfo(host, port, &numeric, &found) != 0) return "it is not HOST:PORT";
  int problem = try_connect(found);
  freeaddrinfo(found);
  return problem ? strerror(problem) : NULL;
}

/* "ID;tcp4://HOST:PORT", or "file:PATH" with a file whose first line is that. *known: it is one of
 * these; what is not is left to PMIx. */
static const char *try_uri(const char *uri, bool *known)
{
  char line[ADDRESS_BYTES];
  *known = true;
  if (strncmp(uri, "file:", 5) == 0) {
    FILE *f = fopen(uri + 5, "re");
    if (!f) return strerror(errno);
    const char *got = fgets(line, sizeof line, f);
    fclose(f);
    if (!got) return "the file is empty";
    line[strcspn(line, "\n")] = 0;
    uri = line;
  }
  const char *tcp = strstr(uri, "tcp4://");
  if (!tcp) tcp = strstr(uri, "tcp6://");
  *known = tcp != NULL;
  return tcp ? try_address(tcp + strlen("tcp4://")) : NULL;
}

#define REMEDY "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_* in the environment"

int tc_pmix_server(struct tc_err *err)
{
  const char *failed = NULL, *problem = NULL;
  int n = 0;
  for (char **e = environ; *e; e++) {
    const char *value = strchr(*e, '=');
    bool known;
    if (strncmp(*e, URI, strlen(URI)) != 0 || !value) continue;
    n++;
    if (failed && strcmp(strchr(failed, '=') + 1, value + 1) == 0) continue;   /* the same once more */
    const char *why = try_uri(value + 1, &known);
    if (known && !why) return TC_OK;
    if (why && !failed) {
      failed = *e;
      problem = why;
    }
  }
  if (n == 0)
    return tc_fail(err, TC_EPEER, "PMIX_NAMESPACE = %s is a launcher's, but " URI "*, the address of its PMIx "
                   "server, is not in the environment: " REMEDY, tc_env("PMIX_NAMESPACE"));
  if (failed)
    return tc_fail(err, TC_EPEER, "the launcher's PMIx server does not answer (%s: %s); the launcher has "
                   "ended, or runs on another host: " REMEDY, failed, problem);
  return TC_OK;
}
